"""The Spark side of the demo: orders of the group into Parquet by hour, one table of all accepted ones, revenue.

orders ── group ──▶ validate, price, join ──▶ accepted/batch=…/hour=…      as they come
stream accepted (what workers took) ── what is not there yet ──▶ accepted/batch=workers/hour=…      at the end
accepted ── windows of an hour, watermark ──▶ revenue
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.shop.orders import ACCEPTED, BACKOFF_S, GROUP, LEASE_S, MAX_RETRIES, STREAM, Order, check_price, unknown
from millstream import Backoff, RetryPolicy
from millstream.spark.pipeline.definition import GroupSource, Parquet, Pipeline, Require, Rows, Sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PRODUCTS = "product string, title string, category string"
OF_WORKERS = (
    "entry string, delivery int, order bigint, customer string, country string, product string, quantity bigint, "
    "price bigint, at string, title string, category string"
)
RAW = OF_WORKERS.replace("entry", "_id").replace("delivery", "_delivery_count")
LATENESS = "1 day"  # how late an order may be and still count: late ones, retried and redriven ones
HOUR = "concat(substr(at, 1, 10), '-', substr(at, 12, 2)) AS hour"
PARTS = max(2, os.cpu_count() or 2)
WORKERS = "workers"  # what stands in the place of a batch's name


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
        source=GroupSource(
            STREAM, group=GROUP, url=url, lease=LEASE_S, max_rows=max_rows, options={"minPartitions": PARTS}
        ),  # Python is what takes long
        schema=Order,
        steps=[
            Rows(priced),
            enriched,
            Require("title IS NOT NULL", str(unknown("{product}"))),
            Sql(f"SELECT *, {HOUR} FROM {{rows}}"),
            lambda orders: orders.repartition(PARTS, "hour"),  # a file an hour and batch: half as many to open again
        ],
        sinks=[Parquet(directory / "accepted", partition_by=["hour"])],
        retry=RetryPolicy(max_retries=MAX_RETRIES, backoff=Backoff(first=BACKOFF_S)),
        checkpoint=directory / "checkpoint",
    )


def gather(spark: SparkSession, directory: Path, url: str) -> int:
    """Put what workers accepted beside what Spark did, each entry once; how many rows were there twice.

    An order is there twice if somebody accepted it, lost it before that was settled, and another one accepted it too.
    """
    from pyspark.sql import functions as f

    stream = spark.read.format("millstream").options(url=url, stream=ACCEPTED, missingStream="wait").schema(OF_WORKERS)
    theirs = stream.load().withColumnsRenamed({"entry": "_id", "delivery": "_delivery_count"}).selectExpr("*", HOUR)
    if not (table := directory / "accepted").exists():  # the workers were so quick that nothing was left for Spark
        _write(theirs, table / f"batch={WORKERS}")
        return 0
    own = spark.read.schema(f"{RAW}, batch string, hour string").parquet(str(table)).where(f.col("batch") != WORKERS)
    ids = own.select("_id", f.lit(1).alias("own")).unionByName(theirs.select("_id", f.lit(0).alias("own")))
    again = ids.groupBy("_id").agg(f.count("*").alias("n"), f.sum("own").alias("own")).where("n > 1").collect()
    if any(row["own"] > 1 for row in again):
        _write(own.dropDuplicates(["_id"]).drop("batch"), directory / "once" / "batch=once")
        os.replace(table, directory / "before")
        mend(directory)
    taken = [row["_id"] for row in again if row["own"]]
    _write(theirs.where(~f.col("_id").isin(taken)) if taken else theirs, table / f"batch={WORKERS}")
    return sum(row["n"] - 1 for row in again)


def mend(directory: Path) -> None:
    """Put the table without repetitions in the place of the other, also if somebody was killed on the way."""
    table, once = directory / "accepted", directory / "once"
    if not table.exists() and once.exists():
        os.replace(once, table)
    for left in (once, directory / "before"):
        shutil.rmtree(left, ignore_errors=True)


def _write(rows: DataFrame, path: Path) -> None:
    rows.coalesce(1).write.mode("overwrite").partitionBy("hour").parquet(str(path))


def windows(spark: SparkSession, directory: Path) -> None:
    """Revenue by hour and country, as a streaming query over the accepted orders."""
    from pyspark.sql import functions as f

    for name in ("revenue", "revenue-checkpoint"):
        shutil.rmtree(directory / name, ignore_errors=True)
    orders = spark.readStream.schema("country string, quantity bigint, price bigint, at string").parquet(
        str(directory / "accepted")
    )
    timed = orders.withColumn("at", f.to_timestamp("at")).withWatermark("at", LATENESS)
    sums = timed.groupBy(f.window("at", "1 hour"), "country").agg(f.sum(f.expr("quantity * price")).alias("revenue"))
    flat = sums.select(f.col("window.start").alias("hour"), "country", "revenue")

    def write(frame: DataFrame, number: int) -> None:
        frame.write.mode("overwrite").parquet(str(directory / "revenue" / f"update={number:06}"))

    query = (
        flat.writeStream.outputMode("update")
        .foreachBatch(write)
        .option("checkpointLocation", str(directory / "revenue-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
