"""The event loop as the hub's waker: deadlines, claims and expiry without a thread of their own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from threading import get_ident
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from millstream.server.core.hub import Hub

logger = logging.getLogger(__name__)

_AGAIN_MS: Final = 100  # after a failure
_LONGEST_S: Final = 1.0  # the wall clock may be set while we sleep


class LoopTimer:
    """Runs `hub.tick()` in a loop at the time it is aimed at; made in the loop's thread, aimed from any."""

    __slots__ = ("_handle", "_hub", "_loop", "_target_ms", "_thread")

    def __init__(self, hub: Hub, loop: asyncio.AbstractEventLoop) -> None:
        self._hub = hub
        self._loop = loop
        self._thread = get_ident()
        self._target_ms: int | None = None
        self._handle: asyncio.TimerHandle | None = None

    def aim(self, due_ms: int) -> None:
        """Be there at this time at the latest."""
        if self._target_ms is not None and self._target_ms <= due_ms:
            return
        self._target_ms = due_ms
        if get_ident() == self._thread:
            self._wind()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is served any more
                self._loop.call_soon_threadsafe(self._wind)

    def stop(self) -> None:
        """Forget the time; what was to be done then waits for the next `aim`."""
        self._target_ms = None
        if get_ident() == self._thread:
            self._wind()

    def _wind(self) -> None:
        """Let the loop call us at the target, or a second from now to look at the clock again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        target_ms = self._target_ms
        if target_ms is not None:
            ahead_s = max(0, target_ms - self._hub.now_ms()) / 1000
            self._handle = self._loop.call_later(min(ahead_s, _LONGEST_S), self._ring)

    def _ring(self) -> None:
        hub = self._hub
        with hub.lock:
            self._handle = None
            self._target_ms = None
            try:
                due_ms = hub.next_due_ms()
                if due_ms is not None and due_ms <= hub.now_ms():
                    hub.tick()
                    due_ms = hub.next_due_ms()
            except Exception:  # else nothing due would be done until something else is aimed at
                logger.exception("The timer failed and tries again")
                due_ms = hub.now_ms() + _AGAIN_MS
            if due_ms is not None:
                self.aim(due_ms)
