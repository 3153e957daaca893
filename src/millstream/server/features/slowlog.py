"""Slow commands: the slow log, and the latency monitor's peaks by kind of event.

    a command took a while ──▶ Watchman.note ──▶ slow log, if above slowlog-log-slower-than (microseconds)
                                            └──▶ peaks, if at or above latency-monitor-threshold (milliseconds)

A caller compares the time of a command with one number, `Watchman.from_ns`; a quick command costs nothing more.
Commands on the fast path are timed in batches and do not come here, unless the threshold is below a millisecond: then
all commands take the general path.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from millstream.server.access.auth import redacted

if TYPE_CHECKING:
    from millstream.engine.table import Command
    from millstream.server.config.settings import Config
    from millstream.server.core.interfaces import Client
    from millstream.server.core.stats import Stats

SETTINGS: Final = frozenset({"slowlog-log-slower-than", "slowlog-max-len", "latency-monitor-threshold"})
_KEPT_PEAKS: Final = 160  # peaks per event, as in Redis


@dataclass(frozen=True, slots=True)
class SlowCommand:
    """An entry of the slow log."""

    number: int
    at_s: int  # Unix time
    microseconds: int
    argv: list[bytes]  # shortened, and without secrets
    address: bytes
    name: bytes
    words: int  # bytes of the command as it was sent


@dataclass(slots=True)
class Peaks:
    """Durations of one kind of event: the worst of each second, and the worst of all."""

    samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_KEPT_PEAKS))  # (Unix s, ms)
    highest: int = 0

    def add(self, at_s: int, ms: int) -> None:
        """Note a duration. Of several in a second only the worst is kept."""
        self.highest = max(self.highest, ms)
        if self.samples and self.samples[-1][0] == at_s:
            ms = max(ms, self.samples.pop()[1])
        self.samples.append((at_s, ms))


class Watchman:
    """The slow log and the latency peaks of a hub. Every method is called under its lock."""

    __slots__ = ("_config", "_limit_ns", "_next", "_peak_ns", "entries", "from_ns", "peaks")

    def __init__(self, config: Config) -> None:
        self._config = config
        self._next = 0
        self.entries: deque[SlowCommand] = deque()  # latest first
        self.peaks: dict[str, Peaks] = {}
        self.follow_settings()

    def follow_settings(self) -> None:
        """Take over the thresholds and the length of the log."""
        slower_than = self._config.number("slowlog-log-slower-than")
        peak_ms = self._config.number("latency-monitor-threshold")
        self._limit_ns: float = slower_than * 1000 if slower_than >= 0 else math.inf
        self._peak_ns: float = peak_ms * 1_000_000 if peak_ms else math.inf
        self.from_ns: float = min(self._limit_ns, self._peak_ns)  # quicker commands are not recorded
        self._shorten()

    @property
    def wants_everything(self) -> bool:
        """Return whether commands must be timed one by one instead of in batches."""
        return self.from_ns < 1_000_000

    def note(
        self, session: Client, row: Command, argv: list[bytes], nanoseconds: int, now_ms: int, stats: Stats
    ) -> None:
        """Record a command that took at least `from_ns`."""
        self.note_event("fast-command" if "fast" in row.flags else "command", nanoseconds, now_ms)
        if nanoseconds < self._limit_ns or "skip_slowlog" in row.flags:
            return
        stats.count_slow(row.name, nanoseconds)
        address = b"" if session.address == b"lua" else session.address
        shown = self._trimmed(redacted(row, argv))
        self.entries.appendleft(
            SlowCommand(self._next, now_ms // 1000, nanoseconds // 1000, shown, address, session.name, len(argv))
        )
        self._next += 1
        self._shorten()

    def note_event(self, event: str, nanoseconds: int, now_ms: int) -> None:
        """Record the duration of an event that is not a command."""
        if nanoseconds >= self._peak_ns:
            self.peaks.setdefault(event, Peaks()).add(now_ms // 1000, nanoseconds // 1_000_000)

    def latest(self, count: int) -> Iterable[SlowCommand]:
        """Return the latest `count` entries, or all if negative."""
        return islice(self.entries, None if count < 0 else count)

    def forget_peaks(self, events: Iterable[str]) -> int:
        """Forget the peaks of these kinds of events. Returns the number of kinds that had some."""
        return sum(self.peaks.pop(event, None) is not None for event in events)

    def _shorten(self) -> None:
        most = self._config.number("slowlog-max-len")
        while len(self.entries) > most:
            self.entries.pop()

    def _trimmed(self, argv: list[bytes]) -> list[bytes]:
        """Shorten a command: cut long words and drop words after the first ones, with counts of what is left out."""
        words = self._config.number("slowlog-entry-max-argc")
        size = self._config.number("slowlog-entry-max-string-len")
        kept = argv if len(argv) <= words else argv[: words - 1]
        shown = [
            word if len(word) <= size else b"%b... (%d more bytes)" % (word[:size], len(word) - size) for word in kept
        ]
        if len(kept) < len(argv):
            shown.append(b"... (%d more arguments)" % (len(argv) - words + 1))
        return shown
