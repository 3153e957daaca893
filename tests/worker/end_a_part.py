"""A process whose parts are ended one at a time: `python -m tests.worker.end_a_part PART URL`. See test_supervision."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from millstream import Backoff, NullRecorder, Stream
from millstream.delivery.consumer import Consumer
from millstream.worker.runtime import loop
from millstream.worker.runtime.lease_process import Heart
from millstream.worker.runtime.pool import ThreadPool

SHORT: dict[str, Any] = {"group": "g", "backoff": Backoff(0.01), "shutdown_grace": 20.0}


def breaks(owner: type, name: str, error: BaseException) -> None:
    """Have a method raise from its second call on."""
    real, calls = getattr(owner, name), 0

    def broken(self: Any, *args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise error
        return real(self, *args, **named)

    setattr(owner, name, broken)


def end_the_reader() -> None:
    breaks(Consumer, "fetch", MemoryError("reader"))


def end_the_settler() -> None:
    breaks(Consumer, "settle", SystemExit(0))


def end_the_keeper() -> None:
    breaks(Consumer, "maintain", KeyboardInterrupt())


def end_a_pool_thread() -> None:
    breaks(loop.Worker, "_run_blocking", SystemExit(0))


def end_the_timer_of_the_policy() -> None:
    breaks(loop.Worker, "_answer", RuntimeError("the policy"))


class RaisingRecorder(NullRecorder):
    """Its hooks raise, and are used by every thread."""

    def bind(self, stream: str, group: str) -> RaisingRecorder:
        return self

    def settled(self, outcome: str, count: int = 1) -> None:
        raise ValueError("settled")

    def processing_start(self, entry_id: str) -> None:
        raise ValueError("processing_start")

    def delivered(self, count: int = 1) -> None:
        raise ValueError("delivered")

    def lock_extension(self, ok: bool, count: int = 1) -> None:
        raise ValueError("lock_extension")


PARTS: dict[str, Callable[[], None]] = {
    "reader": end_the_reader,
    "settler": end_the_settler,
    "keeper": end_the_keeper,
    "pool": end_a_pool_thread,
    "answer": end_the_timer_of_the_policy,
}


def work(stream: Stream[Any], *, is_async: bool, body: Callable[[], Any]) -> None:
    """Run a worker over entries that go on coming."""

    def handle(_: Any) -> None:
        body()

    async def ahandle(_: Any) -> None:
        answer = body()
        if asyncio.iscoroutine(answer):
            await answer

    stream.handler(ahandle if is_async else handle)
    stream.publish_many([{"n": n} for n in range(5)])
    stream.run()


def until_done(stream: Stream[Any]) -> None:
    """Stop the worker when everything is settled, dead letters included."""
    while stream.audit().accounted == 0 or stream.audit().pending or stream.audit().undelivered:
        time.sleep(0.02)
    audit = stream.audit()
    print(f"done={audit.done} dead={audit.dead}", flush=True)
    stream.stop()


async def await_own_cancelled_task() -> None:
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task


async def cancel_oneself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(1)


async def stop_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(1)


async def exit_in_a_task() -> None:
    asyncio.ensure_future(asyncio.sleep(0)).add_done_callback(lambda _: sys.exit(0))
    await asyncio.sleep(1)


BODIES: dict[str, Callable[[], Any]] = {
    "exit": lambda: sys.exit(0),
    "interrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
    "own-cancelled-task": await_own_cancelled_task,
    "cancel-oneself": cancel_oneself,
    "stop-the-loop": stop_the_loop,
    "exit-in-a-task": exit_in_a_task,
}


def main(part: str, url: str, kind: str) -> None:
    if part == "recorder":
        stream = Stream[Any]("orders", url, recorder=RaisingRecorder(), lease=1.0, **SHORT)
        threading.Thread(target=until_done, args=(stream,), daemon=True).start()
        work(stream, is_async=kind == "async", body=lambda: time.sleep(0.1))
    elif part in BODIES:
        stream = Stream[Any]("orders", url, max_retries=1, breaker=None, **SHORT)
        threading.Thread(target=until_done, args=(stream,), daemon=True).start()
        work(stream, is_async=kind == "async", body=BODIES[part])
    elif part == "consume":
        end_the_keeper()
        stream = Stream[Any]("orders", url, **SHORT)
        stream.publish({"n": 1})
        for message in stream.consume():
            message.ack()
    elif part == "heart":
        stream = Stream[Any]("orders", url, heartbeat_process=True, lease=1.5, **SHORT)
        hearts: list[Heart] = []
        make = stream._definition.make_heart
        stream._definition.make_heart = lambda consumer: hearts.append(make(consumer)) or hearts[-1]  # type: ignore

        def kill_it_and_wait_for_another() -> None:
            first = hearts[0].pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            while hearts[0].pid == first:
                time.sleep(0.02)
            print("another heart", flush=True)
            stream.stop()

        work(stream, is_async=False, body=kill_it_and_wait_for_another)
    else:
        PARTS[part]()
        work(Stream[Any]("orders", url, **SHORT), is_async=kind == "async", body=lambda: None)


if __name__ == "__main__":
    assert ThreadPool
    main(*sys.argv[1:])
