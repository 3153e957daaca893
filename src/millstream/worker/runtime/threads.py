"""What a worker makes its threads, queues and waits with: Python's own, or those of `millstream.testing`, which run
one at a time and in a time of their own. Only what waits is made here; locks that are held for a moment are not.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol


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
