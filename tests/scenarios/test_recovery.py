"""D5 to D7, D25, D26: recovery finds the dead behind the living, in few calls, and clears away what is gone."""

from __future__ import annotations

import time
from typing import Any, TypeVar

import pytest

from millstream.client.backend import Backend
from millstream.client.calls import Call
from millstream.delivery.config.settings import Settings
from millstream.delivery.consumer import Consumer
from millstream.delivery.delivery import Delivery
from millstream.delivery.settlement import Ack
from millstream.testing import Sim
from millstream.worker.stream import Stream
from tests.scenarios.simulated import SERVERS, Order, make_consumer
from tests.support.places import Site

T = TypeVar("T")


class Counting:
    """A backend that counts its calls."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.capabilities, self.is_cluster = backend.capabilities, backend.is_cluster
        self.calls = 0

    def run(self, call: Call[T]) -> T:
        self.calls += 1
        return self._backend.run(call)


def fill(backend: Backend, count: int, *shares: tuple[str, int]) -> None:
    """Entries, and who has how many of them pending."""
    backend.execute("XGROUP", "CREATE", "orders", "g", "0", "MKSTREAM", key="orders")
    for first in range(0, count, 500):
        backend.execute(
            "EVAL",
            "for i = 1, tonumber(ARGV[1]) do redis.call('XADD', KEYS[1], '*', 'n', i) end",
            1,
            "orders",
            min(500, count - first),
            key="orders",
        )
    for name, share in shares:
        for first in range(0, share, 5000):
            count = min(5000, share - first)
            backend.execute("XREADGROUP", "GROUP", "g", name, "COUNT", count, "STREAMS", "orders", ">", key="orders")


@pytest.mark.parametrize("server", SERVERS)
def test_fifty_alive_ahead_do_not_hide_ten_dead(server: str) -> None:
    """Scenario D5."""
    orders = Stream[Order]("orders", group="g", batch=50)

    @orders.handler(concurrency=50)
    def charge(order: Order) -> None:
        sim.sleep(1000 if order.n < 50 else 0.05)  # what the dead one had is handled one at a time

    with Sim(orders, workers=0, server=server) as sim:  # type: ignore[arg-type]
        sim.start("slow")
        sim.publish_many(orders, [Order(n) for n in range(50)])
        sim.run_until(lambda: len(sim.happened("handler-entered")) == 50)
        dead = sim.consumer(orders, "dead")
        sim.publish_many(orders, [Order(n) for n in range(50, 60)])
        taken = dead.fetch(10, 0)
        assert len(taken) == 10
        sim.start("survivor")
        before = sim.now_s
        sim.run_until(lambda: sim.completions(orders) == 10, 120)
        assert sim.now_s - before <= 30 + 2  # a lease, and a second
        assert {each.worker for each in sim.happened("handler-entered") if each.data.n < 50} == {"slow"}


def test_the_dead_are_found_behind_the_living(place: Site) -> None:
    """Scenario D5."""
    backend = place.connect()
    fill(backend, 60, ("alive", 50), ("dead", 10))
    alive = make_consumer(backend, "alive", Settings(lease=1.0))
    rows = backend.run(alive.steps.pending_page(b"0-0", 50))
    survivor = make_consumer(place.connect(), "survivor", Settings(lease=1.0, batch=50))
    survivor.open()
    found: list[Delivery] = []
    deadline = time.monotonic() + 60
    while len(found) < 10 and time.monotonic() < deadline:
        assert alive.renew((row[0], row[3]) for row in rows) == set()
        fresh = survivor.fetch(50, 0.05)
        survivor.renew((each.id, each.number) for each in found)
        found += fresh
    assert {each.id for each in found}.isdisjoint(row[0] for row in rows)
    assert len(found) == 10


@pytest.mark.parametrize("place", ["memory", "file", "broker", "valkey", "redis", "redis7", "cluster"], indirect=True)
def test_ten_thousand_orphans_take_few_calls(place: Site) -> None:
    """D6. Time is bench/recovery.py's; here: calls, on every kind of server."""
    backend = place.connect(timeout_s=60)
    fill(backend, 10_000, *((f"dead-{n}", 1000) for n in range(10)))
    counting = Counting(backend)
    survivor = make_consumer(counting, "survivor", Settings(lease=0.5))  # type: ignore[arg-type]
    survivor.open()
    time.sleep(0.6)
    counting.calls, done, empty = 0, 0, 0
    deadline = time.monotonic() + 60
    while done < 10_000 and time.monotonic() < deadline:
        found = survivor.fetch(500, 0.01)
        empty += not found
        done += sum(result.code == 1 for result in survivor.settle([(each, Ack()) for each in found]))
    assert done == 10_000
    assert counting.calls - 2 * empty <= 100


