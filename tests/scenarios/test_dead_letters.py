"""D20 to D24: what kills workers, what cannot be read, a flood of dead letters, and sending them back."""

from __future__ import annotations

import pytest

from millstream.delivery.config.settings import Breaker
from millstream.delivery.policy import Backoff
from millstream.delivery.signals import Reject
from millstream.errors import Unavailable
from millstream.testing import Fault, Sim
from millstream.worker.message import Message
from millstream.worker.stream import Stream
from tests.scenarios.simulated import SERVERS, Order
from tests.support.places import Site


@pytest.mark.parametrize("server", SERVERS)
def test_an_entry_that_kills_its_workers_is_set_aside_and_its_neighbours_are_not(server: str) -> None:
    """Scenario D20."""
    orders = Stream[Order]("orders", group="g")

    @orders.handler(concurrency=4)
    def charge(order: Order, message: Message[Order]) -> None:
        if order.n == 3:
            sim.sleep(0.5)
            victim.append([each for each in sim.happened("handler-entered") if each.data.n == 3][-1].worker)
            sim.sleep(1000)

    victim: list[str] = []
    with Sim(orders, workers=2, server=server) as sim:  # type: ignore[arg-type]
        sim.publish_many(orders, [Order(n) for n in range(6)])
        for _ in range(3):
            victim.clear()
            sim.run_until(lambda: bool(victim), 200)
            sim.kill(victim[0])
            sim.start(victim[0])
        sim.run_until_done(200)
        (letter,) = sim.dead(orders).list()
        assert (letter.reason, letter.attempts, letter.by_name[b"data"]) == ("crashed", 4, b'{"n":3}')
        account = sim.audit(orders)
        assert (account.done, account.dead, account.balanced) == (5, 1, True)


@pytest.mark.parametrize("server", SERVERS)
def test_bytes_that_cannot_be_read_are_dead_lettered_and_reading_goes_on(server: str) -> None:
    """Scenario D21."""
    orders = Stream[Order]("orders", group="g", breaker=None)

    @orders.handler
    def charge(order: Order) -> None: ...

    with Sim(orders, workers=1, server=server) as sim:  # type: ignore[arg-type]
        sim.define(orders)
        broken = [("data", b"{"), ("data", b'{"n": "x"}'), ("data", b"\xff\xfe"), ("other", b"1"), ("data", b"[1, 2]")]
        for name, value in broken:
            sim.backend.execute("XADD", "orders", "*", name, value, key="orders")
        sim.versions[b"orders"] += 1
        sim.publish(orders, Order(1))
        sim.run_until_done(60)
        letters = list(sim.dead(orders).list())
        assert [(letter.reason, letter.fields) for letter in letters] == [
            ("malformed", ((name.encode(), value),)) for name, value in broken
        ]
        assert sim.completions(orders) == 1


@pytest.mark.parametrize("server", SERVERS)
def test_a_flood_of_dead_letters_pauses_reading(server: str) -> None:
    """Scenario D22."""
    orders = Stream[Order]("orders", group="g", breaker=Breaker(least=10, pause=30.0))

    @orders.handler
    def charge(order: Order) -> None:
        if sim.now_s < 40:
            raise Reject("everything fails today")

    with Sim(orders, workers=1, server=server) as sim:  # type: ignore[arg-type]
        sim.publish_many(orders, [Order(n) for n in range(200)])
        sim.advance(25)
        account = sim.audit(orders)
        assert 10 <= account.dead <= 15  # those in hand when it opened are settled too
        sim.run_until_done(400)
        account = sim.audit(orders)
        assert account.dead < 30  # one more try after the pause, and then it is over
        assert account.balanced


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("fault", [Fault.CUT, Fault.DROP_REPLY], ids=["cut", "dropped"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_redrive_that_was_interrupted_goes_on_without_repeating(server: str, fault: Fault, nth: int) -> None:
    """Scenario D23."""
    orders = Stream[Order]("orders", group="g", breaker=None)
    is_well = False

    @orders.handler(concurrency=4)
    def charge(order: Order) -> None:
        if not is_well:
            raise Reject("not today")

    with Sim(orders, workers=1, server=server) as sim:  # type: ignore[arg-type]
        sim.publish_many(orders, [Order(n) for n in range(120)])
        sim.run_until_done(200)
        assert sim.dead(orders).count() == 120
        is_well = True
        # all four tries of one step fail, as when the network is gone
        tries = [0]

        def rule(seen):  # type: ignore[no-untyped-def]
            if seen.name != "redrive":
                return None
            tries[0] += 1
            return fault if nth <= tries[0] < nth + 4 else None

        sim.on_call(rule)
        with pytest.raises(Unavailable):
            sim.dead(orders).redrive()
        sim.calm()
        sim.dead(orders).redrive()
        sim.run_until_done(200)
        account = sim.audit(orders)
        assert (account.done, account.dead, account.redriven, account.balanced) == (120, 0, 120, True)
        returned = [each.data.n for each in sim.happened("handler-returned")]
        assert sorted(returned) == list(range(120))


@pytest.mark.parametrize("server", SERVERS)
def test_a_redriven_entry_that_fails_again_carries_its_history(server: str) -> None:
    """Scenario D24."""
    orders = Stream[Order]("orders", group="g", max_retries=1, backoff=Backoff(1.0, jitter=False))

    @orders.handler
    def charge(order: Order, message: Message[Order]) -> None:
        seen.append((message.original_id, message.attempt))
        raise ValueError("again")

    seen: list[tuple[str, int]] = []
    with Sim(orders, workers=1, server=server) as sim:  # type: ignore[arg-type]
        first = sim.publish(orders, Order(1))
        for times in range(3):
            sim.run_until_done(60)
            (letter,) = sim.dead(orders).list()
            assert (letter.original_id, letter.redriven, letter.attempts) == (first, times, 2)
            assert (letter.reason, letter.error) == ("retries", "ValueError: again")
            assert "charge" in letter.traceback
            assert sim.dead(orders).redrive().done == 1
            sim.versions[b"orders"] += 1
        sim.run_until_done(60)
        assert set(seen) == {(first, 1), (first, 2)}
        assert sim.audit(orders).balanced


def test_two_groups_keep_their_accounts_apart(place: Site) -> None:
    """D24. One group's dead letter, and its redrive, are nothing to the other group's account."""
    with Stream[Order]("orders", place.url, group="a") as one, Stream[Order]("orders", place.url, group="b") as two:
        for stream in (one, two):  # both groups are there before the first entry: what no group needs is deleted
            assert list(stream.consume(wait=0.01)) == []
        one.publish_many([Order(n) for n in range(3)])
        for message in two.consume(wait=0.3):
            message.ack()
        for message in one.consume(wait=0.3):
            message.reject("no") if message.data.n == 1 else message.ack()
        assert (one.audit().dead, one.audit().balanced) == (1, True)
        assert (two.audit().dead, two.audit().done, two.audit().balanced) == (0, 3, True)
        assert one.dead.redrive().done == 1
        assert (one.audit().balanced, two.audit().balanced) == (True, True)
        for message in one.consume(wait=0.3):
            message.ack()
        assert list(two.consume(wait=0.3)) == []  # it was done there before
        assert (one.audit().done, one.audit().balanced, two.audit().balanced) == (3, True, True)
