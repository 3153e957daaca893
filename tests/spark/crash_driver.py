"""A driver that is made to be killed: `python -m tests.spark.crash_driver <settings as JSON>`.

It runs up to three queries, side by side, on executors that are processes of their own:

    range   by range into Parquet, by Spark's own file sink
    copy    by range and through a shuffle into another stream, by our sink
    group   as a member of a group of a third one: each batch into Parquet in its place, then settled row by row

They go on until there is a file `stop` in the directory, take what is there then, and end. A query that fails ends the
driver, as it would end any other.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

GROUP = "g"
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a virtual machine that lives for a minute starts sooner with these
BEGIN_S, STARTS = 120, 5
TOO_SLOW = "Python worker failed to connect back"  # Spark gives a process 10 s, which a busy machine may not
FIELDS = "id string, n int, v string"


def main() -> int:
    given = json.loads(sys.argv[1])
    spark = _session(given)
    queries = [QUERIES[name](spark, given) for name in given["queries"]]
    (Path(given["directory"]) / f"started-{os.getpid()}").touch()
    while not (Path(given["directory"]) / "stop").exists():
        for query in queries:
            if not query.isActive:
                query.awaitTermination()  # raises what has ended it
        time.sleep(0.05)
    for query in queries:
        query.processAllAvailable()
        query.stop()
    spark.stop()
    return 0


def _session(given: dict[str, Any]) -> SparkSession:
    from millstream.spark import session

    log = Path(given["directory"]) / f"log-{os.getpid()}"
    options = {f"spark.{side}.extraJavaOptions": BRIEF for side in ("driver", "executor")}
    return session("crash", given["master"], options | {"spark.executor.memory": "512m"}, log)


def _rows(spark: SparkSession, given: dict[str, Any], schema: str, **options: object) -> DataFrame:
    reader = spark.readStream.format("millstream").option("url", given["url"]).option("stream", given["stream"])
    every = {"maxOffsetsPerTrigger": given["rows"], "minPartitions": 2, **options}
    return reader.options(**{name: str(value) for name, value in every.items()}).schema(schema).load()


def _start(writer: Any, given: dict[str, Any], name: str) -> StreamingQuery:
    writer = writer.queryName(name).option("checkpointLocation", str(Path(given["directory"]) / name))
    for _ in range(STARTS):
        query: StreamingQuery = writer.trigger(processingTime="20 milliseconds").start()
        deadline = time.monotonic() + BEGIN_S
        while query.isActive and not query.recentProgress and time.monotonic() < deadline:
            time.sleep(0.05)  # the next one then: many Python processes that start at once are slow
        if query.isActive or TOO_SLOW not in str(query.exception()):
            break
    return query


def range_query(spark: SparkSession, given: dict[str, Any]) -> StreamingQuery:
    writer = _rows(spark, given, FIELDS).writeStream.format("parquet")
    return _start(writer.option("path", str(Path(given["directory"]) / "range-out")), given, "range")


def copy_query(spark: SparkSession, given: dict[str, Any]) -> StreamingQuery:
    rows = _rows(spark, given, "n string, v string").repartition(2)
    writer = rows.writeStream.format("millstream").option("chunkSize", 20)
    return _start(writer.option("url", given["url"]).option("stream", given["stream"] + "-out"), given, "copy")


def group_query(spark: SparkSession, given: dict[str, Any]) -> StreamingQuery:
    from millstream.spark.settlement.outcomes import process

    options = {"group": GROUP, "lease": given["lease"]}
    of_group = given | {"stream": given["group_stream"]}
    frame = _rows(spark, of_group, f"stream string, {FIELDS}, consumer string, delivery_count int", **options)
    out = Path(given["directory"]) / "group-out"

    def work(row: Any) -> dict[str, Any]:
        return {"n": row.n, "v": row.v, "deliveries": row.delivery_count, "process": os.getppid()}

    def write(good: DataFrame, batch_id: int) -> None:
        good.drop("stream").write.mode("overwrite").parquet(str(out / f"batch={batch_id}"))

    columns = "n int, v string, deliveries int, process int"
    return _start(process(frame, work, columns, write, url=given["url"], **options), given, "group")


QUERIES = {"range": range_query, "copy": copy_query, "group": group_query}

if __name__ == "__main__":
    sys.exit(main())
