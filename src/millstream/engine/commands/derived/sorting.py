"""SORT: the elements of a list, set or sorted set in another order, or what they point to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from millstream.engine import faults
from millstream.engine.commands.derived.storing import store
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.keys.values import Hash, List, SetOf, SortedSet
from millstream.engine.outcome import Reply
from millstream.engine.table import Registry
from millstream.engine.text.args import integer
from millstream.engine.text.floats import parse_double

REGISTRY = Registry("generic")


@dataclass(slots=True)
class Sort:
    """Options of SORT."""

    by: bytes | None = None
    gets: list[bytes] = field(default_factory=list)
    offset: int = 0
    limit: int = -1  # negative: no limit
    descending: bool = False
    alpha: bool = False
    target: bytes | None = None

    @property
    def keeps_order(self) -> bool:
        """Whether BY names no key for an element: the elements stay in their own order."""
        return self.by is not None and b"*" not in self.by

    def window(self, size: int) -> slice:
        start = min(max(self.offset, 0), size)
        return slice(start, size if self.limit < 0 else min(start + self.limit, size))


def parse(words: list[bytes], *, may_store: bool) -> Sort:
    """Read the options after the key."""
    wanted, at = Sort(), 0
    while at < len(words):
        option, left = words[at].upper(), len(words) - at - 1
        if option in (b"ASC", b"DESC"):
            wanted.descending = option == b"DESC"
        elif option == b"ALPHA":
            wanted.alpha = True
        elif option == b"LIMIT" and left >= 2:
            wanted.offset, wanted.limit = integer(words[at + 1]), integer(words[at + 2])
            at += 2
        elif option == b"STORE" and may_store and left:
            wanted.target = words[at + 1]
            at += 1
        elif option == b"BY" and left:
            wanted.by = words[at + 1]
            at += 1
        elif option == b"GET" and left:
            wanted.gets.append(words[at + 1])
            at += 1
        else:
            raise fault(faults.SYNTAX)
        at += 1
    return wanted


def find_keys(argv: list[bytes]) -> list[int]:
    """Return the positions of the key and of the last destination."""
    target = None
    at = 2
    while at < len(argv):
        option = argv[at].upper()
        if option == b"STORE" and at + 1 < len(argv):
            target = at + 1
        at += 3 if option == b"LIMIT" else 2 if option in (b"STORE", b"BY", b"GET") else 1
    return [1] if target is None else [1, target]


def reads_unnamed(argv: list[bytes]) -> bool:
    """Return whether BY or GET read keys that the call does not name."""
    return any(
        (option.upper() == b"BY" and b"*" in pattern) or (option.upper() == b"GET" and pattern != b"#")
        for option, pattern in pairwise(argv[2:])
    )


def _value_of(call: CommandContext, pattern: bytes, element: bytes) -> bytes | None:
    """Return what a pattern says of an element: itself (`#`), a string (`k_*`), or a field of a hash (`h_*->f`)."""
    if pattern == b"#":
        return element
    before, star, after = pattern.partition(b"*")
    if not star:
        return None
    suffix, arrow, name = after.partition(b"->")
    if not arrow or not name:
        suffix, name = after, b""
    found = call.lookup_to_read(before + element + suffix)
    if name:
        return found.get(name) if isinstance(found, Hash) else None
    return found if isinstance(found, bytes) else None


def _elements(call: CommandContext, key: bytes) -> object | None:
    found = call.lookup_to_read(key)
    if found is not None and not isinstance(found, List | SetOf | SortedSet):
        raise fault(faults.WRONG_TYPE)
    return found


def _in_own_order(found: object, wanted: Sort) -> list[bytes]:
    """Return the elements as their value orders them; a set has no order that DESC could turn round."""
    if isinstance(found, SortedSet):
        return [member for _, member in (reversed(found) if wanted.descending else found)]
    assert isinstance(found, List | SetOf)
    elements = list(found)
    return elements[::-1] if wanted.descending and isinstance(found, List) else elements


def _number(word: bytes | None) -> float:
    """Return the weight of an element; a missing one weighs 0."""
    if word is None:
        return 0.0
    value = parse_double(word)
    if value is None:
        raise fault(faults.SORT_NOT_FLOAT)
    return value


def _sorted(call: CommandContext, elements: Iterable[bytes], wanted: Sort) -> list[bytes]:
    by = wanted.by
    weights = [(element, element if by is None else _value_of(call, by, element)) for element in elements]
    if wanted.alpha:
        weights.sort(key=lambda pair: (pair[1] is not None, pair[1] or b""), reverse=wanted.descending)
        return [element for element, _ in weights]
    numbers = [(_number(weight), element) for element, weight in weights]
    numbers.sort(reverse=wanted.descending)
    return [element for _, element in numbers]


def _sort(call: CommandContext, argv: list[bytes], wanted: Sort) -> Reply:
    found = _elements(call, argv[1])
    if wanted.keeps_order and wanted.target is not None and isinstance(found, SetOf):
        wanted.by, wanted.alpha = None, True  # what is stored must not depend on the order inside a set
    if found is None:
        elements = []
    elif wanted.keeps_order:
        elements = _in_own_order(found, wanted)
    else:
        elements = _sorted(call, _in_own_order(found, Sort()), wanted)
    chosen = elements[wanted.window(len(elements))]
    values = [_value_of(call, get, element) for element in chosen for get in wanted.gets or (b"#",)]
    if wanted.target is None:
        return [*values]
    stored = List(value or b"" for value in values)
    size = store(call, wanted.target, stored, "l", b"sortstore", argv)
    call.dirty += max(size - 1, 0)
    return size


@REGISTRY.command(
    "sort",
    -2,
    "write denyoom movablekeys",
    keys=(1, 1, 1),
    find_keys=find_keys,
    access="RO access",
    rest_access="OW update",
    since="1.0.0",
    summary="Answers or stores the elements of a list, set or sorted set in another order.",
    categories="none",
    extra_categories="@set @sortedset @list @dangerous",
    reads_unnamed=reads_unnamed,
)
def sort(call: CommandContext, argv: list[bytes]) -> Reply:
    """SORT key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA]
    [STORE destination]
    """
    return _sort(call, argv, parse(argv[2:], may_store=True))


@REGISTRY.command(
    "sort_ro",
    -2,
    "readonly movablekeys",
    keys=(1, 1, 1),
    find_keys=find_keys,
    access="RO access",
    since="7.0.0",
    summary="Answers the elements of a list, set or sorted set in another order.",
    categories="none",
    extra_categories="@set @sortedset @list @dangerous",
    reads_unnamed=reads_unnamed,
)
def sort_ro(call: CommandContext, argv: list[bytes]) -> Reply:
    """SORT_RO key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA]"""
    return _sort(call, argv, parse(argv[2:], may_store=False))
