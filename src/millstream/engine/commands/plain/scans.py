"""HSCAN, SSCAN and ZSCAN: the elements of a value in pages.

A call looks at COUNT elements, however large the value is. Its cursor is a position in the value's scan order
(`engine/keys/scan_order.py`, which gives the proof): an element that is there from the start to the end of a scan
is returned, whatever else is added and removed. A small value is returned whole, as in Redis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

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

_WHOLE: Final = 128  # a value of at most this size is returned in one page


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
    if len(found) <= _WHOLE:
        cursor, count = 0, _WHOLE
    cursor, page = found.page(cursor, count)
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
