"""A stream's body in RDB, in each of Redis's five forms.

    type 15   nodes, length, last id; groups: name, last id, pending entries, consumers
    type 19   + first id, highest deleted id, entries added; groups: + entries read
    type 21   + when a consumer was last active
    type 26   + idempotency records
    type 27   + which pending entries are released, in order

Written in an older type, a stream loses the parts which that type lacks. Released entries get an owner there: a
consumer named by the caller, with the oldest possible time (0), so that any consumer may claim them at once.

A stream read back from its body can differ in these points: among equal delivery times, claim order becomes id order,
as in Redis; blocks without live entries, which a trim can leave behind, are not written; and no group has read more
entries than were added, because Redis refuses such files although it writes them. `nodes` says what is kept of
deleted entries.

The reader accepts and refuses the same bodies as Redis, with these differences. Entries out of order and nodes that
contradict their header are refused, where Redis trusts them and may fail later. An entry without an owner that is not
released joins the released ones; Redis keeps it in a state that no command can create. The first id, and a last id
that is too low, are corrected. `lenient` reading accepts bodies that Redis writes and does not read.
"""

from __future__ import annotations

from typing import Final

from millstream.engine.streams.entries import Block, EntryLog
from millstream.engine.streams.ids import order
from millstream.engine.streams.stream import Stream
from millstream.errors import BadFormat
from millstream.persistence.rdb.codec import Reader, Writer, as_signed
from millstream.persistence.rdb.groups import read_group, write_group
from millstream.persistence.rdb.nodes import block_of, node_of
from millstream.persistence.rdb.versions import ReadOptions, WriteOptions

_DURATIONS: Final = range(1, 86401)
_MAXSIZES: Final = range(1, 10001)


# Writing


def write_stream(out: Writer, stream: Stream, options: WriteOptions) -> None:
    """Write the body of a stream."""
    kind = options.stream_type
    blocks = [block for block in stream.entries.blocks if block.ids]
    out.length(len(blocks))
    for block in blocks:
        out.put(b"\x10" + block.first.to_bytes(16, "big"))
        out.string(node_of(block))
    out.length(len(stream))
    out.id(stream.last)
    if kind >= 19:
        out.id(stream.first)
        out.id(stream.max_deleted)
        out.length(stream.entries_added)
    out.length(len(stream.groups))
    for group in stream.sorted_groups():
        write_group(out, stream, group, options)
    if kind >= 26:
        _write_records(out, stream, options.now_ms)


def _write_records(out: Writer, stream: Stream, now_ms: int | None) -> None:
    out.length(stream.idmp_duration)
    out.length(stream.idmp_maxsize)
    out.length(len(stream.producers))
    horizon = -1 if now_ms is None else now_ms - 1000 * stream.idmp_duration
    for producer, records in sorted(stream.producers.items()):
        out.string(producer)
        items = list(records.items())
        # Like Redis, only expired records at the front go: one after a younger record stays.
        expired = next((at for at, (_, key) in enumerate(items) if key >> 64 > horizon), len(items))
        out.length(len(items) - expired)
        for idempotent_id, key in items[expired:]:
            out.string(idempotent_id)
            out.id(key)
    out.length(stream.iids_added)
    out.length(stream.iids_duplicates)


# Reading


def read_stream(reader: Reader, kind: int, options: ReadOptions) -> Stream:
    """Read the body of a stream of this type."""
    stream = Stream(options.settings)
    stream.entries = _read_entries(reader, options)
    stream._first = None
    length = reader.length()
    if length != len(stream):
        raise reader.bad("a stream whose length is not that of its nodes")
    # with a last id below an entry, the entry's id could be assigned again
    stream.last = max(reader.id(), stream.entries.last_key())
    stream.entries_added = length
    if kind >= 19:
        reader.id()  # the first id, which the entries also give
        stream.max_deleted = reader.id()
        stream.entries_added = as_signed(reader.length())
        if stream.entries_added < length and not options.lenient:
            raise reader.bad("a stream with more entries than were ever added")
    for _ in range(reader.length()):
        group = read_group(reader, kind, stream, options)
        if group.name in stream.groups:
            raise reader.bad("a stream with two groups of one name")
        stream.groups[group.name] = group
    if kind >= 26:
        _read_records(reader, stream, options.now_ms)
    return stream


def _read_entries(reader: Reader, options: ReadOptions) -> EntryLog:
    blocks: dict[int, Block] = {}
    for _ in range(reader.length()):
        name = reader.string()
        first = int.from_bytes(name, "big")
        if len(name) != 16 or first in blocks:
            raise reader.bad("a stream node whose id is damaged or there twice")
        data = reader.string()
        try:
            blocks[first] = block_of(first, data)
        except BadFormat as error:
            error.locate(reader.offset)
            raise
        if not blocks[first].ids and not options.lenient:
            raise reader.bad("a stream node without entries")
    log = EntryLog()
    log.blocks = sorted(blocks.values(), key=lambda block: block.first)
    log.firsts = [block.first for block in log.blocks]
    log.length = sum(len(block.ids) for block in log.blocks)
    _check_order(reader, log)
    for block in log.blocks[:-1]:
        block.seal()
    return log


def _check_order(reader: Reader, log: EntryLog) -> None:
    """Check that each block's entries come before the next block."""
    for block, following in zip(log.blocks, log.firsts[1:], strict=False):
        if block.ids and order(block.ids[-1]) >= following:
            raise reader.bad("stream nodes that overlap")


def _read_records(reader: Reader, stream: Stream, now_ms: int) -> None:
    stream.idmp_duration, stream.idmp_maxsize = reader.length(), reader.length()
    if stream.idmp_duration not in _DURATIONS or stream.idmp_maxsize not in _MAXSIZES:
        raise reader.bad("settings of idempotency that are out of range")
    horizon = now_ms - 1000 * stream.idmp_duration
    for _ in range(reader.length()):
        producer = reader.string()
        count = reader.length()
        if count and producer in stream.producers:
            raise reader.bad("a stream with two producers of one name")
        records: dict[bytes, int] = {}
        for _ in range(count):
            idempotent_id, key = reader.string(), reader.id()
            if key >> 64 > horizon:
                records.setdefault(idempotent_id, key)
        if records:
            stream.producers[producer] = records
    stream.iids_added, stream.iids_duplicates = as_signed(reader.length()), as_signed(reader.length())
