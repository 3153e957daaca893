"""Typed columns, without Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from millstream.errors import ConfigError, MalformedPayload
from millstream.spark.wire.resp_arrow import ListedEntries
from millstream.spark.wire.rows import META, RowBuilder, columns_of, convert

MOMENT = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.string(), b"h\xc3\xa9", "hé"),
        (pa.binary(), b"\xff", b"\xff"),
        (pa.int8(), b"-128", -128),
        (pa.int64(), b"9223372036854775807", 2**63 - 1),
        (pa.float32(), b"0.5", 0.5),
        (pa.float64(), b"1e300", 1e300),
        (pa.bool_(), b"TRUE", True),
        (pa.bool_(), b"0", False),
        (pa.date32(), b"2026-01-31", date(2026, 1, 31)),
        (MOMENT, b"2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (MOMENT, b"2026-01-31 12:00:00.5", datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)),
        (MOMENT, b"2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        (pa.timestamp("us"), b"2026-01-31T12:00:00", datetime(2026, 1, 31, 12)),
        (pa.decimal128(10, 2), b"12.5", Decimal("12.50")),
        (pa.list_(pa.int32()), b"[1, 2]", [1, 2]),
        (pa.struct([("a", pa.string()), ("b", pa.float64())]), b'{"a": 1, "c": 2}', {"a": "1", "b": None}),
        (pa.map_(pa.string(), pa.int64()), b'{"x": 1}', [("x", 1)]),
        (pa.struct([("t", MOMENT)]), b'{"t": "2026-01-31T12:00:00Z"}', {"t": datetime(2026, 1, 31, 12, tzinfo=UTC)}),
    ],
)
def test_a_value_is_read_as_its_type(kind: Any, text: bytes, value: object) -> None:
    found, wrong = convert(pa.array([text, None], pa.binary()), kind)
    assert (found.type, found.to_pylist(), wrong) == (kind, [value, None], None)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.string(), b"\xff"),
        (pa.int8(), b"128"),
        (pa.int64(), b""),
        (pa.float64(), b"one"),
        (pa.bool_(), b"maybe"),
        (pa.date32(), b"31.1.2026"),
        (MOMENT, b"noon"),
        (pa.decimal128(4, 2), b"1000"),
        (pa.decimal128(10, 2), b"1.234"),
        (pa.list_(pa.int32()), b"{}"),
        (pa.list_(pa.int32()), b"[1, "),
        (pa.struct([("a", pa.int8())]), b'{"a": 1000}'),
        (pa.struct([("a", pa.int8())]), b'{"a": true}'),
    ],
)
def test_a_malformed_value_is_null_and_its_neighbours_are_not(kind: Any, text: bytes) -> None:
    good = {pa.string(): b"a", pa.bool_(): b"1", pa.date32(): b"2026-01-31", MOMENT: b"2026-01-31T12:00:00Z"}.get(kind)
    good = good or (b"[1]" if pa.types.is_list(kind) else b'{"a": 1}' if pa.types.is_struct(kind) else b"1")
    found, wrong = convert(pa.array([good, text, good, good, text], pa.binary()), kind)
    assert [value is None for value in found.to_pylist()] == [False, True, False, False, True]
    assert wrong is not None
    assert wrong.tolist() == [False, True, False, False, True]


@pytest.mark.parametrize(
    ("unit", "text"), [("s", b"1700000000"), ("ms", b"1700000000000"), ("us", b"1700000000000000")]
)
def test_a_time_can_be_a_count(unit: str, text: bytes) -> None:
    found, _ = convert(pa.array([text], pa.binary()), MOMENT, unit)
    assert found.to_pylist() == [datetime.fromtimestamp(1_700_000_000, UTC)]


def rows(schema: Any, reply: list[Any], mode: str = "PERMISSIVE") -> list[dict[str, Any]]:
    builder = RowBuilder(schema, columns_of(schema, {}), mode)
    return list(builder.build("s", ListedEntries(reply)).to_pylist())


def test_ids_beyond_what_spark_can_hold_have_no_time() -> None:
    schema = pa.schema([(name, META[name]) for name in ("id", "timestamp", "seq")])
    last = b"18446744073709551615-18446744073709551615"
    assert rows(schema, [[last, [b"a", b"1"]]]) == [{"id": last.decode(), "timestamp": None, "seq": None}]


def test_a_column_that_may_not_be_null_says_which_entry_lacks_it() -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    with pytest.raises(MalformedPayload, match=r"n: expected int64, but entry 2-0 of stream 's' has none"):
        rows(schema, [[b"1-0", [b"n", b"1"]], [b"2-0", [b"m", b"1"]]])


def test_malformed_rows_are_dropped_on_demand() -> None:
    schema = pa.schema([("n", pa.int64())])
    reply = [[b"1-0", [b"n", b"1"]], [b"2-0", [b"n", b"x"]], [b"3-0", [b"m", b"x"]]]
    assert rows(schema, reply, "DROPMALFORMED") == [{"n": 1}, {"n": None}]


def test_a_column_about_the_entry_must_have_its_type() -> None:
    with pytest.raises(ConfigError, match="column 'id' must be of type string: it is about the entry"):
        columns_of(pa.schema([("id", pa.int64())]), {})


def test_a_name_that_is_no_text_is_shown_with_its_bytes() -> None:
    schema = pa.schema([("fields", META["fields"])])
    assert rows(schema, [[b"1-0", [b"\xff", b"1"]]]) == [{"fields": [("\\xff", b"1")]}]
