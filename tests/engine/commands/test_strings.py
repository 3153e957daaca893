from __future__ import annotations

import pytest

from millstream.engine.outcome import OK
from tests.engine.commands.plain import NOW_MS, Plain

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
NOT_AN_INTEGER = "ERR value is not an integer or out of range"
SYNTAX = "ERR syntax error"
DIGEST_OF_V = "f7042be43fb80714"
MAX = 2**63 - 1

# SET


def test_set_stores_and_get_answers(e: Plain) -> None:
    assert e("SET k v") == OK
    assert e("GET k") == b"v"
    assert e("GET missing") is None


def test_set_reports_a_new_key(e: Plain) -> None:
    did = e.did("SET k v")
    assert (did.log, did.events, did.touched, did.dirty) == (["SET k v"], ["n new k", "$ set k"], ["k"], 1)


def test_set_over_a_key_reports_what_was_overwritten(e: Plain) -> None:
    e("SET k v")
    assert e.did("SET k w").events == ["o overwritten k", "$ set k"]
    e("DEL k")
    e("LPUSH k a")
    assert e.did("SET k w").events == ["o overwritten k", "c type_changed k", "$ set k"]


def test_set_drops_the_expiry_unless_told_to_keep_it(e: Plain) -> None:
    e("SET k v EX 10")
    e("SET k w KEEPTTL")
    assert e("PTTL k") == 10_000
    e("SET k w XX")
    assert e("TTL k") == -1


@pytest.mark.parametrize(
    ("option", "ttl_ms"),
    [("EX 10", 10_000), ("PX 1500", 1500), (f"EXAT {NOW_MS // 1000 + 7}", 7000), (f"PXAT {NOW_MS + 9}", 9)],
)
def test_set_with_a_time_is_logged_with_the_absolute_time(e: Plain, option: str, ttl_ms: int) -> None:
    did = e.did(f"SET k v {option}")
    assert did.log == [f"SET k v PXAT {NOW_MS + ttl_ms}"]
    assert did.events == ["n new k", "$ set k", "g expire k"]
    assert e("PTTL k") == ttl_ms


def test_the_log_of_a_conditional_set_with_a_time_has_no_condition(e: Plain) -> None:
    assert e.did("SET k v NX EX 1 GET").log == [f"SET k v PXAT {NOW_MS + 1000}"]
    assert e.did(f"SET j v NX PXAT {NOW_MS + 5}").log == [f"SET j v NX PXAT {NOW_MS + 5}"]


def test_the_log_of_a_set_without_a_time_is_what_was_sent_but_get(e: Plain) -> None:
    e("SET k get")
    assert e.did("set k v ifeq get GET").log == ["set k v ifeq get"]


def test_set_to_a_time_that_is_past_deletes(e: Plain) -> None:
    assert e.did("SET k v EXAT 1").nothing()
    e("SET k v")
    did = e.did(f"SET k w PXAT {NOW_MS}")
    assert (did.reply, did.log, did.events, did.dirty) == (OK, ["DEL k"], ["g del k"], 1)
    assert e("EXISTS k") == 0


def test_nx_and_xx_decide_by_existence(e: Plain) -> None:
    assert e("SET k v XX") is None
    assert e("SET k v NX") == OK
    assert e("SET k w NX") is None
    assert e("SET k w XX") == OK
    assert e("GET k") == b"w"


def test_set_with_get_answers_the_old_value_whether_it_was_set_or_not(e: Plain) -> None:
    assert e("SET k v GET") is None
    assert e("SET k w NX GET") == b"v"
    assert e("GET k") == b"v"
    assert e("SET k w GET") == b"v"
    assert e("GET k") == b"w"


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("IFEQ v", True),
        ("IFEQ w", False),
        ("IFNE v", False),
        ("IFNE w", True),
        (f"IFDEQ {DIGEST_OF_V}", True),
        (f"IFDEQ {DIGEST_OF_V.upper()}", True),
        ("IFDEQ 0000000000000000", False),
        (f"IFDNE {DIGEST_OF_V}", False),
        ("IFDNE gggggggggggggggg", True),
    ],
)
def test_set_and_delex_compare_with_the_value_or_its_digest(e: Plain, condition: str, holds: bool) -> None:
    e("SET k v")
    assert e(f"DELEX k {condition}") == int(holds)
    e("SET k v")
    assert e(f"SET k new {condition}") == (OK if holds else None)


