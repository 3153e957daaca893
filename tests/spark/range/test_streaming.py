"""Streaming queries in range mode, in real Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

WAIT_S = 120


def drain(spark: SparkSession, place: Place, tmp_path: Path, **options: object) -> Any:
    """Run a query over all that is available, into Parquet; the query, ended."""
    reader = spark.readStream.format("millstream").option("url", place.url).schema("id string, n int")
    if "streamPattern" not in options:
        reader = reader.option("stream", place.stream)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    writer = reader.load().writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
    assert query.awaitTermination(WAIT_S)
    return query


def found(spark: SparkSession, tmp_path: Path) -> list[str]:
    return sorted(row.id for row in spark.read.parquet(str(tmp_path / "out")).collect())


@contextmanager
def running(spark: SparkSession, place: Place, tmp_path: Path, **options: object) -> Iterator[StreamingQuery]:
    """A query that goes on, into memory."""
    reader = spark.readStream.format("millstream").option("url", place.url).option("stream", place.stream)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    name = place.stream.replace("-", "_")
    writer = reader.load().writeStream.format("memory").queryName(name)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        yield query
    finally:
        query.stop()


def test_a_query_reads_what_is_there_then_what_is_new(spark: SparkSession, each_place: Place, tmp_path: Path) -> None:
    first = each_place.fill(5)
    drain(spark, each_place, tmp_path)
    assert found(spark, tmp_path) == first
    later = each_place.fill(3, first_ms=1_700_000_001_000)
    drain(spark, each_place, tmp_path)
    assert found(spark, tmp_path) == first + later


def test_a_limited_trigger_has_exactly_so_many_rows(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    ids = place.fill(1_000)
    query = drain(spark, place, tmp_path, maxOffsetsPerTrigger=300)
    assert [batch["numInputRows"] for batch in query.recentProgress if batch["numInputRows"]] == [300, 300, 300, 100]
    assert found(spark, tmp_path) == ids


def test_a_trigger_is_limited_by_bytes(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    ids = place.fill(400)
    query = drain(spark, place, tmp_path, maxBytesPerTrigger=8_000)
    rows = [batch["numInputRows"] for batch in query.recentProgress if batch["numInputRows"]]
    assert sum(rows) == 400
    assert 60 < max(rows) < 140  # an entry has some 75 bytes in a reply
    assert found(spark, tmp_path) == ids


def test_progress_shows_how_far_behind_a_query_is(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    place.fill(1_000)
    query = drain(spark, place, tmp_path, maxOffsetsPerTrigger=400)
    first, *_, last = [batch["sources"][0] for batch in query.recentProgress if batch["numInputRows"]]
    end = json.loads(first["endOffset"]) if isinstance(first["endOffset"], str) else first["endOffset"]
    assert (end["rows"], end["lag"], end["lagSeconds"], end["lost"]) == (400, 600, 0.6, 0)
    latest = json.loads(last["latestOffset"]) if isinstance(last["latestOffset"], str) else last["latestOffset"]
    assert (latest["lag"], latest["lagSeconds"]) == (0, 0.0)


def test_a_batch_is_split_as_its_offset_says(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    ids = place.fill(1_000)
    query = drain(spark, place, tmp_path, maxOffsetsPerTrigger=900, minPartitions=3)
    end = query.recentProgress[0]["sources"][0]["endOffset"]
    end = json.loads(end) if isinstance(end, str) else end
    assert end["streams"][place.stream]["cuts"] == [[ids[299], 300], [ids[599], 300], [ids[899], 300]]
    assert found(spark, tmp_path) == ids


def test_trimmed_entries_end_a_query_with_their_number(spark: SparkSession, each_place: Place, tmp_path: Path) -> None:
    each_place.fill(10)
    drain(spark, each_place, tmp_path)
    each_place.fill(100, first_ms=1_700_000_001_000)
    each_place.client.xtrim(each_place.stream, maxlen=60, approximate=False)
    with pytest.raises(Exception, match=f"40 entries of stream '{each_place.stream}' were trimmed before"):
        drain(spark, each_place, tmp_path)


def test_trimmed_entries_are_counted_if_they_may_be_lost(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    first = place.fill(10)
    drain(spark, place, tmp_path)
    later = place.fill(100, first_ms=1_700_000_001_000)
    place.client.xtrim(place.stream, maxlen=60, approximate=False)
    query = drain(spark, place, tmp_path, failOnDataLoss=False)
    end = query.recentProgress[0]["sources"][0]["endOffset"]
    assert (json.loads(end) if isinstance(end, str) else end)["lost"] == 40
    assert found(spark, tmp_path) == first + later[40:]


def test_a_pattern_finds_a_stream_that_is_new(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    first = place.fill(3, stream=f"{place.stream}:a")
    drain(spark, place, tmp_path, streamPattern=f"{place.stream}:*")
    second = place.fill(3, stream=f"{place.stream}:b", first_ms=1_600_000_000_000)
    drain(spark, place, tmp_path, streamPattern=f"{place.stream}:*")
    assert found(spark, tmp_path) == sorted(first + second)


def test_a_query_that_starts_at_the_end_reads_what_is_new(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    place.fill(10)
    with running(spark, place, tmp_path, startingOffsets="latest") as query:
        query.processAllAvailable()
        new = place.fill(3, first_ms=1_700_000_001_000)
        query.processAllAvailable()
        rows = spark.table(place.stream.replace("-", "_")).collect()
    assert sorted(row.id for row in rows) == new


def test_a_missing_stream_ends_a_query_unless_it_waits(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=f"stream '{place.stream}' does not exist"):
        drain(spark, place, tmp_path / "one")
    with running(spark, place, tmp_path, missingStream="wait") as query:
        query.processAllAvailable()
        ids = place.fill(2)
        query.processAllAvailable()
        assert [row.id for row in spark.table(place.stream.replace("-", "_")).collect()] == ids


def test_a_micro_batch_is_written_to_a_stream_once(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    """The commit of the last batch is taken away, so that Spark runs it again."""
    place.fill(100)
    target, checkpoint = f"{place.stream}-out", tmp_path / "checkpoint"

    def run() -> None:
        source = spark.readStream.format("millstream").option("url", place.url).option("stream", place.stream)
        frame = source.option("maxOffsetsPerTrigger", 40).schema("n string").load()
        writer = frame.writeStream.format("millstream").option("url", place.url).option("stream", target)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S)

    run()
    for file in (checkpoint / "commits").glob("*2*"):
        file.unlink()
    run()
    assert [int(fields[b"n"]) for _, fields in place.client.xrange(target)] == list(range(100))


def test_ending_offsets_are_refused_in_a_streaming_query(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    place.fill(1)
    with pytest.raises(Exception, match="are for batch reads: a streaming query has no end"):
        drain(spark, place, tmp_path, endingOffsets="5-0")


def test_a_plan_made_ahead_does_not_hide_what_came_since(place: Place) -> None:
    """Between two timed triggers it grows old: the next batch has all that it may have."""
    from millstream.spark.options import parse_read
    from millstream.spark.range.planner import Limits, RangePlanner

    place.fill(20)
    planner = RangePlanner(parse_read({"url": place.url, "stream": place.stream}))
    try:
        first = planner.latest(planner.initial(), Limits(rows=15))
        assert planner._ahead is not None
        planner._ahead.result()  # it has seen five rows
        place.fill(7, first_ms=1_700_000_001_000)
        second = planner.latest(first, Limits(rows=15))
        assert (first["rows"], second["rows"], second["lag"]) == (15, 12, 0)
        place.fill(40, first_ms=1_700_000_002_000)
        third = planner.latest(second, Limits(rows=15))
        ahead = planner._ahead
        assert ahead is not None
        assert planner.latest(third, Limits(rows=15)) is ahead.result()  # a full one is used as it is
    finally:
        planner.close()


def commands(place: Place) -> int:
    """Count the commands that planners have sent; what scripts call is counted apart by the server."""
    stats = place.client.info("commandstats")
    sent = ("cmdstat_xreadgroup", "cmdstat_evalsha", "cmdstat_xinfo|stream", "cmdstat_xrange", "cmdstat_xinfo|groups")
    return sum(stats[name]["calls"] for name in sent if name in stats)


def idle_rate(place: Place, ask: Callable[[], object]) -> float:
    """Ask as often as Spark does, and return the commands a second once nothing has been new for a while."""
    for _ in range(8):
        ask()
    before, began = commands(place), time.monotonic()
    while time.monotonic() - began < 3:
        ask()
        time.sleep(0.01)
    return (commands(place) - before) / (time.monotonic() - began)


def test_an_idle_query_by_range_sends_few_commands(place: Place) -> None:
    from millstream.spark.options import parse_read
    from millstream.spark.range.planner import Limits, RangePlanner

    place.fill(2)
    planner = RangePlanner(parse_read({"url": place.url, "stream": place.stream}))
    try:
        end = planner.latest(planner.initial(), Limits())
        assert idle_rate(place, lambda: planner.latest(end, Limits())) <= 4
        place.fill(1, first_ms=1_700_000_001_000)
        assert planner.latest(end, Limits())["rows"] == 1
    finally:
        planner.close()


def test_an_idle_query_of_a_group_sends_few_commands(place: Place) -> None:
    from millstream.spark.group.options import parse_group_read
    from millstream.spark.group.planner import GroupPlanner

    place.fill(2)
    options = {"url": place.url, "stream": place.stream, "group": "g", "groupStart": "$"}
    planner = GroupPlanner(parse_group_read(options))
    try:
        start = planner.initial()
        assert idle_rate(place, lambda: planner.latest(start)) <= 6
        place.fill(1, first_ms=1_700_000_001_000)
        assert planner.latest(start)["rows"] == 1
    finally:
        planner.close()


@pytest.mark.parametrize("rows", [None, 20])
def test_an_entry_deleted_from_a_planned_batch_is_left_out_and_one_that_was_trimmed_is_lost(
    place: Place, rows: int | None
) -> None:
    from millstream.spark.options import parse_read
    from millstream.spark.range.planner import Limits, RangePlanner
    from millstream.spark.range.reader import read_span
    from millstream.spark.runtime.errors import EntriesLost

    ids = place.fill(20)
    options = parse_read({"url": place.url, "stream": place.stream})
    planner = RangePlanner(options)
    try:
        start = planner.initial()
        (span,) = planner.spans(start, planner.latest(start, Limits(rows)))
        assert span.count == 20
        place.client.xdel(place.stream, ids[7], ids[-1])
        assert sum(each.count for each in read_span(options.connection, span, 5, fail_on_loss=True)) == 18
        place.client.xtrim(place.stream, minid=ids[4], approximate=False)
        with pytest.raises(EntriesLost, match="6 entries"):  # four, and the two that were deleted
            list(read_span(options.connection, span, 5, fail_on_loss=True))
    finally:
        planner.close()