EMBEDDED = [pytest.param(name, marks=pytest.mark.long) for name in ("memory", "file")]  # filled call by call


@pytest.mark.parametrize("place", ["broker", "valkey", "redis", "redis7", "cluster", *EMBEDDED], indirect=True)
def test_a_scan_with_a_hundred_thousand_pending_and_nothing_due_is_short(place: Site) -> None:
    """D7. By what the server says it took, as the machine may be busy; the best of some is what it costs."""
    backend = place.connect(timeout_s=60)
    fill(backend, 100_000, *((f"alive-{n}", 5000) for n in range(20)))
    looking = make_consumer(backend, "looking", Settings(lease=600.0))
    key, best = looking.steps.keys.stream, float("inf")
    by_read = backend.capabilities.claim_read  # the read itself looks
    cursor = scan(looking, by_read, b"0-0")
    for _ in range(20):
        backend.execute("CONFIG", "RESETSTAT", key=key)
        cursor = scan(looking, by_read, cursor)
        text: str = backend.execute("INFO", "commandstats", key=key).decode()
        told = text.split("cmdstat_xreadgroup:" if by_read else "cmdstat_evalsha:")[1]
        best = min(best, float(told.split("usec_per_call=")[1].split(",")[0]) / 1000)
    assert by_read or cursor != b"0-0"  # it walks on
    assert best < 10  # looking at each of them takes many times as long


def scan(consumer: Consumer, by_read: bool, cursor: bytes) -> bytes:
    """Look once for what is due, where nothing is; where to go on."""
    if by_read:
        assert consumer.backend.run(consumer.steps.read(b"looking", 50, None, 600_000)) == []
        return cursor
    found = consumer.backend.run(consumer.steps.recover(b"looking", 50, min_idle_ms=600_000, cursor=cursor))
    assert found.deliveries == []
    return found.cursor


def test_trimming_never_removes_what_is_pending_or_undelivered(place: Site) -> None:
    """Scenario D25."""
    orders = Stream[Order]("orders", place.url, group="g", maxlen=5)
    with orders:
        consumer = make_consumer(place.connect(), "c", Settings(lease=30.0))
        consumer.open()
        orders.publish_many([Order(n) for n in range(10)])
        held = consumer.fetch(4, 0.1)
        orders.publish_many([Order(n) for n in range(10, 30)])
        consumer.settle([(each, Ack()) for each in held[:2]])
        orders.publish(Order(30))
        seen = {each.id for each in held[2:]}
        while fresh := consumer.fetch(50, 0.05):
            seen |= {each.id for each in fresh}
        assert len(seen) == 31 - 2
        assert orders.audit().balanced


def ghost(place: Site, settings: Settings) -> tuple[Consumer, Any]:
    """A pending entry whose stream entry somebody has deleted."""
    consumer = make_consumer(place.connect(), "c", settings)
    consumer.open()
    backend: Any = consumer.backend
    entry_id = backend.execute("XADD", "orders", "*", "n", "1")
    backend.execute("XADD", "orders", "*", "n", "2")
    dead = make_consumer(place.connect(), "dead", settings)
    assert len(dead.fetch(1, 0.1)) == 1
    backend.execute("XDEL", "orders", entry_id)
    return consumer, entry_id


def test_ghosts_are_swept_counted_and_have_a_tombstone(place: Site) -> None:
    """Scenario D26."""
    consumer, entry_id = ghost(place, Settings(lease=0.3, reconcile_every=0.2))
    deadline = time.monotonic() + 60
    account = consumer.backend.run(consumer.steps.audit())
    while account.dead == 0 and time.monotonic() < deadline:
        consumer.maintain()
        for delivery in consumer.fetch(10, 0.05):
            assert delivery.id != entry_id
            consumer.settle([(delivery, Ack())])
        account = consumer.backend.run(consumer.steps.audit())
    assert (account.pending, account.dead) == (0, 1)
    assert account.counters["trimmed:g"] == 1
    with Stream[Order]("orders", place.url, group="g") as orders:
        (letter,) = orders.dead.list()
        assert (letter.reason, letter.original_id) == ("trimmed", entry_id.decode())
        assert orders.audit().balanced