@pytest.mark.parametrize(
    ("condition", "holds"), [("IFEQ v", False), ("IFNE v", True), ("IFDEQ x", False), ("IFDNE x", True)]
)
def test_a_comparison_with_a_missing_key_needs_no_digest(e: Plain, condition: str, holds: bool) -> None:
    assert e(f"SET k v {condition}") == (OK if holds else None)


def test_digest_is_xxh3_in_sixteen_hex_digits(e: Plain) -> None:
    e("SET k v")
    e("SET none", b"")
    assert e("DIGEST k") == DIGEST_OF_V.encode()
    assert e("DIGEST none") == b"2d06800538d394c2"
    assert e("DIGEST missing") is None


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("SET k v NX XX", SYNTAX),
        ("SET k v NX IFEQ v", SYNTAX),
        ("SET k v IFEQ v IFNE w", SYNTAX),
        ("SET k v EX 1 PX 1", SYNTAX),
        ("SET k v EX 1 KEEPTTL", SYNTAX),
        ("SET k v PERSIST", SYNTAX),
        ("SET k v EX", SYNTAX),
        ("SET k v IFEQ", SYNTAX),
        ("SET k v EX x NX XX", SYNTAX),
        ("SET k v EX x", NOT_AN_INTEGER),
        ("SET k v EX 0", "ERR invalid expire time in 'set' command"),
        ("SET k v PXAT -1", "ERR invalid expire time in 'set' command"),
        (f"SET k v EX {MAX // 1000 + 1}", "ERR invalid expire time in 'set' command"),
        (f"SET k v PX {MAX}", "ERR invalid expire time in 'set' command"),
        ("SET k v IFDEQ 0123", "ERR must be exactly 16 hexadecimal characters"),
        ("SET k v GET IFDNE 0123", "ERR must be exactly 16 hexadecimal characters"),
        ("SET list v GET", WRONG_TYPE),
        ("SET list v NX GET", WRONG_TYPE),
        ("SET list v IFEQ v", WRONG_TYPE),
        ("SET list v IFDEQ 0123", WRONG_TYPE),
        ("SET list v GET EX x", NOT_AN_INTEGER),
        ("SETEX k 0 v", "ERR invalid expire time in 'setex' command"),
        ("PSETEX k -1 v", "ERR invalid expire time in 'psetex' command"),
        ("SETEX k x v", NOT_AN_INTEGER),
        ("GETEX k EX 0", "ERR invalid expire time in 'getex' command"),
        ("GETEX k EX 1 PERSIST", SYNTAX),
        ("GETEX missing KEEPTTL", SYNTAX),
        ("GETEX list EX x", WRONG_TYPE),
        ("DELEX k IFEQ", "ERR wrong number of arguments for 'delex' command"),
        ("DELEX k SAME v", "ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE"),
        ("DELEX list SAME v", "ERR Key should be of string type if conditions are specified"),
        ("DELEX k IFDEQ 0123", "ERR must be exactly 16 hexadecimal characters"),
        ("MSET a 1 b", "ERR wrong number of arguments for 'mset' command"),
        ("MSETNX a 1 b", "ERR wrong number of arguments for 'msetnx' command"),
        ("GET list", WRONG_TYPE),
        ("GETDEL list", WRONG_TYPE),
        ("GETSET list v", WRONG_TYPE),
        ("STRLEN list", WRONG_TYPE),
        ("DIGEST list", WRONG_TYPE),
        ("APPEND list v", WRONG_TYPE),
        ("GETRANGE list x 1", NOT_AN_INTEGER),
        ("SETRANGE list -1 v", "ERR offset is out of range"),
        ("SETRANGE list 0 v", WRONG_TYPE),
        ("SETRANGE k 536870912 v", "ERR string exceeds maximum allowed size (proto-max-bulk-len)"),
        ("INCR list", WRONG_TYPE),
        ("INCR k", NOT_AN_INTEGER),
        ("INCRBY k x", NOT_AN_INTEGER),
        ("INCR max", "ERR increment or decrement would overflow"),
        (f"DECRBY max {-(2**63)}", "ERR decrement would overflow"),
        ("INCRBYFLOAT list 1", WRONG_TYPE),
        ("INCRBYFLOAT k 1", "ERR value is not a valid float"),
        ("INCRBYFLOAT max nan", "ERR value is not a valid float"),
        ("INCRBYFLOAT max inf", "ERR increment would produce NaN or Infinity"),
        ("GET", "ERR wrong number of arguments for 'get' command"),
    ],
)
def test_a_string_command_is_refused_and_changes_nothing(e: Plain, command: str, error: str) -> None:
    e("SET k v")
    e(f"SET max {MAX}")
    e("RPUSH list a")
    assert e.error(command) == error


