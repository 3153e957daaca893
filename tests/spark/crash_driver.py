"""A driver that is made to be killed: `python -m tests.spark.crash_driver <settings as JSON>`.

It runs one query over all that is available, into Parquet, and says at the end what it has found there. Group mode
writes each batch in its place and settles it then; range mode leaves both to Spark's file sink.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAIT_S = 600


def main() -> None:
    from millstream.spark import session

    given = json.loads(sys.argv[1])
    spark = session("crash", log_file=Path(given["directory"]) / "log")
    run(spark, given)
    found = ids(spark, given)
    print(json.dumps({"rows": len(found), "distinct": len(set(found)), "first": min(found), "last": max(found)}))
    spark.stop()


def run(spark: SparkSession, given: dict[str, Any]) -> None:
    reader = spark.readStream.format("millstream").option("url", given["url"]).option("stream", given["stream"])
    reader = reader.option("maxOffsetsPerTrigger", given["rows"])
    directory = Path(given["directory"])
    if given["mode"] == "group":
        writer = process(reader.option("group", "g").option("lease", "300s"), given)
    else:
        frame = reader.schema("id string, n int").load()
        writer = frame.writeStream.format("parquet").option("path", str(directory / "out"))
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    if not query.awaitTermination(WAIT_S):
        raise TimeoutError("the query does not end")


def process(reader: Any, given: dict[str, Any]) -> Any:
    from millstream.spark.outcomes import process as made

    frame = reader.schema("stream string, id string, n int, consumer string, delivery_count int").load()
    out = Path(given["directory"]) / "out"

    def write(good: DataFrame, batch_id: int) -> None:
        good.select("id", "n").write.mode("overwrite").parquet(str(out / f"batch={batch_id}"))

    return made(frame, lambda row: {"n": row.n}, "n int", write, url=given["url"], group="g", lease="300s")


def ids(spark: SparkSession, given: dict[str, Any]) -> list[str]:
    return [row.id for row in spark.read.parquet(str(Path(given["directory"]) / "out")).select("id").collect()]


if __name__ == "__main__":
    main()
