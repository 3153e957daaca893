"""What INFO counts: commands, errors, connections; and how the times of a command are spread."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.errors import CommandError


@dataclass(slots=True)
class CommandStats:
    """Calls of one command."""

    calls: int = 0  # that ran
    nanoseconds: int = 0
    rejected: int = 0  # refused before they ran
    failed: int = 0  # ran and answered with an error
    slow: int = 0  # went into the slow log
    slow_ns: int = 0
    slowest_ns: int = 0
    spread: dict[int, int] = field(default_factory=dict)  # calls by the bits of their time in nanoseconds

    def cumulative(self) -> list[tuple[int, int]]:
        """(microseconds, how many calls took no longer), for each power of two that makes a difference."""
        rows: dict[int, int] = {}
        total = 0
        spread = self._complete()
        for bits in sorted(spread):
            total += spread[bits]
            rows[_microseconds(bits)] = total
        return list(rows.items())

    def _complete(self) -> dict[int, int]:
        """Return the distribution of all call times; calls timed together count as average ones."""
        missing = self.calls - sum(self.spread.values())
        if missing <= 0:
            return self.spread
        bits = (self.nanoseconds // self.calls).bit_length()
        return self.spread | {bits: self.spread.get(bits, 0) + missing}

    def percentile(self, share: float) -> float:
        """Return the microseconds below which this share (0 to 1) of the calls stays, to the next power of two."""
        rows = self.cumulative()
        return float(next((limit for limit, calls in rows if calls >= share * rows[-1][1]), 0))


def _microseconds(bits: int) -> int:
    """Return the end of a range of times as Redis prints it; from 2**15 nanoseconds on its ranges are wider."""
    end = 1 << max(bits, 10)
    return (end if end < 1 << 15 else end + end // 128 - 1) // 1000


@dataclass(slots=True)
class Stats:
    """All counters of a hub but `dirty` start again at CONFIG RESETSTAT."""

    connections: int = 0
    rejected_connections: int = 0  # for want of room
    commands: int = 0
    errors: int = 0
    expired: int = 0
    expired_actively: int = 0  # of these, by the sweep and not because somebody asked for them
    hits: int = 0
    misses: int = 0
    output_disconnections: int = 0  # clients that left too much unread
    query_disconnections: int = 0  # clients whose requests were too long
    evicted_clients: int = 0  # to keep `maxmemory-clients`
    bytes_in: int = 0  # of connections that have ended
    bytes_out: int = 0
    by_command: dict[str, CommandStats] = field(default_factory=dict)
    by_error: dict[str, int] = field(default_factory=dict)
    slow: int = 0  # commands that went into the slow log
    slow_ns: int = 0
    slowest_ns: int = 0

    def of(self, name: str) -> CommandStats:
        """Return the counters of a command."""
        counters = self.by_command.get(name)
        if counters is None:
            counters = self.by_command[name] = CommandStats()
        return counters

    def count_calls(self, name: str, calls: int, nanoseconds: int) -> None:
        """So many calls of a command have run, and took so long together."""
        self.commands += calls
        counters = self.by_command.get(name) or self.of(name)
        counters.calls += calls
        counters.nanoseconds += nanoseconds

    def count_error(self, error: CommandError) -> None:
        """Count an error that is sent."""
        self.errors += 1
        code = error.code
        self.by_error[code] = self.by_error.get(code, 0) + 1

    def count_slow(self, name: str, nanoseconds: int) -> None:
        """Count a command that goes into the slow log."""
        for counters in (self, self.of(name)):
            counters.slow += 1
            counters.slow_ns += nanoseconds
            counters.slowest_ns = max(counters.slowest_ns, nanoseconds)
