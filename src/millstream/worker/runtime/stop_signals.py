"""SIGTERM and Ctrl-C: stop a worker, without taking signals away from a program that handles them itself.

    first signal     stop(False): drain, then release what is left
    second signal    stop(True): release at once; the handlers from before are back
    third signal     what the program would do without us

Taken by default are only signals that nobody handles: in the main thread, SIGTERM if it would end the process, and
SIGINT if it would raise KeyboardInterrupt here or cancel the very task that runs the worker. So a worker inside uvicorn
leaves both to uvicorn. Several of ours at a time pass a signal on to each other.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from millstream.printable import safe_logger

logger = safe_logger(logging.getLogger(__name__))
Stop = Callable[[bool], None]


class StopSignals:
    """Signals call `stop` while this is open. `wanted`: None takes those that are free, True all, False none."""

    def __init__(
        self, stop: Stop, wanted: bool | None, numbers: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT)
    ) -> None:
        self._stop = stop
        self._wanted = wanted
        self._numbers = numbers
        self._before: dict[int, Any] = {}
        self._count = 0

    def __enter__(self) -> StopSignals:
        if self._wanted is False or threading.current_thread() is not threading.main_thread():
            return self
        for number in self._numbers:
            if self._wanted or is_free(number):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        self._numbers = ()

    def _restore(self) -> None:
        if threading.current_thread() is not threading.main_thread():  # a generator that was collected elsewhere
            return
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._on_signal:  # else somebody has come after us, and calls us
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number)
        if not self._numbers:  # closed, and called by one that came after us
            _pass_on(before, number, frame)
            return
        self._count += 1
        is_again = self._count > 1
        logger.info("signal %d: stopping%s", number, " at once" if is_again else "")
        # Not in the handler itself: it may have interrupted the thread that holds a lock which `stop` takes.
        threading.Thread(target=self._stop, args=(is_again,), name="millstream-stop", daemon=True).start()
        if before is not None and _is_ours(before):
            before(number, frame)
        if is_again:
            self._restore()


def is_free(number: int) -> bool:
    """Whether nobody but Python, asyncio for the current task, or we ourselves handle a signal."""
    handler: Any = signal.getsignal(number)
    if handler in (signal.SIG_DFL, signal.default_int_handler) or _is_ours(handler):
        return True
    is_runners = isinstance(handler, functools.partial) and "Runner" in getattr(handler.func, "__qualname__", "")
    return is_runners and handler.keywords.get("main_task") is _current_task()


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _is_ours(handler: Any) -> bool:
    return isinstance(getattr(handler, "__self__", None), StopSignals)


def _pass_on(handler: Any, number: int, frame: FrameType | None) -> None:
    """Have a signal do what it would have done before us."""
    if callable(handler):
        handler(number, frame)
    elif handler == signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
