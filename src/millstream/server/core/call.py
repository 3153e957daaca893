"""What a command of the server sees: the engine's view of the keyspace, and the connection it came from.

A call notes only what somebody will be told: log lines when there is a journal, keys when somebody watches or waits,
events when they are published or counted. One call object serves command after command (`renew`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from millstream.engine.keys.keyspace import CommandContext, Database
from millstream.engine.outcome import Event, Reply, Wait
from millstream.engine.table import Registry, Run

if TYPE_CHECKING:
    from millstream.server.core.interfaces import Client
    from millstream.server.core.services import Services


class ServerCall(CommandContext):
    """One running command of one session. Commands of the engine take it for a plain `Call`."""

    __slots__ = ("hub", "session")

    def __init__(self, hub: Services, session: Client) -> None:
        super().__init__(hub.keyspace, session.db, 0)
        self.hub: Services = hub
        self.session: Client = session

    def renew(self, session: Client, now_ms: int, may_block: bool) -> None:
        """Be the call of the next command: nothing has happened yet."""
        hub = self.hub
        self.session = session
        self.keyspace = keyspace = hub.keyspace
        self.db = keyspace.databases[session.db]
        self.now_ms = now_ms
        self.may_block = may_block
        self.protocol = session.protocol
        self.keep_log = hub.keeps_log
        self.dirty = 0
        if self.logged:
            self.logged = []
        if self.touches:
            self.touches = []
        if self.events:
            self.events = []
        if self.readied:
            self.readied = []

    def log(self, *argv: bytes, db: Database | None = None) -> None:
        """Note a command that replays what happened."""
        if self.keep_log:
            self.logged.append(((db or self.db).index, argv))

    def touch(self, key: bytes, db: Database | None = None) -> None:
        """Note that the key was modified in a way that WATCH must see."""
        if len(self.hub.watches) or self.hub.counts_memory or self.hub.tracking.is_on:
            self.touches.append(((db or self.db).index, key))

    def event(self, kind: str, name: bytes, key: bytes, db: Database | None = None) -> None:
        """Note a keyspace event; misses and expired keys are counted even if nobody is told."""
        if kind in self.hub.letters or kind in "mx":
            self.events.append(Event(kind, name, key, (db or self.db).index))

    def ready(self, key: bytes, db: Database | None = None) -> None:
        """Commands that wait for this key are worth running again."""
        if len(self.hub.waiters):
            self.readied.append(((db or self.db).index, key))


ServerRun = Callable[[ServerCall, list[bytes]], "Reply | Wait"]


class ServerRegistry(Registry):
    """Collects rows whose functions need the connection."""

    def serves(self, name: str, arity: int, flags: str = "", **columns: Any) -> Callable[[ServerRun], ServerRun]:
        """As `command`. The server runs every row with a ServerCall, so the narrower type is safe."""
        register = self.command(name, arity, flags, **columns)

        def serve(run: ServerRun) -> ServerRun:
            register(cast("Run", run))
            return run

        return serve

    def contains(self, name: str, *, since: str = "1.0.0", summary: str = "") -> None:
        """Register a command that has subcommands."""
        self.add(name, -2, since=since, summary=summary)
