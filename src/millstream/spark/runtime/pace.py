"""How often a planner asks its server while nothing is new. Knows nothing of streams.

Spark asks for the next batch every 10 ms. The first empty answers follow at that rate, so that a stream with some rows
a second has no delay; each further one waits twice as long, up to IDLE_S.
"""

from __future__ import annotations

import threading
import time
from typing import Final

FIRST_S: Final = 0.01
IDLE_S: Final = 0.4


class Pace:
    """The waits of one planner."""

    def __init__(self) -> None:
        self._closed = threading.Event()
        self._pause_s = 0.0
        self._asked_s = 0.0

    def wait(self) -> None:
        """Wait until the server may be asked again; not at all after an answer that had something."""
        self._closed.wait(max(0.0, self._asked_s + self._pause_s - time.monotonic()))
        self._asked_s = time.monotonic()

    def note(self, *, is_empty: bool) -> None:
        """Take into account whether the answer had anything."""
        self._pause_s = min(IDLE_S, max(FIRST_S, 2 * self._pause_s)) if is_empty else 0.0

    def close(self) -> None:
        """End a wait."""
        self._closed.set()
