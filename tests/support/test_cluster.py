"""The cluster that other tests rest on: it starts whole, loses nothing in a failover, and can be put right again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.support.cluster import Cluster, slot_of


@pytest.fixture
def cluster(valkey_cluster: Cluster) -> Iterator[Cluster]:
    yield valkey_cluster
    valkey_cluster.reset()


def test_every_shard_takes_its_own_streams(cluster: Cluster) -> None:
    with cluster.client() as client:
        for index in range(3):
            client.xadd(cluster.key_on(index), {"n": index})
    assert [cluster.primary(index).client.dbsize() for index in range(3)] == [1, 1, 1]


def test_a_failover_keeps_what_was_written(cluster: Cluster) -> None:
    before, key = cluster.primary(0), cluster.key_on(0)
    with cluster.client() as client:
        written = client.xadd(key, {"n": 1})
        after = cluster.failover()
        assert after is not before
        assert [entry[0] for entry in client.xrange(key)] == [written]


def test_the_replica_takes_over_from_a_killed_primary(cluster: Cluster) -> None:
    key = cluster.key_on(0)
    with cluster.client() as client:
        client.xadd(key, {"n": 1})
        cluster.wait_for_replica()
        killed = cluster.kill_primary(0)
        assert cluster.wait_for_primary(0) is not killed
        assert client.xlen(key) == 1
    cluster.reset()
    assert len(cluster.primary(0).client.info("replication")["slave0"]) > 0


def test_a_moved_slot_takes_its_keys_along(cluster: Cluster) -> None:
    key = cluster.key_on(1)
    with cluster.client() as client:
        client.xadd(key, {"n": 1})
        cluster.move_slot(slot_of(key), to=2)
        assert cluster.shard_of(slot_of(key)) == 2
        assert client.xlen(key) == 1
        with pytest.raises(redis.exceptions.MovedError):
            cluster.primary(1).client.xlen(key)
    cluster.reset()
    assert cluster.shard_of(slot_of(key)) == 1
