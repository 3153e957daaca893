"""The short way of the hot few commands does what the long one does: replies, state, counters; its log as well."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.engine import invariants
from millstream.engine.keys.keyspace import Keyspace
from millstream.engine.streams.stream import Stream
from millstream.persistence.aof.replay import Replay
from millstream.persistence.aof.writer import LineEncoder
from millstream.server.batching import hot_commands
from tests.differential.duel import feed_back
from tests.differential.program import Settings, Step, random_program
from tests.persistence.memory_files import MemoryFiles
from tests.server.support import Peer, World
from tests.support.snapshot import snapshot
from tests.support.wire import pack, split

LOG = Path("/log")
GROUP = "XGROUP CREATE s g 0 MKSTREAM"
READ = "XREADGROUP GROUP g c COUNT 1 STREAMS s >"


class Side:
    """A world whose short way is open or closed, and a program's connection to it."""

    def __init__(self, settings: Settings, *, short: bool) -> None:
        self.world = World(
            stream_node_max_entries=str(settings.node_max_entries), stream_node_max_bytes=str(settings.node_max_bytes)
        )
        self.peer = self.world.peer(settings.protocol)
        self.short = short
        self._encoder = LineEncoder()
        self._log = b""

    def run(self, steps: list[Step], monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
        """All steps in one packet."""
        with monkeypatch.context() as patch:
            if not self.short:
                patch.setattr("millstream.server.core.session.EXPRESS", {})
                patch.setattr("millstream.server.core.session.EXPRESS_ALIKE", {})
            replies = split(self.peer.raw(b"".join(pack(step.argv) for step in steps)))
        for batch in self.world.journal:
            self._log += self._encoder.encode(batch)
        self.world.journal.clear()
        return replies

    def replayed(self) -> Keyspace:
        """What the log makes of an empty keyspace."""
        keyspace = Keyspace(settings=replace(self.world.hub.keyspace.settings))
        files = MemoryFiles()
        files.put(LOG, self._log)
        found = Replay(keyspace, self.world.clock.now_ms()).file(files, LOG)
        assert (found.torn_at, found.errors) == (None, 0)
        invariants.check(keyspace)
        return keyspace

    def blocks(self) -> list[object]:
        """The blocks of the stream `s`, with the bytes that Redis would use for them."""
        stream = self.world.hub.keyspace.databases[0].values[b"s"]
        assert isinstance(stream, Stream)
        return [(block.first, block.last, block.size, block.dead, block.ids) for block in stream.entries.blocks]

    def counters(self) -> dict[str, tuple[int, int, int]]:
        counted = self.world.hub.stats.by_command
        return {name: (one.calls, one.failed, one.rejected) for name, one in counted.items()}


def without_blocking(steps: list[Step]) -> list[Step]:
    """Nothing comes while a command waits here: let none of them wait."""
    return [step for step in steps if b"BLOCK" not in {word.upper() for word in step.argv}]


@pytest.mark.parametrize("seed", range(40))
def test_both_ways_do_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program = random_program(seed, orderly=seed % 4 > 0)
    settings = program.settings
    rng = random.Random(seed)
    quick, slow = Side(settings, short=True), Side(settings, short=False)
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
            feed_back(chunk, mine, program)
        program.source.set_time(quick.world.clock.now_ms())
    ours, theirs = quick.world.hub, slow.world.hub
    assert snapshot(ours.keyspace) == snapshot(theirs.keyspace)
    assert snapshot(quick.replayed()) == snapshot(slow.replayed())
    assert [db.accessed for db in ours.keyspace] == [db.accessed for db in theirs.keyspace]
    assert (ours.dirty, ours.stats.commands, ours.stats.errors) == (
        theirs.dirty,
        theirs.stats.commands,
        theirs.stats.errors,
    )
    assert quick.counters() == slow.counters()
    invariants.check(ours.keyspace)


@pytest.mark.parametrize("seed", range(12))
def test_runs_of_alike_requests_do_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few entries, two groups, runs that go across block ends and past the last entry."""
    rng = random.Random(seed)
    settings = Settings(
        node_max_entries=rng.choice([0, 1, 3, 10]), node_max_bytes=rng.choice([200, 4096]), protocol=rng.choice([2, 3])
    )
    quick, slow = Side(settings, short=True), Side(settings, short=False)
    pending: list[bytes] = []
    for turn in range(60):
        group, consumer = rng.choice([b"g", b"h"]), rng.choice([b"c", b"d"])
        run = rng.randrange(1, 9)
        match rng.randrange(5) if turn else 5:
            case 0:
                name, size = rng.choice([b"f", b"other", b"*"]), rng.choice([0, 18, 30, 99, 100, 130, 999, 1001])
                requests = [[b"XADD", b"s", b"*", name, b"%d" % number + b"x" * size] for number in range(run)]
            case 1:
                requests = [[b"XREADGROUP", b"GROUP", group, consumer, b"COUNT", b"1", b"STREAMS", b"s", b">"]] * run
            case 2:
                requests = [[b"XACK", b"s", group, rng.choice(pending or [b"1-1"])] for _ in range(run)]
            case 3:
                mode = rng.choice([b"SILENT", b"FAIL", b"FATAL"])
                ids = [rng.choice(pending or [b"1-1"]) for _ in range(run)]
                requests = [[b"XNACK", b"s", group, mode, b"IDS", b"1", entry_id] for entry_id in ids]
            case 4:
                requests = [[b"XDEL", b"s", rng.choice(pending or [b"1-1"])]] if rng.random() < 0.1 else [[b"PING"]]
            case _:
                requests = [[b"XGROUP", b"CREATE", b"s", name, b"0", b"MKSTREAM"] for name in (b"g", b"h")]
        pause_ms = rng.choice([0, 0, 1, 7, 500])
        for side in (quick, slow):
            side.world.clock.advance(pause_ms)
        steps = [Step(argv) for argv in requests]
        mine = quick.run(steps, monkeypatch)
        assert mine == slow.run(steps, monkeypatch), requests
        pending += re.findall(rb"[0-9]+-[0-9]+", b"".join(mine))
    assert snapshot(quick.world.hub.keyspace) == snapshot(slow.world.hub.keyspace)
    assert quick.blocks() == slow.blocks()
    assert snapshot(quick.replayed()) == snapshot(slow.replayed())
    assert quick.counters() == slow.counters()
    invariants.check(quick.world.hub.keyspace)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The names of commands that took the short way from now on."""
    taken: list[bytes] = []

    def counting(name: bytes, run: hot_commands.Express) -> hot_commands.Express:
        def call(*arguments: object) -> int:
            done = run(*arguments)  # type: ignore[arg-type]
            taken.extend([name] * done)
            return done

        return call

    open_ways = {word: (name, counting(word, run)) for word, (name, run) in hot_commands.EXPRESS.items()}
    monkeypatch.setattr("millstream.server.core.session.EXPRESS", open_ways)
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
    assert a("XNACK s g FAIL IDS 1 1767225600000-1") == b":1\r\n"
    assert a("XACK s g 1767225600000-1") == b":1\r\n"
    assert taken == [b"XADD", b"XADD", b"XREADGROUP", b"XADD", b"XREADGROUP", b"XNACK", b"XACK"]


@pytest.mark.parametrize(
    "request_",
    [
        "XADD s 5-5 f v",
        "XADD s * f",
        "XADD new * f v",
        "XADD str * f v",
        "XADD s MAXLEN 1 * f v",
        "XADD s *",
        "XREADGROUP GROUP g new COUNT 1 STREAMS s >",
        "XREADGROUP GROUP none c COUNT 1 STREAMS s >",
        "XREADGROUP GROUP g c COUNT 1 STREAMS s 0",
        "XREADGROUP GROUP g c COUNT 2 STREAMS s >",
        "XREADGROUP GROUP g c COUNT 1 BLOCK -1 STREAMS s >",
        "XREADGROUP GROUP g c NOACK COUNT 1 STREAMS s >",
        "XACK s g 7-7",
        "XACK s none 1-1",
        "XACK str g 1-1",
        "XACK s g",
        "XACK s g 1-1 2-2",
        "XAck s g 1-1",
        "XNACK s g FAIL IDS 1 7-7",
        "XNACK s none FAIL IDS 1 1-1",
        "XNACK s g fail IDS 1 1-1",
        "XNACK s g FAIL IDS 2 1-1 2-2",
        "XNACK s g FAIL IDS 1 1-1 FORCE",
        "XNACK str g FAIL IDS 1 1-1",
    ],
)
def test_what_is_not_the_usual_case_takes_the_long_way(a: Peer, monkeypatch: pytest.MonkeyPatch, request_: str) -> None:
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


@pytest.mark.parametrize("size", [1, 16])
def test_one_who_waits_for_a_released_entry_is_served(
    world: World, a: Peer, b: Peer, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    a(GROUP)
    ids = [b"1-%d" % at for at in range(1, 21)]
    a.raw(b"".join(pack([b"XADD", b"s", entry_id, b"f", b"v"]) for entry_id in ids))
    a("XREADGROUP GROUP g c COUNT 20 STREAMS s >")
    b("XREADGROUP GROUP g d BLOCK 0 CLAIM 60000 STREAMS s >")
    taken = counted(monkeypatch)
    replies = a.raw(b"".join(pack([b"XNACK", b"s", b"g", b"FAIL", b"IDS", b"1", entry_id]) for entry_id in ids[:size]))
    assert replies == b":1\r\n" * size
    assert ids[0] in b.read()
    assert taken == [b"XNACK"] * (size - 1), "the general path serves who waits; with nobody waiting it is not needed"


def test_releases_of_one_read_are_logged_as_they_came(world: World, a: Peer) -> None:
    a(GROUP)
    ids = [b"1767225600000-%d" % at for at in range(9)]
    a.raw(b"".join(pack([b"XADD", b"s", entry_id, b"f", b"v"]) for entry_id in ids))
    a(READ)
    world.logged()
    read = pack(READ.encode().split())
    nacks = [pack([b"XNACK", b"s", b"g", b"SILENT", b"IDS", b"1", entry_id]) for entry_id in ids]
    assert a.raw(read + nacks[1]).endswith(b":1\r\n")
    assert world.logged() == [
        [
            b"MULTI",
            b"XCLAIM s g c 0 1767225600000-1 TIME 1767225600000 RETRYCOUNT 1 FORCE JUSTID",
            b"XGROUP SETID s g 1767225600000-1 ENTRIESREAD 2",
            b"EXEC",
            b"XNACK s g SILENT IDS 1 1767225600000-1",
        ]
    ]
    a("XREADGROUP GROUP g c COUNT 9 STREAMS s >")
    world.logged()
    assert a.raw(b"".join(nacks)) == b":1\r\n" * 9
    assert world.logged() == [[b"XNACK s g SILENT IDS 1 " + entry_id for entry_id in ids]]


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


def test_a_chunk_of_appends_is_logged_with_the_ids_filled_in(world: World, a: Peer) -> None:
    a("XADD s 1-1 f v")
    world.logged()
    a.raw(b"".join(pack([b"XADD", b"s", b"*", b"f", value]) for value in (b"v", b"*", b"")))
    a.raw(b"".join(pack([b"XADD", b"s", b"*", b"f", value, b"g", b"w"]) for value in (b"v", b"x")))
    assert world.logged() == [
        [b"XADD s 1767225600000-0 f v", b"XADD s 1767225600000-1 f *", b"XADD s 1767225600000-2 f "],
        [b"XADD s 1767225600000-3 f v g w", b"XADD s 1767225600000-4 f x g w"],
    ]


def test_what_is_read_at_once_is_logged_as_one_claim(world: World, a: Peer) -> None:
    a("XGROUP CREATE s g 0 MKSTREAM")
    for _ in range(6):
        a("XADD s * f v")
    a(READ)
    world.logged()
    read, ack = pack(READ.encode().split()), pack(b"XACK s g 1767225600000-1".split())
    a.raw(read * 2 + ack + read)
    assert world.logged() == [
        [
            b"MULTI",
            b"XCLAIM s g c 0 1767225600000-1 1767225600000-2 TIME 1767225600000 RETRYCOUNT 1 FORCE JUSTID",
            b"XGROUP SETID s g 1767225600000-2 ENTRIESREAD 3",
            b"EXEC",
            b"XACK s g 1767225600000-1",
            b"MULTI",
            b"XCLAIM s g c 0 1767225600000-3 TIME 1767225600000 RETRYCOUNT 1 FORCE JUSTID",
            b"XGROUP SETID s g 1767225600000-3 ENTRIESREAD 4",
            b"EXEC",
        ]
    ]


def test_the_lines_of_another_database_are_not_mixed_in(world: World, a: Peer, b: Peer) -> None:
    a("XADD s 1-1 f v")
    b("SELECT 1")
    b("XADD s 1-1 f v")
    world.journal.clear()
    with world.hub.lock:
        world.hub.in_turn = True
        a("XADD s * f v")
        b("XADD s * f w")
        world.hub.in_turn = False
        world.hub.send_output()
    assert [(db, argv[-1]) for batch in world.journal for db, argv in batch] == [(0, b"v"), (1, b"w")]


def test_no_id_comes_behind_the_last_one(world: World) -> None:
    peer = world.peer()
    peer("XADD s 18446744073709551615-18446744073709551615 f v")
    assert peer("XADD s * f v").startswith(b"-ERR The stream has exhausted the last possible ID")
