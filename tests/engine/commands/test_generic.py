from __future__ import annotations

from random import Random

import pytest

from millstream.engine.commands import execute
from millstream.engine.keys.keyspace import Keyspace
from millstream.engine.outcome import OK, Simple
from tests.differential.programs_plain import random_command
from tests.engine.commands.plain import NOW_MS, Plain

NOT_AN_INTEGER = "ERR value is not an integer or out of range"
MAX = 2**63 - 1


def _one_of_each(e: Plain) -> None:
    e("SET string v")
    e("XADD stream 1-0 f v")
    e("HSET hash f v")
    e("RPUSH list a")
    e("SADD set a")
    e("ZADD zset 1 a")


# Being there


def test_type_names_every_type(e: Plain) -> None:
    _one_of_each(e)
    for name in ("string", "stream", "hash", "list", "set", "zset"):
        assert e(f"TYPE {name}") == Simple(name.encode())
    assert e("TYPE missing") == Simple(b"none")


def test_exists_counts_duplicates_and_del_does_not(e: Plain) -> None:
    e("MSET a 1 b 2")
    assert e("EXISTS a a b c") == 3
    assert e("TOUCH a c") == 1
    did = e.did("DEL a a c")
    assert (did.reply, did.log, did.events, did.touched, did.dirty) == (1, ["DEL a a c"], ["g del a"], ["a"], 1)
    assert e.did("UNLINK b").log == ["UNLINK b"]
    assert e.did("DEL a").nothing()


# Expiring


@pytest.mark.parametrize(
    ("command", "at_ms"),
    [
        ("EXPIRE k 10", NOW_MS + 10_000),
        ("PEXPIRE k 10", NOW_MS + 10),
        ("EXPIREAT k 4102444800", 4_102_444_800_000),
        ("PEXPIREAT k 4102444800123", 4_102_444_800_123),
    ],
)
def test_the_expire_family_is_logged_as_an_absolute_time(e: Plain, command: str, at_ms: int) -> None:
    e("SET k v")
    did = e.did(command)
    assert (did.reply, did.log, did.events) == (1, [f"PEXPIREAT k {at_ms}"], ["g expire k"])
    assert (did.touched, did.dirty) == (["k"], 1)
    assert e("PEXPIRETIME k") == at_ms


@pytest.mark.parametrize("command", ["EXPIRE k 0", "EXPIRE k -1", f"PEXPIREAT k {NOW_MS}", "EXPIREAT k 1"])
def test_a_time_that_is_past_deletes_the_key(e: Plain, command: str) -> None:
    e("SET k v")
    did = e.did(command)
    assert (did.reply, did.log, did.events, did.dirty) == (1, ["DEL k"], ["g del k"], 1)
    assert e("EXISTS k") == 0


@pytest.mark.parametrize(
    ("option", "without", "with_100", "with_300"),
    [("NX", 1, 0, 0), ("XX", 0, 1, 1), ("GT", 0, 1, 0), ("LT", 1, 0, 1), ("XX GT", 0, 1, 0), ("XX LT", 0, 0, 1)],
)
def test_no_expiry_counts_as_never(e: Plain, option: str, without: int, with_100: int, with_300: int) -> None:
    e("SET k v")
    assert e(f"EXPIRE k 200 {option}") == without
    e("SET k v EX 100")
    assert e(f"EXPIRE k 200 {option}") == with_100
    e("SET k v EX 300")
    assert e(f"EXPIRE k 200 {option}") == with_300


def test_an_equal_time_is_neither_greater_nor_less(e: Plain) -> None:
    e("SET k v EX 100")
    assert e.did("EXPIRE k 100 GT").nothing()
    assert e.did("EXPIRE k 100 LT").nothing()


