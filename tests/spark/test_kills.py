"""Drivers, executors and their Python workers that are killed at any moment, while three queries run.

    test ── adds entries all the time ──▶ two streams ──▶ crash_driver on local-cluster ──▶ Parquet, another stream
      └─ kills one of its processes, starts it again if that ended it

The group has a stream of its own: what it has done is removed, and a read by range that is slower would miss it.

By range everything is read and written exactly once. In group mode every entry is settled and none is there twice: the
lease is longer than the test, so that no duplicate has an excuse. Where leases are shorter than a start, entries may be
there twice, but only if they were delivered again.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
import redis

from millstream import Message, Stream
from millstream.client import connect
from millstream.delivery.keys import Keys
from millstream.delivery.steps import Steps
from millstream.worker.audit import Audit, audit_of
from tests.spark.conftest import SOURCE, Place
from tests.spark.crash_driver import GROUP, TOO_SLOW
from tests.spark.processes import Processes

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="processes are told apart by /proc")]

MASTER = "local-cluster[2,1,512]"
ALL = ("range", "copy", "group")
A_BATCH = 60  # entries
FIRST_MS = 1_700_000_000_000
LEASE_S = 5
AHEAD = 12  # batches that wait for a query, about
START_S, END_S = 400, 400
MORE_KILLS = 20  # at most, where chance has not met each query in a batch
ENDS_THE_DRIVER = ("all", "driver")
MAY_END_IT = ("planner", "helper")  # not while a query starts: Spark, or the driver, tries again


def group_stream(place: Place) -> str:
    return f"{place.stream}-of-group"


class Feed:
    """Entries that are added as long as batches are begun: n from 0 on, and a value that belongs to it."""

    def __init__(self, place: Place, batches: Callable[[], int]) -> None:
        self._streams = (place.stream, group_stream(place))
        self._client = redis.Redis(port=place.port)
        self._batches = batches
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ids: list[str] = []
        self._add(2 * A_BATCH)  # a query wants its stream to be there
        self._thread.start()

    def _add(self, count: int) -> None:
        pipe = self._client.pipeline(transaction=False)
        ids = [f"{FIRST_MS + n}-0" for n in range(len(self._ids), len(self._ids) + count)]
        for n, entry_id in enumerate(ids, len(self._ids)):
            for stream in self._streams:
                pipe.xadd(stream, {"n": n, "v": f"value {n}"}, id=entry_id)
        pipe.execute()
        self._ids += ids

    def _run(self) -> None:
        while not self._enough.wait(0.05):
            if len(self._ids) < A_BATCH * (self._batches() + AHEAD):
                self._add(A_BATCH // 4)

    def stop(self) -> list[tuple[str, int, str]]:
        """The end of it; all that was added."""
        self._enough.set()
        self._thread.join(60)
        self._client.close()
        return [(entry_id, n, f"value {n}") for n, entry_id in enumerate(self._ids)]


class Driver:
    """A driver that can be started as often as it takes."""

    def __init__(
        self, place: Place, directory: Path, luck: random.Random, queries: Sequence[str] = ALL, lease: str = "600s"
    ) -> None:
        self._directory = directory
        self._luck = luck
        self._queries = queries
        self._settings = {
            "url": place.url,
            "stream": place.stream,
            "group_stream": group_stream(place),
            "directory": str(directory),
            "master": MASTER,
            "rows": A_BATCH,
            "lease": lease,
        }
        self._excuses = 10
        self._may_end = False  # a process was killed that a query may not live without
        self.killed: list[tuple[str, ...]] = []  # what was killed, and the queries that were in a batch then
        self._process: subprocess.Popen[bytes] | None = None
        self._processes: Processes | None = None
        self._past: list[Processes] = []

    def start(self) -> None:
        """Start it; its queries begin one after the other, each time another one first."""
        queries = self._luck.sample(self._queries, len(self._queries))
        self._may_end = False
        path = os.pathsep.join([str(SOURCE), str(SOURCE.parent), os.environ.get("PYTHONPATH", "")])
        own = {"PYTHONPATH": path, "SPARK_HOME": str(_home(self._directory / "home"))}
        command = [sys.executable, "-m", "tests.spark.crash_driver", json.dumps(self._settings | {"queries": queries})]
        with (self._directory / "err").open("wb") as err:
            self._process = subprocess.Popen(command, env=os.environ | own, cwd=self._directory, stdout=err, stderr=err)
        self._processes = Processes(self._process.pid)

    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def has_begun(self) -> bool:
        """Whether all queries have written down a batch."""
        return self.batches_of_the_slowest() > 0

    def batches_of_the_slowest(self) -> int:
        return min(map(self.begun, self._queries))

    def begun(self, query: str) -> int:
        """How many batches a query has begun."""
        return self._count(query, "offsets")

    def _count(self, query: str, log: str) -> int:
        # By the last one's number: Spark keeps a hundred of them.
        return 1 + max((int(path.name) for path in (self._directory / query / log).glob("[0-9]*")), default=-1)

    def in_a_batch(self) -> list[str]:
        """The queries that have begun a batch and not ended it."""
        return [name for name in self._queries if self._count(name, "offsets") > self._count(name, "commits")]

    def wait(self, until: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not until():
            if self.has_ended():
                self.start_again()
            assert time.monotonic() < deadline, f"nothing has happened for {seconds} s:\n{self.words()}"
            time.sleep(0.01)

    def start_again(self) -> None:
        """After it has ended by itself, as it may after some kills, or on a busy machine: Spark waits for 10 s."""
        if not self._may_end:
            words = self.words()
            assert TOO_SLOW in words, f"the driver has ended:\n{words}"
            assert self._excuses, f"the driver has ended too often:\n{words}"
            self._excuses -= 1
        self.close()
        self.start()

    def words(self) -> str:
        return f"{(self._directory / 'err').read_text(errors='replace')[-3000:]}\nkilled so far: {self.killed}"

    def kill(self, kind: str) -> None:
        """End a process of the driver's, or all of them; the driver is started again if it does not live through it."""
        self.wait(lambda: self._hit(kind), START_S)  # there may be no worker just now
        assert self._process is not None
        assert self._processes is not None
        if kind in ENDS_THE_DRIVER:
            self._process.wait(END_S)
            self._past.append(self._processes)  # executors whose driver is gone go on until they notice
            self.start()

    def _hit(self, kind: str) -> bool:
        busy = self.in_a_batch()
        if self._processes is None or not self._processes.kill(kind, self._luck):
            return False
        self.killed.append((kind, *busy))
        self._may_end = self._may_end or kind in MAY_END_IT
        return True

    def killed_in_a_batch(self) -> set[str]:
        """The queries that were killed in the middle of a batch."""
        return {query for _, *busy in self.killed for query in busy}

    def disturb(self, kind: str) -> None:
        """Let one of the queries do something, then kill something."""
        query = self._luck.choice(self._queries)
        wanted = self.begun(query) + self._luck.randint(1, 3)
        self.wait(lambda: self.begun(query) >= wanted, START_S)
        time.sleep(self._luck.uniform(0, 0.5))
        self.kill(kind)

    def finish(self) -> None:
        (self._directory / "stop").touch()
        deadline = time.monotonic() + END_S
        while self._process is not None and self._process.poll() != 0:
            if self.has_ended():
                self.start_again()
            assert time.monotonic() < deadline, f"it does not end:\n{self.words()}"
            time.sleep(0.05)

    def close(self) -> None:
        for processes in (*self._past, *([self._processes] if self._processes else [])):
            processes.close()
        self._past = []
        if self._process is not None:
            self._process.wait(60)


