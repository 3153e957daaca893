"""D8 to D10, D17: a worker that lost its lease can change nothing; one whose handler is stuck loses it."""

from __future__ import annotations

import threading
import time

import pytest

from millstream.delivery.config.settings import Settings
from millstream.delivery.consumer import Consumer
from millstream.delivery.settlement import Ack, DeadLetter, Later, Reason, Release, Settlement
from millstream.testing import Sim
from millstream.worker.stream import Stream
from tests.scenarios.simulated import SERVERS, Order, make_consumer
from tests.support.places import Site

LEASE_S = 0.3


def taken_over(place: Site) -> tuple[Consumer, Consumer, list, list]:  # type: ignore[type-arg]
    """An entry that one consumer had, and another one has since its lease ran out."""
    settings = Settings(lease=LEASE_S)
    zombie, survivor = (make_consumer(place.connect(), name, settings) for name in ("zombie", "survivor"))
    zombie.open()
    zombie.backend.execute("XADD", "orders", "*", "n", "1")  # type: ignore[attr-defined]
    old = zombie.fetch(10, 0.1)
    deadline = time.monotonic() + 60
    new: list = []  # type: ignore[type-arg]
    while not new and time.monotonic() < deadline:
        new = survivor.fetch(10, 0.1)
    assert [each.id for each in old] == [each.id for each in new]
    assert new[0].number == old[0].number + 1
    return zombie, survivor, old, new


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(Ack(), id="d8-ack"),
        pytest.param(Release(), id="d10-release"),
        pytest.param(Later(0.0), id="d10-retry-at-once"),
        pytest.param(Later(5.0), id="d10-retry-later"),
        pytest.param(DeadLetter(Reason.REJECTED, "late"), id="d10-reject"),
    ],
)
def test_a_zombie_settles_nothing(place: Site, late: Settlement) -> None:
    """Scenarios D8, D10."""
    zombie, survivor, old, new = taken_over(place)
    assert [result.is_lost for result in zombie.settle([(old[0], late)])] == [True]
    account = zombie.backend.run(zombie.steps.audit())
    assert (account.pending, account.dead, account.counters.get("done:g", 0)) == (1, 0, 0)
    assert survivor.renew([(new[0].id, new[0].number)]) == set()
    assert [result.code for result in survivor.settle([(new[0], Ack())])] == [1]


def test_a_zombies_heartbeat_does_not_steal_back(place: Site) -> None:
    """Scenario D9."""
    zombie, survivor, old, new = taken_over(place)
    assert zombie.renew([(old[0].id, old[0].number)]) == {old[0].id}
    rows = survivor.backend.run(survivor.steps.pending_page(b"0-0", 10))
    assert [(row[0], row[1]) for row in rows] == [(new[0].id, b"survivor")]
    assert [result.code for result in survivor.settle([(new[0], Ack())])] == [1]


def test_a_heartbeat_for_an_older_delivery_of_its_own_does_not_count(place: Site) -> None:
    """D9. The same consumer has it again: what the first of its handlers holds is lost all the same."""
    settings = Settings(lease=LEASE_S)
    consumer = make_consumer(place.connect(), "one", settings)
    consumer.open()
    consumer.backend.execute("XADD", "orders", "*", "n", "1")  # type: ignore[attr-defined]
    old = consumer.fetch(10, 0.1)
    new: list = []  # type: ignore[type-arg]
    deadline = time.monotonic() + 60
    while not new and time.monotonic() < deadline:
        new = consumer.fetch(10, 0.1)
    assert consumer.renew([(old[0].id, old[0].number)]) == {old[0].id}
    assert consumer.renew([(new[0].id, new[0].number)]) == set()


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "coroutine"])
def test_a_worker_that_wakes_from_a_freeze_acknowledges_nothing(server: str, is_async: bool) -> None:
    """Scenario D8."""
    orders = Stream[Order]("orders", group="g")
    if is_async:

        @orders.handler
        async def charge_later(order: Order) -> None: ...
    else:

        @orders.handler
        def charge(order: Order) -> None: ...

    with Sim(orders, workers=2, server=server) as sim:  # type: ignore[arg-type]
        sim.publish(orders, Order(7))
        sim.run_until("handler-entered")
        first = sim.log[-1].worker
        sim.freeze(first, 65)
        sim.advance(200)
        one, other = sim.happened("handler-entered")
        assert one.worker == first != other.worker
        assert sim.completions(orders) == 1
        assert sim.audit(orders).balanced


@pytest.mark.parametrize("server", SERVERS)
def test_a_handler_stuck_beyond_its_timeout_loses_the_entry(server: str) -> None:
    """Scenario D17."""
    orders = Stream[Order]("orders", group="g", max_retries=1, lease=10.0)

    @orders.handler(timeout=25)
    def charge(order: Order) -> None:
        if order.n == 1:
            sim.sleep(10_000)

    with Sim(orders, workers=1, server=server) as sim:  # type: ignore[arg-type]
        sim.publish_many(orders, [Order(1), Order(2)])
        sim.run_until(lambda: sim.audit(orders).dead == 1, 200)
        assert 50 <= sim.now_s <= 60  # two deliveries of 25 s and a backoff: its lease was kept for as long as allowed
        assert next(sim.dead(orders).list()).reason == "retries"
        sim.run_until(lambda: sim.completions(orders) == 1, 60)  # the neighbour had a thread all the same


@pytest.mark.parametrize("server", SERVERS)
def test_a_stuck_coroutine_is_cancelled(server: str) -> None:
    """Scenario D17."""
    orders = Stream[Order]("orders", group="g", max_retries=0, lease=10.0)
    ended: list[str] = []

    @orders.handler(timeout=25)
    async def charge(order: Order) -> None:
        import asyncio

        try:
            await asyncio.sleep(10_000)
        finally:
            ended.append("cancelled")

    with Sim(orders, workers=1, server=server) as sim:  # type: ignore[arg-type]
        sim.publish(orders, Order(1))
        sim.run_until(lambda: sim.audit(orders).dead == 1, 100)
        assert ended == ["cancelled"]


@pytest.mark.parametrize("server", SERVERS)
def test_a_slow_handler_keeps_its_lease(server: str) -> None:
    """D16. With threads that run; what holds the interpreter itself is in test_lease_process."""
    orders = Stream[Order]("orders", group="g")

    @orders.handler
    def charge(order: Order) -> None:
        sim.sleep(300)

    with Sim(orders, workers=2, server=server) as sim:  # type: ignore[arg-type]
        sim.publish(orders, Order(1))
        sim.run_until_done(400)
        assert len(sim.happened("handler-entered")) == 1
        assert sim.now_s == pytest.approx(300, abs=1)


def test_extend_moves_the_limit() -> None:
    """Scenario D17."""
    orders = Stream[Order]("orders", group="g", max_retries=0)

    @orders.handler(timeout=25)
    def charge(order: Order, message: object) -> None:
        message.extend(100)  # type: ignore[attr-defined]
        sim.sleep(90)

    with Sim(orders, workers=1) as sim:
        sim.publish(orders, Order(1))
        sim.run_until_done(200)
        assert sim.completions(orders) == 1


def test_the_simulation_leaves_no_threads_behind() -> None:
    before = threading.active_count()
    orders = Stream[Order]("orders", group="g")

    @orders.handler(concurrency=4)
    def charge(order: Order) -> None:
        sim.sleep(100)

    with Sim(orders, workers=3) as sim:
        sim.publish_many(orders, [Order(n) for n in range(20)])
        sim.advance(10)
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before
