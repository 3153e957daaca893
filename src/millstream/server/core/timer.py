"""The thread that does what is due: deadlines, claims, expiry. It is there only while something will be.

It holds no reference to the hub while it sleeps, so that a hub nobody uses goes away although keys in it would still
have expired.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final, Protocol

logger = logging.getLogger(__name__)

_LONGEST_S: Final = 1.0  # the wall clock may be set while we sleep, the hub may be gone
_END_WITHIN_S: Final = 10.0  # a busy machine may let it wait; ended where it stands it could keep the hub's lock
_AGAIN_S: Final = 0.1  # after a failure
_LINGER_S: Final = 0.5  # blocking reads come in rows: do not end and start a thread for each


class Waker(Protocol):
    """Who sees to it that `hub.tick()` is called in time: the thread below, or an event loop."""

    def aim(self, due_ms: int) -> None:
        """Be there at this time at the latest."""

    def stop(self) -> None:
        """Nothing is to be done any more, until the next `aim`."""


class Ticking(Protocol):
    """The hub as its timer sees it."""

    lock: threading.RLock
    now_ms: Callable[[], int]

    def next_due_ms(self) -> int | None:
        """Return when `tick` will have something to do, or None."""

    def tick(self) -> None:
        """Do what is due."""


class Timer:
    """Runs `hub.tick()` at the time it is aimed at. Every method is called under the hub's lock."""

    __slots__ = ("_hub", "_is_stopped", "_moved", "_target_ms", "_thread")

    def __init__(self, hub: Ticking) -> None:
        self._hub = weakref.ref(hub)
        self._moved = threading.Condition(hub.lock)
        self._target_ms: int | None = None  # None: asleep without a time
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    def aim(self, due_ms: int) -> None:
        """Be there at this time at the latest."""
        if self._target_ms is not None and self._target_ms <= due_ms:
            return
        self._target_ms = due_ms
        self._is_stopped = False
        if self._thread is None:
            _running.add(self)
            self._thread = threading.Thread(target=_run, args=(self,), name="millstream-timer", daemon=True)
            self._thread.start()
        else:
            self._moved.notify()

    def stop(self) -> None:
        """Let the thread end, until it is needed again."""
        self._is_stopped = True
        self._target_ms = None
        self._moved.notify()

    def end(self) -> None:
        """Stop, and wait until the thread is over; not under the lock."""
        with self._moved:
            self.stop()
            thread = self._thread
        if thread is not None:
            thread.join(_END_WITHIN_S)

    def round(self) -> bool:
        """Do what is due and sleep until more will be; False when the thread may end."""
        with self._moved:
            delay_s = None if self._is_stopped else self._prepare()
            if delay_s is None:
                return self._linger()
            if delay_s > 0:
                self._moved.wait(min(delay_s, _LONGEST_S))
        return True

    def _linger(self) -> bool:
        """Nothing to do: wait a little for more, then end."""
        self._target_ms = None
        if not self._is_stopped:
            self._moved.wait(_LINGER_S)
        if self._target_ms is None:
            self._thread = None
        return self._thread is not None

    def _prepare(self) -> float | None:
        """Seconds until something is due, after doing what was; None if nothing is or will be."""
        hub = self._hub()
        if hub is None:
            return None
        due_ms = hub.next_due_ms()
        if due_ms is None:
            return None
        self._target_ms = due_ms
        ahead_ms = due_ms - hub.now_ms()
        if ahead_ms <= 0:
            hub.tick()
            return 0.0
        return ahead_ms / 1000


_running: Final = set["Timer"]()  # those with a thread


def _round(timer: Timer) -> bool:
    """One round; after a failure the timer goes on, or what is due would wait for ever."""
    try:
        return timer.round()
    except BaseException:
        logger.exception("The timer failed and tries again")
        time.sleep(_AGAIN_S)
        return True


def _run(timer: Timer) -> None:
    try:
        while _round(timer):
            pass
    finally:
        if timer._thread is None:  # else the next one's has begun already
            _running.discard(timer)


@atexit.register
def _end_all() -> None:
    """Python stops a thread wherever it stands when a program ends, also where it has just been given the hub's lock:
    whoever closes a connection after that, as the garbage collection does, would wait for ever."""
    for timer in list(_running):
        timer.end()
