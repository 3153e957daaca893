"""LPOS, LSET, LINSERT: elements of a list found, replaced and inserted by position or value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from millstream.engine import faults
from millstream.engine.commands.plain.common import changed, integer_between
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.keys.values import List
from millstream.engine.outcome import OK, Reply
from millstream.engine.table import Registry
from millstream.engine.text.args import I64_MAX, integer

REGISTRY = Registry("list")


@dataclass(slots=True)
class _Search:
    """Options of LPOS."""

    rank: int = 1  # the first match to report; negative ranks search from the right
    count: int | None = None  # matches to report, 0 for all; None reports one position instead of an array
    most: int = 0  # elements to compare, 0 for all


def _parse(words: list[bytes]) -> _Search:
    if len(words) % 2:
        _refuse_before_last(words)
    search = _Search()
    for option, value in zip(words[::2], words[1::2], strict=True):
        match option.upper():
            case b"RANK":
                search.rank = integer_between(value, -I64_MAX, I64_MAX)
                if search.rank == 0:
                    raise fault(faults.RANK_ZERO)
            case b"COUNT":
                search.count = _from_zero(value, faults.NEGATIVE_COUNT)
            case b"MAXLEN":
                search.most = _from_zero(value, faults.NEGATIVE_LPOS_MAXLEN)
            case _:
                raise fault(faults.SYNTAX)
    return search


def _refuse_before_last(words: list[bytes]) -> None:
    """Raise the error of the first bad option; an option without a value is a syntax error."""
    _parse(words[:-1])
    raise fault(faults.SYNTAX)


def _from_zero(word: bytes, text: str) -> int:
    value = integer(word, text)
    if value < 0:
        raise fault(text)
    return value


def _matches(found: List, element: bytes, search: _Search) -> Iterator[int]:
    """Yield the positions of the matches that LPOS reports, in the order of the search."""
    last = len(found) - 1
    most = search.most or len(found)
    items = islice(reversed(found) if search.rank < 0 else found, most)
    matches = (last - at if search.rank < 0 else at for at, item in enumerate(items) if item == element)
    return islice(matches, abs(search.rank) - 1, None)


@REGISTRY.command(
    "lpos",
    -3,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="6.0.6",
    summary="Answers the positions of elements equal to a value.",
)
def lpos(call: CommandContext, argv: list[bytes]) -> Reply:
    """LPOS key element [RANK rank] [COUNT num-matches] [MAXLEN len]"""
    search = _parse(argv[3:])
    found = call.typed_to_read(argv[1], List)
    positions = iter(()) if found is None else _matches(found, argv[2], search)
    if search.count is None:
        return next(positions, None)
    return [*islice(positions, search.count or None)]


@REGISTRY.command(
    "lset",
    4,
    "write denyoom",
    keys=(1, 1, 1),
    access="RW update",
    since="1.0.0",
    summary="Replaces the element at a position, a negative one counted from the right.",
)
def lset(call: CommandContext, argv: list[bytes]) -> Reply:
    """LSET key index element"""
    found = call.typed(argv[1], List)
    if found is None:
        raise fault(faults.NO_SUCH_KEY)
    index = integer(argv[2])
    if not -len(found) <= index < len(found):
        raise fault(faults.INDEX_OUT_OF_RANGE)
    found[index] = argv[3]
    changed(call, argv[1], "l", b"lset", argv)
    return OK


@REGISTRY.command(
    "linsert",
    5,
    "write denyoom",
    keys=(1, 1, 1),
    access="RW insert",
    since="2.2.0",
    summary="Inserts an element before or after another one; answers the length, -1 if the other one is missing.",
)
def linsert(call: CommandContext, argv: list[bytes]) -> Reply:
    """LINSERT key <BEFORE | AFTER> pivot element"""
    where = argv[2].upper()
    if where not in (b"BEFORE", b"AFTER"):
        raise fault(faults.SYNTAX)
    found = call.typed(argv[1], List)
    if found is None:
        return 0
    try:
        at = found.index(argv[3])
    except ValueError:
        return -1
    found.insert(at + (where == b"AFTER"), argv[4])
    changed(call, argv[1], "l", b"linsert", argv)
    return len(found)
