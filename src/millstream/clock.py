"""Where time comes from: the system's clock, or one that a test moves by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Unix time in milliseconds."""

    def now_ms(self) -> int: ...


class SystemClock:
    """The wall clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


# On Linux this clock goes on while the machine is suspended, and a lease must run out then too; time.monotonic stops.
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC) if hasattr(time, "CLOCK_MONOTONIC") else None


def elapsed_ms() -> int:
    """Milliseconds by a clock that never jumps, and counts the time for which the machine was suspended if it can."""
    now_ns = time.monotonic_ns() if _ELAPSED is None else time.clock_gettime_ns(_ELAPSED)
    return now_ns // 1_000_000


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now_ms: int = 1_767_225_600_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Move on by `ms` (a negative value steps back, as wall clocks do)."""
        self._now_ms += ms
