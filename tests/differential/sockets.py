"""Our server, over a socket, in the place of the engine: whole batches pipelined, compared with a real server.

The server's clock is moved by hand. What tells it the time is a request like any other, where the real server has
the one that asks for the time,

    MULTI   ECHO clock:1767225600000   <commands that the real server ran at this time> …   EXEC

and which a gate of the hub sees when it is queued; so a batch goes out as one packet here, too.
"""

from __future__ import annotations

import contextlib
import traceback
from dataclasses import dataclass
from typing import Any

from millstream.clock import ManualClock
from millstream.engine import invariants
from millstream.engine.table import Command
from millstream.errors import CommandError
from tests.differential.duel import Batch, Duel, EngineSide, Mismatch, feed_back
from tests.differential.program import Program, Settings
from tests.support.ours import serving
from tests.support.wire import end_of, pack

CLOCK = b"clock:"


@dataclass(frozen=True)
class Moment:
    """Commands that run at the same time."""

    now_ms: int
    commands: list[list[bytes]]
    is_refused: bool  # it is one that cannot be queued, and goes alone

    def packet(self) -> bytes:
        commands = b"".join(map(pack, self.commands))
        if self.is_refused:
            return commands
        return pack([b"MULTI"]) + pack([b"ECHO", self._word]) + commands + pack([b"EXEC"])

    def opening(self) -> bytes:
        """What is answered before the commands' own replies."""
        if self.is_refused:
            return b""
        size = len(self.commands) + 1
        return b"+OK\r\n%b*%d\r\n$%d\r\n%b\r\n" % (b"+QUEUED\r\n" * size, size, len(self._word), self._word)

    @property
    def _word(self) -> bytes:
        return b"%b%d" % (CLOCK, self.now_ms)


class SocketSide(EngineSide):
    """Our server in a thread, and a connection to it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._stack = contextlib.ExitStack()
        self._clock = ManualClock(0)
        ours = self._stack.enter_context(
            serving(
                clock=self._clock,
                stream_node_max_entries=str(settings.node_max_entries),
                stream_node_max_bytes=str(settings.node_max_bytes),
            )
        )
        ours.hub.gates.append(self._listen)
        self._hub = ours.hub
        self.keyspace = ours.hub.keyspace
        self._wire = self._stack.enter_context(ours.connect(settings.protocol))

    def _listen(self, session: Any, row: Command, argv: list[bytes]) -> CommandError | None:
        if row.name == "echo" and argv[1].startswith(CLOCK):
            self._clock.advance(int(argv[1].removeprefix(CLOCK)) - self._clock.now_ms())
        return None

    def close(self) -> None:
        self._stack.close()

    def reply(self, argv: list[bytes], now_ms: int) -> bytes:
        """One command; for making a failing program shorter."""
        return self.replies([Moment(now_ms, [argv], is_refused=False)])[0]

    def replies(self, moments: list[Moment]) -> list[bytes]:
        """The replies to all commands of some moments, which go out in one packet."""
        data = self._wire.exchange(b"".join(moment.packet() for moment in moments))
        found: list[bytes] = []
        at = 0
        for moment in moments:
            if not data.startswith(moment.opening(), at):
                raise Mismatch(moment.commands[0], data[at : at + 300], moment.opening(), "ours did not queue it")
            at += len(moment.opening())
            for _ in moment.commands:
                end = end_of(data, at)
                found.append(data[at:end])
                at = end
        return found

    def check(self, now_ms: int) -> None:
        with self._hub.lock:
            try:
                invariants.check(self.keyspace)
            except Exception:
                why = traceback.format_exc(chain=False)
                raise Mismatch([b"invariants.check"], b"", b"", why, now_ms) from None


class SocketDuel(Duel):
    """A real server against ours."""

    def check(self, batch: Batch, data: bytes, side: EngineSide, program: Program | None) -> int:
        """Run a batch on our server as one packet and compare; the time of its last command."""
        assert isinstance(side, SocketSide)
        moments, starts, at, now_ms = [], [], 0, 0
        for group in batch.groups:
            if not group.refused:
                now_ms, at = self.clock(data, at, group.steps)
            starts.append(at)
            moments.append(Moment(now_ms, [step.argv for step in group.steps], group.refused))
            for step in group.steps:
                step.now_ms = now_ms
                at = end_of(data, at)
        ours = side.replies(moments)
        ran = 0
        for group, start in zip(batch.groups, starts, strict=True):
            mine = ours[ran : ran + len(group.steps)]
            self.compare_singly(group.steps, mine, data, start, ran)
            feed_back(group.steps, mine, program)
            ran += len(group.steps)
        if program is not None and now_ms:
            program.source.set_time(now_ms)
        return now_ms
