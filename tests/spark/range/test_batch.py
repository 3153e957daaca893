"""Batch reads in real Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from millstream.spark.options import parse_read
from tests.spark.conftest import Place, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_stream_is_read_as_it_is(spark: SparkSession, each_place: Place) -> None:
    ids = each_place.fill(3)
    rows = read(spark, each_place).orderBy("id").collect()
    assert [row.id for row in rows] == ids
    assert {row.stream for row in rows} == {each_place.stream}
    assert rows[1].timestamp == datetime.fromtimestamp(1_700_000_000.001, UTC).replace(tzinfo=None)
    assert rows[1].seq == 0
    assert dict(rows[1].fields) == {"n": b"1", "v": b"value 1"}


def test_fields_are_read_as_typed_columns(spark: SparkSession, place: Place) -> None:
    place.client.xadd(
        place.stream,
        {
            "price": "12.5",
            "count": "3",
            "at": "2026-01-31T12:00:00+01:00",
            "day": "2026-01-31",
            "ok": "true",
            "exact": "1.25",
            "raw": b"\xff\x00",
            "more": '{"a": 1, "b": ["x", "y"]}',
            "tags": '{"k": 2}',
        },
    )
    schema = (
        "price double, count int, at timestamp, day date, ok boolean, exact decimal(10,2), raw binary, "
        "more struct<a: bigint, b: array<string>>, tags map<string, int>, absent string"
    )
    row = read(spark, place, schema).first()
    assert row is not None
    assert (row.price, row["count"], row.ok, str(row.exact), bytes(row.raw)) == (12.5, 3, True, "1.25", b"\xff\x00")
    assert row.at == datetime(2026, 1, 31, 11)
    assert (row.more.a, row.more.b, row.tags, row.absent) == (1, ["x", "y"], {"k": 2}, None)


def test_malformed_values_are_null_and_kept(spark: SparkSession, place: Place) -> None:
    for n in ("1", "x", "3"):
        place.client.xadd(place.stream, {"n": n})
    rows = read(spark, place, "id string, n int, _corrupt string").orderBy("id").collect()
    assert [(row.n, row._corrupt) for row in rows] == [(1, None), (None, '{"n": "x"}'), (3, None)]
    assert read(spark, place, "n int", mode="dropmalformed").count() == 2


def test_malformed_values_fail_a_read_if_asked_to(spark: SparkSession, place: Place) -> None:
    place.client.xadd(place.stream, {"n": "x"}, id="5-1")
    with pytest.raises(Exception, match=r"n: expected int32, but entry 5-1 of stream") as caught:
        read(spark, place, "n int", mode="FAILFAST").collect()
    assert "Traceback (most recent call last):\n  File" not in str(caught.value)


def test_a_range_is_read_by_ids(spark: SparkSession, place: Place) -> None:
    ids = place.fill(10)
    found = read(spark, place, startingOffsets=ids[2], endingOffsets=ids[7])
    assert sorted(row.id for row in found.collect()) == ids[2:7]


def test_a_range_is_read_by_times(spark: SparkSession, place: Place) -> None:
    ids = place.fill(10)
    found = read(spark, place, startingTimestamp=1_700_000_000_003, endingTimestamp="2023-11-14T22:13:20.006Z")
    assert sorted(row.id for row in found.collect()) == ids[3:6]


def test_many_partitions_hold_every_entry_once(spark: SparkSession, place: Place) -> None:
    ids = place.fill(5_000)
    found = read(spark, place, "id string", minPartitions=7)
    assert found.rdd.getNumPartitions() == 7
    assert sorted(row.id for row in found.collect()) == ids


def test_a_sharded_set_is_read_as_one(spark: SparkSession, place: Place) -> None:
    for shard in range(3):
        place.fill(4, stream=f"{place.stream}-{shard}")
    counts = read(spark, place, stream=place.stream + "-{0..2}").groupBy("stream").count().collect()
    assert {row.stream: row["count"] for row in counts} == {f"{place.stream}-{shard}": 4 for shard in range(3)}


def test_a_pattern_finds_streams(spark: SparkSession, each_place: Place) -> None:
    for shard in "ab":
        each_place.fill(2, stream=f"pat:{each_place.stream}:{shard}")
    found = read(spark, each_place, streamPattern=f"pat:{each_place.stream}:*")
    assert sorted(row.stream for row in found.select("stream").distinct().collect()) == [
        f"pat:{each_place.stream}:{shard}" for shard in "ab"
    ]


def test_filters_on_id_and_time_read_less(spark: SparkSession, place: Place) -> None:
    ids = place.fill(1_000)
    place.client.config_resetstat()
    found = read(spark, place).where(f"id >= '{ids[990]}' and timestamp < timestamp '2023-11-14 22:13:20.995'")
    assert sorted(row.id for row in found.collect()) == ids[990:995]
    traffic = place.client.info("stats")["total_net_output_bytes"]
    assert traffic < 20_000  # the whole stream is ten times as much


def test_columns_that_a_schema_lacks_are_never_built(place: Place) -> None:
    """What a task hands to Spark, in bytes: the large field is not among them."""
    pipe = place.client.pipeline(transaction=False)
    for n in range(200):
        pipe.xadd(place.stream, {"n": n, "v": "x" * 10_000})
    pipe.execute()
    assert _bytes_of(place, "id", "n", "v") > 200 * 10_000
    assert _bytes_of(place, "id", "n") < 200 * 100


def _bytes_of(place: Place, *columns: str) -> int:
    from pyspark.sql.types import StringType, StructField, StructType

    from millstream.spark.range.source import EntryReader

    schema = StructType([StructField(name, StringType()) for name in columns])
    reader = EntryReader(parse_read({"url": place.url, "stream": place.stream}), schema)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert sum(batch.num_rows for batch in batches) == 200
    return sum(batch.nbytes for batch in batches)


def test_filters_also_work_where_spark_does_not_push_them(spark: SparkSession, place: Place) -> None:
    ids = place.fill(10)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert read(spark, place).where(f"id = '{ids[3]}'").count() == 1
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_a_filter_on_ids_means_what_spark_means(spark: SparkSession, place: Place) -> None:
    for entry_id in ("2-0", "9-0", "10-0"):
        place.client.xadd(place.stream, {"n": 1}, id=entry_id)
    found = read(spark, place).where("id > '2-0'")
    assert sorted(row.id for row in found.collect()) == ["9-0"]  # as text, 10-0 is below


def test_a_column_can_be_a_field_that_has_the_name_of_another(spark: SparkSession, place: Place) -> None:
    from pyspark.sql.types import StringType, StructField, StructType

    place.client.xadd(place.stream, {"id": "mine"}, id="7-0")
    own = StructField("own_id", StringType(), metadata={"field": "id"})
    reader = spark.read.format("millstream").option("url", place.url).option("stream", place.stream)
    row = reader.schema(StructType([StructField("id", StringType()), own])).load().first()
    assert row is not None
    assert (row.id, row.own_id) == ("7-0", "mine")


def test_filters_on_fields_that_have_the_names_of_columns_of_ours_mean_the_fields(
    spark: SparkSession, place: Place
) -> None:
    """They are not about the entry, whose id, time and stream are others."""
    from pyspark.sql.types import StringType, StructField, StructType, TimestampType

    place.client.xadd(place.stream, {"timestamp": "2020-05-05T12:00:00Z", "id": "5-5", "stream": "theirs"})
    place.client.xadd(place.stream, {"timestamp": "2030-05-05T12:00:00Z", "id": "9-9", "stream": "mine"})
    kinds = {"timestamp": TimestampType(), "id": StringType(), "stream": StringType()}
    schema = StructType([StructField(name, kind, metadata={"field": name}) for name, kind in kinds.items()])
    rows = spark.read.format("millstream").option("url", place.url).option("stream", place.stream).schema(schema).load()
    assert [row.id for row in rows.where("timestamp < '2021-01-01'").collect()] == ["5-5"]
    assert [row.id for row in rows.where("timestamp > '2029-01-01'").collect()] == ["9-9"]
    assert [row.id for row in rows.where("id = '9-9'").collect()] == ["9-9"]
    assert [row.id for row in rows.where("stream = 'mine'").collect()] == ["9-9"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "earliest"}, "unknown option 'startingoffset': did you mean 'startingOffsets'?"),
        ({"minPartitions": "many"}, "option 'minPartitions': 'many' must be a number, 1 or more"),
        ({"stream": "nowhere"}, "stream 'nowhere' does not exist: check option 'stream'"),
        ({"startingOffsets": "yesterday"}, "option 'startingOffsets': 'yesterday' is not an entry id"),
        ({"url": "file:///tmp/x"}, "option 'url': file:// is inside one process and Spark has many"),
    ],
)
def test_bad_options_are_refused_in_the_first_line(
    spark: SparkSession, place: Place, options: dict[str, str], message: str
) -> None:
    place.fill(1)
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as caught:
        read(spark, place, **options).collect()
    assert message in str(caught.value).splitlines()[0]


def test_sql_reads_by_a_view_and_refuses_a_table_whose_options_spark_loses(spark: SparkSession, place: Place) -> None:
    place.fill(3)
    how = f"USING millstream OPTIONS (url '{place.url}', stream '{place.stream}')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW of_stream {how}")
    assert spark.sql("SELECT count(*) FROM of_stream").first()[0] == 3
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as caught:
        spark.sql(f"CREATE TABLE of_stream_too {how}")
    assert "use CREATE TEMPORARY VIEW" in str(caught.value).splitlines()[0]


def test_the_source_is_found_without_being_registered(spark: SparkSession, place: Place) -> None:
    place.fill(2)
    other = spark.newSession()  # where nobody has registered anything
    assert read(other, place).count() == 2
