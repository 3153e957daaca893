"""Compares what commands do besides answering: the lines they log for replay and the keyspace events they publish.

The server writes an append-only file and publishes events. Each group of commands begins with an XADD in the clock's
database, which shows in both, so both can be cut into what belongs to each group and compared with the `Outcome`s
of its commands.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final

from millstream.engine.outcome import Outcome
from tests.differential.differences import Difference
from tests.differential.duel import CLOCK_DB, Batch, Duel, EngineSide, Mismatch
from tests.differential.program import Program, Settings
from tests.support.logged import one_by_one
from tests.support.servers import RealServer
from tests.support.wire import Wire, end_of, parse

AOF_OPTIONS: Final = (
    "--appendonly",
    "yes",
    "--aof-use-rdb-preamble",
    "no",
    "--appendfsync",
    "no",
    "--auto-aof-rewrite-percentage",
    "0",
    "--notify-keyspace-events",
    "AEmnoc",
)
CHANNEL: Final = re.compile(rb"__keyevent@(\d+)__:(.*)", re.DOTALL)
MARK: Final = b"millstream-mark"

Line = tuple[int, tuple[bytes, ...]]  # a database and a command
Event = tuple[int, bytes, bytes]  # a database, an event and a key


class RecordingSide(EngineSide):
    """The engine, whose outcomes are kept."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.outcomes: list[Outcome] = []

    def outcome(self, argv: list[bytes], now_ms: int) -> Outcome:
        made = super().outcome(argv, now_ms)
        self.outcomes.append(made)
        return made


class EffectsDuel(Duel):
    """A duel that compares effects, too."""

    def __init__(self, server: RealServer, differences: Iterable[Difference]) -> None:
        super().__init__(server, differences, RecordingSide)
        self._log = LogReader(server.directory)
        self._events = EventReader(server.connect(2), server.connect(2))

    def close(self) -> None:
        super().close()
        self._events.close()

    def prepare(self, settings: Settings) -> tuple[Wire, EngineSide]:
        prepared = super().prepare(settings)
        self._log.skip()
        self._events.skip()
        return prepared

    def check(self, batch: Batch, data: bytes, side: EngineSide, program: Program | None) -> int:
        assert isinstance(side, RecordingSide)
        side.outcomes.clear()
        now_ms = super().check(batch, data, side, program)
        outcomes = iter(side.outcomes)
        ran = 0
        queued = [group for group in batch.groups if not group.refused]
        lines, events = self._log.take(len(queued)), self._events.take(len(queued))
        for group in batch.groups:
            made = [next(outcomes) for _ in group.steps]
            if not group.refused:
                argv = group.steps[-1].argv
                words = [word for step in group.steps for word in step.argv]
                our_lines = [(db, argv) for outcome in made for db, line in outcome.log for argv in one_by_one(line)]
                our_events = [(e.db, e.name, e.key) for outcome in made for e in outcome.events]
                at = ran + len(group.steps) - 1
                compare("the logged lines differ", argv, settled(our_lines, words), settled(lines.pop(0), words), at)
                their_events = events.pop(0)
                if argv[0].upper() in (
                    b"SORT",
                    b"SORT_RO",
                ):  # Redis walks a set and a sorted set in the order of hashes
                    our_events, their_events = sorted(our_events), sorted(their_events)
                compare("the events differ", argv, our_events, their_events, at)
            ran += len(group.steps)
        return now_ms


def compare(what: str, argv: list[bytes], ours: Sequence[object], theirs: Sequence[object], at: int) -> None:
    """Mismatch at the first item that differs."""
    for mine, other in zip_longest(ours, theirs):
        if mine != other:
            why = f"{what}: {mine!r:.150}, server {other!r:.150}"
            raise Mismatch(argv, repr(ours).encode(), repr(theirs).encode(), why, at=at)


def settled(lines: list[Line], words: list[bytes]) -> list[Line]:
    """Logged lines without what deliberately differs.

    An approximate trim is logged as an exact one. With ACKED, and for MINID with DELREF, what Redis 8.10.2 logs
    removes less on replay than was removed; we log a threshold that removes the same, so the two are not compared.
    Nor is the case of a command's name, which Redis keeps as the client spelled it. HINCRBYFLOAT is logged as HSET by
    us and as HSETEX by Redis, because its fields can expire.
    """
    lines = [(db, _field_set((argv[0].upper(), *argv[1:]))) for db, argv in lines]
    upper = {word.upper() for word in words}
    if b"~" in upper and (b"ACKED" in upper or upper >= {b"MINID", b"DELREF"}):
        return [(db, tuple(_without_threshold(argv))) for db, argv in lines]
    return lines


