"""Runs a program on a real server and on the engine and compares the replies, byte for byte.

The engine is given the time; a server takes it from the wall. Inside MULTI and EXEC a server's time stands
still, so each command, or a few, are sent as

    MULTI   SELECT 15   XADD clk MAXLEN 1 * a b   SELECT 0   <command> …   EXEC

and the id of that XADD is the time which the commands saw. The engine then runs them with exactly this
time: idle times, ids from `*`, and expiry are all compared. A command that a server refuses to queue
(unknown, wrong number of words) would take the transaction with it; the server's own command table says
which ones these are, and they are sent by themselves.

Nothing is parsed as long as the two agree: the engine's replies are joined and looked for where the server's
stand.
"""

from __future__ import annotations

import contextlib
import re
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from millstream.engine import invariants
from millstream.engine.commands import execute
from millstream.engine.keys import keyspace as engine
from millstream.engine.outcome import Outcome
from millstream.server.protocol.resp import encode
from tests.differential.differences import Difference, explained
from tests.differential.program import Program, Settings, Step
from tests.support.servers import RealServer
from tests.support.wire import Wire, end_of, pack, parse

CLOCK_DB = 15
PREFIX = (
    pack([b"MULTI"])
    + pack([b"SELECT", b"%d" % CLOCK_DB])
    + pack([b"XADD", b"clk", b"MAXLEN", b"1", b"*", b"a", b"b"])
    + pack([b"SELECT", b"0"])
)
EXEC = pack([b"EXEC"])
CLOCK_REPLY = re.compile(rb"\+OK\r\n\$\d+\r\n(\d+)-\d+\r\n\+OK\r\n")


@dataclass
class Mismatch(Exception):
    """The engine and the server do not agree; or the engine broke."""

    argv: list[bytes]
    ours: bytes
    theirs: bytes
    why: str = "the replies differ"
    now_ms: int = 0
    at: int = 0  # how many steps of the program had run


@dataclass(slots=True)
class Group:
    """Steps that share a moment; a step that the server refuses to queue stands alone."""

    steps: list[Step]
    refused: bool


@dataclass(slots=True)
class Batch:
    """Steps that go out in one packet."""

    steps: list[Step]
    groups: list[Group]
    packet: bytes


class Commands:
    """A server's command table: which calls it refuses before it runs them."""

    def __init__(self, wire: Wire) -> None:
        self._rows = {row[0]: row for row in parse(wire.ask(b"COMMAND"))}  # type: ignore[attr-defined]

    def refuses(self, argv: list[bytes]) -> bool:
        """Whether this is an unknown command or one with a wrong number of words."""
        row = self._rows.get(argv[0].lower())
        if row is None:
            return True
        if len(row) > 9 and row[9] and len(argv) > 1:
            name = row[0] + b"|" + argv[1].lower()
            row = next((sub for sub in row[9] if sub[0] == name), None)
            if row is None:
                return True
        arity = row[1]
        return len(argv) != arity if arity > 0 else len(argv) < -arity


class EngineSide:
    """The engine as the program sees it."""

    def __init__(self, settings: Settings) -> None:
        self.protocol = settings.protocol
        self.keyspace = engine.Keyspace(
            settings=engine.KeyspaceSettings(
                stream_node_max_entries=settings.node_max_entries, stream_node_max_bytes=settings.node_max_bytes
            )
        )

    def close(self) -> None:
        """The program is over."""

    def outcome(self, argv: list[bytes], now_ms: int) -> Outcome:
        """Run one command; whatever it raises is a mismatch."""
        try:
            return execute(self.keyspace, 0, list(argv), now_ms, protocol=self.protocol)
        except Exception:
            raise Mismatch(argv, b"", b"", traceback.format_exc(chain=False), now_ms) from None

    def reply(self, argv: list[bytes], now_ms: int) -> bytes:
        """Run one command; its reply on the wire."""
        outcome = self.outcome(argv, now_ms)
        try:
            return encode(outcome.reply, self.protocol)  # type: ignore[arg-type]
        except Exception:
            raise Mismatch(argv, b"", b"", traceback.format_exc(chain=False), now_ms) from None

    def check(self, now_ms: int) -> None:
        """Whether what must always hold does."""
        try:
            invariants.check(self.keyspace)
        except Exception:
            raise Mismatch([b"invariants.check"], b"", b"", traceback.format_exc(chain=False), now_ms) from None