# The older forms


def test_setex_and_psetex_are_logged_as_set(e: Plain) -> None:
    assert e.did("SETEX k 10 v").log == [f"SET k v PXAT {NOW_MS + 10_000}"]
    assert e.did("PSETEX k 10 v").log == [f"SET k v PXAT {NOW_MS + 10}"]
    assert e("PTTL k") == 10


def test_setnx_sets_once(e: Plain) -> None:
    assert e("SETNX k v") == 1
    assert e.did("SETNX k w").nothing()


def test_getset_is_logged_as_set_and_drops_the_expiry(e: Plain) -> None:
    e("SET k v EX 10")
    did = e.did("GETSET k w")
    assert (did.reply, did.log) == (b"v", ["SET k w"])
    assert e("TTL k") == -1


def test_getdel_is_logged_as_del(e: Plain) -> None:
    e("SET k v")
    did = e.did("GETDEL k")
    assert (did.reply, did.log, did.events, did.dirty) == (b"v", ["DEL k"], ["g del k"], 1)
    assert e("GETDEL k") is None


def test_getex_moves_the_expiry(e: Plain) -> None:
    e("SET k v")
    did = e.did("GETEX k EX 10")
    assert (did.reply, did.log, did.events, did.dirty) == (b"v", [f"PEXPIREAT k {NOW_MS + 10_000}"], ["g expire k"], 1)
    assert e.did("GETEX k PERSIST").log == ["PERSIST k"]
    assert e.did("GETEX k PERSIST").nothing()
    assert e.did("GETEX k PXAT 1").log == ["DEL k"]
    assert e("GETEX k EX x") is None


def test_mset_sets_all_and_msetnx_all_or_none(e: Plain) -> None:
    did = e.did("MSET a 1 b 2 a 3")
    assert (did.log, did.dirty) == (["MSET a 1 b 2 a 3"], 3)
    assert e("MGET a b missing") == [b"3", b"2", None]
    assert e("MSETNX c 1 a 2") == 0
    assert e("EXISTS c") == 0
    assert e("MSETNX c 1 d 2") == 1


def test_mget_answers_nil_for_other_types(e: Plain) -> None:
    e("SET a 1")
    e("LPUSH list x")
    assert e("MGET a list") == [b"1", None]


# Numbers


def test_counters_start_at_zero_and_keep_their_expiry(e: Plain) -> None:
    assert e("INCR n") == 1
    e("EXPIRE n 10")
    assert e("INCRBY n 10") == 11
    assert e("DECR n") == 10
    assert e("DECRBY n 20") == -10
    assert e("TTL n") == 10
    did = e.did("INCR n")
    assert (did.log, did.events, did.dirty) == (["INCR n"], ["$ incrby n"], 1)


@pytest.mark.parametrize("value", ["01", " 1", "1 ", "+1", "-0", "1.0", "", "9223372036854775808"])
def test_only_canonical_integers_can_be_incremented(e: Plain, value: str) -> None:
    e("SET n", value)
    assert e.error("INCR n") == NOT_AN_INTEGER


