"""The short way of the hot few commands does what the long one does: replies, state, log lines, counters."""

from __future__ import annotations

import random

import pytest

from millstream.engine import invariants
from millstream.server import express
from millstream.server.hub import LogLine
from tests.differential.duel import feed_back
from tests.differential.program import Program, Step, random_program
from tests.server.support import Peer, World
from tests.support.snapshot import snapshot
from tests.support.wire import pack, split

GROUP = "XGROUP CREATE s g 0 MKSTREAM"
READ = "XREADGROUP GROUP g c COUNT 1 STREAMS s >"


class Side:
    """A world whose short way is open or closed, and a program's connection to it."""

    def __init__(self, program: Program, *, short: bool) -> None:
        settings = program.settings
        self.world = World(
            stream_node_max_entries=str(settings.node_max_entries), stream_node_max_bytes=str(settings.node_max_bytes)
        )
        self.peer = self.world.peer(settings.protocol)
        self.short = short

    def run(self, steps: list[Step], monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
        """All steps in one packet."""
        with monkeypatch.context() as patch:
            if not self.short:
                patch.setattr("millstream.server.session.EXPRESS", {})
            return split(self.peer.raw(b"".join(pack(step.argv) for step in steps)))

    def lines(self) -> list[LogLine]:
        found = [line for batch in self.world.journal for line in batch]
        self.world.journal.clear()
        return found

    def counters(self) -> dict[str, tuple[int, int, int]]:
        counted = self.world.hub.stats.by_command
        return {name: (one.calls, one.failed, one.rejected) for name, one in counted.items()}


def without_blocking(steps: list[Step]) -> list[Step]:
    """Nothing comes while a command waits here: let none of them wait."""
    return [step for step in steps if b"BLOCK" not in {word.upper() for word in step.argv}]


@pytest.mark.parametrize("seed", range(40))
def test_both_ways_do_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program = random_program(seed, orderly=seed % 4 > 0)
    rng = random.Random(seed)
    quick, slow = Side(program, short=True), Side(program, short=False)
    while batch := program.next_batch():
        steps = without_blocking(batch)
        at = 0
        while at < len(steps):
            size = rng.choice([1, 2, 16, 50])
            chunk, at = steps[at : at + size], at + size
            pause_ms = rng.choice([0, 0, 1, 7])
            for side in (quick, slow):
                side.world.clock.advance(pause_ms)
            mine, other = quick.run(chunk, monkeypatch), slow.run(chunk, monkeypatch)
            assert mine == other, [step.argv for step in chunk]
            assert quick.lines() == slow.lines(), [step.argv for step in chunk]
            feed_back(chunk, mine, program)
        program.source.set_time(quick.world.clock.now_ms())
    ours, theirs = quick.world.hub, slow.world.hub
    assert snapshot(ours.keyspace) == snapshot(theirs.keyspace)
    assert [db.accessed for db in ours.keyspace] == [db.accessed for db in theirs.keyspace]
    assert (ours.dirty, ours.stats.commands, ours.stats.errors) == (
        theirs.dirty, theirs.stats.commands, theirs.stats.errors
    )  # fmt: skip
    assert quick.counters() == slow.counters()
    invariants.check(ours.keyspace)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The names of commands that took the short way from now on."""
    taken: list[bytes] = []

    def counting(name: bytes, run: express.Express) -> express.Express:
        def call(*arguments: object) -> bytes | None:
            reply = run(*arguments)  # type: ignore[arg-type]
            if reply is not None:
                taken.append(name)
            return reply

        return call

    open_ways = {name: counting(name, run) for name, run in express.EXPRESS.items()}
    monkeypatch.setattr("millstream.server.session.EXPRESS", open_ways)
    return taken


def test_the_hot_few_take_the_short_way(a: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = counted(monkeypatch)
    a(GROUP)
    a("XADD s * f v")
    a("XADD s * f v g w")
    assert a(READ)  # makes the consumer
    assert b"1767225600000-1" in a(READ)
    a("XADD s * f v")
    assert b"1767225600000-2" in a("XREADGROUP GROUP g c COUNT 1 BLOCK 100 STREAMS s >")
    assert a("XACK s g 1767225600000-1") == b":1\r\n"
    assert taken == [b"XADD", b"XADD", b"XREADGROUP", b"XADD", b"XREADGROUP", b"XACK"]


@pytest.mark.parametrize(
    "request_",
    [
        "XADD s 5-5 f v", "XADD s * f", "XADD new * f v", "XADD str * f v", "XADD s MAXLEN 1 * f v", "XADD s *",
        "XREADGROUP GROUP g new COUNT 1 STREAMS s >", "XREADGROUP GROUP none c COUNT 1 STREAMS s >",
        "XREADGROUP GROUP g c COUNT 1 STREAMS s 0", "XREADGROUP GROUP g c COUNT 2 STREAMS s >",
        "XREADGROUP GROUP g c COUNT 1 BLOCK -1 STREAMS s >", "XREADGROUP GROUP g c NOACK COUNT 1 STREAMS s >",
        "XACK s g 7-7", "XACK s none 1-1", "XACK str g 1-1", "XACK s g", "XACK s g 1-1 2-2", "XAck s g 1-1",
    ],
)  # fmt: skip
def test_what_is_not_the_usual_case_takes_the_long_way(
    a: Peer, monkeypatch: pytest.MonkeyPatch, request_: str
) -> None:
    for command in (GROUP, "XADD s 1-1 f v", "XADD s 2-2 f v", "XADD s 3-3 f v", "SET str v", READ, READ):
        a(command)
    taken = counted(monkeypatch)
    assert a(request_)
    assert taken == []


@pytest.mark.parametrize(
    "command",
    ["MULTI", "MONITOR", "WATCH s", "SUBSCRIBE c", "CONFIG SET notify-keyspace-events KEA", "CLIENT REPLY OFF"],
)
def test_whoever_must_be_told_is(world: World, a: Peer, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    a("XADD s 1-1 f v")
    a(command)
    taken = counted(monkeypatch)
    a("XADD s * f v")
    assert taken == []


def test_one_who_waits_for_the_key_is_served(world: World, a: Peer, b: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    a("XADD s 1-1 f v")
    a("XADD t 1-1 f v")
    b("XREAD BLOCK 0 STREAMS s $")
    taken = counted(monkeypatch)
    a("XADD t * f v")
    assert taken == [b"XADD"]
    a("XADD s * f v")
    assert taken == [b"XADD"]
    assert b"1767225600000-0" in b.read()


def test_a_user_who_may_not_is_refused(a: Peer) -> None:
    a("XADD s 1-1 f v")
    a("ACL SETUSER worker on >pw ~other +xadd")
    assert a("AUTH worker pw") == b"+OK\r\n"
    assert a("XADD s * f v").startswith(b"-NOPERM")


def test_a_key_that_expires_takes_the_long_way(world: World, a: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    a("XADD s 1-1 f v")
    a("PEXPIRE s 10")
    taken = counted(monkeypatch)
    world.clock.advance(20)
    a("XADD s * f v")
    assert taken == []
    assert a("XLEN s") == b":1\r\n"


def test_log_lines_are_there_before_anything_else_runs(world: World, a: Peer) -> None:
    a("XADD s 1-1 f v")
    world.logged()
    append = pack([b"XADD", b"s", b"*", b"f", b"v"])
    a.raw(append * 2 + pack([b"SET", b"k", b"v"]) + append)
    assert world.logged() == [
        [b"XADD s 1767225600000-0 f v", b"XADD s 1767225600000-1 f v"],
        [b"SET k v"],
        [b"XADD s 1767225600000-2 f v"],
    ]
