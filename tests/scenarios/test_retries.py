"""D11 to D15: what a retry keeps, when it comes, and what a producer's does not do twice."""

from __future__ import annotations

import threading
import time

import pytest

from millstream.client import connect
from millstream.delivery.config.settings import Settings
from millstream.delivery.consumer import Consumer
from millstream.delivery.delivery import Delivery
from millstream.delivery.settlement import Ack, Later
from millstream.delivery.signals import Retry
from millstream.testing import Fault, Sim
from millstream.worker.message import Message
from millstream.worker.stream import Stream
from tests.scenarios.simulated import SERVERS, Order, make_consumer
from tests.support.places import Site
from tests.support.servers import RealServer

LEASE = Settings(lease=5.0)


def opened(place: Site, name: str = "c") -> Consumer:
    consumer = make_consumer(place.connect(), name, LEASE)
    consumer.open()
    return consumer


def add(consumer: Consumer, count: int) -> list[bytes]:
    return [consumer.backend.execute("XADD", "orders", "*", "n", str(n)) for n in range(count)]  # type: ignore[attr-defined]


def fetch(consumer: Consumer, count: int = 10, within_s: float = 60) -> list[Delivery]:
    found: list[Delivery] = []
    deadline = time.monotonic() + within_s
    while not found and time.monotonic() < deadline:
        found = consumer.fetch(count, 0.05)
    return found


def test_a_second_group_sees_no_copy_of_a_retry(place: Site) -> None:
    """Scenario D11."""
    one = opened(place)
    add(one, 1)
    other = Consumer(place.connect(), b"orders", b"other", b"c", LEASE, one.watch_ms)
    other.open()
    delivery = fetch(one)[0]
    assert len(fetch(other)) == 1
    one.settle([(delivery, Later(0.0))])
    assert fetch(one)[0].id == delivery.id
    assert other.fetch(10, 0.05) == []
    assert one.backend.execute("XLEN", "orders") == 1  # type: ignore[attr-defined]


def test_order_is_kept_after_a_retry_in_place(place: Site) -> None:
    """Scenario D12."""
    consumer = opened(place)
    ids = add(consumer, 3)
    first = fetch(consumer, 3)
    assert [each.id for each in first] == ids
    consumer.settle([(each, Later(0.0)) for each in first])
    add(consumer, 1)
    again = fetch(consumer, 3)
    assert [each.id for each in again] == ids  # before what is new, and in the order they had


def test_a_retry_keeps_id_fields_and_counter(place: Site) -> None:
    """Scenario D13."""
    consumer = opened(place)
    (entry_id,) = add(consumer, 1)
    for number in (1, 2, 3):
        delivery = fetch(consumer)[0]
        assert (delivery.id, delivery.number, delivery.fields) == (entry_id, number, ((b"n", b"0"),))
        consumer.settle([(delivery, Later(0.0))])
    consumer.settle([(fetch(consumer)[0], Ack())])
    account = consumer.backend.run(consumer.steps.audit())
    assert (account.added, account.pending, account.counters["done:g"]) == (1, 0, 1)


@pytest.mark.parametrize("place", ["memory", "valkey", "redis", "redis7"], indirect=True)
def test_a_retry_that_waits_longer_than_a_lease_is_due_on_time(place: Site) -> None:
    """D14. On real servers and with a worker; how close it comes is measured by the benchmark."""
    delay_s = 1.2
    orders = Stream[Order]("orders", place.url, group="g", lease=0.9)
    times: list[float] = []

    @orders.handler
    def charge(order: Order, message: Message[Order]) -> None:
        times.append(time.monotonic())
        if message.attempt == 1:
            raise Retry(delay_s)

    with running(orders):
        orders.publish(Order(1))
        deadline = time.monotonic() + 60
        while len(times) < 2 and time.monotonic() < deadline:
            time.sleep(0.005)
    assert -0.02 <= times[1] - times[0] - delay_s <= 5


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("delay_s", [0.5, 20, 29.9, 30.1, 100, 1000])
def test_a_delayed_retry_is_due_to_a_tenth_of_a_second(server: str, delay_s: float) -> None:
    """Scenario D14."""
    orders = Stream[Order]("orders", group="g")

    @orders.handler
    def charge(order: Order, message: Message[Order]) -> None:
        if message.attempt == 1:
            raise Retry(delay_s)

    with Sim(orders, workers=2, server=server) as sim:  # type: ignore[arg-type]
        sim.publish(orders, Order(1))
        sim.run_until_done(2 * delay_s + 60)
        one, two = sim.happened("handler-entered")
        assert two.at_s - one.at_s == pytest.approx(delay_s, abs=0.1)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "killed"])
