"""A stream's nodes: convert blocks of entries to listpacks and back.

    node   live, dead, fields, name …, 0        the counters, and the field names of the first entry
    entry  flags, ms, seq, value …, elements    same names as above (flags 2); ms and seq less those of the first id
    entry  flags, ms, seq, fields, name, value …, elements

A block knows the number and total size of its deleted entries, but not their content. So a deleted entry (flags 1) is
written without fields, the last one under its id and the others under the first id of the block, and one of them is
padded with zero bytes until the listpack has its old size. Only invisible data is lost: ids and fields of deleted
entries. Counters, bounds and size of a block decide when the next block is opened and what a trim removes; they stay
the same.
"""

from __future__ import annotations

from itertools import islice
from operator import lt
from typing import Final, cast

from millstream.engine.streams.entries import Block, decode_fields, encode_fields
from millstream.engine.streams.ids import MAX_KEY, order, text_of
from millstream.engine.text.args import I64_MAX, U64_MAX
from millstream.errors import BadFormat
from millstream.persistence.rdb import listpack
from millstream.persistence.rdb.listpack import Element, of_integer, of_string, of_text

_DELETED: Final = 1
_SAME_NAMES: Final = 2

_ZERO: Final = of_integer(0)
_ONE: Final = of_integer(1)
# A zero in more bytes than necessary: one, two, three more.
_WIDE_ZERO: Final = (_ZERO, b"\xc0\x00\x02", b"\xf1\x00\x00\x03", b"\xf2\x00\x00\x00\x04")


def node_of(block: Block) -> bytes:
    """Return the listpack of a block that has live entries."""
    names = block.names
    elements = [of_integer(len(block.ids)), of_integer(block.dead), of_integer(len(names))]
    elements += map(of_string, names)
    elements.append(_ZERO)
    if not block.dead:
        return listpack.pack(elements + _live_entries(block))
    entries = _live_entries(block)
    missing = block.node_bytes() - listpack.EMPTY_SIZE - sum(map(len, elements)) - sum(map(len, entries))
    before, after = _dead_entries(block, missing)
    return listpack.pack(elements + before + entries + after)


