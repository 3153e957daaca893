"""CRC-64 as RDB files and DUMP payloads carry it (Jones polynomial, reflected, start 0, no final xor).

Short data goes byte by byte through a table. Long data is folded first, because Python is slow with single bytes and
fast with long integers. Over GF(2), squaring a polynomial only spreads its exponents, so with P the polynomial of the
CRC and y = x**(2**k), P(y) is a power of P(x), and what is congruent modulo P(y) is congruent modulo P(x):

    words      w0 w1 w2 …           each 2**k bits, the highest power of y first
    fold       w0 leaves, and is xored into the words 64 - e places behind it, for each power e of P
    the end    64 words are left, whose CRC is that of all the data

A word of 4 KB costs as many xors (32) as one of 8 bytes, so that 100 MB and more get through in a second, where the
table alone manages 10.
"""

from __future__ import annotations

from typing import Final

_POLYNOMIAL: Final = 0xAD93D23594C935A9  # coefficients of x**63 … x**0; x**64 is implied
_REFLECTED: Final = int(f"{_POLYNOMIAL:064b}"[::-1], 2)
_BEHIND: Final = tuple(64 - power for power in range(64) if _POLYNOMIAL >> power & 1)
# Bytes of a word, and from how many bytes on it pays to fold with words of that size.
_WORDS: Final = ((4096, 1_000_000), (2048, 200_000), (256, 32_000), (32, 6_000))


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_REFLECTED if byte & 1 else 0)
    return byte


_TABLE: Final = tuple(map(_entry, range(256)))


def crc64(data: bytes, crc: int = 0) -> int:
    """The checksum of data, going on from that of what came before it."""
    for size, from_bytes in _WORDS:
        if len(data) >= from_bytes:
            data, crc = _fold(data, crc, size), 0
    table = _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc


def _fold(data: bytes, crc: int, size: int) -> bytes:
    """Fewer bytes with the same checksum: 64 words of this size, and what was left over at the end."""
    count = len(data) // size
    words = [int.from_bytes(data[at : at + size], "little") for at in range(0, count * size, size)]
    words[0] ^= crc  # a checksum so far is the same as those bits xored into what follows
    for index in range(count - 64):
        word = words[index]
        for behind in _BEHIND:
            words[index + behind] ^= word
        words[index] = 0
    return b"".join(word.to_bytes(size, "little") for word in words[count - 64 :]) + data[count * size :]
