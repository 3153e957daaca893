"""Stream ids: how they are written, ordered and generated (base §4, new §0.3)."""

from __future__ import annotations

import pytest

from .support import BAD_ID, ID_EXHAUSTED, ID_TOO_SMALL, NIL_ARRAY, TOP_ID, U64_MAX, Engine, engine_only, entry, ids_of

FAR = 99_999_999_999_999  # a millisecond that no clock will reach during a test


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("5", "5-0"),  # base §4.1: a missing seq is 0
        ("5-7", "5-7"),
        ("06-01", "6-1"),  # leading zeros, a leading plus and leading blanks are read as strtoull does
        ("+7-0", "7-0"),
        ("1-+0", "1-0"),
        (" 7-1", "7-1"),
        ("7- 1", "7-1"),
        ("0-1", "0-1"),
        ("0" * 126 + "7", "7-0"),  # new §0.3: 127 bytes still parse
        (str(U64_MAX), f"{U64_MAX}-0"),
        (TOP_ID, TOP_ID),
    ],
)
def test_an_id_is_read_leniently_and_printed_canonically(e: Engine, written: str, printed: str) -> None:
    assert e("XADD", "s", written, "f", "v") == printed
    assert e("XRANGE", "s", "-", "+") == [entry(printed)]
    assert e("XDEL", "s", written) == 1


@pytest.mark.parametrize(
    "written",
    [
        "",
        "-",
        "+",
        "$",
        ">",
        "5-",
        "-5",
        "5-5-5",
        "abc",
        "1-abc",
        "0x1",
        "1-0x1",
        "7 ",
        "7-1 ",
        "1--1",
        "(5",
        "5.0",
        "18446744073709551616",
        "1-18446744073709551616",
        "0" * 127 + "7",
    ],
)
@pytest.mark.parametrize("command", [["XADD", "s", None, "f", "v"], ["XDEL", "s", None], ["XSETID", "s", None]])
def test_what_is_not_an_id_is_refused(e: Engine, command: list[str | None], written: str) -> None:
    """Base §4.1, new §0.3."""
    e("XADD", "s", "1-0", "f", "v")
    assert e.error(*[written if word is None else word for word in command]) == BAD_ID
    assert e.live() == ["1-0"]


@pytest.mark.parametrize(
    "command",
    [
        ["XDEL", "s", "*"],
        ["XRANGE", "s", "*", "+"],
        ["XREAD", "STREAMS", "s", "*"],
        ["XREAD", "STREAMS", "s", "-"],
        ["XREAD", "STREAMS", "s", "(1"],
        ["XTRIM", "s", "MINID", "1-*"],
        ["XTRIM", "s", "MINID", "-"],
        ["XTRIM", "s", "MINID", "$"],
        ["XADD", "s", "MINID", "+", "*", "f", "v"],
        ["XRANGE", "s", "1-*", "+"],
        ["XRANGE", "s", "$", "+"],
        ["XRANGE", "s", ">", "+"],
        ["XRANGE", "s", "(-", "+"],
        ["XRANGE", "s", "-", "(+"],
        ["XRANGE", "s", "(", "+"],
        ["XGROUP", "CREATE", "s", "new", "-"],
        ["XGROUP", "CREATE", "s", "new", "+"],
        ["XGROUP", "CREATE", "s", "new", ">"],
        ["XGROUP", "SETID", "s", "g", ">"],
        ["XGROUP", "SETID", "s", "g", "(1"],
        ["XACK", "s", "g", "-"],
        ["XSETID", "s", "$"],
        ["XSETID", "s", "9-0", "MAXDELETEDID", "-"],
        ["XCLAIM", "s", "g", "c", "0", "1-0", "LASTID", "$"],
        ["XAUTOCLAIM", "s", "g", "c", "0", "$"],
        ["XPENDING", "s", "g", "$", "+", "1"],
        ["XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", "-"],
        ["XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", "*"],
        ["XNACK", "s", "g", "FAIL", "IDS", "1", "-"],
        ["XDELEX", "s", "IDS", "1", "+"],
        ["XACKDEL", "s", "g", "IDS", "1", "*"],
        ["XIDMPRECORD", "s", "p", "i", "*"],
    ],
    ids=" ".join,
)
def test_a_special_token_is_no_id_where_it_has_no_meaning(e: Engine, command: list[str]) -> None:
    """Base §4.1, the table of special tokens."""
    e.stream(1, "g")
    assert e.error(*command) == BAD_ID


