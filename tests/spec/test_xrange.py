"""XRANGE and XREVRANGE (base §7.3, §7.4)."""

from __future__ import annotations

import pytest

from .support import BAD_ID, NIL_ARRAY, NOT_AN_INTEGER, SYNTAX, TOP_ID, WRONG_TYPE, Engine, arity, ids_of, spelled


def test_a_range_has_both_its_ends(e: Engine) -> None:
    e.stream(5)
    assert ids_of(e("XRANGE", "s", "2-0", "4-0")) == ["2-0", "3-0", "4-0"]
    assert ids_of(e("XREVRANGE", "s", "4-0", "2-0")) == ["4-0", "3-0", "2-0"]
    assert ids_of(e("XRANGE", "s", "(2-0", "(4-0")) == ["3-0"]
    assert ids_of(e("XREVRANGE", "s", "(4-0", "(2-0")) == ["3-0"]


def test_a_range_whose_start_is_behind_its_end_is_empty(e: Engine) -> None:
    e.stream(5)
    assert e("XRANGE", "s", "4-0", "2-0") == []
    assert e("XREVRANGE", "s", "2-0", "4-0") == []


def test_a_short_end_covers_its_whole_millisecond(e: Engine) -> None:
    """Base §7.3, trap: incomplete end = U64 seq."""
    for entry_id in ("1-0", "1-1", "2-0", "2-9", "3-0"):
        e("XADD", "s", entry_id, "f", "v")
    assert ids_of(e("XRANGE", "s", "1", "2")) == ["1-0", "1-1", "2-0", "2-9"]
    assert ids_of(e("XREVRANGE", "s", "2", "2")) == ["2-9", "2-0"]


def test_deleted_entries_do_not_consume_count(e: Engine) -> None:
    """Base §7.3, trap."""
    e.stream(5)
    e("XDEL", "s", "1-0", "2-0", "4-0")
    assert ids_of(e("XRANGE", "s", "-", "+", "COUNT", 2)) == ["3-0", "5-0"]
    assert ids_of(e("XREVRANGE", "s", "+", "-", "COUNT", 2)) == ["5-0", "3-0"]


@pytest.mark.parametrize("command", ["XRANGE s - +", "XREVRANGE s + -"])
@pytest.mark.parametrize("count", [0, -1])
def test_a_count_of_nothing_is_a_null_array_if_the_key_exists(e: Engine, command: str, count: int) -> None:
    """Base §7.3, trap: COUNT 0 -> nilarr, not []; a missing key -> []."""
    assert e(*command.split(), "COUNT", count) == []
    e.stream(1)
    assert e(*command.split(), "COUNT", count) is NIL_ARRAY
    assert spelled(e.wire(*command.split(), "COUNT", count, protocol=3)) == "_"


def test_the_last_count_wins(e: Engine) -> None:
    e.stream(5)
    assert ids_of(e("XRANGE", "s", "-", "+", "COUNT", 1, "count", 3)) == ["1-0", "2-0", "3-0"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("XRANGE k x +", BAD_ID),
        ("XRANGE k - x", BAD_ID),
        ("XRANGE k - + COUNT", SYNTAX),
        ("XRANGE k - + COUNT x", NOT_AN_INTEGER),
        ("XRANGE k - + LIMIT 1", SYNTAX),
        ("XRANGE k - + COUNT 1 COUNT", SYNTAX),
        ("XREVRANGE k + - 1", SYNTAX),
        ("XRANGE k -", arity("xrange")),
        ("XREVRANGE k +", arity("xrevrange")),
        # argument 3 of XREVRANGE is the start and is checked first
        (f"XREVRANGE k x ({TOP_ID}", "ERR invalid start ID for the interval"),
        ("XREVRANGE k (0-0 x", BAD_ID),
        (f"XRANGE k ({TOP_ID} x", "ERR invalid start ID for the interval"),
        # ids are checked before the options
        ("XRANGE k x + LIMIT 1", BAD_ID),
        ("XRANGE k - (0-0 COUNT x", "ERR invalid end ID for the interval"),
    ],
)
@pytest.mark.parametrize("kind", ["missing", "string", "stream"])
def test_bad_arguments_are_reported_whatever_the_key_holds(e: Engine, words: str, text: str, kind: str) -> None:
    """Base §7.3, trap: bad ids are reported even if the key is missing or of another type."""
    if kind == "string":
        e("SET", "k", "x")
    if kind == "stream":
        e.stream(1, key="k")
    assert e.error(*words.split()) == text


def test_a_range_of_another_type_is_refused(e: Engine) -> None:
    e("SET", "k", "x")
    assert e.error("XRANGE", "k", "-", "+") == WRONG_TYPE
    assert e.error("XREVRANGE", "k", "+", "-", "COUNT", 0) == WRONG_TYPE


def test_entries_are_arrays_in_both_protocols(e: Engine) -> None:
    """Base §7.3, trap: entries are not maps in RESP3."""
    e("XADD", "s", "1-1", "a", "1", "b", "2")
    expected = "*1 *2 $3 1-1 *4 $1 a $1 1 $1 b $1 2"
    assert spelled(e.wire("XRANGE", "s", "-", "+")) == expected
    assert spelled(e.wire("XRANGE", "s", "-", "+", protocol=3)) == expected
