"""Writes in real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import redis

from millstream.errors import ConfigError
from millstream.spark.options import parse_write
from millstream.spark.sink.fence import FenceWriter
from millstream.spark.sink.packing import layout_of, pack
from millstream.spark.sink.writer import Identity, IdmpWriter
from tests.spark.conftest import Place, read
from tests.support.servers import redis_binary, require, running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write(frame: DataFrame, place: Place, **options: object) -> None:
    writer = frame.write.format("millstream").mode("append").option("url", place.url)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save()


@pytest.mark.parametrize("way", ["none", "fence"])
def test_rows_become_entries(spark: SparkSession, each_place: Place, way: str) -> None:
    frame = spark.sql("select 7 as n, 'hello' as v, true as ok, cast(1.5 as double) as x, cast(null as string) as gone")
    write(frame, each_place, stream=each_place.stream, idempotence=way)
    [(_, fields)] = each_place.client.xrange(each_place.stream)
    assert fields == {b"n": b"7", b"v": b"hello", b"ok": b"true", b"x": b"1.5"}


def test_types_come_back_as_they_were_written(spark: SparkSession, place: Place) -> None:
    frame = spark.sql(
        "select cast(5 as bigint) as a, date '2026-01-31' as b, timestamp '2026-01-31 12:00:00.5' as c, "
        "cast(1.25 as decimal(10,2)) as d, named_struct('x', 1, 'y', array('p')) as e, map('k', 2) as f, X'00ff' as g"
    )
    write(frame, place, stream=place.stream)
    assert read(spark, place, _ddl(frame)).collect() == frame.collect()


def _ddl(frame: DataFrame) -> Any:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema.fields)


def test_rows_are_routed_by_their_stream(spark: SparkSession, place: Place) -> None:
    names = [f"{place.stream}-{n}" for n in range(3)]
    frame = spark.range(30).selectExpr(f"concat('{place.stream}-', id % 3) as stream", "cast(id as string) as n")
    write(frame, place)
    assert [place.client.xlen(name) for name in names] == [10, 10, 10]


def test_a_map_of_fields_is_written_as_it_is(spark: SparkSession, place: Place) -> None:
    place.fill(5)
    copy = f"{place.stream}-copy"
    write(read(spark, place).select("id", "fields").coalesce(1).orderBy("id"), place, stream=copy)
    assert place.client.xrange(copy) == place.client.xrange(place.stream)


def test_a_stream_is_trimmed_while_it_is_written(spark: SparkSession, place: Place) -> None:
    frame = spark.range(100).selectExpr("id as n").coalesce(1)
    write(frame, place, stream=place.stream, maxlen=10, trim="exact")
    assert [int(fields[b"n"]) for _, fields in place.client.xrange(place.stream)] == list(range(90, 100))
    frame = frame.selectExpr("n", "concat(n + 1, '-0') as id")
    write(frame, place, stream=f"{place.stream}-by-id", minid="61-0", trim="exact")
    assert [entry_id for entry_id, _ in place.client.xrange(f"{place.stream}-by-id")] == [
        f"{n}-0".encode() for n in range(61, 101)
    ]


def test_many_rows_are_written_in_order(spark: SparkSession, each_place: Place) -> None:
    frame = spark.range(0, 20_000, 1, 1).selectExpr("cast(id as string) as n")
    for way in ("none", "fence"):
        write(frame, each_place, stream=f"{each_place.stream}-{way}", idempotence=way)
        found = each_place.client.xrange(f"{each_place.stream}-{way}")
        assert [int(fields[b"n"]) for _, fields in found] == list(range(20_000))


def test_a_fence_is_gone_after_a_batch_write(spark: SparkSession, place: Place) -> None:
    write(spark.range(10).selectExpr("id as n"), place, stream=place.stream)
    assert place.client.keys(f"*{place.stream}*") == [place.stream.encode()]


def test_a_task_that_fails_halfway_and_runs_again_writes_each_row_once(place: Place) -> None:
    """The same writer object writes a partition twice, the first time not to its end."""
    from pyspark.sql.types import LongType, StructField, StructType

    from millstream.spark.sink.sink import make_sink

    schema = StructType([StructField("n", LongType())])
    sink = make_sink({"url": place.url, "stream": place.stream, "chunkSize": "7"}, schema)
    batches = [pa.RecordBatch.from_pydict({"n": list(range(start, start + 50))}) for start in (0, 50, 100)]

    def cut_short() -> Any:
        yield batches[0]
        yield batches[1].slice(0, 20)
        raise OSError("the executor is gone")

    identity = Identity("q", 3, 0)
    with pytest.raises(OSError, match="gone"):
        sink.write(cut_short(), identity)
    sink.write(iter(batches), identity)
    sink.write(iter(batches), identity)
    found = [int(fields[b"n"]) for _, fields in place.client.xrange(place.stream)]
    assert found == list(range(150))


def test_a_task_that_is_run_again_after_a_shuffle_in_another_order_loses_nothing(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    """The first attempt of each task ends after some rows were written; the next one has them the other way round."""
    directory = str(tmp_path)

    def unordered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        rows = pa.Table.from_batches(batches)
        context = TaskContext.get()
        assert context is not None
        marker = Path(directory) / str(context.partitionId())
        if marker.exists():
            yield from rows.take(list(range(rows.num_rows))[::-1]).to_batches(max_chunksize=300)
            return
        marker.touch()
        yield from rows.slice(0, 1200).to_batches(max_chunksize=300)
        raise OSError("the executor is gone")

    place.fill(5000)
    out = f"{place.stream}-out"
    rows = read(spark, place, "n string").repartition(2).mapInArrow(unordered, "n string")
    write(rows, place, stream=out, chunkSize=100)
    found = [int(fields[b"n"]) for _, fields in place.client.xrange(out)]
    assert sorted(found) == list(range(5000))
    assert len(list(tmp_path.iterdir())) == 2
    assert place.client.keys(f"{{{out}}}*") == []


def test_an_old_batch_is_refused_when_a_later_one_is_written(place: Place) -> None:
    batch = pa.RecordBatch.from_pydict({"n": [1, 2]})
    rows = pack(batch, layout_of(batch.schema, True), keep_nulls=False)
    options = parse_write({"url": place.url, "stream": place.stream})
    for number in (5, 6):
        writer = FenceWriter(options, place.stream, Identity("q", number, 0))
        writer.write(rows)
        writer.finish()
    late = FenceWriter(options, place.stream, Identity("q", 5, 0))
    with pytest.raises(ConfigError, match="a later batch of this query has been written already"):
        late.write(rows)
    assert place.client.xlen(place.stream) == 4


def test_ids_that_do_not_rise_are_refused_in_words(spark: SparkSession, place: Place) -> None:
    frame = spark.sql("select '5-0' as id, 1 as n union all select '4-0', 2").coalesce(1)
    with pytest.raises(Exception, match="ids in column `id` must rise"):
        write(frame, place, stream=place.stream)


def test_overwriting_a_stream_is_refused(spark: SparkSession, place: Place) -> None:
    writer = spark.range(1).selectExpr("id as n").write.format("millstream").mode("overwrite")
    with pytest.raises(Exception, match="a stream can only be appended to"):
        writer.option("url", place.url).option("stream", place.stream).save()


@pytest.fixture(params=["redis", "ours"])
def remembering(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A server that knows XADD IDMP."""
    if request.param == "ours":
        port = request.getfixturevalue("our_port")
        yield Place("ours", port, redis.Redis(port=port), "remembered")
        return
    with running(require(redis_binary(), "Redis 8.10")) as server:
        yield Place("redis", server.port, redis.Redis(port=server.port), "remembered")


def test_a_server_that_remembers_rows_takes_them_once(remembering: Place) -> None:
    batch = pa.RecordBatch.from_pydict({"n": list(range(60))})
    rows = pack(batch, layout_of(batch.schema, True), keep_nulls=False)
    options = parse_write({"url": remembering.url, "stream": "remembered", "chunkSize": "25", "maxlen": "1000"})
    for _ in range(2):
        writer = IdmpWriter(options, "remembered", Identity("q", 4, 0))
        writer.write(rows)
        writer.finish()
        writer.close()
    assert [int(fields[b"n"]) for _, fields in remembering.client.xrange("remembered")] == list(range(60))
    with pytest.raises(ConfigError, match="remembers 100 rows a writer and a partition has more"):
        writer.write(rows)
