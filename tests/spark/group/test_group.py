"""Queries in group mode in real Spark: batches that are settled row by row, beside ordinary workers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream import Reject, Stream
from millstream.client import connect
from millstream.delivery.keys import Keys
from millstream.delivery.steps import Steps
from millstream.worker.audit import Audit, audit_of
from tests.spark.conftest import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


WAIT_S = 120
GROUP = "billing"


def rows_of(spark: SparkSession, place: Place, schema: str | None = None, **options: object) -> DataFrame:
    """The stream's rows in group mode."""
    reader = spark.readStream.format("millstream").option("url", place.url).option("stream", place.stream)
    for name, value in {"group": GROUP, **options}.items():
        reader = reader.option(name, str(value))
    return (reader.schema(schema) if schema else reader).load()


def run(writer: Any, checkpoint: Path) -> Any:
    """Run a query over all that is available."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(WAIT_S)
    return query


def settled(df: DataFrame, place: Place, **options: object) -> Any:
    from millstream.spark import settle

    return settle(df, url=place.url, group=GROUP, **options)


def audit(place: Place) -> Audit:
    with connect(place.url) as backend:
        steps = Steps(Keys(place.stream.encode()), GROUP.encode(), backend.capabilities)
        return audit_of(backend.run(steps.audit()), GROUP)


def decided(df: DataFrame, cases: str) -> DataFrame:
    """Rows with an outcome by their number."""
    from pyspark.sql.functions import expr

    return df.withColumn("outcome", expr(cases)).withColumn("reason", expr("if(outcome = 'dead', 'bad price', null)"))


CASES = "case when n % 100 = 7 then 'dead' when n % 100 = 8 then 'retry' else 'ack' end"
SCHEMA = "stream string, id string, n int, delivery_count int, consumer string, idle_ms bigint"


def test_rows_are_settled_one_by_one(spark: SparkSession, each_place: Place, tmp_path: Path) -> None:
    place = each_place
    place.fill(1000)
    df = decided(rows_of(spark, place, SCHEMA, maxOffsetsPerTrigger=400), CASES)
    query = run(settled(df, place, backoff="60s"), tmp_path / "c")
    batches = [batch["numInputRows"] for batch in query.recentProgress if batch["numInputRows"]]
    assert batches == [400, 400, 200]
    now = audit(place)
    assert (now.done, now.dead, now.pending, now.waiting, now.undelivered) == (980, 10, 10, 10, 0)
    assert now.balanced
    consumers = place.client.xinfo_consumers(place.stream, GROUP)
    assert not [each for each in consumers if each["pending"] and each["name"].startswith(b"spark")]


def test_dead_letters_are_a_workers_and_can_be_redriven(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    """A worker and a query reject the same entry, each in its own group: the letters differ in nothing that matters."""
    place.client.xgroup_create(place.stream, GROUP, id="0", mkstream=True)
    place.client.xgroup_create(place.stream, "workers", id="0")
    (entry_id,) = place.fill(1)

    workers = Stream[dict[str, str]](place.stream, place.url, group="workers", fields=True)

    @workers.handler
    def refuse(order: dict[str, str]) -> None:
        raise Reject("bad price")

    with working(workers):
        deadline = time.monotonic() + 60
        while not workers.dead.count() and time.monotonic() < deadline:
            time.sleep(0.05)
    run(settled(decided(rows_of(spark, place, SCHEMA), "'dead'"), place), tmp_path / "c")
    with Stream(place.stream, place.url, group=GROUP) as stream:
        theirs, ours = list(stream.dead.list())
        for name in ("fields", "original_id", "reason", "error", "attempts", "retry_count", "redriven"):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert (ours.original_id, ours.group, ours.error) == (entry_id, GROUP, "bad price")
        assert ours.consumer.startswith("spark-")
        assert stream.dead.redrive(group=None, reason="rejected").done == 2
    query = run(settled(decided(rows_of(spark, place, SCHEMA), "'ack'"), place), tmp_path / "c")
    assert sum(batch["numInputRows"] for batch in query.recentProgress) == 1  # the worker's is not for this group
    now = audit(place)
    assert (now.dead, now.pending, now.undelivered) == (0, 0, 0)


@contextmanager
def working(stream: Stream[Any]) -> Iterator[None]:
    """A worker in a thread."""
    thread = threading.Thread(target=lambda: stream.run(signals=False), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stream.stop()
        thread.join(60)
        stream.close()


def test_a_batch_that_is_run_again_is_the_same(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    """The commit of the last batch is taken away, so that Spark runs it again."""
    place.fill(100)
    seen: list[list[tuple[str, int, str]]] = []

    def note(batch: DataFrame, _: int) -> None:
        rows = batch.collect()
        seen.append(sorted((row.id, row.delivery_count, row.consumer) for row in rows))
        settled(decided(batch, "'ack'"), place).save()

    def once() -> None:
        df = rows_of(spark, place, SCHEMA, maxOffsetsPerTrigger=40, retain="all")
        run(df.writeStream.foreachBatch(note), tmp_path / "c")

    once()
    assert [len(rows) for rows in seen] == [40, 40, 20]
    for file in (tmp_path / "c" / "commits").glob("*2*"):
        file.unlink()
    once()
    assert seen[3] == seen[2]
    now = audit(place)
    assert (now.done, now.pending, now.balanced) == (100, 0, True)


def test_a_query_that_fails_runs_its_batch_again_with_the_same_rows(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    ids = place.fill(30)
    seen: list[list[str]] = []

    def note(batch: DataFrame, _: int) -> None:
        seen.append([row.id for row in batch.collect()])
        if len(seen) == 1:
            settled(decided(batch.where("n < 10"), "'ack'"), place).save()
            raise RuntimeError("died half way")
        settled(decided(batch, "'ack'"), place).save()

    with pytest.raises(Exception, match="died half way"):
        run(rows_of(spark, place, SCHEMA).writeStream.foreachBatch(note), tmp_path / "c")
    assert audit(place).pending == 20
    run(rows_of(spark, place, SCHEMA).writeStream.foreachBatch(note), tmp_path / "c")
    assert seen == [ids, ids]
    now = audit(place)
    assert (now.done, now.pending, now.balanced) == (30, 0, True)


def test_rows_without_an_outcome_are_tried_again(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    """Rows that a filter drops have no settlement at all; one with a null outcome has none that says what."""
    ids = place.fill(10)
    options = {"backoff": "0s", "maxRetries": 1}
    counts = []
    for turn in range(4):
        df = decided(rows_of(spark, place, SCHEMA, **options), "if(n = 4, null, 'ack')").where("n != 3")
        query = run(settled(df, place, backoff="0s", maxRetries=1), tmp_path / "c")
        counts.append(sum(batch["numInputRows"] for batch in query.recentProgress))
        if turn < 2:
            time.sleep(0.6)
    assert counts[:2] == [10, 2]
    now = audit(place)
    assert (now.done, now.dead, now.pending, now.balanced) == (8, 2, 0, True)
    with Stream(place.stream, place.url, group=GROUP) as stream:
        letters = {letter.original_id: letter for letter in stream.dead.list()}
    assert set(letters) == {ids[3], ids[4]}
    assert {(letter.reason, letter.attempts) for letter in letters.values()} == {("retries", 2)}


@pytest.mark.parametrize("count", [200, pytest.param(600, marks=pytest.mark.long)])
def test_workers_and_a_query_share_a_group(spark: SparkSession, place: Place, tmp_path: Path, count: int) -> None:
    """Each entry is handled by one of them, once; what either rejects becomes the same dead letter."""
    place.fill(count)
    has_begun = threading.Event()
    by_worker: list[int] = []
    by_query: list[int] = []
    worker = Stream[dict[str, str]](place.stream, place.url, group=GROUP, fields=True)

    @worker.handler(concurrency=2)
    def handle(order: dict[str, str]) -> None:
        if len(by_worker) >= 20:
            has_begun.wait(WAIT_S)  # however slowly the query starts, something is left for it
        time.sleep(0.05)
        by_worker.append(int(order["n"]))
        if int(order["n"]) % 5 == 3:
            raise Reject("bad price")

    def note(batch: DataFrame, _: int) -> None:
        has_begun.set()
        rows = batch.persist()
        by_query.extend(row.n for row in rows.collect())
        settled(decided(rows, "if(n % 5 = 3, 'dead', 'ack')"), place).save()

    with working(worker):
        run(rows_of(spark, place, SCHEMA, maxOffsetsPerTrigger=50).writeStream.foreachBatch(note), tmp_path / "c")
        deadline = time.monotonic() + 60
        while audit(place).done < count * 4 // 5 and time.monotonic() < deadline:
            time.sleep(0.1)
    assert by_worker
    assert by_query
    assert sorted(by_worker + by_query) == list(range(count))
    now = audit(place)
    assert (now.done, now.dead, now.pending, now.balanced) == (count * 4 // 5, count // 5, 0, True)
    with Stream(place.stream, place.url, group=GROUP) as stream:
        letters = list(stream.dead.list())
    assert sorted(int(letter.by_name[b"n"]) for letter in letters) == list(range(3, count, 5))
    told = {(each.reason, each.error, each.attempts, each.retry_count, each.group, each.redriven) for each in letters}
    assert told == {("rejected", "bad price", 1, 0, GROUP, 0)}
    of_query = {int(letter.by_name[b"n"]) for letter in letters if letter.consumer.startswith("spark-")}
    assert of_query == {n for n in by_query if n % 5 == 3}


def test_a_bad_outcome_fails_the_query_before_anything_is_settled(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    place.fill(10)
    df = decided(rows_of(spark, place, SCHEMA), "if(n = 9, 'okay', 'ack')")
    with pytest.raises(Exception, match="'okay' is not an outcome: use ack, retry, release, dead"):
        run(settled(df, place), tmp_path / "c")
    assert audit(place).done == 0
    run(settled(decided(rows_of(spark, place, SCHEMA), "'ack'"), place), tmp_path / "c")  # put right, it goes on
    assert audit(place).done == 10


def test_a_lease_that_was_lost_is_no_error(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    ids = place.fill(10)

    def steal(batch: DataFrame, _: int) -> None:
        place.client.xclaim(place.stream, GROUP, "thief", 0, [ids[5]])
        settled(decided(batch, "'ack'"), place).save()

    run(rows_of(spark, place, SCHEMA).writeStream.foreachBatch(steal), tmp_path / "c")
    now = audit(place)
    assert (now.done, now.pending, now.balanced) == (9, 1, True)
    assert place.client.xpending_range(place.stream, GROUP, "-", "+", 10)[0]["consumer"] == b"thief"


def test_progress_shows_how_far_behind_a_group_is(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    place.fill(1_000)
    place.client.xadd(place.stream, {"n": "many"})
    df = rows_of(spark, place, "stream string, id string, n int, _corrupt string", maxOffsetsPerTrigger=400)
    corrupt: list[str] = []

    def note(batch: DataFrame, _: int) -> None:
        corrupt.extend(row._corrupt for row in batch.where("_corrupt is not null").collect())
        settled(batch.selectExpr("stream", "id", "'ack' outcome"), place).save()

    query = run(df.writeStream.foreachBatch(note), tmp_path / "c")
    batches = [batch["sources"][0] for batch in query.recentProgress if batch["numInputRows"]]
    ends = [
        json.loads(each["endOffset"]) if isinstance(each["endOffset"], str) else each["endOffset"] for each in batches
    ]
    assert [(end["rows"], end["lag"]) for end in ends] == [(400, 601), (400, 201), (201, 0)]
    assert ends[0]["lagSeconds"] > 1000  # the last entry has the time of now, the others that of years ago
    last = query.lastProgress["sources"][0]["latestOffset"]
    last = json.loads(last) if isinstance(last, str) else last
    assert (last["lag"], last["lagSeconds"]) == (0, 0.0)
    assert corrupt == ['{"n": "many"}']


def test_a_batch_is_acknowledged_as_a_whole(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    ids = place.fill(100)
    df = rows_of(spark, place, "id string", settle="batch", maxOffsetsPerTrigger=30)
    writer = df.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    run(writer, tmp_path / "c")
    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "out")).collect()) == ids
    now = audit(place)
    assert (now.done, now.pending, now.balanced) == (100, 0, True)
    assert place.client.xlen(place.stream) == 0


def test_the_settle_sink_is_a_write_with_a_group(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    """Without registration `format("millstream")` is found, and a group says that rows are settlements."""
    place.fill(5)
    df = rows_of(spark, place).selectExpr("stream", "id", "'ack' outcome")
    writer = df.writeStream.format("millstream").option("url", place.url).option("group", GROUP)
    run(writer, tmp_path / "c")
    assert audit(place).done == 5


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (
            lambda spark, place: (
                spark.read.format("millstream").option("stream", "s").option("group", "g").load().count()
            ),
            "a group can be read by a streaming query only",
        ),
        (
            lambda spark, place: rows_of(spark, place, startingOffsets="earliest").writeStream.format("noop").start(),
            "'startingOffsets' is not for group mode",
        ),
        (
            lambda spark, place: settled(spark.createDataFrame([("1-0",)], "id string"), place).save(),
            "settlements need a column 'outcome'",
        ),
        (
            lambda spark, place: settled(
                spark.createDataFrame([("1", "ack")], "id string, outcome string"), place, stream=place.stream
            ).save(),
            "'1' is not an entry id",
        ),
    ],
)
def test_what_cannot_be_is_said(spark: SparkSession, place: Place, act: Callable[..., Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        act(spark, place)


def test_a_batch_whose_offset_was_never_written_down_is_the_next_one(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    """Taken by the batch's consumer, and then the driver died: that is made up here."""
    place.fill(20)
    run(settled(decided(rows_of(spark, place, SCHEMA, maxOffsetsPerTrigger=10), "'ack'"), place), tmp_path / "c")
    last = max((tmp_path / "c" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    offset = json.loads(last.read_text().splitlines()[-1])
    lost = place.fill(4, first_ms=1_700_000_900_000)
    place.client.xreadgroup(GROUP, f"spark-{offset['token']}-{offset['batch'] + 1}", {place.stream: ">"})
    later = place.fill(3, first_ms=1_700_000_999_000)
    seen: list[list[str]] = []

    def note(batch: DataFrame, _: int) -> None:
        seen.append([row.id for row in batch.collect()])
        settled(decided(batch, "'ack'"), place).save()

    run(rows_of(spark, place, SCHEMA).writeStream.foreachBatch(note), tmp_path / "c")
    assert seen == [lost, later]
    now = audit(place)
    assert (now.done, now.pending, now.balanced) == (27, 0, True)
