"""XCLAIM and XAUTOCLAIM (base §7.13)."""

from __future__ import annotations

import pytest

from .support import BAD_ID, LLMAX, NIL_ARRAY, SYNTAX, WRONG_TYPE, Engine, arity, entry, ids_of, spelled

NO_GROUP = "NOGROUP No such key 's' or consumer group 'nog'"


def invalid(what: str, command: str = "XCLAIM") -> str:
    return f"ERR Invalid {what} for {command}"


def unrecognized(word: str) -> str:
    return f"ERR Unrecognized XCLAIM option '{word}'"


@pytest.fixture
def delivered(e: Engine) -> Engine:
    """1-0 to 4-0 pending with c of group g; 5-0 not delivered."""
    e.stream(5, "g")
    e.deliver("g", "c", "COUNT", 4)
    return e


# XCLAIM


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("s g d 0", arity("xclaim")),
        ("s nog d x y", NO_GROUP),
        ("none g d x y", NO_GROUP.replace("'s'", "'none'").replace("nog", "g")),
        ("str g d x y", WRONG_TYPE),
        ("s g d x 1-0", invalid("min-idle-time argument")),
        ("s g d 0 1-0 IDLE x", invalid("IDLE option argument")),
        ("s g d 0 1-0 TIME x", invalid("TIME option argument")),
        ("s g d 0 1-0 RETRYCOUNT x", invalid("RETRYCOUNT option argument")),
        ("s g d 0 1-0 LASTID x", BAD_ID),
        ("s g d 0 1-0 NOSUCH", unrecognized("NOSUCH")),
        ("s g d 0 1-0 FORCE 2-0", unrecognized("2-0")),  # an id after an option
        ("s g d 0 1-0 IDLE", unrecognized("IDLE")),
        ("s g d 0 1-0 lastid", unrecognized("lastid")),
        ("s g d 0 x", unrecognized("x")),
        ("s g d 0 1-0 JUSTID IDLE x NOSUCH", invalid("IDLE option argument")),
    ],
)
def test_xclaim_refuses_and_makes_no_consumer(delivered: Engine, words: str, text: str) -> None:
    """Trap: not when an argument is wrong; all before any change."""
    delivered("SET", "str", "x")
    assert delivered.error("XCLAIM", *words.split()) == text
    assert list(delivered.consumers()) == ["c"]
    assert delivered.counts() == {"1-0": 1, "2-0": 1, "3-0": 1, "4-0": 1}


def test_xclaim_moves_entries_in_the_order_of_the_arguments(delivered: Engine) -> None:
    assert delivered("XCLAIM", "s", "g", "d", 0, "3-0", "1-0") == [entry("3-0"), entry("1-0")]
    assert delivered.owners() == {"1-0": "d", "2-0": "c", "3-0": "d", "4-0": "c"}
    assert delivered.counts() == {"1-0": 2, "2-0": 1, "3-0": 2, "4-0": 1}
    assert delivered("XCLAIM", "s", "g", "d", 0, "2-0", "justid") == ["2-0"]
    assert delivered.counts()["2-0"] == 1


def test_zero_ids_with_options_are_accepted(delivered: Engine) -> None:
    assert delivered("XCLAIM", "s", "g", "d", 0, "JUSTID") == []
    assert sorted(delivered.consumers()) == ["c", "d"]  # trap: made even if nothing is claimed


def test_min_idle_is_a_floor(delivered: Engine) -> None:
    delivered("XCLAIM", "s", "g", "c", 0, "1-0", "IDLE", 5000)
    assert delivered("XCLAIM", "s", "g", "d", 5000, "1-0", "2-0", "JUSTID") == ["1-0"]
    assert delivered("XCLAIM", "s", "g", "d", -5, "1-0", "2-0", "JUSTID") == ["1-0", "2-0"]  # negative is 0


@pytest.mark.parametrize(
    ("options", "idle"),
    [
        ("", 0),
        ("IDLE 5000", 5000),  # trap: XPENDING shows it at once
        ("idle 5000 IDLE 7000", 7000),
        ("TIME 0 IDLE 5000", 5000),  # the later option overrides
        ("IDLE -1", 0),
        ("IDLE -5000", 0),  # in the future: now
        ("TIME -1", 0),
        ("TIME -5", 0),
        ("TIME 99999999999999", 0),
    ],
)
def test_the_new_delivery_time(delivered: Engine, options: str, idle: int) -> None:
    delivered("XCLAIM", "s", "g", "c", 0, "1-0", "IDLE", 60_000)
    delivered("XCLAIM", "s", "g", "d", 0, "1-0", *options.split())
    assert delivered.pending()[0][2] == delivered.near(idle)


