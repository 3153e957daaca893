"""XREAD (base §7.8)."""

from __future__ import annotations

import pytest

from .support import BAD_ID, LLMAX, NIL_ARRAY, NOT_AN_INTEGER, SYNTAX, WRONG_TYPE, Engine, arity, entry, ids_of, spelled

UNBALANCED = "ERR Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be specified."


def only_xreadgroup(option: str) -> str:
    return f"ERR The {option} option is only supported by XREADGROUP. You called XREAD instead."


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("STREAMS s", arity("xread")),
        ("BLOCK x STREAMS s 0", "ERR timeout is not an integer or out of range"),
        ("BLOCK -1 STREAMS s 0", "ERR timeout is negative"),
        (f"BLOCK {LLMAX} STREAMS s 0", "ERR timeout is out of range"),
        ("COUNT x STREAMS s 0", NOT_AN_INTEGER),
        ("GROUP g c STREAMS s 0", only_xreadgroup("GROUP")),
        ("NOACK STREAMS s 0", only_xreadgroup("NOACK")),
        ("CLAIM 0 STREAMS s 0", only_xreadgroup("CLAIM")),
        ("NOSUCH 1 STREAMS s 0", SYNTAX),
        ("COUNT 1 BLOCK", SYNTAX),
        ("COUNT 1 GROUP g", SYNTAX),
        ("COUNT 1 STREAMS", SYNTAX),
        ("COUNT 1 COUNT 1", SYNTAX),
        ("STREAMS s t 0", UNBALANCED),
        ("STREAMS s 0 0", UNBALANCED),
        (
            "STREAMS s >",
            "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
        ),
        ("STREAMS s -", BAD_ID),
        ("STREAMS s *", BAD_ID),
        ("STREAMS s 0 COUNT 1", BAD_ID),  # trap: keys and ids are split by half
        ("STREAMS s str 0 0", WRONG_TYPE),
        ("STREAMS str s x 0", WRONG_TYPE),  # per stream: the type before the id
        ("STREAMS s str x 0", BAD_ID),
        ("BLOCK 0 STREAMS s str $ $", WRONG_TYPE),
    ],
)
def test_xread_refuses(e: Engine, words: str, text: str) -> None:
    e.stream(1)
    e("SET", "str", "x")
    assert e.error("XREAD", *words.split()) == text


def test_xread_answers_with_what_is_above_the_id(e: Engine) -> None:
    e.stream(3)
    assert e("XREAD", "STREAMS", "s", "1-0") == [["s", [entry("2-0"), entry("3-0")]]]
    assert e("XREAD", "STREAMS", "s", "3-0") is NIL_ARRAY
    assert e("XREAD", "STREAMS", "s", "9-0") is NIL_ARRAY  # trap: an id may be in the future
    assert ids_of(e("XREAD", "STREAMS", "s", "1-5")[0][1]) == ["2-0", "3-0"]  # or unknown


def test_the_shapes_on_the_wire(e: Engine) -> None:
    """Base §5, the examples; a map in RESP3, the same key twice appears twice."""
    e("XADD", "s", "1-1", "a", "1")
    e("XADD", "s", "1-2", "a", "1")
    one = "*1 *2 $3 1-1 *2 $1 a $1 1"
    assert spelled(e.wire("XREAD", "COUNT", 1, "STREAMS", "s", 0)) == f"*1 *2 $1 s {one}"
    assert spelled(e.wire("XREAD", "COUNT", 1, "STREAMS", "s", 0, protocol=3)) == f"%1 $1 s {one}"
    twice = ("XREAD", "COUNT", 1, "STREAMS", "s", "s", 0, 0)
    assert spelled(e.wire(*twice)) == f"*2 *2 $1 s {one} *2 $1 s {one}"
    assert spelled(e.wire(*twice, protocol=3)) == f"%2 $1 s {one} $1 s {one}"
    assert spelled(e.wire("XREAD", "STREAMS", "none", 0)) == "*-1"
    assert spelled(e.wire("XREAD", "STREAMS", "none", 0, protocol=3)) == "_"


@pytest.mark.parametrize(("count", "shown"), [(2, 2), (0, 5), (-1, 5), (9, 5)])
def test_count_is_per_stream_and_zero_is_no_limit(e: Engine, count: int, shown: int) -> None:
    e.stream(5, key="a")
    e.stream(5, key="b")
    reply = e("XREAD", "count", count, "STREAMS", "a", "b", 0, 0)
    assert [(key, len(entries)) for key, entries in reply] == [("a", shown), ("b", shown)]


def test_the_last_option_wins(e: Engine) -> None:
    e.stream(5)
    assert len(e("XREAD", "COUNT", 1, "BLOCK", 5, "COUNT", 3, "STREAMS", "s", 0)[0][1]) == 3


def test_streams_without_data_are_left_out(e: Engine) -> None:
    e.stream(1, key="b")
    reply = e("XREAD", "STREAMS", "a", "b", "c", 0, 0, "$")
    assert [key for key, _ in reply] == ["b"]


def test_dollar_never_returns_at_once(e: Engine) -> None:
    e.stream(3)
    assert e("XREAD", "STREAMS", "s", "$") is NIL_ARRAY
    assert e("XREAD", "STREAMS", "none", "$") is NIL_ARRAY


def test_plus_is_the_last_live_entry_whatever_the_count(e: Engine) -> None:
    e.stream(3)
    assert e("XREAD", "COUNT", 5, "STREAMS", "s", "+") == [["s", [entry("3-0")]]]
    e("XDEL", "s", "3-0")
    assert e("XREAD", "STREAMS", "s", "+") == [["s", [entry("2-0")]]]
    e("XDEL", "s", "1-0", "2-0")
    assert e("XREAD", "STREAMS", "s", "+") is NIL_ARRAY
    assert e("XREAD", "STREAMS", "none", "+") is NIL_ARRAY
    e("XGROUP", "CREATE", "t", "g", "$", "MKSTREAM")
    assert e("XREAD", "STREAMS", "t", "+") is NIL_ARRAY


def test_a_deleted_tail_is_no_data(e: Engine) -> None:
    """Trap: has data means a live entry, otherwise a blocked reader gets an empty list."""
    e.stream(3)
    e("XDEL", "s", "3-0")
    assert e("XREAD", "STREAMS", "s", "2-0") is NIL_ARRAY
    reader = e.block("XREAD", "BLOCK", 0, "STREAMS", "s", "2-0")
    e.fill(4, 4)
    assert reader.reply() == [["s", [entry("4-0")]]]
