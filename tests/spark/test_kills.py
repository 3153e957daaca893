"""Drivers that are killed at any moment: everything is read and written exactly once, however often they start again.

MILLSTREAM_KILLS says how often (3; the long run has 20).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.spark.compat import HAS_LIMITS
from tests.spark.conftest import SOURCE, Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.skipif(not HAS_LIMITS, reason="this PySpark cannot limit a trigger")

KILLS = int(os.environ.get("MILLSTREAM_KILLS", "3"))
ROWS, ROWS_A_TRIGGER = 3_000, 300
START_S, RUN_S = 240, 600

PROGRAM = f"""
import sys
from millstream.spark import session
url, stream, place = sys.argv[1:]
spark = session("killed", log_file=place + "/log")
reader = spark.readStream.format("millstream").option("url", url).option("stream", stream)
frame = reader.option("maxOffsetsPerTrigger", {ROWS_A_TRIGGER}).option("minPartitions", 2).schema("n int").load()
def start(name, writer):
    return writer.option("checkpointLocation", place + "/" + name).trigger(availableNow=True)
files = start("files", frame.writeStream.format("parquet")).start(place + "/out")
entries = frame.writeStream.format("millstream").option("url", url).option("stream", stream + "-out")
entries = start("entries", entries.option("chunkSize", 50)).start()
for query in (files, entries):
    query.awaitTermination()
spark.stop()
"""


def start(place: Place, directory: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", PROGRAM, place.url, place.stream, str(directory)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with (directory / "err").open("ab") as err:
        return subprocess.Popen(words, stdout=err, stderr=err, env=environment, cwd=directory, start_new_session=True)


def batches(directory: Path) -> int:
    """Batches that have been begun, in both queries."""
    return sum(1 for path in directory.glob("*/offsets/*") if path.name.isdigit())


def kill_after(process: subprocess.Popen[bytes], directory: Path, more: int, delay_s: float) -> bool:
    """End a driver and its virtual machine some batches and some time from now; False if it has ended before."""
    wanted, deadline = batches(directory) + more, time.monotonic() + START_S
    while batches(directory) < wanted and time.monotonic() < deadline:
        if process.poll() is not None:
            return False
        time.sleep(0.01)
    time.sleep(delay_s)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)
    return True


def test_killed_drivers_read_and_write_everything_once(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    place.fill(ROWS)
    luck = random.Random(KILLS)
    killed = 0
    for _ in range(KILLS):
        process = start(place, tmp_path)
        try:
            killed += kill_after(process, tmp_path, luck.randint(1, 5), luck.random() * 0.3)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    last = start(place, tmp_path)
    assert last.wait(RUN_S) == 0, (tmp_path / "err").read_text()[-2000:]
    assert killed > 0, "every driver had ended before it was killed"
    rows = Counter(row.n for row in spark.read.parquet(str(tmp_path / "out")).collect())
    assert rows == Counter(range(ROWS))
    entries = Counter(int(fields[b"n"]) for _, fields in place.client.xrange(f"{place.stream}-out"))
    assert entries == Counter(range(ROWS))
