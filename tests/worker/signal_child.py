"""Programs that are sent signals: `python -m tests.worker.signal_child KIND`. See test_signals."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from millstream import Stream
from millstream.aio import Stream as AsyncStream


def say(text: str) -> None:
    print(text, flush=True)


def long() -> None:
    """Work for much longer than any test waits, with the default grace of 30 s."""
    say("begun")
    for _ in range(6000):
        time.sleep(0.02)


def run() -> None:
    stream = Stream[int]("orders", "memory://", group="g")
    stream.publish(1)
    stream.handler(lambda data: long())
    stream.run()
    say("ended")


async def arun() -> None:
    async with AsyncStream[int]("orders", "memory://", group="g") as stream:
        await stream.publish(1)

        @stream.handler
        async def handle(data: int) -> None:
            say("begun")
            await asyncio.sleep(120)

        await stream.run()
    say("ended")


def consume() -> None:
    stream = Stream[int]("orders", "memory://", group="g")
    stream.publish_many([1, 2])
    for message in stream.consume():
        with message:
            say("begun")
            time.sleep(1)
            say("handled")
    audit = stream.audit()
    say(f"ended done={audit.done} undelivered={audit.undelivered}")


async def aconsume() -> None:
    stream = AsyncStream[int]("orders", "memory://", group="g")
    await stream.publish_many([1, 2])
    async for message in stream.consume():
        async with message:
            say("begun")
            await asyncio.sleep(1)
            say("handled")
    audit = await stream.audit()
    say(f"ended done={audit.done} undelivered={audit.undelivered}")


def web() -> None:
    """An ASGI application as FastAPI makes one: the worker lives as long as the application."""
    import uvicorn

    stream = AsyncStream[int]("orders", "memory://", group="g", shutdown_grace=0.5)

    @stream.handler
    async def handle(data: int) -> None:
        say("begun")
        await asyncio.sleep(120)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        worker = asyncio.create_task(stream.run())
        await stream.publish(1)
        yield
        stream.stop()
        await worker
        say("worker ended")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "lifespan"
        await receive()
        async with lifespan():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    uvicorn.run(app, host="127.0.0.1", port=0, log_level="warning")


if __name__ == "__main__":
    chosen = globals()[sys.argv[1]]
    if asyncio.iscoroutinefunction(chosen):
        asyncio.run(chosen())
    else:
        chosen()
