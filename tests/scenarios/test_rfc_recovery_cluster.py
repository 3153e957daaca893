"""The RFC's recovery on a real cluster of three shards, scenarios C19 to C22: every shard, slot moves, a failover."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from millstream.delivery.config.settings import ClusterMode, RecoveryConfig
from millstream.delivery.consumer import Consumer
from millstream.delivery.keys import Keys
from millstream.errors import BackendError, ConfigError
from millstream.worker.runtime import listener as listening
from millstream.worker.stream import Stream
from tests.scenarios.fleet import Fleet, Tally, finish, until
from tests.support.cluster import SLOTS, Cluster, slot_of
from tests.support.places import Site

SHORT = RecoveryConfig(min_idle_time=1.0, reconciliation_interval=0.2, cluster_mode=ClusterMode.OSS)


@pytest.fixture
def cluster(valkey_cluster: Cluster) -> Iterator[Cluster]:
    yield valkey_cluster
    valkey_cluster.reset()


@pytest.fixture
def site(cluster: Cluster) -> Iterator[Site]:
    made = Site("cluster", cluster.url)
    made.connect()
    for index in range(len(SLOTS)):
        cluster.primary(index).client.config_set("notify-keyspace-events", "")
    yield made
    made.leave()


def flags(cluster: Cluster, index: int) -> str:
    return str(cluster.primary(index).client.config_get("notify-keyspace-events")["notify-keyspace-events"])


def patiently(ask: Callable[[], Any], seconds: float = 60) -> Any:
    """Ask again while the cluster is in disorder."""
    end = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except (BackendError, redis.RedisError):
            assert time.monotonic() < end
            time.sleep(0.05)


def test_streams_on_every_shard_are_recovered(site: Site, cluster: Cluster) -> None:
    """Scenario C19."""
    for index in range(len(SLOTS)):
        fleet, tally = Fleet(site, stream=cluster.key_on(index, "jobs"), config=SHORT), Tally()
        ids = fleet.abandon(60)
        handled: list[str] = []
        with fleet.worker(lambda data, _, handled=handled: handled.append(data["n"]), tally):  # type: ignore[misc]
            until(lambda handled=handled: len(handled) == 60)  # type: ignore[misc]
        assert sorted(handled, key=int) == [str(n) for n in range(60)]
        assert tally["scan_requeued"] == len(ids)
        primary = cluster.primary(index).client
        assert primary.exists(fleet.stream) == 1  # it and what belongs to it is on this shard
        assert primary.exists(f"{{{fleet.stream}}}:meta") == 1


@pytest.mark.parametrize("index", range(len(SLOTS)))
def test_the_server_that_has_the_slot_is_listened_to(site: Site, cluster: Cluster, index: int) -> None:
    """Scenario C20."""
    fleet, tally = Fleet(site, stream=cluster.key_on(index, "heard")), Tally()
    consumer = fleet.consumer(tally)
    ids = fleet.abandon(5, locked=True)
    with fleet.listener(consumer) as listener:
        assert listener.listens_to == ("127.0.0.1", cluster.primary(index).port)
        assert [each for each in range(len(SLOTS)) if flags(cluster, each)] == [index]
        fleet.expire(ids)
        until(lambda: tally["keyspace_requeued"] == 5)
    assert tally["keyspace_notification"] == 5


def hears_a_death(fleet: Fleet, consumer: Consumer, tally: Tally) -> None:
    """Let a consumer die and see that the event is heard; no scan would find it, as the idle time is short."""
    before = tally["keyspace_requeued"]
    (entry_id,) = fleet.abandon(1, locked=True)
    fleet.age([entry_id], 1000)
    fleet.expire([entry_id])
    until(lambda: tally["keyspace_requeued"] == before + 1)
    finish(consumer, consumer.fetch(10, 0))


def test_the_listener_follows_a_slot_that_moves(site: Site, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario C21."""
    monkeypatch.setattr(listening, "LOOK_EVERY_S", 0.2)
    fleet, tally = Fleet(site, stream=cluster.key_on(1, "moved")), Tally()
    consumer = fleet.consumer(tally)
    with fleet.listener(consumer) as listener:
        for target in (2, 0):
            cluster.move_slot(slot_of(fleet.stream), target)
            owner = ("127.0.0.1", cluster.primary(target).port)
            until(lambda owner=owner: listener.listens_to == owner and listener.is_listening.is_set())  # type: ignore[misc]
            hears_a_death(fleet, consumer, tally)