def test_time_is_absolute(delivered: Engine) -> None:
    delivered("XCLAIM", "s", "g", "d", 0, "1-0", "TIME", 1000)
    assert delivered.full_group()["pending"][0] == ["1-0", "d", 1000, 2]


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ("", 2),
        ("RETRYCOUNT 9", 9),
        ("RETRYCOUNT 0", 0),
        ("RETRYCOUNT -1", 2),
        ("RETRYCOUNT -1 JUSTID", 1),
        ("RETRYCOUNT 9 JUSTID", 9),
        ("JUSTID", 1),
        ("RETRYCOUNT 9 RETRYCOUNT 4", 4),
    ],
)
def test_the_new_delivery_count(delivered: Engine, options: str, count: int) -> None:
    delivered("XCLAIM", "s", "g", "d", 0, "1-0", *options.split())
    assert delivered.counts()["1-0"] == count


def test_claiming_from_oneself_counts_and_resets_the_idle_time(delivered: Engine) -> None:
    """Trap."""
    delivered("XCLAIM", "s", "g", "c", 0, "1-0", "IDLE", 9000)
    delivered("XCLAIM", "s", "g", "c", 0, "1-0")
    assert delivered.pending()[0] == ["1-0", "c", delivered.near(0), 3]


def test_an_id_listed_twice_is_claimed_twice(delivered: Engine) -> None:
    assert ids_of(delivered("XCLAIM", "s", "g", "d", 0, "1-0", "1-0")) == ["1-0", "1-0"]
    assert delivered.counts()["1-0"] == 3


def test_an_id_listed_twice_is_claimed_once_if_min_idle_is_set(delivered: Engine) -> None:
    delivered("XCLAIM", "s", "g", "c", 0, "1-0", "IDLE", 9000)
    assert ids_of(delivered("XCLAIM", "s", "g", "d", 5000, "1-0", "1-0")) == ["1-0"]


def test_a_deleted_message_is_dropped_and_not_answered(delivered: Engine) -> None:
    """Trap: never answered with nil; whatever min-idle."""
    delivered("XDEL", "s", "1-0")
    assert delivered("XCLAIM", "s", "g", "d", LLMAX, "1-0", "2-0") == []
    assert list(delivered.owners()) == ["2-0", "3-0", "4-0"]


def test_force_does_not_revive_deleted_messages(delivered: Engine) -> None:
    """Trap."""
    delivered("XDEL", "s", "5-0")
    assert delivered("XCLAIM", "s", "g", "d", 0, "5-0", "9-9", "FORCE") == []
    assert "5-0" not in delivered.owners()


def test_force_creates_ahead_of_the_group_and_new_reads_deliver_it_again(delivered: Engine) -> None:
    """Trap: last_id stays. A forced entry skips the min-idle test."""
    assert delivered("XCLAIM", "s", "g", "d", 60_000, "5-0", "FORCE") == [entry("5-0")]
    assert delivered.group_info()["last-delivered-id"] == "4-0"
    assert delivered.counts()["5-0"] == 2
    assert delivered.deliver("g", "x") == ["5-0"]
    assert (delivered.owners()["5-0"], delivered.counts()["5-0"]) == ("x", 1)


def test_without_force_an_undelivered_entry_is_skipped(delivered: Engine) -> None:
    assert delivered("XCLAIM", "s", "g", "d", 0, "5-0") == []
    assert "5-0" not in delivered.owners()


def test_lastid_only_moves_forward(delivered: Engine) -> None:
    """Trap."""
    delivered("XCLAIM", "s", "g", "d", 0, "1-0", "LASTID", "2-0")
    assert delivered.group_info()["last-delivered-id"] == "4-0"
    delivered("XCLAIM", "s", "g", "d", 0, "1-0", "LASTID", "7-0")
    assert delivered.group_info()["last-delivered-id"] == "7-0"
    assert delivered("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">") is NIL_ARRAY


# XAUTOCLAIM


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("s g d 0", arity("xautoclaim")),
        ("s g d x 0", invalid("min-idle-time argument", "XAUTOCLAIM")),
        ("s g d 0 x", BAD_ID),
        ("s g d 0 0 COUNT 0", "ERR COUNT must be > 0"),
        ("s g d 0 0 COUNT -1", "ERR COUNT must be > 0"),
        ("s g d 0 0 COUNT x", "ERR COUNT must be > 0"),
        (f"s g d 0 0 COUNT {LLMAX}", "ERR COUNT must be > 0"),
        ("s g d 0 0 COUNT", SYNTAX),
        ("s g d 0 0 NOSUCH", SYNTAX),
        # argument errors come before the type and the group
        ("str g d x 0", invalid("min-idle-time argument", "XAUTOCLAIM")),
        ("none g d 0 0 COUNT 0", "ERR COUNT must be > 0"),
        ("str g d 0 0", WRONG_TYPE),
        ("s nog d 0 0", NO_GROUP),
        ("none g d 0 0", NO_GROUP.replace("'s'", "'none'").replace("nog", "g")),
    ],
)
def test_xautoclaim_refuses_and_makes_no_consumer(delivered: Engine, words: str, text: str) -> None:
    delivered("SET", "str", "x")
    assert delivered.error("XAUTOCLAIM", *words.split()) == text
    assert list(delivered.consumers()) == ["c"]