@pytest.mark.parametrize(
    ("start", "increment", "total"),
    [
        ("0.1", "0.2", "0.3"),
        ("10.50", "0.1", "10.6"),
        ("5.0e3", "2.0e2", "5200"),
        ("1", "-1", "0"),
        ("0", "-0", "0"),
        ("0", "0x10", "16"),
        ("1", "1e-18", "1"),
        ("3", "1.000000000000000005", "4.00000000000000001"),
        ("9007199254740993", "0", "9007199254740993"),
        ("0", "1e-400", "0"),
        ("0.1", "-0.3", "-0.2"),
        ("0", "0x1.fffffffffffff8p0", "1.99999999999999989"),
        ("18446744073709551617", "0", "18446744073709551616"),
    ],
)
def test_incrbyfloat_computes_like_an_eighty_bit_float(e: Plain, start: str, increment: str, total: str) -> None:
    e(f"SET f {start}")
    assert e(f"INCRBYFLOAT f {increment}") == total.encode()


def test_incrbyfloat_goes_far_beyond_doubles(e: Plain) -> None:
    value = e("INCRBYFLOAT f 1e4932")
    assert isinstance(value, bytes)
    assert len(value) == 4933
    assert value.startswith(b"100000000000000000")
    assert e("INCRBYFLOAT f 0") == value
    assert e.error("INCRBYFLOAT f 1e4933") == "ERR value is not a valid float"
    assert e.error("INCRBYFLOAT f 1e999999999999") == "ERR value is not a valid float"
    assert e.error("INCRBYFLOAT f", "1" * 5120) == "ERR value is not a valid float"


def test_incrbyfloat_is_logged_as_the_text_it_became(e: Plain) -> None:
    e("SET f 1 EX 10")
    did = e.did("INCRBYFLOAT f 0.5")
    assert (did.log, did.events) == (["SET f 1.5 KEEPTTL"], ["$ incrbyfloat f"])
    assert e("TTL f") == 10


# Parts


def test_append_starts_with_nothing(e: Plain) -> None:
    assert e("APPEND k ab") == 2
    assert e("APPEND k cd") == 4
    assert e("STRLEN k") == 4
    assert e("STRLEN missing") == 0
    assert e("APPEND none", b"") == 0
    assert e("EXISTS none") == 1


@pytest.mark.parametrize(
    ("start", "end", "part"),
    [
        (0, -1, b"hello"),
        (1, 2, b"el"),
        (-3, -2, b"ll"),
        (3, 1, b""),
        (-100, 100, b"hello"),
        (5, 9, b""),
        (-1, -5, b""),
        (0, -100, b"h"),
        (-100, -99, b"h"),
        (-(2**63), MAX, b"hello"),
    ],
)
def test_getrange_takes_both_ends(e: Plain, start: int, end: int, part: bytes) -> None:
    e("SET k hello")
    assert e(f"GETRANGE k {start} {end}") == part


def test_setrange_fills_a_gap_with_zero_bytes(e: Plain) -> None:
    assert e("SETRANGE k 2 ab") == 4
    assert e("GET k") == b"\0\0ab"
    assert e("SETRANGE k 1 xyz!") == 5
    assert e("GET k") == b"\0xyz!"


def test_setrange_of_nothing_does_nothing(e: Plain) -> None:
    assert e.did("SETRANGE k 5", b"").nothing()
    assert e("EXISTS k") == 0


def test_delex_is_logged_as_del_and_without_a_condition_as_sent(e: Plain) -> None:
    e("SET k v")
    assert e.did("DELEX k IFEQ v").log == ["DEL k"]
    e("LPUSH k v")
    assert e.did("DELEX k").log == ["DELEX k"]
    assert e("DELEX k") == 0
    assert e("DELEX k SAME v") == 0


def test_a_read_of_a_missing_key_is_a_key_miss(e: Plain) -> None:
    for command in (
        "GET k",
        "STRLEN k",
        "GETRANGE k 0 1",
        "GETEX k",
        "GETDEL k",
        "DIGEST k",
        "DELEX k IFEQ v",
        "MGET k",
    ):
        assert e.did(command).events == ["m keymiss k"], command
    assert e.did("DELEX k").events == []
