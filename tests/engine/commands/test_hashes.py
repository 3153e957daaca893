from __future__ import annotations

import pytest

from millstream.engine.outcome import OK, Pairs
from tests.engine.commands.plain import Plain

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
MAX = 2**63 - 1


def test_hset_counts_new_fields_and_every_pair_is_a_change(e: Plain) -> None:
    did = e.did("HSET h a 1 b 2 a 3")
    assert (did.reply, did.log, did.events, did.dirty) == (2, ["HSET h a 1 b 2 a 3"], ["n new h", "h hset h"], 3)
    assert e("HSET h a 4 c 5") == 1
    assert e("HGET h a") == b"4"


def test_hmset_answers_ok(e: Plain) -> None:
    assert e("HMSET h a 1") == OK
    assert e("HGETALL h") == [b"a", b"1"]


def test_hsetnx_sets_a_field_once(e: Plain) -> None:
    assert e.did("HSETNX h a 1").events == ["n new h", "h hset h"]
    assert e.did("HSETNX h a 2").nothing()
    assert e("HGET h a") == b"1"


def test_the_readers_know_missing_fields_and_missing_keys(e: Plain) -> None:
    e("HSET h a 1 b 22")
    assert e("HGET h x") is None
    assert e("HMGET h a x b") == [b"1", None, b"22"]
    assert e("HMGET missing a b") == [None, None]
    assert (e("HLEN h"), e("HLEN missing")) == (2, 0)
    assert (e("HEXISTS h a"), e("HEXISTS h x"), e("HEXISTS missing a")) == (1, 0, 0)
    assert (e("HSTRLEN h b"), e("HSTRLEN h x"), e("HSTRLEN missing a")) == (2, 0, 0)
    assert (e("HKEYS h"), e("HVALS h"), e("HKEYS missing")) == ([b"a", b"b"], [b"1", b"22"], [])
    assert e.did("HGET missing a").events == ["m keymiss missing"]


def test_hgetall_is_a_map_in_resp3(e: Plain) -> None:
    e("HSET h a 1")
    assert isinstance(e("HGETALL h"), Pairs)
    assert e.wire("HGETALL h", 2) == b"*2\r\n$1\r\na\r\n$1\r\n1\r\n"
    assert e.wire("HGETALL h", 3) == b"%1\r\n$1\r\na\r\n$1\r\n1\r\n"
    assert e.wire("HGETALL missing", 3) == b"%0\r\n"


def test_a_hash_goes_with_its_last_field(e: Plain) -> None:
    e("HSET h a 1 b 2 c 3")
    did = e.did("HDEL h a x a")
    assert (did.reply, did.events, did.dirty) == (1, ["h hdel h"], 1)
    did = e.did("HDEL h b c")
    assert (did.reply, did.events, did.ready, did.dirty) == (2, ["h hdel h", "g del h"], ["h"], 2)
    assert e("EXISTS h") == 0
    assert e.did("HDEL h a").nothing()


def test_hincrby_counts_from_zero(e: Plain) -> None:
    did = e.did("HINCRBY h n 5")
    assert (did.reply, did.log, did.events) == (5, ["HINCRBY h n 5"], ["n new h", "h hincrby h"])
    assert e("HINCRBY h n -7") == -2
    assert e("HGET h n") == b"-2"


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("HSET h a 1 b", "ERR wrong number of arguments for 'hset' command"),
        ("HMSET h a 1 b", "ERR wrong number of arguments for 'hmset' command"),
        ("HINCRBY s a x", "ERR value is not an integer or out of range"),
        ("HINCRBY h word 1", "ERR hash value is not an integer"),
        ("HINCRBY h max 1", "ERR increment or decrement would overflow"),
        ("HSET s a 1", WRONG_TYPE),
        ("HSETNX s a 1", WRONG_TYPE),
        ("HGET s a", WRONG_TYPE),
        ("HDEL s a", WRONG_TYPE),
        ("HINCRBY s a 1", WRONG_TYPE),
        ("HGETALL s", WRONG_TYPE),
        ("HKEYS s", WRONG_TYPE),
        ("HLEN s", WRONG_TYPE),
        ("HMGET s a", WRONG_TYPE),
        ("HEXISTS s a", WRONG_TYPE),
    ],
)
def test_a_hash_command_is_refused_and_changes_nothing(e: Plain, command: str, error: str) -> None:
    e(f"HSET h word v max {MAX}")
    e("SET s v")
    assert e.error(command) == error


def test_a_change_keeps_the_expiry(e: Plain) -> None:
    e("HSET h a 1")
    e("EXPIRE h 10")
    e("HSET h b 2")
    assert e("TTL h") == 10
