"""A read whose reply is lost has delivered entries that nobody holds: they are found, and no attempt is counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.delivery.delivery import Delivery
from millstream.delivery.settlement import Ack
from millstream.errors import Unavailable
from millstream.testing import Fault, Sim
from millstream.worker.message import Message
from millstream.worker.stream import Stream
from tests.scenarios.fleet import until
from tests.scenarios.simulated import SERVERS, Order, make_consumer
from tests.support.desk import Desk, act, numbers
from tests.support.places import Site, visit
from tests.support.proxy import DropReply, FaultProxy, Forward


@pytest.fixture(params=["broker", "valkey", "redis", "redis7"])
def proxy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FaultProxy]:
    for site in visit(request.param, request, tmp_path):
        with FaultProxy("127.0.0.1", int(site.url.rpartition(":")[2])) as made:
            yield made


def again(delivery: Delivery) -> Delivery:
    """A delivery as it is read again: nobody knows any more for how long it had waited."""
    return replace(delivery, idle_ms=-1)


def test_what_a_consumer_does_not_know_of_is_found_and_counts_no_delivery(place: Site) -> None:
    desk = Desk(place)
    one, two, three = desk.deliver(3)
    desk.publish(1)
    desk.read(b"other")
    known = [(two.id, two.number)]
    for _ in range(2):  # sent twice it finds the same
        assert desk.backend.run(desk.steps.reread(b"c1", 10, known)) == [again(one), again(three)]
    assert [row[2] for row in desk.pending()] == [1, 1, 1, 1]
    assert desk.backend.run(desk.steps.reread(b"c1", 1, known)) == [again(one)]
    assert desk.settle(b"c1", act(one), act(two), act(three)) == [1, 1, 1]
    assert desk.backend.run(desk.steps.reread(b"c1", 10, [])) == []


def test_its_lease_begins_anew_and_a_later_delivery_of_the_same_entry_is_unknown(place: Site) -> None:
    desk = Desk(place, lease_ms=200)
    (first,) = desk.deliver(1)
    time.sleep(0.25)
    (again,) = desk.take(b"c1")
    assert (again.id, again.number) == (first.id, 2)
    (lost,) = desk.backend.run(desk.steps.reread(b"c1", 10, [(first.id, first.number)]))
    assert (lost.id, lost.number, numbers([lost])) == (first.id, 2, [0])
    (row,) = desk.backend.run(desk.steps.pending_page(b"0-0", 10))
    assert row[2] < 200
    assert desk.backend.run(desk.steps.reread(b"c1", 10, [(lost.id, lost.number)])) == []


def test_an_entry_that_was_trimmed_away_is_left_to_the_sweep(place: Site) -> None:
    desk = Desk(place)
    one, two = desk.deliver(2)
    desk.execute("XDEL", "orders", one.id)
    assert desk.backend.run(desk.steps.reread(b"c1", 10, [])) == [again(two)]
    assert [row[0] for row in desk.pending()] == [one.id, two.id]


def test_a_worker_that_may_not_retry_handles_what_a_lost_reply_delivered(proxy: FaultProxy) -> None:
    orders = Stream[Order]("orders", proxy.url, group="g", max_retries=0, breaker=None)
    seen: list[tuple[int, int]] = []

    @orders.handler(concurrency=4)
    def charge(order: Order, message: Message[Order]) -> None:
        seen.append((order.n, message.attempt))

    with orders:
        orders.publish_many([Order(n) for n in range(20)])
        left = [3]

        def rule(argv: list[bytes], _: int) -> DropReply | Forward:
            is_lost = argv[0].upper() == b"XREADGROUP" and left[0] > 0
            left[0] -= is_lost
            return DropReply() if is_lost else Forward()

        proxy.rule = rule
        thread = threading.Thread(target=orders.run, kwargs={"signals": False}, daemon=True)
        thread.start()
        try:
            until(lambda: orders.audit().done == 20)  # well within the lease of 30 s
        finally:
            orders.stop()
            thread.join(60)
        account = orders.audit()
    assert left == [0]
    assert (account.done, account.dead, account.pending, account.balanced) == (20, 0, 0, True)
    assert sorted(seen) == [(n, 1) for n in range(20)]


def test_who_consumes_by_hand_gets_it_too(proxy: FaultProxy) -> None:
    with Stream[Order]("orders", proxy.url, group="g", max_retries=0) as orders:
        orders.publish(Order(7))
        proxy.drop_reply(command="XREADGROUP")
        for message in orders.consume(wait=5):
            message.ack()
            break
        assert (message.attempt, message.data, orders.audit().done) == (1, Order(7), 1)


def test_the_reply_of_a_takeover_may_be_lost_as_well(proxy: FaultProxy) -> None:
    """Its delivery counts, as it does when the reply comes; and once."""
    settings = Stream[Order]("orders", group="g", lease=0.3).settings
    with Stream[Order]("orders", proxy.url, group="g") as orders:
        dead, heir = (make_consumer(orders.backend, name, settings) for name in ("dead", "heir"))
        dead.open()
        orders.publish(Order(1))
        until(lambda: dead.fetch(10, 0.05))
        time.sleep(0.35)
        heir.check_clock()
        proxy.rule = lambda argv, _: DropReply() if argv[0].upper() in (b"EVALSHA", b"XREADGROUP") else Forward()
        with pytest.raises(Unavailable):
            heir.fetch(10, 0.05)
        proxy.reset()
        (delivery,) = heir.fetch(10, 0.05)
        assert delivery.number == 2
        assert [result.code for result in heir.settle([(delivery, Ack())])] == [1]


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("call", ["XREADGROUP", "recover"])
def test_in_virtual_time_no_lost_read_costs_an_attempt(server: str, call: str, nth: int) -> None:
    orders = Stream[Order]("orders", group="g", max_retries=0)

    @orders.handler(concurrency=2)
    def charge(order: Order) -> None:
        sim.sleep(1)

    with Sim(orders, workers=1, server=server) as sim:  # type: ignore[arg-type]
        for at in range(nth, nth + 4):
            sim.plan(Fault.DROP_REPLY, call=call, worker="w1", nth=at)
        sim.publish_many(orders, [Order(n) for n in range(8)])
        sim.run_until_done(25)  # less than a lease
        account = sim.audit(orders)
        assert (account.done, account.dead, account.balanced) == (8, 0, True)
        assert sorted(each.data.n for each in sim.happened("handler-entered")) == list(range(8))
        assert {each.attempt for each in sim.happened("handler-entered")} == {1}


@pytest.mark.parametrize("server", SERVERS)
def test_a_read_that_the_server_comes_to_only_later_is_found_too(server: str) -> None:
    """The connection broke, we asked what we have, and then the server got to the read that we had given up."""
    orders = Stream[Order]("orders", group="g", max_retries=0)
    with Sim(orders, workers=0, server=server) as sim:  # type: ignore[arg-type]
        consumer = sim.consumer(orders, "c")
        consumer.open()
        sim.plan(Fault.CUT, call="XREADGROUP", worker="c")
        with pytest.raises(Unavailable):
            consumer.fetch(10, 0)
        assert consumer.fetch(10, 0) == []
        sim.publish(orders, Order(1))
        sim.backend.execute("XREADGROUP", "GROUP", "g", "c", "STREAMS", "orders", ">", key="orders")
        assert consumer.fetch(10, 0) == []
        sim.advance(11)
        (delivery,) = consumer.fetch(10, 0)
        assert (delivery.number, consumer.attempt(delivery)) == (1, 1)
        assert consumer.fetch(10, 0) == []
