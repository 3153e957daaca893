"""CLIENT PAUSE: all commands, or those that write, wait until a time or CLIENT UNPAUSE.

A paused command blocks its connection; after the pause it runs as if it had just arrived. The pause is one of the hub's
gates and exists only while it lasts. Keys that expire meanwhile are hidden at once and removed after the pause, because
their removal would be a change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.engine.outcome import Wait
from millstream.engine.table import Command
from millstream.errors import CommandError

if TYPE_CHECKING:
    from millstream.server.core.blocking import Waiter
    from millstream.server.core.interfaces import Client, Server

# Replicas get these although they are not writes.
_REACHING_OUT: Final = frozenset({"publish", "spublish"})
_SCRIPTS: Final = frozenset({"eval", "evalsha", "fcall"})


class Postponed(CommandError):
    """Signals that the command has to wait until the pause is over. Never sent to a client."""


class Pause:
    """The pause of a hub. Everything is called under its lock."""

    __slots__ = ("_hub", "_until_ms", "_waiting", "is_of_all")

    def __init__(self, hub: Server) -> None:
        self._hub = hub
        self._until_ms: int | None = None
        self._waiting: dict[Waiter, Client] = {}
        self.is_of_all = False  # False: only commands that write wait

    @property
    def until_ms(self) -> int | None:
        """Return when the pause ends by itself, or None without a pause."""
        return self._until_ms

    def begin(self, until_ms: int, *, of_all: bool) -> None:
        """Begin a pause. Of two pauses the later end and the stricter rule apply."""
        if self._until_ms is None:
            self._hub.gates.append(self.gate)
            self.is_of_all = False
        self._until_ms = max(self._until_ms or 0, until_ms)
        self.is_of_all = self.is_of_all or of_all
        self._hub.keyspace.keeps_expired = True
        self._hub.keep_swept()

    def end(self) -> None:
        """End the pause and run what has waited, in the order of arrival."""
        if self._until_ms is None:
            return
        self._until_ms = None
        self._hub.gates.remove(self.gate)
        self._hub.keyspace.keeps_expired = False
        waiting, self._waiting = self._waiting, {}
        for waiter, session in waiting.items():
            if not waiter.is_over:
                self._hub.blocking.give_up(waiter)
                session.run_later(waiter.argv)
        self._hub.keep_swept()

    def end_if_due(self, now_ms: int) -> None:
        """End the pause if its time is over."""
        if self._until_ms is not None and now_ms >= self._until_ms:
            self.end()

    def gate(self, session: Client, row: Command, argv: list[bytes]) -> CommandError | None:
        """Return Postponed if a command has to wait. A running script or transaction is not paused."""
        if session.is_running or not session.id:
            return None
        return Postponed("ERR paused") if self.is_of_all or self.writes(session, row, argv) else None

    def writes(self, session: Client, row: Command, argv: list[bytes]) -> bool:
        """Return whether a command may change something, or reach others."""
        if row.name == "exec":
            return any(self.writes(session, queued, words) for queued, words in session.queue or ())
        if row.name in _SCRIPTS:
            return not self._hub.is_read_only_script(row, argv)
        return "write" in row.flags or row.name in _REACHING_OUT

    def postpone(self, session: Client, row: Command, argv: list[bytes]) -> Waiter:
        """Make a command wait for the end of the pause."""
        waiter = self._hub.blocking.begin(session, row, Wait((), 0, argv), session.db, session.protocol)
        self._waiting[waiter] = session
        return waiter

    def holds(self, waiter: Waiter) -> bool:
        """Return whether this wait is one for the end of the pause."""
        return waiter in self._waiting
