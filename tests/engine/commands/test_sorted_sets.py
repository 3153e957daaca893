from __future__ import annotations

import math

import pytest

from millstream.engine.outcome import NIL_ARRAY, Scored
from tests.engine.commands.plain import Plain

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
NOT_AN_INTEGER = "ERR value is not an integer or out of range"
NOT_A_FLOAT = "ERR value is not a valid float"
BAD_SCORES = "ERR min or max is not a float"
BAD_MEMBERS = "ERR min or max not valid string range item"
LIMIT_NEEDS_BY = "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX"


def _all(e: Plain, key: str = "z") -> list[tuple[bytes, float]]:
    reply = e(f"ZRANGE {key} 0 -1 WITHSCORES")
    assert isinstance(reply, Scored)
    return list(zip(reply[::2], reply[1::2], strict=True))  # type: ignore[arg-type]


def _joined(reply: object) -> bytes:
    assert isinstance(reply, list)
    return b"".join(reply)


# ZADD


def test_zadd_counts_new_members_and_orders_by_score_then_bytes(e: Plain) -> None:
    did = e.did("ZADD z 2 b 1 c 1 a")
    assert (did.reply, did.log, did.events, did.dirty) == (3, ["ZADD z 2 b 1 c 1 a"], ["n new z", "z zadd z"], 3)
    assert _all(e) == [(b"a", 1.0), (b"c", 1.0), (b"b", 2.0)]


def test_zadd_reports_changed_scores_and_leaves_equal_ones(e: Plain) -> None:
    e("ZADD z 1 a 2 b")
    did = e.did("ZADD z 1 a 3 b 4 c")
    assert (did.reply, did.dirty) == (1, 2)
    assert e("ZADD z CH 5 a 3 b 6 d") == 2
    assert e.did("ZADD z 5 a").nothing()


@pytest.mark.parametrize(
    ("options", "score", "reply"),
    [
        ("NX", 5.0, 1),
        ("XX", 7.0, 0),
        ("GT", 7.0, 1),
        ("LT", 5.0, 1),
        ("XX GT", 7.0, 0),
        ("XX LT", 5.0, 0),
        ("CH", 7.0, 2),
        ("XX CH", 7.0, 1),
        ("nx ch", 5.0, 1),
    ],
)
def test_zadd_options_decide_who_changes(e: Plain, options: str, score: float, reply: int) -> None:
    e("ZADD z 5 old")
    assert e(f"ZADD z {options} 7 old 1 new") == reply
    assert dict(_all(e))[b"old"] == score
    assert (b"new" in dict(_all(e))) == ("XX" not in options)


def test_zadd_xx_makes_no_key(e: Plain) -> None:
    assert e.did("ZADD z XX 1 a").nothing()
    assert e("ZADD z XX INCR 1 a") is None
    assert e("EXISTS z") == 0


def test_zadd_incr_answers_the_score_or_nil(e: Plain) -> None:
    did = e.did("ZADD z INCR 1.5 a")
    assert (did.reply, did.events) == (1.5, ["n new z", "z zincr z"])
    assert e("ZADD z INCR 1 a") == 2.5
    assert e("ZADD z NX INCR 1 a") is None
    assert e("ZADD z GT INCR -1 a") is None
    assert e("ZADD z LT INCR -1 a") == 1.5


