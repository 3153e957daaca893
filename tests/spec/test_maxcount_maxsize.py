"""MAXCOUNT and MAXSIZE of XREAD and XREADGROUP: budgets of one whole command (new §4.9)."""

from __future__ import annotations

import pytest

from .support import BAD_ID, NIL_ARRAY, NOT_AN_INTEGER, SYNTAX, WRONG_TYPE, Engine, decode, ids_of, spelled

TOO_SMALL = "ERR MAXCOUNT must be greater than or equal to COUNT"
UNBALANCED = "ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be specified."


def sizes(reply: object) -> dict[str, int]:
    """Key to number of entries."""
    assert isinstance(reply, list)
    return {key: len(entries) for key, entries in reply}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("MAXCOUNT x", NOT_AN_INTEGER),
        ("MAXSIZE 05", NOT_AN_INTEGER),
        ("MAXSIZE 9223372036854775808", NOT_AN_INTEGER),
        ("MAXCOUNT STREAMS", NOT_AN_INTEGER),
        ("MAXCOUNT 0", "ERR MAXCOUNT must be a positive integer"),
        ("MAXCOUNT -1", "ERR MAXCOUNT must be a positive integer"),
        ("MAXSIZE 0", "ERR MAXSIZE must be a positive integer"),
        ("MAXSIZE -5", "ERR MAXSIZE must be a positive integer"),
        ("COUNT 3 MAXCOUNT 2", TOO_SMALL),
        ("MAXCOUNT 2 COUNT 3", TOO_SMALL),
        ("MAXCOUNT 9 COUNT 3 MAXCOUNT 2", TOO_SMALL),
        # the values are checked when the word is met
        ("MAXCOUNT 0 NOSUCH", "ERR MAXCOUNT must be a positive integer"),
        ("NOSUCH MAXCOUNT 0", SYNTAX),
        # the comparison comes after unknown options
        ("COUNT 3 MAXCOUNT 2 NOSUCH", SYNTAX),
    ],
)
@pytest.mark.parametrize("command", ["XREAD", "XREADGROUP GROUP g c"])
def test_a_bad_budget_is_refused(e: Engine, command: str, words: str, text: str) -> None:
    e.stream(1, "g")
    assert e.error(*command.split(), *words.split(), "STREAMS", "s", "0") == text


@pytest.mark.parametrize("word", ["MAXCOUNT", "MAXSIZE"])
def test_a_budget_as_the_last_word_is_a_syntax_error(e: Engine, word: str) -> None:
    assert e.error("XREAD", "COUNT", 1, word) == SYNTAX
    assert e.error("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, word) == SYNTAX


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("XREADGROUP GROUP g c COUNT 3 MAXCOUNT 2 STREAMS s t >", UNBALANCED),
        ("XREADGROUP COUNT 3 MAXCOUNT 2 STREAMS s >", "ERR Missing GROUP option for XREADGROUP"),
        ("XREADGROUP GROUP g c COUNT 3 MAXCOUNT 2 STREAMS s $", TOO_SMALL),
        ("XREADGROUP GROUP nog c COUNT 3 MAXCOUNT 2 STREAMS s >", TOO_SMALL),
        ("XREAD COUNT 3 MAXCOUNT 2 STREAMS str 0", TOO_SMALL),
        ("XREAD COUNT 3 MAXCOUNT 2 STREAMS s x", TOO_SMALL),
        ("XREAD COUNT 2 MAXCOUNT 2 STREAMS str 0", WRONG_TYPE),
        ("XREAD COUNT 2 MAXCOUNT 2 STREAMS s x", BAD_ID),
    ],
)
def test_the_comparison_with_count_has_its_place_among_the_checks(e: Engine, words: str, text: str) -> None:
    e.stream(1, "g")
    e("SET", "str", "x")
    assert e.error(*words.split()) == text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("MAXCOUNT 7", {"a": 5, "b": 2}),
        ("COUNT 2 MAXCOUNT 5", {"a": 2, "b": 2, "c": 1}),
        ("MAXCOUNT 5", {"a": 5}),  # exhausted exactly at the end of a stream: the next is not reached
        ("MAXCOUNT 15", {"a": 5, "b": 5, "c": 5}),
        ("COUNT 0 MAXCOUNT 1", {"a": 1}),  # no COUNT, nothing to compare
        ("COUNT -3 MAXCOUNT 1", {"a": 1}),
        ("maxcount 1 MAXCOUNT 6", {"a": 5, "b": 1}),  # the last wins
        ("MAXSIZE 100000", {"a": 5, "b": 5, "c": 5}),
        ("MAXSIZE 43 MAXCOUNT 1", {"a": 1}),
        ("MAXCOUNT 9 MAXSIZE 43", {"a": 2}),
    ],
)
@pytest.mark.parametrize("command", ["XREAD", "XREADGROUP >", "XREADGROUP history"])
def test_budgets_span_all_streams(e: Engine, command: str, options: str, expected: dict[str, int]) -> None:
    for key in "abc":
        e.stream(5, "g", key=key)
    words = options.split()
    if command == "XREAD":
        reply = e("XREAD", *words, "STREAMS", "a", "b", "c", 0, 0, 0)
    elif command == "XREADGROUP >":
        reply = e("XREADGROUP", *words, "GROUP", "g", "c", "STREAMS", "a", "b", "c", ">", ">", ">")
    else:
        e("XREADGROUP", "GROUP", "g", "c", "STREAMS", "a", "b", "c", ">", ">", ">")
        reply = e("XREADGROUP", "GROUP", "g", "c", *words, "STREAMS", "a", "b", "c", 0, 0, 0)
    assert sizes(reply) == expected


