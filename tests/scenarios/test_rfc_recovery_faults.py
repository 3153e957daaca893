"""What goes wrong around the RFC's recovery, and does not with ours: lost requeues, late owners, clocks that jump.

These have no number of their own in the list of scenarios; each says which weak point of the RFC it is about.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.broker import Broker
from millstream.client import connect
from millstream.client.local_brokers import share_broker
from millstream.clock import ManualClock
from millstream.delivery.config.settings import RecoveryConfig, Settings
from millstream.delivery.consumer import Consumer
from millstream.delivery.policy import Backoff
from millstream.delivery.settlement import Release
from millstream.errors import LeaseLost, Unavailable
from tests.scenarios.fleet import Fleet, Tally, at, everywhere, few, finish, until
from tests.support.places import Site
from tests.support.proxy import FaultProxy

SHORT = RecoveryConfig(min_idle_time=1.5, reconciliation_interval=0.2)


# 4.1: between XACK and XADD


@everywhere
def test_requeueing_on_a_full_server_leaves_the_entry_pending_until_there_is_room(place: Site) -> None:
    fleet, tally = Fleet(place), Tally()
    ids = fleet.abandon(3)
    consumer = fleet.consumer(tally, opened=False)
    place.fill_memory()
    assert consumer.rfc.scan(consumer.backend).recovered == 0
    assert list(fleet.pending()) == ids
    place.free_memory()
    assert consumer.rfc.scan(consumer.backend).recovered == 3
    assert sorted(fields[b"_original_id"] for _, fields in fleet.entries()) == ids


@pytest.fixture
def proxied(place: Site) -> Iterator[tuple[Fleet, FaultProxy]]:
    """A fleet whose consumers talk to the server through a proxy."""
    fleet = Fleet(place)
    _, port = fleet.backend.node_for("orders")
    with FaultProxy("127.0.0.1", port) as proxy:
        yield fleet, proxy


@at("broker", "valkey", "redis", "redis7")
def test_a_lost_reply_of_the_requeue_loses_nothing_and_adds_nothing(proxied: tuple[Fleet, FaultProxy]) -> None:
    fleet, proxy = proxied
    with connect(proxy.url) as backend:
        consumer = Consumer(backend, b"orders", b"g", b"me", fleet.settings, lambda: time.monotonic_ns() // 1_000_000)
        assert consumer.rfc.on_expired(backend, [b"1-1"]) == 0  # the server has the script
        ids = fleet.abandon(3)
        proxy.drop_reply(command="EVALSHA")
        assert consumer.rfc.scan(backend).is_whole
    assert fleet.pending() == {}
    assert sorted(fields[b"_original_id"] for _, fields in fleet.entries()) == sorted(ids)


@few
def test_a_dead_letter_stream_of_the_wrong_type_keeps_entries_pending(
    place: Site, caplog: pytest.LogCaptureFixture
) -> None:
    fleet, tally = Fleet(place, config=RecoveryConfig(max_retries=0)), Tally()
    fleet.execute("SET", "{orders}:dlq", "no stream")
    ids = fleet.abandon(2)
    consumer = fleet.consumer(tally)
    assert list(fleet.pending()) == ids
    assert any("stays pending" in line and "WRONGTYPE" in line for line in caplog.messages)
    fleet.execute("DEL", "{orders}:dlq")
    assert consumer.rfc.scan(consumer.backend).recovered == 2
    assert len(fleet.dead()) == 2


# 4.8: the owner was not dead


@few
def test_a_handler_whose_entry_was_requeued_is_told_and_its_answer_does_not_count(place: Site) -> None:
    fleet, tally = Fleet(place, config=SHORT), Tally()
    told: list[Any] = []
    entered, freed = threading.Event(), threading.Event()

    def work(_: Any, message: Any) -> None:
        if message.retry_count:
            told.append("again")
            return
        entered.set()
        freed.wait(5)
        told.append(message.lease.valid)
        try:
            message.ack()
        except LeaseLost as error:
            told.append(error.entry_id == message.id)

    fleet.publish(1)
    with fleet.worker(work, tally, concurrency=1):
        assert entered.wait(60)
        requeue_of_the_living(fleet)
        until(lambda: tally["lease_lost"] == 1)
        freed.set()
        until(lambda: len(told) == 3)
    assert told == [False, True, "again"]
    assert fleet.pending() == {}
    assert tally["settled:ack"] == 1


@few
def test_a_coroutine_whose_entry_was_requeued_is_cancelled(place: Site) -> None:
    fleet, tally = Fleet(place, config=SHORT), Tally()
    ended: list[str] = []
    entered = threading.Event()

    async def work(_: Any, message: Any) -> None:
        if message.retry_count:
            ended.append("again")
            return
        entered.set()
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    fleet.publish(1)
    with fleet.worker(work, tally, concurrency=2):  # type: ignore[arg-type]
        assert entered.wait(60)
        requeue_of_the_living(fleet)
        until(lambda: sorted(ended) == ["again", "cancelled"])
    assert fleet.pending() == {}
    assert tally["settled:ack"] == 1


def requeue_of_the_living(fleet: Fleet) -> None:
    """A consumer of the RFC takes a missing lock for a death."""
    (entry_id,) = fleet.pending()
    fleet.execute("DEL", fleet.lock(entry_id))
    assert fleet.go().requeue(entry_id)


# 4.11: clocks


def test_a_clock_that_jumps_does_not_make_the_living_look_dead(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    started = clock.now_ms()
    watch = [0]

    def advance(ms: int) -> None:
        clock.advance(ms)
        watch[0] += ms

    with Broker(clock=clock) as broker:
        held = share_broker("jumping", broker)
        backend, tally = connect("memory://jumping"), Tally()
        settings = RecoveryConfig(min_idle_time=30).settings(listener=False)
        alive, other = (
            Consumer(backend, b"orders", b"g", name, settings, lambda: watch[0], tally) for name in (b"alive", b"other")
        )
        for consumer in (alive, other):
            consumer.open()
        backend.execute("XADD", "orders", "*", "n", "1")
        (delivery,) = alive.fetch(1, 0)
        advance(10_000)
        other.maintain()
        clock.advance(90_000)  # a failover to a server whose clock is ahead: locks and idle times are over at once
        assert not backend.execute("EXISTS", alive.keys.lock(delivery.id))
        assert other.rfc.on_expired(backend, [delivery.id]) is None
        assert other.rfc.on_expired(backend, [delivery.id]) is None
        assert alive.renew([(delivery.id, delivery.number)]) == set()  # its next heartbeat
        for _ in range(30):
            advance(5_000)
            other.maintain()
            assert alive.renew([(delivery.id, delivery.number)]) == set()
        assert tally["scan_requeued"] == tally["keyspace_requeued"] == 0
        assert any("clock has jumped" in line for line in caplog.messages)
        for _ in range(30):  # and now it dies: recovery works again
            advance(5_000)
            other.maintain()
        assert tally["scan_requeued"] == 1
        backend.close()
        held.close()
    assert clock.now_ms() > started


# Copies and their past


@few
def test_a_failed_handler_waits_its_backoff_before_the_copy_comes(place: Site) -> None:
    fleet = Fleet(place, more={"backoff": Backoff(0.6, factor=1.0, cap=0.6, jitter=False), "max_retries": 1})
    at_ms: list[float] = []

    def fail_once(_: Any, message: Any) -> None:
        at_ms.append(time.monotonic())
        if message.attempt == 1:
            raise ValueError("not yet")

    fleet.publish(1)
    with fleet.worker(fail_once) as program:
        until(lambda: len(at_ms) == 1)
        until(lambda: program.audit().delayed == 1)
        assert fleet.pending() == {}
        assert program.audit().balanced
        until(lambda: len(at_ms) == 2)
        until(lambda: program.audit().done == 1)
        assert program.audit().balanced
    assert 0.55 <= at_ms[1] - at_ms[0] <= 1.6


@everywhere
def test_a_release_is_a_copy_at_once_and_counts_nothing(place: Site) -> None:
    fleet = Fleet(place)
    (entry_id,) = fleet.publish(1)
    consumer = fleet.consumer()
    (delivery,) = consumer.fetch(1, 0)
    assert [result.code for result in consumer.settle([(delivery, Release())])] == [1]
    assert fleet.pending() == {}
    assert not fleet.execute("EXISTS", fleet.lock(entry_id))
    ((_, fields),) = fleet.go().read()
    assert (fields[b"_retry_count"], fields[b"_original_id"]) == (b"0", entry_id)


@few
def test_what_was_released_in_place_before_the_profile_changed_is_not_forgotten(place: Site) -> None:
    fleet = Fleet(place)
    before = Consumer(
        fleet.site.connect(), b"orders", b"g", b"before", Settings(lease=30), lambda: time.monotonic_ns() // 1_000_000
    )
    before.open()
    (entry_id,) = fleet.publish(1)
    before.settle([(before.fetch(1, 0)[0], Release())])
    consumer = fleet.consumer()
    (delivery,) = consumer.fetch(1, 0)
    assert (consumer.retry_count(delivery), consumer.original_id(delivery)) == (0, entry_id)


@few
def test_a_copy_that_was_taken_over_in_place_keeps_its_attempt(place: Site) -> None:
    """Copies are no profile of the RFC by themselves: without it deaths are counted apart from failures."""
    fleet = Fleet(place)
    settings = Settings(redeliver="copy", lease=30)
    consumer = Consumer(fleet.site.connect(), b"orders", b"g", b"c", settings, lambda: time.monotonic_ns() // 1_000_000)
    consumer.open()
    entry_id = fleet.execute("XADD", "orders", "*", "n", "1", "_retry_count", "2")
    attempts = []
    for _ in range(3):
        (delivery,) = consumer.fetch(1, 0)
        attempts.append((delivery.number, consumer.attempt(delivery)))
        fleet.age([entry_id])
        consumer._next_scan_ms = 0
    assert attempts == [(1, 3), (2, 3), (3, 3)]


@few
@pytest.mark.parametrize("counter", ["nan", "inf", "-7", "0x10", "1e3", "", "drei"])
def test_a_counter_that_is_no_number_counts_as_none(place: Site, counter: str) -> None:
    fleet = Fleet(place)
    entry_id = fleet.execute("XADD", "orders", "*", "n", "1", "_retry_count", counter)
    fleet.read_as("dead")
    fleet.age([entry_id])
    consumer = fleet.consumer()
    (delivery,) = consumer.fetch(1, 0)
    assert consumer.retry_count(delivery) == 1


@few
def test_a_redriven_entry_is_known_as_such_by_its_copies(place: Site) -> None:
    fleet = Fleet(place, config=RecoveryConfig(max_retries=1))
    consumer = fleet.consumer()
    fleet.publish(1)
    for _ in range(2):
        fleet.age(fleet.read_as("dying"))
        consumer.rfc.scan(consumer.backend)
    with fleet.program() as program:
        program.dead.redrive()
        for _ in range(2):
            fleet.age(fleet.read_as("dying"))
            consumer.rfc.scan(consumer.backend)
        (letter,) = fleet.dead()
        assert letter[b"_redriven"] == b"1"
        assert program.audit().balanced


@few
def test_a_worker_that_is_busy_still_scans(place: Site) -> None:
    fleet, tally = Fleet(place, config=SHORT), Tally()
    freed = threading.Event()
    fleet.publish(4)
    with fleet.worker(lambda *_: freed.wait(10), tally, concurrency=1):
        until(lambda: len(fleet.pending()) >= 2)
        fleet.publish(1, first=9)
        ids = [row[0] for row in fleet.entries() if row[1][b"n"] == b"9"]
        until(lambda: fleet.read_as("dead", 1) == [] or ids[0] in fleet.pending())
        fleet.age(ids)
        until(lambda: tally["scan_requeued"] == 1)
        freed.set()
        until(lambda: not fleet.pending() and not fleet.entries())


@few
def test_an_entry_is_handed_out_even_if_its_lock_cannot_be_written_now(place: Site) -> None:
    fleet = Fleet(place)
    fleet.publish(1)
    consumer = fleet.consumer()
    run = consumer.backend.run
    broken = [True]

    class Breaking:
        capabilities, is_cluster = consumer.backend.capabilities, consumer.backend.is_cluster

        def run(self, call: Any) -> Any:
            if broken[0] and call.script is not None:
                raise Unavailable("cut")
            return run(call)

    consumer.backend = Breaking()
    consumer._is_sure_of_clock = True
    (delivery,) = consumer.fetch(1, 0)
    broken[0] = False
    finish(consumer, [delivery])
