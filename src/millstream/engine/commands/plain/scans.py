"""HSCAN, SSCAN and ZSCAN: the elements of a value in steps.

The cursor must mean something to whoever sends it later, while elements come and go; nothing is remembered between
two calls. Elements are walked in the order of a hash of their names, and the cursor is the last hash that was passed:
what is there all the time is met once, whatever happens to the others. A small value comes whole, as in Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nsmallest
from typing import Final, NoReturn

from xxhash import xxh3_64_intdigest

from millstream.engine import faults
from millstream.engine.commands.plain.generic import matcher, scan_cursor
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.keys.values import Hash, SetOf, SortedSet
from millstream.engine.outcome import Reply
from millstream.engine.table import Registry
from millstream.engine.text.args import integer
from millstream.engine.text.floats import double_text

REGISTRY = Registry("generic")

_WHOLE: Final = 128  # elements that come in one page, however few were asked for


def _options(words: list[bytes], *, may_skip_values: bool) -> tuple[int, bytes, bool]:
    """COUNT, MATCH and NOVALUES."""
    count, pattern, skips_values, at = 10, b"*", False, 0
    while at < len(words):
        name = words[at].upper()
        if name == b"NOVALUES":
            if not may_skip_values:
                raise fault(faults.NOVALUES_ELSEWHERE)
            skips_values = True
        elif at + 1 == len(words) or name not in (b"COUNT", b"MATCH"):
            raise fault(faults.SYNTAX)
        elif name == b"MATCH":
            pattern = words[at + 1]
        elif (count := integer(words[at + 1])) < 1:
            raise fault(faults.SYNTAX)
        at += 1 if name == b"NOVALUES" else 2
    return count, pattern, skips_values


def _page(names: Iterable[bytes], size: int, cursor: int, count: int) -> tuple[int, list[bytes]]:
    """Names from a cursor on, and the next cursor, 0 at the end."""
    if size <= _WHOLE:
        return 0, [*names]
    hashed = ((_place(name), name) for name in names)
    ahead = nsmallest(count + 1, (item for item in hashed if item[0] > cursor))
    if len(ahead) <= count:
        return 0, [name for _, name in ahead]
    # Two names with one hash must not be parted by a cursor; with 63 bits there are hardly ever two.
    last = ahead[count - 1][0]
    page = [name for place, name in ahead[:count]]
    page += [name for name in names if _place(name) == last and name not in page]
    return last, page


def _place(name: bytes) -> int:
    """Where a name stands, from 1 on."""
    return (xxh3_64_intdigest(name) >> 1) + 1


def _scan(
    call: CommandContext,
    argv: list[bytes],
    kind: type[Hash] | type[SetOf] | type[SortedSet],
    describe: Callable[[Hash | SetOf | SortedSet, bytes], bytes | None],
) -> Reply:
    cursor = scan_cursor(argv[2])
    found: Hash | SetOf | SortedSet | None = call.typed_to_read(argv[1], kind)
    count, pattern, skips_values = _options(argv[3:], may_skip_values=kind is Hash)
    if found is None:
        return [b"0", []]
    names = found.scores if isinstance(found, SortedSet) else found
    cursor, page = _page(names, len(found), cursor, count)
    fits = matcher(pattern)
    items: list[Reply] = []
    for name in filter(fits, page):
        value = describe(found, name)
        items += [name] if value is None or skips_values else [name, value]
    return [b"%d" % cursor, items]


def _impossible() -> NoReturn:
    raise AssertionError("the kind was checked")


def _field(found: Hash | SetOf | SortedSet, name: bytes) -> bytes:
    return found[name] if isinstance(found, Hash) else _impossible()


def _score(found: Hash | SetOf | SortedSet, name: bytes) -> bytes:
    return double_text(found.scores[name]) if isinstance(found, SortedSet) else _impossible()


@REGISTRY.command(
    "hscan",
    -3,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="2.8.0",
    group="hash",
    summary="Walks through the fields of a hash in steps.",
)
def hscan(call: CommandContext, argv: list[bytes]) -> Reply:
    """HSCAN key cursor [MATCH pattern] [COUNT count] [NOVALUES]"""
    return _scan(call, argv, Hash, _field)


@REGISTRY.command(
    "sscan",
    -3,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="2.8.0",
    group="set",
    summary="Walks through the members of a set in steps.",
)
def sscan(call: CommandContext, argv: list[bytes]) -> Reply:
    """SSCAN key cursor [MATCH pattern] [COUNT count]"""
    return _scan(call, argv, SetOf, lambda found, name: None)


@REGISTRY.command(
    "zscan",
    -3,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="2.8.0",
    group="sorted_set",
    summary="Walks through the members and scores of a sorted set in steps.",
)
def zscan(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZSCAN key cursor [MATCH pattern] [COUNT count]"""
    return _scan(call, argv, SortedSet, _score)
