"""What a random program logged, run again in an empty keyspace, gives the state the program left.

Documented to be lost (streams-base 9, streams-new 7.1, 9), and therefore looked away from here:

* when a consumer was last seen and last active;
* consumers made by an XCLAIM or XAUTOCLAIM that claimed nothing;
* what a history read does to delivery counts and times: programs leave history reads out, one test puts them in and
  compares everything else;
* references to entries that were gone already, removed by an XDELEX DELREF that deleted nothing: left out too;
* producers that an XADD left empty because the stream's ids were used up: left out;
* nodes: a trim that removes no entry is not logged, though it may drop a node that held only dead ones;
* a group's entries-read above the stream's entries-added, which only counters set by hand can bring about: XGROUP SETID
  brings it down to entries-added when it is replayed. A program ends when it comes to that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from millstream.engine import invariants
from millstream.engine.commands import execute
from millstream.engine.keys.keyspace import Keyspace
from millstream.server.protocol import resp
from tests.model import programs
from tests.model.duel import START_MS, Setup, new_keyspace
from tests.model.naive import NaiveRedis
from tests.model.naive_ids import TOP, plain, text
from tests.model.programs import Argv
from tests.support.wire import parse

PROGRAMS = 60
LENGTH = 150
KEYS = [b"s", b"t", b"none", b"text"]
GROUPS = [(key, group) for key in KEYS for group in (b"g", b"h", b"nog")]


def is_history(argv: Argv) -> bool:
    """An XREADGROUP that names an id."""
    at = argv.index(b"STREAMS") + 1 if argv[0] == b"XREADGROUP" else len(argv)
    return any(word != b">" for word in argv[at + (len(argv) - at) // 2 :])


def deletes_only_references(argv: Argv, world: NaiveRedis) -> bool:
    """An XDELEX DELREF that names no live entry."""
    if argv[0] != b"XDELEX" or b"DELREF" not in argv:
        return False
    stream = world.values.get(argv[1])
    named = [plain(word) for word in argv[argv.index(b"IDS") + 2 :]]
    return not isinstance(stream, bytes) and stream is not None and not any(stream.find(one) for one in named)


def is_left_out(argv: Argv, world: NaiveRedis) -> bool:
    return deletes_only_references(argv, world) or text(TOP) in argv


def has_read_too_much(world: NaiveRedis) -> bool:
    """Whether a group claims to have read more entries than were ever added."""
    return any((group.read or 0) > stream.added for stream in world.streams() for group in stream.groups.values())


@dataclass
class Ran:
    """A program that has run on the engine: what it left, what it logged, when it ended."""

    setup: Setup
    keyspace: Keyspace
    now_ms: int
    log: list[tuple[bytes, ...]] = field(default_factory=list)
    claims: list[Argv] = field(default_factory=list)  # XCLAIM and XAUTOCLAIM as they were called

    def replayed(self) -> Keyspace:
        """An empty keyspace after the log."""
        keyspace = new_keyspace(self.setup)
        for line in self.log:
            outcome = execute(keyspace, 0, list(line), self.now_ms, trusted=True)
            reply = resp.encode(outcome.reply, 2)
            assert not reply.startswith(b"-"), f"{line} was answered {reply!r}"
        invariants.check(keyspace)
        return keyspace


def run_program(seed: int, *, history: bool) -> Ran:
    """Run a random program on the engine; the model only tells which ids there are."""
    choose = programs.RandomChooser(seed)
    setup = Setup(choose([100, 3, 2, 1, 5, 0]), choose([4096, 4096, 120, 300]))
    world = NaiveRedis(setup.node_max_entries, setup.node_max_bytes)
    ran = Ran(setup, new_keyspace(setup), START_MS)
    for _ in range(LENGTH):
        ran.now_ms += choose([0, 0, 1, 2, 20])
        argv = programs.command(programs.Scene(choose, world, ran.now_ms))
        if is_left_out(argv, world) or (is_history(argv) and not history):
            continue
        world.run(argv, ran.now_ms)
        outcome = execute(ran.keyspace, 0, argv, ran.now_ms)
        ran.log += [line for db, line in outcome.log if db == 0]
        ran.claims += [argv] if argv[0] in (b"XCLAIM", b"XAUTOCLAIM") else []
        if has_read_too_much(world):
            break
    return ran


def ask(keyspace: Keyspace, now_ms: int, *argv: bytes) -> object:
    return parse(resp.encode(execute(keyspace, 0, list(argv), now_ms).reply, 2))


def pairs(flat: object) -> dict[bytes, object]:
    assert isinstance(flat, list)
    return dict(zip(flat[0::2], flat[1::2], strict=True))


def state(keyspace: Keyspace, now_ms: int, key: bytes, *, deliveries: bool) -> object:
    """All that XINFO tells of a key, without what is documented to be lost."""
    found = ask(keyspace, now_ms, b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0")
    if not isinstance(found, list):
        return found
    stream = {name: value for name, value in pairs(found).items() if not name.startswith(b"radix-tree-")}
    groups = []
    for flat in stream.pop(b"groups"):
        group = pairs(flat)
        consumers = [pairs(consumer) for consumer in group.pop(b"consumers")]
        group[b"consumers"] = [without_times(consumer) for consumer in consumers if consumer[b"pel-count"]]
        if not deliveries:
            group[b"pending"] = [[one[0], one[1]] for one in group[b"pending"]]
            for consumer in group[b"consumers"]:
                consumer[b"pending"] = [one[0] for one in consumer[b"pending"]]
        if (group[b"entries-read"] or 0) > stream[b"entries-added"]:
            group[b"entries-read"], group[b"lag"] = stream[b"entries-added"], 0
        groups.append(group)
    return stream, groups


def without_times(consumer: dict[bytes, object]) -> dict[bytes, object]:
    return {name: value for name, value in consumer.items() if name not in (b"seen-time", b"active-time")}


def consumer_names(keyspace: Keyspace, now_ms: int, key: bytes, group: bytes) -> set[bytes]:
    found = ask(keyspace, now_ms, b"XINFO", b"CONSUMERS", key, group)
    return {pairs(consumer)[b"name"] for consumer in found} if isinstance(found, list) else set()


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_replaying_the_log_of_a_program_gives_its_state(seed: int) -> None:
    ran = run_program(seed, history=False)
    after = ran.replayed()
    for key in KEYS:
        left = state(ran.keyspace, ran.now_ms, key, deliveries=True)
        assert state(after, ran.now_ms, key, deliveries=True) == left


@pytest.mark.parametrize("seed", range(PROGRAMS, PROGRAMS + 20))
def test_history_reads_change_nothing_but_counts_and_times(seed: int) -> None:
    ran = run_program(seed, history=True)
    after = ran.replayed()
    for key in KEYS:
        left = state(ran.keyspace, ran.now_ms, key, deliveries=False)
        assert state(after, ran.now_ms, key, deliveries=False) == left


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_pending_entries_are_claimed_in_the_same_order_after_replay(seed: int) -> None:
    ran = run_program(seed, history=False)
    after = ran.replayed()
    for key, group in GROUPS:
        argv = (b"XREADGROUP", b"GROUP", group, b"z", b"CLAIM", b"0", b"STREAMS", key, b">")
        assert ask(after, ran.now_ms, *argv) == ask(ran.keyspace, ran.now_ms, *argv)


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_only_consumers_that_called_a_claim_can_be_missing_after_replay(seed: int) -> None:
    ran = run_program(seed, history=True)
    after = ran.replayed()
    for key, group in GROUPS:
        left = consumer_names(ran.keyspace, ran.now_ms, key, group)
        kept = consumer_names(after, ran.now_ms, key, group)
        claimers = {argv[3] for argv in ran.claims if argv[1:3] == [key, group]}
        assert kept <= left
        assert left - kept <= claimers