def test_the_options_of_expire_stay_in_the_log(e: Plain) -> None:
    e("SET k v")
    assert e.did("EXPIRE k 1 nx").log == [f"PEXPIREAT k {NOW_MS + 1000} nx"]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("EXPIRE k x", NOT_AN_INTEGER),
        ("EXPIRE missing 1 BAD", "ERR Unsupported option BAD"),
        ("EXPIRE k x BAD", "ERR Unsupported option BAD"),
        ("EXPIRE k 1 NX XX", "ERR NX and XX, GT or LT options at the same time are not compatible"),
        ("EXPIRE k 1 GT LT", "ERR GT and LT options at the same time are not compatible"),
        (f"EXPIRE missing {MAX}", "ERR invalid expire time in 'expire' command"),
        (f"EXPIRE missing {-(2**63)}", "ERR invalid expire time in 'expire' command"),
        (f"pexpire missing {MAX}", "ERR invalid expire time in 'pexpire' command"),
        ("RENAME missing k", "ERR no such key"),
        ("RENAMENX missing missing", "ERR no such key"),
        ("SCAN x", "ERR invalid cursor"),
        ("SCAN -1", "ERR invalid cursor"),
        ("SCAN 5x", "ERR invalid cursor"),
        ("SCAN -018446744073709551616", "ERR invalid cursor"),
        ("SCAN 18446744073709551616", "ERR invalid cursor"),
        ("SCAN 0 COUNT 0", "ERR syntax error"),
        ("SCAN 0 COUNT x", NOT_AN_INTEGER),
        ("SCAN 0 MATCH", "ERR syntax error"),
        ("SCAN 0 OTHER x", "ERR syntax error"),
        ("COPY k k", "ERR source and destination objects are the same"),
        ("COPY k j DB 16", "ERR DB index is out of range"),
        ("COPY k j DB x", NOT_AN_INTEGER),
        ("COPY k j DB 2147483648", "ERR value is out of range, value must between -2147483648 and 2147483647"),
        ("COPY k j OTHER", "ERR syntax error"),
        ("MOVE k 0", "ERR source and destination objects are the same"),
        ("MOVE k 16", "ERR DB index is out of range"),
        ("SWAPDB x y", "ERR invalid first DB index"),
        ("SWAPDB 16 y", "ERR invalid second DB index"),
        ("SWAPDB 0 16", "ERR DB index is out of range"),
        ("FLUSHALL NOW", "ERR syntax error"),
        ("FLUSHDB SYNC ASYNC", "ERR syntax error"),
        ("OBJECT OTHER", "ERR unknown subcommand 'OTHER'. Try OBJECT HELP."),
        ("OBJECT", "ERR wrong number of arguments for 'object' command"),
        ("OBJECT ENCODING", "ERR wrong number of arguments for 'object|encoding' command"),
        (
            "OBJECT FREQ k",
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when "
            "switching between policies at runtime LRU and LFU data will take some time to adjust.",
        ),
    ],
)
def test_a_generic_command_is_refused_and_changes_nothing(e: Plain, command: str, error: str) -> None:
    e("SET k v")
    assert e.error(command) == error


def test_the_ttl_family_tells_missing_from_lasting(e: Plain) -> None:
    e("SET k v")
    for command in ("TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME"):
        assert e(f"{command} missing") == -2
        assert e(f"{command} k") == -1


@pytest.mark.parametrize(("ms", "seconds"), [(1499, 1), (1500, 2), (499, 0), (500, 1)])
def test_ttl_rounds_to_the_nearest_second(e: Plain, ms: int, seconds: int) -> None:
    e(f"SET k v PX {ms}")
    assert e("TTL k") == seconds
    assert e("EXPIRETIME k") == NOW_MS // 1000 + seconds


def test_persist_removes_the_expiry_once(e: Plain) -> None:
    e("SET k v EX 10")
    did = e.did("PERSIST k")
    assert (did.reply, did.log, did.events, did.dirty) == (1, ["PERSIST k"], ["g persist k"], 1)
    assert e.did("PERSIST k").nothing()
    assert e("PERSIST missing") == 0


