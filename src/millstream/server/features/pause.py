"""CLIENT PAUSE: commands wait, all of them or those that write, until a time or CLIENT UNPAUSE.

A command that has to wait makes its connection wait, as one that blocks does; when the pause is over it is run as if
it had come only then. The pause is one of the hub's gates, and is there only while it lasts. Keys whose time has come
are gone for whoever asks, and are removed when the pause is over: their removal would be a change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.engine.outcome import Wait
from millstream.engine.table import Command
from millstream.errors import CommandError

if TYPE_CHECKING:
    from millstream.server.core.blocking import Waiter
    from millstream.server.core.hub import Hub
    from millstream.server.core.session import Session

# What is told to replicas although it is no write.
_REACHING_OUT: Final = frozenset({"publish", "spublish"})
_SCRIPTS: Final = frozenset({"eval", "evalsha", "fcall"})


class Postponed(CommandError):
    """No error: the command is to wait until the pause is over. Never sent to anybody."""


class Pause:
    """The pause of a hub. Everything is called under its lock."""

    __slots__ = ("_hub", "_until_ms", "_waiting", "is_of_all")

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._until_ms: int | None = None
        self._waiting: dict[Waiter, Session] = {}
        self.is_of_all = False  # else of commands that write

    @property
    def until_ms(self) -> int | None:
        """When it ends by itself, None if there is none."""
        return self._until_ms

    def begin(self, until_ms: int, *, of_all: bool) -> None:
        """Pause. Of two pauses the later end and the stricter rule hold."""
        if self._until_ms is None:
            self._hub.gates.append(self.gate)
            self.is_of_all = False
        self._until_ms = max(self._until_ms or 0, until_ms)
        self.is_of_all = self.is_of_all or of_all
        self._hub.keyspace.keeps_expired = True
        self._hub.keep_swept()

    def end(self) -> None:
        """Let everything go on, in the order it came."""
        if self._until_ms is None:
            return
        self._until_ms = None
        self._hub.gates.remove(self.gate)
        self._hub.keyspace.keeps_expired = False
        waiting, self._waiting = self._waiting, {}
        for waiter, session in waiting.items():
            if not waiter.is_over:
                self._hub.give_up(waiter)
                session.run_later(waiter.argv)
        self._hub.keep_swept()

    def end_if_due(self, now_ms: int) -> None:
        """Let everything go on if it is time."""
        if self._until_ms is not None and now_ms >= self._until_ms:
            self.end()

    def gate(self, session: Session, row: Command, argv: list[bytes]) -> CommandError | None:
        """Whether a command has to wait. What runs already, a script or a transaction, is not held up."""
        if session.is_running or not session.id:
            return None
        return Postponed("ERR paused") if self.is_of_all or self._writes(session, row, argv) else None

    def _writes(self, session: Session, row: Command, argv: list[bytes]) -> bool:
        if row.name == "exec":
            return any(self._writes(session, queued, words) for queued, words in session.queue or ())
        if row.name in _SCRIPTS:
            return not self._hub.is_read_only_script(row, argv)
        return "write" in row.flags or row.name in _REACHING_OUT

    def postpone(self, session: Session, row: Command, argv: list[bytes]) -> Waiter:
        """Let a command wait for the end of the pause."""
        waiter = self._hub.block(session, row, Wait((), 0, argv), session.db, session.protocol)
        self._waiting[waiter] = session
        return waiter

    def holds(self, waiter: Waiter) -> bool:
        """Whether this wait is one for the end of the pause."""
        return waiter in self._waiting
