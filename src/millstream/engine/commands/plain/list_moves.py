"""Pop elements from the first non-empty list, move them to another list, or wait for them.

A blocking command is logged as the pop that it did, so a log never blocks: BLPOP as LPOP, BLMOVE as LMOVE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millstream.engine import faults
from millstream.engine.commands.plain.common import changed, drop_if_empty
from millstream.engine.commands.plain.waiting import PopChoice, keys_after, parse_choice, timeout_ms_of
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.keys.values import List
from millstream.engine.outcome import NIL_ARRAY, Reply, Wait
from millstream.engine.table import Registry

REGISTRY = Registry("list")

_ENDS: Final = (b"LEFT", b"RIGHT")


def _take(call: CommandContext, key: bytes, found: List, *, left: bool, count: int = 1) -> list[bytes]:
    """Remove up to `count` elements from an end, logged as LPOP or RPOP."""
    take = found.popleft if left else found.pop
    taken = [take() for _ in range(min(count, len(found)))]
    name = b"lpop" if left else b"rpop"
    counted = [] if count == 1 else [b"%d" % len(taken)]
    changed(call, key, "l", name, [name.upper(), key, *counted], len(taken))
    drop_if_empty(call, key, found)
    return taken


def _first(call: CommandContext, keys: list[bytes]) -> tuple[bytes, List] | None:
    """Return the first key that has a list."""
    for key in keys:
        found = call.typed(key, List)
        if found is not None:
            return key, found
    return None


# Popping


def _pop_or_wait(call: CommandContext, argv: list[bytes], *, left: bool) -> Reply | Wait:
    timeout_ms = timeout_ms_of(call, argv[-1])
    keys = argv[1:-1]
    place = _first(call, keys)
    if place is not None:
        return [place[0], *_take(call, *place, left=left)]
    return Wait(tuple(keys), timeout_ms, argv) if call.may_block else NIL_ARRAY


@REGISTRY.command(
    "blpop",
    -3,
    "write blocking",
    keys=(1, -2, 1),
    access="RW access delete",
    since="2.0.0",
    summary="Takes the leftmost element of the first list that has one, or waits for one.",
)
def blpop(call: CommandContext, argv: list[bytes]) -> Reply | Wait:
    """BLPOP key [key ...] timeout"""
    return _pop_or_wait(call, argv, left=True)


@REGISTRY.command(
    "brpop",
    -3,
    "write blocking",
    keys=(1, -2, 1),
    access="RW access delete",
    since="2.0.0",
    summary="Takes the rightmost element of the first list that has one, or waits for one.",
)
def brpop(call: CommandContext, argv: list[bytes]) -> Reply | Wait:
    """BRPOP key [key ...] timeout"""
    return _pop_or_wait(call, argv, left=False)


def _pop_many(call: CommandContext, choice: PopChoice) -> Reply:
    place = _first(call, choice.keys)
    if place is None:
        return NIL_ARRAY
    key, found = place
    taken = _take(call, key, found, left=choice.end == b"LEFT", count=choice.count)
    return [key, [*taken]]


@REGISTRY.command(
    "lmpop",
    -4,
    "write movablekeys",
    find_keys=keys_after(1),
    access="RW access delete",
    since="7.0.0",
    summary="Takes elements from an end of the first list that has some.",
)
def lmpop(call: CommandContext, argv: list[bytes]) -> Reply:
    """LMPOP numkeys key [key ...] <LEFT | RIGHT> [COUNT count]"""
    return _pop_many(call, parse_choice(argv, 1, _ENDS))


@REGISTRY.command(
    "blmpop",
    -5,
    "write blocking movablekeys",
    find_keys=keys_after(2),
    access="RW access delete",
    since="7.0.0",
    summary="Takes elements from an end of the first list that has some, or waits for some.",
)
def blmpop(call: CommandContext, argv: list[bytes]) -> Reply | Wait:
    """BLMPOP timeout numkeys key [key ...] <LEFT | RIGHT> [COUNT count]"""
    timeout_ms = timeout_ms_of(call, argv[1])
    choice = parse_choice(argv, 2, _ENDS)
    reply = _pop_many(call, choice)
    if reply is NIL_ARRAY and call.may_block:
        return Wait(tuple(choice.keys), timeout_ms, argv)
    return reply


# Moving


def _end(word: bytes) -> bool:
    """Return whether this is the left end."""
    if word.upper() not in _ENDS:
        raise fault(faults.SYNTAX)
    return word.upper() == b"LEFT"


def _move(
    call: CommandContext, source: bytes, target: bytes, logged: list[bytes], *, left: bool, to_left: bool
) -> bytes | None:
    """Move an element between ends of two lists, which may be the same list. Returns None if there is no element."""
    found = call.typed(source, List)
    if found is None:
        return None
    destination = call.typed(target, List)
    element = found.popleft() if left else found.pop()
    if destination is None:
        destination = List()
        call.add(target, destination)
    (destination.appendleft if to_left else destination.append)(element)
    call.touch(target)
    call.event("l", b"lpush" if to_left else b"rpush", target)
    call.ready(target)
    changed(call, source, "l", b"lpop" if left else b"rpop", logged)
    drop_if_empty(call, source, found)
    return element


@REGISTRY.command(
    "lmove",
    5,
    "write denyoom",
    keys=(1, 2, 1),
    access="RW access delete",
    rest_access="RW insert",
    since="6.2.0",
    summary="Moves an element from an end of a list to an end of another and answers it.",
)
def lmove(call: CommandContext, argv: list[bytes]) -> Reply:
    """LMOVE source destination <LEFT | RIGHT> <LEFT | RIGHT>"""
    return _move(call, argv[1], argv[2], argv, left=_end(argv[3]), to_left=_end(argv[4]))


@REGISTRY.command(
    "rpoplpush",
    3,
    "write denyoom",
    keys=(1, 2, 1),
    access="RW access delete",
    rest_access="RW insert",
    since="1.2.0",
    summary="Moves the rightmost element of a list to the left end of another and answers it.",
)
def rpoplpush(call: CommandContext, argv: list[bytes]) -> Reply:
    """RPOPLPUSH source destination"""
    return _move(call, argv[1], argv[2], argv, left=False, to_left=True)


def _or_wait(
    call: CommandContext, argv: list[bytes], timeout_ms: int, move: Callable[[], bytes | None]
) -> Reply | Wait:
    element = move()
    if element is not None:
        return element
    return Wait((argv[1],), timeout_ms, argv) if call.may_block else None


@REGISTRY.command(
    "blmove",
    6,
    "write denyoom blocking",
    keys=(1, 2, 1),
    access="RW access delete",
    rest_access="RW insert",
    since="6.2.0",
    summary="As LMOVE, or waits until there is an element.",
)
def blmove(call: CommandContext, argv: list[bytes]) -> Reply | Wait:
    """BLMOVE source destination <LEFT | RIGHT> <LEFT | RIGHT> timeout"""
    left, to_left = _end(argv[3]), _end(argv[4])
    logged = [b"LMOVE", *argv[1:5]]
    return _or_wait(
        call,
        argv,
        timeout_ms_of(call, argv[5]),
        lambda: _move(call, argv[1], argv[2], logged, left=left, to_left=to_left),
    )


@REGISTRY.command(
    "brpoplpush",
    4,
    "write denyoom blocking",
    keys=(1, 2, 1),
    access="RW access delete",
    rest_access="RW insert",
    since="2.2.0",
    summary="As RPOPLPUSH, or waits until there is an element.",
)
def brpoplpush(call: CommandContext, argv: list[bytes]) -> Reply | Wait:
    """BRPOPLPUSH source destination timeout"""
    logged = [b"RPOPLPUSH", *argv[1:3]]
    return _or_wait(
        call,
        argv,
        timeout_ms_of(call, argv[3]),
        lambda: _move(call, argv[1], argv[2], logged, left=False, to_left=True),
    )
