"""The asyncio `Stream`: the words of the blocking one, each awaited.

Publishing is asyncio all the way down. Reading, settling and renewing run in threads, as they do for blocking code, so
that a busy event loop never costs a lease; handlers and messages live in the caller's loop.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cached_property
from types import TracebackType
from typing import Any, Generic, TypeVar, overload

from millstream.client.aio import AsyncBackend, aconnect
from millstream.client.backend import Backend, connect
from millstream.delivery.deadletters import DeadLetters, Filter, Letter, Plan
from millstream.delivery.delivery import Delivery
from millstream.delivery.settlement import Settlement
from millstream.worker.audit import Audit, audit_of
from millstream.worker.base import StreamBase
from millstream.worker.consume import Consuming
from millstream.worker.handlers import Handler
from millstream.worker.idle import IdleWatch
from millstream.worker.message import Lease, as_failure
from millstream.worker.message import Message as BlockingMessage
from millstream.worker.runtime.loop import STOP_WITHIN_S
from millstream.worker.runtime.stop_signals import StopSignals

T = TypeVar("T")
V = TypeVar("V")
H = TypeVar("H", bound=Handler)
InThread = Callable[..., Any]


class Stream(StreamBase[T]):
    """A stream, a group on it, and the type of what it carries, for asyncio."""

    @staticmethod
    def present(message: BlockingMessage[Any] | Message[Any]) -> Message[Any]:
        """Make the awaited message of coroutine handlers; functions run in threads and get the blocking one."""
        return message if isinstance(message, Message) else Message(message, _directly)

    _backend: AsyncBackend | None = None
    _blocking: Backend | None = None

    @cached_property
    def _opening(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def backend(self) -> AsyncBackend:
        """Return the connection, made on first use."""
        async with self._opening:
            if self._backend is None:
                self._backend = await aconnect(self._definition.url)
                self._definition.check(self._backend)
            return self._backend

    # Producing

    async def publish(
        self,
        value: T,
        *,
        delay: float = 0.0,
        dedupe: str | None = None,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Append a value; its id ("" while it waits for its delay), or with `dedupe` that of the first with it."""
        made = await self.publish_many(
            [value], delay=delay, dedupe=None if dedupe is None else [dedupe], ttl=ttl, headers=headers
        )
        return made[0]

    async def publish_many(
        self,
        values: Iterable[T],
        *,
        delay: float = 0.0,
        dedupe: Iterable[str] | None = None,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Append values, all or none a thousand; their ids."""
        backend = await self.backend()
        ids: list[str] = []
        for call in self._definition.appends(backend.capabilities, values, delay, dedupe, ttl, headers):
            with call as sent:
                made = await backend.run(sent)
            ids += [each.id.decode() for each in made]
            self._definition.bound_recorder.published(sum(each.is_new for each in made))
        return ids

    # Handling

    @overload
    def handler(self, function: H, /) -> H: ...

    @overload
    def handler(self, /, *, concurrency: int = 1, timeout: float | None = None) -> Callable[[H], H]: ...

    def handler(self, function: Any = None, /, *, concurrency: int = 1, timeout: float | None = None) -> Any:
        """Make a function the handler: a coroutine runs in this loop, a plain function in threads."""
        return self._definition.register(function, concurrency, timeout)

    async def run(self, *, signals: bool | None = None, until_idle: bool = False) -> None:
        """Work until SIGTERM, SIGINT or `stop()`; being cancelled stops it too, after what is in hand.

        With `until_idle` also until the group has nothing left to do: no entry undelivered, none pending. A second
        signal, or being cancelled again, stops at once. `signals`: False leaves them alone, True takes them, None takes
        those nobody handles: inside uvicorn none, so end the task there, or call `stop()`, when the application ends.
        """
        loop = asyncio.get_running_loop()
        worker = self._definition.make_worker(lambda: connect(self._definition.url), loop)
        idle = IdleWatch.of(self._definition, worker) if until_idle else nullcontext()
        signalled = StopSignals(lambda at_once: worker.stop(at_once=at_once), signals)
        with self._registered(worker), signalled, idle:
            work = loop.run_in_executor(None, lambda: worker.run(signals=False))
            try:
                # A signal that comes just before the loop waits does not wake it, and is handled after the wait.
                while not (await asyncio.wait([work], timeout=STOP_WITHIN_S))[0]:
                    pass
                await work
            except asyncio.CancelledError:
                worker.stop()
                try:
                    await asyncio.shield(work)
                except asyncio.CancelledError:
                    worker.stop(at_once=True)
                    await asyncio.shield(work)
                raise

    async def reset_topology(self) -> None:
        """Learn the shape of a cluster again, as in the RFC. Never needed: answers of the cluster update it."""
        await (await self.backend()).reset_topology()
        for worker in tuple(self._workers):
            await asyncio.to_thread(worker.reset_topology)

    async def consume(
        self, *, ahead: int = 1, concurrency: int | None = None, wait: float | None = None, signals: bool | None = None
    ) -> AsyncIterator[Message[T]]:
        """Messages one by one, to be settled by the caller; their leases are renewed meanwhile.

        As the blocking `consume`; `concurrency` is another word for `ahead`.
        """
        loop = asyncio.get_running_loop()
        ahead, stop = concurrency or ahead, threading.Event()
        with (
            StopSignals(lambda _: stop.set(), signals, (signal.SIGTERM,)),
            ThreadPoolExecutor(1, "millstream-read") as reader,
            ThreadPoolExecutor(1, "millstream-settle") as settler,
        ):

            async def in_settler(function: InThread, *args: Any) -> Any:
                return await loop.run_in_executor(settler, function, *args)

            opened = await self._open_consuming(reader, ahead, wait, stop)
            if opened is None:
                return
            try:
                idle_since = time.monotonic()
                while not stop.is_set() and (wait is None or time.monotonic() - idle_since < wait):
                    left = 1.0 if wait is None else min(1.0, wait - (time.monotonic() - idle_since))
                    found = await loop.run_in_executor(reader, opened.next, left)
                    if found is not None:
                        yield Message(found, in_settler)
                        idle_since = time.monotonic()
                if opened.failure is not None and not stop.is_set():
                    raise opened.failure
            finally:
                stop.set()
                await asyncio.shield(loop.run_in_executor(settler, opened.__exit__, None, None, None))

    async def _open_consuming(
        self, reader: ThreadPoolExecutor, ahead: int, wait: float | None, stop: threading.Event
    ) -> Consuming | None:
        """Connect in the reader's thread; being cancelled ends the wait for a server that is not there."""

        def open_one() -> Consuming | None:
            made = Consuming.opened(self._definition, lambda: connect(self._definition.url), ahead, wait, stop)
            return None if made is None else made.__enter__()

        work = asyncio.get_running_loop().run_in_executor(reader, open_one)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.set()
            late = await work
            if late is not None:
                late.__exit__(None, None, None)
            raise

    # Looking

    @property
    def dead(self) -> AsyncDeadLetters:
        """The dead letters: list, show, redrive, discard."""
        return AsyncDeadLetters(self._dead_letters)

    def _dead_letters(self) -> DeadLetters:
        if self._blocking is None:
            self._blocking = connect(self._definition.url)
        return self._definition.dead_letters(self._blocking)

    async def audit(self) -> Audit:
        """Where everything is that was ever published, and whether it adds up."""
        backend = await self.backend()
        return audit_of(await backend.run(self._definition.steps(backend.capabilities).audit()), self.group)

    async def close(self) -> None:
        if self._backend is not None:
            await self._backend.close()
            self._backend = None
        if self._blocking is not None:
            self._blocking.close()
            self._blocking = None

    async def __aenter__(self) -> Stream[T]:
        return self  # connected when it is first needed, so that `run` and `consume` can wait for a server

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<aio.Stream {self.name!r} group {self.group!r}>"


class Message(Generic[T]):
    """One delivery with its payload; the words that end it are awaited."""

    def __init__(self, message: BlockingMessage[T], in_thread: InThread) -> None:
        self._message = message
        self._in_thread = in_thread

    @property
    def data(self) -> T:
        return self._message.data

    @property
    def delivery(self) -> Delivery:
        return self._message.delivery

    @property
    def id(self) -> str:
        return self._message.id

    @property
    def stream(self) -> str:
        return self._message.stream

    @property
    def attempt(self) -> int:
        return self._message.attempt

    @property
    def retry_count(self) -> int:
        return self._message.retry_count

    @property
    def original_id(self) -> str:
        return self._message.original_id

    @property
    def age(self) -> float:
        return self._message.age

    @property
    def fence(self) -> str:
        return self._message.fence

    @property
    def headers(self) -> Mapping[str, str]:
        return self._message.headers

    @property
    def lease(self) -> Lease:
        return self._message.lease

    @property
    def is_settled(self) -> bool:
        return self._message.is_settled

    def extend(self, seconds: float) -> None:
        """Keep the lease at least this long from now; nothing to wait for."""
        self._message.extend(seconds)

    def publish(
        self,
        stream: StreamBase[V],
        value: V,
        *,
        delay: float = 0.0,
        dedupe: str | None = None,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Append a value to a stream in the step that acknowledges this message; nothing to wait for before that."""
        self._message.publish(stream, value, delay=delay, dedupe=dedupe, ttl=ttl, headers=headers)

    async def ack(self) -> None:
        await self._in_thread(self._message.ack)

    async def retry(self, delay: float = 0.0) -> None:
        await self._in_thread(self._message.retry, delay)

    async def release(self) -> None:
        await self._in_thread(self._message.release)

    async def reject(self, reason: str = "") -> None:
        await self._in_thread(self._message.reject, reason)

    async def settle(self, settlement: Settlement) -> None:
        await self._in_thread(self._message.settle, settlement)

    async def __aenter__(self) -> Message[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, asyncio.CancelledError) and not _is_being_cancelled():
            error = as_failure(error)  # not ours: a task that was awaited had been cancelled
            kind = type(error)
        return bool(await asyncio.shield(self._in_thread(self._message.__exit__, kind, error, trace)))


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _directly(function: InThread, *args: Any) -> Any:
    """Call what does not block: a worker's messages are settled through a queue."""
    return function(*args)


class AsyncDeadLetters:
    """`DeadLetters`, awaited."""

    def __init__(self, open_letters: Callable[[], DeadLetters]) -> None:
        self._open = open_letters

    async def count(self) -> int:
        return await asyncio.to_thread(lambda: self._open().count())

    async def list(
        self, which: Filter | None = None, *, limit: int | None = None, **criteria: Any
    ) -> AsyncIterator[Letter]:
        """Dead letters, oldest first."""
        letters = await asyncio.to_thread(lambda: self._open().list(which, limit=limit, **criteria))
        while (letter := await asyncio.to_thread(next, letters, None)) is not None:
            yield letter

    async def show(self, letter_id: str) -> Letter | None:
        return await asyncio.to_thread(lambda: self._open().show(letter_id))

    async def redrive(self, which: Filter | None = None, **options: Any) -> Plan:
        """Send dead letters back; options as in the blocking `redrive`. Cancelling stops it after the present step."""
        stop = threading.Event()

        def sleep(seconds: float) -> None:
            if stop.wait(seconds):
                raise asyncio.CancelledError

        try:
            return await asyncio.to_thread(lambda: self._open().redrive(which, sleep=sleep, **options))
        finally:
            stop.set()

    async def discard(self, which: Filter | None = None, **options: Any) -> Plan:
        return await asyncio.to_thread(lambda: self._open().discard(which, **options))
