"""Rows out of Arrow, and what the first task of a worker does."""

from __future__ import annotations

import datetime
import gc

import pyarrow as pa
import pytest

from millstream.spark.runtime.tasks import begin, rows_of

COLUMNS = {
    "text": pa.array(["a", None, "ü" * 40], pa.string()),
    "bytes": pa.array([b"\xff\x00", None, b""], pa.binary()),
    "whole": pa.array([1, -(2**63), 2**63 - 1], pa.int64()),
    "whole or null": pa.array([1, None, 2**53 + 1], pa.int64()),
    "small": pa.array([1, 2, 3], pa.int8()),
    "float": pa.array([1.5, float("inf"), -0.0], pa.float64()),
    "single": pa.array([1.5, 0.1, None], pa.float32()),
    "truth": pa.array([True, False, True], pa.bool_()),
    "truth or null": pa.array([True, None, False], pa.bool_()),
    "time": pa.array([datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)] * 3, pa.timestamp("us", "UTC")),
    "list": pa.array([["a"], None, []], pa.list_(pa.string())),
    "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "struct": pa.array([{"x": 1}, None, {"x": None}], pa.struct([("x", pa.int64())])),
}


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("name", COLUMNS)
def test_values_and_their_types_are_those_of_arrow(name: str, start: int) -> None:
    batch = pa.RecordBatch.from_arrays([COLUMNS[name], COLUMNS["text"]], [name, "beside"]).slice(start)
    wanted = batch.to_pylist(maps_as_pydicts="lossy")
    found = rows_of(batch)
    assert found == wanted
    assert [type(row[name]) for row in found] == [type(row[name]) for row in wanted]


def test_no_rows() -> None:
    assert rows_of(pa.RecordBatch.from_arrays([pa.array([], pa.string())], ["a"])) == []


def test_outside_of_a_task_nothing_is_frozen() -> None:
    before = gc.get_freeze_count()
    begin("a test")
    assert gc.get_freeze_count() == before