class Duel:
    """One server against the engine."""

    def __init__(
        self, server: RealServer, differences: Iterable[Difference], side: Callable[[Settings], EngineSide] = EngineSide
    ) -> None:
        self._make_side = side
        self._wires = {protocol: server.connect(protocol) for protocol in (2, 3)}
        self.commands = Commands(self._wires[2])
        self.differences = tuple(differences)
        self.compared = 0

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()

    def prepare(self, settings: Settings) -> tuple[Wire, EngineSide]:
        """Empty both sides and set them up for a program."""
        wire = self._wires[settings.protocol]
        limits = (
            b"stream-node-max-entries",
            b"%d" % settings.node_max_entries,
            b"stream-node-max-bytes",
            b"%d" % settings.node_max_bytes,
        )
        # expired keys go when they are met, as in the engine, and not at some moment in the background
        commands = ([b"FLUSHALL"], [b"CONFIG", b"SET", *limits], [b"DEBUG", b"SET-ACTIVE-EXPIRE", b"0"])
        assert wire.exchange(b"".join(map(pack, commands))) == b"+OK\r\n" * 3
        return wire, self._make_side(settings)

    def run(self, program: Program) -> None:
        """Run a whole program; Mismatch where the two part."""
        wire, side = self.prepare(program.settings)
        with contextlib.closing(side):
            self._run(program, wire, side)

    def _run(self, program: Program, wire: Wire, side: EngineSide) -> None:
        batch = self.batch(program.next_batch())
        wire.send(batch.packet)
        following = self.batch(program.next_batch())
        done = now_ms = 0
        while batch.steps:
            replies = wire.receive()
            if following.steps:
                time.sleep(following.steps[0].pause_ms / 1000)
                wire.send(following.packet)  # the server works on it while we check and make the next one
            try:
                now_ms = self.check(batch, replies, side, program)
            except Mismatch as mismatch:
                mismatch.at += done
                if following.steps:
                    wire.receive()
                raise
            done += len(batch.steps)
            batch, following = following, self.batch(program.next_batch())
        self.compared += done
        self.check_invariants(side, now_ms, done)

    def check_invariants(self, side: EngineSide, now_ms: int, done: int) -> None:
        try:
            side.check(now_ms)
        except Mismatch as mismatch:
            mismatch.at = done - 1
            raise

    def batch(self, steps: list[Step]) -> Batch:
        """Steps, put together by the moments they share, and as they go to the server."""
        groups: list[Group] = []
        parts: list[bytes] = []
        for step in steps:
            refused = self.commands.refuses(step.argv)
            if not (step.joined and groups and not (refused or groups[-1].refused)):
                if groups and not groups[-1].refused:
                    parts.append(EXEC)
                groups.append(Group([], refused))
                if not refused:
                    parts.append(PREFIX)
            groups[-1].steps.append(step)
            parts.append(pack(step.argv))
        if groups and not groups[-1].refused:
            parts.append(EXEC)
        return Batch(steps, groups, b"".join(parts))

    def check(self, batch: Batch, data: bytes, side: EngineSide, program: Program | None) -> int:
        """Run the steps on the engine and compare; the time of the last of them."""
        at = ran = now_ms = 0
        for group in batch.groups:
            steps = group.steps
            if not group.refused:
                now_ms, at = self.clock(data, at, steps)
            ours = []
            for step in steps:
                step.now_ms = now_ms
                try:
                    ours.append(side.reply(step.argv, now_ms))
                except Mismatch as mismatch:
                    mismatch.at = ran + len(ours)
                    mismatch.theirs = _nth(data, at, len(ours))
                    raise
            joined = b"".join(ours)
            if data.startswith(joined, at):
                at += len(joined)
            else:
                at = self.compare_singly(steps, ours, data, at, ran)
            feed_back(steps, ours, program)
            ran += len(steps)
        if program is not None and now_ms:
            program.source.set_time(now_ms)
        return now_ms

    def clock(self, data: bytes, at: int, steps: list[Step]) -> tuple[int, int]:
        """The time that steps saw, and where their replies begin."""
        size = len(steps) + 3
        expected = b"+OK\r\n" + b"+QUEUED\r\n" * size + b"*%d\r\n" % size
        if not data.startswith(expected, at):
            raise Mismatch(steps[0].argv, expected, data[at : at + 300], "the server did not queue it")
        match = CLOCK_REPLY.match(data, at + len(expected))
        if match is None:
            raise Mismatch(steps[0].argv, b"", data[at : at + 300], "the clock's own reply is odd")
        return int(match[1]), match.end()

    def compare_singly(self, steps: list[Step], ours: list[bytes], data: bytes, at: int, ran: int) -> int:
        """Find the reply that differs; go on behind the last one if each difference is a known one."""
        for offset, (step, mine) in enumerate(zip(steps, ours, strict=True)):
            end = end_of(data, at)
            theirs = data[at:end]
            if mine != theirs and not explained(self.differences, step.argv, mine, theirs):
                raise Mismatch(step.argv, mine, theirs, now_ms=step.now_ms, at=ran + offset)
            at = end
        return at


def feed_back(steps: list[Step], ours: list[bytes], program: Program | None) -> None:
    """Keep the ids that were made, for later commands and for running the program again."""
    for step, reply in zip(steps, ours, strict=True):
        name = step.argv[0].upper()
        made = name == b"XADD" and reply[:1] == b"$"
        if made:
            step.made = reply.split(b"\r\n", 2)[1]
        read = name == b"XREADGROUP" and reply[:1] in b"*%"
        if program is not None and (made or read or reply.startswith(b"-NOGROUP")):
            program.source.learn(step.argv, reply)


def _nth(data: bytes, at: int, index: int) -> bytes:
    """The reply that stands so many behind this place."""
    for _ in range(index):
        at = end_of(data, at)
    return data[at : end_of(data, at)]
