"""A fence grows with every delivery of an entry, whatever the server's own count does."""

from __future__ import annotations

import time

import pytest

from millstream.delivery.config.settings import Settings
from millstream.delivery.consumer import Consumer
from millstream.delivery.delivery import Delivery
from millstream.delivery.settlement import Ack, DeadLetter, Later, Reason, Release
from millstream.worker.message import Context, Message
from millstream.worker.runtime.loop import make_context
from millstream.worker.stream import Stream
from tests.scenarios.fleet import at, until
from tests.scenarios.simulated import Order, make_consumer
from tests.support.places import Site


def fetch_one(consumer: Consumer) -> Delivery:
    found: list[Delivery] = []
    until(lambda: found.extend(consumer.fetch(1, 0.05)) or bool(found))
    (delivery,) = found
    return delivery


def test_a_fence_grows_after_releases_retries_and_deaths(place: Site) -> None:
    """A database that takes a write only if `fence > last` accepts each later delivery and refuses each earlier one."""
    settings = Settings(lease=0.3)
    orders = Stream[Order]("orders", place.url, group="g", settings=settings)
    with orders:
        orders.publish(Order(1))
        fences, attempts = list[str](), list[int]()
        ends = [Release(), Release(), Later(0.0), Release(), None, Later(0.05), None, Release(), Ack()]
        for life, end in enumerate(ends):
            consumer = make_consumer(place.connect(), f"life-{life}", settings)
            consumer.open()
            delivery = fetch_one(consumer)
            message = Message(None, delivery, context_of(orders, consumer))
            fences.append(message.fence)
            attempts.append(message.attempt)
            if end is not None:  # else: its process dies
                assert [each.code for each in consumer.settle([(delivery, end)])] == [1]
        assert fences == sorted(set(fences)), fences
        assert attempts == [1, 1, 1, 2, 2, 2, 3, 3, 3]  # failures count, releases and deaths do not
        assert place.connect().execute("EXISTS", b"{orders}:records:g", key="orders") == 0


def context_of(orders: Stream[Order], consumer: Consumer) -> Context:
    return make_context(
        consumer, orders._definition.policy, lambda _delivery, _seconds: None, (orders._definition.url,)
    )


def test_a_fence_grows_after_programs_that_set_the_count_back(place: Site) -> None:
    settings = Settings(lease=0.2)
    backend = place.connect()
    orders = Stream[Order]("orders", place.url, group="g", settings=settings)
    with orders:
        orders.publish(Order(1))
        consumer = make_consumer(backend, "c", settings)
        consumer.open()
        fences = [fetch_one(consumer)]
        for _ in range(3):
            entry_id = fences[-1].id
            if backend.capabilities.nack:
                backend.execute("XNACK", "orders", "g", "SILENT", "IDS", 1, entry_id, key="orders")
            else:
                words = ("IDLE", 10_000, "RETRYCOUNT", 0, "JUSTID")
                backend.execute("XCLAIM", "orders", "g", "other", 0, entry_id, *words, key="orders")
                time.sleep(0.25)  # the consumer that has it now is silent
            fences.append(fetch_one(make_consumer(backend, "c", settings)))
        assert [each.fence for each in fences] == [1, 2, 3, 4]


@pytest.mark.parametrize("verb", ["release", "retry"])
@at("broker", "valkey", "redis", "redis7")
def test_a_fence_grows_when_memory_is_full(place: Site, verb: str) -> None:
    settings = Settings(lease=0.3)
    orders = Stream[Order]("orders", place.url, group="g", settings=settings)
    with orders:
        orders.publish(Order(1))
        consumer = make_consumer(place.connect(), "c", settings)
        consumer.open()
        delivery = fetch_one(consumer)
        place.fill_memory()
        fences = [delivery.fence]
        for _ in range(3):
            consumer.settle([(delivery, Release() if verb == "release" else Later(0.0))])
            delivery = fetch_one(consumer)
            fences.append(delivery.fence)
        assert fences == [1, 2, 3, 4]
        assert delivery.failures == (0 if verb == "release" else 3)


def test_a_redriven_entry_has_a_greater_fence_as_text(place: Site) -> None:
    settings = Settings(lease=5.0)
    orders = Stream[Order]("orders", place.url, group="g", settings=settings)
    with orders:
        orders.publish(Order(1))
        consumer = make_consumer(place.connect(), "c", settings)
        consumer.open()
        fences = list[str]()
        for _ in range(3):
            delivery = fetch_one(consumer)
            fences.append(Message(None, delivery, context_of(orders, consumer)).fence)
            consumer.settle([(delivery, DeadLetter(Reason.REJECTED))])
            assert orders.dead.redrive().done == 1
        assert fences == sorted(set(fences))


def test_one_consumer_does_not_work_on_what_another_took_between_two_calls(place: Site) -> None:
    settings = Settings(lease=0.2)
    orders = Stream[Order]("orders", place.url, group="g", settings=settings)
    with orders:
        orders.publish(Order(1))
        consumer = make_consumer(place.connect(), "c", settings)
        consumer.open()
        first = fetch_one(consumer)
        time.sleep(0.25)
        second = fetch_one(make_consumer(place.connect(), "d", settings))
        assert (first.fence, second.fence) == (1, 2)
        (known,) = consumer.backend.run(consumer.steps.redelivered(b"c", [first]))
        assert known.fence == 0
        assert not consumer.begin_alone(first)
        (row,) = consumer.backend.run(consumer.steps.pending_page(b"0-0", 10))
        assert row[1] == b"d"
