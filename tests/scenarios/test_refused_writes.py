"""D3 and D4: a server out of memory, and a dead-letter key of the wrong type, lose nothing."""

from __future__ import annotations

import contextlib
import time

import pytest

from millstream.delivery.config.settings import Settings
from millstream.delivery.consumer import Consumer
from millstream.delivery.delivery import Delivery
from millstream.delivery.settlement import Ack, DeadLetter, Later, Reason, Release, Settlement
from millstream.errors import BackendError
from tests.scenarios.simulated import make_consumer
from tests.support.places import Site

FULL = ("memory", "file", "broker", "valkey", "redis", "redis7", "cluster")
REJECT = DeadLetter(Reason.REJECTED, "no")


def one_delivery(place: Site, settings: Settings) -> tuple[Consumer, Delivery]:
    consumer = make_consumer(place.connect(), "c", settings)
    consumer.open()
    consumer.backend.execute("XADD", "orders", "*", "n", "1")  # type: ignore[attr-defined]
    return consumer, fetch(consumer)


def fetch(consumer: Consumer, within_s: float = 60) -> Delivery:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = consumer.fetch(1, 0.05)
        if found:
            return found[0]
    raise AssertionError("nothing was delivered")


def settle_or_error(consumer: Consumer, delivery: Delivery, settlement: Settlement) -> None:
    """Either way: an answer, an answer that says why not, or an error; what became of the entry is looked at after."""
    with contextlib.suppress(BackendError):
        consumer.settle([(delivery, settlement)])


@pytest.mark.parametrize("place", FULL, indirect=True)
@pytest.mark.parametrize("redeliver", ["in_place", "copy"])
@pytest.mark.parametrize(
    "settlement",
    [Later(0.0), Later(0.05), REJECT, Release(), Ack()],
    ids=["retry", "later", "reject", "release", "ack"],
)
def test_no_settlement_loses_its_entry_when_memory_is_full(place: Site, redeliver: str, settlement: Settlement) -> None:
    """Scenario D3."""
    consumer, delivery = one_delivery(place, Settings(lease=0.4, redeliver=redeliver, max_retries=100))
    place.fill_memory()
    settle_or_error(consumer, delivery, settlement)
    place.free_memory()
    account = consumer.backend.run(consumer.steps.audit())
    done = account.counters.get("done:g", 0)
    assert account.pending + account.undelivered + account.dead + account.delayed + done == 1, account
    if account.pending or account.undelivered or account.delayed:
        consumer.maintain()
        consumer.settle([(fetch(consumer), Ack())])
        assert consumer.backend.run(consumer.steps.audit()).counters["done:g"] == 1


@pytest.mark.parametrize("place", FULL, indirect=True)
def test_recovery_goes_on_when_memory_is_full(place: Site) -> None:
    """Scenario D3."""
    one_delivery(place, Settings(lease=0.4))  # and its consumer is heard of no more
    other = make_consumer(place.connect(), "other", Settings(lease=0.4))
    other.check_clock()
    place.fill_memory()
    deadline, found = time.monotonic() + 60, list[Delivery]()
    while not found and time.monotonic() < deadline:
        try:
            found = other.fetch(10, 0.05)
        except BackendError:
            time.sleep(0.05)
    place.free_memory()
    found = found or [fetch(other)]
    assert found[0].number == 2
    assert [result.code for result in other.settle([(found[0], Ack())])] == [1]


@pytest.mark.parametrize("wrong", ["string", "list"])
def test_a_dead_letter_key_of_the_wrong_type_keeps_the_entry_pending(place: Site, wrong: str) -> None:
    """Scenario D4."""
    consumer, delivery = one_delivery(place, Settings(lease=0.4))
    words = ("SET", "{orders}:dlq", "x") if wrong == "string" else ("LPUSH", "{orders}:dlq", "x")
    consumer.backend.execute(*words)  # type: ignore[attr-defined]
    (result,) = consumer.settle([(delivery, REJECT)])
    assert result.error is not None
    assert "WRONGTYPE" in result.error
    rows = consumer.backend.run(consumer.steps.pending_page(b"0-0", 10))
    assert [row[0] for row in rows] == [delivery.id]
    consumer.backend.execute("DEL", "{orders}:dlq")  # type: ignore[attr-defined]
    assert [result.code for result in consumer.settle([(delivery, REJECT)])] == [1]


def test_the_others_of_the_same_call_are_settled(place: Site) -> None:
    """Scenario D4."""
    consumer, delivery = one_delivery(place, Settings(lease=5.0))
    consumer.backend.execute("XADD", "orders", "*", "n", "2")  # type: ignore[attr-defined]
    second = fetch(consumer)
    consumer.backend.execute("SET", "{orders}:dlq", "x")  # type: ignore[attr-defined]
    codes = [result.code for result in consumer.settle([(delivery, REJECT), (second, Ack())])]
    assert isinstance(codes[0], str)
    assert codes[1] == 1
