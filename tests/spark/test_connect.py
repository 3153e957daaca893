"""Spark Connect: a client that talks to a Spark server finds the source there, and all that it can do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import SOURCE, Place

pytestmark = [
    pytest.mark.skipif(not find_spec("grpc"), reason='Spark Connect needs grpc: pip install "pyspark[connect]"'),
    pytest.mark.long,
]
RUN_S = 600


def client(place: Place, directory: Path, *acts: str) -> dict[str, Any]:
    """Let a client of its own do this; what it found."""
    place.fill(100)
    given = {"url": place.url, "stream": place.stream, "directory": str(directory), "acts": acts}
    path = os.pathsep.join([str(SOURCE), str(SOURCE.parent), os.environ.get("PYTHONPATH", "")])
    own = {"PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_client", json.dumps(given)],
        env=os.environ | own,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("kind").startswith("pyspark.sql.connect")
    return found


@pytest.mark.timeout(RUN_S + 60)
def test_a_client_reads_writes_and_settles(place: Place, tmp_path: Path) -> None:
    everything = list(range(100))
    assert client(place, tmp_path, "rows", "registered", "written", "streamed", "settled") == {
        "rows": everything,
        "registered": everything,
        "written": 10,
        "streamed": 100,
        "settled": "0 pending, 0 behind",
    }


@pytest.mark.timeout(RUN_S + 60)
def test_a_function_of_rows_runs_on_the_server(place: Place, tmp_path: Path) -> None:
    assert client(place, tmp_path, "processed") == {"processed": [99, "0 pending, 0 behind"]}
    assert place.client.xlen(f"{{{place.stream}}}:dlq") == 1
