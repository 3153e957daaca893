"""What INFO counts: commands, errors, connections."""

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


@dataclass(slots=True)
class Stats:
    """All counters of a hub but `dirty` start again at CONFIG RESETSTAT."""

    connections: int = 0
    rejected_connections: int = 0  # for want of room
    commands: int = 0
    errors: int = 0
    expired: int = 0
    hits: int = 0
    misses: int = 0
    bytes_in: int = 0  # of connections that have ended
    bytes_out: int = 0
    by_command: dict[str, CommandStats] = field(default_factory=dict)
    by_error: dict[str, int] = field(default_factory=dict)

    def of(self, name: str) -> CommandStats:
        """The counters of a command."""
        counters = self.by_command.get(name)
        if counters is None:
            counters = self.by_command[name] = CommandStats()
        return counters

    def count_error(self, error: CommandError) -> None:
        """An error is sent."""
        self.errors += 1
        code = error.code
        self.by_error[code] = self.by_error.get(code, 0) + 1