def test_xautoclaim_walks_by_id_and_tells_where_to_go_on(delivered: Engine) -> None:
    """Trap: the cursor is the inclusive start of the next call."""
    assert delivered("XAUTOCLAIM", "s", "g", "d", 0, "0", "COUNT", 2) == ["3-0", [entry("1-0"), entry("2-0")], []]
    assert delivered("XAUTOCLAIM", "s", "g", "d", 0, "3-0", "COUNT", 2, "JUSTID") == ["0-0", ["3-0", "4-0"], []]
    assert delivered.counts() == {"1-0": 2, "2-0": 2, "3-0": 1, "4-0": 1}
    assert delivered("XAUTOCLAIM", "s", "g", "d", 0, "(3-0", "JUSTID") == ["0-0", ["4-0"], []]


def test_xautoclaim_of_nothing(e: Engine) -> None:
    """Base §5; the consumer is made all the same."""
    e.stream(1, "g")
    assert spelled(e.wire("XAUTOCLAIM", "s", "g", "c", 0, 0)) == "*3 $3 0-0 *0 *0"
    assert list(e.consumers()) == ["c"]


def test_xautoclaim_on_the_wire(delivered: Engine) -> None:
    """Base §5, the example."""
    delivered("XACK", "s", "g", "3-0", "4-0")
    delivered("XDEL", "s", "1-0")
    expected = "*3 $3 0-0 *1 $3 2-0 *1 $3 1-0"
    assert spelled(delivered.wire("XAUTOCLAIM", "s", "g", "c", 0, 0, "JUSTID", protocol=3)) == expected


def test_xautoclaim_looks_at_ten_entries_for_each_it_may_claim(e: Engine) -> None:
    """Trap: COUNT 1 with 20 fresh entries returns the 11th id."""
    e.stream(20, "g")
    e.deliver("g", "c")
    assert e("XAUTOCLAIM", "s", "g", "d", 60_000, "0", "COUNT", 1) == ["11-0", [], []]
    assert e("XAUTOCLAIM", "s", "g", "d", 60_000, "11-0", "COUNT", 1) == ["0-0", [], []]


def test_xautoclaim_has_a_default_count_of_a_hundred(e: Engine) -> None:
    e.stream(102, "g")
    e.deliver("g", "c")
    cursor, claimed, _ = e("XAUTOCLAIM", "s", "g", "d", 0, "0", "JUSTID")
    assert (cursor, len(claimed)) == ("101-0", 100)


def test_deleted_messages_use_count_and_are_reported_once(delivered: Engine) -> None:
    """Trap: reported once, then gone; min-idle is not considered."""
    delivered("XDEL", "s", "1-0", "3-0")
    assert delivered("XAUTOCLAIM", "s", "g", "d", 60_000, "0", "COUNT", 1) == ["2-0", [], ["1-0"]]
    assert delivered("XAUTOCLAIM", "s", "g", "d", 60_000, "0") == ["0-0", [], ["3-0"]]
    assert delivered("XAUTOCLAIM", "s", "g", "d", 60_000, "0") == ["0-0", [], []]
    assert list(delivered.owners()) == ["2-0", "4-0"]


def test_xautoclaim_takes_ones_own_entries_and_minds_min_idle(delivered: Engine) -> None:
    """Trap: JUSTID does not raise the count but resets the idle time."""
    delivered("XCLAIM", "s", "g", "c", 0, "2-0", "IDLE", 9000, "JUSTID")
    assert delivered("XAUTOCLAIM", "s", "g", "c", 5000, "-", "JUSTID") == ["0-0", ["2-0"], []]
    assert delivered.pending()[1] == ["2-0", "c", delivered.near(0), 1]
    assert delivered("XAUTOCLAIM", "s", "g", "c", -1, "0", "JUSTID")[1] == ["1-0", "2-0", "3-0", "4-0"]
