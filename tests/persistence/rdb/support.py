"""What the tests of RDB share: keyspaces left by random programs, what can be seen of them, streams made by hand."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from millstream.engine.commands import execute
from millstream.engine.keys.keyspace import CommandContext, Keyspace
from millstream.engine.outcome import Outcome
from millstream.engine.streams.stream import Stream
from millstream.errors import CommandError
from millstream.persistence.dump_restore import REGISTRY
from millstream.persistence.rdb import listpack
from millstream.persistence.rdb.codec import length_bytes, string_bytes
from millstream.persistence.rdb.crc64 import crc64
from millstream.server.protocol.resp import encode
from tests.model import programs
from tests.model.duel import START_MS, Setup, new_keyspace
from tests.model.naive import NaiveRedis
from tests.model.naive_ids import TOP, text

NOW_MS = START_MS
KEYS = (b"s", b"t")
FULL = (b"FULL", b"COUNT", b"0")


def real_now_ms() -> int:
    """The time that a real server would say it is."""
    return time.time_ns() // 1_000_000


# Keyspaces


@dataclass
class Ran:
    """What a random program has left."""

    keyspace: Keyspace
    now_ms: int

    def streams(self) -> dict[bytes, Stream]:
        values = self.keyspace.databases[0].values
        return {key: value for key in KEYS if isinstance(value := values.get(key), Stream)}


def ran(seed: int, *, length: int = 400, start_ms: int = START_MS) -> Ran:
    """Run a random program on the engine; the model only tells which ids there are.

    Entries with the highest id there can be are left out: nothing can follow them.
    """
    choose = programs.RandomChooser(seed)
    setup = Setup(choose([100, 3, 2, 1, 5, 0]), choose([4096, 4096, 120, 300]))
    world = NaiveRedis(setup.node_max_entries, setup.node_max_bytes)
    found = Ran(new_keyspace(setup), start_ms)
    for _ in range(length):
        found.now_ms += choose([0, 0, 1, 2, 20])
        argv = programs.command(programs.Scene(choose, world, found.now_ms, real_clock=True))
        if text(TOP) not in argv:
            world.run(argv, found.now_ms)
            execute(found.keyspace, 0, argv, found.now_ms)
    return found


def run(keyspace: Keyspace, *argv: bytes, now_ms: int = NOW_MS, trusted: bool = False) -> Outcome:
    """Run a command, DUMP and RESTORE among them."""
    row = REGISTRY.commands.get(argv[0].lower())
    if row is None:
        return execute(keyspace, 0, list(argv), now_ms, trusted=trusted)
    assert row.run is not None
    call = CommandContext(keyspace, 0, now_ms, trusted=trusted)
    try:
        return call.outcome(row.run(call, list(argv)))
    except CommandError as error:
        return call.outcome(error)


def wire(keyspace: Keyspace, *argv: bytes, now_ms: int = NOW_MS) -> bytes:
    """A command's reply as a client gets it."""
    return encode(run(keyspace, *argv, now_ms=now_ms).reply, 2)


def holding(value: object) -> Keyspace:
    """A keyspace with this value at the key `s`."""
    keyspace = Keyspace()
    keyspace.databases[0].values[b"s"] = value
    return keyspace


# What can be seen of a stream


def info(stream: Stream, now_ms: int = NOW_MS) -> bytes:
    """All that XINFO tells of a stream."""
    return wire(holding(stream), b"XINFO", b"STREAM", b"s", *FULL, now_ms=now_ms)


def claim_order(stream: Stream) -> dict[bytes, list[bytes]]:
    """The order in which each group hands pending entries out."""
    return {
        name: [entry_id for hold in group.pending.claim_order() for entry_id, _ in group.pending.live_items(hold)]
        for name, group in stream.groups.items()
    }


def nodes(stream: Stream) -> list[tuple[object, ...]]:
    """What decides when the next node is opened and what a trim removes."""
    return [
        (block.first, block.last, len(block.ids), block.dead, block.node_bytes(), block.names)
        for block in stream.entries.blocks
    ]


