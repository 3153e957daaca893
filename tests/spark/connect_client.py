"""A client of Spark Connect: `python -m tests.spark.connect_client <settings as JSON>`; says what it found as JSON.

It starts a server of its own on this machine. One Python process is either a client of Connect or has a session of its
own, so that the tests run this one beside them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from tests.spark.crash_driver import STARTS, TOO_SLOW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAIT_S = 120
OWN = {
    "spark.ui.enabled": "false",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def main() -> None:
    from pyspark.sql import SparkSession

    given = json.loads(sys.argv[1])
    builder = SparkSession.builder.remote("local[2]")
    for name, value in OWN.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    found: dict[str, Any] = {"kind": type(spark).__module__}
    found |= {name: ACTS[name](spark, given) for name in given["acts"]}
    print(json.dumps(found), flush=True)
    spark.stop()


def rows(spark: SparkSession, given: dict[str, Any]) -> list[int]:
    """A batch read by a name that Spark finds by itself."""
    reader = spark.read.format("millstream").option("url", given["url"]).option("stream", given["stream"])
    return [row.n for row in reader.schema("n int").load().orderBy("n").collect()]


def registered(spark: SparkSession, given: dict[str, Any]) -> list[int]:
    """The same after it was registered, which sends the class to the server."""
    from millstream.spark import register

    return rows(register(spark), given)


def written(spark: SparkSession, given: dict[str, Any]) -> int:
    frame = spark.range(10).selectExpr("id as n")
    frame.write.format("millstream").mode("append").option("url", given["url"]).option("stream", "by-connect").save()
    reader = spark.read.format("millstream").option("url", given["url"]).option("stream", "by-connect")
    return reader.load().count()


def streamed(spark: SparkSession, given: dict[str, Any]) -> int:
    """A query by range into Parquet."""
    reader = spark.readStream.format("millstream").option("url", given["url"]).option("stream", given["stream"])
    out = Path(given["directory"]) / "out"
    writer = reader.option("maxOffsetsPerTrigger", 40).load().writeStream.format("parquet").option("path", str(out))
    _run(writer, given, "range")
    return spark.read.parquet(str(out)).select("id").distinct().count()


def settled(spark: SparkSession, given: dict[str, Any]) -> str:
    """A query in a group whose rows are settled by a sink."""
    from millstream.spark import settle

    reader = spark.readStream.format("millstream").option("url", given["url"]).option("stream", given["stream"])
    reader = reader.option("retain", "all")  # another group is to have them, too
    frame = reader.option("group", "connected").load().selectExpr("stream", "id", "'ack' outcome")
    _run(settle(frame, url=given["url"], group="connected"), given, "settled")
    return _pending(spark, given, "connected")


def processed(spark: SparkSession, given: dict[str, Any]) -> list[object]:
    """A function of rows, some of which it rejects."""
    from millstream import Reject
    from millstream.spark.settlement.outcomes import process

    columns = "stream string, id string, n int, consumer string, delivery_count int"
    reader = spark.readStream.format("millstream").option("url", given["url"]).option("stream", given["stream"])
    out = str(Path(given["directory"]) / "processed")

    def double(row: Any) -> dict[str, int]:
        if row.n == 7:
            raise Reject("seven")
        return {"twice": 2 * row.n}

    def write(good: DataFrame, batch_id: int) -> None:
        good.write.mode("overwrite").parquet(f"{out}/batch={batch_id}")

    frame = reader.option("group", "processing").schema(columns).load()
    _run(process(frame, double, "twice int", write, url=given["url"], group="processing"), given, "processed-c")
    return [spark.read.parquet(out).count(), _pending(spark, given, "processing")]


def _run(writer: Any, given: dict[str, Any], name: str) -> None:
    writer = writer.option("checkpointLocation", str(Path(given["directory"]) / name)).trigger(availableNow=True)
    for tries in range(1, STARTS + 1):
        try:
            if not writer.start().awaitTermination(WAIT_S):
                raise TimeoutError(f"{name} does not end")
            return
        except PySparkException as error:
            if TOO_SLOW not in str(error) or tries == STARTS:
                raise


def _pending(spark: SparkSession, given: dict[str, Any], group: str) -> str:
    reader = spark.read.format("millstream").option("url", given["url"]).option("stream", given["stream"])
    found = reader.option("table", "groups").load().where(f"`group` = '{group}'").collect()
    return ",".join(f"{row.pending} pending, {row.lag} behind" for row in found)


ACTS = {
    "rows": rows,
    "registered": registered,
    "written": written,
    "streamed": streamed,
    "settled": settled,
    "processed": processed,
}

if __name__ == "__main__":
    main()
