"""The test kit itself: what it promises to those who write tests with it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from millstream.delivery.policy import Backoff
from millstream.errors import ConfigError
from millstream.testing import Fault, Sim, Stuck
from millstream.worker.stream import Stream
from tests.support.servers import RealServer


@dataclass
class Order:
    n: int


def make(**settings: object) -> Stream[Order]:
    orders = Stream[Order]("orders", "redis://nowhere.invalid", group="g", **settings)
    orders.handler(lambda order: None)
    return orders


def test_the_sketch_of_the_design() -> None:
    orders = make()
    with Sim(workers=2) as sim:
        sim.publish(orders, Order(7))
        sim.run_until("handler-entered")
        sim.freeze("w1", 20)
        sim.advance(90)
        assert sim.completions(orders) == 1
        assert sim.audit(orders).balanced


def test_the_users_own_stream_is_left_alone() -> None:
    orders = make()
    before = (orders._definition.url, orders._definition.watch_ms, orders.settings)
    with Sim(orders) as sim:
        sim.publish(orders, Order(1))
        sim.run_until_done()
    assert (orders._definition.url, orders._definition.watch_ms, orders.settings) == before
    assert orders._backend is None


def test_coroutines_are_handled_in_virtual_time() -> None:
    orders = Stream[Order]("orders", group="g")

    @orders.handler(concurrency=3)
    async def charge(order: Order) -> None:
        await asyncio.sleep(10)

    with Sim(orders) as sim:
        sim.publish_many(orders, [Order(n) for n in range(6)])
        sim.run_until_done(60)
        assert sim.now_s == pytest.approx(20, abs=0.5)


def test_two_streams_have_workers_of_the_same_process() -> None:
    orders, bills = make(), Stream[Order]("bills", group="g")
    bills.handler(lambda order: None)
    with Sim(orders, bills, workers=1) as sim:
        sim.kill("w1")
        sim.publish(orders, Order(1))
        sim.publish(bills, Order(2))
        sim.advance(10)
        assert sim.completions(orders) + sim.completions(bills) == 0
        sim.start("w1")
        sim.run_until_done()
        assert (sim.completions(orders), sim.completions(bills)) == (1, 1)


def test_a_killed_worker_makes_no_more_calls() -> None:
    orders = make()
    with Sim(orders, workers=1) as sim:
        sim.advance(5)
        sim.kill("w1")
        before = len(sim.calls)
        sim.advance(500)
        assert len(sim.calls) == before
        assert not sim.is_alive("w1")


def test_a_fault_happens_at_its_call_and_once() -> None:
    orders = make(backoff=Backoff(1.0, jitter=False))
    with Sim(orders, workers=1) as sim:
        sim.plan(Fault.KILL_AFTER, worker="w1", call="settle")
        sim.publish(orders, Order(1))
        sim.run_until("killed")
        assert sim.completions(orders) == 1  # the server had done it
        assert sim.calls[-1].name == "settle"
        sim.start("w1")
        sim.publish(orders, Order(2))
        sim.run_until_done()
        assert sim.completions(orders) == 2


def test_an_entry_that_comes_while_its_reader_is_frozen_is_the_readers() -> None:
    """As with a real server: the reply lies in the socket of a process that does not run."""
    orders = make()
    with Sim(orders, workers=1) as sim:
        sim.advance(1)
        sim.freeze("w1", 10)
        sim.publish(orders, Order(1))
        assert sim.audit(orders).pending == 1
        sim.run_until("handler-entered")
        assert sim.now_s == pytest.approx(11, abs=0.1)


def test_what_does_not_come_is_an_error_that_says_so() -> None:
    with Sim(make(), workers=1) as sim, pytest.raises(Stuck, match="waited 5 s of simulated time for handler-entered"):
        sim.run_until("handler-entered", 5)


def test_a_worker_is_not_started_twice_and_an_unknown_one_is_named() -> None:
    with Sim(make(), workers=1) as sim:
        sim.advance(1)
        with pytest.raises(ConfigError, match="w1 is alive"):
            sim.start("w1")
        with pytest.raises(ConfigError, match="no worker 'w9'; there are w1"):
            sim.kill("w9")


def test_a_time_to_live_is_measured_in_simulated_time() -> None:
    orders = make()
    with Sim(orders, workers=0) as sim:
        sim.publish(orders, Order(1), ttl=30)
        sim.publish(orders, Order(2), ttl=300)
        sim.advance(100)
        sim.start("w1")
        sim.run_until_done()
        assert [letter.reason for letter in sim.dead(orders).list()] == ["expired"]
        assert sim.completions(orders) == 1


def test_a_real_server_gets_the_same_faults_in_real_time(valkey_server: RealServer) -> None:
    orders = make(lease=0.5)
    with Sim(orders, workers=2, engine=f"redis://127.0.0.1:{valkey_server.port}") as sim:
        sim.backend.execute("FLUSHALL", key=b"")
        sim.plan(Fault.DROP_REPLY, call="settle")
        sim.publish_many(orders, [Order(n) for n in range(3)])
        sim.run_until("handler-entered", 10)
        sim.kill(sim.log[-1].worker)
        sim.run_until_done(20)
        assert sim.completions(orders) == 3
        assert sim.audit(orders).balanced
        with pytest.raises(ConfigError, match="clock of a real server"):
            sim.jump(60)
