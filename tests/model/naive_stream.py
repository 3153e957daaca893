"""The naive model's stream: nodes that are lists, groups that are lists and dicts; everything is counted anew.

    Stream ── nodes: [Node ── slots: [Slot(id, fields, dead)]]      oldest first
        └──── groups: {name: Group ── pending: [Pending …]}         the released ones are the list's prefix

Nothing is kept that can be computed: the length, the first id and a node's size are summed up when asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .naive_ids import I64, ZERO, Id

Fields = list[bytes]  # name, value, name, value …


@dataclass
class Slot:
    """An entry, live or a tombstone."""

    id: Id
    fields: Fields
    dead: bool = False


@dataclass
class Node:
    """A run of entries that Redis keeps in one listpack."""

    slots: list[Slot]

    def live(self) -> list[Slot]:
        return [slot for slot in self.slots if not slot.dead]

    def bytes(self) -> int:
        """The size of the listpack: 7 bytes around the elements (streams-base 12.2, streams-new 10.4)."""
        names = self.slots[0].fields[0::2]
        base = self.slots[0].id
        elements = [len(self.live()), len(self.slots) - len(self.live()), len(names), *names, 0]
        for slot in self.slots:
            elements += [0, slot.id[0] - base[0], _signed(slot.id[1] - base[1])]
            if slot.fields[0::2] == names:
                elements += [*slot.fields[1::2], len(names) + 3]
            else:
                elements += [len(slot.fields) // 2, *slot.fields, len(slot.fields) + 4]
        return 7 + sum(_element_size(element) for element in elements)


def _signed(number: int) -> int:
    """A difference as 64 bits hold it."""
    return (number + 2**63) % 2**64 - 2**63


def _element_size(element: int | bytes) -> int:
    """The bytes of one listpack element, its back-length included."""
    if isinstance(element, bytes):
        if re.fullmatch(rb"0|-?[1-9][0-9]{0,18}", element) and -I64 - 1 <= int(element) <= I64:
            element = int(element)
        else:
            size = len(element)
            size += 1 if size < 64 else 2 if size < 4096 else 5
            return size + _back_length(size)
    for low, high, size in (
        (0, 127, 1),
        (-4096, 4095, 2),
        (-(2**15), 2**15 - 1, 3),
        (-(2**23), 2**23 - 1, 4),
        (-(2**31), 2**31 - 1, 5),
    ):
        if low <= element <= high:
            return size + 1
    return 9 + 1


def _back_length(size: int) -> int:
    return 1 if size <= 127 else 2 if size < 16383 else 3 if size < 2097151 else 4 if size < 268435455 else 5


@dataclass
class Pending:
    """A delivered entry that is not settled; without a consumer it is released."""

    id: Id
    consumer: bytes | None
    time: int
    count: int


@dataclass
class Consumer:
    """When a consumer last asked, and when it last got something (-1: never)."""

    seen: int
    active: int = -1


@dataclass
class Group:
    """Readers that share a stream."""

    last: Id
    read: int | None  # how many entries were read up to `last`; None: not known
    pending: list[Pending] = field(default_factory=list)  # released in the order of release, then by time
    consumers: dict[bytes, Consumer] = field(default_factory=dict)

    def find(self, entry_id: Id) -> Pending | None:
        return next((p for p in self.pending if p.id == entry_id), None)

    def by_id(self) -> list[Pending]:
        return sorted(self.pending, key=lambda p: p.id)

    def owned_by(self, name: bytes) -> list[Pending]:
        return [p for p in self.by_id() if p.consumer == name]

    def zone_size(self) -> int:
        return len([p for p in self.pending if p.consumer is None])

    def see(self, name: bytes, now: int) -> Consumer:
        """The consumer, made if it is new, as seen now."""
        consumer = self.consumers.setdefault(name, Consumer(now))
        consumer.seen = now
        return consumer

    def release(self, p: Pending) -> None:
        """Make it nobody's; it goes to the end of the released zone. New ones may be released too."""
        self.forget(p)
        p.consumer, p.time = None, 0
        self.pending.insert(self.zone_size(), p)

    def hand_over(self, p: Pending, name: bytes, time: int) -> None:
        """Give it to a consumer: behind the last one, seen from the end, that is not younger (T6)."""
        self.forget(p)
        at = len(self.pending)
        while at > self.zone_size() and self.pending[at - 1].time > time:
            at -= 1
        p.consumer, p.time = name, time
        self.pending.insert(at, p)

    def forget(self, p: Pending) -> None:
        self.pending = [other for other in self.pending if other is not p]