def test_zincrby_adds(e: Plain) -> None:
    did = e.did("ZINCRBY z 2 a")
    assert (did.reply, did.log, did.events, did.dirty) == (2.0, ["ZINCRBY z 2 a"], ["n new z", "z zincr z"], 1)
    assert e.did("ZINCRBY z 0 a").nothing()
    assert e("ZINCRBY z -inf a") == -math.inf


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("ZADD z 1", "ERR wrong number of arguments for 'zadd' command"),
        ("ZADD z NX 1", "ERR syntax error"),
        ("ZADD z 1 a 2", "ERR syntax error"),
        ("ZADD z NX XX 1 a", "ERR XX and NX options at the same time are not compatible"),
        ("ZADD z NX GT 1 a", "ERR GT, LT, and/or NX options at the same time are not compatible"),
        ("ZADD z GT LT INCR 1 a 2 b", "ERR GT, LT, and/or NX options at the same time are not compatible"),
        ("ZADD z INCR x a 2 b", "ERR INCR option supports a single increment-element pair"),
        ("ZADD k x a", NOT_A_FLOAT),
        ("ZADD z 1 a nan b", NOT_A_FLOAT),
        ("ZADD z 1e400 a", NOT_A_FLOAT),
        ("ZADD z INCR -inf top", "ERR resulting score is not a number (NaN)"),
        ("ZINCRBY z -inf top", "ERR resulting score is not a number (NaN)"),
        ("ZINCRBY k x a", NOT_A_FLOAT),
        ("ZINCRBY z nx a", "ERR syntax error"),
        ("ZADD k 1 a", WRONG_TYPE),
        ("ZINCRBY k 1 a", WRONG_TYPE),
        ("ZRANGE k 0 x", NOT_AN_INTEGER),
        ("ZRANGE k 0 1", WRONG_TYPE),
        ("ZRANGE z 0 1 LIMIT 0 1", LIMIT_NEEDS_BY),
        ("ZREVRANGE z 0 1 LIMIT 0 1", LIMIT_NEEDS_BY),
        ("ZRANGE z - + BYLEX WITHSCORES", "ERR syntax error, WITHSCORES not supported in combination with BYLEX"),
        ("ZRANGE z 0 1 BYSCORE BYLEX", "ERR syntax error"),
        ("ZRANGE z 0 1 REV REV", "ERR syntax error"),
        ("ZRANGE z 0 1 BYSCORE LIMIT 0", "ERR syntax error"),
        ("ZRANGE z 0 1 BYSCORE LIMIT x 1", NOT_AN_INTEGER),
        ("ZRANGEBYSCORE z 0 1 REV", "ERR syntax error"),
        ("ZRANGEBYSCORE k x 1", BAD_SCORES),
        ("ZRANGEBYSCORE z ((1 1", BAD_SCORES),
        ("ZCOUNT k 0 nan", BAD_SCORES),
        ("ZREMRANGEBYSCORE k 0 x", BAD_SCORES),
        ("ZRANGE k a [b BYLEX", BAD_MEMBERS),
        ("ZRANK z a WITH", "ERR syntax error"),
        ("ZRANK z a WITHSCORE x", "ERR wrong number of arguments for 'zrank' command"),
        ("ZREVRANK z a WITHSCORE x", "ERR wrong number of arguments for 'zrevrank' command"),
        ("ZPOPMIN z 1 2", "ERR syntax error"),
        ("ZPOPMIN z -1", "ERR value is out of range, must be positive"),
        ("ZPOPMAX k x", "ERR value is out of range, must be positive"),
        ("ZPOPMAX k", WRONG_TYPE),
        ("ZREM k a", WRONG_TYPE),
        ("ZSCORE k a", WRONG_TYPE),
        ("ZMSCORE k a", WRONG_TYPE),
        ("ZCARD k", WRONG_TYPE),
        ("ZREMRANGEBYRANK k x 1", NOT_AN_INTEGER),
        ("ZREMRANGEBYRANK k 0 1", WRONG_TYPE),
    ],
)
def test_a_sorted_set_command_is_refused_and_changes_nothing(e: Plain, command: str, error: str) -> None:
    e("ZADD z inf top 1 a")
    e("SET k v")
    assert e.error(command) == error


# Single members


def test_the_readers_know_missing_members_and_keys(e: Plain) -> None:
    e("ZADD z 1 a 2.5 b")
    assert (e("ZSCORE z b"), e("ZSCORE z x"), e("ZSCORE missing a")) == (2.5, None, None)
    assert e("ZMSCORE z a x") == [1.0, None]
    assert e("ZMSCORE missing a x") == [None, None]
    assert (e("ZCARD z"), e("ZCARD missing")) == (2, 0)
    assert (e("ZRANK z b"), e("ZREVRANK z b"), e("ZRANK z x")) == (1, 0, None)
    assert e("ZRANK z b WITHSCORE") == [1, 2.5]
    assert e("ZREVRANK missing b WITHSCORE") is NIL_ARRAY


