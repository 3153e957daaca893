"""The demo as people start it, at a twentieth of its size, once for all tests that look at what it leaves."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SIZE, SEED = 10_000, 11
WAIT_S = 800
HAS_SPARK = importlib.util.find_spec("pyspark") is not None


def start(directory: Path, size: int, seed: int = SEED) -> subprocess.Popen[str]:
    """The demo as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "examples.shop", "--events", str(size), "--seed", str(seed), "--dir", str(directory)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and what it has said."""
    try:
        said, _ = process.communicate(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, said


def summary(directory: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((directory / "summary.json").read_text())
    return found


def rows(directory: Path) -> list[dict[str, object]]:
    import pyarrow.dataset as ds

    found: list[dict[str, object]] = (
        ds.dataset(directory / "accepted", format="parquet", partitioning="hive").to_table().to_pylist()
    )
    return found


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A directory with a run that is over, and what it said."""
    if not HAS_SPARK:
        pytest.skip("pyspark is not installed")
    directory = tmp_path_factory.mktemp("demo") / "run"
    code, said = ended(start(directory, SIZE))
    assert code == 0, said
    return directory, said