def test_a_worker_goes_on_while_its_slot_moves(site: Site, cluster: Cluster) -> None:
    """Scenario C21."""
    fleet, tally = Fleet(site, stream=cluster.key_on(1, "work"), config=SHORT), Tally()
    handled: list[str] = []
    with fleet.worker(lambda data, _: handled.append(data["n"]), tally) as program:
        fleet.publish(20)
        until(lambda: len(handled) == 20)
        cluster.move_slot(slot_of(fleet.stream), 2)
        fleet.publish(20, first=20)
        until(lambda: len(handled) == 40)
        dead = fleet.abandon_while_busy(100)
        until(lambda: len(handled) == 40 + dead)
        program.reset_topology()  # the RFC's word; nothing here needed it
        fleet.publish(1, first=500)
        until(lambda: handled[-1] == "500")
    assert len(handled) == len(set(handled))


def test_recovery_goes_on_after_a_primary_died(site: Site, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario C21."""
    monkeypatch.setattr(listening, "LOOK_EVERY_S", 0.2)
    fleet, tally = Fleet(site, stream=cluster.key_on(0, "failover"), config=SHORT), Tally()
    handled: list[str] = []
    with fleet.worker(lambda data, _: handled.append(data["n"]), tally), fleet.listener(fleet.consumer(tally)) as heard:
        fleet.publish(10)
        until(lambda: len(handled) == 10)
        cluster.wait_for_replica()
        cluster.kill_primary(0)
        new = cluster.wait_for_primary(0)
        patiently(lambda: fleet.publish(10, first=10))
        until(lambda: len(set(handled)) >= 20)
        dead = patiently(lambda: fleet.abandon_while_busy(100))
        until(lambda: len(set(handled)) >= 20 + dead)
        until(lambda: heard.listens_to == ("127.0.0.1", new.port) and heard.is_listening.is_set())
    assert patiently(fleet.pending) == {}


@pytest.mark.parametrize("name", ["{tenant}:jobs", "plain", "{a}{b}", "x{tag}y", "café"])
def test_streams_of_any_name_that_can_have_companions_are_recovered(site: Site, name: str) -> None:
    """Scenario C22."""
    fleet, tally = Fleet(site, stream=name), Tally()
    keys = Keys(name.encode())
    lock_of = {entry_id: keys.lock(entry_id) for entry_id in fleet.abandon(3)}
    slots = {slot_of(key.decode()) for key in (keys.stream, keys.dead, keys.meta, keys.delayed, *lock_of.values())}
    assert slots == {slot_of(name)}
    consumer = fleet.consumer(tally)
    found = consumer.fetch(10, 0)
    assert len(found) == tally["scan_requeued"] == 3
    assert fleet.execute("GET", keys.lock(found[0].id)) == consumer.name
    for _ in range(3):  # until they are dead letters
        fleet.age(list(fleet.pending()))
        for entry_id in fleet.pending():
            fleet.execute("DEL", keys.lock(entry_id))
        consumer.rfc.scan(consumer.backend)
        consumer.fetch(10, 0)
    assert len(fleet.entries(keys.dead.decode())) == 3


@pytest.mark.parametrize("name", ["a}b", "a{}b", "x{"])
def test_names_whose_braces_form_no_tag_are_refused_with_the_reason(site: Site, name: str) -> None:
    """Scenario C22."""
    with pytest.raises(ConfigError, match="braces form no hash tag"):
        Consumer(site.connect(), name.encode(), b"g", b"c", RecoveryConfig().settings(), lambda: 0)
    program: Stream[str] = Stream(name, site.url, settings=RecoveryConfig().settings())
    with program, pytest.raises(ConfigError, match="braces form no hash tag"):
        program.publish("x")


def test_a_dead_letter_stream_in_another_slot_is_refused_with_the_reason(site: Site) -> None:
    """Scenario C22."""
    with pytest.raises(ConfigError, match="not in the slot"):
        Consumer(site.connect(), b"orders", b"g", b"c", RecoveryConfig(dlq_stream="graveyard").settings(), lambda: 0)


def test_the_rfcs_names_for_clusters_are_accepted_and_others_are_not() -> None:
    """Scenario C21."""
    assert RecoveryConfig(cluster_mode=ClusterMode.NONE).settings() == RecoveryConfig(cluster_mode="oss").settings()
    with pytest.raises(ConfigError, match="cluster_mode"):
        RecoveryConfig(cluster_mode="sharded")
