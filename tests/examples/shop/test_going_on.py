"""Runs of the demo that do not go through: a killed driver, Ctrl-C, and one after the other in the same place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from examples.shop.events import truth
from tests.examples.shop.conftest import HAS_SPARK, SEED, ended, rows, start, summary

pytestmark = [pytest.mark.timeout(1800), pytest.mark.skipif(not HAS_SPARK, reason="pyspark is not installed")]
SMALL = 6_000
WAIT_S = 600


def await_done(directory: Path, process: subprocess.Popen[str], least: int) -> None:
    """Wait until so much is done, and Spark has ended a batch."""
    file, until = directory / "samples.jsonl", time.monotonic() + WAIT_S
    while time.monotonic() < until and process.poll() is None:
        lines = file.read_text().splitlines() if file.exists() else []
        is_far = any(json.loads(line)["done"] >= least for line in lines[-3:-1])
        if is_far and (directory / "checkpoint" / "commits" / "0").exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"it has not come so far: {process.poll()}")


def children_of(directory: Path) -> list[int]:
    """Processes that were started for a run, found by its directory in their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(directory).encode() in words and b"examples.shop." in words:
                found.append(int(entry.name))
    return found


def await_no_children(directory: Path) -> None:
    until = time.monotonic() + 60
    while children_of(directory):
        assert time.monotonic() < until, "processes were left behind"
        time.sleep(0.1)


def test_a_run_whose_driver_is_killed_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    first = start(directory, SMALL)
    await_done(directory, first, SMALL // 3)
    first.kill()
    first.wait()
    await_no_children(directory)
    code, said = ended(start(directory, SMALL))
    assert "going on with the run" in said
    assert code == 0, said
    made = truth(SMALL, SEED)
    assert sorted(int(str(row["order"])) for row in rows(directory)) == sorted(made.accepted)
    assert summary(directory)["done"] == len(made.accepted)


def test_ctrl_c_stops_cleanly_and_the_next_run_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    first = start(directory, SMALL)
    await_done(directory, first, SMALL // 3)
    os.kill(first.pid, signal.SIGINT)
    code, said = ended(first)
    assert code == 130, said
    assert "Traceback" not in said
    assert children_of(directory) == []
    code, said = ended(start(directory, SMALL))
    assert code == 0, said
    assert summary(directory)["sent"] == SMALL


def test_it_runs_twice_in_a_row(tmp_path: Path) -> None:
    """A run that is over is not gone on with: the second begins anew, in the same directory."""
    directory = tmp_path / "run"
    for _ in range(2):
        code, said = ended(start(directory, 1_000))
        assert code == 0, said
        assert "going on" not in said
        assert summary(directory)["sent"] == 1_000
