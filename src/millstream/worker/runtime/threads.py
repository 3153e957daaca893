"""What a worker makes its threads, queues and waits with: Python's own, or those of `millstream.testing`, which run
one at a time and in a time of their own. Only what waits is made here; locks that are held for a moment are not.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from millstream.errors import WorkerFailed
from millstream.printable import safe_logger

logger = safe_logger(logging.getLogger(__name__))
OnDeath = Callable[[str, BaseException | None], None]


class ThreadKilled(BaseException):
    """Raised where a test kit ends a thread without a trace, as a killed process would."""


class ThreadLike(Protocol):
    def start(self) -> None: ...
    def join(self, timeout: float | None = None) -> None: ...


class EventLike(Protocol):
    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class ConditionLike(Protocol):
    def __enter__(self) -> bool: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...
    def notify_all(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool: ...


class Threads(Protocol):
    """Named as in the standard library."""

    def monotonic(self) -> float: ...
    def Event(self) -> EventLike: ...
    def Condition(self) -> ConditionLike: ...
    def SimpleQueue(self) -> Any: ...
    def Thread(self, target: Callable[[], None], name: str, daemon: bool = True) -> ThreadLike: ...
    def new_event_loop(self) -> asyncio.AbstractEventLoop: ...


class SystemThreads:
    """Python's own."""

    monotonic = staticmethod(time.monotonic)
    Event = staticmethod(threading.Event)
    Condition = staticmethod(threading.Condition)
    SimpleQueue: Callable[[], Any] = staticmethod(queue.SimpleQueue)
    new_event_loop = staticmethod(asyncio.new_event_loop)

    def Thread(self, target: Callable[[], None], name: str, daemon: bool = True) -> ThreadLike:
        return threading.Thread(target=target, name=name, daemon=daemon)


SYSTEM = SystemThreads()


class Supervisor:
    """Notices when a part of a worker ends unexpectedly: logs the traceback, keeps the first failure, calls back.

    `guard` wraps what a thread runs. Nothing passes it, SystemExit and KeyboardInterrupt included.
    """

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self._on_failure = on_failure
        self.failure: WorkerFailed | None = None

    def guard(self, part: str, work: Callable[[], object], *, may_return: bool = True) -> Callable[[], None]:
        """Wrap a thread's work; `may_return`: whether its end without an error is a normal one."""

        def run() -> None:
            try:
                work()
            except ThreadKilled:
                raise
            except BaseException as error:
                self.report(part, error)
            else:
                if not may_return:
                    self.report(part, None)

        return run

    def report(self, part: str, error: BaseException | None) -> None:
        """Log what has ended a part, and have the worker end."""
        logger.critical("%s of the worker has ended unexpectedly, and the worker ends with it", part, exc_info=error)
        if self.failure is None:
            self.failure = WorkerFailed(part, error)
            self.failure.__cause__ = error
        self._on_failure()

    def require_alive(self) -> None:
        """Raise the failure of a part, if one has failed."""
        if self.failure is not None:
            raise self.failure
