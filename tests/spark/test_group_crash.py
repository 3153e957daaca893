"""Drivers that are killed: nothing is lost, nothing is there twice.

`MILLSTREAM_CRASHES=20` for the long run. The leases of group mode are longer than a test, so that no duplicate has an
excuse.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from millstream.client import connect
from millstream.delivery.keys import Keys
from millstream.delivery.steps import Steps
from millstream.worker.report import audit_of
from tests.spark.conftest import SOURCE, Place

CRASHES = int(os.environ.get("MILLSTREAM_CRASHES", "3"))
ROWS, A_BATCH = 4_000, 400
START_S, END_S = 180, 600


def descendants(pid: int) -> list[int]:
    """A process and all that it has started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in task.read_text().split():
                found += descendants(int(child))
    return found


def kill(process: subprocess.Popen[str]) -> None:
    """End a driver, its JVM and its workers at once."""
    for pid in descendants(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=30)


class Driver:
    """A query whose driver can be started as often as it takes."""

    def __init__(self, place: Place, directory: Path, mode: str) -> None:
        self._settings = {"url": place.url, "stream": place.stream, "directory": str(directory), "mode": mode,
                          "rows": A_BATCH}  # fmt: skip
        self._commits = directory / "checkpoint" / "commits"

    def start(self) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(SOURCE), str(SOURCE.parent), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "tests.spark.crash_driver", json.dumps(self._settings)]
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True)  # fmt: skip

    def committed(self) -> int:
        return len(list(self._commits.glob("[0-9]*"))) if self._commits.exists() else 0

    def crash(self, luck: random.Random) -> bool:
        """Start it, and kill it a while after it has done something; False if it was done before."""
        process, before = self.start(), self.committed()
        deadline = time.monotonic() + START_S
        while self.committed() <= before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(luck.uniform(0, 1.5))
        is_running = process.poll() is None
        kill(process)
        return is_running

    def finish(self) -> dict[str, object]:
        process = self.start()
        try:
            output, _ = process.communicate(timeout=END_S)
        finally:
            kill(process) if process.poll() is None else None
        assert process.returncode == 0
        found: dict[str, object] = json.loads(output.splitlines()[-1])
        return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["group", "range"])
def test_killing_the_driver_loses_nothing_and_doubles_nothing(place: Place, tmp_path: Path, mode: str) -> None:
    ids = place.fill(ROWS)
    driver, seed = Driver(place, tmp_path, mode), random.randrange(1 << 30)
    luck = random.Random(seed)
    crashes = 0
    for _ in range(CRASHES if mode == "group" else max(1, CRASHES // 3)):
        if not driver.crash(luck):
            break
        crashes += 1
    assert crashes, "the driver was done before it could be killed"
    found = driver.finish()
    assert found == {"rows": ROWS, "distinct": ROWS, "first": ids[0], "last": ids[-1]}, f"seed {seed}"
    if mode == "group":
        with connect(place.url) as backend:
            account = backend.run(Steps(Keys(place.stream.encode()), b"g", backend.capabilities).audit())
        now = audit_of(account, "g")
        assert (now.done, now.pending, now.undelivered, now.dead, now.balanced) == (ROWS, 0, 0, 0, True), f"seed {seed}"
        assert place.client.xlen(place.stream) == 0