def test_a_key_lives_through_the_millisecond_of_its_expiry(e: Plain) -> None:
    e("SET k v PX 5")
    e.now_ms += 5
    assert e("PTTL k") == 0
    e.now_ms += 1
    did = e.did("GET k")
    assert (did.reply, did.log, did.events) == (None, ["DEL k"], ["x expired k", "m keymiss k"])
    assert (did.touched, did.ready, did.dirty) == (["k"], ["k"], 0)


def test_an_expired_key_is_gone_for_every_command(e: Plain) -> None:
    for command in (
        "EXISTS k",
        "DEL k",
        "PERSIST k",
        "EXPIRE k 10",
        "APPEND k x",
        "RPUSH k x",
        "SADD k x",
        "SET k v NX",
    ):
        e("FLUSHALL")
        e("SET k v PX 1")
        e.now_ms += 2
        assert e.did(command).events[0] == "x expired k", command


# Names


def test_rename_carries_value_and_expiry(e: Plain) -> None:
    e("SET k v EX 10")
    e("SET j w EX 99")
    did = e.did("RENAME k j")
    assert (did.reply, did.log, did.touched, did.dirty) == (OK, ["RENAME k j"], ["k", "j"], 1)
    assert did.events == ["n new j", "g rename_from k", "g rename_to j", "o overwritten j"]
    assert did.ready == ["j", "k"]
    assert (e("GET j"), e("TTL j"), e("EXISTS k")) == (b"v", 10, 0)


def test_rename_over_another_type_says_so(e: Plain) -> None:
    e("SET k v")
    e("XADD j 1-0 f v")
    assert e.did("RENAME k j").events[-2:] == ["o overwritten j", "c type_changed j"]


def test_rename_to_its_own_name_does_nothing(e: Plain) -> None:
    e("SET k v")
    assert e.did("RENAME k k").nothing()
    assert e("RENAMENX k k") == 0


def test_renamenx_needs_a_free_name(e: Plain) -> None:
    e("MSET a 1 b 2")
    assert e.did("RENAMENX a b").nothing()
    did = e.did("RENAMENX a c")
    assert (did.reply, did.events) == (1, ["n new c", "g rename_from a", "g rename_to c"])


@pytest.mark.parametrize("name", ["string", "stream", "hash", "list", "set", "zset"])
def test_copy_makes_a_value_of_its_own(e: Plain, name: str) -> None:
    _one_of_each(e)
    change = {
        "string": "APPEND",
        "stream": "XADD copy 2-0 g",
        "hash": "HSET copy g",
        "list": "RPUSH copy",
        "set": "SADD copy",
        "zset": "ZADD copy 2",
    }[name]
    e(f"EXPIRE {name} 10")
    did = e.did(f"COPY {name} copy")
    assert (did.reply, did.events, did.dirty) == (1, ["n new copy", "g copy_to copy"], 1)
    assert e("TTL copy") == 10
    before = repr(e.keyspace.databases[0].values[name.encode()])
    e(f"{change} copy x" if name == "string" else f"{change} x")
    assert repr(e.keyspace.databases[0].values[name.encode()]) == before


def test_copy_replaces_only_when_told_to(e: Plain) -> None:
    e("SET a 1")
    e("SET b 2 EX 10")
    assert e.did("COPY a b").nothing()
    did = e.did("COPY a b REPLACE")
    assert did.events == ["n new b", "g copy_to b", "o overwritten b"]
    assert (e("GET b"), e("TTL b")) == (b"1", -1)
    assert e("COPY missing b REPLACE") == 0


def test_copy_and_move_reach_other_databases(e: Plain) -> None:
    e("SET a 1 EX 10")
    assert e.did("COPY a a DB 3").events == ["n new a@3", "g copy_to a@3"]
    did = e.did("MOVE a 1")
    assert (did.log, did.touched) == (["MOVE a 1"], ["a", "a@1"])
    assert did.events == ["n new a@1", "g move_from a", "g move_to a@1"]
    e.db = 1
    assert e("TTL a") == 10
    assert e.did("MOVE a 3").nothing()


