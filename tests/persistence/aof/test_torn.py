"""A log whose end is torn: what is applied is exactly the longest whole prefix, and exactly that stays in the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from millstream.engine.keys.keyspace import Keyspace
from millstream.errors import CorruptFile
from millstream.persistence.aof.check import check
from millstream.persistence.aof.replay import Replay, Replayed
from millstream.persistence.rdb.file import write_rdb
from tests.persistence.memory_files import MemoryFiles
from tests.persistence.support import LOGS, NOW_MS, Broker, State, state_of
from tests.support.wire import pack

LOG = Path("/log")
INCREMENT = LOGS / "appendonly.aof.1.incr.aof"
RESP = pack([b"SET", b"other", b"1"]) + pack([b"MULTI"]) + pack([b"DEL", b"list"]) + pack([b"EXEC"])
REQUESTS: list[str | list[str | bytes | int]] = [
    "RPUSH list a",
    "RPUSH list b",
    "RPUSH list c",
    ["SET", "lines", b"\r\n\r\n*\r\n$\r\n"],
    ["SET", "resp", RESP + b"\r\n" + RESP],
    ["SET", "zeros", bytes(9)],
    "XADD s 1-1 f v",
    ["XADD", "s", "1-2", "f", b"text\r\n" + RESP, "g", b"\0\r\n"],
    "XGROUP CREATE s g 0",
    "XREADGROUP GROUP g me COUNT 1 STREAMS s >",
    "XREADGROUP GROUP g me COUNT 5 STREAMS s >",
    "XACK s g 1-1",
    "MULTI",
    ["HSET", "h", "f", RESP],
    "INCR counter",
    "EXEC",
    "SELECT 3",
    "ZADD z 1 one 2 two",
    "PEXPIREAT z 99999999999999",
    ["SET", "large", "x" * 300],
    "RPUSH list d",
]
SELECTS = {db: pack([b"SELECT", b"%d" % db]) for db in (0, 3)}
TAILS = {"cut": 0, "one zero byte": 1, "zeros": 40, "a zero page": 4096}


@cache
def whole_log() -> tuple[bytes, tuple[tuple[int, State], ...]]:
    """A log with all kinds of commands, and the state at each offset where one ends."""
    broker = Broker()
    peer = broker.peer()
    ends: list[tuple[int, State]] = [(0, [])]
    for request in REQUESTS:
        peer(request)
        if len(broker.log()) > ends[-1][0]:
            ends.append((len(broker.log()), broker.state))
    return broker.log(), tuple(ends)


def replayed(data: bytes) -> tuple[State, Replayed]:
    keyspace = Keyspace()
    files = MemoryFiles()
    files.put(LOG, data)
    found = Replay(keyspace, NOW_MS + 1000).file(files, LOG)
    return state_of(keyspace), found


def torn_logs(tail: int | None) -> Iterator[tuple[int, bytes, int, State]]:
    """The log cut at every byte, with zero bytes after it (None: up to its old size); where and what it should keep."""
    data, ends = whole_log()
    for size in range(len(data) + 1):
        end, state = [known for known in ends if known[0] <= size][-1]
        yield size, data[:size] + bytes(len(data) - size if tail is None else tail), end, state


@pytest.mark.parametrize("tail", [*TAILS.values(), None], ids=[*TAILS, "zeros to the old size"])
def test_a_log_torn_at_any_byte_keeps_exactly_its_whole_commands(tail: int | None) -> None:
    for size, data, end, state in torn_logs(tail):
        kept, found = replayed(data)
        assert kept == state, f"torn at {size}"
        # A SELECT may stay although the command after it is torn: it changes nothing by itself.
        assert data[end : found.size] in (b"", SELECTS[0], SELECTS[3]), f"torn at {size}"
        assert found.torn_at == (None if found.size == len(data) else found.size)
        again, left = replayed(data[: found.size])
        assert (again, left.torn_at) == (state, None)


@pytest.mark.parametrize("tail", [0, None], ids=["cut", "zeros"])
def test_a_torn_log_gives_the_same_state_at_every_start(tail: int | None) -> None:
    first = Broker()
    for size, data, end, state in torn_logs(tail):
        if size % 13 and size - end > 3:
            continue
        files = first.files.copy()
        files.put(INCREMENT, data)
        broker = first.reopened(files)
        assert broker.state == state, f"torn at {size}"
        broker("SET new 1")
        assert broker.reopened().state == broker.state == sorted([*state, (0, b"new", None, b"1")])


@pytest.mark.parametrize("tail", [0, 40])
def test_check_cuts_where_a_start_does(tail: int) -> None:
    for size, data, _, _ in torn_logs(tail):
        if not size:
            continue  # nothing shows that an empty file is a log
        files = MemoryFiles()
        files.put(LOG, data)
        found = replayed(data)[1]
        damage = check(LOG, files=files).damage
        if found.torn_at is None:
            assert damage is None
        else:
            assert damage is not None
            assert damage.keeps == found.torn_at, f"torn at {size}"
            assert damage.is_torn


@pytest.mark.parametrize("tail", [0, 1, 40])
def test_commands_after_an_rdb_preamble_are_torn_in_the_same_way(tail: int) -> None:
    before = Keyspace()
    before.databases[0].values[b"old"] = b"1"
    parts: list[bytes] = []
    write_rdb(before, parts.append, now_ms=NOW_MS)
    # An RDB without a checksum ends with zero bytes, which belong to it.
    preamble = b"".join(parts)[:-8] + bytes(8)
    commands = pack([b"SET", b"a", b"1"]) + pack([b"SET", b"b", b"1"])
    for size in range(len(commands) + 1):
        kept, found = replayed(preamble + commands[:size] + bytes(tail))
        whole = 0 if size < len(commands) // 2 else 1 if size < len(commands) else 2
        assert len(kept) == 1 + whole
        assert found.size == len(preamble) + whole * len(commands) // 2


def test_notes_of_redis_with_times_are_torn_in_the_same_way() -> None:
    note, one = b"#TS:1767225600\r\n", pack([b"SET", b"a", b"1"])
    data = note + one + note + pack([b"MULTI"]) + one + note + pack([b"EXEC"])
    for size in range(len(data) + 1):
        for tail in (b"", b"\0", bytes(40)):
            kept, found = replayed(data[:size] + tail)
            assert len(kept) == (size >= len(note + one))
            assert found.size <= size
            again, left = replayed(data[: found.size])
            assert (again, left.torn_at) == (kept, None)


@pytest.mark.parametrize("zeros", [1, 2, 3, 30, 200])
def test_zeros_with_commands_after_them_are_damage_wherever_they_are(zeros: int) -> None:
    """Nothing is cut then, so the answer is the same at every start."""
    data, _ = whole_log()
    for at in range(0, len(data) - zeros - 1, 3):
        damaged = data[:at] + bytes(zeros) + data[at + zeros :]
        answers = set()
        for _ in range(2):
            try:
                found = replayed(damaged)[1]
                assert found.torn_at is None  # inside of a value, or taken for a line end: as Redis does
                answers.add("whole")
            except CorruptFile as corrupt:
                answers.add(str(corrupt))
        assert len(answers) == 1


def test_a_damaged_line_end_before_a_torn_end_refuses_the_start() -> None:
    """hiredis has applied that command: it must not be cut."""
    first = pack([b"SET", b"a", b"1"])
    for rest in (b"*3\r\n$3\r\nSE", pack([b"MULTI"]), pack([b"MULTI"]) + first):
        with pytest.raises(CorruptFile) as corrupt:
            replayed(first + first[:-2] + b"??" + first + rest)
        assert corrupt.value.at == len(first)


@pytest.mark.parametrize(
    "hostile",
    [
        b"%1\r\n$1\r\na\r\n$1\r\nb\r\n",
        b"~1\r\n$3\r\nSET\r\n",
        b",1.5\r\n",
        b"#t\r\n",
        b"_\r\n",
        b"(123\r\n",
        b"=7\r\ntxt:abc\r\n",
        b"*4294967295\r\n",
        b"*1\r\n" * 20,
        b">1\r\n$4\r\nPING\r\n",
        b"$-1\r\n",
        b"*99999999999999999999\r\n",
        b"*1\r\n%1\r\n$1\r\na\r\n$1\r\nb\r\n",
    ],
)
def test_hostile_bytes_end_in_a_clear_error_and_never_in_another(hostile: bytes) -> None:
    before = pack([b"SET", b"a", b"1"])
    for data in (before + hostile + before, hostile + before, before + pack([b"MULTI"]) + hostile + before):
        with suppress(CorruptFile):
            _, found = replayed(data)
            assert found.commands >= 1


# Around the log


def test_a_torn_end_that_contains_commands_is_kept_beside_the_log() -> None:
    broker = Broker()
    broker(["SET", "a", "1"])
    broker(["SET", "resp", b"text\r\n" + RESP])
    data = broker.log()
    broker.files.put(INCREMENT, data[:-1])
    again = broker.reopened()
    assert again("KEYS *") == [b"a"]
    assert again.log() + again.files.content(LOGS / f"{INCREMENT.name}.cut.1") == data[:-1]
    assert again.reopened()("KEYS *") == [b"a"]


def test_a_torn_end_refuses_the_start_when_it_must_not_be_cut() -> None:
    broker = Broker()
    broker("SET a 1")
    data = broker.log()[:-1]
    broker.files.put(INCREMENT, data)
    for _ in range(2):
        with pytest.raises(CorruptFile, match="aof-load-truncated"):
            broker.reopened(aof_load_truncated="no")
    assert broker.files.content(INCREMENT) == data
    assert broker.reopened()("DBSIZE") == 0


def test_a_transaction_whose_end_is_damaged_does_not_swallow_what_follows() -> None:
    one = pack([b"SET", b"a", b"1"])
    for end in (b"EXEX", b"\0XEC", b"EXE\0"):
        with pytest.raises(CorruptFile, match="not known"):
            replayed(one + pack([b"MULTI"]) + one + pack([end]) + one + one)


def test_a_snapshot_or_base_torn_at_any_byte_is_refused_in_the_same_words_or_whole() -> None:
    """As in Redis a checksum of zeros is one that was not made."""
    broker = Broker()
    for request in REQUESTS:
        broker(request)
    expected = state_of(broker.hub.keyspace)
    parts: list[bytes] = []
    write_rdb(broker.hub.keyspace, parts.append, now_ms=NOW_MS)
    data = b"".join(parts)
    for size in range(len(data)):
        for tail in (0, 1, 40, len(data) - size):
            answers: list[object] = []
            for _ in range(2):
                try:
                    answers.append(replayed(data[:size] + bytes(tail))[0])
                except CorruptFile as corrupt:
                    answers.append(str(corrupt))
            assert answers[0] == answers[1]
            assert isinstance(answers[0], str) or answers[0] == expected or size < len(b"REDIS0015")


def test_a_manifest_cut_at_any_byte_is_refused_or_loses_no_file() -> None:
    broker = Broker()
    broker("SET a 1")
    manifest = LOGS / "appendonly.aof.manifest"
    text = broker.files.content(manifest)
    for size in range(len(text)):
        files = broker.files.copy()
        files.put(manifest, text[:size])
        answers = []
        for _ in range(2):
            try:
                answers.append(broker.reopened(files)("KEYS *"))
            except CorruptFile as corrupt:
                answers.append(str(corrupt))
        assert answers[0] == answers[1]
        assert files.content(INCREMENT) == broker.log(), f"cut at {size}"


def test_a_log_without_its_manifest_is_not_taken_for_an_empty_one() -> None:
    broker = Broker()
    broker("SET a 1")
    broker.files.remove(LOGS / "appendonly.aof.manifest")
    for _ in range(2):
        with pytest.raises(CorruptFile, match=r"manifest.* is missing"):
            broker.reopened()
    broker.files.remove(LOGS / "appendonly.aof.1.base.rdb")
    kept = broker.log()
    broker.reopened()("SET b 1")
    assert broker.files.content(INCREMENT) == kept
