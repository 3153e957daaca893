"""An asyncio event loop in the simulation's time: a coroutine that sleeps costs no real time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from contextvars import Context
from typing import Any

Park = Callable[[float | None, Callable[[], bool] | None], bool]


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs in a fiber. It polls sockets without waiting: what handlers await must be in the simulation."""

    def __init__(self, monotonic: Callable[[], float], park: Park) -> None:
        self._monotonic = monotonic
        self._is_called = False
        super().__init__(_VirtualSelector(park, self._take_call))
        # A killed worker leaves unfinished tasks behind: asyncio need not report them.
        self.set_exception_handler(lambda _loop, _context: None)

    def time(self) -> float:
        return self._monotonic()

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon_threadsafe(callback, *args, context=context)
        self._is_called = True
        return handle

    def _take_call(self) -> bool:
        was_called, self._is_called = self._is_called, False
        return was_called


class _VirtualSelector(selectors.SelectSelector):
    """Waits in the simulation's time for a call from another fiber."""

    def __init__(self, park: Park, take_call: Callable[[], bool]) -> None:
        super().__init__()
        self._park = park
        self._take_call = take_call
        self._woken = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._woken = False
            # A millisecond is the smallest step of that time: a shorter wait would never end.
            self._park(None if timeout is None else max(timeout, 0.001), self._is_woken)
        return super().select(0)

    def _is_woken(self) -> bool:
        self._woken = self._woken or self._take_call()
        return self._woken