def as_saved(stream: Stream) -> Stream:
    """A copy without what is documented to be lost: see `rdb_stream`."""
    twin = stream.copy()
    blocks = twin.entries.blocks
    for index in reversed(range(len(blocks))):
        if not blocks[index].ids:
            twin.entries.drop(index)
    for group in twin.groups.values():
        if group.entries_read is not None:
            group.entries_read = min(group.entries_read, twin.entries_added)
    for producer in [name for name, records in twin.producers.items() if not records]:
        del twin.producers[producer]
    return twin


# Streams by hand

Element = bytes | int


def string(value: bytes) -> bytes:
    return string_bytes(value, compress=False)


def pack(*elements: Element) -> bytes:
    """A listpack."""
    return listpack.pack([listpack.of_integer(e) if isinstance(e, int) else listpack.of_string(e) for e in elements])


def raw_id(ms: int, seq: int = 0) -> bytes:
    return ms.to_bytes(8, "big") + seq.to_bytes(8, "big")


def raw_time(ms: int) -> bytes:
    return ms.to_bytes(8, "little", signed=True)


def node(base: int, *ids: int, live: int | None = None, dead: int = 0) -> bytes:
    """A node with entries `{f v}` whose ids are these milliseconds."""
    elements: list[Element] = [len(ids) if live is None else live, dead, 1, b"f", 0]
    for ms in ids:
        elements += [2, ms - base, 0, b"v", 4]
    return node_of(base, *elements)


def node_of(base: int, *elements: Element) -> bytes:
    return string(raw_id(base)) + string(pack(*elements))


@dataclass(frozen=True)
class Member:
    """A consumer of a group made by hand."""

    name: bytes
    ids: tuple[int, ...] = ()
    seen_ms: int = 1
    active_ms: int = 1


def group(
    name: bytes,
    last: int,
    *,
    pending: Iterable[tuple[int, int, int]] = (),
    members: Iterable[Member] = (),
    zone: Iterable[int] = (),
    read: int = -1,
    kind: int = 27,
) -> bytes:
    """A group's bytes; pending entries are (ms, time, count)."""
    rows, members, zone = list(pending), list(members), list(zone)
    parts = [string(name), length_bytes(last), length_bytes(0)]
    if kind >= 19:
        parts.append(length_bytes(read))
    parts.append(length_bytes(len(rows)))
    parts += [raw_id(ms) + raw_time(time_ms) + length_bytes(count) for ms, time_ms, count in rows]
    parts.append(length_bytes(len(members)))
    for member in members:
        parts += [string(member.name), raw_time(member.seen_ms)]
        if kind >= 21:
            parts.append(raw_time(member.active_ms))
        parts += [length_bytes(len(member.ids)), *map(raw_id, member.ids)]
    if kind >= 27:
        parts += [length_bytes(len(zone)), *map(raw_id, zone)]
    return b"".join(parts)


def producer(name: bytes, *records: tuple[bytes, int]) -> bytes:
    parts = [string(iid) + length_bytes(ms) + length_bytes(0) for iid, ms in records]
    return string(name) + length_bytes(len(records)) + b"".join(parts)


def stream(
    node_list: list[bytes],
    length: int,
    last: int,
    groups: Iterable[bytes] = (),
    *,
    first: int = 1,
    max_deleted: int = 0,
    added: int | None = None,
    idmp: tuple[int, int] = (100, 100),
    producers: Iterable[bytes] = (),
    counters: tuple[int, int] = (0, 0),
    kind: int = 27,
) -> bytes:
    """A stream's payload."""
    groups, producers = list(groups), list(producers)
    numbers = [length, last, 0]
    if kind >= 19:
        numbers += [first, 0, max_deleted, 0, length if added is None else added]
    parts = [bytes((kind,)), length_bytes(len(node_list)), *node_list, *map(length_bytes, numbers)]
    parts += [length_bytes(len(groups)), *groups]
    if kind >= 26:
        parts += [length_bytes(idmp[0]), length_bytes(idmp[1]), length_bytes(len(producers)), *producers]
        parts += map(length_bytes, counters)
    return sealed(b"".join(parts))


def sealed(body: bytes, version: int = 15) -> bytes:
    """A payload of these bytes, with the right trailer."""
    body += version.to_bytes(2, "little")
    return body + crc64(body).to_bytes(8, "little")
