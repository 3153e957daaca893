"""The Spark side of the demo: orders of the group into Parquet by hour, one table of all accepted ones, revenue.

    orders ── group ──▶ validate, price, join ──▶ raw/batch=…/hour=…      as they come
    raw + accepted (what workers took) ── each entry once ──▶ accepted/hour=…      at the end
    accepted ── windows of an hour, watermark ──▶ revenue
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream import Backoff, RetryPolicy
from millstream.demo.orders import (
    ACCEPTED,
    BACKOFF_S,
    GROUP,
    LEASE_S,
    MAX_RETRIES,
    STREAM,
    Order,
    check_price,
    unknown,
)
from millstream.spark.pipeline import GroupSource, Parquet, Pipeline, Require, Rows, Sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PRODUCTS = "product string, title string, category string"
OF_WORKERS = (
    "entry string, delivery int, order bigint, customer string, country string, product string, quantity bigint, "
    "price bigint, at string, title string, category string"
)
RAW = OF_WORKERS.replace("entry", "_id").replace("delivery", "_delivery_count")
LATENESS = "1 day"  # how late an order may be and still count: late ones, retried and redriven ones
COLUMNS = tuple(column.split()[0] for column in OF_WORKERS.split(", "))


def priced(row: Any) -> None:
    """Ask the price service."""
    check_price(row.order, row.outage, row._delivery_count)


def make_pipeline(directory: Path, url: str, max_rows: int) -> Pipeline:
    """The pipeline of orders."""
    table = str(directory / "products.jsonl")

    def enriched(orders: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        products = orders.sparkSession.read.schema(PRODUCTS).json(table)  # each batch: somebody may complete it
        return orders.join(f.broadcast(products), "product", "left")

    return Pipeline(
        name="orders",
        source=GroupSource(STREAM, group=GROUP, url=url, lease=LEASE_S, max_rows=max_rows,
                           options={"minPartitions": max(2, os.cpu_count() or 2)}),  # Python is what takes long
        schema=Order,
        steps=[
            Rows(priced),
            enriched,
            Require("title IS NOT NULL", str(unknown("{product}"))),
            Sql("SELECT *, concat(substr(at, 1, 10), '-', substr(at, 12, 2)) AS hour FROM {rows}"),
        ],
        sinks=[Parquet(directory / "raw", partition_by=["hour"])],
        retry=RetryPolicy(max_retries=MAX_RETRIES, backoff=Backoff(first=BACKOFF_S)),
        checkpoint=directory / "checkpoint",
    )


def gather(spark: SparkSession, directory: Path, url: str) -> int:
    """One table of all accepted orders, by hour; how many rows were there twice and are left out.

    An order is there twice if somebody accepted it, lost it before that was settled, and another one accepted it too.
    """
    from pyspark.sql import functions as f

    stream = spark.read.format("millstream").options(url=url, stream=ACCEPTED, missingStream="wait").schema(OF_WORKERS)
    both = stream.load().select(*COLUMNS, f.lit("workers").alias("by"))
    if (directory / "raw").exists():  # unless the workers were so quick that nothing was left
        raw = spark.read.schema(RAW).parquet(str(directory / "raw"))  # some may have no good row
        own = raw.withColumnsRenamed({"_id": "entry", "_delivery_count": "delivery"})
        both = both.unionByName(own.select(*COLUMNS, f.lit("spark").alias("by")))
    again = {row["entry"]: row["count"] - 1 for row in both.groupBy("entry").count().where("count > 1").collect()}
    if again:  # few, if any: to group whole rows instead of ids would take three times as long
        is_again = f.col("entry").isin(list(again))
        once = both.where(is_again).groupBy("entry").agg(f.min_by(f.struct(*COLUMNS, "by"), "by").alias("row"))
        both = both.where(~is_again).unionByName(once.select("row.*"))
    hourly = both.withColumn("hour", f.concat(f.substring("at", 1, 10), f.lit("-"), f.substring("at", 12, 2)))
    hourly.repartition(2, "hour").write.mode("overwrite").partitionBy("hour").parquet(str(directory / "accepted"))
    return sum(again.values())


def windows(spark: SparkSession, directory: Path) -> None:
    """Revenue by hour and country, as a streaming query over the accepted orders."""
    from pyspark.sql import functions as f

    for name in ("revenue", "revenue-checkpoint"):
        shutil.rmtree(directory / name, ignore_errors=True)
    orders = spark.readStream.schema("country string, quantity bigint, price bigint, at string").parquet(
        str(directory / "accepted"))  # fmt: skip
    timed = orders.withColumn("at", f.to_timestamp("at")).withWatermark("at", LATENESS)
    sums = timed.groupBy(f.window("at", "1 hour"), "country").agg(f.sum(f.expr("quantity * price")).alias("revenue"))
    flat = sums.select(f.col("window.start").alias("hour"), "country", "revenue")

    def write(frame: DataFrame, number: int) -> None:
        frame.write.mode("overwrite").parquet(str(directory / "revenue" / f"update={number:06}"))

    query = flat.writeStream.outputMode("update").foreachBatch(write).option(
        "checkpointLocation", str(directory / "revenue-checkpoint")).trigger(availableNow=True).start()  # fmt: skip
    query.awaitTermination()
