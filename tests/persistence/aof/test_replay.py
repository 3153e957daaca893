"""A log into state: the same by every way, and some earlier state wherever the log is cut."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from millstream.engine import invariants
from millstream.engine.keys.keyspace import Keyspace
from millstream.errors import CorruptFile
from millstream.persistence.aof.replay import Replay, Replayed
from millstream.persistence.aof.writer import LineEncoder
from millstream.persistence.rdb import dump_payload
from millstream.persistence.rdb.file import write_rdb
from tests.persistence.memory_files import MemoryFiles
from tests.persistence.support import LOGS, NOW_MS, Broker, State, program, state_of
from tests.support.snapshot import snapshot
from tests.support.wire import pack

LOG = Path("/log")
LATER_MS = NOW_MS + 1_000_000


def replayed(data: bytes, *, uses_hot_forms: bool = True) -> tuple[Keyspace, Replayed]:
    keyspace = Keyspace()
    files = MemoryFiles()
    files.put(LOG, data)
    found = Replay(keyspace, LATER_MS, uses_hot_forms=uses_hot_forms).file(files, LOG)
    invariants.check(keyspace)
    return keyspace, found


def state(data: bytes) -> State:
    return state_of(replayed(data)[0])


def logged(seed: int, length: int = 200) -> tuple[bytes, list[tuple[int, State]]]:
    """The log of a random program, and the state at each place where a command or transaction ends in it."""
    broker = Broker()
    ends: list[tuple[int, State]] = [(0, [])]
    for ms, argv in program(seed, length):
        broker.clock.advance(ms)
        broker(list(argv))
        if len(broker.log()) > ends[-1][0]:
            ends.append((len(broker.log()), broker.state))
    return broker.log(), ends


@pytest.mark.parametrize("seed", range(25))
def test_a_replayed_log_gives_the_state_that_was_logged(seed: int) -> None:
    data, ends = logged(seed)
    assert state(data) == ends[-1][1]


@pytest.mark.parametrize("seed", range(25, 45))
def test_hot_forms_do_what_their_commands_do(seed: int) -> None:
    data, _ = logged(seed, 400)
    hot, general = replayed(data)[0], replayed(data, uses_hot_forms=False)[0]
    assert snapshot(hot) == snapshot(general)


def worker_log(seed: int, turns: int) -> bytes:
    """What streams with busy groups log: several keys, groups, consumers and read sizes, mixed."""
    choose = random.Random(seed)
    broker = Broker()
    for key in ("a", "b"):
        for group in ("g", "h"):
            broker(f"XGROUP CREATE {key} {group} 0 MKSTREAM")
    for _ in range(turns):
        broker.clock.advance(choose.choice([0, 0, 1, -3, 10]))
        key, group, consumer = choose.choice("ab"), choose.choice("gh"), choose.choice("xyz")
        match choose.randrange(8):
            case 0 | 1 | 2:
                broker(["XADD", key, "*", "f", "v" * choose.randrange(300)])
            case 3 | 4:
                broker(f"XREADGROUP GROUP {group} {consumer} COUNT {choose.choice([1, 1, 5])} STREAMS {key} >")
            case 5:
                pending = broker(f"XPENDING {key} {group} - + 20")
                if isinstance(pending, list) and pending:
                    broker(["XACK", key, group, choose.choice(pending)[0]])
            case 6:
                broker(f"XREADGROUP GROUP {group} {consumer} CLAIM 5 COUNT 3 STREAMS {key} >")
            case _:
                broker(
                    choose.choice(
                        [
                            f"XGROUP SETID {key} {group} 0",
                            f"XGROUP DELCONSUMER {key} {group} {consumer}",
                            f"XTRIM {key} MAXLEN 10",
                            f"XADD {key} * a 1 b 2",
                            f"DEL {key}",
                            f"XGROUP CREATE {key} {group} 0 MKSTREAM",
                            "SELECT 0",
                        ]
                    )
                )
    return broker.log()


@pytest.mark.parametrize("seed", range(10))
def test_hot_forms_agree_on_what_workers_log(seed: int) -> None:
    data = worker_log(seed, 600)
    hot, general = replayed(data)[0], replayed(data, uses_hot_forms=False)[0]
    assert snapshot(hot) == snapshot(general)


@pytest.mark.parametrize("seed", [3, 4])
def test_a_log_cut_at_any_byte_gives_an_earlier_state(seed: int) -> None:
    data, ends = logged(seed, 40)
    for size in range(len(data) + 1):
        end, expected = [pair for pair in ends if pair[0] <= size][-1]
        keyspace, found = replayed(data[:size])
        assert state_of(keyspace) == expected, f"cut at {size}"
        assert end <= found.size <= size
        assert replayed(data[: found.size])[1].torn_at is None


@pytest.mark.parametrize("seed", range(5, 10))
def test_a_long_log_cut_somewhere_gives_an_earlier_state(seed: int) -> None:
    data, ends = logged(seed, 300)
    choose = random.Random(seed)
    for size in (choose.randrange(len(data)) for _ in range(30)):
        expected = [known for end, known in ends if end <= size][-1]
        assert state(data[:size]) == expected


def test_a_transaction_that_has_no_end_is_not_applied() -> None:
    start = pack([b"SET", b"a", b"1"])
    data = start + pack([b"MULTI"]) + pack([b"SET", b"a", b"2"]) + pack([b"SET", b"b", b"2"])
    keyspace, found = replayed(data)
    assert keyspace.databases[0].values == {b"a": b"1"}
    assert found.torn_at == found.size == len(start)
    keyspace, found = replayed(data + b"*1\r\n$4\r\nEX")
    assert keyspace.databases[0].values == {b"a": b"1"}
    assert found.size == len(start)
    keyspace, found = replayed(data + pack([b"EXEC"]))
    assert keyspace.databases[0].values == {b"a": b"2", b"b": b"2"}
    assert found.torn_at is None


def test_names_of_commands_may_be_written_small() -> None:
    data = pack([b"multi"]) + pack([b"set", b"a", b"2"]) + pack([b"select", b"3"]) + pack([b"exec"])
    keyspace, _ = replayed(data + pack([b"xadd", b"s", b"1-1", b"f", b"v"]))
    assert keyspace.databases[0].values == {b"a": b"2"}
    assert list(keyspace.databases[3].values) == [b"s"]


def test_a_log_with_times_in_it_is_read() -> None:
    data = b"#TS:1767225600\r\n" + pack([b"SET", b"a", b"1"]) + b"#TS:1767225601\r\n" + pack([b"SET", b"b", b"1"])
    keyspace, found = replayed(data)
    assert len(keyspace.databases[0].values) == 2
    assert found.size == len(data)


def test_an_rdb_preamble_comes_first() -> None:
    before = Keyspace()
    before.databases[2].values[b"old"] = b"1"
    parts: list[bytes] = []
    write_rdb(before, parts.append, now_ms=NOW_MS)
    data = b"".join(parts) + pack([b"SET", b"new", b"2"])
    keyspace, found = replayed(data)
    assert keyspace.databases[2].values == {b"old": b"1"}
    assert keyspace.databases[0].values == {b"new": b"2"}
    assert (found.keys, found.size) == (1, len(data))
    assert replayed(data + b"*2\r\n")[1].torn_at == len(data)


def test_an_expired_key_of_a_preamble_is_there_until_the_log_deletes_it() -> None:
    before = Keyspace()
    before.databases[0].values[b"k"] = b"1"
    before.databases[0].expires[b"k"] = NOW_MS - 1
    parts: list[bytes] = []
    write_rdb(before, parts.append, now_ms=NOW_MS)
    assert state(b"".join(parts) + pack([b"APPEND", b"k", b"2"])) == [(0, b"k", NOW_MS - 1, b"12")]


def test_a_damaged_preamble_is_refused() -> None:
    parts: list[bytes] = []
    keyspace = Keyspace()
    keyspace.databases[0].values[b"k"] = b"1"
    write_rdb(keyspace, parts.append, now_ms=NOW_MS)
    data = bytearray(b"".join(parts))
    for broken in (bytes(data[:20]), bytes(data[:-4]), bytes(data[:12] + b"\xee" + data[13:])):
        with pytest.raises(CorruptFile):
            replayed(broken)


@pytest.mark.parametrize(
    "damage",
    [
        b"garbage",
        b"*0\r\n",
        b":1\r\n",
        b":0\r\n",
        b"+OK\r\n",
        b"$1\r\na\r\n",
        b"*1\r\n:5\r\n",
        b"_\r\n",
        b"*1\r\n*1\r\n$1\r\na\r\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n:5\r\n",
        b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n:1\r\n$1\r\nf\r\n$1\r\nv\r\n",
        b"*-1\r\n",
        b"*1\r\n$-1\r\n",
        b"-ERR\r\n",
    ],
)
def test_damage_in_the_middle_is_refused_with_its_place(damage: bytes) -> None:
    before = pack([b"XADD", b"s", b"1-1", b"f", b"v"]) + pack([b"SET", b"a", b"1"])
    with pytest.raises(CorruptFile) as corrupt:
        replayed(before + damage + b"\r\n" * 40 + pack([b"SET", b"b", b"2"]))
    assert corrupt.value.at == len(before)
    assert corrupt.value.path == LOG
    assert f"offset {len(before)}" in str(corrupt.value)


@pytest.mark.parametrize(
    "argv", [[b"NOSUCH", b"a"], [b"EXEC"], [b"SELECT", b"99"], [b"SELECT", b"x"], [b"SUBSCRIBE", b"c"]]
)
def test_a_command_that_no_log_can_hold_is_refused(argv: list[bytes]) -> None:
    before = pack([b"SET", b"a", b"1"])
    with pytest.raises(CorruptFile) as corrupt:
        replayed(before + pack(argv) + before)
    assert corrupt.value.at == len(before)


def test_other_commands_are_run_by_whoever_knows_them() -> None:
    seen: list[tuple[int, list[bytes]]] = []
    files = MemoryFiles()
    files.put(LOG, pack([b"SELECT", b"1"]) + pack([b"FUNCTION", b"LOAD", b"x"]))
    Replay(Keyspace(), NOW_MS, lambda db, argv: not seen.append((db, argv))).file(files, LOG)
    assert seen == [(1, [b"FUNCTION", b"LOAD", b"x"])]


def test_a_command_that_is_answered_with_an_error_is_passed_over_and_counted() -> None:
    data = pack([b"SET", b"a", b"1"]) + pack([b"XADD", b"a", b"1-1", b"f", b"v"]) + pack([b"SET", b"b", b"1"])
    keyspace, found = replayed(data)
    assert (found.errors, found.commands) == (1, 3)
    assert len(keyspace.databases[0].values) == 2


def test_a_key_that_was_restored_is_there() -> None:
    assert state(pack([b"RESTORE", b"b", b"0", dump_payload(b"hello")])) == [(0, b"b", None, b"hello")]


def test_values_of_every_size_are_read() -> None:
    sizes = [0, 1, 255, 256, 999, 1000, 1001, 70_000, 3_000_000]
    data = LineEncoder().encode([(0, (b"SET", b"k%d" % size, b"x" * size)) for size in sizes])
    keyspace, _ = replayed(data)
    assert sorted(map(len, keyspace.databases[0].values.values())) == sizes  # type: ignore[arg-type]


def test_the_log_of_a_broker_is_where_redis_would_look_for_it() -> None:
    broker = Broker()
    broker("SET a 1")
    assert broker.files.names(LOGS) == [
        "appendonly.aof.1.base.rdb",
        "appendonly.aof.1.incr.aof",
        "appendonly.aof.manifest",
    ]
    assert broker.log() == pack([b"SELECT", b"0"]) + pack([b"SET", b"a", b"1"])
