"""D27: a failover to a server whose clock is another one does not deliver everything again."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from millstream.testing import Sim
from millstream.worker.stream import Stream
from tests.scenarios.simulated import SERVERS, Order
from tests.support.cluster import Cluster


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("skew_s", [60, -60, 3600])
def test_a_failover_with_a_skewed_clock_redelivers_nothing(server: str, skew_s: float) -> None:
    """Scenario D27."""
    orders = Stream[Order]("orders", group="g")

    @orders.handler(concurrency=8)
    def charge(order: Order) -> None:
        sim.sleep(90)  # three leases: the pause after a failover is one

    with Sim(orders, workers=3, server=server) as sim:  # type: ignore[arg-type]
        sim.publish_many(orders, [Order(n) for n in range(20)])
        sim.run_until(lambda: len(sim.happened("handler-entered")) == 20)
        sim.advance(15)
        sim.fail_over(skew_s)
        sim.run_until(lambda: sim.completions(orders) == 20, 2000)
        assert len(sim.happened("handler-entered")) == 20
        assert sim.audit(orders).balanced


@pytest.mark.parametrize("skew_s", [60, 3600])
def test_a_clock_that_jumps_without_a_broken_connection_redelivers_nothing(skew_s: float) -> None:
    """D27. Where recovery is our script, which knows what time it should be."""
    sim = jumped("older", skew_s, 60)
    assert len(sim.happened("handler-entered")) == 60


def test_a_clock_that_jumps_under_a_claim_read_redelivers_one_batch_of_each_worker() -> None:
    """D27. The newer servers' own read goes by their clock alone; the clock is checked before the next read."""
    sim = jumped("newest", 60, 60)
    assert len(sim.happened("handler-entered")) <= 60 + 3 * 10  # what each had room for


def jumped(server: str, skew_s: float, count: int) -> Sim:
    """Somebody sets the server's clock while three workers have all their hands full but for ten places."""
    orders = Stream[Order]("orders", group="g", batch=30)

    @orders.handler(concurrency=30)
    def charge(order: Order) -> None:
        sim.sleep(90)  # three leases: the pause after a failover is one

    with Sim(orders, workers=3, server=server) as sim:  # type: ignore[arg-type]
        sim.publish_many(orders, [Order(n) for n in range(count)])
        sim.run_until(lambda: len(sim.happened("handler-entered")) == count)
        sim.advance(15)
        sim.jump(skew_s)
        sim.run_until(lambda: sim.completions(orders) == count, 2000)
        assert sim.audit(orders).balanced
    return sim


@pytest.mark.parametrize("server", SERVERS)
def test_the_dead_are_still_found_after_a_failover(server: str) -> None:
    """Scenario D27."""
    orders = Stream[Order]("orders", group="g")

    @orders.handler
    def charge(order: Order) -> None:
        sim.sleep(5)

    with Sim(orders, workers=2, server=server) as sim:  # type: ignore[arg-type]
        sim.publish(orders, Order(1))
        sim.run_until("handler-entered")
        sim.kill(sim.log[-1].worker)
        sim.fail_over(60)
        before = sim.now_s
        sim.run_until_done(300)
        assert sim.now_s - before <= 30 + 30 + 5 + 2  # the pause, a lease, the work


def test_a_failover_of_a_real_cluster_loses_and_repeats_nothing(valkey_cluster: Cluster) -> None:
    """Scenario D27."""
    name = valkey_cluster.key_on(0)
    handled: Counter[int] = Counter()
    orders = Stream[Order](name, valkey_cluster.url, group="g", lease=5.0)
    lock = threading.Lock()

    @orders.handler(concurrency=8)
    def charge(order: Order) -> None:
        time.sleep(0.02)
        with lock:
            handled[order.n] += 1

    thread = threading.Thread(target=orders.run, kwargs={"signals": False}, daemon=True)
    thread.start()
    try:
        for first in range(0, 200, 50):
            orders.publish_many([Order(n) for n in range(first, first + 50)])
            if first == 50:
                valkey_cluster.failover()
        deadline = time.monotonic() + 60
        while orders.audit().done < 200 and time.monotonic() < deadline:
            time.sleep(0.05)
        account = orders.audit()
    finally:
        orders.stop()
        thread.join(60)
        orders.close()
        valkey_cluster.reset()
    assert (account.done, account.balanced) == (200, True)
    assert set(handled) == set(range(200))
    assert max(handled.values()) == 1


def test_a_killed_primary_of_a_real_cluster_is_survived(valkey_cluster: Cluster) -> None:
    """D27. What the replica had not yet is lost with the primary; what it had goes on with the new one."""
    name = valkey_cluster.key_on(0)
    orders = Stream[Order](name, valkey_cluster.url, group="g", lease=2.0)

    @orders.handler(concurrency=8)
    def charge(order: Order) -> None:
        time.sleep(0.01)

    orders.publish_many([Order(n) for n in range(100)])
    valkey_cluster.wait_for_replica()
    thread = threading.Thread(target=orders.run, kwargs={"signals": False}, daemon=True)
    thread.start()
    try:
        started = time.monotonic()
        while orders.audit().done == 0 and time.monotonic() - started < 20:
            time.sleep(0.02)
        valkey_cluster.kill_primary(0)
        valkey_cluster.wait_for_primary(0)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            account = orders.audit()
            if account.pending == account.undelivered == 0:
                break
            time.sleep(0.1)
        assert (account.pending, account.undelivered, account.dead) == (0, 0, 0)
        assert account.done == 100
    finally:
        orders.stop()
        thread.join(60)
        orders.close()
        valkey_cluster.reset()
