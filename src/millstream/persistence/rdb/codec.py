"""Read and write the parts of RDB: lengths, strings, numbers, ids.

    length   00xxxxxx │ 01xxxxxx + 1 byte │ 80 + u32 │ 81 + u64, big-endian
    string   a length and the bytes │ C0 i8 │ C1 i16 │ C2 i32, little-endian, for decimals │ C3 length length LZF
    time     i64, little-endian, Unix ms
    id       two u64, big-endian

A `Reader` takes bytes at once (a payload) or piece by piece (a file), a `Writer` gathers them or hands them on. Both
keep the checksum of what has passed through, so that a file is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millstream.engine.text.args import I64_MAX, U64_MAX, as_integer
from millstream.errors import BadFormat
from millstream.persistence.rdb import lzf
from millstream.persistence.rdb.crc64 import crc64

PIECE: Final = 1 << 20  # bytes to read or write at a time; the checksum is fastest on long pieces
_LONGEST_INTEGER: Final = 11  # a longer string is not tried as an integer
_SHORTEST_COMPRESSED: Final = 21
_I32: Final = 1 << 31


def as_signed(value: int) -> int:
    """Return the signed number that a 64-bit length stands for."""
    return value if value <= I64_MAX else value - (1 << 64)


def length_bytes(value: int) -> bytes:
    """Encode a length or a number of up to 64 bits, a negative one as its two's complement."""
    if 0 <= value < 64:
        return bytes((value,))
    value &= U64_MAX
    if value < 16384:
        return (0x4000 | value).to_bytes(2, "big")
    if value < 1 << 32:
        return b"\x80" + value.to_bytes(4, "big")
    return b"\x81" + value.to_bytes(8, "big")


def string_bytes(value: bytes, *, compress: bool) -> bytes:
    """Encode a string in its shortest form."""
    size = len(value)
    if size <= _LONGEST_INTEGER:
        number = as_integer(value)
        if number is not None and -_I32 <= number < _I32:
            return _integer_bytes(number)
    elif compress and size >= _SHORTEST_COMPRESSED:
        packed = lzf.compress(value, size - 4)
        if packed is not None:
            return b"\xc3" + length_bytes(len(packed)) + length_bytes(size) + packed
    return length_bytes(size) + value


def _integer_bytes(value: int) -> bytes:
    head, width = (0xC0, 1) if -128 <= value < 128 else (0xC1, 2) if -32768 <= value < 32768 else (0xC2, 4)
    return bytes((head,)) + value.to_bytes(width, "little", signed=True)


class Writer:
    """Collects written bytes; with a sink, passes them on in pieces."""

    __slots__ = ("_compress", "_parts", "_sink", "_size", "crc")

    def __init__(self, sink: Callable[[bytes], None] | None = None, *, compress: bool) -> None:
        self._sink = sink
        self._compress = compress
        self._parts: list[bytes] = []
        self._size = 0
        self.crc = 0  # of the bytes passed on

    def put(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._parts.append(data)
        self._size += len(data)
        if self._size >= PIECE and self._sink is not None:
            self.flush()

    def length(self, value: int) -> None:
        self.put(length_bytes(value))

    def string(self, value: bytes) -> None:
        self.put(string_bytes(value, compress=self._compress))

    def id(self, key: int) -> None:
        """Write the two halves of an entry id as lengths."""
        self.put(length_bytes(key >> 64) + length_bytes(key & U64_MAX))

    def flush(self) -> None:
        """Pass the collected bytes on."""
        data = self.gathered()
        self.crc = crc64(data, self.crc)
        self._parts, self._size = [], 0
        if self._sink is not None and data:
            self._sink(data)

    def gathered(self) -> bytes:
        """Return the bytes that were written and not passed on."""
        return b"".join(self._parts)


class Reader:
    """Reads bytes that are complete, or that `more(count)` returns: at most `count`, none at the end.

    A caller with many small reads may read `data` from `at` on, after `need` has made sure of them.
    """

    __slots__ = ("_more", "_passed", "at", "crc", "data")

    def __init__(self, data: bytes = b"", more: Callable[[int], bytes] | None = None) -> None:
        self.data = data
        self.at = 0
        self.crc = 0  # of the bytes that were read and dropped from `data`
        self._more = more
        self._passed = 0

    @property
    def offset(self) -> int:
        """Return the number of bytes read since the beginning."""
        return self._passed + self.at

    def bad(self, what: str) -> BadFormat:
        """Return an error that names this offset."""
        return BadFormat(what, self.offset)

    def need(self, count: int) -> None:
        """Make sure that `count` bytes are available, or raise."""
        missing = self.at + count - len(self.data)
        if missing > 0:
            self._fetch(missing)

    def _fetch(self, missing: int) -> None:
        if self._more is None:
            raise self.bad("the data end early")
        self.pass_on()
        parts = [self.data]
        while missing > 0:
            # Read in pieces, so that a damaged length cannot request all memory.
            part = self._more(min(max(missing, PIECE), 64 * PIECE))
            if not part:
                raise self.bad("the data end early")
            parts.append(part)
            missing -= len(part)
        self.data = b"".join(parts)

    def pass_on(self) -> None:
        """Add the bytes that were read to the checksum and drop them."""
        self.crc = crc64(self.data[: self.at], self.crc)
        self._passed += self.at
        self.data = self.data[self.at :]
        self.at = 0

    def take(self, count: int) -> bytes:
        """Read `count` bytes."""
        self.need(count)
        at = self.at
        self.at = at + count
        return self.data[at : at + count]

    def byte(self) -> int:
        self.need(1)
        self.at += 1
        return self.data[self.at - 1]

    def time(self) -> int:
        """Read a signed number of 8 bytes."""
        return int.from_bytes(self.take(8), "little", signed=True)

    def length(self) -> int:
        head = self.byte()
        if head < 0x40:
            return head
        if head < 0x80:
            return (head & 63) << 8 | self.byte()
        if head == 0x80:
            return int.from_bytes(self.take(4), "big")
        if head == 0x81:
            return int.from_bytes(self.take(8), "big")
        raise self.bad("a length was expected")

    def id(self) -> int:
        """Read the key of an entry id that is written as two lengths."""
        ms = self.length()
        return ms << 64 | self.length()

    def string(self) -> bytes:
        head = self.byte()
        if head < 0xC0:
            self.at -= 1
            return self.take(self.length())
        if head <= 0xC2:
            return b"%d" % int.from_bytes(self.take(1 << head - 0xC0), "little", signed=True)
        if head != 0xC3:
            raise self.bad("a string of an unknown encoding")
        packed_size, size = self.length(), self.length()
        packed = self.take(packed_size)
        try:
            return lzf.decompress(packed, size)
        except BadFormat as error:
            error.locate(self.offset)
            raise