def test_a_delayed_retry_survives_a_restart_of_all_workers(server: str, is_stopped: bool) -> None:
    """D14. Meanwhile the entry has come to look forgotten: it must not come too early."""
    orders = Stream[Order]("orders", group="g")

    @orders.handler
    def charge(order: Order, message: Message[Order]) -> None:
        if message.attempt == 1:
            raise Retry(200)

    with Sim(orders, workers=1, server=server) as sim:  # type: ignore[arg-type]
        sim.publish(orders, Order(1))
        sim.advance(10)
        sim.stop("w1") if is_stopped else sim.kill("w1")
        sim.advance(100)  # more than three leases
        sim.start("w1")
        sim.run_until_done(300)
        one, two = sim.happened("handler-entered")
        assert two.at_s - one.at_s == pytest.approx(200, abs=0.1)


@pytest.mark.parametrize("server", SERVERS)
def test_a_delayed_retry_survives_an_outage_of_the_server(server: str) -> None:
    """Scenario D14."""
    orders = Stream[Order]("orders", group="g")

    @orders.handler
    def charge(order: Order, message: Message[Order]) -> None:
        if message.attempt == 1:
            raise Retry(200)

    with Sim(orders, workers=1, server=server) as sim:  # type: ignore[arg-type]
        sim.publish(orders, Order(1))
        sim.advance(10)
        sim.outage(100)
        sim.run_until_done(300)
        one, two = sim.happened("handler-entered")
        assert two.at_s - one.at_s == pytest.approx(200, abs=0.1)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("delay_s", [0.02, 0.2, 0.9, 2.9, 3.1, 75.5])
def test_a_delayed_publication_is_due_on_time(server: str, delay_s: float) -> None:
    """Scenario D14. Whatever the worker waits for when it is published."""
    orders = Stream[Order]("orders", group="g")

    @orders.handler
    def charge(order: Order) -> None: ...

    with Sim(orders, workers=2, server=server) as sim:  # type: ignore[arg-type]
        sim.advance(10.3)
        for pause_s, later_s in ((0, None), (0.05, None), (1.7, 100.0)):
            if later_s is not None:
                sim.publish(orders, Order(0), delay=later_s)  # a later one that is known already
            sim.advance(pause_s)
            published = sim.now_s
            sim.publish(orders, Order(1), delay=delay_s)
            seen = len(sim.happened("handler-entered"))
            sim.run_until(lambda before=seen: len(sim.happened("handler-entered")) > before, 100)  # type: ignore[misc]
            assert sim.now_s - published == pytest.approx(delay_s, abs=0.02)


@pytest.mark.parametrize("server", SERVERS)
def test_a_delayed_copy_and_a_delayed_publication_with_an_acknowledgement_are_due_on_time(server: str) -> None:
    """Scenario D14. Both wait beside the stream, as what a producer has delayed."""
    orders = Stream[Order]("orders", group="g", redeliver="copy")

    @orders.handler
    def charge(order: Order, message: Message[Order]) -> None:
        if order.n == 1 and message.attempt == 1:
            raise Retry(0.3)
        if order.n == 2:
            message.publish(orders, Order(3), delay=0.3)

    with Sim(orders, workers=2, server=server) as sim:  # type: ignore[arg-type]
        for n in (1, 2):
            sim.advance(10.3)
            seen = len(sim.happened("handler-entered"))
            sim.publish(orders, Order(n))
            sim.run_until(lambda before=seen: len(sim.happened("handler-entered")) == before + 2, 100)  # type: ignore[misc]
            one, two = sim.happened("handler-entered")[-2:]
            assert two.at_s - one.at_s == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("server", SERVERS)
