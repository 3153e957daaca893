"""LZF, the compression of strings in RDB.

    000nnnnn  n + 1 bytes follow as they are
    lllooooo  oooooooo           copy l + 2 bytes (l from 1 to 6) from o + 1 bytes back
    111ooooo  llllllll oooooooo  copy l + 9 bytes from o + 1 bytes back

`compress` uses the same table as Redis (three-byte sequences by hash, the last one wins) and gives up at the same
point, so it produces the same bytes.
"""

from __future__ import annotations

from typing import Final

from millstream.errors import BadFormat

_LONGEST_RUN: Final = 32
_FARTHEST: Final = 8192
_LONGEST_MATCH: Final = 264


def compress(data: bytes, limit: int) -> bytes | None:
    """Return the compressed form, or None if it exceeds `limit` bytes."""
    size = len(data)
    slots = _slots(data)
    seen: dict[int, int] = {}  # slot to the last position of its bytes
    out = bytearray()
    at = run = 0  # `run`: the start of the bytes that are not written yet
    cut, full = _LONGEST_RUN, limit - 1  # the positions at which a run must be written
    while at < size - 2:
        slot = slots[at]
        back = seen.get(slot, 0)
        seen[slot] = at
        # position 0 is never a match: Redis uses 0 for an empty slot
        if back and at - back <= _FARTHEST and data[back : back + 3] == data[at : at + 3]:
            if len(out) + at - run + (at > run) + 4 >= limit:
                return None
            _put_run(out, data, run, at)
            at = run = at + _put_match(out, data, back, at)
            if at >= size - 2:
                break
            seen[slots[at - 2]], seen[slots[at - 1]] = at - 2, at - 1
        elif at >= full:
            return None
        else:
            at += 1
            if at != cut:
                continue
            _put_run(out, data, run, at)
            run = at
        cut, full = run + _LONGEST_RUN, run + limit - len(out) - 1
    if len(out) + at - run + 4 > limit:
        return None
    for start in range(run, size, _LONGEST_RUN):
        _put_run(out, data, start, min(start + _LONGEST_RUN, size))
    return bytes(out)


def _slots(data: bytes) -> list[int]:
    """Return for each three bytes the slot of Redis's hash."""
    seconds = data[1:]
    return [
        (first << 8 | second) - 5 * (second << 8 | third) & 0xFFFF
        for first, second, third in zip(data, seconds, data[2:], strict=False)
    ]


def _put_run(out: bytearray, data: bytes, start: int, end: int) -> None:
    if end > start:
        out.append(end - start - 1)
        out += data[start:end]


def _put_match(out: bytearray, data: bytes, back: int, at: int) -> int:
    """Write a reference to an earlier match. Returns the number of bytes it covers."""
    length = _match_length(data, back, at)
    offset, more = at - back - 1, length - 2
    if more < 7:
        out.append(offset >> 8 | more << 5)
    else:
        out.append(offset >> 8 | 7 << 5)
        out.append(more - 7)
    out.append(offset & 255)
    return length


def _match_length(data: bytes, back: int, at: int) -> int:
    """Return the length of the match of two positions. Like Redis, it may leave out some of the last two bytes."""
    most = min(len(data) - at - 2, _LONGEST_MATCH)
    most = max(most, 19 if most > 16 else 3)
    length = 3
    while length < most:
        # Compare 32 bytes at a time as numbers: the lowest differing bit is in the first differing byte.
        here = int.from_bytes(data[at + length : at + length + 32], "little")
        there = int.from_bytes(data[back + length : back + length + 32], "little")
        differing = here ^ there
        if differing:
            same = (differing & -differing).bit_length() - 1 >> 3
            return min(length + same, most)
        length += 32
    return most


def decompress(data: bytes, size: int) -> bytes:
    """Return the `size` bytes that were compressed."""
    out = bytearray()
    at, end = 0, len(data)
    try:
        while at < end:
            head = data[at]
            at += 1
            if head < 32:
                out += data[at : at + head + 1]
                at += head + 1
                continue
            length = head >> 5
            if length == 7:
                length += data[at]
                at += 1
            start = len(out) - ((head & 31) << 8 | data[at]) - 1
            at += 1
            if start < 0:
                raise BadFormat("compressed data with a reference before its start")
            _copy(out, start, length + 2)
    except IndexError as error:
        raise BadFormat("compressed data that ends early") from error
    if len(out) != size or at != end:
        raise BadFormat("compressed data of the wrong length")
    return bytes(out)


def _copy(out: bytearray, start: int, length: int) -> None:
    """Append earlier output. The source may overlap the new bytes, which then repeat."""
    have = len(out) - start
    if have >= length:
        out += out[start : start + length]
    else:
        out += (out[start:] * (length // have + 1))[:length]
