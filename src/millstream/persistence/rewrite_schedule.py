"""The schedule of log rewrites: the last one, the next one, and their fields of INFO."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_PATIENCE: Final = 3  # failures in a row before the first delay
_FIRST_DELAY_MS: Final = 60_000  # doubled with each failure
_LONGEST_DELAY_MS: Final = 3_600_000


@dataclass(slots=True)
class Rewrites:
    """Counters of rewrites; times are Unix ms."""

    started_ms: int | None = None  # of the running rewrite
    ended_ms: int = 0
    last_took_s: int = -1
    last_failed: bool = False
    count: int = 0  # begun
    failures: int = 0  # in a row
    size_after: int = 0  # size of the log after the last rewrite or after loading

    def begin(self, now_ms: int) -> None:
        self.started_ms = now_ms
        self.count += 1

    def end(self, now_ms: int, size: int, *, succeeded: bool) -> None:
        """Record the end of a rewrite. `size` is the size of the whole log now."""
        self.last_took_s = (now_ms - (self.started_ms or now_ms)) // 1000
        self.started_ms, self.ended_ms = None, now_ms
        self.last_failed = not succeeded
        if succeeded:
            self.failures = 0
            self.size_after = size
        else:
            self.failures += 1

    def is_due(self, size: int, now_ms: int, *, percentage: int, min_size: int) -> bool:
        """Return whether the log has grown enough since the last rewrite. Failures delay the next try."""
        if not percentage or size <= min_size or now_ms - self.ended_ms < self._delay_ms():
            return False
        before = self.size_after or 1
        return (size - before) * 100 // before >= percentage

    def _delay_ms(self) -> int:
        if self.failures < _PATIENCE:
            return 0
        return min(_FIRST_DELAY_MS << (self.failures - _PATIENCE), _LONGEST_DELAY_MS)

    def info(self, now_ms: int, *, is_scheduled: bool) -> Iterator[tuple[str, object]]:
        """Return the fields of INFO, in Redis's order."""
        yield "aof_rewrite_in_progress", int(self.started_ms is not None)
        yield "aof_rewrite_scheduled", int(is_scheduled)
        yield "aof_last_rewrite_time_sec", self.last_took_s
        yield "aof_current_rewrite_time_sec", -1 if self.started_ms is None else (now_ms - self.started_ms) // 1000
        yield "aof_last_bgrewrite_status", "err" if self.last_failed else "ok"
        yield "aof_rewrites", self.count
        yield "aof_rewrites_consecutive_failures", self.failures
