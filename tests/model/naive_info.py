"""The naive model's XINFO."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from millstream.engine.outcome import Pairs, Reply
from millstream.errors import CommandError

from . import naive_ids as ids
from .naive_ids import integer
from .naive_read import entry
from .naive_stream import Group, Stream

if TYPE_CHECKING:
    from .naive import NaiveRedis


def xinfo(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    sub = argv[1].upper()
    stream = world.existing(argv[2])
    if sub == b"GROUPS":
        return [_group_line(stream, name) for name in sorted(stream.groups)]
    if sub == b"CONSUMERS":
        return _consumers(stream, argv, now)
    if len(argv) == 3:
        return _plain(stream)
    count = _full_count(argv)
    return Pairs(
        [
            *_head(stream),
            b"entries",
            [entry(slot) for slot in stream.entries()][:count],
            b"groups",
            [_group_map(stream, name, count) for name in sorted(stream.groups)],
        ]
    )


def _full_count(argv: list[bytes]) -> int | None:
    """How many entries FULL shows; None: all."""
    words = [word.upper() for word in argv[3:]]
    if words[0] != b"FULL" or len(words) not in (1, 3) or (len(words) == 3 and words[1] != b"COUNT"):
        raise CommandError(b"ERR unknown subcommand or wrong number of arguments for '%s'. Try XINFO HELP." % argv[1])
    count = integer(words[2]) if len(words) == 3 else 10
    return None if count == 0 else 10 if count < 0 else count


def _head(stream: Stream) -> list[Reply]:
    return [
        b"length",
        len(stream.entries()),
        b"radix-tree-keys",
        len(stream.nodes),
        b"radix-tree-nodes",
        tree_nodes(stream),
        b"last-generated-id",
        ids.text(stream.last),
        b"max-deleted-entry-id",
        ids.text(stream.max_deleted),
        b"entries-added",
        stream.added,
        b"recorded-first-entry-id",
        ids.text(stream.first()),
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


def tree_nodes(stream: Stream) -> int:
    """The nodes of a compressed trie over the nodes' first ids, without leaves (streams-new 1.1)."""

    def count(keys: list[bytes]) -> int:
        if len(keys) == 1:
            return 1 if keys[0] else 0
        shared = 0
        while len({key[: shared + 1] for key in keys}) == 1:
            shared += 1
        tails = [key[shared:] for key in keys]
        below = [[tail[1:] for tail in tails] for _, tails in groupby(tails, key=lambda tail: tail[0])]
        return (1 if shared else 0) + 1 + sum(count(branch) for branch in below)

    keys = [b"".join(part.to_bytes(8, "big") for part in node.slots[0].id) for node in stream.nodes]
    return count(keys) if keys else 1


def _plain(stream: Stream) -> Reply:
    entries = [entry(slot) for slot in stream.entries()]
    first, last = (entries[0], entries[-1]) if entries else (None, None)
    return Pairs([*_head(stream), b"groups", len(stream.groups), b"first-entry", first, b"last-entry", last])


def _group_line(stream: Stream, name: bytes) -> Pairs:
    group = stream.groups[name]
    return Pairs(
        [
            b"name",
            name,
            b"consumers",
            len(group.consumers),
            b"pending",
            len(group.pending),
            b"last-delivered-id",
            ids.text(group.last),
            b"entries-read",
            group.read,
            b"lag",
            stream.lag(group),
        ]
    )


def _group_map(stream: Stream, name: bytes, count: int | None) -> Pairs:
    group = stream.groups[name]
    pending: list[Reply] = [[ids.text(p.id), p.consumer or b"", p.time, p.count] for p in group.by_id()]
    return Pairs(
        [
            b"name",
            name,
            b"last-delivered-id",
            ids.text(group.last),
            b"entries-read",
            group.read,
            b"lag",
            stream.lag(group),
            b"pel-count",
            len(group.pending),
            b"nacked-count",
            group.zone_size(),
            b"pending",
            pending[:count],
            b"consumers",
            [_consumer_map(group, consumer, count) for consumer in sorted(group.consumers)],
        ]
    )


def _consumer_map(group: Group, name: bytes, count: int | None) -> Pairs:
    consumer = group.consumers[name]
    owned: list[Reply] = [[ids.text(p.id), p.time, p.count] for p in group.owned_by(name)]
    return Pairs(
        [
            b"name",
            name,
            b"seen-time",
            consumer.seen,
            b"active-time",
            consumer.active,
            b"pel-count",
            len(owned),
            b"pending",
            owned[:count],
        ]
    )


def _consumers(stream: Stream, argv: list[bytes], now: int) -> Reply:
    group = stream.groups.get(argv[3])
    if group is None:
        raise CommandError(b"NOGROUP No such consumer group '%s' for key name '%s'" % (argv[3], argv[2]))
    return [
        Pairs(
            [
                b"name",
                name,
                b"pending",
                len(group.owned_by(name)),
                b"idle",
                max(0, now - consumer.seen),
                b"inactive",
                -1 if consumer.active == -1 else now - consumer.active,
            ]
        )
        for name, consumer in sorted(group.consumers.items())
    ]