def _home(directory: Path) -> Path:
    """A directory that is Spark's but for `work`, where executors leave their files: that is not for the package."""
    import pyspark

    if not directory.exists():
        directory.mkdir()
        for path in Path(pyspark.__file__).parent.iterdir():
            if path.name != "work":
                (directory / path.name).symlink_to(path)
    return directory


def audit(place: Place) -> Audit:
    with connect(place.url) as backend:
        account = backend.run(Steps(Keys(group_stream(place).encode()), GROUP.encode(), backend.capabilities).audit())
    return audit_of(account, GROUP)


def committed(directory: Path) -> list[Path]:
    """The files that Spark's file sink has written down as its own: what was left half way is not among them."""
    lines = [
        line for log in (directory / "_spark_metadata").glob("[0-9]*") for line in log.read_text().splitlines()[1:]
    ]
    return sorted({Path(urlsplit(json.loads(line)["path"]).path) for line in lines})


def rows_of(files: Iterable[Path], *names: str) -> list[tuple[Any, ...]]:
    """Rows in the order of the stream."""
    tables = [pq.ParquetFile(file).read(list(names)) for file in files]
    rows = [tuple(row[name] for name in names) for table in tables for row in table.to_pylist()]
    return sorted(rows, key=lambda row: tuple(map(int, row[0].split("-"))))


