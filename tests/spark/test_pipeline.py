"""Pipelines in real Spark: tried on rows, run over ranges and in groups, beside workers, killed and gone on with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from millstream.delivery.policy import Backoff, RetryPolicy
from millstream.delivery.signals import Reject, Release, Retry
from millstream.spark.pipeline import GroupSource, Parquet, Pipeline, RangeSource, Rows, Sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    rows = [order(), order("XX"), order("YY"), order("ZZ"), b"{", order(quantity="two"), order("QQ"),
            order("QQ", _delivery_count=3)]  # fmt: skip
    found = pipeline().test(rows, spark=spark)
    good = {"order": 1, "quantity": 2, "price": 100, "total": 200}
    assert found.good == [good | {"country": "DE"}, good | {"country": "QQ"}]
    assert found.released == [2]
    assert [(each.row, each.delay) for each in found.retried] == [(3, 7.0), (6, None)]
    assert "price service" in found.retried[1].error
    assert [(each.row, each.reason) for each in found.dead] == [(1, "rejected"), (4, "malformed"), (5, "malformed")]
    assert found.dead[0].error == "no such country"
    assert "data.quantity" in found.dead[2].error


def test_the_last_try_of_a_row_that_fails_makes_it_a_dead_letter(spark: SparkSession) -> None:
    found = pipeline().test([order("ZZ", _delivery_count=2), order("ZZ", _delivery_count=3)], spark=spark)
    assert [each.row for each in found.retried] == [0]
    assert [(each.row, each.reason) for each in found.dead] == [(1, "retries")]


def test_steps_follow_each_other_whatever_they_are(spark: SparkSession) -> None:
    def only_large(frame: DataFrame) -> DataFrame:
        return frame.where("total > 200")

    def short(row: Any) -> dict[str, Any] | None:
        return None if row.doubled > 1000 else {"short": f"{row.order}: {row.doubled}"}

    steps = [Rows(total, adds="total bigint"), only_large, Sql("SELECT *, total * 2 AS doubled FROM {rows}"),
             Rows(short, gives="short string")]  # fmt: skip
    rows = [order(quantity=2), order(quantity=3), order("XX"), order(quantity=6)]
    found = pipeline(steps=steps).test(rows, spark=spark)
    assert found.good == [{"short": "1: 600"}]
    assert [each.row for each in found.dead] == [2]


def test_without_a_schema_rows_are_columns(spark: SparkSession) -> None:
    source = RangeSource("orders", columns="n int, v string")
    found = pipeline(source=source, schema=None, steps=[Sql("SELECT *, n * 2 AS m FROM {rows}")]).test(
        [{"n": 1, "v": "a"}], spark=spark)  # fmt: skip
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