def _field_set(argv: tuple[bytes, ...]) -> tuple[bytes, ...]:
    if argv[0] == b"HSETEX" and argv[2:5] == (b"KEEPTTL", b"FIELDS", b"1"):
        return (b"HSET", argv[1], *argv[5:])
    return argv


def _without_threshold(argv: tuple[bytes, ...]) -> list[bytes]:
    words = list(argv)
    for at in range(2, len(words) - 2):
        if words[at].upper() in (b"MAXLEN", b"MINID") and words[at + 1] == b"=":
            words[at], words[at + 2] = b"(strategy)", b"(threshold)"
    return words


class LogReader:
    """The server's append-only file, as it grows."""

    def __init__(self, directory: Path) -> None:
        (path,) = (directory / "appendonlydir").glob("*.incr.aof")
        self._file = path.open("rb")
        self._rest = b""
        self._db = 0
        self._groups: list[list[Line]] = []

    def skip(self) -> None:
        """Forget what was written so far."""
        self._read()
        self._groups.clear()

    def take(self, count: int) -> list[list[Line]]:
        """What the next groups have logged."""
        self._read()
        taken, self._groups = self._groups[:count], self._groups[count:]
        assert len(taken) == count, "a group is missing in the append-only file"
        return taken

    def _read(self) -> None:
        self._rest += self._file.read()
        at = 0
        # the server may be writing what the next batch does: a line that is not all there stays for later
        with contextlib.suppress(ValueError):
            while at < len(self._rest):
                end = end_of(self._rest, at)
                words = parse(self._rest[at:end])
                assert isinstance(words, list)
                self._add(tuple(words))
                at = end
        self._rest = self._rest[at:]

    def _add(self, argv: tuple[bytes, ...]) -> None:
        name = argv[0].upper()
        if name == b"SELECT":
            self._db = int(argv[1])
        elif self._db == CLOCK_DB and name == b"XADD":
            self._groups.append([])
        elif name not in (b"MULTI", b"EXEC") and self._groups:
            self._groups[-1].append((self._db, argv))


class EventReader:
    """The server's keyspace events, as they come."""

    def __init__(self, listener: Wire, speaker: Wire) -> None:
        self._listener = listener
        self._speaker = speaker
        listener.send_only([b"PSUBSCRIBE", b"__keyevent@*", MARK])
        self._buffer = b""
        self._groups: list[list[Event]] = []
        self._marks = 0

    def close(self) -> None:
        self._listener.close()
        self._speaker.close()

    def skip(self) -> None:
        """Forget the events so far."""
        self._read()
        self._groups.clear()

    def take(self, count: int) -> list[list[Event]]:
        """What the next groups have published."""
        self._read()
        taken, self._groups = self._groups[:count], self._groups[count:]
        assert len(taken) == count, "a group is missing among the events"
        return taken

    def _read(self) -> None:
        """Everything that was published before now."""
        self._marks += 1
        mark = b"%d" % self._marks
        self._speaker.ask(b"PUBLISH", MARK, mark)
        while not self._take_until(mark):
            self._buffer += self._listener.receive_some()

    def _take_until(self, mark: bytes) -> bool:
        with contextlib.suppress(ValueError):  # the rest of a message has not come yet
            while self._buffer:
                end = end_of(self._buffer)
                message = parse(self._buffer[:end])
                self._buffer = self._buffer[end:]
                assert isinstance(message, list)
                if message[0] != b"pmessage":
                    continue
                if message[2] == MARK and message[3] == mark:
                    return True
                self._add(message[2], message[3])
        return False

    def _add(self, channel: bytes, key: bytes) -> None:
        match = CHANNEL.fullmatch(channel)
        if match is None:
            return
        db, name = int(match[1]), match[2]
        if db == CLOCK_DB:
            if name == b"xadd":
                self._groups.append([])
        elif self._groups:
            self._groups[-1].append((db, name, key))
