"""A stream as programs use it: publish, handle, consume, dead letters, audit. On the embedded broker."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from millstream import ConfigError, Discard, Filter, LeaseLost, Message, Reject, Release, Retry, Stream
from millstream.errors import DeliveryError, MalformedPayload

MakeStream = Callable[..., Stream[Any]]


@dataclass
class Order:
    number: int
    item: str = "tea"


@contextmanager
def running(stream: Stream[Any]) -> Iterator[None]:
    thread = threading.Thread(target=stream.run)
    thread.start()
    try:
        yield
    finally:
        stream.stop()
        thread.join(60)
        assert not thread.is_alive(), "the worker did not stop"


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def is_idle(stream: Stream[Any]) -> bool:
    audit = stream.audit()
    return audit.pending == audit.undelivered == audit.delayed == 0


# Publishing


def test_the_type_argument_decides_the_payload(url: str) -> None:
    with Stream[Order]("typed", url, lease=1.0) as stream:
        stream.publish(Order(7))
        with pytest.raises(MalformedPayload):
            stream.publish({"number": 7})  # type: ignore[arg-type]
        (message,) = stream.consume(wait=0.1)
        assert message.data == Order(7)


def test_publishing_answers_with_the_entrys_id(make_stream: MakeStream) -> None:
    stream = make_stream()
    first, second = stream.publish({"n": 1}), stream.publish({"n": 2})
    ids = [row[0].decode() for row in stream.backend.execute("XRANGE", "orders", "-", "+")]
    assert ids == [first, second]


def test_many_are_published_in_order_and_in_few_calls(make_stream: MakeStream) -> None:
    stream = make_stream()
    ids = stream.publish_many({"n": n} for n in range(2500))
    assert len(set(ids)) == 2500
    assert [message.data["n"] for message in _taken(stream, 2500)] == list(range(2500))


def _taken(stream: Stream[Any], count: int) -> list[Message[Any]]:
    taken = []
    for message in stream.consume(ahead=500, wait=1.0):
        message.ack()
        taken.append(message)
        if len(taken) == count:
            break
    return taken


def test_a_dedupe_token_makes_the_second_publish_answer_with_the_first(make_stream: MakeStream) -> None:
    stream = make_stream()
    first = stream.publish({"n": 1}, dedupe="order-1")
    assert stream.publish({"n": 1}, dedupe="order-1") == first
    assert stream.publish({"n": 1}, dedupe="order-2") != first
    assert stream.audit().published == 2


def test_a_delayed_entry_comes_when_it_is_due(make_stream: MakeStream) -> None:
    stream = make_stream()
    started = time.monotonic()
    assert stream.publish({"n": 1}, delay=0.3) == ""
    assert stream.audit().delayed == 1
    message = next(iter(stream.consume(wait=60)))
    assert 0.29 <= time.monotonic() - started < 30
    assert message.data == {"n": 1}


def test_headers_travel_beside_the_payload(make_stream: MakeStream) -> None:
    stream = make_stream()
    stream.publish({"n": 1}, headers={"trace": "abc", "größe": "ä"})
    (message,) = stream.consume(wait=0.1)
    assert message.headers == {"trace": "abc", "größe": "ä"}
    assert message.data == {"n": 1}


def test_an_entry_beyond_its_time_to_live_becomes_a_dead_letter(make_stream: MakeStream) -> None:
    stream = make_stream()
    stream.publish({"n": 1}, ttl=0.01)
    time.sleep(0.02)
    assert list(stream.consume(wait=0.1)) == []
    (letter,) = stream.dead.list()
    assert letter.reason == "expired"


def test_maxlen_never_trims_what_a_group_still_needs(make_stream: MakeStream) -> None:
    stream = make_stream(maxlen=5, retain="all")
    stream.publish_many([{"n": n} for n in range(3)])
    for message in stream.consume(ahead=3, wait=0.05):
        message.ack()
    stream.publish_many([{"n": n} for n in range(3, 13)])
    assert stream.audit().undelivered == 10
    assert stream.backend.execute("XLEN", "orders") == 10, "the three that were done are gone, the ten are there"


# Handling


def test_returning_acknowledges_and_the_entry_is_removed(make_stream: MakeStream) -> None:
    stream, seen = make_stream(), []
    stream.handler(lambda data: seen.append(data["n"]))
    stream.publish_many([{"n": n} for n in range(20)])
    with running(stream):
        until(lambda: is_idle(stream))
    assert seen == list(range(20))
    assert stream.audit().done == 20
    assert stream.backend.execute("XLEN", "orders") == 0


def test_an_exception_retries_up_to_the_limit_and_then_dead_letters(make_stream: MakeStream) -> None:
    stream, attempts = make_stream(max_retries=2), []

    @stream.handler(concurrency=2)
    def fail(data: Any, message: Message[Any]) -> None:
        attempts.append((message.attempt, message.retry_count))
        raise ValueError("it is broken")

    entry_id = stream.publish({"n": 1})
    with running(stream):
        until(lambda: stream.dead.count() == 1)
    assert attempts == [(1, 0), (2, 1), (3, 2)]
    (letter,) = stream.dead.list()
    assert (letter.reason, letter.error, letter.attempts) == ("retries", "ValueError: it is broken", 3)
    assert letter.original_id == entry_id
    assert "in fail" in letter.traceback
    assert letter.group == "billing"
    assert letter.by_name == {b"data": b'{"n":1}'}


def test_retry_waits_as_long_as_it_says(make_stream: MakeStream) -> None:
    stream, times = make_stream(), []

    @stream.handler
    def later(data: Any, message: Message[Any]) -> None:
        times.append(time.monotonic())
        if message.attempt == 1:
            raise Retry(0.4)

    stream.publish({})
    with running(stream):
        until(lambda: is_idle(stream))
    assert 0.38 <= times[1] - times[0] < 0.6


def test_reject_dead_letters_at_once_with_the_reason(make_stream: MakeStream) -> None:
    stream = make_stream()

    @stream.handler
    def refuse(data: Any) -> None:
        raise Reject("no such customer")

    stream.publish({})
    with running(stream):
        until(lambda: stream.dead.count() == 1)
    (letter,) = stream.dead.list()
    assert (letter.reason, letter.error, letter.attempts) == ("rejected", "no such customer", 1)


def test_release_gives_back_without_counting(make_stream: MakeStream) -> None:
    stream, attempts = make_stream(), []

    @stream.handler
    def pass_on(data: Any, message: Message[Any]) -> None:
        attempts.append(message.attempt)
        if len(attempts) < 5:
            raise Release

    stream.publish({})
    with running(stream):
        until(lambda: is_idle(stream))
    assert attempts == [1] * 5


def test_malformed_entries_become_dead_letters_with_their_bytes_and_the_reader_lives(make_stream: MakeStream) -> None:
    stream, seen = make_stream(type=Order), []
    stream.handler(seen.append)
    stream.backend.execute("XADD", "orders", "*", "data", b"\xff\x00not json")
    stream.publish(Order(1))
    with running(stream):
        until(lambda: is_idle(stream))
    assert seen == [Order(1)]
    (letter,) = stream.dead.list()
    assert letter.reason == "malformed"
    assert letter.by_name == {b"data": b"\xff\x00not json"}


def test_a_handler_beyond_its_timeout_loses_the_delivery_and_its_thread_is_replaced(make_stream: MakeStream) -> None:
    stream, attempts, gate = make_stream(lease=3.0), [], threading.Event()

    @stream.handler(timeout=0.5)
    def stuck(data: Any, message: Message[Any]) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            gate.wait(60)

    stream.publish({})
    with running(stream):
        until(lambda: is_idle(stream))
        gate.set()
    assert attempts == [1, 2]
    assert stream.audit().done == 1


def test_a_handler_may_settle_by_itself(make_stream: MakeStream) -> None:
    stream = make_stream()

    @stream.handler
    def settle(data: Any, message: Message[Any]) -> None:
        message.reject("by hand")
        with pytest.raises(DeliveryError, match="settled already"):
            message.ack()

    stream.publish({})
    with running(stream):
        until(lambda: stream.dead.count() == 1)
    assert stream.audit().done == 0


def test_async_handlers_run_as_tasks_up_to_the_concurrency(make_stream: MakeStream) -> None:
    import asyncio

    stream, running_now, peak = make_stream(), [0], [0]

    @stream.handler(concurrency=8)
    async def work(data: Any) -> None:
        running_now[0] += 1
        peak[0] = max(peak[0], running_now[0])
        await asyncio.sleep(0.02)
        running_now[0] -= 1

    stream.publish_many([{}] * 40)
    with running(stream):
        until(lambda: is_idle(stream))
    assert peak[0] == 8
    assert stream.audit().done == 40


def test_stopping_releases_what_was_read_ahead_uncounted(make_stream: MakeStream) -> None:
    stream, gate, begun = make_stream(shutdown_grace=0.2), threading.Event(), threading.Event()

    @stream.handler
    def wait(data: Any) -> None:
        begun.set()
        gate.wait(10)

    stream.publish_many([{"n": n} for n in range(5)])
    with running(stream):
        assert begun.wait(60)
        time.sleep(0.05)
    gate.set()
    audit = stream.audit()
    assert audit.released == audit.pending
    assert [message.attempt for message in stream.consume(ahead=5, wait=0.05)] == [1] * 5


def test_discarding_dead_letters_must_be_asked_for_and_is_counted(make_stream: MakeStream) -> None:
    stream = make_stream(dead_letter=Discard, max_retries=0)
    stream.handler(lambda data: 1 / 0)
    stream.publish({})
    with running(stream):
        until(lambda: stream.audit().discarded == 1)
    assert stream.dead.count() == 0
    assert stream.audit().balanced


def test_a_stream_without_a_handler_says_how_to_give_one(make_stream: MakeStream) -> None:
    with pytest.raises(ConfigError, match="has no handler"):
        make_stream().run()


def test_an_unknown_setting_is_named(url: str) -> None:
    with pytest.raises(ConfigError, match="leese"):
        Stream("orders", url, leese=3)


# Consuming


def test_a_with_block_acknowledges_or_does_what_the_policy_says(make_stream: MakeStream) -> None:
    stream = make_stream(max_retries=1)
    stream.publish_many([{"n": 0}, {"n": 1}])
    attempts = []
    for message in stream.consume(wait=0.3):
        with message:
            attempts.append((message.data["n"], message.attempt))
            if message.data["n"] == 1:
                raise ValueError("no")
    assert attempts == [(0, 1), (1, 1), (1, 2)]
    assert [letter.reason for letter in stream.dead.list()] == ["retries"]


def test_a_lost_lease_is_told_and_changes_nothing(make_stream: MakeStream) -> None:
    stream = make_stream()
    entry_id = stream.publish({})
    for message in stream.consume(wait=0.1):
        stream.backend.execute("XCLAIM", "orders", "billing", "thief", 0, entry_id)
        with pytest.raises(LeaseLost):
            message.ack()
    assert stream.audit().pending == 1
    assert stream.audit().done == 0


def test_leases_are_renewed_while_the_caller_works(make_stream: MakeStream) -> None:
    stream = make_stream(lease=0.8)
    stream.publish({})
    for message in stream.consume(wait=0.1):
        time.sleep(1.2)
        assert list(stream.consume(wait=0.05)) == [], "nobody may take it over"
        message.ack()
    assert stream.audit().done == 1


def test_what_is_not_settled_at_the_end_of_the_loop_is_released(make_stream: MakeStream) -> None:
    stream = make_stream()
    stream.publish_many([{}] * 3)
    for _ in stream.consume(ahead=3, wait=0.1):
        break
    assert stream.audit().released == 3


# Dead letters


def _bury(stream: Stream[Any], count: int) -> None:
    stream.publish_many([{"n": n} for n in range(count)])
    for message in stream.consume(ahead=count, wait=0.1):
        message.reject("even" if message.data["n"] % 2 == 0 else "odd")


def test_dead_letters_are_listed_by_filter_and_shown(make_stream: MakeStream) -> None:
    stream = make_stream()
    _bury(stream, 10)
    assert stream.dead.count() == 10
    odd = list(stream.dead.list(Filter(error="odd")))
    assert [letter.by_name[b"data"] for letter in odd] == [b'{"n":%d}' % n for n in (1, 3, 5, 7, 9)]
    assert list(stream.dead.list(error="odd", reason="rejected", since="1h")) == odd
    assert list(stream.dead.list(until="1h")) == []
    assert list(stream.dead.list(ids=[odd[1].id])) == [odd[1]]
    with pytest.raises(ConfigError, match="colour"):
        list(stream.dead.list(colour="red"))
    with pytest.raises(ConfigError, match="not a duration"):
        list(stream.dead.list(since="soon"))
    assert stream.dead.show(odd[0].id) == odd[0]
    assert stream.dead.show("1-1") is None
    assert list(stream.dead.list(Filter(where=lambda letter: b"9" in letter.by_name[b"data"]))) == odd[-1:]


def test_redriving_puts_them_back_with_their_history(make_stream: MakeStream) -> None:
    stream = make_stream()
    _bury(stream, 4)
    before = {letter.original_id for letter in stream.dead.list()}
    plan = stream.dead.redrive(Filter(error="odd"), dry_run=True)
    assert (plan.matched, plan.done, stream.dead.count()) == (2, 0, 4)
    plan = stream.dead.redrive(Filter(error="odd"))
    assert (plan.matched, plan.done, stream.dead.count()) == (2, 2, 2)
    again = list(stream.consume(ahead=5, wait=0.1))
    assert {message.original_id for message in again} < before
    assert [message.data["n"] for message in again] == [1, 3]
    assert all(message.attempt == 1 for message in again)
    assert stream.audit().balanced


def test_a_redriven_entry_that_fails_again_remembers_its_first_id(make_stream: MakeStream) -> None:
    stream = make_stream()
    _bury(stream, 1)
    (first,) = stream.dead.list()
    stream.dead.redrive()
    for message in stream.consume(wait=0.1):
        message.reject("again")
    (second,) = stream.dead.list()
    assert second.original_id == first.original_id
    assert second.redriven == 1


def test_a_redriven_entry_is_not_for_other_groups(make_stream: MakeStream) -> None:
    billing, shipping = make_stream(group="billing"), make_stream(group="shipping")
    billing.publish({"n": 1})
    for message in billing.consume(wait=0.05):
        message.reject("no")
    for message in shipping.consume(wait=0.05):
        message.ack()
    billing.dead.redrive()
    assert list(shipping.consume(wait=0.1)) == []
    assert [message.data for message in billing.consume(wait=0.1)] == [{"n": 1}]


def test_discarded_dead_letters_are_gone_and_counted(make_stream: MakeStream) -> None:
    stream = make_stream()
    _bury(stream, 3)
    assert stream.dead.discard(Filter(error="odd")).done == 1
    assert stream.dead.count() == 2
    assert stream.audit().discarded == 1
    assert stream.audit().balanced


def test_a_worker_that_releases_over_and_over_never_runs_out_of_room(make_stream: MakeStream) -> None:
    """A released entry comes back with the same number, perhaps before the release is known to have been heard."""
    stream, deliveries = make_stream(), []

    @stream.handler
    def pass_on(data: Any) -> None:
        deliveries.append(data)
        if len(deliveries) < 300:
            raise Release

    stream.publish_many([{"n": n} for n in range(3)])
    with running(stream):
        until(lambda: is_idle(stream))
    assert stream.audit().done == 3


def test_stop_reaches_each_run_of_a_stream() -> None:
    stream = Stream[int]("numbers", f"memory://{uuid.uuid4().hex}")
    stream.handler(lambda number: None)
    runs = [threading.Thread(target=stream.run, kwargs={"signals": False}, daemon=True) for _ in range(2)]
    for each in runs:
        each.start()
    while len(stream._workers) < 2:
        time.sleep(0.01)
    stream.stop()
    for each in runs:
        each.join(60)
    assert not any(each.is_alive() for each in runs)
    stream.close()
