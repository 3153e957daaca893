"""Steps that run under the lock of a broker in this process do what their scripts and commands do."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millstream import Broker
from millstream.client import Backend, connect
from millstream.client.calls import Call, as_is
from millstream.client.local_brokers import share_broker
from millstream.clock import ManualClock
from millstream.delivery.keys import Keys
from millstream.delivery.steps import NewEntry, Publishing, Settle, Steps
from millstream.errors import ServerReplied

KEYS = Keys(b"s")
START_MS = 1_700_000_000_000
NUMBERS = itertools.count()
Twins = tuple[Backend, Backend]


@pytest.fixture
def twins() -> Iterator[Twins]:
    """Two brokers with the same clock: on the first steps run inside, on the second as scripts and commands."""
    brokers = [Broker(clock=ManualClock(START_MS)) for _ in range(2)]
    names = [f"twin-{next(NUMBERS)}" for _ in brokers]
    held = [share_broker(name, broker) for name, broker in zip(names, brokers, strict=True)]
    backends = [connect(f"memory://{name}") for name in names]
    yield backends[0], backends[1]
    for each in (*backends, *held, *brokers):
        each.close()


def steps(backend: Backend, *, keep_done: bool = False) -> Steps:
    return Steps(KEYS, b"g", backend.capabilities, keep_done=keep_done)


def outcome(run: Callable[[], Any]) -> Any:
    """What a call returns; of an error the code, as a script adds its name to the text."""
    try:
        return run()
    except ServerReplied as error:
        return f"raised {error.code}"


def state(backend: Backend) -> dict[bytes, Any]:
    """All keys, dumped, and what is to be seen of the stream only in reports."""
    names = sorted(backend.execute("KEYS", "*", key=b""))
    found: dict[bytes, Any] = {name: backend.execute("DUMP", name) for name in names}
    if backend.execute("TYPE", "s") == b"stream":
        found[b"report"] = backend.execute("XINFO", "STREAM", "s", "FULL", key=b"s")
    return found


def on_both(twins: Twins, *words: Any) -> None:
    for backend in twins:
        backend.execute(*words, key=b"s")


def fill(twins: Twins) -> None:
    """Entries 1 to 9 of a group: mine, mine again, another's, nobody's, parked, and some that nobody has read."""
    for number in range(1, 10):
        on_both(twins, "XADD", "s", f"{number}-0", "f", "v")
    on_both(twins, "XGROUP", "CREATE", "s", "g", "0")
    on_both(twins, "XREADGROUP", "GROUP", "g", "me", "COUNT", 3, "STREAMS", "s", ">")
    on_both(twins, "XREADGROUP", "GROUP", "g", "other", "COUNT", 1, "STREAMS", "s", ">")
    on_both(twins, "XREADGROUP", "GROUP", "g", "~delayed", "COUNT", 1, "STREAMS", "s", ">")
    on_both(twins, "XREADGROUP", "GROUP", "g", "me", "COUNT", 1, "STREAMS", "s", ">")
    on_both(twins, "XNACK", "s", "g", "FAIL", "IDS", 1, "6-0")
    on_both(twins, "XCLAIM", "s", "g", "me", 0, "2-0")


ITEMS = [
    Settle(b"1-0", 1),
    Settle(b"2-0", 1),  # delivered twice by now
    Settle(b"2-0", 2),
    Settle(b"2-0", 2),  # named twice
    Settle(b"3-0", None),
    Settle(b"4-0", 1),  # another's
    Settle(b"5-0", 1),  # parked
    Settle(b"6-0", 1),  # nobody's
    Settle(b"7-0", 1),  # never delivered
    Settle(b"99", 1),  # no such entry, and not in canonical form
]
CHANGES: dict[str, list[tuple[Any, ...]]] = {
    "plain": [],
    "another group needs the entries": [("XGROUP", "CREATE", "s", "late", "2-0")],
    "records and retries": [
        ("HSET", KEYS.records(b"g"), "1-0", "2 1 0 1", "4-0", "2 0 0 1"),
        ("ZADD", KEYS.retries(b"g"), 5, "1-0", 7, "5-0"),
    ],
    "records and retries of the acknowledged only": [
        ("HSET", KEYS.records(b"g"), "1-0", "2 1 0 1"),
        ("ZADD", KEYS.retries(b"g"), 5, "3-0"),
    ],
    "keys of other types": [
        ("SET", KEYS.records(b"g"), "x"),
        ("SET", KEYS.retries(b"g"), "x"),
        ("SET", KEYS.meta, "x"),
    ],
    "a stream that expires": [("PEXPIREAT", "s", START_MS + 60_000)],
    "an entry is deleted": [("XDEL", "s", "1-0")],
    "no group": [("XGROUP", "DESTROY", "s", "g")],
    "no stream": [("DEL", "s")],
    "no stream but a text": [("SET", "s", "x")],
}


@pytest.mark.parametrize("keep_done", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_acknowledging_inside_is_the_script(twins: Twins, name: str, keep_done: bool) -> None:
    fill(twins)
    for words in CHANGES[name]:
        on_both(twins, *words)
    inside, plain = twins
    call = steps(inside, keep_done=keep_done).settle(b"me", ITEMS)
    assert call.inside is not None
    got = outcome(lambda: inside.run(call))
    assert got == outcome(lambda: plain.run(replace(call, inside=None)))
    assert state(inside) == state(plain)
    if name == "plain":
        assert got == [1, -1, 1, 0, 1, -1, -1, -1, 0, 0]


def test_only_plain_acknowledgements_run_inside(twins: Twins) -> None:
    made = steps(twins[0])
    assert made.settle(b"me", [Settle(b"1-0", 1), Settle(b"2-0", 1, "release")]).inside is None
    assert made.settle(b"me", [Settle(b"1-0", 1)], has_locks=True).inside is None


@pytest.mark.parametrize("idle_ms", [None, 500, 2000])
def test_reading_inside_is_the_command(twins: Twins, idle_ms: int | None) -> None:
    inside, plain = twins
    for number in range(1, 6):
        on_both(twins, "XADD", "s", f"{number}-0", "f", "v", "f", "w")
    on_both(twins, "XGROUP", "CREATE", "s", "g", "0")
    on_both(twins, "XREADGROUP", "GROUP", "g", "dead", "COUNT", 2, "STREAMS", "s", ">")
    for backend in twins:
        held: Any = backend._held
        held.broker._hub.clock.advance(1000)
    for count in (1, 1, 2, 5, 5):
        call = steps(inside).read(b"me", count, None, idle_ms)
        assert call.inside is not None
        assert inside.run(call) == plain.run(replace(call, inside=None))
    assert state(inside) == state(plain)
    on_both(twins, "XGROUP", "DESTROY", "s", "g")
    call = steps(inside).read(b"me", 1, None, idle_ms)
    assert outcome(lambda: inside.run(call)) == outcome(lambda: plain.run(replace(call, inside=None)))


def test_publishing_inside_is_the_command_without_a_token(twins: Twins) -> None:
    inside, plain = twins
    entries = [NewEntry([(b"f", b"v")]), NewEntry([(b"f", b"v"), (b"f", b"w")]), NewEntry([(b"f", b"v")])]
    for backend in twins:
        for number, entry in enumerate(entries):
            call = Publishing(KEYS, backend.capabilities).append(b"p", number, [entry], is_kept=False)
            backend.run(call if backend is inside else replace(call, inside=None))
    assert inside.execute("XRANGE", "s", "-", "+") == plain.execute("XRANGE", "s", "-", "+")
    on_both(twins, "DEL", "s")
    on_both(twins, "SET", "s", "x")
    call = Publishing(KEYS, inside.capabilities).append(b"p", 9, entries[:1], is_kept=False)
    assert outcome(lambda: inside.run(call)) == "raised WRONGTYPE"


def test_what_is_published_inside_wakes_who_waits() -> None:
    with connect("memory://inside-wakes") as backend:
        publishing = Publishing(KEYS, backend.capabilities)
        backend.run(publishing.append(b"p", 1, [NewEntry([(b"f", b"1")])], is_kept=False))
        found: list[Any] = []
        read = Call(("XREAD", "BLOCK", 30_000, "STREAMS", "s", "$"), b"s", as_is, block_ms=30_000)
        reader = threading.Thread(target=lambda: found.append(backend.run(read)))
        reader.start()
        assert backend._held is not None
        hub = backend._held.broker._hub
        while not hub.has_waiters and reader.is_alive():
            reader.join(0.005)
        backend.run(publishing.append(b"p", 2, [NewEntry([(b"f", b"2")])], is_kept=False))
        reader.join(30)
        assert found[0][0][1][0][1] == [b"f", b"2"]


def test_what_an_acknowledgement_inside_does_is_one_unit_of_the_log(tmp_path: Path) -> None:
    lines: list[Any] = []
    with connect(f"file://{tmp_path}/kept") as backend:
        backend.execute("XADD", "s", "1-0", "f", "v")
        backend.execute("XGROUP", "CREATE", "s", "g", "0", key=b"s")
        backend.run(steps(backend).read(b"me", 1, None))
        assert backend._held is not None
        hub = backend._held.broker._hub
        journal = hub.journal
        assert journal is not None
        hub.journal = lambda logged: (lines.append([line[1][0] for line in logged]), journal(logged))  # type: ignore[func-returns-value, assignment, return-value]
        assert backend.run(steps(backend).settle(b"me", [Settle(b"1-0", 1)])) == [1]
        hub.journal = journal
    assert lines == [[b"MULTI", b"XACKDEL", b"HINCRBY", b"EXEC"]]
    with connect(f"file://{tmp_path}/kept") as backend:
        assert backend.execute("HGETALL", KEYS.meta) == [b"done:g", b"1"]
        assert backend.execute("XPENDING", "s", "g")[0] == backend.execute("XLEN", "s") == 0


def test_while_commands_are_watched_or_may_be_refused_they_run_in_a_session(twins: Twins) -> None:
    backend, _ = twins
    assert backend._held is not None
    hub = backend._held.broker._hub
    refused: list[str] = []

    def gate(session: Any, row: Any, argv: list[bytes]) -> None:
        refused.append(row.name)

    publishing = Publishing(KEYS, backend.capabilities)
    backend.run(publishing.append(b"p", 1, [NewEntry([(b"f", b"v")])], is_kept=False))
    hub.gates.append(gate)
    backend.run(publishing.append(b"p", 2, [NewEntry([(b"f", b"v")])], is_kept=False))
    assert refused == ["xadd"]
