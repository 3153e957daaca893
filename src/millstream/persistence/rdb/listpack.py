"""Listpacks: short strings and integers, one after the other in one block of memory.

    size u32 LE │ elements u16 LE │ element … element │ FF
    element     │ encoding │ data │ size of the two, 7 bits a byte, read backwards │

    0xxxxxxx  0 to 127              10xxxxxx  string up to 63 bytes     F0        string, u32 LE length
    110xxxxx  13-bit integer        1110xxxx  string up to 4095 bytes   F1 … F4   integer of 2, 3, 4, 8 bytes

A string that is the canonical decimal of a 64-bit integer is stored as that integer, in the shortest form.
"""

from __future__ import annotations

from typing import Final

from millstream.engine.text.args import as_integer
from millstream.errors import BadFormat

Element = bytes | int

EMPTY_SIZE: Final = 7  # the header and the end byte
_UNKNOWN: Final = 0xFFFF  # marks more elements than the header can count
_MAY_BE_INTEGER: Final = frozenset(b"-0123456789")
_SMALL: Final = tuple(bytes((value, 1)) for value in range(128))
_WIDTH: Final = {0xF1: 2, 0xF2: 3, 0xF3: 4, 0xF4: 8}


def pack(elements: list[bytes]) -> bytes:
    """Return a listpack of encoded elements."""
    body = b"".join(elements)
    count = min(len(elements), _UNKNOWN)
    return b"%b%b%b\xff" % ((len(body) + EMPTY_SIZE).to_bytes(4, "little"), count.to_bytes(2, "little"), body)


def of_string(value: bytes) -> bytes:
    """Encode a string, as an integer if it is one."""
    size = len(value)
    if 0 < size < 21 and value[0] in _MAY_BE_INTEGER:
        number = as_integer(value)
        if number is not None:
            return of_integer(number)
    return of_text(value)


def of_text(value: bytes) -> bytes:
    """Encode a string as a string, even if it looks like an integer."""
    size = len(value)
    if size < 64:
        return b"%c%b%c" % (0x80 | size, value, size + 1)
    if size < 4096:
        return b"%c%c%b%b" % (0xE0 | size >> 8, size & 255, value, _backlength(size + 2))
    return b"\xf0%b%b%b" % (size.to_bytes(4, "little"), value, _backlength(size + 5))


def of_integer(value: int) -> bytes:
    """Encode an integer in the shortest form."""
    if 0 <= value < 128:
        return _SMALL[value]
    if -4096 <= value < 4096:
        return b"%c%c\x02" % (0xC0 | value >> 8 & 0x1F, value & 255)
    for head, width in _WIDTH.items():
        if -(1 << 8 * width - 1) <= value < 1 << 8 * width - 1:
            return b"%c%b%c" % (head, value.to_bytes(width, "little", signed=True), width + 1)
    raise ValueError(f"{value} has more than 64 bits")


def _backlength(size: int) -> bytes:
    """Encode the size of encoding and data: 7 bits a byte, highest first, with a mark on all bytes but the first."""
    if size < 128:
        return bytes((size,))
    if size < 16383:
        return bytes((size >> 7, size & 127 | 128))
    if size < 2097151:
        return bytes((size >> 14, size >> 7 & 127 | 128, size & 127 | 128))
    if size < 268435455:
        return bytes((size >> 21, size >> 14 & 127 | 128, size >> 7 & 127 | 128, size & 127 | 128))
    low = bytes(size >> shift & 127 | 128 for shift in (21, 14, 7, 0))
    return bytes((size >> 28,)) + low


def _backlength_size(size: int) -> int:
    return 1 if size < 128 else 2 if size < 16383 else 3 if size < 2097151 else 4 if size < 268435455 else 5


def unpack(data: bytes) -> list[Element]:
    """Return all elements: integers and strings."""
    end = len(data) - 1
    if end < EMPTY_SIZE - 1 or int.from_bytes(data[:4], "little") != end + 1 or data[end] != 0xFF:
        raise BadFormat("a listpack whose size is wrong")
    elements: list[Element] = []
    at = 6
    while at < end:
        head = data[at]
        if head < 0x80:
            elements.append(head)
            at += 2
        elif head < 0xC0:
            after = at + (head & 63) + 1
            elements.append(data[at + 1 : after])
            at = after + 1
        elif head < 0xE0:
            value = (head & 0x1F) << 8 | data[at + 1]
            elements.append(value - 0x2000 if value & 0x1000 else value)
            at += 3
        else:
            element, at = _unpack_long(data, at, head)
            elements.append(element)
    if at != end:
        raise BadFormat("a listpack whose elements do not fill it")
    return elements


def _unpack_long(data: bytes, at: int, head: int) -> tuple[Element, int]:
    """Return the element at this offset and the offset of the next. The three forms inside `unpack` are not handled."""
    width = _WIDTH.get(head)
    if width is not None:
        return int.from_bytes(data[at + 1 : at + 1 + width], "little", signed=True), at + width + 2
    if head < 0xF0:
        size, start = (head & 15) << 8 | data[at + 1], at + 2
    elif head == 0xF0:
        size, start = int.from_bytes(data[at + 1 : at + 5], "little"), at + 5
    else:
        raise BadFormat("a listpack with an encoding that does not exist")
    return data[start : start + size], start + size + _backlength_size(start + size - at)


def end_of(data: bytes, at: int) -> int:
    """Return the end of the element at this offset. The listpack must have passed `unpack`."""
    head = data[at]
    if head < 0x80:
        return at + 2
    if head < 0xC0:
        return at + (head & 63) + 2
    if head < 0xE0:
        return at + 3
    return _unpack_long(data, at, head)[1]


def words(data: bytes) -> list[bytes]:
    """Return all elements as strings."""
    return [element if isinstance(element, bytes) else b"%d" % element for element in unpack(data)]
