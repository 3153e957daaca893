"""Lists: elements from left to right. A list is removed with its last element."""

from __future__ import annotations

from itertools import islice

from millstream.engine import faults
from millstream.engine.commands.plain.common import changed, drop_if_empty, integer_between, positive, window
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.keys.values import List
from millstream.engine.outcome import NIL_ARRAY, OK, Reply
from millstream.engine.table import Registry
from millstream.engine.text.args import I64_MAX, integer

REGISTRY = Registry("list")


def _push(call: CommandContext, argv: list[bytes], *, left: bool, create: bool) -> int:
    key = argv[1]
    found = call.typed(key, List)
    if found is None:
        if not create:
            return 0
        found = List()
        call.add(key, found)
    if left:
        found.extendleft(argv[2:])
    else:
        found.extend(argv[2:])
    changed(call, key, "l", b"lpush" if left else b"rpush", argv, len(argv) - 2)
    call.ready(key)
    return len(found)


@REGISTRY.command(
    "lpush",
    -3,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW insert",
    since="1.0.0",
    summary="Puts elements at the left end of a list, one after the other; answers its length.",
)
def lpush(call: CommandContext, argv: list[bytes]) -> Reply:
    """LPUSH key element [element ...]"""
    return _push(call, argv, left=True, create=True)


@REGISTRY.command(
    "rpush",
    -3,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW insert",
    since="1.0.0",
    summary="Puts elements at the right end of a list; answers its length.",
)
def rpush(call: CommandContext, argv: list[bytes]) -> Reply:
    """RPUSH key element [element ...]"""
    return _push(call, argv, left=False, create=True)


@REGISTRY.command(
    "lpushx",
    -3,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW insert",
    since="2.2.0",
    summary="Puts elements at the left end of a list that exists.",
)
def lpushx(call: CommandContext, argv: list[bytes]) -> Reply:
    """LPUSHX key element [element ...]"""
    return _push(call, argv, left=True, create=False)


@REGISTRY.command(
    "rpushx",
    -3,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW insert",
    since="2.2.0",
    summary="Puts elements at the right end of a list that exists.",
)
def rpushx(call: CommandContext, argv: list[bytes]) -> Reply:
    """RPUSHX key element [element ...]"""
    return _push(call, argv, left=False, create=False)


def _pop(call: CommandContext, argv: list[bytes], *, left: bool) -> Reply:
    name = "lpop" if left else "rpop"
    if len(argv) > 3:
        raise faults.wrong_arity(name)
    count = positive(argv[2]) if len(argv) == 3 else None
    found = call.typed(argv[1], List)
    if found is None:
        return None if count is None else NIL_ARRAY
    if count == 0:
        return []
    take = found.popleft if left else found.pop
    popped = [take() for _ in range(min(count or 1, len(found)))]
    changed(call, argv[1], "l", name.encode(), argv, len(popped))
    drop_if_empty(call, argv[1], found)
    return popped[0] if count is None else [*popped]


@REGISTRY.command(
    "lpop",
    -2,
    "write fast",
    keys=(1, 1, 1),
    access="RW access delete",
    since="1.0.0",
    summary="Takes elements from the left end of a list and answers them.",
)
def lpop(call: CommandContext, argv: list[bytes]) -> Reply:
    """LPOP key [count]"""
    return _pop(call, argv, left=True)


@REGISTRY.command(
    "rpop",
    -2,
    "write fast",
    keys=(1, 1, 1),
    access="RW access delete",
    since="1.0.0",
    summary="Takes elements from the right end of a list and answers them, the last one first.",
)
def rpop(call: CommandContext, argv: list[bytes]) -> Reply:
    """RPOP key [count]"""
    return _pop(call, argv, left=False)


@REGISTRY.command(
    "llen", 2, "readonly fast", keys=(1, 1, 1), access="RO", since="1.0.0", summary="Counts the elements of a list."
)
def llen(call: CommandContext, argv: list[bytes]) -> Reply:
    """LLEN key"""
    return len(call.typed_to_read(argv[1], List) or ())


@REGISTRY.command(
    "lrange",
    4,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="1.0.0",
    summary="Answers the elements of a range, both ends included, negative positions counted from the right.",
)
def lrange(call: CommandContext, argv: list[bytes]) -> Reply:
    """LRANGE key start stop"""
    start, stop = integer(argv[2]), integer(argv[3])
    found = call.typed_to_read(argv[1], List)
    if found is None:
        return []
    first, end = window(start, stop, len(found))
    if first > len(found) // 2:  # a deque is walked from its nearer end
        tail = list(islice(reversed(found), len(found) - end, len(found) - first))
        return [*reversed(tail)]
    return [*islice(found, first, end)]


@REGISTRY.command(
    "lindex",
    3,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="1.0.0",
    summary="Answers the element at a position, a negative one counted from the right.",
)
def lindex(call: CommandContext, argv: list[bytes]) -> Reply:
    """LINDEX key index"""
    found = call.typed_to_read(argv[1], List)
    if found is None:
        return None
    index = integer(argv[2])
    return found[index] if -len(found) <= index < len(found) else None


@REGISTRY.command(
    "ltrim",
    4,
    "write",
    keys=(1, 1, 1),
    access="RW delete",
    since="1.0.0",
    summary="Removes all elements of a list but those in a range.",
)
def ltrim(call: CommandContext, argv: list[bytes]) -> Reply:
    """LTRIM key start stop"""
    key, start, stop = argv[1], integer(argv[2]), integer(argv[3])
    found = call.typed(key, List)
    if found is None:
        return OK
    first, end = window(start, stop, len(found))
    before = len(found)
    for _ in range(before - end):
        found.pop()
    for _ in range(first):
        found.popleft()
    changed(call, key, "l", b"ltrim", argv, before - len(found))
    drop_if_empty(call, key, found)
    return OK


@REGISTRY.command(
    "lrem",
    4,
    "write",
    keys=(1, 1, 1),
    access="RW delete",
    since="1.0.0",
    summary="Removes elements equal to a value: the first so many, the last so many, or all of them.",
)
def lrem(call: CommandContext, argv: list[bytes]) -> Reply:
    """LREM key count element"""
    key, count, element = argv[1], integer_between(argv[2], -I64_MAX, I64_MAX), argv[3]
    found = call.typed(key, List)
    if found is None:
        return 0
    removed = _remove(found, count, element)
    if removed:
        changed(call, key, "l", b"lrem", argv, removed)
        drop_if_empty(call, key, found)
    return removed


def _remove(found: List, count: int, element: bytes) -> int:
    """Remove up to |count| equal elements (0: all), from the right if count is negative. Returns their number."""
    if count < 0:
        found.reverse()
    limit = abs(count) or len(found)
    kept = []
    removed = 0
    for item in found:
        if removed < limit and item == element:
            removed += 1
        else:
            kept.append(item)
    found.clear()
    found.extend(reversed(kept) if count < 0 else kept)
    return removed
