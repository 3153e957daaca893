"""Runs of the demo: the sums, the Parquet files against the generator's truth, a kill and Ctrl-C on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from millstream.demo.events import Kind, truth
from tests.demo.conftest import HAS_SPARK, SEED, SIZE, ended, start

pytestmark = [pytest.mark.timeout(1800), pytest.mark.skipif(not HAS_SPARK, reason="pyspark is not installed")]
SMALL = 6_000
WAIT_S = 600


def summary(directory: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((directory / "summary.json").read_text())
    return found


def rows(directory: Path) -> list[dict[str, object]]:
    import pyarrow.dataset as ds

    found: list[dict[str, object]] = ds.dataset(
        directory / "accepted", format="parquet", partitioning="hive"
    ).to_table().to_pylist()  # fmt: skip
    return found


def test_what_it_sends_is_done_dead_or_a_duplicate(finished: tuple[Path, str]) -> None:
    found, made = summary(finished[0]), truth(SIZE, SEED)
    assert found["sent"] == SIZE == found["done"] + found["dead"] + found["pending"] + found["refused"]
    assert found["pending"] == 0
    assert found["refused"] == made.again > 0
    assert found["dead_reasons"] == {"malformed": made.kinds[Kind.MALFORMED]}
    assert found["redriven"] == made.kinds[Kind.UNKNOWN] > 0
    assert found["retried"] >= made.kinds[Kind.FLAKY] > 0
    assert found["by_spark"] > 0
    assert found["by_workers"] > 0
    assert found["redelivered"] > 0


def test_the_parquet_files_hold_what_the_generator_made(finished: tuple[Path, str]) -> None:
    found, made = rows(finished[0]), truth(SIZE, SEED)
    assert sorted(int(str(row["order"])) for row in found) == sorted(made.accepted)
    revenue: Counter[str] = Counter()
    for row in found:
        at = str(row["at"])
        assert row["hour"] == f"{at[:10]}-{at[11:13]}"
        assert row["title"]
        revenue[at[:13]] += int(str(row["quantity"])) * int(str(row["price"]))
    assert revenue == made.revenue


def test_it_says_where_to_go_on(finished: tuple[Path, str]) -> None:
    directory, said = finished
    assert "it adds up" in said
    assert str(directory / "report.html") in said
    assert said.count("\n  millstream ") == 3


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
            if str(directory).encode() in words and b"millstream.demo." in words:
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
