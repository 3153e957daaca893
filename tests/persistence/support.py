"""What the tests of keeping share: a broker on files in memory, random programs, and what can be seen of a state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from millstream.clock import ManualClock
from millstream.engine.keys.keyspace import Keyspace
from millstream.engine.keys.values import Hash, List, SetOf, SortedSet
from millstream.engine.streams.ids import MAX_KEY, text_of
from millstream.engine.streams.stream import Stream
from millstream.errors import CommandError
from millstream.persistence.store import Opened, Store
from millstream.server.core.hub import Hub
from tests.model import programs
from tests.model.duel import START_MS, Setup
from tests.model.naive import NaiveRedis
from tests.model.test_replay import has_read_too_much, is_history, is_left_out
from tests.persistence.memory_files import MemoryFiles
from tests.server.support import Peer, words

DIRECTORY = Path("/data")
LOGS = DIRECTORY / "appendonlydir"
NOW_MS = START_MS

State = list[tuple[int, bytes, int | None, object]]


class Broker:
    """A hub and its store, on a clock that is moved by hand and with nothing in the background."""

    def __init__(self, files: MemoryFiles | None = None, *, now_ms: int = NOW_MS, **settings: str) -> None:
        self.files = files or MemoryFiles()
        self.clock = ManualClock(now_ms)
        self.seconds = 0.0  # on the clock that never steps back
        named = {name.replace("_", "-"): value for name, value in settings.items()}
        self.hub = Hub(clock=self.clock, settings={"appendonly": "yes", "appendfsync": "always"} | named)
        self.store = self.hub.store = Store(
            self.hub, DIRECTORY, files=self.files, in_background=False, monotonic=lambda: self.seconds
        )
        self.opened: Opened = self.store.open()

    def __call__(self, request: str | list[str | bytes | int]) -> object:
        """Run a command; its reply, or its error as text."""
        try:
            return self.hub.run(words(request))
        except CommandError as error:
            return str(error)

    def run_program(self, seed: int, length: int = 120) -> None:
        for ms, argv in program(seed, length):
            self.clock.advance(ms)
            self(list(argv))

    def peer(self) -> Peer:
        return Peer(self.hub)

    @property
    def state(self) -> State:
        return state_of(self.hub.keyspace)

    def increments(self) -> list[str]:
        return [name for name in self.files.names(LOGS) if ".incr." in name]

    def log(self) -> bytes:
        """The increment that is written to."""
        return self.files.content(LOGS / max(self.increments(), key=lambda name: int(name.split(".")[2])))

    def info(self, name: str) -> object:
        return dict(self.store.info())[name]

    def reopened(self, files: MemoryFiles | None = None, **settings: str) -> Broker:
        """Another broker on the same files, after this one has died."""
        (files or self.files).crash()
        return Broker(files or self.files, now_ms=self.clock.now_ms(), **settings)


# What can be seen of a state


def state_of(keyspace: Keyspace) -> State:
    """Every key; without what a log does not keep: times of consumers, and consumers that hold nothing."""
    return [
        (db.index, key, db.expires.get(key), _value(value))
        for db in keyspace
        for key, value in sorted(db.values.items())
    ]


def _value(value: object) -> object:
    match value:
        case Stream():
            return _stream(value)
        case Hash():
            return dict(value)
        case List():
            return list(value)
        case SetOf():
            return set(value)
        case SortedSet():
            return dict(value.scores)
        case _:
            return value


def _stream(stream: Stream) -> object:
    records = {producer: dict(known) for producer, known in stream.producers.items() if known}
    groups = []
    for group in stream.sorted_groups():
        pending = group.pending
        rows = [(i, h.consumer and h.consumer.name, h.time_ms, h.count) for i, h in pending.in_order(0, MAX_KEY)]
        order = [i for hold in pending.claim_order() for i, _ in pending.live_items(hold)]
        owners = {c.name: c.pending for c in group.consumers.values() if c.pending}
        groups.append((group.name, group.last, group.entries_read, rows, order, owners))
    return (
        stream.entries.read(0, MAX_KEY),
        stream.last,
        stream.max_deleted,
        stream.entries_added,
        stream.idmp_duration,
        stream.idmp_maxsize,
        records,
        groups,
    )


def without_tie_order(state: State) -> State:
    """The same, but for the claim order among entries that were delivered in the same ms: a base does not keep it."""
    return [(db, key, expires, _by_time(value)) for db, key, expires, value in state]


def _by_time(value: object) -> object:
    if not isinstance(value, tuple):
        return value
    *rest, groups = value
    return (*rest, [(*before, _sorted_by_time(rows, order), owners) for *before, rows, order, owners in groups])


def _sorted_by_time(rows: list[tuple[bytes, bytes | None, int, int]], order: list[bytes]) -> list[object]:
    """The rows; released ones in claim order."""
    by_id = {row[0]: row for row in rows}
    released = [by_id[entry_id] for entry_id in order if by_id[entry_id][1] is None]
    return [*released, *(row for row in rows if row[1] is not None)]


def without_ghosts(state: State) -> State:
    """The same, but for pending entries whose stream entry is gone, and records of such entries."""
    return [(db, key, expires, _living(value)) for db, key, expires, value in state]


def _living(value: object) -> object:
    if not isinstance(value, tuple):
        return value
    entries, last, deleted, added, duration, maxsize, records, groups = value
    there = set(entries[0])
    kept = {
        producer: found
        for producer, known in records.items()
        if (found := {iid: key for iid, key in known.items() if text_of(key) in there})
    }
    living = []
    for name, group_last, read, rows, order, _ in groups:
        own = [row for row in rows if row[0] in there]
        owners = Counter(row[1] for row in own if row[1] is not None)
        living.append((name, group_last, read, own, [i for i in order if i in there], dict(owners)))
    return entries, last, deleted, added, duration, maxsize, kept, living


# Random programs

PLAIN = [
    "SET text v",
    "SET text w PX 100000",
    "DEL text",
    "RPUSH l a b c",
    "LPOP l",
    "HSET h a 1 b 2",
    "HDEL h a",
    "SADD set a b c",
    "SREM set b",
    "ZADD z 1 a 2.5 b",
    "ZREM z a",
    "INCR n",
    "PEXPIRE l 5000",
    "PERSIST l",
]


def program(seed: int, length: int = 120, *, setup: Setup | None = None) -> Iterator[tuple[int, list[bytes]]]:
    """How much time goes by, and a command. Left out is what is documented not to be kept (tests.model.test_replay)."""
    choose = programs.RandomChooser(seed)
    setup = setup or Setup()
    world = NaiveRedis(setup.node_max_entries, setup.node_max_bytes)
    now_ms = NOW_MS
    for _ in range(length):
        ms = choose([0, 0, 1, 2, 20])
        now_ms += ms
        if choose([True] + [False] * 9):
            yield ms, words(choose(PLAIN))
            continue
        argv = programs.command(programs.Scene(choose, world, now_ms))
        if is_left_out(argv, world) or is_history(argv):
            yield ms, [b"PING"]
            continue
        world.run(argv, now_ms)
        if has_read_too_much(world):
            return
        yield ms, argv