def _live_entries(block: Block) -> list[bytes]:
    names = block.names
    first_ms, first_seq = block.first >> 64, block.first & U64_MAX
    same, same_count = of_integer(_SAME_NAMES), of_integer(len(names) + 3)
    elements: list[bytes] = []
    for entry_id, fragment in zip(block.ids, block.slice(0, len(block.ids)), strict=True):
        fields = decode_fields(fragment)
        ms, seq = entry_id.split(b"-")
        elements += (_ZERO, of_integer(_signed(int(ms) - first_ms)), of_integer(_signed(int(seq) - first_seq)))
        if len(fields) == 2 and fields[0] == block.name:
            elements[-3] = same
            elements += (of_string(fields[1]), same_count)
        elif fields[::2] == names:
            elements[-3] = same
            elements += map(of_string, fields[1::2])
            elements.append(same_count)
        else:
            elements.append(of_integer(len(fields) // 2))
            elements += map(of_string, fields)
            elements.append(of_integer(len(fields) + 4))
    return elements


def _dead_entries(block: Block, size: int) -> tuple[list[bytes], list[bytes]]:
    """Return deleted entries that take this many bytes if possible: those before all others, and the last one."""
    is_last_dead = order(block.ids[-1]) != block.last
    before = block.dead - is_last_dead
    last = _distance(block.last, block.first) if is_last_dead else []
    # flags, distance, no fields, count of elements: two bytes each, except for the distance of the last entry
    spare = max(size - 10 * before - (6 * is_last_dead + sum(map(len, last))), 0)
    elements: list[bytes] = []
    for _ in range(before):
        elements += [of_integer(_DELETED), _ZERO, _ZERO, *_filling(spare)]
        spare = 0
    return elements, [of_integer(_DELETED), *last, *_filling(spare)] if is_last_dead else []


def _distance(key: int, first: int) -> list[bytes]:
    ms, seq = (key >> 64) - (first >> 64), (key & U64_MAX) - (first & U64_MAX)
    return [of_integer(_signed(ms)), of_integer(_signed(seq))]


def _filling(spare: int) -> list[bytes]:
    """Return the fields of a deleted entry and its final count, this many bytes larger than the minimum of four."""
    if spare < len(_WIDE_ZERO):
        return [_WIDE_ZERO[spare], of_integer(4)]
    for name_size in range(8):
        name = of_text(bytes(name_size))
        value = _text_of_size(spare - len(name))
        if value is not None:
            return [_ONE, name, value, of_integer(6)]
    raise AssertionError(f"no two elements take {spare} bytes")


def _text_of_size(size: int) -> bytes | None:
    """Return an element of this size, or None: no element has a size at which the encoding grows."""
    for overhead in range(2, min(size, 10) + 1):
        element = of_text(bytes(size - overhead))
        if len(element) == size:
            return element
    return None


def _signed(distance: int) -> int:
    """Return a number as a signed 64-bit number, since ids wrap around."""
    if -I64_MAX <= distance <= I64_MAX:
        return distance
    return (distance + 2**63) % 2**64 - 2**63


def block_of(first: int, data: bytes) -> Block:
    """Return the block of a listpack whose entries are relative to the id `first`. It can still take entries."""
    elements = listpack.unpack(data)
    try:
        names_end = 3 + _number(elements[2])
        live, dead, end = _number(elements[0]), _number(elements[1]), elements[names_end]
    except IndexError as error:
        raise BadFormat("a stream node that ends inside its header") from error
    if end != 0:
        raise BadFormat("a stream node whose field names have no terminator")
    counters = listpack.end_of(data, listpack.end_of(data, 6)) - 6
    block = Block(first, _words(elements[3:names_end]), len(data) - counters)
    block.dead = dead
    entries = elements[names_end + 1 :]
    if not _take_columns(block, entries, live):
        _take_entries(block, entries, first)
    if block.ids:
        block.last = max(block.last, order(block.ids[-1]))  # a damaged node may end with a lower id, deleted
    if len(block.ids) != live:
        raise BadFormat("a stream node whose count of entries is wrong")
    return block


def _take_columns(block: Block, elements: list[Element], live: int) -> bool:
    """Take all entries at once if they have the same shape, as in most nodes. Returns whether they have.

    Then the elements are a table with one row per entry, and each column is processed as a whole.
    """
    names = len(block.names)
    width = names + 4
    if not live or not names or len(elements) != live * width:
        return False
    if elements[::width] != [_SAME_NAMES] * live or elements[width - 1 :: width] != [names + 3] * live:
        return False
    keys = _keys(block.first, elements[1::width], elements[2::width])
    if keys is None:
        return False
    columns = [_words(elements[at::width]) for at in range(3, 3 + names)]
    block.ids = [b"%d-%d" % (key >> 64, key & U64_MAX) for key in keys]
    block.last = keys[-1]
    if block.name is not None:
        prefix = block.prefix
        block.fragments = [b"%b$%d\r\n%b\r\n" % (prefix, len(value), value) for value in columns[0]]
    else:
        heads = [b"$%d\r\n%b\r\n" % (len(name), name) for name in block.names]
        start = b"*%d\r\n" % (2 * names)
        block.fragments = [
            start + b"".join([b"%b$%d\r\n%b\r\n" % (head, len(value), value) for head, value in pairs])
            for pairs in (zip(heads, values, strict=True) for values in zip(*columns, strict=True))
        ]
    return True


def _keys(first: int, ms: list[Element], seq: list[Element]) -> list[int] | None:
    """Return the keys of entries at these distances from the first id, or None if they are not regular."""
    if {*map(type, ms), *map(type, seq)} != {int}:
        return None
    ms_parts, seq_parts = cast("list[int]", ms), cast("list[int]", seq)
    low, high = (first & U64_MAX) + min(seq_parts), (first & U64_MAX) + max(seq_parts)
    if low < 0 or high > U64_MAX or min(ms_parts) < 0:
        return None
    keys = [first + (ms_part << 64) + seq_part for ms_part, seq_part in zip(ms_parts, seq_parts, strict=True)]
    if keys[0] < first or keys[-1] > MAX_KEY or not all(map(lt, keys, islice(keys, 1, None))):
        return None
    return keys


def _take_entries(block: Block, elements: list[Element], base: int) -> None:
    """Take entries one by one. Their ids are relative to the key `base`."""
    at = 0
    try:
        while at < len(elements):
            at = _take_entry(block, elements, at, base)
    except IndexError as error:
        raise BadFormat("a stream node that ends inside an entry") from error


def _take_entry(block: Block, elements: list[Element], at: int, base: int) -> int:
    """Take the entry at this index. Returns the index of the next one."""
    flags = _number(elements[at])
    ms, seq = elements[at + 1], elements[at + 2]
    if not (isinstance(ms, int) and isinstance(seq, int)):
        raise BadFormat("a stream entry without an id")
    if flags & _SAME_NAMES:
        end = at + 3 + len(block.names)
        values = _words(elements[at + 3 : end])
    else:
        end = at + 4 + 2 * _number(elements[at + 3])
        values = _words(elements[at + 4 : end])
    if elements[end] != end - at:
        raise BadFormat("a stream entry whose count of elements is wrong")
    key = ((base >> 64) + ms & U64_MAX) << 64 | (base & U64_MAX) + seq & U64_MAX
    block.last = key
    if not flags & _DELETED:
        if block.ids and key <= order(block.ids[-1]):
            raise BadFormat("stream entries that are not in order")
        if key < block.first:
            block.first = key  # after XSETID new ids can be lower than those of deleted entries
        if flags & _SAME_NAMES:
            values = [word for pair in zip(block.names, values, strict=True) for word in pair]
        block.ids.append(text_of(key))
        block.open().append(encode_fields(values))
    return end + 1


def _number(element: Element) -> int:
    if not isinstance(element, int) or element < 0:
        raise BadFormat("a stream node with text where a number must be")
    return element


def _words(elements: list[Element]) -> list[bytes]:
    return [element if isinstance(element, bytes) else b"%d" % element for element in elements]
