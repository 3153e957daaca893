"""A failing handler is never silent: WARNING on a retry, ERROR with a traceback when its entry is given up."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from millstream import Backoff, Discard, Message, Reject, Retry
from millstream.aio import Stream as AsyncStream
from tests.worker.test_stream import MakeStream, running, until

SCRIPT = """
import threading, time
from millstream import Backoff, Stream

orders = Stream[dict]("orders", "memory://", group="g", max_retries=1, backoff=Backoff(0.01))

@orders.handler
def charge(order):
    raise ValueError("no such customer")

def stop_at_the_end():
    while not orders.dead.count():
        time.sleep(0.01)
    orders.stop()

orders.publish({"secret": "4711"})
threading.Thread(target=stop_at_the_end).start()
orders.run()
"""
LOGGER = "millstream.delivery.failure_log"


def fail(*_: Any) -> None:
    raise ValueError("no such customer")


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[int, type[BaseException] | None]]:
    """Levels and exceptions of what was logged about failures."""
    return [
        (record.levelno, record.exc_info[0] if record.exc_info else None)
        for record in caplog.records
        if record.name == LOGGER
    ]


EXPECTED = [(logging.WARNING, None), (logging.ERROR, ValueError)]


def test_a_bare_script_shows_retry_and_dead_letter_on_stderr() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    retry = next(line for line in lines if "again in" in line)
    assert "'orders' failed (attempt 1 of 2)" in retry
    assert "ValueError: no such customer" in retry
    end = next(number for number, line in enumerate(lines) if "is now a dead letter" in line)
    assert lines[end + 1] == "Traceback (most recent call last):"
    assert any("in charge" in line for line in lines[end:])
    assert "4711" not in done.stderr, "an entry's fields are not logged"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_that_fails_is_logged(
    make_stream: MakeStream, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    stream = make_stream(max_retries=1)

    async def fail_later(*_: Any) -> None:
        fail()

    stream.handler(fail_later if is_async else fail)
    stream.publish({"n": 1})
    with running(stream):
        until(lambda: stream.dead.count() == 1)
        until(lambda: len(logged(caplog)) == 2)
    assert logged(caplog) == EXPECTED


def test_a_failure_inside_with_message_is_logged_and_the_loop_goes_on(
    make_stream: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    stream = make_stream(max_retries=1)
    stream.publish({"n": 1})
    for message in stream.consume(wait=0.5):
        with message:
            fail()
    assert logged(caplog) == EXPECTED


def test_a_failure_inside_async_with_message_is_logged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with AsyncStream[Any]("orders", url, group="g", max_retries=1, backoff=Backoff(0.01)) as stream:
            await stream.publish({"n": 1})
            async for message in stream.consume(wait=0.5):
                async with message:
                    fail()

    asyncio.run(main())
    assert logged(caplog) == EXPECTED


def reject(_: Any, message: Message[Any]) -> None:
    raise Reject("no such address")


def reject_by_hand(_: Any, message: Message[Any]) -> None:
    message.reject("no such address")


def fail_after_ack(_: Any, message: Message[Any]) -> None:
    message.ack()
    raise ValueError("too late")


@pytest.mark.parametrize(("handler", "kind"), [(reject, Reject), (reject_by_hand, None)])
def test_a_rejection_is_logged_with_its_reason(
    make_stream: MakeStream, caplog: pytest.LogCaptureFixture, handler: Callable[..., None], kind: type | None
) -> None:
    stream = make_stream()
    stream.handler(handler)
    stream.publish({"n": 1})
    with running(stream):
        until(lambda: len(logged(caplog)) == 1)
    assert logged(caplog) == [(logging.ERROR, kind)]
    assert "no such address" in caplog.text


def test_an_entry_of_another_type_is_logged(make_stream: MakeStream, caplog: pytest.LogCaptureFixture) -> None:
    stream = make_stream(type=int)
    stream.handler(lambda value: None)
    stream.backend.execute("XADD", "orders", "*", "data", "seven")
    with running(stream):
        until(lambda: len(logged(caplog)) == 1)
    assert "malformed" in caplog.text
    assert logged(caplog)[0][0] == logging.ERROR


def test_what_is_discarded_is_logged_with_its_traceback(
    make_stream: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    stream = make_stream(dead_letter=Discard, max_retries=0)
    stream.handler(fail)
    stream.publish({"n": 1})
    with running(stream):
        until(lambda: len(logged(caplog)) == 1)
    assert logged(caplog) == [(logging.ERROR, ValueError)]
    assert "is dropped" in caplog.text


def test_a_failure_after_the_acknowledgement_is_logged(
    make_stream: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    stream = make_stream()
    stream.handler(fail_after_ack)
    stream.publish({"n": 1})
    with running(stream):
        until(lambda: "too late" in caplog.text)
    assert any(record.levelno == logging.ERROR and record.exc_info for record in caplog.records)


def test_a_retry_that_was_asked_for_is_no_warning(make_stream: MakeStream, caplog: pytest.LogCaptureFixture) -> None:
    stream = make_stream()
    tries = threading.Semaphore(0)

    @stream.handler
    def charge(_: Any, message: Message[Any]) -> None:
        tries.release()
        if message.attempt == 1:
            raise Retry(0)

    stream.publish({"n": 1})
    with caplog.at_level(logging.INFO, "millstream"), running(stream):
        assert tries.acquire(timeout=10)
        assert tries.acquire(timeout=10)
    with suppress(IndexError):
        assert logged(caplog)[0][0] == logging.INFO
