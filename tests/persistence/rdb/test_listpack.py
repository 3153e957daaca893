"""Listpacks, and the older compact forms."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.engine.streams.entries import element_size, integer_size
from millstream.errors import BadFormat
from millstream.persistence.rdb import listpack, ziplist

EDGES = [
    sign * (2**bits) + near
    for bits in (0, 6, 7, 11, 12, 13, 15, 16, 23, 24, 31, 32, 62)
    for sign in (1, -1)
    for near in (-1, 0, 1)
]
INTEGERS = st.sampled_from([*EDGES, 2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1)
SIZES = [0, 1, 20, 21, 62, 63, 64, 65, 124, 125, 126, 127, 4094, 4095, 4096, 16378, 16379, 20000, 2097200]
ELEMENTS = st.lists(INTEGERS | st.binary(max_size=80), max_size=40)


@given(ELEMENTS)
def test_what_is_packed_comes_back(elements: list[bytes | int]) -> None:
    words = [e if isinstance(e, bytes) else b"%d" % e for e in elements]
    data = listpack.pack([listpack.of_string(word) for word in words])
    assert listpack.words(data) == words
    assert int.from_bytes(data[4:6], "little") == len(words)


@given(INTEGERS)
def test_an_integer_takes_the_bytes_that_the_engine_counts(value: int) -> None:
    element = listpack.of_integer(value)
    assert len(element) == integer_size(value) == len(listpack.of_string(b"%d" % value))
    assert listpack.unpack(listpack.pack([element])) == [value]


@pytest.mark.parametrize("size", SIZES)
def test_a_string_takes_the_bytes_that_the_engine_counts(size: int) -> None:
    element = listpack.of_string(b"x" * size)
    data = listpack.pack([element])
    assert len(element) == element_size(b"x" * size)
    assert listpack.unpack(data) == [b"x" * size]
    assert listpack.end_of(data, 6) == len(data) - 1


@pytest.mark.parametrize("size", SIZES)
def test_the_length_behind_an_element_leads_back_to_its_start(size: int) -> None:
    element = listpack.of_string(b"x" * size)
    back, shift, at = 0, 0, len(element) - 1
    while True:
        back |= (element[at] & 127) << shift
        if not element[at] & 128:
            break
        shift, at = shift + 7, at - 1
    assert back == at


@pytest.mark.parametrize("word", [b"01", b"+1", b"-0", b" 1", b"1 ", b"9223372036854775808", b"-", b"", b"1\0"])
def test_text_that_only_looks_like_a_number_stays_text(word: bytes) -> None:
    assert listpack.unpack(listpack.pack([listpack.of_string(word)])) == [word]


@given(ELEMENTS, st.data())
def test_a_damaged_listpack_is_refused_or_read_and_nothing_else(
    elements: list[bytes | int], data: st.DataObject
) -> None:
    good = listpack.pack([listpack.of_string(e if isinstance(e, bytes) else b"%d" % e) for e in elements])
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + bytes((data.draw(st.integers(0, 255)),)) + good[at + 1 :]
    for part in (bad, bad[:at], good + b"\xff"):
        with contextlib.suppress(BadFormat):
            listpack.words(part)


def a_ziplist(*entries: bytes) -> bytes:
    """Entries with their encodings; what leads back is left at 0, since it is not read."""
    body = b"".join(b"\0" + entry for entry in entries)
    return (len(body) + 11).to_bytes(4, "little") + bytes(4) + len(entries).to_bytes(2, "little") + body + b"\xff"


def test_a_ziplist_is_read() -> None:
    entries = [
        b"\x03abc",
        b"\x40\x40" + b"x" * 64,
        b"\x80\x00\x00\x00\x02hi",
        b"\xc0\xfe\xff",
        b"\xd0\x70\x11\x01\x00",
        b"\xe0" + (-(2**40)).to_bytes(8, "little", signed=True),
        b"\xf0\x00\x00\x80",
        b"\xfe\x80",
        b"\xf1",
        b"\xfd",
    ]
    words = [b"abc", b"x" * 64, b"hi", b"-2", b"70000", b"-1099511627776", b"-8388608", b"-128", b"0", b"12"]
    assert ziplist.words(a_ziplist(*entries)) == words
    after_a_long_one = b"\xfe\x00\x01\x00\x00\x01z"
    data = a_ziplist(b"\x01y")[:-1] + after_a_long_one + b"\xff"
    assert ziplist.words((len(data)).to_bytes(4, "little") + data[4:]) == [b"y", b"z"]


@given(st.binary(max_size=40))
def test_a_damaged_ziplist_or_intset_is_refused_or_read_and_nothing_else(body: bytes) -> None:
    for read in (ziplist.words, ziplist.integers):
        for data in (body, (len(body) + 11).to_bytes(4, "little") + bytes(6) + body + b"\xff"):
            with contextlib.suppress(BadFormat):
                read(data)


def test_an_intset_is_read() -> None:
    data = b"".join(number.to_bytes(4, "little", signed=True) for number in (4, 2, -1, 5))
    assert ziplist.integers(data) == [-1, 5]
