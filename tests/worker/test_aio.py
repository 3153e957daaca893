"""The asyncio stream: the same words, awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from millstream import Backoff, Filter, LeaseLost, Reject, Retry
from millstream.aio import Message, Stream
from millstream.errors import DeliveryError


def run(main: Callable[[Stream[Any]], Awaitable[None]], url: str, **settings: Any) -> None:
    async def body() -> None:
        async with Stream[dict[str, Any]]("orders", url, group="billing", **({"lease": 1.0} | settings)) as stream:
            await asyncio.wait_for(main(stream), 20)

    asyncio.run(body())


def test_publish_consume_and_settle(url: str) -> None:
    async def main(stream: Stream[Any]) -> None:
        first = await stream.publish({"n": 0}, headers={"trace": "t"})
        await stream.publish_many([{"n": 1}, {"n": 2}, {"n": 3}])
        seen = []
        async for message in stream.consume(ahead=4, wait=0.3):
            seen.append((message.data["n"], message.attempt))
            match message.data["n"]:
                case 0:
                    assert (message.id, message.headers, message.original_id) == (first, {"trace": "t"}, first)
                    await message.ack()
                case 1:
                    await message.reject("no")
                case 2 if message.attempt == 1:
                    await message.retry(0.05)
                case _:
                    async with message:
                        pass
                    assert message.is_settled
        assert seen == [(0, 1), (1, 1), (2, 1), (3, 1), (2, 2)]
        audit = await stream.audit()
        assert (audit.done, audit.dead, audit.balanced) == (3, 1, True)

    run(main, url)


def test_an_exception_in_the_with_block_retries(url: str) -> None:
    async def main(stream: Stream[Any]) -> None:
        await stream.publish({})
        attempts = []
        async for message in stream.consume(wait=0.3):
            async with message:
                attempts.append(message.attempt)
                if message.attempt == 1:
                    raise Retry(0.01)
        assert attempts == [1, 2]

    run(main, url)


def test_a_lost_lease_and_a_second_settlement_are_errors(url: str) -> None:
    async def main(stream: Stream[Any]) -> None:
        entry_id = await stream.publish({})
        async for message in stream.consume(wait=0.1):
            await (await stream.backend()).execute("XCLAIM", "orders", "billing", "thief", 0, entry_id)
            with pytest.raises(LeaseLost):
                await message.ack()
            with pytest.raises(DeliveryError, match="settled already"):
                await message.release()

    run(main, url)


def test_handlers_run_in_the_callers_loop_and_stop_ends_run(url: str) -> None:
    async def main(stream: Stream[Any]) -> None:
        loop, seen = asyncio.get_running_loop(), []

        @stream.handler(concurrency=4)
        async def work(data: dict[str, Any], message: Message[Any]) -> None:
            assert asyncio.get_running_loop() is loop
            await asyncio.sleep(0.01)
            seen.append(data["n"])
            if len(seen) == 20:
                stream.stop()
            if data["n"] == 7:
                raise Reject("seven")

        await stream.publish_many([{"n": n} for n in range(20)])
        await stream.run(signals=False)
        assert sorted(seen) == list(range(20))
        assert [letter.error async for letter in stream.dead.list()] == ["seven"]
        assert await stream.dead.count() == 1
        assert (await stream.dead.redrive(Filter(error="seven"), rate=1000)).done == 1
        assert (await stream.audit()).undelivered == 1

    run(main, url)


def test_a_blocked_event_loop_keeps_its_leases(url: str) -> None:
    async def main(stream: Stream[Any]) -> None:
        await stream.publish({})
        async for message in stream.consume(wait=0.1):
            time.sleep(1.6)  # nothing else runs in this loop
            assert message.lease.valid
            await message.ack()
        assert (await stream.audit()).done == 1

    run(main, url, lease=0.9)


def test_cancelling_run_releases_what_is_in_hand(url: str) -> None:
    async def main(stream: Stream[Any]) -> None:
        begun = asyncio.Event()

        @stream.handler
        async def hang(data: Any) -> None:
            begun.set()
            await asyncio.sleep(60)

        await stream.publish({})
        task = asyncio.create_task(stream.run(signals=False))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        audit = await stream.audit()
        assert (audit.pending, audit.released) == (1, 1)

    run(main, url, shutdown_grace=0.1)


def test_a_coroutine_handler_gets_a_message_with_awaited_words(url: str) -> None:
    async def main() -> tuple[list[str], Any]:
        said: list[str] = []
        async with Stream[dict[str, int]]("orders", url, group="g", backoff=Backoff(0.01)) as stream:

            @stream.middleware
            async def hook(call_next: Any, message: Message[Any]) -> None:
                said.append(type(message).__module__)
                await call_next(message)

            @stream.handler(concurrency=1)
            async def handle(data: dict[str, int], message: Message[dict[str, int]]) -> None:
                match data["n"]:
                    case 1:
                        await message.ack()
                    case 2:
                        await message.reject("no")
                    case 3 if message.attempt == 1:
                        await message.retry(0.01)
                    case _:
                        async with message:
                            said.append(f"{data['n']} again")
                assert message.is_settled

            await stream.publish_many([{"n": n} for n in (1, 2, 3)])
            work = asyncio.create_task(stream.run(until_idle=True))
            await asyncio.wait_for(work, 30)
            return said, await stream.audit()

    said, audit = asyncio.run(main())
    assert set(said) == {"millstream.worker.aio", "3 again"}
    assert (audit.done, audit.dead) == (2, 1)


def test_a_function_as_handler_gets_the_blocking_message(url: str) -> None:
    async def main() -> Any:
        async with Stream[int]("orders", url, group="g") as stream:
            stream.handler(lambda data, message: message.ack())
            await stream.publish(1)
            await asyncio.wait_for(stream.run(until_idle=True), 30)
            return await stream.audit()

    assert asyncio.run(main()).done == 1


def test_a_cancelled_task_of_ones_own_is_a_failure_inside_async_with(url: str) -> None:
    async def main() -> Any:
        async with Stream[int]("orders", url, group="g", max_retries=1, backoff=Backoff(0.01)) as stream:
            await stream.publish(1)
            async for message in stream.consume(wait=0.5):
                async with message:
                    task = asyncio.ensure_future(asyncio.sleep(60))
                    task.cancel()
                    await task
            return await stream.audit()

    audit = asyncio.run(main())
    assert (audit.dead, audit.pending) == (1, 0)
