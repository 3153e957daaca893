"""A stream: its entries, its groups, and the counters that outlive entries.

    Stream ── entries ──▶ EntryLog
       ├───── groups  ──▶ Group ── pending ──▶ PendingList
       └───── producers: what idempotent production remembers

What a group still refers to is asked of the groups (`id in group.pending.by_id`), not kept twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from millstream.engine.streams.entries import Block, EntryLog
from millstream.engine.streams.groups import Group
from millstream.engine.streams.ids import MAX_KEY, order, text_of
from millstream.engine.text.args import I64_MAX

if TYPE_CHECKING:
    from millstream.engine.keys.keyspace import Database, KeyspaceSettings


class References(Enum):
    """What becomes of pending references when an entry is deleted."""

    KEEP = b"KEEPREF"  # they stay, without an entry behind them
    DELETE = b"DELREF"  # they go, in every group
    ACKED = b"ACKED"  # an entry that is referenced is not deleted


class Stream:
    """One stream."""

    __slots__ = (
        "_first",
        "entries",
        "entries_added",
        "groups",
        "idmp_duration",
        "idmp_maxsize",
        "iids_added",
        "iids_duplicates",
        "last",
        "max_deleted",
        "producers",
    )

    def __init__(self, settings: KeyspaceSettings | None = None) -> None:
        self.entries = EntryLog()
        self.last = 0  # key of the highest id ever given out
        self.max_deleted = 0  # key of the highest id deleted by XDEL and its kin; trimming does not count
        self.entries_added = 0  # all appends ever
        self.groups: dict[bytes, Group] = {}
        self.idmp_duration = 100 if settings is None else settings.stream_idmp_duration  # seconds a record lives
        self.idmp_maxsize = 100 if settings is None else settings.stream_idmp_maxsize  # records a producer may have
        self.producers: dict[bytes, dict[bytes, int]] = {}  # producer to {idempotent id: key}, oldest first
        self.iids_added = 0
        self.iids_duplicates = 0
        self._first: int | None = 0

    def __len__(self) -> int:
        return self.entries.length

    @property
    def first(self) -> int:
        """Key of the first live entry, 0 if there is none."""
        if self._first is None:
            self._first = self.entries.first_key()
        return self._first

    def append(self, entry_id: bytes, key: int, fields: list[bytes], settings: KeyspaceSettings) -> None:
        """Add an entry whose id is above all others."""
        entries = self.entries
        if not entries.length:
            self._first = key
        entries.append(entry_id, key, fields, settings)
        self.last = key
        added = self.entries_added
        if added != I64_MAX:
            self.entries_added = added + 1

    def append_field(self, entry_id: bytes, key: int, name: bytes, value: bytes, settings: KeyspaceSettings) -> None:
        """As append, for an entry with one field."""
        entries = self.entries
        if not entries.length:
            self._first = key
        entries.append_field(entry_id, key, name, value, settings)
        self.last = key
        added = self.entries_added
        if added != I64_MAX:
            self.entries_added = added + 1

    def append_bulks(
        self, ids: list[bytes], key: int, name: bytes, bulks: list[bytes], settings: KeyspaceSettings
    ) -> None:
        """As append, for entries with this one field; see `EntryLog.append_bulks`."""
        entries = self.entries
        if not entries.length:
            self._first = key
        entries.append_bulks(ids, key, name, bulks, settings)
        self.last = key + len(ids) - 1
        self.entries_added = min(self.entries_added + len(ids), I64_MAX)

    # Deleting

    def delete(self, entry_id: bytes, key: int) -> bool:
        """Remove an entry as XDEL does; whether it was there."""
        if not self.entries.delete(entry_id):
            return False
        if key == self._first:
            self._first = None
        if key > self.max_deleted:
            self.max_deleted = key
        return True

    def forget_references(self, entry_id: bytes) -> None:
        """Remove an id from the pending entries of every group."""
        for group in self.groups.values():
            group.pending.remove(entry_id)

    def is_referenced(self, entry_id: bytes, key: int) -> bool:
        """Whether some group has not reached this id, or has it pending."""
        groups = self.groups.values()
        if not groups:
            return False
        return min(group.last for group in groups) < key or any(entry_id in group.pending.by_id for group in groups)

    def trim(
        self, *, maxlen: int | None, minid: int | None, approximate: bool, limit: int, references: References
    ) -> tuple[int, int | None]:
        """Remove the oldest entries down to a length or up to an id.

        Walks whole blocks and, where the mode allows it, single entries of one. How many went, and the first id of
        the block at which the limit ended the walk, if it did.
        """
        entries = self.entries
        removed = 0
        stopped_at: int | None = None
        index = 0
        while index < len(entries.blocks):
            if maxlen is not None and entries.length <= maxlen:
                break
            block = entries.blocks[index]
            live = len(block.ids)
            if limit and removed + live > limit:
                stopped_at = block.first
                break
            if maxlen is not None:
                is_whole = entries.length - live >= maxlen
            else:
                is_whole = minid is not None and block.last < minid
            if references is References.KEEP:
                if is_whole:
                    entries.drop(index)
                    removed += live
                    continue
                if approximate:
                    break
            gone = self._trim_inside(block, maxlen, minid, references, is_whole=is_whole)
            removed += gone
            if not is_whole:
                break
            if gone < live:
                index += 1
        if removed:
            self._first = None
        return removed, stopped_at

    def _trim_inside(
        self, block: Block, maxlen: int | None, minid: int | None, references: References, *, is_whole: bool
    ) -> int:
        """Remove single entries of a block; how many went. A block that is not `whole` stays, even without any."""
        gone: list[bytes] = []
        oldest_kept = min((group.last for group in self.groups.values()), default=MAX_KEY)
        for entry_id in block.ids:
            if maxlen is not None and self.entries.length - len(gone) <= maxlen:
                break
            key = order(entry_id)
            if minid is not None and key >= minid:
                break
            if references is References.ACKED and (
                oldest_kept < key or any(entry_id in group.pending.by_id for group in self.groups.values())
            ):
                continue
            gone.append(entry_id)
        if references is References.DELETE:
            for entry_id in gone:
                self.forget_references(entry_id)
        self.entries.delete_all(block, gone, may_drop=is_whole)
        return len(gone)

    # Groups

    def sorted_groups(self) -> list[Group]:
        """Return the groups in byte order of their names, as every reply lists them."""
        return [group for _, group in sorted(self.groups.items())]

    def has_tombstone_from(self, key: int) -> bool:
        """Whether an entry may have been deleted at or after this id, so that counting on is unsafe."""
        return self.entries.length > 0 and self.max_deleted > 0 and key <= self.max_deleted

    def estimate_read(self, key: int) -> int | None:
        """How many entries had been added up to this id, None if that cannot be told."""
        added, length = self.entries_added, self.entries.length
        if added == 0:
            return 0
        if length == 0 and key <= self.last:
            return added
        if 0 < key < self.max_deleted or key > self.last:
            return None
        if key == self.last:
            return added
        if self.max_deleted == 0 or self.max_deleted < self.first:
            if key < self.first:
                return added - length
            if key == self.first:
                return added - length + 1
        return None

    def advance(self, group: Group, ids: Sequence[bytes], last: int) -> None:
        """Move a group on after it was given these new entries, up to the key `last`, and keep count."""
        done = 0
        while done < len(ids):
            read = group.entries_read
            if read is not None and group.last >= self.first and not self.has_tombstone_from(group.last):
                # counting is exact and no deletion lies ahead: each entry is one more
                group.entries_read = _as_signed(read + len(ids) - done)
                break
            key = order(ids[done])
            group.entries_read = self.estimate_read(key)
            group.last = key
            done += 1
        group.last = last

    def lag(self, group: Group) -> int | None:
        """How many entries the group has not read, None if that cannot be told."""
        if self.entries_added == 0 or self.entries.length == 0:
            return 0
        if group.last < self.first and self.max_deleted < self.first:
            return self.entries.length
        if group.entries_read is not None and not self.has_tombstone_from(group.last):
            return _as_signed(self.entries_added - group.entries_read)
        estimate = self.estimate_read(group.last)
        return None if estimate is None else self.entries_added - estimate

    # Idempotent production

    def record(self, producer: bytes, idempotent_id: bytes, key: int) -> None:
        """Remember what an idempotent id became; the producer's oldest record makes room."""
        records = self.producers.setdefault(producer, {})
        records[idempotent_id] = key
        self.iids_added += 1
        if len(records) > self.idmp_maxsize:
            del records[next(iter(records))]

    def expire_records(self, now_ms: int) -> None:
        """Forget records whose entry is older than the duration."""
        horizon = now_ms - 1000 * self.idmp_duration
        for producer, records in list(self.producers.items()):
            while records:
                oldest = next(iter(records))
                if records[oldest] >> 64 > horizon:
                    break
                del records[oldest]
            if not records:
                del self.producers[producer]

    def copy(self) -> Stream:
        """Return an independent copy."""
        twin = Stream()
        twin.entries, blocks = self.entries.copy()
        for name in (
            "last",
            "max_deleted",
            "entries_added",
            "idmp_duration",
            "idmp_maxsize",
            "iids_added",
            "iids_duplicates",
            "_first",
        ):
            setattr(twin, name, getattr(self, name))
        twin.producers = {producer: dict(records) for producer, records in self.producers.items()}
        twin.groups = {name: group.copy(blocks) for name, group in self.groups.items()}
        return twin

    def first_stored(self) -> bytes:
        """Return the id of the first entry still stored, deleted ones included; the highest possible id if none is."""
        return text_of(self.entries.firsts[0] if self.entries.firsts else MAX_KEY)


def _as_signed(value: int) -> int:
    """As a signed 64-bit number: counters set to absurd values by ENTRIESREAD wrap as Redis's do."""
    return value if value <= I64_MAX else value - (1 << 64)


def sweep_idempotency(database: Database, now_ms: int) -> None:
    """Forget expired idempotency records of every stream of a database; Redis does so once a second."""
    for key in list(database.idempotent):
        stream = database.values.get(key)
        if isinstance(stream, Stream):
            stream.expire_records(now_ms)
            if stream.producers:
                continue
        database.idempotent.discard(key)
