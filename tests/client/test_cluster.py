"""A cluster that changes under a backend: slots move, a primary dies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.client.calls import Call, Script, as_is
from millstream.errors import BackendError
from tests.client.conftest import Open
from tests.support.cluster import Cluster, slot_of

COUNT_UP = Script("return redis.call('INCR', KEYS[1])")


@pytest.fixture
def cluster(valkey_cluster: Cluster) -> Iterator[Cluster]:
    yield valkey_cluster
    valkey_cluster.reset()


def until_it_works(run: Any, seconds: float = 60) -> Any:
    """What a worker does: try again while the error says that this can help."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return run()
        except BackendError as error:
            if not error.is_retryable or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def test_calls_go_to_the_shard_of_their_key(open_backend: Open, cluster: Cluster) -> None:
    backend = open_backend(cluster.url)
    for index in range(3):
        key = cluster.key_on(index)
        assert backend.run(COUNT_UP.call([key.encode()], [], as_is)) == 1
        assert backend.node_for(key) == ("127.0.0.1", cluster.primary(index).port)
        assert cluster.primary(index).client.get(key) == "1"


def test_a_moved_slot_is_followed_without_an_error(open_backend: Open, cluster: Cluster) -> None:
    backend = open_backend(cluster.url)
    key = cluster.key_on(1)
    step = COUNT_UP.call([key.encode()], [], as_is)
    stream = f"{{{key}}}:s"
    read = Call(("XREAD", "BLOCK", 50, "STREAMS", stream, "0"), stream.encode(), as_is, block_ms=50)
    assert backend.run(step) == 1
    backend.execute("XADD", stream, "1-1", "a", "b")
    assert backend.run(read)
    for target in (2, 0, 1):
        cluster.move_slot(slot_of(key), target)
        assert backend.run(step) > 1
        assert backend.execute("GET", key) is not None
        assert backend.run(read)[0][1][0][0] == b"1-1"
    assert backend.execute("GET", key) == b"4"


def test_replies_stay_raw_on_nodes_that_were_met_later(open_backend: Open, cluster: Cluster) -> None:
    backend = open_backend(cluster.url)
    key = cluster.key_on(1)
    cluster.failover()
    cluster.move_slot(slot_of(key), 0)
    backend.execute("XADD", key, "1-1", "a", "b")
    assert backend.execute("XRANGE", key, "-", "+") == [[b"1-1", [b"a", b"b"]]]
    assert backend.execute("PEXPIRE", key, 60_000) == 1


def test_a_failover_is_survived_by_calls_that_try_again(open_backend: Open, cluster: Cluster) -> None:
    backend = open_backend(cluster.url, timeout_s=1)
    key = cluster.key_on(0)
    step = COUNT_UP.call([key.encode()], [], as_is)
    for expected in range(1, 6):
        assert backend.run(step) == expected
    cluster.wait_for_replica()
    dead = cluster.kill_primary(0)
    assert until_it_works(lambda: backend.run(step)) == 6
    read = Call(("XREAD", "BLOCK", 20, "STREAMS", key, "$"), key.encode(), as_is, block_ms=20)
    backend.execute("DEL", key)
    assert until_it_works(lambda: backend.run(read)) is None  # the client for blocking reads learns it for itself
    assert backend.node_for(key)[1] != dead.port


def test_a_shard_without_a_primary_is_no_hindrance_to_the_others(open_backend: Open, cluster: Cluster) -> None:
    backend = open_backend(cluster.url, timeout_s=1)
    for node in cluster.nodes:
        node.client.config_set("cluster-require-full-coverage", "no")
    lost, kept = cluster.key_on(2), cluster.key_on(1)
    backend.execute("SET", kept, "v")
    cluster.kill_primary(2)
    with pytest.raises(BackendError) as caught:
        backend.execute("SET", lost, "v")
    assert caught.value.is_retryable
    assert until_it_works(lambda: backend.execute("GET", kept)) == b"v"