def test_the_death_of_the_worker_that_knows_of_a_delayed_publication_costs_seconds(server: str) -> None:
    orders = Stream[Order]("orders", group="g")

    @orders.handler
    def charge(order: Order) -> None: ...

    with Sim(orders, workers=2, server=server) as sim:  # type: ignore[arg-type]
        sim.advance(10)
        sim.plan(Fault.KILL_AFTER, call="promote")  # the one that has taken the news asks first
        sim.publish(orders, Order(1), delay=0.2)
        sim.run_until("handler-entered", 100)
        assert sum(sim.is_alive(name) for name in ("w1", "w2")) == 1
        assert 10.2 <= sim.now_s <= 10 + 3.1


def test_a_server_that_forbids_to_wait_for_news_makes_delays_seconds_late(valkey_server: RealServer) -> None:
    with connect(f"redis://127.0.0.1:{valkey_server.port}") as backend:
        backend.execute("ACL", "SETUSER", "w", "on", ">w", "~*", "&*", "+@all", "-blpop", key=b"")
    orders = Stream[Order]("unwatched", f"redis://w:w@127.0.0.1:{valkey_server.port}")
    handled = threading.Event()

    @orders.handler
    def charge(order: Order) -> None:
        handled.set()

    with orders, running(orders):
        orders.publish(Order(1), delay=0.2)
        assert handled.wait(20)


@pytest.mark.parametrize(("place", "most"), [("valkey", 18.0), ("redis", 6.0)], indirect=["place"])
def test_an_idle_worker_asks_little(place: Site, most: float) -> None:
    """Commands a second, those inside scripts counted too."""
    orders = Stream[Order]("orders", place.url)

    @orders.handler
    def charge(order: Order) -> None: ...

    def commands() -> int:
        text = backend.execute("INFO", "commandstats", key=b"").decode()
        return sum(int(line.split("calls=")[1].split(",")[0]) for line in text.splitlines() if "calls=" in line)

    backend = place.connect()
    with orders, running(orders):
        time.sleep(1)
        before, began = commands(), time.monotonic()
        time.sleep(4)
        assert (commands() - before) / (time.monotonic() - began) <= most + 1


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("delay_s", [0.0, 5.0])
@pytest.mark.parametrize("count", [1, 3])
def test_a_producer_that_sends_again_after_a_lost_reply_publishes_once(server: str, delay_s: float, count: int) -> None:
    """Scenario D15."""
    orders = Stream[Order]("orders", group="g")

    @orders.handler
    def charge(order: Order) -> None: ...

    with Sim(orders, workers=1, server=server) as sim:  # type: ignore[arg-type]
        for nth in (1, 2, 3):
            sim.plan(Fault.DROP_REPLY, worker="producer", nth=nth)
        ids = sim.publish_many(orders, [Order(n) for n in range(count)], delay=delay_s)
        assert sim.call_count(worker="producer") == 4
        sim.run_until_done(100)
        assert len(ids) == count
        assert sim.audit(orders).published == sim.completions(orders) == count


def running(stream: Stream[Order]):  # type: ignore[no-untyped-def]
    """A worker of the stream in a thread, ended behind the block."""
    import contextlib
    import threading

    @contextlib.contextmanager
    def run():  # type: ignore[no-untyped-def]
        thread = threading.Thread(target=stream.run, kwargs={"signals": False}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            deadline = time.monotonic() + 60
            while not stream._workers and time.monotonic() < deadline:
                time.sleep(0.01)
            stream.stop()
            thread.join(60)
            stream.close()

    return run()
