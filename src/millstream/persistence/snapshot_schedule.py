"""The schedule of snapshots: the last one, the next one, and their fields of INFO."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

_RETRY_MS: Final = 5000  # the delay after a failed snapshot


@dataclass(slots=True)
class Snapshots:
    """Counters of snapshots; times are Unix ms."""

    last_ms: int  # when the last one was finished; initially the start of the server
    tried_ms: int = 0
    started_ms: int | None = None  # of the snapshot that is being written
    last_took_s: int = -1
    last_failed: bool = False
    saves: int = 0
    failures: int = 0  # in a row
    loaded_keys: int = 0
    dirty_before: int = 0  # changes when the current one was begun
    on_end: Callable[[], None] | None = None  # called when a snapshot was written or has failed

    def begin(self, now_ms: int, dirty: int) -> None:
        self.started_ms = self.tried_ms = now_ms
        self.dirty_before = dirty

    def end(self, now_ms: int, *, succeeded: bool) -> int:
        """Record the end of a snapshot. Returns the number of changes that it has saved."""
        took_ms = now_ms - (self.started_ms if self.started_ms is not None else now_ms)
        self.started_ms = None
        self.last_took_s = took_ms // 1000
        self.last_failed = not succeeded
        if self.on_end is not None:
            self.on_end()
        if not succeeded:
            self.failures += 1
            return 0
        self.failures = 0
        self.saves += 1
        self.last_ms = now_ms
        return self.dirty_before

    def is_due(self, points: list[tuple[int, int]], dirty: int, now_ms: int) -> bool:
        """Return whether one of the points (seconds, changes) demands a snapshot."""
        if self.last_failed and now_ms - self.tried_ms < _RETRY_MS:
            return False
        return any(dirty >= changes and now_ms - self.last_ms > 1000 * seconds for seconds, changes in points)

    def info(self, now_ms: int, dirty: int) -> Iterator[tuple[str, object]]:
        """Return the fields of INFO, in Redis's order."""
        current_s = -1 if self.started_ms is None else (now_ms - self.started_ms) // 1000
        yield "rdb_changes_since_last_save", dirty
        yield "rdb_bgsave_in_progress", int(self.started_ms is not None)
        yield "rdb_last_save_time", self.last_ms // 1000
        yield "rdb_last_bgsave_status", "err" if self.last_failed else "ok"
        yield "rdb_last_bgsave_time_sec", self.last_took_s
        yield "rdb_current_bgsave_time_sec", current_s
        yield "rdb_saves", self.saves
        yield "rdb_saves_consecutive_failures", self.failures
        yield "rdb_last_cow_size", 0
        yield "rdb_last_load_keys_expired", 0
        yield "rdb_last_load_keys_loaded", self.loaded_keys


def save_points(setting: bytes) -> list[tuple[int, int]]:
    """Return the points of the `save` setting: (seconds, changes)."""
    words = list(map(int, setting.split()))
    return list(zip(words[::2], words[1::2], strict=True))