def check(place: Place, directory: Path, added: list[tuple[str, int, str]], seed: int) -> None:
    """Everything is there, row by row, exactly once."""
    told = f"seed {seed}, files in {directory}"
    assert rows_of(committed(directory / "range-out"), "id", "n", "v") == added, told
    copied = [(int(fields[b"n"]), fields[b"v"].decode()) for _, fields in place.client.xrange(f"{place.stream}-out")]
    assert sorted(copied) == [(n, value) for _, n, value in added], told
    assert rows_of((directory / "group-out").glob("batch=*/*.parquet"), "id", "n", "v") == added, told
    now = audit(place)
    assert (now.done, now.pending, now.undelivered, now.dead, now.balanced) == (len(added), 0, 0, 0, True), told


def run(place: Place, directory: Path, kinds: list[str], seed: int) -> None:
    """Run three queries under these kills, and some more until each query was killed in the middle of a batch."""
    driver = Driver(place, directory, random.Random(seed))
    feed = Feed(place, driver.batches_of_the_slowest)
    try:
        driver.start()
        driver.wait(driver.has_begun, START_S)
        for kind in kinds:
            driver.disturb(kind)
        for _ in range(MORE_KILLS):
            if driver.killed_in_a_batch() == set(ALL):
                break
            driver.disturb("executor")
        added = feed.stop()
        driver.finish()
    finally:
        feed.stop()
        driver.close()
    check(place, directory, added, seed)
    assert driver.killed_in_a_batch() == set(ALL), f"seed {seed}: a query was never killed in a batch"


@pytest.mark.timeout(1700)
def test_ten_kills_leave_everything_once(place: Place, tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    kinds = ["executor", "executor", "executor", "worker", "worker", "driver", "driver", "all", "planner", "helper"]
    random.Random(seed).shuffle(kinds)
    run(place, tmp_path, kinds, seed)
    executors = {process for _, process in rows_of((tmp_path / "group-out").glob("batch=*/*.parquet"), "id", "process")}
    assert len(executors) > 1, "one process has done it all"


@pytest.mark.timeout(1700)
def test_where_a_lease_ran_out_an_entry_is_there_twice_only_if_it_was_delivered_again(
    place: Place, tmp_path: Path
) -> None:
    """Leases are shorter than a start of Spark, and a worker takes over what a killed driver had.

    It leaves the entries in the stream, so that the batch finds them when it is run again: these are there twice.
    """
    by_worker: list[tuple[str, int]] = []
    worker = Stream[dict[str, str]](
        group_stream(place), place.url, group=GROUP, fields=True, lease=LEASE_S, retain="all"
    )

    @worker.handler(concurrency=2)
    def handle(_: dict[str, str], message: Message[dict[str, str]]) -> None:
        time.sleep(0.2)
        by_worker.append((message.id, message.delivery.number))

    seed = random.randrange(1 << 30)
    driver = Driver(place, tmp_path, random.Random(seed), ["group"], f"{LEASE_S}s")
    feed = Feed(place, lambda: driver.batches_of_the_slowest() + len(by_worker) // A_BATCH)  # it leaves some to both
    thread = threading.Thread(target=lambda: worker.run(signals=False), daemon=True)
    try:
        driver.start()
        driver.wait(driver.has_begun, START_S)
        thread.start()
        for kind in ("all", "executor", "all"):
            driver.disturb(kind)
        added = feed.stop()
        driver.finish()
        deadline = time.monotonic() + 120
        while audit(place).done < len(added) and time.monotonic() < deadline:
            time.sleep(0.2)
    finally:
        feed.stop()
        driver.close()
        worker.stop()
        thread.join(60)
        worker.close()
    by_query = rows_of((tmp_path / "group-out").glob("batch=*/*.parquet"), "id", "deliveries")
    numbers: dict[str, list[int]] = {entry_id: [] for entry_id, _, _ in added}
    for entry_id, number in (*by_query, *by_worker):
        numbers[entry_id].append(number)
    never = [entry_id for entry_id, found in numbers.items() if not found]
    letters = place.client.xrange(Keys(group_stream(place).encode()).dead)
    assert not never, f"seed {seed}: never handled: {never}; dead letters: {letters}; {audit(place)}"
    assert any(number > 1 for _, number in by_worker), f"seed {seed}: no lease has run out"
    twice = {entry_id: found for entry_id, found in numbers.items() if len(set(found)) < len(found)}
    assert not twice, f"seed {seed}: one delivery was handled twice: {twice}"
    now = audit(place)
    assert (now.done, now.pending, now.undelivered, now.dead, now.balanced) == (len(added), 0, 0, 0, True), seed