THRESHOLDS = [  # (entries of a, of b) and from which MAXSIZE on, RESP2 and RESP3
    ((1, None), 1, 1),
    ((2, None), 43, 39),
    ((3, None), 74, 70),
    ((4, None), 105, 101),
    ((5, None), 136, 132),
    ((5, 0), 171, 167),
    ((5, 1), 182, 174),
    ((5, 2), 213, 205),
    ((5, 3), 244, 236),
    ((5, 4), 275, 267),
    ((5, 5), 306, 298),
]


def around_thresholds() -> list[tuple[int, int, tuple[int, int | None]]]:
    """(protocol, MAXSIZE, expected sizes) at each threshold and one below it."""
    cases = []
    for protocol, column in ((2, 1), (3, 2)):
        for at, row in enumerate(THRESHOLDS):
            cases.append((protocol, row[column], row[0]))
            if at:
                cases.append((protocol, row[column] - 1, THRESHOLDS[at - 1][0]))
    return cases


@pytest.mark.parametrize(("protocol", "limit", "expected"), around_thresholds())
@pytest.mark.parametrize("command", ["XREAD", "XREADGROUP >", "XREADGROUP history"])
def test_the_bytes_of_the_reply_are_counted_exactly(
    e: Engine, command: str, protocol: int, limit: int, expected: tuple[int, int | None]
) -> None:
    """The table of thresholds: an entry has 31 bytes, a header 11 in RESP2 and 7 in RESP3."""
    e.stream(5, "g", key="a")
    e.stream(5, "g", key="b")
    if command == "XREAD":
        words: tuple[object, ...] = ("XREAD", "MAXSIZE", limit, "STREAMS", "a", "b", 0, 0)
    else:
        mark = ">" if command == "XREADGROUP >" else "0"
        words = ("XREADGROUP", "GROUP", "g", "c", "MAXSIZE", limit, "STREAMS", "a", "b", mark, mark)
        if mark == "0":
            e("XREADGROUP", "GROUP", "g", "c", "STREAMS", "a", "b", ">", ">")
    reply = decode(e.wire(*words, protocol=protocol))[0]
    flat = reply if protocol == 3 else [part for item in reply for part in item]
    got = {key: len(entries) for key, entries in zip(flat[::2], flat[1::2], strict=True)}
    assert (got["a"], got.get("b")) == expected


def test_a_header_that_reaches_the_cap_leaves_an_empty_stream_in_the_reply(e: Engine) -> None:
    """Its consumer is made, while the group's last id and pending entries stay."""
    e.stream(5, "g", key="a")
    e.stream(5, "g", key="b")
    e.stream(5, "g", key="c")
    read = ("XREADGROUP", "GROUP", "g", "c", "MAXSIZE", 171, "STREAMS", "a", "b", "c", ">", ">", ">")
    text = spelled(e.wire(*read))
    assert text.startswith("*2 *2 $1 a *5 ")
    assert text.endswith(" *2 $1 b *0")
    assert list(e.consumers(key="b")) == ["c"]
    assert e.consumers(key="b")["c"]["inactive"] == -1
    assert e.group_info(key="b")["last-delivered-id"] == "0-0"
    assert e.pending(key="b") == []
    assert e.consumers(key="c") == {}  # not reached: no consumer and no seen time


