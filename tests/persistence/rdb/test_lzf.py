"""Compression: what goes in comes out, Redis's own bytes, and damage."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import BadFormat
from millstream.persistence.rdb import lzf
from millstream.persistence.rdb.codec import string_bytes
from tests.support.servers import RealServer
from tests.support.wire import parse

# few letters, so that there is something to find
REPETITIVE = st.lists(st.sampled_from([b"a", b"ab", b"abcabc", b"\0\0\0", b"xyz" * 5, b"q" * 40]), max_size=120)


@given(REPETITIVE.map(b"".join) | st.binary(max_size=300))
def test_what_is_compressed_comes_back(data: bytes) -> None:
    packed = lzf.compress(data, len(data) + 100)
    assert packed is not None
    assert lzf.decompress(packed, len(data)) == data


@given(REPETITIVE.map(b"".join), st.integers(0, 200))
def test_what_is_compressed_keeps_to_its_limit(data: bytes, limit: int) -> None:
    packed = lzf.compress(data, limit)
    assert packed is None or len(packed) <= limit


@given(st.binary(max_size=60), st.integers(0, 400))
def test_what_is_no_compressed_data_is_refused_or_has_the_size_it_claims(data: bytes, size: int) -> None:
    with contextlib.suppress(BadFormat):
        assert len(lzf.decompress(data, size)) == size


@pytest.mark.parametrize(
    ("data", "size"),
    [(b"\x05ab", 6), (b"\x20", 3), (b"\xe0\x01", 10), (b"\x00a\x20\x05", 4), (b"\x00a", 2), (b"\x00a", 0)],
)
def test_damaged_data_are_refused(data: bytes, size: int) -> None:
    with pytest.raises(BadFormat):
        lzf.decompress(data, size)


def test_strings_are_compressed_to_the_bytes_that_redis_makes(redis_server: RealServer) -> None:
    rng = random.Random(5)
    pieces = [b"abc", b"order-", b"\0\0", b"999999", b"the quick brown fox ", bytes(range(40)), b"z"]
    with redis_server.connect() as connection:
        for round_ in range(400):
            data = b"".join(rng.choice(pieces) + rng.randbytes(rng.choice([0, 0, 1, 5])) for _ in range(round_ % 97))
            data = data[: rng.choice([len(data), 21, 60])]
            connection.ask(b"SET", b"k", data)
            payload = parse(connection.ask(b"DUMP", b"k"))
            assert isinstance(payload, bytes)
            assert payload[1:-10] == string_bytes(data, compress=True), data
