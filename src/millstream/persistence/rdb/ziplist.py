"""Ziplists (the predecessor of listpacks) and intsets (sets of integers). They are only read.

ziplist   bytes u32 │ last entry u32 │ entries u16 │ entry … │ FF       all LE
entry     size of the one before: 1 byte, or FE and u32 LE │ encoding │ data
          00xxxxxx  string up to 63 bytes     C0 D0 E0   integer of 2, 4, 8 bytes, LE
          01xxxxxx  string, 14-bit BE         F0 FE      integer of 3, 1 bytes, LE
          80        string, u32 BE length     F1 … FD    0 to 12
intset    bytes of an integer u32 │ integers u32 │ integer …            all LE
"""

from __future__ import annotations

from typing import Final

from millstream.errors import BadFormat

_WIDTH: Final = {0xC0: 2, 0xD0: 4, 0xE0: 8, 0xF0: 3, 0xFE: 1}


def words(data: bytes) -> list[bytes]:
    """Return all entries of a ziplist as strings."""
    end = len(data) - 1
    if end < 10 or int.from_bytes(data[:4], "little") != end + 1 or data[end] != 0xFF:
        raise BadFormat("a ziplist whose size is wrong")
    found: list[bytes] = []
    at = 10
    while at < end:
        at += 5 if data[at] == 0xFE else 1
        if at >= end:
            break
        word, at = _entry(data, at)
        found.append(word)
    if at != end:
        raise BadFormat("a ziplist whose entries do not fill it")
    return found


def _entry(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the entry whose encoding is at this offset, and its end."""
    head = data[at]
    if head < 0xC0:
        if head < 0x40:
            size, start = head, at + 1
        elif head < 0x80:
            size, start = (head & 63) << 8 | data[at + 1], at + 2
        else:
            size, start = int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
        return data[start : start + size], start + size
    if 0xF1 <= head <= 0xFD:
        return b"%d" % ((head & 15) - 1), at + 1
    width = _WIDTH.get(head)
    if width is None:
        raise BadFormat("a ziplist with an encoding that does not exist")
    return b"%d" % int.from_bytes(data[at + 1 : at + 1 + width], "little", signed=True), at + 1 + width


def integers(data: bytes) -> list[int]:
    """Return all members of an intset."""
    width, count = int.from_bytes(data[:4], "little"), int.from_bytes(data[4:8], "little")
    if width not in (2, 4, 8) or len(data) != 8 + width * count:
        raise BadFormat("an intset whose size is wrong")
    return [int.from_bytes(data[at : at + width], "little", signed=True) for at in range(8, len(data), width)]
