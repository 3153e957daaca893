"""A worker that ends when its group has nothing left to do."""

from __future__ import annotations

import asyncio
import uuid

import pytest

import millstream.aio
from millstream import Backoff, Stream
from millstream.delivery.consumer import Consumer
from millstream.delivery.delivery import Delivery


def test_it_ends_when_all_is_done_retries_included() -> None:
    seen: list[int] = []
    stream = Stream[int]("numbers", f"memory://{uuid.uuid4().hex}", max_retries=2, backoff=Backoff(first=0.05))

    @stream.handler(concurrency=4)
    def handle(number: int) -> None:
        seen.append(number)
        if number == 3 and seen.count(3) == 1:
            raise ValueError("the first time")

    stream.publish_many(range(10))
    stream.run(signals=False, until_idle=True)
    assert sorted(seen) == [0, 1, 2, 3, 3, *range(4, 10)]
    audit = stream.audit()
    assert (audit.done, audit.pending, audit.undelivered) == (10, 0, 0)
    stream.close()


def test_an_asyncio_worker_ends_too() -> None:
    async def main() -> int:
        stream = millstream.aio.Stream[int]("numbers", f"memory://{uuid.uuid4().hex}")

        @stream.handler(concurrency=4)
        async def handle(number: int) -> None:
            await asyncio.sleep(0)

        await stream.publish_many(range(10))
        await stream.run(signals=False, until_idle=True)
        done = (await stream.audit()).done
        await stream.close()
        return done

    assert asyncio.run(main()) == 10


def test_its_reads_wait_no_longer_than_the_group_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    fetch = Consumer.fetch

    def noted(consumer: Consumer, count: int, block: float) -> list[Delivery]:
        waits.append(block)
        return fetch(consumer, count, block)

    monkeypatch.setattr(Consumer, "fetch", noted)
    stream = Stream[int]("numbers", f"memory://{uuid.uuid4().hex}")
    stream.handler(lambda number: None)
    stream.publish(1)
    stream.run(signals=False, until_idle=True)
    assert waits
    assert max(waits) <= 0.1
    stream.close()
