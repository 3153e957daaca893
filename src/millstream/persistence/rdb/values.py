"""Strings, lists, sets, hashes and sorted sets in RDB.

Values are written in forms that every server since Redis 4 reads (a list in the form of Redis 7 if the version has it).
The reader accepts these and the compact forms of all releases: ziplists, intsets, listpacks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Final

from millstream.engine.keys.values import Hash, List, SetOf, SortedSet
from millstream.errors import BadFormat
from millstream.persistence.rdb import listpack, ziplist
from millstream.persistence.rdb.codec import Reader, Writer

STRING, LIST, SET, HASH, SORTED_SET, LIST_OF_PACKS = 0, 1, 2, 4, 5, 18

# Names of types that cannot be read, for the error.
REFUSED: Final = {
    6: "a module's value",
    7: "a module's value",
    9: "a hash as a zipmap (Redis before 2.6)",
    22: "a hash with fields that expire",
    23: "a hash with fields that expire",
    24: "a hash with fields that expire",
    25: "a hash with fields that expire",
}

_NODE_SIZE: Final = 8192  # bytes of a list's node, as in Redis; a larger element has its own node
_PLAIN, _PACKED = 1, 2
_DOUBLE: Final = Struct("<d")
_NO_DECIMALS: Final = {253: math.nan, 254: math.inf, 255: -math.inf}  # by the byte in place of their length


# Writing


def type_of(value: object, version: int) -> int:
    """Return the type under which a plain value is written."""
    match value:
        case bytes():
            return STRING
        case List():
            return LIST_OF_PACKS if version >= 10 else LIST
        case SetOf():
            return SET
        case Hash():
            return HASH
        case SortedSet():
            return SORTED_SET
        case _:
            raise TypeError(f"no value of a key: {type(value).__name__}")


def write_value(out: Writer, value: object, kind: int) -> None:
    """Write the body of a plain value under the type that `type_of` returns."""
    match value:
        case bytes():
            out.string(value)
        case List() if kind == LIST_OF_PACKS:
            _write_packs(out, value)
        case List() | SetOf():
            out.length(len(value))
            for word in value:
                out.string(word)
        case Hash():
            out.length(len(value))
            for name, word in value.items():
                out.string(name)
                out.string(word)
        case SortedSet():
            _write_sorted_set(out, value)
        case _:
            raise TypeError(f"no value of a key: {type(value).__name__}")


def _write_packs(out: Writer, words: List) -> None:
    # built twice, for the count and for the data: keeping them would double the memory
    out.length(sum(1 for _ in _packs(words)))
    for container, data in _packs(words):
        out.length(container)
        out.string(data)


def _packs(words: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the nodes of a list: runs of packed elements, and each large element alone."""
    elements: list[bytes] = []
    size = 0
    for word in words:
        element = listpack.of_string(word) if len(word) <= _NODE_SIZE else b""
        if elements and (not element or size + len(element) > _NODE_SIZE):
            yield _PACKED, listpack.pack(elements)
            elements, size = [], 0
        if element:
            elements.append(element)
            size += len(element)
        else:
            yield _PLAIN, word
    if elements:
        yield _PACKED, listpack.pack(elements)


def _write_sorted_set(out: Writer, value: SortedSet) -> None:
    out.length(len(value))
    # highest first: Redis then inserts each at the head of its list, which is cheap
    for score, member in reversed(value):
        out.string(member)
        out.put(_DOUBLE.pack(score))


# Reading


class EmptyValue(BadFormat):
    """A list, set, hash or sorted set without elements, which no key can have."""


def read_value(reader: Reader, kind: int) -> object:
    """Read the body of a plain value of this type."""
    read = _READERS.get(kind)
    if read is None:
        raise reader.bad(f"{REFUSED.get(kind, 'a value')} of type {kind} cannot be read")
    try:
        return read(reader)
    except BadFormat as error:
        error.locate(reader.offset)
        raise


def _strings(reader: Reader) -> list[bytes]:
    return [reader.string() for _ in range(reader.length())]


def _list(words: list[bytes]) -> List:
    return List(_some(words))


def _set(words: list[bytes]) -> SetOf:
    members = SetOf(_some(words))
    if len(members) != len(words):
        raise BadFormat("a set with a duplicate member")
    return members


def _hash(words: list[bytes]) -> Hash:
    _some(words)
    if len(words) % 2:
        raise BadFormat("a hash with a field that has no value")
    fields = Hash(zip(words[::2], words[1::2], strict=True))
    if 2 * len(fields) != len(words):
        raise BadFormat("a hash with a duplicate field")
    return fields


def _sorted_set(pairs: list[tuple[bytes, float]]) -> SortedSet:
    if not pairs:
        raise EmptyValue("a value without elements")
    members = SortedSet()
    for member, score in pairs:
        if score != score:
            raise BadFormat("a sorted set with a score that is not a number")
        if not members.put(member, score):
            raise BadFormat("a sorted set with a duplicate member")
    return members


def _some(words: list[bytes]) -> list[bytes]:
    """Return the words, or raise EmptyValue: a key cannot have an empty value."""
    if not words:
        raise EmptyValue("a value without elements")
    return words


def _scored(words: list[bytes]) -> SortedSet:
    """Build a sorted set from members and scores in turn, as text."""
    if len(words) % 2:
        raise BadFormat("a sorted set with a member that has no score")
    return _sorted_set([(words[at], _score(words[at + 1])) for at in range(0, len(words), 2)])


def _score(text: bytes) -> float:
    try:
        return float(text.replace(b"_", b"?"))  # Python accepts these, Redis does not
    except ValueError as error:
        raise BadFormat("a sorted set with a score that is not a number") from error


def _pairs(reader: Reader) -> list[bytes]:
    return [reader.string() for _ in range(2 * reader.length())]


def _doubles(reader: Reader) -> SortedSet:
    return _sorted_set([(reader.string(), _DOUBLE.unpack(reader.take(8))[0]) for _ in range(reader.length())])


def _decimals(reader: Reader) -> SortedSet:
    return _sorted_set([(reader.string(), _decimal(reader)) for _ in range(reader.length())])


def _decimal(reader: Reader) -> float:
    size = reader.byte()
    return _NO_DECIMALS.get(size) or _score(reader.take(size))


def _ziplists(reader: Reader) -> List:
    return _list([word for _ in range(reader.length()) for word in ziplist.words(reader.string())])


def _packs_read(reader: Reader) -> List:
    found: list[bytes] = []
    for _ in range(reader.length()):
        container = reader.length()
        data = reader.string()
        if container == _PACKED:
            found += listpack.words(data)
        elif container == _PLAIN:
            found.append(data)
        else:
            raise BadFormat("a list with a node of an unknown kind")
    return _list(found)


_READERS: Final[dict[int, Callable[[Reader], object]]] = {
    STRING: Reader.string,
    LIST: lambda reader: _list(_strings(reader)),
    SET: lambda reader: _set(_strings(reader)),
    3: _decimals,
    HASH: lambda reader: _hash(_pairs(reader)),
    SORTED_SET: _doubles,
    10: lambda reader: _list(ziplist.words(reader.string())),
    11: lambda reader: _set([b"%d" % member for member in ziplist.integers(reader.string())]),
    12: lambda reader: _scored(ziplist.words(reader.string())),
    13: lambda reader: _hash(ziplist.words(reader.string())),
    14: _ziplists,
    16: lambda reader: _hash(listpack.words(reader.string())),
    17: lambda reader: _scored(listpack.words(reader.string())),
    LIST_OF_PACKS: _packs_read,
    20: lambda reader: _set(listpack.words(reader.string())),
}