def test_scores_are_doubles_in_resp3(e: Plain) -> None:
    e("ZADD z 1.5 a -inf b")
    assert e.wire("ZSCORE z a", 2) == b"$3\r\n1.5\r\n"
    assert e.wire("ZSCORE z a", 3) == b",1.5\r\n"
    assert e.wire("ZSCORE z b", 3) == b",-inf\r\n"
    assert e.wire("ZRANK z a WITHSCORE", 3) == b"*2\r\n:1\r\n,1.5\r\n"


def test_pairs_are_flat_in_resp2_and_nested_in_resp3(e: Plain) -> None:
    e("ZADD z 1 a")
    assert e.wire("ZRANGE z 0 -1 WITHSCORES", 2) == b"*2\r\n$1\r\na\r\n$1\r\n1\r\n"
    assert e.wire("ZRANGE z 0 -1 WITHSCORES", 3) == b"*1\r\n*2\r\n$1\r\na\r\n,1\r\n"
    assert e.wire("ZPOPMIN z 1", 3) == b"*1\r\n*2\r\n$1\r\na\r\n,1\r\n"
    e("ZADD z 1 a")
    assert e.wire("ZPOPMIN z", 3) == b"*2\r\n$1\r\na\r\n,1\r\n"


def test_minus_zero_is_stored_as_zero(e: Plain) -> None:
    assert e.wire("ZADD z INCR -0 a", 2) == b"$2\r\n-0\r\n"
    assert e.wire("ZSCORE z a", 2) == b"$1\r\n0\r\n"


# Ranges


@pytest.mark.parametrize(
    ("command", "members"),
    [
        ("ZRANGE z 0 -1", b"abcde"),
        ("ZRANGE z 1 2", b"bc"),
        ("ZRANGE z -2 -1", b"de"),
        ("ZRANGE z 3 1", b""),
        ("ZRANGE z 0 1 REV", b"ed"),
        ("ZREVRANGE z 0 1", b"ed"),
        ("ZREVRANGE z -1 -1", b"a"),
        ("ZRANGE z 9 10", b""),
        ("ZRANGEBYSCORE z 2 4", b"bcd"),
        ("ZRANGEBYSCORE z (2 (4", b"c"),
        ("ZRANGEBYSCORE z -inf +inf", b"abcde"),
        ("ZRANGEBYSCORE z 4 2", b""),
        ("ZREVRANGEBYSCORE z 4 2", b"dcb"),
        ("ZREVRANGEBYSCORE z (4 (2", b"c"),
        ("ZRANGEBYSCORE z 2 4 LIMIT 1 1", b"c"),
        ("ZRANGEBYSCORE z 2 4 LIMIT 1 -1", b"cd"),
        ("ZRANGEBYSCORE z 2 4 LIMIT -1 5", b""),
        ("ZRANGEBYSCORE z 2 4 LIMIT 0 0", b""),
        ("ZRANGE z 2 4 BYSCORE", b"bcd"),
        ("ZRANGE z 4 2 BYSCORE REV", b"dcb"),
        ("ZRANGE z 4 2 BYSCORE REV LIMIT 1 2", b"cb"),
        ("ZRANGE missing 0 -1", b""),
        ("ZRANGE z 0 -1 LIMIT 3 -1", b"abcde"),
        ("ZRANGEBYSCORE z 1e400 inf", b""),
        ("ZRANGEBYSCORE z (-inf (+inf", b"abcde"),
    ],
)
def test_ranges_by_rank_and_score(e: Plain, command: str, members: bytes) -> None:
    e("ZADD z 1 a 2 b 3 c 4 d 5 e")
    assert _joined(e(command)) == members


