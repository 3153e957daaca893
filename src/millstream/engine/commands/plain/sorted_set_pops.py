"""Pop members from an end of the first non-empty sorted set, or wait for them.

A blocking command is logged as the pop that it did: BZPOPMIN and ZMPOP as ZPOPMIN.
"""

from __future__ import annotations

from typing import Final

from millstream.engine.commands.plain.common import changed, drop_if_empty
from millstream.engine.commands.plain.waiting import PopChoice, keys_after, parse_choice, timeout_ms_of
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.keys.values import SortedSet
from millstream.engine.outcome import NIL_ARRAY, Reply, Wait
from millstream.engine.table import Registry

REGISTRY = Registry("sorted_set")

_ENDS: Final = (b"MIN", b"MAX")


def _take(call: CommandContext, choice: PopChoice) -> tuple[bytes, list[tuple[bytes, float]]] | None:
    """Remove members of the first non-empty key. Returns the key, and members with scores."""
    for key in choice.keys:
        found = call.typed(key, SortedSet)
        if found is None:
            continue
        is_max = choice.end == b"MAX"
        pairs = list(found.between_reversed(0, choice.count) if is_max else found.between(0, choice.count))
        for _, member in pairs:
            found.discard(member)
        name = b"zpopmax" if is_max else b"zpopmin"
        counted = [] if choice.count == 1 else [b"%d" % len(pairs)]
        changed(call, key, "z", name, [name.upper(), key, *counted], len(pairs))
        drop_if_empty(call, key, found)
        return key, [(member, score) for score, member in pairs]
    return None


def _pop_one(call: CommandContext, argv: list[bytes], end: bytes) -> Reply | Wait:
    timeout_ms = timeout_ms_of(call, argv[-1])
    keys = argv[1:-1]
    taken = _take(call, PopChoice(keys, end))
    if taken is not None:
        return [taken[0], *taken[1][0]]
    return Wait(tuple(keys), timeout_ms, argv) if call.may_block else NIL_ARRAY


@REGISTRY.command(
    "bzpopmin",
    -3,
    "write fast blocking",
    keys=(1, -2, 1),
    access="RW access delete",
    since="5.0.0",
    summary="Takes the member with the lowest score of the first sorted set that has one, or waits for one.",
)
def bzpopmin(call: CommandContext, argv: list[bytes]) -> Reply | Wait:
    """BZPOPMIN key [key ...] timeout"""
    return _pop_one(call, argv, b"MIN")


@REGISTRY.command(
    "bzpopmax",
    -3,
    "write fast blocking",
    keys=(1, -2, 1),
    access="RW access delete",
    since="5.0.0",
    summary="Takes the member with the highest score of the first sorted set that has one, or waits for one.",
)
def bzpopmax(call: CommandContext, argv: list[bytes]) -> Reply | Wait:
    """BZPOPMAX key [key ...] timeout"""
    return _pop_one(call, argv, b"MAX")


def _pop_many(call: CommandContext, choice: PopChoice) -> Reply:
    taken = _take(call, choice)
    return NIL_ARRAY if taken is None else [taken[0], [[*pair] for pair in taken[1]]]


@REGISTRY.command(
    "zmpop",
    -4,
    "write movablekeys",
    find_keys=keys_after(1),
    access="RW access delete",
    since="7.0.0",
    summary="Takes members from an end of the first sorted set that has some.",
)
def zmpop(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZMPOP numkeys key [key ...] <MIN | MAX> [COUNT count]"""
    return _pop_many(call, parse_choice(argv, 1, _ENDS))


@REGISTRY.command(
    "bzmpop",
    -5,
    "write blocking movablekeys",
    find_keys=keys_after(2),
    access="RW access delete",
    since="7.0.0",
    summary="Takes members from an end of the first sorted set that has some, or waits for some.",
)
def bzmpop(call: CommandContext, argv: list[bytes]) -> Reply | Wait:
    """BZMPOP timeout numkeys key [key ...] <MIN | MAX> [COUNT count]"""
    timeout_ms = timeout_ms_of(call, argv[1])
    choice = parse_choice(argv, 2, _ENDS)
    reply = _pop_many(call, choice)
    if reply is NIL_ARRAY and call.may_block:
        return Wait(tuple(choice.keys), timeout_ms, argv)
    return reply
