"""Ranges of sorted sets by member, ZRANGESTORE, and ZRANDMEMBER."""

from __future__ import annotations

from millstream.engine.commands.derived.storing import store
from millstream.engine.commands.plain.draws import draw, parse_draw
from millstream.engine.commands.plain.sorted_sets import (
    ZRange,
    answer_range,
    by_lex,
    lex_range,
    parse_options,
    remove_members,
    select,
)
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.keys.values import SortedSet
from millstream.engine.outcome import Reply, Scored
from millstream.engine.table import Registry

REGISTRY = Registry("sorted_set")


@REGISTRY.command(
    "zrangebylex",
    -4,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="2.8.9",
    summary="Answers the members in a range of bytes; all members should have one score.",
)
def zrangebylex(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZRANGEBYLEX key min max [LIMIT offset count]"""
    return answer_range(call, argv, ZRange(by="lex"))


@REGISTRY.command(
    "zrevrangebylex",
    -4,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="2.8.9",
    summary="Answers the members in a range of bytes, the last one first.",
)
def zrevrangebylex(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZREVRANGEBYLEX key max min [LIMIT offset count]"""
    return answer_range(call, argv, ZRange(by="lex", reverse=True))


@REGISTRY.command(
    "zlexcount",
    4,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO access",
    since="2.8.9",
    summary="Counts the members in a range of bytes.",
)
def zlexcount(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZLEXCOUNT key min max"""
    wanted = lex_range(argv[2], argv[3])
    found = call.typed_to_read(argv[1], SortedSet) or SortedSet()
    return sum(1 for _ in by_lex(found, wanted, reverse=False))


@REGISTRY.command(
    "zremrangebylex",
    4,
    "write",
    keys=(1, 1, 1),
    access="RW delete",
    since="2.8.9",
    summary="Removes the members in a range of bytes; answers how many there were.",
)
def zremrangebylex(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZREMRANGEBYLEX key min max"""
    wanted = lex_range(argv[2], argv[3])
    found = call.typed(argv[1], SortedSet)
    if found is None:
        return 0
    members = [member for _, member in by_lex(found, wanted, reverse=False)]
    return remove_members(call, argv, found, b"zremrangebylex", members)


@REGISTRY.command(
    "zrangestore",
    -5,
    "write denyoom",
    keys=(1, 2, 1),
    access="OW update",
    rest_access="RO access",
    since="6.2.0",
    summary="Stores the members in a range of another sorted set; answers how many they are.",
)
def zrangestore(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZRANGESTORE dst src min max [BYSCORE | BYLEX] [REV] [LIMIT offset count]"""
    query = ZRange()
    parse_options(argv[5:], query, free=True, may_score=False)
    result = SortedSet()
    for score, member in list(select(call, argv[1:], query)):
        result.put(member, score)
    return store(call, argv[1], result, "z", b"zrangestore", argv)


@REGISTRY.command(
    "zrandmember",
    -2,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="6.2.0",
    summary="Answers random members of a sorted set: distinct ones for a positive count, any for a negative one.",
)
def zrandmember(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZRANDMEMBER key [count [WITHSCORES]]"""
    if len(argv) == 2:
        found = call.typed_to_read(argv[1], SortedSet)
        if found is None:
            return None
        rank = call.keyspace.pick(len(found))
        return next(found.between(rank, rank + 1))[1]
    wanted = parse_draw(argv, b"WITHSCORES")
    found = call.typed_to_read(argv[1], SortedSet)
    if found is None:
        return []
    members = draw(call, list(found.scores), wanted.count)
    return Scored(word for name in members for word in (name, found.scores[name])) if wanted.with_values else [*members]
