"""The thread of a store: it calls `tick` once a second, and sooner while something must be repeated.

It does not keep the store alive: an unused store is collected, and the thread ends.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Final, Protocol

logger = logging.getLogger(__name__)

PERIOD_S: Final = 1.0  # the delay of everysec, and the interval of all other checks


class Kept(Protocol):
    """A store, as the ticker sees it."""

    @property
    def pause_s(self) -> float: ...

    def tick(self) -> None: ...


class Ticker:
    """Calls `tick`."""

    __slots__ = ("_is_stopped", "_store", "_woken")

    def __init__(self, store: Kept) -> None:
        self._store = weakref.ref(store)
        self._woken = threading.Event()
        self._is_stopped = False
        threading.Thread(target=self._work, name="millstream-keeper", daemon=True).start()

    def stop(self) -> None:
        """Make the thread end; it may be in the middle of a sync."""
        self._is_stopped = True
        self._woken.set()

    def hurry(self) -> None:
        """Call `tick` sooner, because something must be repeated."""
        self._woken.set()

    def _work(self) -> None:
        pause_s = PERIOD_S
        while not self._is_stopped:
            self._woken.wait(pause_s)
            self._woken.clear()
            store = self._store()
            if store is None or self._is_stopped:
                return
            try:
                store.tick()
            except BaseException:  # the thread goes on: without it nothing would be synced
                logger.exception("Keeping failed in a way it must not")
            pause_s = store.pause_s
            del store
