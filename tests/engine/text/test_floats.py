from __future__ import annotations

import math
import struct
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.engine.text.floats import (
    Extended,
    add_extended,
    double_text,
    extended_text,
    parse_bound,
    parse_double,
    parse_extended,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, b"0"),
        (-0.0, b"-0"),
        (1.0, b"1"),
        (-3.0, b"-3"),
        (1.5, b"1.5"),
        (0.1, b"0.1"),
        (1e17, b"100000000000000000"),
        (1e20, b"1e+20"),
        (1e21, b"1e+21"),
        (123456789012345680000.0, b"123456789012345680000"),
        (0.0001, b"0.0001"),
        (1e-5, b"0.00001"),
        (1e-7, b"1e-7"),
        (1.5e-7, b"1.5e-7"),
        (0.0001234, b"1.234e-4"),
        (5e-324, b"5e-324"),
        (1.7976931348623157e308, b"1.7976931348623157e+308"),
        (math.inf, b"inf"),
        (-math.inf, b"-inf"),
        (math.nan, b"nan"),
        # what a shortest printer would print otherwise
        (78713.411967, b"7.871341196699999e+4"),
        (2.454440643907477e-95, b"2.4544406439074772e-95"),
        (99983508081578.88, b"99983508081578.87"),
        (502623.6698225, b"5.0262366982249997e+5"),
    ],
)
def test_a_double_is_printed_as_redis_prints_it(value: float, text: bytes) -> None:
    assert double_text(value) == text


@given(st.integers(0, 2**64 - 1))
def test_the_text_of_a_double_reads_back_as_the_same_double(bits: int) -> None:
    value = struct.unpack("<d", bits.to_bytes(8, "little"))[0]
    read = float(double_text(value))
    assert read == value or (math.isnan(read) and math.isnan(value))


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (b"1", 1.0),
        (b"+.5", 0.5),
        (b"5.", 5.0),
        (b"1E-5", 1e-5),
        (b"0x10", 16.0),
        (b"0X1.8P1", 3.0),
        (b"-0x.8", -0.5),
        (b"inf", math.inf),
        (b"-Infinity", -math.inf),
        (b"9e308", math.inf),
        (b"-9e308", -math.inf),
        (b"1e-342", 0.0),
        (b"0e99999999999", 0.0),
        (b"4e-324", 5e-324),
        (b"0" * 6000 + b"1", 1.0),
        (b"0x1p-1074", 5e-324),
    ],
)
def test_a_score_is_read(word: bytes, value: float) -> None:
    assert parse_double(word) == value


@pytest.mark.parametrize(
    "word",
    [
        b"",
        b" 1",
        b"1 ",
        b"1_0",
        b"nan",
        b"-nan",
        b"nan(1)",
        b"infinit",
        b"1e",
        b"e5",
        b".",
        b"+",
        b"--1",
        b"1,5",
        b"0x",
        b"0x1p",
        b"1\0",
        b"1e309",
        b"1e-343",
        b"-1e400",
        b"2" * 309,
        b"1e99999999999",
        b"0x1p1024",
        b"0x1p-1075",
        b"0." + b"0" * 6000 + b"1",
        b"9" * 6000,
        b"\xb2",
    ],
)
def test_this_is_no_score(word: bytes) -> None:
    assert parse_double(word) is None


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (b"", 0.0),
        (b"\t1", 1.0),
        (b"1\0x", 1.0),
        (b"1e400", math.inf),
        (b"-1e400", -math.inf),
        (b"1e-400", 0.0),
        (b"0x10", 16.0),
    ],
)
def test_a_bound_is_read_more_generously(word: bytes, value: float) -> None:
    assert parse_bound(word) == value


@pytest.mark.parametrize("word", [b"nan", b"1 ", b"x", b"(1", b" ", b"-"])
def test_this_is_no_bound(word: bytes) -> None:
    assert parse_bound(word) is None


@given(st.decimals(allow_nan=False, allow_infinity=False, places=10, min_value=-(10**8), max_value=10**8))
def test_an_eighty_bit_number_keeps_seventeen_places(value: object) -> None:
    parsed = parse_extended(str(value).encode())
    assert isinstance(parsed, Extended)
    assert abs(Fraction(extended_text(parsed).decode()) - Fraction(str(value))) < Fraction(1, 10**10)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_sums_of_whole_numbers_are_exact(left: int, right: int) -> None:
    total = add_extended(Extended(left, 0), Extended(right, 0))
    assert total is not None
    assert _value(total) == left + right


def _value(number: Extended) -> Fraction:
    return number.bits * Fraction(2) ** number.power


@given(st.fractions(), st.fractions())
def test_a_sum_is_the_nearest_there_is(left: Fraction, right: Fraction) -> None:
    one, two = (parse_extended(_decimal(value)) for value in (left, right))
    assert isinstance(one, Extended)
    assert isinstance(two, Extended)
    total = add_extended(one, two)
    assert total is not None
    assert abs(total.bits) <= 2**64
    assert abs(_value(total) - (_value(one) + _value(two))) <= Fraction(2) ** total.power / 2


def _decimal(value: Fraction) -> bytes:
    """A fraction cut to thirty places."""
    return b"%de-30" % int(value * 10**30)


def test_what_is_not_finite_has_no_sum() -> None:
    assert add_extended(math.inf, Extended(1, 0)) is None
    largest = parse_extended(b"0x1.fffffffffffffffep16383")
    assert isinstance(largest, Extended)
    assert add_extended(largest, largest) is None
    assert parse_extended(b"0x1p16384") is None
    assert parse_extended(b"0x1p-16446") is None
    assert parse_extended(b"0x1p-16445") == Extended(1, -16445)