def test_what_is_left_out_is_not_delivered(e: Engine) -> None:
    e.stream(5, "g")
    assert e.deliver("g", "c", "MAXCOUNT", 2) == ["1-0", "2-0"]
    assert e.group_info()["last-delivered-id"] == "2-0"
    assert list(e.owners()) == ["1-0", "2-0"]
    assert e.deliver("g", "c", "MAXSIZE", 43) == ["3-0", "4-0"]
    assert e.group_info()["last-delivered-id"] == "4-0"
    assert list(e.owners()) == ["1-0", "2-0", "3-0", "4-0"]


def test_streams_not_reached_get_no_consumer(e: Engine) -> None:
    e.stream(1, "g", key="a")
    e.stream(1, "g", key="b")
    e("XREADGROUP", "GROUP", "g", "c", "MAXCOUNT", 1, "STREAMS", "a", "b", ">", ">")
    assert list(e.consumers(key="a")) == ["c"]
    assert e.consumers(key="b") == {}


def test_claimed_entries_count(e: Engine) -> None:
    """`CLAIM 0 MAXCOUNT 3` with two pending and three new: two claimed and one new."""
    e.stream(5, "g")
    e.deliver("g", "c1", "COUNT", 2)
    reply = e.claim("g", "c2", 0, "MAXCOUNT", 3)
    assert [(item[0], item[3]) for item in reply] == [("1-0", 1), ("2-0", 1), ("3-0", 0)]


def test_claimed_entries_count_bytes_too(e: Engine) -> None:
    e.stream(5, "g")
    e.deliver("g", "c1", "COUNT", 2)
    e.wait(2)
    assert ids_of(e.claim("g", "c2", 0, "MAXSIZE", 12)) == ["1-0"]
    assert e.owners() == {"1-0": "c2", "2-0": "c1"}


def test_a_ghost_in_history_counts(e: Engine) -> None:
    e.stream(3, "g", key="a")
    e.stream(3, "g", key="b")
    e("XREADGROUP", "GROUP", "g", "c", "STREAMS", "a", "b", ">", ">")
    e("XDEL", "a", "1-0")
    reply = e("XREADGROUP", "GROUP", "g", "c", "MAXCOUNT", 4, "STREAMS", "a", "b", 0, 0)
    assert sizes(reply) == {"a": 3, "b": 1}
    assert reply[0][1][0] == ["1-0", NIL_ARRAY]


def test_the_last_entry_counts_as_one(e: Engine) -> None:
    """`+` ids of XREAD."""
    e.stream(3, key="a")
    e.stream(3, key="b")
    assert sizes(e("XREAD", "MAXCOUNT", 2, "STREAMS", "a", "b", "+", 0)) == {"a": 1, "b": 1}
    assert sizes(e("XREAD", "MAXCOUNT", 1, "STREAMS", "a", "b", "+", 0)) == {"a": 1}


def test_the_budget_may_be_overshot_by_one_entry(e: Engine) -> None:
    e("XADD", "s", "1-0", "f", "x" * 5000)
    e("XADD", "s", "2-0", "f", "v")
    assert ids_of(e("XREAD", "MAXSIZE", 1, "STREAMS", "s", 0)[0][1]) == ["1-0"]


def test_nothing_to_serve_is_a_null_array(e: Engine) -> None:
    e.stream(1, "g")
    assert e("XREAD", "MAXCOUNT", 1, "MAXSIZE", 1, "STREAMS", "s", "$") is NIL_ARRAY


def test_a_waiting_reader_keeps_its_budgets(e: Engine) -> None:
    e.stream(1, "g", key="a")
    e.deliver("g", "c", key="a")
    reader = e.block("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "CLAIM", 60_000, "MAXCOUNT", 1, "STREAMS", "a", ">")
    e.fill(2, 2, "a")
    assert ids_of(reader.reply()[0][1]) == ["2-0"]
    e.fill(3, 3, "a")
    e.deliver("g", "c", key="a")
    reader = e.block("XREADGROUP", "GROUP", "g", "d", "BLOCK", 0, "CLAIM", 60_000, "MAXCOUNT", 1, "STREAMS", "a", ">")
    e.nack("FAIL", "2-0", "1-0", key="a")
    assert ids_of(reader.reply()[0][1]) == ["2-0"]
