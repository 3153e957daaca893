"""XINFO: what a stream, its groups and their consumers look like inside."""

from __future__ import annotations

from itertools import islice

from millstream.engine import faults
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.outcome import Encoded, Pairs, Reply, Simple
from millstream.engine.streams import ids
from millstream.engine.streams.entry_replies import encode_entry, entries_reply
from millstream.engine.streams.groups import Group
from millstream.engine.streams.ids import MAX_KEY
from millstream.engine.streams.pending import GroupConsumer
from millstream.engine.streams.stream import Stream
from millstream.engine.table import Registry
from millstream.engine.text.args import integer

REGISTRY = Registry("stream")
REGISTRY.add("xinfo", -2, syntax="XINFO subcommand ...", since="5.0.0", summary="Looks into streams and groups.")

_HELP = """XINFO <subcommand> [<arg> [value] [opt] ...]. Subcommands are:
CONSUMERS <key> <groupname>
    Show consumers of <groupname>.
GROUPS <key>
    Show the stream consumer groups.
STREAM <key> [FULL [COUNT <count>]
    Show information about the stream.
HELP
    Print this help."""


@REGISTRY.command("xinfo|help", 2, "loading stale", since="5.0.0", summary="Describes the subcommands.")
def xinfo_help(call: CommandContext, argv: list[bytes]) -> Reply:
    """XINFO HELP"""
    return [Simple(line.encode()) for line in _HELP.splitlines()]


def _stream(call: CommandContext, key: bytes) -> Stream:
    stream = call.typed_to_read(key, Stream)
    if stream is None:
        raise fault(faults.NO_SUCH_KEY)
    return stream


@REGISTRY.command(
    "xinfo|stream",
    -3,
    "readonly",
    keys=(2, 2, 1),
    access="RO access",
    since="5.0.0",
    summary="Shows a stream's counters, and with FULL its entries, groups and pending entries.",
)
def xinfo_stream(call: CommandContext, argv: list[bytes]) -> Reply:
    """XINFO STREAM key [FULL [COUNT n]]"""
    stream = _stream(call, argv[2])
    full, count = _parse_stream(argv)
    reply = Pairs(
        [
            b"length",
            len(stream),
            b"radix-tree-keys",
            len(stream.entries.blocks),
            b"radix-tree-nodes",
            stream.entries.trie_nodes(),
            b"last-generated-id",
            ids.text_of(stream.last),
            b"max-deleted-entry-id",
            ids.text_of(stream.max_deleted),
            b"entries-added",
            stream.entries_added,
            b"recorded-first-entry-id",
            ids.text_of(stream.first),
            b"idmp-duration",
            stream.idmp_duration,
            b"idmp-maxsize",
            stream.idmp_maxsize,
            b"pids-tracked",
            len(stream.producers),
            b"iids-tracked",
            sum(map(len, stream.producers.values())),
            b"iids-added",
            stream.iids_added,
            b"iids-duplicates",
            stream.iids_duplicates,
        ]
    )
    if full:
        most = count or None
        reply += [b"entries", entries_reply(*stream.entries.read(0, MAX_KEY, most))]
        reply += [b"groups", [_full_group(stream, group, most) for group in stream.sorted_groups()]]
    else:
        reply += [b"groups", len(stream.groups)]
        reply += [b"first-entry", _one(*stream.entries.read(0, MAX_KEY, 1))]
        reply += [b"last-entry", _one(*stream.entries.read_back(0, MAX_KEY, 1))]
    return reply


def _parse_stream(argv: list[bytes]) -> tuple[bool, int]:
    """Whether FULL was asked for, and how many of everything; 0 is all."""
    if len(argv) == 3:
        return False, 0
    if argv[3].upper() != b"FULL" or len(argv) not in (4, 6):
        raise faults.bad_subcommand_use("xinfo", argv[1])
    if len(argv) == 4:
        return True, 10
    if argv[4].upper() != b"COUNT":
        raise faults.bad_subcommand_use("xinfo", argv[1])
    count = integer(argv[5])
    return True, 10 if count < 0 else count


def _one(entry_ids: list[bytes], fragments: list[bytes]) -> Reply:
    return Encoded(encode_entry(entry_ids[0], fragments[0])) if entry_ids else None


def _full_group(stream: Stream, group: Group, most: int | None) -> Reply:
    pending = group.pending
    rows: list[Reply] = []
    for entry_id, hold in islice(pending.in_order(0, MAX_KEY), most):
        owner = b"" if hold.consumer is None else hold.consumer.name
        rows.append([entry_id, owner, hold.time_ms, hold.count])
    return Pairs(
        [
            b"name",
            group.name,
            b"last-delivered-id",
            ids.text_of(group.last),
            b"entries-read",
            group.entries_read,
            b"lag",
            stream.lag(group),
            b"pel-count",
            len(pending),
            b"nacked-count",
            pending.released,
            b"pending",
            rows,
            b"consumers",
            [_full_consumer(group, consumer, most) for consumer in group.sorted_consumers()],
        ]
    )


def _full_consumer(group: Group, consumer: GroupConsumer, most: int | None) -> Reply:
    pending = group.pending
    rows: list[Reply] = []
    for entry_id in islice(pending.of_consumer(consumer, 0), most):
        hold = pending.by_id[entry_id]
        rows.append([entry_id, hold.time_ms, hold.count])
    return Pairs(
        [
            b"name",
            consumer.name,
            b"seen-time",
            consumer.seen_ms,
            b"active-time",
            -1 if consumer.active_ms is None else consumer.active_ms,
            b"pel-count",
            consumer.pending,
            b"pending",
            rows,
        ]
    )


@REGISTRY.command(
    "xinfo|groups",
    3,
    "readonly",
    keys=(2, 2, 1),
    access="RO access",
    since="5.0.0",
    summary="Lists the groups of a stream.",
)
def xinfo_groups(call: CommandContext, argv: list[bytes]) -> Reply:
    """XINFO GROUPS key"""
    stream = _stream(call, argv[2])
    return [
        Pairs(
            [
                b"name",
                group.name,
                b"consumers",
                len(group.consumers),
                b"pending",
                len(group.pending),
                b"last-delivered-id",
                ids.text_of(group.last),
                b"entries-read",
                group.entries_read,
                b"lag",
                stream.lag(group),
            ]
        )
        for group in stream.sorted_groups()
    ]


@REGISTRY.command(
    "xinfo|consumers",
    4,
    "readonly",
    keys=(2, 2, 1),
    access="RO access",
    since="5.0.0",
    summary="Lists the consumers of a group.",
)
def xinfo_consumers(call: CommandContext, argv: list[bytes]) -> Reply:
    """XINFO CONSUMERS key group"""
    stream = _stream(call, argv[2])
    group = stream.groups.get(argv[3])
    if group is None:
        raise faults.no_group_of_key(argv[2], argv[3])
    return [
        Pairs(
            [
                b"name",
                consumer.name,
                b"pending",
                consumer.pending,
                b"idle",
                max(call.now_ms - consumer.seen_ms, 0),
                b"inactive",
                -1 if consumer.active_ms is None else call.now_ms - consumer.active_ms,
            ]
        )
        for consumer in group.sorted_consumers()
    ]
