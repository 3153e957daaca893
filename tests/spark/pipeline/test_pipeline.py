"""Pipelines in real Spark: tried on rows, run over ranges and in groups, beside workers, killed and gone on with."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream import Stream
from millstream.delivery.policy import Backoff, RetryPolicy
from millstream.delivery.signals import Reject, Release, Retry
from millstream.spark.pipeline.definition import GroupSource, Parquet, Pipeline, RangeSource, Require, Rows, Sql
from tests.spark.conftest import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(600)
WAIT_S = 240


@dataclass
class Order:
    order: int
    country: str
    quantity: int
    price: int = 100


def total(row: Any) -> dict[str, int]:
    if row.country == "XX":
        raise Reject("no such country")
    if row.country == "YY":
        raise Release
    if row.country == "ZZ":
        raise Retry(7)
    if row.country == "QQ" and row._delivery_count < 3:
        raise OSError("the price service is down")
    return {"total": row.quantity * row.price}


def pipeline(**changes: Any) -> Pipeline:
    parts: dict[str, Any] = {
        "source": GroupSource("orders", group="billing", url="redis://127.0.0.1:1"),
        "schema": Order,
        "steps": [Rows(total, adds="total bigint")],
        "sinks": [Parquet("nowhere")],
        "retry": RetryPolicy(max_retries=2, backoff=Backoff(first=0.05)),
    }
    return Pipeline(**parts | changes)


def order(country: str = "DE", **more: Any) -> dict[str, Any]:
    return {"order": 1, "country": country, "quantity": 2} | more


def test_rows_are_tried_without_a_server(spark: SparkSession) -> None:
    rows = [
        order(),
        order("XX"),
        order("YY"),
        order("ZZ"),
        b"{",
        order(quantity="two"),
        order("QQ"),
        order("QQ", _delivery_count=3),
    ]
    found = pipeline().test(rows, spark=spark)
    good = {"order": 1, "quantity": 2, "price": 100, "total": 200}
    assert found.good == [good | {"country": "DE"}, good | {"country": "QQ"}]
    assert found.released == [2]
    assert [(each.row, each.delay) for each in found.retried] == [(3, 7.0), (6, None)]
    assert "price service" in found.retried[1].error
    assert [(each.row, each.reason) for each in found.dead] == [(1, "rejected"), (4, "malformed"), (5, "malformed")]
    assert found.dead[0].error == "no such country"
    assert "data.quantity" in found.dead[2].error


def test_the_rules_of_the_policy_count_in_a_pipeline(spark: SparkSession) -> None:
    """Classes and functions alike: a rule is asked where the row fails."""
    rules: Any = {OSError: "reject", TypeError: lambda error: Retry(33)}
    policy = RetryPolicy(max_retries=2, on=rules)
    steps = [Rows(total, adds="total bigint"), Rows(lambda row: None if row.total else len(row.total))]
    found = pipeline(retry=policy, steps=steps).test([order("QQ"), order(quantity=0)], spark=spark)
    assert [(each.row, each.reason) for each in found.dead] == [(0, "rejected")]
    assert [(each.row, each.delay) for each in found.retried] == [(1, 33.0)]


def test_the_last_try_of_a_row_that_fails_makes_it_a_dead_letter(spark: SparkSession) -> None:
    found = pipeline().test([order("ZZ", _delivery_count=2), order("ZZ", _delivery_count=3)], spark=spark)
    assert [each.row for each in found.retried] == [0]
    assert [(each.row, each.reason) for each in found.dead] == [(1, "retries")]


def test_steps_follow_each_other_whatever_they_are(spark: SparkSession) -> None:
    def only_large(frame: DataFrame) -> DataFrame:
        return frame.where("total > 200")

    def short(row: Any) -> dict[str, Any] | None:
        return None if row.doubled > 1000 else {"short": f"{row.order}: {row.doubled}"}

    steps = [
        Rows(total, adds="total bigint"),
        only_large,
        Sql("SELECT *, total * 2 AS doubled FROM {rows}"),
        Rows(short, gives="short string"),
    ]
    rows = [order(quantity=2), order(quantity=3), order("XX"), order(quantity=6)]
    found = pipeline(steps=steps).test(rows, spark=spark)
    assert found.good == [{"short": "1: 600"}]
    assert [each.row for each in found.dead] == [2]


def test_a_condition_is_looked_at_by_spark_itself(spark: SparkSession) -> None:
    steps = [
        Require("quantity > 0", "order {order} of {country} is for {quantity}: {{nothing}}"),
        Require("nullif(country, 'XX') <> 'YY'", "no country", is_final=True),  # null is not good enough
        Rows(total, adds="total bigint"),
    ]
    rows = [order(), order(quantity=0), order("XX"), order("YY"), order(quantity=-1, _delivery_count=3), order("QQ")]
    found = pipeline(steps=steps).test(rows, spark=spark)
    assert [row["total"] for row in found.good] == [200]
    assert [(each.row, each.delay) for each in found.retried] == [(1, None), (5, None)]
    assert found.retried[0].error == "order 1 of DE is for 0: {nothing}"
    dead = [(each.row, each.reason, each.error) for each in found.dead]
    assert dead == [
        (2, "rejected", "no country"),
        (3, "rejected", "no country"),
        (4, "retries", "order 1 of DE is for -1: {nothing}"),
    ]


def test_a_condition_needs_the_columns_about_entries_too(spark: SparkSession) -> None:
    from millstream.errors import ConfigError

    steps = [lambda frame: frame.drop("_id"), Require("quantity > 0", "none")]
    with pytest.raises(ConfigError, match=r"before \"Require\('quantity > 0'\)\" the column '_id' was dropped"):
        pipeline(steps=steps).test([order()], spark=spark)


def test_without_a_schema_rows_are_columns(spark: SparkSession) -> None:
    source = RangeSource("orders", columns="n int, v string")
    found = pipeline(source=source, schema=None, steps=[Sql("SELECT *, n * 2 AS m FROM {rows}")]).test(
        [{"n": 1, "v": "a"}], spark=spark
    )
    assert found.good == [{"n": 1, "v": "a", "m": 2}]


def test_a_step_that_drops_the_columns_about_entries_is_told_so(spark: SparkSession) -> None:
    from millstream.errors import ConfigError

    steps = [lambda frame: frame.select("order"), Rows(total, adds="total bigint")]
    with pytest.raises(ConfigError, match=r"before 'total' the column '_stream' was dropped"):
        pipeline(steps=steps).test([order()], spark=spark)


def test_a_value_that_does_not_fit_its_column_ends_its_own_row_only(spark: SparkSession) -> None:
    def odd(row: Any) -> dict[str, Any]:
        return {"n": "three" if row.country == "XX" else 3}

    found = pipeline(steps=[Rows(odd, adds="n bigint")]).test([order(), order("XX")], spark=spark)
    assert [row["n"] for row in found.good] == [3]
    assert [each.row for each in found.dead] == [1]
    assert "does not fit" in found.dead[0].error


# Running


def at(place: Place, tmp_path: Path, **changes: Any) -> Pipeline:
    """The pipeline on a server, its files in a directory of its own."""
    parts: dict[str, Any] = {
        "source": GroupSource(place.stream, group="billing", url=place.url, lease=30),
        "sinks": [Parquet(tmp_path / "accepted", partition_by=["country"])],
        "checkpoint": tmp_path / "checkpoint",
    }
    return pipeline(**parts | changes)


def accepted(spark: SparkSession, tmp_path: Path, name: str = "accepted") -> list[int]:
    return sorted(row["order"] for row in spark.read.parquet(str(tmp_path / name)).select("order").collect())


def orders_of(place: Place) -> Stream[dict[str, Any]]:
    return Stream(place.stream, place.url, group="billing", retain="all")


def finish(running: Any) -> None:
    assert running.wait(WAIT_S)


def test_a_group_pipeline_writes_and_settles_and_goes_on(
    spark: SparkSession, each_place: Place, tmp_path: Path
) -> None:
    pipe = at(each_place, tmp_path)
    with orders_of(each_place) as orders:
        orders.publish_many([order(order=1), order("XX", order=2), order("QQ", order=3)])
        orders.backend.execute("XADD", each_place.stream, "*", "data", "{")
        finish(pipe.start(spark, once=True))
        found = orders.audit()
        assert (found.done, found.dead, found.pending, found.balanced) == (1, 2, 1, True)
        assert sorted((letter.reason, letter.error) for letter in orders.dead.list()) == [
            ("malformed", "data: must be JSON"),
            ("rejected", "no such country"),
        ]
        orders.publish(order(order=5))
        for _ in range(20):  # order 3 succeeds with its third delivery
            finish(pipe.start(spark, once=True))
            if orders.audit().done == 3:
                break
        found = orders.audit()
        assert (found.done, found.dead, found.pending, found.undelivered, found.balanced) == (3, 2, 0, 0, True)
    assert accepted(spark, tmp_path) == [1, 3, 5]


def test_a_batch_that_is_run_again_lands_once(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    """A sink that fails behind Parquet: nothing is settled, and the next run does the same rows again."""
    failing = Failing(tmp_path / "broken")
    (tmp_path / "broken").touch()
    pipe = at(place, tmp_path, sinks=[Parquet(tmp_path / "accepted"), failing])
    with orders_of(place) as orders:
        orders.publish_many([order(order=n) for n in range(20)])
        running = pipe.start(spark, once=True)
        with pytest.raises(Exception, match="the second sink is broken"):
            running.wait(WAIT_S)
        assert accepted(spark, tmp_path) == list(range(20))
        assert (orders.audit().done, orders.audit().pending) == (0, 20)
        (tmp_path / "broken").unlink()
        finish(pipe.start(spark, once=True))
        assert accepted(spark, tmp_path) == list(range(20))
        assert (orders.audit().done, orders.audit().pending) == (20, 0)


@dataclass(frozen=True)
class Failing:
    """A sink that fails while a file is there."""

    file: Path

    def write(self, frame: DataFrame, batch: Any) -> None:
        if self.file.exists():
            raise OSError("the second sink is broken")

    def check(self) -> None:
        pass


def test_rows_that_a_step_leaves_out_are_done(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    steps = [lambda frame: frame.where("quantity > 2")]
    with orders_of(place) as orders:
        orders.publish_many([order(order=n, quantity=n) for n in range(5)])
        finish(at(place, tmp_path, steps=steps).start(spark, once=True))
        assert (orders.audit().done, orders.audit().pending) == (5, 0)
    assert accepted(spark, tmp_path) == [3, 4]


def test_a_pipeline_shares_its_group_with_a_worker(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    pipe = at(place, tmp_path, source=GroupSource(place.stream, group="billing", url=place.url, max_rows=10))
    taken = []
    with orders_of(place) as orders:
        orders.publish_many([order(order=n) for n in range(40)])
        for message in orders.consume(wait=0.2, ahead=5):
            taken.append(message.data["order"])
            message.ack()
            if len(taken) == 15:
                break
        finish(pipe.start(spark, once=True))
        assert (orders.audit().done, orders.audit().balanced) == (40, True)
    assert sorted(taken + accepted(spark, tmp_path)) == list(range(40))


def test_stop_lets_the_batch_end(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    pipe = at(place, tmp_path, trigger="1 second")
    with orders_of(place) as orders:
        running = pipe.start(spark)
        orders.publish_many([order(order=n) for n in range(10)])
        for _ in range(WAIT_S * 5):
            if running.batches or not running.is_active:
                break
            running.wait(0.2)
        running.stop()
        assert not running.is_active
        assert (orders.audit().done, orders.audit().pending) == (10, 0)
    assert accepted(spark, tmp_path) == list(range(10))


# Ranges


def test_a_range_leaves_no_trace_and_puts_failed_rows_aside(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    source = RangeSource(place.stream, url=place.url)
    with orders_of(place) as orders:
        orders.publish_many([order(order=1), order("XX", order=2)])
    strict = at(place, tmp_path, source=source)
    with pytest.raises(Exception, match=r"no such country.*set rejects="):
        strict.start(spark, once=True).wait(WAIT_S)
    pipe = at(place, tmp_path, source=source, rejects=Parquet(tmp_path / "bad"))
    finish(pipe.start(spark, once=True))
    assert accepted(spark, tmp_path) == [1]
    assert [row["error"] for row in spark.read.parquet(str(tmp_path / "bad")).collect()] == ["no such country"]
    assert place.client.xinfo_groups(place.stream) == []


def ends_its_process(row: Any) -> None:
    if row.quantity == 0:
        os._exit(3)


@pytest.mark.parametrize(
    ("step", "count"),
    [
        (Sql("SELECT *, 100 / quantity AS share FROM {rows}"), 12),
        pytest.param(Rows(ends_its_process), 4, marks=pytest.mark.long),  # each try of each task starts Python anew
    ],
    ids=["an error in SQL", "a process that ends"],
)
def test_one_row_that_fails_its_batch_becomes_a_dead_letter_and_the_others_pass(
    spark: SparkSession, place: Place, tmp_path: Path, step: Any, count: int
) -> None:
    pipe = at(place, tmp_path, steps=[step], retry=RetryPolicy(max_retries=0))
    with orders_of(place) as orders:
        orders.publish_many([order(order=n, quantity=0 if n == 2 else 1) for n in range(count)])
        finish(pipe.start(spark, once=True))
        now = orders.audit()
        assert (now.done, now.dead, now.pending, now.balanced) == (count - 1, 1, 0, True)
        (letter,) = orders.dead.list()
        assert json.loads(dict(letter.fields)[b"data"])["order"] == 2
        assert letter.reason == "retries"
        assert letter.error
    assert accepted(spark, tmp_path) == [n for n in range(count) if n != 2]


def test_a_batch_that_fails_without_its_rows_fails_as_it_is(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    """No row is blamed for a table that is missing."""
    pipe = at(place, tmp_path, steps=[Sql("SELECT * FROM {rows} JOIN no_such_table USING (order)")])
    with orders_of(place) as orders:
        orders.publish_many([order(order=n) for n in range(3)])
        with pytest.raises(Exception, match="no_such_table"):
            pipe.start(spark, once=True).wait(WAIT_S)
        now = orders.audit()
        assert (now.done, now.dead, now.pending) == (0, 0, 3)


def test_windows_with_a_watermark_over_a_range(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    def hourly(frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        return frame.groupBy(f.window("at", "1 hour")).agg(f.sum("n").alias("order"))

    for n, minute in enumerate((10, 20, 70, 300)):
        place.client.xadd(place.stream, {"n": n, "at": f"2026-03-02T{minute // 60:02}:{minute % 60:02}:00Z"})
    pipe = Pipeline(
        source=RangeSource(place.stream, url=place.url, columns="n bigint, at timestamp"),
        steps=[hourly],
        sinks=[Parquet(tmp_path / "accepted")],
        watermark=("at", "30 minutes"),
        checkpoint=tmp_path / "checkpoint",
    )
    finish(pipe.start(spark, once=True))
    assert accepted(spark, tmp_path) == [1, 2]  # the window of the last one may still grow


def test_history_is_filled_in_beside_what_is_there(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    pipe = at(place, tmp_path)
    with orders_of(place) as orders:
        orders.publish_many([order(order=n) for n in range(5)])
        finish(pipe.start(spark, once=True))
        orders.publish_many([order(order=n) for n in range(5, 8)])
        found = pipe.backfill("1h", spark=spark)
        again = pipe.backfill("1h", spark=spark)
        assert (found.written, again.written) == (3, 0)
        # The group has removed what it was done with, and another Parquet directory would never get it.
        assert (found.rows, found.removed) == (3, True)
        assert orders.audit().undelivered == 3  # history is read, not taken
    assert accepted(spark, tmp_path) == list(range(8))
