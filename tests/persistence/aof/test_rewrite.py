"""State into commands, and into a frozen copy that can be written while everything goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.engine import invariants
from millstream.engine.keys.keyspace import Keyspace
from millstream.engine.streams.stream import sweep_idempotency
from millstream.persistence.aof.replay import Replay
from millstream.persistence.aof.rewrite import rewritten
from millstream.persistence.aof.scan import Scanner
from millstream.persistence.frozen_copy import freeze
from millstream.persistence.snapshot_writer import Dump, Form
from tests.persistence.memory_files import MemoryFiles
from tests.persistence.support import NOW_MS, Broker, State, state_of, without_ghosts, without_tie_order

BASE = Path("/base")
LATER_MS = NOW_MS + 1_000_000


def lines(keyspace: Keyspace) -> list[str]:
    """The commands that rebuild a keyspace, as text."""
    return [b" ".join(command.argv).decode() for command in Scanner(rewritten(keyspace))]


def rebuilt(keyspace: Keyspace, form: Form, now_ms: int = LATER_MS) -> State:
    """What is left of a keyspace after it was written and loaded."""
    files = MemoryFiles()
    dump = Dump(files=files, path=BASE, keyspace=keyspace, form=form, now_ms=now_ms)
    dump.run()
    if dump.error is not None:
        raise dump.error
    twin = Keyspace()
    found = Replay(twin, now_ms).file(files, BASE)
    assert found.errors == 0
    invariants.check(twin)
    return state_of(twin)


@pytest.mark.parametrize("seed", range(30))
def test_commands_rebuild_what_they_can(seed: int) -> None:
    broker = Broker()
    broker.run_program(seed)
    after = rebuilt(broker.hub.keyspace, Form.AOF)
    assert without_tie_order(after) == without_tie_order(without_ghosts(broker.state))


@pytest.mark.parametrize("seed", range(30, 50))
def test_an_rdb_base_keeps_pending_entries_without_entry_too(seed: int) -> None:
    broker = Broker()
    broker.run_program(seed)
    sweep_idempotency(broker.hub.keyspace.databases[0], broker.clock.now_ms())
    after = rebuilt(broker.hub.keyspace, Form.RDB, broker.clock.now_ms())
    assert without_tie_order(after) == without_tie_order(broker.state)


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("seed", range(50, 65))
def test_a_frozen_copy_does_not_see_what_happens_after_it(seed: int, form: Form) -> None:
    broker = Broker()
    broker.run_program(seed, 100)
    frozen = freeze(broker.hub.keyspace)
    expected = rebuilt(broker.hub.keyspace, form)
    broker.clock.advance(100)
    broker.run_program(seed + 1000, 100)
    for key in ("s", "t"):
        broker(f"XTRIM {key} MAXLEN 1")
        broker(f"XREADGROUP GROUP g z CLAIM 0 STREAMS {key} >")
    assert rebuilt(frozen, form) == expected


def test_a_stream_is_rewritten_as_redis_does() -> None:
    broker = Broker()
    for entry_id in ("1-0", "2-0", "3-0", "4-0"):
        broker(f"XADD s {entry_id} f v")
    broker("XGROUP CREATE s g 0")
    broker("XREADGROUP GROUP g c1 STREAMS s >")
    broker("XGROUP CREATECONSUMER s g idle")
    broker("XNACK s g FAIL IDS 2 2-0 3-0")
    broker("XNACK s g FATAL IDS 1 4-0")
    assert lines(broker.hub.keyspace) == [
        "SELECT 0",
        "XADD s 1-0 f v",
        "XADD s 2-0 f v",
        "XADD s 3-0 f v",
        "XADD s 4-0 f v",
        "XSETID s 4-0 ENTRIESADDED 4 MAXDELETEDID 0-0",
        "XGROUP CREATE s g 4-0 ENTRIESREAD 4",
        f"XCLAIM s g c1 0 1-0 TIME {NOW_MS} RETRYCOUNT 1 JUSTID FORCE",
        "XGROUP CREATECONSUMER s g idle",
        "XNACK s g FAIL IDS 2 2-0 3-0 RETRYCOUNT 1 FORCE",
        "XNACK s g FAIL IDS 1 4-0 RETRYCOUNT 9223372036854775807 FORCE",
    ]


def test_released_entries_come_in_zone_order_and_at_most_64_at_once() -> None:
    broker = Broker()
    for number in range(1, 151):
        broker(f"XADD s {number}-0 f v")
    broker("XGROUP CREATE s g 0")
    broker("XREADGROUP GROUP g c STREAMS s >")
    for number in (*range(150, 80, -1), *range(1, 81)):
        broker(f"XNACK s g FAIL IDS 1 {number}-0")
    found = [line.split() for line in lines(broker.hub.keyspace) if line.startswith("XNACK")]
    assert [int(words[5]) for words in found] == [64, 64, 22]
    zone = [word for words in found for word in words[6:-3]]
    assert zone == [f"{number}-0" for number in (*range(150, 80, -1), *range(1, 81))]
    assert rebuilt(broker.hub.keyspace, Form.AOF) == broker.state


def test_an_empty_stream_is_rebuilt_with_its_counters() -> None:
    broker = Broker()
    broker("XADD s 5-5 f v")
    broker("XDEL s 5-5")
    assert lines(broker.hub.keyspace) == [
        "SELECT 0",
        "XADD s MAXLEN 0 0-1 x y",
        "XSETID s 5-5 ENTRIESADDED 1 MAXDELETEDID 5-5",
    ]
    assert rebuilt(broker.hub.keyspace, Form.AOF) == broker.state


def test_idempotency_is_rebuilt() -> None:
    broker = Broker()
    broker("XADD s IDMP p one * f v")
    broker("XCFGSET s IDMP-DURATION 7")
    broker("XADD s IDMP p two * f v")
    broker("XADD s IDMP p gone * f v")
    stream = broker.hub.keyspace.databases[0].values[b"s"]
    ids = stream.entries.read(0, 1 << 128)[0]  # type: ignore[attr-defined]
    broker(["XDEL", "s", ids[-1]])
    found = lines(broker.hub.keyspace)
    assert found[-2:] == ["XCFGSET s IDMP-DURATION 7 IDMP-MAXSIZE 100", f"XIDMPRECORD s p two {ids[1].decode()}"]


def test_plain_keys_are_rebuilt_in_batches_and_with_their_expiry() -> None:
    broker = Broker()
    broker(["RPUSH", "l", *range(130)])
    broker(["SADD", "set", *range(70)])
    broker(["HSET", "h", *(word for number in range(65) for word in (number, "v"))])
    broker(["ZADD", "z", "1.5", "a", "-inf", "b", "0.1", "c", "3e300", "d"])
    broker("SET text v PX 5000")
    broker.hub.run([b"SET", b"other", b"\x00\r\n"], db=9)
    found = lines(broker.hub.keyspace)
    assert [line.split()[0] for line in found] == [
        "SELECT",
        "RPUSH",
        "RPUSH",
        "RPUSH",
        "SADD",
        "SADD",
        "HMSET",
        "HMSET",
        "ZADD",
        "SET",
        "PEXPIREAT",
        "SELECT",
        "SET",
    ]
    assert f"PEXPIREAT text {NOW_MS + 5000}" in found
    for form in Form:
        assert rebuilt(broker.hub.keyspace, form) == broker.state


def test_a_dump_that_fails_leaves_nothing_behind() -> None:
    files = MemoryFiles()
    files.free = 5
    broker = Broker()
    broker("SET a 1")
    dump = Dump(files=files, path=BASE, keyspace=broker.hub.keyspace, form=Form.RDB, now_ms=NOW_MS)
    dump.run()
    assert isinstance(dump.error, OSError)
    assert not files.exists(BASE)


def test_a_dump_that_is_given_up_leaves_nothing_behind() -> None:
    files = MemoryFiles()
    broker = Broker()
    broker("SET a 1")
    dump = Dump(files=files, path=BASE, keyspace=broker.hub.keyspace, form=Form.RDB, now_ms=NOW_MS)
    dump.is_cancelled = True
    dump.run()
    assert dump.error is not None
    assert not files.exists(BASE)
