"""XSETID (base §7.16)."""

from __future__ import annotations

import pytest

from .support import BAD_ID, ID_TOO_SMALL, NOT_AN_INTEGER, SYNTAX, WRONG_TYPE, Engine, arity

BELOW_GIVEN = "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id"
BELOW_DELETED = "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"
BELOW_TOP = "ERR The ID specified in XSETID is smaller than the target stream top item"
BELOW_LENGTH = "ERR The entries_added specified in XSETID is smaller than the target stream length"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("x", BAD_ID),
        ("-", BAD_ID),
        ("$", BAD_ID),
        ("9-0 ENTRIESADDED x", NOT_AN_INTEGER),
        ("9-0 ENTRIESADDED -1", "ERR entries_added must be positive"),
        ("9-0 MAXDELETEDID x", BAD_ID),
        ("9-0 MAXDELETEDID 9-1", BELOW_GIVEN),
        ("9-0 ENTRIESADDED", SYNTAX),
        ("9-0 MAXDELETEDID", SYNTAX),
        ("9-0 NOSUCH 1", SYNTAX),
        ("9-0 5", SYNTAX),
        # left to right
        ("x ENTRIESADDED x", BAD_ID),
        ("9-0 ENTRIESADDED x MAXDELETEDID x", NOT_AN_INTEGER),
        ("9-0 MAXDELETEDID 9-1 ENTRIESADDED x", BELOW_GIVEN),
    ],
)
@pytest.mark.parametrize("kind", ["missing", "string", "stream"])
def test_bad_words_are_refused_before_the_key_is_looked_at(e: Engine, words: str, text: str, kind: str) -> None:
    if kind == "string":
        e("SET", "k", "x")
    if kind == "stream":
        e.stream(1, key="k")
    assert e.error("XSETID", "k", *words.split()) == text


def test_the_key_must_hold_a_stream(e: Engine) -> None:
    assert e.error("XSETID", "s", "1-0") == "ERR no such key"
    e("SET", "str", "x")
    assert e.error("XSETID", "str", "1-0") == WRONG_TYPE
    assert e.error("XSETID", "s") == arity("xsetid")


def test_the_id_must_not_be_below_what_the_stream_has_seen(e: Engine) -> None:
    e.stream(5)
    e("XDEL", "s", "4-0", "5-0")
    assert e.error("XSETID", "s", "4-9") == BELOW_DELETED
    assert e("XSETID", "s", "5-0") == "OK"
    e("XADD", "s", "6-0", "f", "v")
    assert e.error("XSETID", "s", "5-9") == BELOW_TOP
    assert e.error("XSETID", "s", "6-0", "ENTRIESADDED", 3) == BELOW_LENGTH
    assert e.error("XSETID", "s", "5-9", "ENTRIESADDED", 3) == BELOW_TOP
    assert e.info()["last-generated-id"] == "6-0"
    assert e("XSETID", "s", "6-0", "ENTRIESADDED", 4) == "OK"


def test_it_sets_what_is_given_and_keeps_the_rest(e: Engine) -> None:
    e.stream(3)
    assert e("XSETID", "s", "9-0") == "OK"
    info = e.info()
    assert (info["last-generated-id"], info["entries-added"], info["max-deleted-entry-id"]) == ("9-0", 3, "0-0")
    assert e("XSETID", "s", "9-1", "maxdeletedid", "8-0", "entriesadded", 100) == "OK"
    info = e.info()
    assert (info["last-generated-id"], info["entries-added"], info["max-deleted-entry-id"]) == ("9-1", 100, "8-0")
    assert e.error("XADD", "s", "9-1", "f", "v") == ID_TOO_SMALL


def test_the_last_id_may_go_down_on_an_empty_stream(e: Engine) -> None:
    """Base §7.16, trap."""
    e("XADD", "s", "MAXLEN", 0, "9-0", "f", "v")
    assert e("XSETID", "s", "2-0") == "OK"
    assert e("XADD", "s", "3-0", "f", "v") == "3-0"


def test_a_highest_deleted_id_of_zero_changes_nothing(e: Engine) -> None:
    """Base §7.16, trap; another value may lower it."""
    e.stream(3)
    e("XDEL", "s", "2-0")
    e("XSETID", "s", "3-0", "MAXDELETEDID", "0-0")
    assert e.info()["max-deleted-entry-id"] == "2-0"
    e("XSETID", "s", "3-0", "MAXDELETEDID", "1-0")
    assert e.info()["max-deleted-entry-id"] == "1-0"


def test_it_wakes_nobody(e: Engine) -> None:
    """Base §7.16, trap."""
    e.stream(1)
    reader = e.block("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
    e("XSETID", "s", "9-0")
    assert reader.is_waiting()
