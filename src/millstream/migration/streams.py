"""The state of a stream besides its entries, read by commands that Redis 6.2 has.

Two things no command tells: in which order entries were released, and which idempotent ids were seen. They are taken
from the stream's payload when there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from millstream.engine.streams.ids import text_of
from millstream.engine.streams.stream import Stream
from millstream.migration.place import Endpoint, pairs

_PENDING_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Pending:
    """A pending entry."""

    id: bytes
    consumer: bytes | None  # None: released
    time_ms: int  # of its delivery; 0 when released
    count: int


@dataclass(slots=True)
class SourceGroup:
    """A group: its last id, its consumers, and its pending entries in the order of ids."""

    name: bytes
    last: bytes
    entries_read: int | None
    consumers: list[bytes] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Info:
    """The counters of a stream; None: the server does not keep this one."""

    length: int
    last: bytes
    entries_added: int | None
    max_deleted: bytes | None
    idmp: tuple[int, int] | None  # duration in seconds, most ids a producer

    @classmethod
    def read(cls, place: Endpoint, key: bytes) -> Info:
        found = pairs(place.ask(key, "XINFO", "STREAM", key))
        has_idmp = "idmp-duration" in found
        return cls(
            found["length"],
            found["last-generated-id"],
            found.get("entries-added"),
            found.get("max-deleted-entry-id"),
            (found["idmp-duration"], found["idmp-maxsize"]) if has_idmp else None,
        )


def read_groups(place: Endpoint, key: bytes) -> list[SourceGroup]:
    """Read all groups of a stream."""
    return [_read_group(place, key, pairs(each)) for each in place.ask(key, "XINFO", "GROUPS", key)]


def _read_group(place: Endpoint, key: bytes, found: dict[str, Any]) -> SourceGroup:
    group = SourceGroup(found["name"], found["last-delivered-id"], found.get("entries-read"))
    consumers = place.ask(key, "XINFO", "CONSUMERS", key, group.name)
    group.consumers = [pairs(each)["name"] for each in consumers]
    group.pending = list(_read_pending(place, key, group.name))
    return group


def _read_pending(place: Endpoint, key: bytes, group: bytes) -> Iterator[Pending]:
    start = b"-"
    while True:
        words = ("XPENDING", key, group, start, "+", _PENDING_PAGE)
        (seconds, micros), rows = place.ask_all(key, [("TIME",), words], atomic=True)
        now_ms = 1000 * int(seconds) + int(micros) // 1000
        for entry_id, consumer, idle_ms, count in rows:
            if consumer == b"" and idle_ms == -1:
                yield Pending(entry_id, None, 0, count)
            else:
                yield Pending(entry_id, consumer, now_ms - idle_ms, count)
        if len(rows) < _PENDING_PAGE:
            return
        start = b"(" + rows[-1][0]


@dataclass(frozen=True, slots=True)
class Hidden:
    """The parts of a stream that only its payload holds."""

    zones: dict[bytes, list[bytes]] = field(default_factory=dict)  # group to its released ids, first in line first
    records: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)  # producer, idempotent id, entry id

    @classmethod
    def of(cls, stream: Stream) -> Hidden:
        zones = {name: list(released(stream, name)) for name in stream.groups}
        records = [
            (producer, idempotent_id, text_of(entry))
            for producer, known in stream.producers.items()
            for idempotent_id, entry in known.items()
        ]
        return cls(zones, records)


def released(stream: Stream, group: bytes) -> Iterator[bytes]:
    """Yield the ids that were released in a group, the next one to be claimed first."""
    pending = stream.groups[group].pending
    for hold in pending.zone.walk():
        for entry_id, _ in pending.live_items(hold):
            yield entry_id
