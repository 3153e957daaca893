"""Tables for looking, in real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows(spark: SparkSession, place: Place, table: str, **options: str) -> list[dict[str, Any]]:
    reader = spark.read.format("millstream").option("url", place.url).option("table", table)
    for name, value in {"stream": place.stream, **options}.items():
        reader = reader.option(name, value)
    return [row.asDict() for row in reader.load().collect()]


def work(place: Place, count: int = 3) -> list[str]:
    """Entries in a group `g`, all but one delivered to the consumer `c`."""
    ids = place.fill(count)
    place.client.xgroup_create(place.stream, "g", id="0")
    place.client.xreadgroup("g", "c", {place.stream: ">"}, count=count - 1)
    return ids


def test_pending_entries_are_a_table(spark: SparkSession, each_place: Place) -> None:
    ids = work(each_place)
    found = sorted(rows(spark, each_place, "pending"), key=lambda row: row["id"])
    assert [(row["group"], row["id"], row["consumer"], row["delivery_count"]) for row in found] == [
        ("g", ids[0], "c", 1),
        ("g", ids[1], "c", 1),
    ]
    assert all(row["idle_ms"] >= 0 for row in found)


def test_streams_groups_and_consumers_are_tables(spark: SparkSession, each_place: Place) -> None:
    ids = work(each_place)
    [stream] = rows(spark, each_place, "streams")
    assert (stream["length"], stream["first_id"], stream["last_id"], stream["groups"]) == (3, ids[0], ids[-1], 1)
    [group] = rows(spark, each_place, "groups")
    assert (group["group"], group["pending"], group["last_delivered_id"], group["lag"]) == ("g", 2, ids[1], 1)
    [consumer] = rows(spark, each_place, "consumers")
    assert (consumer["group"], consumer["consumer"], consumer["pending"]) == ("g", "c", 2)


def test_a_released_entry_is_nobodys(spark: SparkSession, our_port: int, each_place: Place) -> None:
    if each_place.name != "ours":
        pytest.skip("Valkey cannot release entries")
    ids = work(each_place)
    each_place.client.execute_command("XNACK", each_place.stream, "g", "SILENT", "IDS", 1, ids[0])
    found = {row["id"]: row for row in rows(spark, each_place, "pending")}
    assert (found[ids[0]]["consumer"], found[ids[0]]["idle_ms"]) == (None, None)


def test_all_streams_are_shown_where_none_is_named(spark: SparkSession, place: Place) -> None:
    names = [f"{place.stream}-{n}" for n in range(12)]
    for name in names:
        place.fill(1, stream=name)
    reader = spark.read.format("millstream").option("url", place.url).option("table", "streams")
    found = {row.stream for row in reader.schema("stream string").load().collect()}
    assert set(names) <= found


def test_dead_letters_are_a_table_with_their_reasons(spark: SparkSession, place: Place) -> None:
    from millstream.client import connect
    from millstream.delivery.keys import Keys

    place.fill(1)
    keys = Keys(place.stream.encode())
    about = {
        "_original_id": "5-0",
        "_id": "5-0",
        "_reason": "rejected",
        "_error": "bad price",
        "_group": "g",
        "_attempts": "3",
        "_dead_at": "1700000000000",
        "_meta": "8",
    }
    with connect(place.url) as backend:
        backend.execute("XADD", keys.dead, "*", "n", "7", *[word for pair in about.items() for word in pair])
    [row] = rows(spark, place, "dead_letters")
    assert (row["original_id"], row["reason"], row["error"], row["attempts"]) == ("5-0", "rejected", "bad price", 3)
    assert row["dead_at"].timestamp() > 0
    assert {name: bytes(value) for name, value in row["fields"].items()} == {"n": b"7"}


def test_a_column_that_a_table_lacks_is_refused(spark: SparkSession, place: Place) -> None:
    place.fill(1)
    reader = spark.read.format("millstream").option("url", place.url).option("table", "streams")
    with pytest.raises(Exception, match="table 'streams' has no column 'size': it has stream, length"):
        reader.schema("size bigint").load().collect()
