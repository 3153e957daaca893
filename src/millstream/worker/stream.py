"""A stream as a program sees it: one noun with a verb for everything. Blocking; `millstream.aio` has the same words.

orders = Stream[Order]("orders", "redis://localhost", group="billing")
orders.publish(Order(7))

@orders.handler(concurrency=16)
def charge(order: Order) -> None: ...

orders.run()
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from types import TracebackType
from typing import Any, TypeVar, overload

from millstream.client.backend import Backend, connect
from millstream.delivery.deadletters import DeadLetters
from millstream.worker.audit import Audit, audit_of
from millstream.worker.base import StreamBase
from millstream.worker.consume import Consuming
from millstream.worker.handlers import Handler
from millstream.worker.idle import IdleWatch
from millstream.worker.message import Message
from millstream.worker.runtime.stop_signals import StopSignals

T = TypeVar("T")
H = TypeVar("H", bound=Handler)


class Stream(StreamBase[T]):
    """A stream, a group on it, and the type of what it carries."""

    _backend: Backend | None = None

    # What it is

    @property
    def backend(self) -> Backend:
        """The connection, made when it is first needed."""
        if self._backend is None:
            self._backend = connect(self._definition.url)
            self._definition.check(self._backend)
        return self._backend

    # Producing

    def publish(
        self,
        value: T,
        *,
        delay: float = 0.0,
        dedupe: str | None = None,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Append a value; its id ("" while it waits for its delay), or with `dedupe` that of the first with this token.

        Sent again by itself when a reply is lost, and appended once all the same.
        """
        if dedupe is not None:
            return self.publish_many([value], delay=delay, dedupe=[dedupe], ttl=ttl, headers=headers)[0]
        backend, definition = self.backend, self._definition
        made = definition.append_one(backend.run, backend.capabilities, value, delay, ttl, headers)
        definition.bound_recorder.published(int(made.is_new))
        return made.id.decode()

    def publish_many(
        self,
        values: Iterable[T],
        *,
        delay: float = 0.0,
        dedupe: Iterable[str] | None = None,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Append values, all or none a thousand; their ids."""
        ids: list[str] = []
        for call in self._definition.appends(self.backend.capabilities, values, delay, dedupe, ttl, headers):
            with call as sent:
                made = self.backend.run(sent)
            ids += [each.id.decode() for each in made]
            self._definition.bound_recorder.published(sum(each.is_new for each in made))
        return ids

    # Handling

    @overload
    def handler(self, function: H, /) -> H: ...

    @overload
    def handler(self, /, *, concurrency: int = 1, timeout: float | None = None) -> Callable[[H], H]: ...

    def handler(self, function: Any = None, /, *, concurrency: int = 1, timeout: float | None = None) -> Any:
        """Make a function the handler: returning acknowledges, an exception retries; see `delivery.signals`."""
        return self._definition.register(function, concurrency, timeout)

    def run(self, *, signals: bool | None = None, until_idle: bool = False) -> None:
        """Work until SIGTERM, SIGINT or `stop()`; a server that is not there yet is waited for.

        With `until_idle` also until the group has nothing left to do: no entry undelivered, none pending. A second
        signal stops at once. `signals`: False leaves them alone, True takes them, None takes those nobody handles.
        """
        worker = self._definition.make_worker(lambda: connect(self._definition.url))
        with self._registered(worker), IdleWatch.of(self._definition, worker) if until_idle else nullcontext():
            worker.run(signals=signals)

    def consume(
        self, *, ahead: int = 1, wait: float | None = None, signals: bool | None = None
    ) -> Iterator[Message[T]]:
        """Messages one by one, to be settled by the caller; their leases are renewed meanwhile.

        `ahead`: how many are taken at once. `wait`: end after so many seconds without one; None waits for ever. What
        was not settled when the iteration ends is released, uncounted. A server that is not there, or goes away, is
        waited for too; if it is still away when `wait` is over, its error is raised. SIGTERM ends the iteration after
        the message that is in hand (`signals`: as for `run`); Ctrl-C raises KeyboardInterrupt as always.
        """
        stop = threading.Event()
        with StopSignals(lambda _: stop.set(), signals, (signal.SIGTERM,)):
            opened = Consuming.opened(self._definition, lambda: connect(self._definition.url), ahead, wait, stop)
            if opened is not None:
                with opened as consuming:
                    yield from self._messages(consuming, wait, stop)

    def _messages(self, consuming: Consuming, wait: float | None, stop: threading.Event) -> Iterator[Message[T]]:
        idle_since = time.monotonic()
        while not stop.is_set() and (wait is None or time.monotonic() - idle_since < wait):
            left = None if wait is None else wait - (time.monotonic() - idle_since)
            message = consuming.next(left)
            if message is not None:
                yield message
                idle_since = time.monotonic()
        if consuming.failure is not None and not stop.is_set():
            raise consuming.failure

    def reset_topology(self) -> None:
        """Learn the shape of a cluster again, as in the RFC. Never needed: answers of the cluster update it."""
        self.backend.reset_topology()
        for worker in tuple(self._workers):
            worker.reset_topology()

    # Looking

    @property
    def dead(self) -> DeadLetters:
        """The dead letters: list, show, redrive, discard."""
        return self._definition.dead_letters(self.backend)

    def audit(self) -> Audit:
        """Where everything is that was ever published, and whether it adds up."""
        return audit_of(self.backend.run(self._definition.steps(self.backend.capabilities).audit()), self.group)

    def close(self) -> None:
        if self._backend is not None:
            self._backend.close()
            self._backend = None

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Stream {self.name!r} group {self.group!r}>"
