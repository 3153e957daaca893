"""D29: a handler's acknowledgement and what it published are one step: both happen, or neither, at every place."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from millstream import aio
from millstream.delivery.config.settings import Settings
from millstream.delivery.policy import Backoff
from millstream.delivery.settlement import Ack
from millstream.delivery.signals import Reject, Release, Retry
from millstream.delivery.steps import NewEntry, Publication
from millstream.errors import ConfigError, DeliveryError, NotSettled
from millstream.testing import Fault, Sim
from millstream.worker.message import Message
from millstream.worker.stream import Stream
from tests.scenarios.fleet import at, everywhere, running, until
from tests.scenarios.simulated import SERVERS, Order, make_consumer
from tests.support.desk import Desk, act
from tests.support.places import Site

ORDERS, PAYMENTS = "orders", "{orders}:payments"


def streams(site: Site, **settings: Any) -> tuple[Stream[Order], Stream[Order]]:
    orders = Stream[Order](ORDERS, site.url, group="g", **settings)
    return orders, Stream[Order](PAYMENTS, site.url, group="g")


def entries(stream: Stream[Any]) -> list[bytes]:
    return [row[1][1] for row in stream.backend.execute("XRANGE", stream.name, "-", "+")]


@everywhere
def test_what_a_handler_publishes_comes_with_its_acknowledgement_or_not_at_all(place: Site) -> None:
    """Scenario D29."""
    orders, payments = streams(place, max_retries=1, backoff=Backoff(0.02), breaker=None)

    @orders.handler(concurrency=4)
    def charge(order: Order, message: Message[Order]) -> None:
        message.publish(payments, Order(order.n * 10))
        message.publish(payments, Order(order.n * 10 + 1), headers={"from": message.id})
        if order.n == 1 and message.attempt == 1:
            raise Retry(0)
        if order.n == 2:
            raise Reject("no")
        if order.n == 3 and message.delivery.idle_ms == 0 and order.n not in seen:
            seen.add(3)
            raise Release
        if order.n == 4:
            raise ValueError("always")

    seen = set[int]()
    with orders, payments:
        orders.publish_many([Order(n) for n in range(5)])
        with running(orders):
            until(lambda: orders.audit().done + orders.audit().dead == 5)
        assert (orders.audit().done, orders.audit().dead, orders.audit().balanced) == (3, 2, True)
        assert sorted(entries(payments)) == sorted(b'{"n":%d}' % n for n in (0, 1, 10, 11, 30, 31))
        assert payments.audit().published == 6


@everywhere
def test_by_hand_and_with_options(place: Site) -> None:
    """Scenario D29."""
    orders, payments = streams(place)
    with orders, payments:
        orders.publish_many([Order(n) for n in range(3)])
        for message in orders.consume(wait=5):
            with message:
                message.publish(payments, message.data, dedupe="once")
                message.publish(payments, Order(100 + message.data.n), delay=60, ttl=5)
            with pytest.raises(DeliveryError, match="settled already"):
                message.publish(payments, message.data)
            if message.data.n == 2:
                break
        assert orders.audit().done == 3
        account = payments.audit()
        assert (account.undelivered, account.delayed, account.published) == (1, 3, 4)
        first = payments.backend.execute("XRANGE", PAYMENTS, "-", "+")[0][0].decode()
        assert payments.publish(Order(9), dedupe="once") == first  # the token counts for plain publications too


@everywhere
def test_asyncio_has_the_same_words(place: Site) -> None:
    """Scenario D29."""

    async def main() -> None:
        orders = aio.Stream[Order](ORDERS, place.url, group="g")
        payments = aio.Stream[Order](PAYMENTS, place.url, group="g")
        async with orders, payments:
            await orders.publish_many([Order(1), Order(2)])
            async for message in orders.consume(wait=5):
                async with message:
                    message.publish(payments, Order(10 * message.data.n))
                break

            @orders.handler
            async def charge(order: Order, message: Message[Order]) -> None:
                message.publish(payments, Order(10 * order.n))

            work = asyncio.create_task(orders.run(signals=False))
            while (await orders.audit()).done < 2:
                await asyncio.sleep(0.02)
            orders.stop()
            await work
            assert (await payments.audit()).published == 2

    asyncio.run(asyncio.wait_for(main(), 30))


@everywhere
def test_a_zombie_publishes_nothing_and_a_step_that_is_sent_again_once(place: Site) -> None:
    """Scenario D29."""
    settings = Settings(lease=0.3)
    zombie, heir = (make_consumer(place.connect(), name, settings) for name in ("zombie", "heir"))
    zombie.open()
    zombie.backend.execute("XADD", ORDERS, "*", "n", "1")  # type: ignore[attr-defined]
    keys = Desk(place, PAYMENTS.encode()).keys
    publish = Ack((Publication(keys, NewEntry([(b"n", b"1")])), Publication(keys, NewEntry([(b"n", b"2")], 60_000))))
    (old,) = zombie.fetch(1, 1)
    new: list[Any] = []
    until(lambda: new.extend(heir.fetch(1, 0.1)) or new)
    length: Callable[[], tuple[int, int]] = lambda: (  # noqa: E731
        heir.backend.execute("XLEN", PAYMENTS),
        heir.backend.execute("ZCARD", keys.delayed),  # type: ignore[attr-defined]
    )
    assert [result.is_lost for result in zombie.settle([(old, publish)])] == [True]
    assert length() == (0, 0)
    assert [result.code for result in heir.settle([(new[0], publish)])] == [1]
    assert [result.code for result in heir.settle([(new[0], publish)], is_repeat=True)] == [0]
    assert length() == (1, 1)


@everywhere
def test_one_that_cannot_be_appended_keeps_the_entry_and_its_neighbours_go_on(place: Site) -> None:
    """Scenario D29."""
    desk = Desk(place)
    good, wrong, full = (Desk(place, name) for name in (b"{orders}:good", b"{orders}:other", b"{orders}:full"))
    desk.execute("DEL", wrong.keys.stream, key=wrong.keys.stream)
    desk.execute("SET", wrong.keys.stream, "text", key=wrong.keys.stream)
    desk.execute("XADD", full.keys.stream, "18446744073709551615-18446744073709551615", "n", "1")
    one, two, three = desk.deliver(3)
    entry = NewEntry([(b"n", b"7")])

    def publish(*targets: Desk) -> tuple[Publication, ...]:
        return tuple(Publication(each.keys, entry) for each in targets)

    items = [act(one, "publish"), act(two, "publish"), act(three)]
    items[0] = replace(items[0], publish=publish(good, wrong))
    items[1] = replace(items[1], publish=publish(good, full))  # the first is appended, and taken back
    codes = desk.settle(b"c1", *items)
    assert str(codes[0]).startswith("WRONGTYPE")
    assert "exhausted" in str(codes[1])
    assert codes[2] == 1
    assert good.ids() == []
    assert [row[0] for row in desk.pending()] == [one.id, two.id]
    items[1] = replace(items[1], publish=publish(good, good))
    assert desk.settle(b"c1", items[1]) == [1]
    assert len(good.ids()) == 2


@everywhere
def test_full_memory_refuses_both(place: Site) -> None:
    """Scenario D29."""
    orders, payments = streams(place)
    with orders, payments:
        payments.publish(Order(0))
        orders.publish(Order(1))
        messages = orders.consume(wait=5)
        message = next(messages)
        message.publish(payments, Order(10))
        place.fill_memory()
        with pytest.raises(NotSettled, match="OOM"):
            message.ack()
        place.free_memory()
        assert (orders.audit().pending, payments.audit().published) == (1, 1)
        message.ack()
        assert (orders.audit().done, payments.audit().published) == (1, 2)
        messages.close()  # type: ignore[attr-defined]


@at("memory", "valkey")
def test_a_longest_length_is_kept(place: Site) -> None:
    """Scenario D29."""
    orders = Stream[Order](ORDERS, place.url, group="g")
    payments = Stream[Order](PAYMENTS, place.url, group="g", maxlen=3)
    with orders, payments:
        orders.publish_many([Order(n) for n in range(6)])
        for message in orders.consume(wait=5):
            message.publish(payments, message.data)
            message.ack()
            if message.data.n == 5:
                break
        assert entries(payments) == [b'{"n":%d}' % n for n in (3, 4, 5)]


@at("cluster")
def test_on_a_cluster_both_streams_must_be_in_one_slot(place: Site) -> None:
    """Scenario D29."""
    orders, elsewhere = streams(place)[0], Stream[Order]("payments", place.url, group="g")
    with orders, elsewhere:
        orders.publish(Order(1))
        for message in orders.consume(wait=5):
            with pytest.raises(ConfigError, match=r"'payments'.*'orders'.*hash tag, such as '\{orders\}:payments'"):
                message.publish(elsewhere, Order(1))
            message.ack()
            break


@at("memory", "valkey")
def test_both_streams_must_be_at_one_place(place: Site) -> None:
    """Scenario D29."""
    orders, elsewhere = streams(place)[0], Stream[Order]("payments", "redis://:secret@elsewhere", group="g")
    with orders:
        orders.publish(Order(1))
        for message in orders.consume(wait=5):
            with pytest.raises(ConfigError, match=r"'payments' is at redis://:\*\*\*@elsewhere and 'orders' at"):
                message.publish(elsewhere, Order(1))
            break


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(
    "fault", [Fault.KILL_BEFORE, Fault.KILL_AFTER, Fault.CUT, Fault.DROP_REPLY], ids=lambda fault: fault.name.lower()
)
def test_a_fault_at_any_settlement_leaves_both_or_neither(server: str, fault: Fault) -> None:
    """Scenario D29."""
    orders = Stream[Order]("orders", group="g", lease=3.0, max_retries=9)
    payments = Stream[Order]("payments", group="h", lease=3.0)
    paid: Counter[int] = Counter()

    @orders.handler(concurrency=2)
    def charge(order: Order, message: Message[Order]) -> None:
        sim.sleep(0.3)
        message.publish(payments, Order(order.n))

    @payments.handler
    def pay(order: Order) -> None:
        paid[order.n] += 1

    with Sim(orders, workers=0, server=server) as sim:  # type: ignore[arg-type]
        for nth in (1, 3, 4, 6):
            sim.plan(fault, worker="w1", call="settle", nth=nth)
        sim.start("w1", orders)
        sim.start("w2", payments)
        sim.publish_many(orders, [Order(n) for n in range(10)])
        while not sim.is_done():
            killed = len(sim.happened("killed"))
            sim.run_until(lambda before=killed: sim.is_done() or len(sim.happened("killed")) > before, 200)  # type: ignore[misc]
            if not sim.is_alive("w1"):
                sim.start("w1")
        assert sim.audit(orders).balanced
        assert sim.audit(payments).balanced
        assert sim.completions(orders) == 10
        assert sim.audit(payments).published == 10  # a handler that ran twice published once
        assert paid == Counter(range(10))
