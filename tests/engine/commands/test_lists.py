from __future__ import annotations

import pytest

from millstream.engine.outcome import NIL_ARRAY, OK
from tests.engine.commands.plain import Plain

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
NOT_AN_INTEGER = "ERR value is not an integer or out of range"
NOT_POSITIVE = "ERR value is out of range, must be positive"


def _all(e: Plain) -> bytes:
    reply = e("LRANGE l 0 -1")
    assert isinstance(reply, list)
    return b"".join(reply)  # type: ignore[arg-type]


def test_pushing_answers_the_length(e: Plain) -> None:
    did = e.did("LPUSH l a b")
    assert (did.reply, did.log, did.events, did.dirty) == (2, ["LPUSH l a b"], ["n new l", "l lpush l"], 2)
    assert did.ready == ["l"]
    assert e("RPUSH l c d") == 4
    assert _all(e) == b"bacd"


def test_pushx_needs_a_list(e: Plain) -> None:
    assert e.did("LPUSHX l a").nothing()
    assert e.did("RPUSHX l a").nothing()
    e("RPUSH l a")
    assert e("LPUSHX l x y") == 3
    assert e.did("RPUSHX l z").events == ["l rpush l"]
    assert _all(e) == b"yxaz"


def test_popping_takes_from_its_end(e: Plain) -> None:
    e("RPUSH l a b c d e f")
    did = e.did("LPOP l")
    assert (did.reply, did.log, did.events, did.dirty) == (b"a", ["LPOP l"], ["l lpop l"], 1)
    assert e("RPOP l") == b"f"
    assert e("LPOP l 2") == [b"b", b"c"]
    did = e.did("RPOP l 9")
    assert (did.reply, did.events, did.dirty) == ([b"e", b"d"], ["l rpop l", "g del l"], 2)
    assert e("EXISTS l") == 0


def test_popping_nothing(e: Plain) -> None:
    assert e("LPOP missing") is None
    assert e("LPOP missing 2") is NIL_ARRAY
    assert e("RPOP missing 0") is NIL_ARRAY
    e("RPUSH l a")
    did = e.did("LPOP l 0")
    assert did.reply == []
    assert did.nothing()


@pytest.mark.parametrize(
    ("start", "stop", "part"),
    [
        (0, -1, b"abcde"),
        (1, 2, b"bc"),
        (-2, -1, b"de"),
        (3, 1, b""),
        (-100, 100, b"abcde"),
        (5, 9, b""),
        (4, 9, b"e"),
        (0, -6, b""),
        (3, 3, b"d"),
    ],
)
def test_lrange_and_ltrim_agree(e: Plain, start: int, stop: int, part: bytes) -> None:
    e("RPUSH l a b c d e")
    assert b"".join(e(f"LRANGE l {start} {stop}")) == part  # type: ignore[arg-type]
    did = e.did(f"LTRIM l {start} {stop}")
    assert did.reply == OK
    assert did.dirty == 5 - len(part)
    assert did.events == ["l ltrim l"] + ["g del l"] * (not part)
    assert did.log == [f"LTRIM l {start} {stop}"] * (len(part) < 5)
    assert _all(e) == part


def test_lindex_counts_from_both_ends(e: Plain) -> None:
    e("RPUSH l a b c")
    assert [e(f"LINDEX l {index}") for index in (0, 2, -1, -3, 3, -4)] == [b"a", b"c", b"c", b"a", None, None]
    assert e("LINDEX missing x") is None
    assert (e("LLEN l"), e("LLEN missing")) == (3, 0)


@pytest.mark.parametrize(
    ("count", "left", "removed"), [(2, b"bbaa", 2), (-2, b"abab", 2), (0, b"bb", 4), (9, b"bb", 4)]
)
def test_lrem_removes_from_the_end_it_is_told(e: Plain, count: int, left: bytes, removed: int) -> None:
    e("RPUSH l a b a b a a")
    did = e.did(f"LREM l {count} a")
    assert (did.reply, did.events, did.dirty) == (removed, ["l lrem l"], removed)
    assert _all(e) == left


def test_lrem_of_all_removes_the_list(e: Plain) -> None:
    e("RPUSH l a a")
    assert e.did("LREM l 0 x").nothing()
    assert _all(e) == b"aa"
    assert e.did("LREM l -2 a").events == ["l lrem l", "g del l"]
    assert e.did("LREM l 0 a").nothing()


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("LPOP l -1", NOT_POSITIVE),
        ("LPOP k x", NOT_POSITIVE),
        ("LPOP l 1 2", "ERR wrong number of arguments for 'lpop' command"),
        ("RPOP l 1 2", "ERR wrong number of arguments for 'rpop' command"),
        ("LRANGE k x 1", NOT_AN_INTEGER),
        ("LTRIM k 0 x", NOT_AN_INTEGER),
        ("LINDEX l x", NOT_AN_INTEGER),
        ("LINDEX k x", WRONG_TYPE),
        ("LREM k x a", NOT_AN_INTEGER),
        (
            f"LREM missing {-(2**63)} a",
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ),
        ("LPUSH k a", WRONG_TYPE),
        ("RPUSHX k a", WRONG_TYPE),
        ("LPOP k", WRONG_TYPE),
        ("LLEN k", WRONG_TYPE),
        ("LRANGE k 0 1", WRONG_TYPE),
        ("LTRIM k 0 1", WRONG_TYPE),
        ("LREM k 0 a", WRONG_TYPE),
    ],
)
def test_a_list_command_is_refused_and_changes_nothing(e: Plain, command: str, error: str) -> None:
    e("RPUSH l a b")
    e("SET k v")
    assert e.error(command) == error
