"""A copy of all state, taken at one moment under the lock and written out while the server goes on.

    freeze(keyspace) ── under the lock: shares what never changes, copies lists whole ──▶ Keyspace of frozen values
    frozen.databases[n].values.items() ── in another thread: one value at a time, thawed for use

Freezing must be quick, since all clients wait. Strings and sealed blocks are shared. A pending entry costs a slot in a
copied dict: its hold never changes owner, time and count, and nothing else is read. Work that needs a loop in Python is
left to `thaw`. A thawed stream can be written and nothing else: pending entries of equal time have no particular claim
order.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from millstream.engine.keys.keyspace import Keyspace
from millstream.engine.keys.values import Hash, List, SetOf, SortedSet
from millstream.engine.streams.groups import Group
from millstream.engine.streams.ids import order
from millstream.engine.streams.pending import AnyHold, GroupConsumer, PendingList
from millstream.engine.streams.stream import Stream


def freeze(keyspace: Keyspace) -> Keyspace:
    """Return a copy of the keyspace that does not change. Only its items can be read."""
    was_enabled = gc.isenabled()
    gc.disable()  # a garbage collection in the middle would visit every object
    try:
        frozen = Keyspace(len(keyspace.databases), keyspace.settings)
        for db, twin in zip(keyspace, frozen, strict=True):
            twin.values = _FrozenValues((key, _freeze_value(value)) for key, value in db.values.items())
            for key, at_ms in db.expires.items():
                twin.expires[key] = at_ms
        return frozen
    finally:
        if was_enabled:
            gc.enable()


class _FrozenValues(dict[bytes, object]):
    """Keys and frozen values; `items` thaws them."""

    def items(self) -> Any:
        return self._thawed()

    def _thawed(self) -> Iterator[tuple[bytes, object]]:
        for key, value in super().items():
            yield key, value.thaw() if isinstance(value, FrozenStream) else value


def _freeze_value(value: object) -> object:
    match value:
        case Stream():
            return FrozenStream.of(value)
        case Hash() | SetOf() | SortedSet():
            return value.copy()
        case List():
            return List(value)
        case _:
            return value  # bytes


@dataclass(slots=True)
class FrozenGroup:
    """A frozen group."""

    name: bytes
    last: int
    entries_read: int | None
    consumers: list[tuple[bytes, int, int | None]]  # name, seen, active
    pending: dict[bytes, AnyHold]
    zone: list[bytes]  # the released ones in order

    @classmethod
    def of(cls, group: Group) -> FrozenGroup:
        pending = group.pending
        return cls(
            group.name,
            group.last,
            group.entries_read,
            [(one.name, one.seen_ms, one.active_ms) for one in group.consumers.values()],
            pending.by_id.copy(),
            [entry_id for hold in pending.zone.walk() for entry_id, _ in pending.live_items(hold)],
        )

    def thaw(self) -> Group:
        group = Group(self.name, self.last, self.entries_read)
        for name, seen_ms, active_ms in self.consumers:
            group.consumers[name] = consumer = GroupConsumer(name, seen_ms)
            consumer.active_ms = active_ms
        self._fill(group.pending, group.consumers)
        return group

    def _fill(self, pending: PendingList, consumers: dict[bytes, GroupConsumer]) -> None:
        held = self.pending
        for entry_id in self.zone:
            pending.create(None, 0, held[entry_id].count, entry_id, None)
        owned = [entry_id for entry_id, hold in held.items() if hold.consumer is not None]
        owned.sort(key=order)
        owned.sort(key=lambda entry_id: held[entry_id].time_ms)
        for entry_id in owned:
            hold = held[entry_id]
            assert hold.consumer is not None
            pending.create(consumers[hold.consumer.name], hold.time_ms, hold.count, entry_id, None)


@dataclass(slots=True)
class FrozenStream:
    """A frozen stream."""

    shell: Stream  # entries and counters; without groups
    groups: list[FrozenGroup]

    @classmethod
    def of(cls, stream: Stream) -> FrozenStream:
        groups, stream.groups = stream.groups, {}
        try:
            shell = stream.copy()
        finally:
            stream.groups = groups
        return cls(shell, [FrozenGroup.of(group) for group in groups.values()])

    def thaw(self) -> Stream:
        """Return the stream. It takes over the frozen data, so call this only once."""
        self.shell.groups = {group.name: group.thaw() for group in self.groups}
        return self.shell
