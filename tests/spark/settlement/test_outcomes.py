"""Functions of rows whose failures are outcomes; without a JVM where one is not needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from millstream import Reject, Release, Retry, RetryPolicy, Stream
from millstream.errors import ConfigError
from millstream.spark.settlement.outcomes import NOTHING, RowCall, mapped, process, split, try_map
from tests.spark.conftest import Place
from tests.spark.group.test_group import GROUP, SCHEMA, audit, rows_of, run, settled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TEXTS = ("stream", "id", "outcome", "reason", "error", "traceback")
OUT = pa.schema([("twice", pa.int32()), *((name, pa.string()) for name in TEXTS), ("delay", pa.float64())])


def twice(row: Any) -> Any:
    match row.n:
        case 1:
            raise ValueError("no good")
        case 2:
            raise Reject("never")
        case 3:
            raise Retry(60)
        case 4:
            raise Release
        case 5:
            return None
        case 6:
            return {"twice": "six"}
        case 7:
            return (14,)
        case 8:
            return {"thrice": 24}
        case 9:
            return 18
    return {"twice": 2 * row.n}


def outcomes(count: int = 10) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pylist([{"stream": "s", "id": f"{n}-0", "n": n} for n in range(count)])
    call = RowCall(twice, ("twice",), ("stream", "id"), OUT, RetryPolicy())
    found: list[dict[str, Any]] = mapped(batch, call).to_pylist()
    return found


def test_what_a_function_raises_is_its_rows_outcome() -> None:
    rows = outcomes()
    expected = ["ack", "retry", "dead", "retry", "release", "ack", "retry", "ack", "retry", "retry"]
    assert [row["outcome"] for row in rows] == expected
    assert [row["twice"] for row in rows] == [0, None, None, None, None, None, None, 14, None, None]
    assert [row["id"] for row in rows] == [f"{n}-0" for n in range(10)]
    assert (rows[1]["error"], rows[1]["reason"]) == ("ValueError: no good", "retries")
    assert "in twice" in rows[1]["traceback"]
    assert (rows[2]["error"], rows[2]["reason"]) == ("never", "rejected")
    assert rows[3]["delay"] == 60
    assert rows[5]["reason"] == NOTHING
    assert "does not fit the schema" in rows[6]["error"]
    assert "thrice, which the schema lacks" in rows[8]["error"]
    assert "must return a dict, a Row or a tuple of 1, not int" in rows[9]["error"]


def test_failures_are_settled_and_good_rows_are_written(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    place.fill(100)

    def check(row: Any) -> Any:
        if row.n % 10 == 1:
            raise ValueError(f"{row.n} is no good")
        if row.n % 10 == 2:
            raise Reject("never")
        return {"twice": 2 * row.n}

    def write(good: DataFrame, batch_id: int) -> None:
        good.write.mode("overwrite").parquet(str(tmp_path / "out" / f"batch={batch_id}"))

    df = rows_of(spark, place, SCHEMA, maxOffsetsPerTrigger=40)
    run(process(df, check, "twice int", write, url=place.url, group=GROUP, maxRetries=0), tmp_path / "c")
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.twice for row in found) == [2 * n for n in range(100) if n % 10 not in (1, 2)]
    now = audit(place)
    assert (now.done, now.dead, now.pending, now.balanced) == (80, 20, 0, True)
    with Stream[Any](place.stream, place.url, group=GROUP) as stream:
        reasons = sorted((letter.reason, letter.error) for letter in stream.dead.list())
    assert reasons[:10] == [("rejected", "never")] * 10
    assert reasons[10][0] == "retries"
    assert reasons[10][1].startswith("ValueError: ")


def test_a_streaming_query_settles_what_a_function_says(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    place.fill(10)
    decided = try_map(rows_of(spark, place, SCHEMA), lambda row: None if row.n else {"twice": 0}, "twice int")
    _, settlements = split(decided)
    run(settled(settlements, place), tmp_path / "c")
    assert audit(place).done == 10


def test_columns_that_are_ours_cannot_be_the_functions(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("s", "1-0")], "stream string, id string")
    with pytest.raises(ConfigError, match="columns id, outcome of the schema are try_map's own"):
        try_map(frame, lambda row: None, "id string, outcome string")
    with pytest.raises(ConfigError, match="needs the column 'stream'"):
        try_map(frame.drop("stream"), lambda row: None, "n int")
