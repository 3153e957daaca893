"""What a command of the server sees: the engine's view of the keyspace, and the connection it came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from millstream.engine.keyspace import Call
from millstream.engine.outcome import Reply, Wait
from millstream.engine.table import Registry, Run

if TYPE_CHECKING:
    from millstream.server.hub import Hub
    from millstream.server.session import Session


class ServerCall(Call):
    """One running command of one session. Commands of the engine take it for a plain `Call`."""

    __slots__ = ("hub", "session")

    def __init__(self, hub: Hub, session: Session, now_ms: int, *, may_block: bool) -> None:
        super().__init__(
            hub.keyspace, session.db, now_ms, may_block=may_block, protocol=session.protocol,
            keep_log=hub.journal is not None,
        )  # fmt: skip
        self.hub: Hub = hub
        self.session: Session = session


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