def test_minus_and_plus_are_the_ends_of_every_range(e: Engine) -> None:
    """Base §4.1, the table of special tokens: `-` and `+`."""
    e.stream(3, "g")
    e.deliver("g", "c")
    assert ids_of(e("XRANGE", "s", "-", "+")) == ["1-0", "2-0", "3-0"]
    assert e("XRANGE", "s", "+", "-") == []
    assert ids_of(e("XREVRANGE", "s", "+", "-")) == ["3-0", "2-0", "1-0"]
    assert ids_of(e("XPENDING", "s", "g", "-", "+", 9)) == ["1-0", "2-0", "3-0"]
    assert ids_of(e("XAUTOCLAIM", "s", "g", "c", 0, "-")[1]) == ["1-0", "2-0", "3-0"]
    assert e("XAUTOCLAIM", "s", "g", "c", 0, "+") == ["0-0", [], []]


@pytest.mark.parametrize(("token", "stands_for"), [("-", "0-0"), ("+", TOP_ID), ("$", "3-0")])
def test_xgroup_setid_takes_the_ends_of_the_stream(e: Engine, token: str, stands_for: str) -> None:
    """Base §4.1: `-` and `+` are valid for SETID, not for CREATE."""
    e.stream(3, "g")
    assert e("XGROUP", "SETID", "s", "g", token) == "OK"
    assert e.group_info()["last-delivered-id"] == stands_for


def test_an_exclusive_bound_is_the_next_or_previous_id(e: Engine) -> None:
    """Base §4.1: increments carry, decrements borrow."""
    e("XADD", "s", f"1-{U64_MAX}", "f", "v")
    e("XADD", "s", "2-0", "f", "v")
    assert e.live() == [f"1-{U64_MAX}", "2-0"]
    assert ids_of(e("XRANGE", "s", f"(1-{U64_MAX}", "+")) == ["2-0"]
    assert ids_of(e("XRANGE", "s", "-", "(2-0")) == [f"1-{U64_MAX}"]
    assert ids_of(e("XREVRANGE", "s", "(2-0", "-")) == [f"1-{U64_MAX}"]


def test_a_short_exclusive_end_keeps_its_millisecond_but_for_the_last_id(e: Engine) -> None:
    """Base §4.1: `(5` is 5-0 exclusive as a start and 5-U64 exclusive as an end."""
    for seq in (0, 1, U64_MAX - 1, U64_MAX):
        e("XADD", "s", f"5-{seq}", "f", "v")
    assert ids_of(e("XRANGE", "s", "(5", "+")) == ["5-1", f"5-{U64_MAX - 1}", f"5-{U64_MAX}"]
    assert ids_of(e("XRANGE", "s", "-", "(5")) == ["5-0", "5-1", f"5-{U64_MAX - 1}"]


@pytest.mark.parametrize(
    ("command", "which"),
    [
        (["XRANGE", "s", "(" + TOP_ID, "+"], "start"),
        (["XRANGE", "s", "-", "(0-0"], "end"),
        (["XREVRANGE", "s", "+", "(" + TOP_ID], "start"),
        (["XREVRANGE", "s", "(0-0", "-"], "end"),
        (["XPENDING", "s", "g", "(" + TOP_ID, "+", "1"], "start"),
        (["XPENDING", "s", "g", "-", "(0", "1"], None),  # 0 as an end is 0-U64
        (["XPENDING", "s", "g", "-", "(0-0", "1"], "end"),
        (["XAUTOCLAIM", "s", "g", "c", "0", "(" + TOP_ID], "start"),
    ],
)
def test_an_exclusive_bound_beyond_the_ends_is_refused(e: Engine, command: list[str], which: str | None) -> None:
    """Base §4.1."""
    e.stream(1, "g")
    if which is None:
        assert e(*command) == []
    else:
        assert e.error(*command) == f"ERR invalid {which} ID for the interval"


# Generation (base §4.2)


def test_an_automatic_id_is_the_time_and_counts_on_within_a_millisecond(e: Engine) -> None:
    now = e.near(e.now_ms)
    first = e("XADD", "s", "*", "f", "v")
    assert int(first.split("-")[0]) == now
    assert first.endswith("-0")
    e("XADD", "t", f"{FAR}-3", "f", "v")
    assert e("XADD", "t", "*", "f", "v") == f"{FAR}-4"