@dataclass
class Stream:
    """A stream and all that belongs to it."""

    idmp_duration: int = 100
    idmp_maxsize: int = 100
    nodes: list[Node] = field(default_factory=list)
    last: Id = ZERO
    max_deleted: Id = ZERO
    added: int = 0
    groups: dict[bytes, Group] = field(default_factory=dict)
    producers: dict[bytes, dict[bytes, Id]] = field(default_factory=dict)
    iids_added: int = 0
    iids_duplicates: int = 0
    is_swept: bool = False  # an idempotent id was stored since the last sweep that left none

    def entries(self) -> list[Slot]:
        return [slot for node in self.nodes for slot in node.live()]

    def find(self, entry_id: Id) -> Slot | None:
        return next((slot for slot in self.entries() if slot.id == entry_id), None)

    def first(self) -> Id:
        entries = self.entries()
        return entries[0].id if entries else ZERO

    def append(self, entry_id: Id, fields: Fields, max_entries: int, max_bytes: int) -> None:
        """Put an entry at the end, in a new node where the last one is full."""
        node = self.nodes[-1] if self.nodes else None
        grown = sum(map(len, fields))
        if node is None or 0 < max_entries <= len(node.slots) or node.bytes() + grown >= (max_bytes or 2**30):
            self.nodes.append(Node([]))
        self.nodes[-1].slots.append(Slot(entry_id, fields))
        self.last = entry_id
        self.added += 1

    def drop_if_empty(self, node: Node) -> None:
        self.nodes = [other for other in self.nodes if other is not node or node.live()]

    def delete(self, entry_id: Id) -> bool:
        """Delete an entry as XDEL does; whether it was there."""
        for node in self.nodes:
            for slot in node.live():
                if slot.id == entry_id:
                    slot.dead = True
                    self.max_deleted = max(self.max_deleted, entry_id)
                    self.drop_if_empty(node)
                    return True
        return False

    def is_referenced(self, entry_id: Id) -> bool:
        """Whether ACKED must keep it: a group has it pending or has not come to it."""
        if not self.groups:
            return False
        if min(group.last for group in self.groups.values()) < entry_id:
            return True
        return any(group.find(entry_id) for group in self.groups.values())

    def forget_references(self, entry_id: Id) -> None:
        for group in self.groups.values():
            group.pending = [p for p in group.pending if p.id != entry_id]

    def trim(self, *, maxlen: int | None, minid: Id | None, approximate: bool, limit: int, strategy: bytes) -> int:
        """Remove the oldest entries (streams-new 7.4); how many went."""
        removed = 0
        for node in list(self.nodes):
            if maxlen is not None and len(self.entries()) <= maxlen:
                break
            live = node.live()
            if 0 < limit < removed + len(live):
                break
            if maxlen is not None:
                whole = len(self.entries()) - len(live) >= maxlen
            else:
                whole = node.slots[-1].id < minid
            if strategy == b"KEEPREF" and not whole and approximate:
                break
            for slot in live:
                if len(self.entries()) <= maxlen if maxlen is not None else slot.id >= minid:
                    break
                if strategy == b"ACKED" and self.is_referenced(slot.id):
                    continue
                if strategy == b"DELREF":
                    self.forget_references(slot.id)
                slot.dead = True
                removed += 1
            if not whole:
                break  # the node stays, even if none of its entries is left
            self.drop_if_empty(node)
        return removed

    # How far a group has read (streams-base 7.15)

    def has_tombstone_from(self, entry_id: Id) -> bool:
        return bool(self.entries()) and self.max_deleted != ZERO and entry_id <= self.max_deleted

    def position(self, entry_id: Id) -> int | None:
        """How many entries were added up to this id, if that can be told."""
        length, first = len(self.entries()), self.first()
        if self.added == 0:
            return 0
        if length == 0 and entry_id <= self.last:
            return self.added
        if entry_id != ZERO and entry_id < self.max_deleted:
            return None
        if entry_id == self.last:
            return self.added
        if entry_id > self.last:
            return None
        if self.max_deleted == ZERO or self.max_deleted < first:
            if entry_id < first:
                return self.added - length
            if entry_id == first:
                return self.added - length + 1
        return None

    def advance(self, group: Group, entry_id: Id) -> None:
        """The group has read on to this entry."""
        if group.read is not None and not self.has_tombstone_from(group.last) and group.last >= self.first():
            group.read += 1
        else:
            group.read = self.position(entry_id)
        group.last = entry_id

    def lag(self, group: Group) -> int | None:
        """How many entries the group has not read, if that can be told."""
        length, first = len(self.entries()), self.first()
        if self.added == 0 or length == 0:
            return 0
        if group.last < first and self.max_deleted < first:
            return length
        if group.read is not None and not self.has_tombstone_from(group.last):
            return self.added - group.read
        position = self.position(group.last)
        return None if position is None else self.added - position

    # Idempotent production

    def record(self, pid: bytes, iid: bytes, entry_id: Id) -> None:
        """Remember an idempotent id; the producer's oldest one makes room."""
        records = self.producers.setdefault(pid, {})
        records[iid] = entry_id
        self.is_swept = True
        self.iids_added += 1
        if len(records) > self.idmp_maxsize:
            del records[next(iter(records))]

    def sweep(self, now: int) -> None:
        """Forget idempotent ids that are too old, from the front of each producer's list, and empty producers.

        A stream that never stored one is not looked at: it keeps the empty producer of an XADD that failed.
        """
        if not self.is_swept:
            return
        for pid, records in list(self.producers.items()):
            while records and next(iter(records.values()))[0] <= now - 1000 * self.idmp_duration:
                del records[next(iter(records))]
            if not records:
                del self.producers[pid]
        self.is_swept = bool(self.producers)
