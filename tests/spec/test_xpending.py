"""XPENDING (base §7.12)."""

from __future__ import annotations

import pytest

from .support import BAD_ID, NOT_AN_INTEGER, SYNTAX, WRONG_TYPE, Engine, arity, ids_of, spelled

NO_GROUP = "NOGROUP No such key 's' or consumer group 'nog'"


@pytest.fixture
def pending(e: Engine) -> Engine:
    """1-0 and 2-0 pending with c, 3-0 with a; idle 3000, 2000 and 1000."""
    e.stream(3, "g")
    e.deliver("g", "c", "COUNT", 2)
    e.deliver("g", "a")
    for entry_id, consumer, idle in (("1-0", "c", 3000), ("2-0", "c", 2000), ("3-0", "a", 1000)):
        e("XCLAIM", "s", "g", consumer, 0, entry_id, "IDLE", idle, "JUSTID")
    return e


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("s", arity("xpending")),
        ("s g -", SYNTAX),
        ("s g - +", SYNTAX),
        ("s g - + 10 c d x y z", SYNTAX),
        ("s g IDLE 5 - +", SYNTAX),  # IDLE needs eight words
        ("s g IDLE x - +", NOT_AN_INTEGER),  # but its value is read first
        ("s g IDLE x - + 10", NOT_AN_INTEGER),
        ("s g - + x", NOT_AN_INTEGER),
        ("s g x + 10", BAD_ID),
        ("s g - x 10", BAD_ID),
        ("s g IDLES 5 - + 10", NOT_AN_INTEGER),  # a misspelt keyword is the start id
        # argument errors come before the type and the group
        ("str g - + x", NOT_AN_INTEGER),
        ("none g x + 10", BAD_ID),
        ("str g", WRONG_TYPE),
        ("none g", NO_GROUP.replace("'s'", "'none'").replace("nog", "g")),
        ("s nog", NO_GROUP),
        ("s nog - + 10", NO_GROUP),
        ("str g - + 10", WRONG_TYPE),
    ],
)
def test_xpending_refuses(pending: Engine, words: str, text: str) -> None:
    pending("SET", "str", "x")
    assert pending.error("XPENDING", *words.split()) == text


def test_the_summary_has_consumers_in_order_and_counts_as_strings(pending: Engine) -> None:
    """Trap: summary counts are strings, everything else integers; consumers without pending are left out."""
    pending("XGROUP", "CREATECONSUMER", "s", "g", "b")
    expected = "*4 :3 $3 1-0 $3 3-0 *2 *2 $1 a $1 1 *2 $1 c $1 2"
    assert spelled(pending.wire("XPENDING", "s", "g")) == expected
    assert spelled(pending.wire("XPENDING", "s", "g", protocol=3)) == expected


def test_the_summary_of_nothing(e: Engine) -> None:
    """Trap: [:0, nil, nil, nilarr]."""
    e.stream(1, "g")
    assert spelled(e.wire("XPENDING", "s", "g")) == "*4 :0 $-1 $-1 *-1"
    assert spelled(e.wire("XPENDING", "s", "g", protocol=3)) == "*4 :0 _ _ _"


def test_the_range_shows_idle_and_count(pending: Engine) -> None:
    assert pending("XPENDING", "s", "g", "-", "+", 10) == [
        ["1-0", "c", pending.near(3000), 1],
        ["2-0", "c", pending.near(2000), 1],
        ["3-0", "a", pending.near(1000), 1],
    ]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("- + 2", ["1-0", "2-0"]),
        ("- + 0", []),
        ("- + -5", []),
        ("(1-0 + 10", ["2-0", "3-0"]),
        ("- (3-0 10", ["1-0", "2-0"]),
        ("2 2 10", ["2-0"]),
        ("+ - 10", []),
        ("- + 10 c", ["1-0", "2-0"]),
        ("- + 1 c", ["1-0"]),
        ("- + 10 nobody", []),
        ("- + 10 c extra", ["1-0", "2-0"]),
        ("IDLE 1500 - + 10", ["1-0", "2-0"]),
        ("idle 2500 - + 10 c", ["1-0"]),
        ("IDLE 1500 - + 1", ["1-0"]),
        ("IDLE 0 - + 10", ["1-0", "2-0", "3-0"]),
        ("IDLE -7 - + 10", ["1-0", "2-0", "3-0"]),
        ("IDLE 999999 - + 10", []),
        ("IDLE 1500 (1-0 + 10 c", ["2-0"]),
    ],
)
def test_a_range_is_filtered(pending: Engine, words: str, shown: list[str]) -> None:
    assert ids_of(pending("XPENDING", "s", "g", *words.split())) == shown


def test_the_idle_filter_does_not_consume_count(pending: Engine) -> None:
    pending("XCLAIM", "s", "g", "c", 0, "1-0", "JUSTID")
    assert ids_of(pending("XPENDING", "s", "g", "IDLE", 500, "-", "+", 1)) == ["2-0"]


def test_an_unknown_consumer_is_not_made(pending: Engine) -> None:
    pending("XPENDING", "s", "g", "-", "+", 10, "nobody")
    assert sorted(pending.consumers()) == ["a", "c"]


def test_deleted_messages_are_listed(pending: Engine) -> None:
    pending("XDEL", "s", "2-0")
    assert ids_of(pending.pending()) == ["1-0", "2-0", "3-0"]


def test_looking_does_not_touch_the_idle_time(pending: Engine) -> None:
    """Trap."""
    first = pending.pending()
    pending.wait(30)
    assert pending.pending()[0][2] == pending.near(3030)
    assert [item[3] for item in pending.pending()] == [item[3] for item in first]