@engine_only
def test_an_automatic_id_counts_on_when_the_clock_stands_or_steps_back(e: Engine) -> None:
    now = e.now_ms
    assert e("XADD", "s", "*", "f", "v") == f"{now}-0"
    assert e("XADD", "s", "*", "f", "v") == f"{now}-1"
    e.wait(-5000)
    assert e("XADD", "s", "*", "f", "v") == f"{now}-2"
    e.wait(5001)
    assert e("XADD", "s", "*", "f", "v") == f"{now + 1}-0"


def test_an_automatic_id_carries_into_the_next_millisecond(e: Engine) -> None:
    e("XADD", "s", f"{FAR}-{U64_MAX}", "f", "v")
    assert e("XADD", "s", "*", "f", "v") == f"{FAR + 1}-0"


@pytest.mark.parametrize(
    ("last", "written", "made"),
    [(None, "0-*", "0-1"), (None, "5-*", "5-0"), ("5-3", "5-*", "5-4"), ("5-3", "6-*", "6-0"), ("0-1", "0-*", "0-2")],
)
def test_an_automatic_seq_counts_within_its_millisecond(e: Engine, last: str | None, written: str, made: str) -> None:
    if last:
        e("XADD", "s", last, "f", "v")
    assert e("XADD", "s", written, "f", "v") == made


def test_an_automatic_seq_below_the_last_id_is_refused(e: Engine) -> None:
    e("XADD", "s", "5-3", "f", "v")
    assert e.error("XADD", "s", "4-*", "f", "v") == ID_TOO_SMALL


def test_an_automatic_seq_does_not_carry(e: Engine) -> None:
    """Base §4.3: `1-*` after `1-U64` is an error although `*` would carry."""
    e("XADD", "s", f"1-{U64_MAX}", "f", "v")
    assert e.error("XADD", "s", "1-*", "f", "v") == ID_TOO_SMALL


@pytest.mark.parametrize("written", ["5-3", "5-2", "4-9", "5"])
def test_an_explicit_id_must_be_above_the_last(e: Engine, written: str) -> None:
    e("XADD", "s", "5-3", "f", "v")
    assert e.error("XADD", "s", written, "f", "v") == ID_TOO_SMALL


def test_the_last_id_counts_even_if_its_entry_is_gone_or_never_was(e: Engine) -> None:
    e("XADD", "s", "5-0", "f", "v")
    e("XDEL", "s", "5-0")
    assert e.error("XADD", "s", "5-0", "f", "v") == ID_TOO_SMALL
    e("XSETID", "s", "9-0")
    assert e.error("XADD", "s", "8-0", "f", "v") == ID_TOO_SMALL
    assert e("XADD", "s", "9-1", "f", "v") == "9-1"


@pytest.mark.parametrize("written", ["0-0", "0", "00-0"])
def test_the_id_zero_is_refused_before_the_key_is_looked_at(e: Engine, written: str) -> None:
    assert e.error("XADD", "s", written, "f", "v") == "ERR The ID specified in XADD must be greater than 0-0"
    assert e("EXISTS", "s") == 0
    e("SET", "str", "x")
    assert e.error("XADD", "str", written, "f", "v") == "ERR The ID specified in XADD must be greater than 0-0"


@pytest.mark.parametrize("written", ["*", f"{U64_MAX}-*", "5-*", TOP_ID, "7-0"])
def test_nothing_can_follow_the_last_possible_id(e: Engine, written: str) -> None:
    e("XADD", "s", TOP_ID, "f", "v")
    assert e.error("XADD", "s", written, "f", "v") == ID_EXHAUSTED
    assert e("XLEN", "s") == 1


def test_a_short_id_means_different_things_to_different_commands(e: Engine) -> None:
    """Base §4.3."""
    assert e("XADD", "s", "5", "f", "v") == "5-0"
    e("XADD", "s", "5-1", "f", "v")
    e("XADD", "s", "6-0", "f", "v")
    assert ids_of(e("XRANGE", "s", "5", "5")) == ["5-0", "5-1"]
    assert ids_of(e("XREAD", "STREAMS", "s", "5")[0][1]) == ["5-1", "6-0"]
    assert e("XDEL", "s", "5") == 1
    assert e.live() == ["5-1", "6-0"]


def test_the_highest_id_does_not_wrap(e: Engine) -> None:
    """Base §4.3 and the last trap of base §7.8."""
    e("XADD", "s", "1-0", "f", "v")
    assert e("XREAD", "STREAMS", "s", TOP_ID) is NIL_ARRAY
    e("XADD", "s", TOP_ID, "f", "v")
    assert e("XREAD", "STREAMS", "s", TOP_ID) is NIL_ARRAY
    assert ids_of(e("XRANGE", "s", TOP_ID, "+")) == [TOP_ID]