def test_infinite_scores_are_in_ranges_that_name_them(e: Plain) -> None:
    e("ZADD z -inf a 0 b inf c")
    assert e("ZRANGEBYSCORE z -inf inf") == [b"a", b"b", b"c"]
    assert e("ZRANGEBYSCORE z (-inf (inf") == [b"b"]
    assert (e("ZCOUNT z inf inf"), e("ZCOUNT z (inf inf"), e("ZCOUNT z -inf (-inf")) == (1, 0, 0)


@pytest.mark.parametrize(
    ("low", "high", "members"),
    [
        ("-", "+", b"abcd"),
        ("[b", "[c", b"bc"),
        ("(b", "[c", b"c"),
        ("[b", "(c", b"b"),
        ("-", "(c", b"ab"),
        ("(b", "+", b"cd"),
        ("+", "-", b""),
        ("[c", "[b", b""),
        ("[", "[b", b"ab"),
        ("[bb", "+", b"cd"),
        ("+", "+", b""),
    ],
)
def test_ranges_by_member(e: Plain, low: str, high: str, members: bytes) -> None:
    e("ZADD z 0 a 0 b 0 c 0 d")
    assert _joined(e(f"ZRANGE z {low} {high} BYLEX")) == members
    assert _joined(e(f"ZRANGE z {high} {low} BYLEX REV")) == members[::-1]


def test_zcount_counts_what_the_range_holds(e: Plain) -> None:
    e("ZADD z 1 a 2 b 2 c 3 d")
    assert (e("ZCOUNT z 2 2"), e("ZCOUNT z (2 inf"), e("ZCOUNT z 3 1"), e("ZCOUNT missing 0 1")) == (2, 1, 0, 0)


# Removing


def test_zrem_counts_and_the_set_goes_with_its_last_member(e: Plain) -> None:
    e("ZADD z 1 a 2 b 3 c")
    did = e.did("ZREM z a x")
    assert (did.reply, did.log, did.events, did.dirty) == (1, ["ZREM z a x"], ["z zrem z"], 1)
    did = e.did("ZREM z b c")
    assert (did.events, did.ready, did.dirty) == (["z zrem z", "g del z"], ["z"], 2)
    assert e.did("ZREM z a").nothing()


def test_popping_takes_the_lowest_or_the_highest(e: Plain) -> None:
    e("ZADD z 1 a 2 b 3 c 4 d 5 e")
    did = e.did("ZPOPMIN z")
    assert (did.reply, did.log, did.events, did.dirty) == ([b"a", 1.0], ["ZPOPMIN z"], ["z zpopmin z"], 1)
    assert e("ZPOPMAX z 2") == [b"e", 5.0, b"d", 4.0]
    did = e.did("ZPOPMAX z 10")
    assert (did.reply, did.events) == ([b"c", 3.0, b"b", 2.0], ["z zpopmax z", "g del z"])
    assert e("ZPOPMIN z") == []


def test_popping_none_does_nothing(e: Plain) -> None:
    e("ZADD z 1 a")
    did = e.did("ZPOPMIN z 0")
    assert did.reply == []
    assert did.nothing()


def test_removing_ranges(e: Plain) -> None:
    e("ZADD z 1 a 2 b 3 c 4 d 5 e")
    did = e.did("ZREMRANGEBYSCORE z (1 3")
    assert (did.reply, did.events, did.dirty) == (2, ["z zremrangebyscore z"], 2)
    assert e.did("ZREMRANGEBYSCORE z 10 20").nothing()
    did = e.did("ZREMRANGEBYRANK z 1 -1")
    assert (did.reply, did.events) == (2, ["z zremrangebyrank z"])
    assert e.did("ZREMRANGEBYRANK z 0 0").events == ["z zremrangebyrank z", "g del z"]
    assert (e("ZREMRANGEBYRANK missing 0 -1"), e("ZREMRANGEBYSCORE missing 0 1")) == (0, 0)
