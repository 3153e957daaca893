"""The checksum: known values, and the fast way against the plain one."""

from __future__ import annotations

import random

import pytest

from millstream.persistence.rdb import crc64 as module
from millstream.persistence.rdb.crc64 import crc64


def byte_by_byte(data: bytes, crc: int = 0) -> int:
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
    return crc


def test_the_checksum_is_the_one_that_redis_documents() -> None:
    assert crc64(b"123456789") == 0xE9C6D914C4B8D9CA
    assert crc64(b"") == 0


def test_long_data_have_the_same_checksum_as_byte_by_byte() -> None:
    data = random.Random(1).randbytes(260_000)
    assert crc64(data) == byte_by_byte(data)


@pytest.mark.parametrize("step", [size for _, size in module._WORDS])
@pytest.mark.parametrize("extra", [-1, 0, 1, 31])
def test_data_around_a_change_of_method_have_the_same_checksum_in_pieces(step: int, extra: int) -> None:
    data = random.Random(step).randbytes(step + extra)
    crc = 0
    for at in range(0, len(data), 5000):  # too short for any method but the table
        crc = crc64(data[at : at + 5000], crc)
    assert crc64(data) == crc
    assert crc64(data[777:], crc64(data[:777])) == crc