def test_swapdb_exchanges_what_connections_see(e: Plain) -> None:
    e("SET a 1 EX 10")
    did = e.did("SWAPDB 0 5")
    assert (did.reply, did.log, did.dirty, did.ready) == (OK, ["SWAPDB 0 5"], 1, ["a", "a@5"])
    assert e("DBSIZE") == 0
    e.db = 5
    assert e("TTL a") == 10
    assert e.keyspace.databases[5].index == 5


def test_flushing_touches_the_keys_there_were_and_is_always_logged(e: Plain) -> None:
    e("MSET a 1 b 2")
    e.db = 1
    e("SET c 3 EX 10")
    assert e.did("FLUSHDB").touched == ["c@1"]
    did = e.did("FLUSHALL async")
    assert (did.log, did.events, did.touched, did.dirty) == (["FLUSHALL async@1"], [], ["a", "b"], 2)
    assert did.ready == ["a", "b"]
    assert e.did("FLUSHALL").log == ["FLUSHALL@1"]


# Listing


def test_keys_hides_what_has_expired_and_dbsize_does_not(e: Plain) -> None:
    e("MSET a 1 b 2")
    e("SET c 3 PX 1")
    e.now_ms += 2
    did = e.did("KEYS *")
    assert sorted(did.reply) == [b"a", b"b"]  # type: ignore[type-var,arg-type]
    assert did.nothing()
    assert e("DBSIZE") == 3


def test_a_single_star_finds_the_empty_key(e: Plain) -> None:
    e("SET", b"", b"v")
    assert e("KEYS *") == [b""]
    assert e("KEYS **") == []
    assert e("SCAN 0 MATCH *") == [b"0", [b""]]


def _scan_all(e: Plain, *, count: int = 3, between: object = None) -> list[bytes]:
    """Every key a scan answers, with something done between its steps."""
    found: list[bytes] = []
    cursor = b"0"
    for step in range(10_000):
        reply = e(f"SCAN {cursor.decode()} COUNT {count}")
        assert isinstance(reply, list)
        cursor, page = reply  # type: ignore[assignment]
        found += page
        assert len(page) <= count
        if cursor == b"0":
            return found
        if callable(between):
            between(step)
    raise AssertionError("the scan does not end")


def test_scan_answers_every_key_once_when_nothing_changes(e: Plain) -> None:
    for number in range(100):
        e(f"SET k{number} v")
    assert sorted(_scan_all(e)) == sorted(b"k%d" % number for number in range(100))


def test_scan_meets_every_key_that_stays_while_others_come_and_go(e: Plain) -> None:
    for number in range(300):
        e(f"SET k{number} v")
    rng = Random(1)

    def disturb(step: int) -> None:
        for _ in range(5):  # more keys are added than a step answers: it ends all the same
            e(f"SET new{rng.randrange(10_000)} v")
            e(f"DEL k{rng.randrange(0, 300, 2)} new{rng.randrange(10_000)}")
        e(f"RENAME new k{rng.randrange(1, 300, 2)}") if e("SETNX new v") else None
        e(f"COPY k1 k{rng.randrange(3, 300, 2)} REPLACE")

    found = _scan_all(e, between=disturb)
    assert {b"k%d" % number for number in range(1, 300, 2)} <= set(found)


def test_scan_filters_by_pattern_and_type(e: Plain) -> None:
    _one_of_each(e)
    assert e("SCAN 0 COUNT 100 MATCH s* TYPE STREAM") == [b"0", [b"stream"]]
    assert e("SCAN 0 COUNT 100 TYPE other") == [b"0", []]


def test_scan_removes_expired_keys_it_would_answer(e: Plain) -> None:
    e("SET k v PX 1")
    e.now_ms += 2
    did = e.did("SCAN 0")
    assert (did.reply, did.events) == ([b"0", []], ["x expired k"])


