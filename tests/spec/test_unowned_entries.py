"""What the other commands do with entries that XNACK made nobody's (new §3, §5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .support import LLMAX, Engine, entry, ids_of, spelled


@pytest.fixture
def released(e: Engine) -> Engine:
    """Group g of 1-0 to 3-0: 1-0 released with a count of 1, 2-0 and 3-0 held by c1."""
    e.stream(3, "g")
    e.deliver("g", "c1")
    e.nack("FAIL", "1-0")
    return e


# XPENDING


def test_the_summary_counts_released_entries_but_names_nobody(released: Engine) -> None:
    """New §3, row XPENDING key group."""
    released("XACK", "s", "g", "3-0")
    expected = "*4 :2 $3 1-0 $3 2-0 *1 *2 $2 c1 $1 1"
    assert spelled(released.wire("XPENDING", "s", "g")) == expected
    assert spelled(released.wire("XPENDING", "s", "g", protocol=3)) == expected


def test_the_summary_of_released_entries_only_has_an_empty_list(released: Engine) -> None:
    """New §3, row XPENDING key group: an empty array, not null."""
    released("XACK", "s", "g", "2-0", "3-0")
    assert spelled(released.wire("XPENDING", "s", "g")) == "*4 :1 $3 1-0 $3 1-0 *0"
    assert spelled(released.wire("XPENDING", "s", "g", protocol=3)) == "*4 :1 $3 1-0 $3 1-0 *0"


def test_the_summary_of_nothing_has_nulls(released: Engine) -> None:
    """New §3, the wire examples."""
    released("XACK", "s", "g", "1-0", "2-0", "3-0")
    assert spelled(released.wire("XPENDING", "s", "g")) == "*4 :0 $-1 $-1 *-1"
    assert spelled(released.wire("XPENDING", "s", "g", protocol=3)) == "*4 :0 _ _ _"


def test_a_released_entry_is_listed_without_consumer_and_idle_minus_one(released: Engine) -> None:
    """New §3, row XPENDING range."""
    released("XACK", "s", "g", "2-0", "3-0")
    assert spelled(released.wire("XPENDING", "s", "g", "-", "+", 10)) == "*1 *4 $3 1-0 $0  :-1 :1"


def test_the_range_is_in_the_order_of_ids_not_of_release(released: Engine) -> None:
    released.nack("FAIL", "3-0", "2-0")
    assert ids_of(released.pending()) == ["1-0", "2-0", "3-0"]


@pytest.mark.parametrize("idle", [60_000, LLMAX])
def test_the_idle_filter_lets_released_entries_pass(released: Engine, idle: int) -> None:
    """New §3, row XPENDING IDLE."""
    assert released("XPENDING", "s", "g", "IDLE", idle, "-", "+", 10) == [["1-0", "", -1, 1]]


def test_nobody_is_not_the_consumer_with_the_empty_name(released: Engine) -> None:
    """New §3, row XPENDING consumer."""
    assert released("XPENDING", "s", "g", "-", "+", 10, "") == []
    released("XCLAIM", "s", "g", "", 0, "2-0", "IDLE", 7000)
    assert released("XPENDING", "s", "g", "-", "+", 10, "") == [["2-0", "", released.near(7000), 2]]
    assert [item[:2] for item in released.pending()] == [["1-0", ""], ["2-0", ""], ["3-0", "c1"]]
    assert released.pending()[0][2] == -1


def test_the_list_of_a_consumer_has_no_released_entries(released: Engine) -> None:
    assert ids_of(released("XPENDING", "s", "g", "-", "+", 10, "c1")) == ["2-0", "3-0"]


# XINFO


def test_xinfo_full_shows_released_entries_with_time_zero(released: Engine) -> None:
    """New §3, row XINFO STREAM FULL: third item is 0, not -1."""
    group = released.full_group()
    assert list(group) == [
        "name",
        "last-delivered-id",
        "entries-read",
        "lag",
        "pel-count",
        "nacked-count",
        "pending",
        "consumers",
    ]
    assert (group["pel-count"], group["nacked-count"]) == (3, 1)
    assert group["pending"][0] == ["1-0", "", 0, 1]
    (consumer,) = group["consumers"]
    assert list(consumer) == ["name", "seen-time", "active-time", "pel-count", "pending"]
    assert consumer["pel-count"] == 2
    assert ids_of(consumer["pending"]) == ["2-0", "3-0"]


def test_xinfo_full_on_the_wire(released: Engine) -> None:
    """New §3, the wire example of XINFO STREAM FULL."""
    released("XCLAIM", "s", "g", "c1", 0, "2-0", "TIME", 5000, "RETRYCOUNT", 1)
    released("XACK", "s", "g", "3-0")
    for protocol, group, consumer in ((2, "*16", "*10"), (3, "%8", "%5")):
        text = spelled(released.wire("XINFO", "STREAM", "s", "FULL", protocol=protocol))
        start = f"$6 groups *1 {group} $4 name $1 g $17 last-delivered-id $3 3-0 $12 entries-read :3 $3 lag :0 "
        start += "$9 pel-count :2 $12 nacked-count :1 $7 pending *2 *4 $3 1-0 $0  :0 :1 *4 $3 2-0 $2 c1 :5000 :1 "
        start += f"$9 consumers *1 {consumer} $4 name $2 c1 $9 seen-time :"
        assert start in text
        assert text.endswith("$9 pel-count :1 $7 pending *1 *3 $3 2-0 :5000 :1")


def test_xinfo_groups_counts_released_entries_as_pending(released: Engine) -> None:
    """New §3, row XINFO GROUPS: six fields, no nacked-count."""
    group = released.group_info()
    assert list(group) == ["name", "consumers", "pending", "last-delivered-id", "entries-read", "lag"]
    assert (group["pending"], group["consumers"]) == (3, 1)


def test_xinfo_consumers_knows_no_released_entries(released: Engine) -> None:
    """New §3, row XINFO CONSUMERS: no pseudo consumer."""
    assert {name: it["pending"] for name, it in released.consumers().items()} == {"c1": 2}


# Claiming


@pytest.mark.parametrize("min_idle", [0, 1_000_000, LLMAX])
def test_xclaim_takes_a_released_entry_whatever_the_min_idle(released: Engine, min_idle: int) -> None:
    """New §3, row XCLAIM."""
    assert released("XCLAIM", "s", "g", "c2", min_idle, "1-0") == [entry("1-0")]
    assert released.pending()[0] == ["1-0", "c2", released.near(0), 2]
    assert released.full_group()["nacked-count"] == 0


def test_xclaim_gives_a_released_entry_the_time_and_count_it_is_told(released: Engine) -> None:
    released("XCLAIM", "s", "g", "c2", 0, "1-0", "IDLE", 9000, "RETRYCOUNT", 6)
    assert released.pending()[0] == ["1-0", "c2", released.near(9000), 6]


def test_xautoclaim_takes_released_entries_whatever_the_min_idle(released: Engine) -> None:
    """New §3, row XAUTOCLAIM: walking by id."""
    released.nack("FAIL", "3-0")
    released.nack("FAIL", "1-0")
    assert released("XAUTOCLAIM", "s", "g", "c2", LLMAX, "0", "JUSTID") == ["0-0", ["1-0", "3-0"], []]
    assert released.owners() == {"1-0": "c2", "2-0": "c1", "3-0": "c2"}


def test_xclaim_drops_a_released_entry_whose_message_is_gone(released: Engine) -> None:
    """New §3, row XCLAIM / XAUTOCLAIM on a ghost: XCLAIM replies nothing for it."""
    released("XDEL", "s", "1-0")
    assert released("XCLAIM", "s", "g", "c2", LLMAX, "1-0") == []
    assert released.owners() == {"2-0": "c1", "3-0": "c1"}


def test_xautoclaim_drops_and_reports_a_released_entry_whose_message_is_gone(released: Engine) -> None:
    released("XDEL", "s", "1-0")
    assert released("XAUTOCLAIM", "s", "g", "c2", LLMAX, "0") == ["0-0", [], ["1-0"]]
    assert released.owners() == {"2-0": "c1", "3-0": "c1"}


# Settling


def test_a_released_entry_is_acknowledged_like_any_other(released: Engine) -> None:
    """New §3, row XACK / XACKDEL."""
    released.nack("FAIL", "2-0")
    assert released("XACK", "s", "g", "1-0") == 1
    assert released("XACKDEL", "s", "g", "IDS", 1, "2-0") == [1]
    assert released.owners() == {"3-0": "c1"}
    assert released.live() == ["1-0", "3-0"]


# Reading


def test_history_never_shows_released_entries(released: Engine) -> None:
    """New §3, row XREADGROUP with an explicit ID."""
    assert ids_of(released.history("g", "c1")) == ["2-0", "3-0"]


def test_new_entries_are_read_past_released_ones(released: Engine) -> None:
    """New §3, row XREADGROUP > without CLAIM."""
    assert released.deliver("g", "c2") == []
    released.fill(4, 4)
    assert released.deliver("g", "c2") == ["4-0"]
    assert released.owners()["1-0"] == ""


def test_a_released_entry_ahead_of_the_group_is_delivered_as_new(released: Engine) -> None:
    """New §3, row XREADGROUP > without CLAIM: the exception."""
    released("XGROUP", "SETID", "s", "g", "0")
    released("XNACK", "s", "g", "FATAL", "IDS", 1, "1-0")
    assert released.deliver("g", "c2", "COUNT", 1) == ["1-0"]
    assert released.pending()[0] == ["1-0", "c2", released.near(0), 1]
    assert released.full_group()["nacked-count"] == 0


# Groups and deletion


def test_deleting_a_consumer_spares_released_entries(released: Engine) -> None:
    """New §3, row XGROUP DELCONSUMER."""
    assert released("XGROUP", "DELCONSUMER", "s", "g", "c1") == 2
    assert released.owners() == {"1-0": ""}


def test_destroying_a_group_removes_released_entries(released: Engine) -> None:
    """New §3, row XGROUP DESTROY: nothing of them is left in a group of the same name."""
    assert released("XGROUP", "DESTROY", "s", "g") == 1
    released("XGROUP", "CREATE", "s", "g", "$")
    assert released.pending() == []
    assert released("XDELEX", "s", "ACKED", "IDS", 1, "1-0") == [1]


@pytest.mark.parametrize("words", ["XGROUP SETID s g 0", "XGROUP SETID s g $", "XSETID s 9-0"])
def test_moving_an_id_does_not_touch_pending_entries(released: Engine, words: str) -> None:
    """New §3, row XGROUP SETID, XSETID."""
    released(*words.split())
    assert released.owners() == {"1-0": "", "2-0": "c1", "3-0": "c1"}
    assert released.full_group()["nacked-count"] == 1


@pytest.mark.parametrize("words", ["XDEL s 1-0", "XTRIM s MAXLEN 2", "XDELEX s KEEPREF IDS 1 1-0"])
def test_keeping_references_leaves_a_released_ghost(released: Engine, words: str) -> None:
    """New §3, row XDEL / XTRIM / XDELEX KEEPREF; §5, column ghost."""
    released(*words.split())
    assert released.live() == ["2-0", "3-0"]
    assert released.owners()["1-0"] == ""
    assert ids_of(released.claim("g", "c2", 0)) == ["2-0", "3-0"]
    assert released.nack("FAIL", "1-0") == 1
    assert released("XACK", "s", "g", "1-0") == 1


@pytest.mark.parametrize("words", ["XDELEX s DELREF IDS 1 1-0", "XTRIM s MAXLEN 2 DELREF"])
def test_dropping_references_drops_released_ones_too(released: Engine, words: str) -> None:
    """New §3, row DELREF."""
    released(*words.split())
    assert released.owners() == {"2-0": "c1", "3-0": "c1"}
    assert released.full_group()["nacked-count"] == 0


def test_a_released_entry_counts_as_a_reference(released: Engine) -> None:
    """New §3, row DELREF (ACKED treats them as references)."""
    assert released("XDELEX", "s", "ACKED", "IDS", 1, "1-0") == [2]
    assert released("XTRIM", "s", "MAXLEN", 0, "ACKED") == 0
    assert released.live() == ["1-0", "2-0", "3-0"]


def rename(e: Engine) -> str:
    e("RENAME", "s", "t")
    return "t"


def copy(e: Engine) -> str:
    assert e("COPY", "s", "t") == 1
    return "t"


def copy_and_delete(e: Engine) -> str:
    e("COPY", "s", "t")
    e("DEL", "s")
    return "t"


@pytest.mark.parametrize("move", [rename, copy, copy_and_delete])
def test_copies_keep_counts_the_zone_and_its_order(released: Engine, move: Callable[[Engine], str]) -> None:
    """New §3, last row; §1.3: equal times keep their order too."""
    released.fill(4, 6)
    released.deliver("g", "c2")
    for entry_id in ("6-0", "4-0", "5-0"):
        released("XCLAIM", "s", "g", "c2", 0, entry_id, "TIME", 1000)
    released("XNACK", "s", "g", "FATAL", "IDS", 2, "3-0", "2-0")
    key = move(released)
    assert released.counts(key=key) == {"1-0": 1, "2-0": LLMAX, "3-0": LLMAX, "4-0": 2, "5-0": 2, "6-0": 2}
    assert released.full_group(key=key)["nacked-count"] == 3
    assert ids_of(released.claim("g", "c3", 0, key=key)) == ["1-0", "3-0", "2-0", "6-0", "4-0", "5-0"]


def test_a_copy_is_independent(released: Engine) -> None:
    copy(released)
    released("XACK", "s", "g", "1-0", "2-0")
    released("XDEL", "t", "3-0")
    assert released.owners(key="t") == {"1-0": "", "2-0": "c1", "3-0": "c1"}
    assert released.live() == ["1-0", "2-0", "3-0"]
    assert released("XDELEX", "t", "ACKED", "IDS", 1, "2-0") == [2]


# Who may return or change what (new §5)


def setup_kinds(e: Engine) -> None:
    """1-0 held by c, 2-0 released, 3-0 a ghost of c, 4-0 never delivered."""
    e.stream(3, "g")
    e.deliver("g", "c")
    e.nack("FAIL", "2-0")
    e("XDEL", "s", "3-0")
    e.fill(4, 4)
    e.wait(10)


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        ("XREADGROUP GROUP g d STREAMS s >", ["4-0"]),
        ("XREADGROUP GROUP g d CLAIM 5 STREAMS s >", ["2-0", "1-0", "4-0"]),
        ("XREADGROUP GROUP g c STREAMS s 0", ["1-0", "3-0"]),
        ("XREADGROUP GROUP g d STREAMS s 0", []),
        ("XCLAIM s g d 5 1-0 2-0 3-0 4-0", ["1-0", "2-0"]),
        ("XCLAIM s g d 1000 1-0 2-0 3-0 4-0", ["2-0"]),
        ("XCLAIM s g d 5 1-0 2-0 3-0 4-0 FORCE", ["1-0", "2-0", "4-0"]),
        ("XAUTOCLAIM s g d 1000 0", ["2-0"]),
    ],
)
def test_each_command_returns_its_kinds_of_entries(e: Engine, words: str, reply: list[str]) -> None:
    setup_kinds(e)
    got = e(*words.split())
    if words.startswith("XREADGROUP"):
        got = got[0][1]
    elif words.startswith("XAUTOCLAIM"):
        got = got[1]
    assert ids_of(got) == reply


@pytest.mark.parametrize(
    ("words", "ghost_remains"),
    [
        ("XREADGROUP GROUP g d CLAIM 5 STREAMS s >", True),
        ("XREADGROUP GROUP g c STREAMS s 0", True),
        ("XCLAIM s g d 5 3-0", False),
        ("XAUTOCLAIM s g d 1000 0", False),
        ("XNACK s g FAIL IDS 1 3-0", True),
        ("XACK s g 3-0", False),
    ],
)
def test_each_command_keeps_or_removes_a_ghost(e: Engine, words: str, ghost_remains: bool) -> None:
    setup_kinds(e)
    e(*words.split())
    assert ("3-0" in e.owners()) is ghost_remains


def test_a_ghost_in_history_has_a_null_and_does_not_change(e: Engine) -> None:
    """New §5, row XREADGROUP id."""
    setup_kinds(e)
    e("XACK", "s", "g", "1-0")
    read = ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", "0")
    assert spelled(e.wire(*read)) == "*1 *2 $1 s *1 *2 $3 3-0 *-1"
    assert spelled(e.wire(*read, protocol=3)) == "%1 $1 s *1 *2 $3 3-0 _"
    assert e.counts()["3-0"] == 1


@pytest.mark.parametrize(("entry_id", "nacked", "acked"), [("1-0", 1, 1), ("2-0", 1, 1), ("3-0", 1, 1), ("4-0", 0, 0)])
def test_settling_counts_pending_entries_of_every_kind(e: Engine, entry_id: str, nacked: int, acked: int) -> None:
    """New §5, rows XNACK and XACK."""
    setup_kinds(e)
    assert e.nack("FAIL", entry_id) == nacked
    assert e("XACK", "s", "g", entry_id) == acked