def test_scan_takes_any_cursor(e: Plain) -> None:
    e("MSET a 1 b 2")
    for cursor in ("5", "18446744073709551615", "+1", "-01", "007", "\t1", "1\0x", "0" * 5000 + "1"):
        e(f"SCAN {cursor}")
    for cursor in ("0", "-0", "00", "0\0"):
        assert e(f"SCAN {cursor}") == [b"0", [b"a", b"b"]]


def test_randomkey_finds_every_key_there_is(e: Plain) -> None:
    assert e("RANDOMKEY") is None
    for number in range(50):
        e(f"SET k{number} v")
        e(f"DEL k{number - 5}")
    assert {e("RANDOMKEY") for _ in range(500)} == {b"k%d" % number for number in range(45, 50)}


def test_randomkey_gives_up_when_all_have_expired(e: Plain) -> None:
    e("SET a 1 PX 1")
    e("SET b 1 PX 1")
    e.now_ms += 2
    assert e("RANDOMKEY") is None
    assert e("DBSIZE") == 0


# OBJECT


def test_object_encoding_names_redis_forms(e: Plain) -> None:
    _one_of_each(e)
    e("SET int 12")
    e("SET long", "x" * 100)
    e("SADD ints 1 2")
    e("HSET wide f", "x" * 100)
    forms = {
        "string": b"embstr",
        "int": b"int",
        "long": b"raw",
        "stream": b"stream",
        "hash": b"listpack",
        "wide": b"hashtable",
        "list": b"listpack",
        "set": b"listpack",
        "ints": b"intset",
        "zset": b"listpack",
    }
    assert {name: e(f"OBJECT ENCODING {name}") for name in forms} == forms
    assert e("OBJECT ENCODING missing") is None


def test_object_idletime_counts_from_the_last_use(e: Plain) -> None:
    e("SET k v")
    e.now_ms += 5500
    assert e("OBJECT IDLETIME k") == 5
    e("TTL k")
    e("TYPE k")
    e("EXISTS k")
    assert e("OBJECT IDLETIME k") == 5
    e("TOUCH k")
    assert e("OBJECT IDLETIME k") == 0


def test_object_knows_no_counts_of_its_own(e: Plain) -> None:
    e("SET k v")
    assert e("OBJECT REFCOUNT k") == 1
    assert e("OBJECT REFCOUNT missing") is None
    assert e.did("OBJECT FREQ missing").events == []
    assert isinstance(e("OBJECT HELP"), list)


# The log


@pytest.mark.parametrize("seed", range(6))
def test_replaying_the_log_gives_the_same_keys_however_late(seed: int) -> None:
    rng, live, copy = Random(seed), Keyspace(), Keyspace()
    now_ms = NOW_MS
    for step in range(1500):
        now_ms += rng.choice((0, 0, 1, 3))
        argv = [b"XADD", b"s0", b"%d-0" % (step + 1), b"f", b"v"] if step % 50 == 0 else random_command(rng)
        for db, logged in execute(live, 0, argv, now_ms).log:
            execute(copy, db, list(logged), now_ms + 10**12, trusted=True)
    for mine, theirs in zip(live, copy, strict=True):
        assert mine.values.keys() == theirs.values.keys()
        assert dict(mine.expires) == dict(theirs.expires)
        for key in mine.values:
            dumps = (_content(space, mine.index, key, now_ms) for space in (live, copy))
            assert next(dumps) == next(dumps)


def _content(space: Keyspace, db: int, key: bytes, now_ms: int) -> object:
    """A value as its own commands answer it."""
    ask = {
        b"string": [b"GET", key],
        b"list": [b"LRANGE", key, b"0", b"-1"],
        b"hash": [b"HGETALL", key],
        b"set": [b"SMEMBERS", key],
        b"zset": [b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"],
        b"stream": [b"XLEN", key],
    }
    kind = execute(space, db, [b"TYPE", key], now_ms, trusted=True).reply
    reply = execute(space, db, ask[kind], now_ms, trusted=True).reply  # type: ignore[index]
    return sorted(reply) if kind == b"set" else reply  # type: ignore[type-var,arg-type]
