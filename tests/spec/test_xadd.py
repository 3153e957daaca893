"""XADD (base §7.1, new §7.3) and XLEN (base §7.2)."""

from __future__ import annotations

import pytest

from .support import BAD_ID, ID_TOO_SMALL, NOT_AN_INTEGER, WRONG_TYPE, Engine, arity, entry, spelled

LIMIT_WITHOUT_TRIM = "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"
LIMIT_WITHOUT_APPROX = "ERR syntax error, LIMIT cannot be used without the special ~ option"
TWO_TRIMS = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"
ZERO_ID = "ERR The ID specified in XADD must be greater than 0-0"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        # check 1: token errors as they are met
        ("MAXLEN 1 MAXLEN 1 * f v", TWO_TRIMS),
        ("MAXLEN 1 MINID 1 * f v", TWO_TRIMS),
        ("MINID 1 MAXLEN 1 * f v", TWO_TRIMS),
        ("MAXLEN x * f v", NOT_AN_INTEGER),
        ("MAXLEN 05 * f v", NOT_AN_INTEGER),
        ("MAXLEN -1 * f v", "ERR The MAXLEN argument must be >= 0."),
        ("MINID x * f v", BAD_ID),
        ("MAXLEN ~ 5 LIMIT x * f v", NOT_AN_INTEGER),
        ("MAXLEN ~ 5 LIMIT -1 * f v", "ERR The LIMIT argument must be >= 0."),
        ("NOSUCH * f v", BAD_ID),
        ("abc f v", BAD_ID),
        # checks 2 and 3: combinations of LIMIT
        ("LIMIT 5 * f v", LIMIT_WITHOUT_TRIM),
        ("LIMIT 0 * f v", LIMIT_WITHOUT_APPROX),
        ("MAXLEN 5 LIMIT 5 * f v", LIMIT_WITHOUT_APPROX),
        ("MAXLEN = 5 LIMIT 0 * f v", LIMIT_WITHOUT_APPROX),
        ("MINID 5 LIMIT 1 * f v", LIMIT_WITHOUT_APPROX),
        # check 4: fields come in pairs
        ("* f v f", arity("xadd")),
        ("MAXLEN 5 * f", arity("xadd")),
        ("MAXLEN 5 *", arity("xadd")),
        # an earlier check wins over a later one
        ("LIMIT 5 * f", LIMIT_WITHOUT_TRIM),
        ("0-0 f v f", arity("xadd")),
        ("0-0 f v", ZERO_ID),
        # `=` and `~` are modifiers only if a word follows, so this `*` is the threshold
        ("MAXLEN ~ * f v", NOT_AN_INTEGER),
        ("MINID ~ * f v", BAD_ID),
        # new §7.3: options without their values are no options, a second strategy word is no option
        ("NOMKSTREAM KEEPREF MAXLEN", BAD_ID),
        ("DELREF ACKED * f v", BAD_ID),
        ("KEEPREF KEEPREF * f v", BAD_ID),
    ],
)
def test_xadd_refuses_bad_words_before_it_looks_at_the_key(e: Engine, words: str, text: str) -> None:
    """Base §7.1, checks 1 to 5; new §7.3."""
    assert e.error("XADD", "s", *words.split()) == text
    assert e("EXISTS", "s") == 0
    e("SET", "str", "x")
    assert e.error("XADD", "str", *words.split()) == text


def test_xadd_needs_five_words(e: Engine) -> None:
    assert e.error("XADD", "s", "*", "f") == arity("xadd")


def test_xadd_refuses_a_key_of_another_type(e: Engine) -> None:
    """Base §7.1, check 6 comes before 7."""
    e("SET", "str", "x")
    assert e.error("XADD", "str", "*", "f", "v") == WRONG_TYPE
    assert e.error("XADD", "str", "NOMKSTREAM", "*", "f", "v") == WRONG_TYPE


@pytest.mark.parametrize(
    "options",
    [
        "NOMKSTREAM",
        "nomkstream",
        "MAXLEN 5",
        "MAXLEN = 5",
        "MAXLEN ~ 5",
        "maxlen ~ 5 limit 10",
        "MINID 1",
        "LIMIT 10 MAXLEN ~ 5",
        "KEEPREF",
        "DELREF",
        "ACKED",
        "ACKED MAXLEN 5",
        "MAXLEN 5 DELREF NOMKSTREAM",
        "LIMIT 10 NOMKSTREAM KEEPREF MINID ~ 0-1",
        "NOMKSTREAM NOMKSTREAM",
    ],
)
def test_options_come_in_any_order_before_the_id(e: Engine, options: str) -> None:
    """Base §7.1, new §7.3: a reference word alone is legal and does nothing."""
    e("XADD", "s", "1-0", "f", "v")
    assert e("XADD", "s", *options.split(), "2-0", "f", "v") == "2-0"
    assert e.live() == ["1-0", "2-0"]


def test_a_word_after_the_id_is_a_field(e: Engine) -> None:
    """Base §7.1, trap: option after the id."""
    e("XADD", "s", "1-0", "MAXLEN", "0", "NOMKSTREAM", "x")
    assert e("XRANGE", "s", "-", "+") == [entry("1-0", "MAXLEN", "0", "NOMKSTREAM", "x")]


def test_fields_keep_their_order_and_may_repeat_or_be_empty(e: Engine) -> None:
    """Base §3."""
    e("XADD", "s", "1-0", "b", "1", "a", "2", "b", "3", "", "", b"\xff\x00", b"\r\n")
    fields = ["b", "1", "a", "2", "b", "3", "", "", b"\xff\x00".decode("utf-8", "surrogateescape"), "\r\n"]
    assert e("XRANGE", "s", "-", "+") == [["1-0", fields]]


def test_nomkstream_does_not_make_a_stream(e: Engine) -> None:
    """Base §7.1, trap: the reply is nil, not nilarr."""
    assert spelled(e.wire("XADD", "s", "NOMKSTREAM", "*", "f", "v")) == "$-1"
    assert spelled(e.wire("XADD", "s", "NOMKSTREAM", "*", "f", "v", protocol=3)) == "_"
    assert e("EXISTS", "s") == 0


def test_an_id_error_does_not_make_the_key(e: Engine) -> None:
    """Base §7.1, trap."""
    assert e.error("XADD", "s", "0-0", "f", "v") == ZERO_ID
    assert e("EXISTS", "s") == 0


def test_an_id_error_changes_nothing(e: Engine) -> None:
    e.stream(3)
    assert e.error("XADD", "s", "MAXLEN", "0", "3-0", "f", "v") == ID_TOO_SMALL
    assert e.live() == ["1-0", "2-0", "3-0"]
    assert e.info()["entries-added"] == 3


def test_trimming_counts_the_new_entry(e: Engine) -> None:
    """Base §7.1, trap."""
    e.stream(5)
    e("XADD", "s", "MAXLEN", 5, "6-0", "f", "v")
    assert e.live() == ["2-0", "3-0", "4-0", "5-0", "6-0"]


@pytest.mark.parametrize("trim", ["MAXLEN 0", "MINID 7"])
def test_the_new_entry_itself_may_be_trimmed(e: Engine, trim: str) -> None:
    """Base §7.1: the reply is its id even then, and the empty stream stays."""
    assert e("XADD", "s", *trim.split(), "6-0", "f", "v") == "6-0"
    assert (e("XLEN", "s"), e("EXISTS", "s"), e("TYPE", "s")) == (0, 1, "stream")
    info = e.info()
    assert (info["last-generated-id"], info["entries-added"]) == ("6-0", 1)
    assert info["recorded-first-entry-id"] == "0-0"
    assert info["max-deleted-entry-id"] == "0-0"


def test_xadd_keeps_the_count_and_the_first_and_last_id(e: Engine) -> None:
    e.stream(3)
    info = e.info()
    assert (info["length"], info["entries-added"]) == (3, 3)
    assert (info["recorded-first-entry-id"], info["last-generated-id"]) == ("1-0", "3-0")
    assert (info["first-entry"], info["last-entry"]) == (entry("1-0"), entry("3-0"))


def test_writing_keeps_the_time_to_live(e: Engine) -> None:
    """Base §3: stream writes keep the TTL."""
    e("XADD", "s", "1-0", "f", "v")
    e("PEXPIRE", "s", 100_000)
    e("XADD", "s", "2-0", "f", "v")
    assert e("PTTL", "s") > 0


def test_xadd_on_an_expired_key_starts_afresh(e: Engine) -> None:
    """Base §3: old ids are valid again, the TTL is gone."""
    e.stream(5, "g")
    e("PEXPIRE", "s", 20)
    e.wait(30)
    assert e("XADD", "s", "1-0", "f", "v") == "1-0"
    assert e("PTTL", "s") == -1
    assert e("XINFO", "GROUPS", "s") == []


# XLEN (base §7.2)


def test_xlen_counts_live_entries_only(e: Engine) -> None:
    assert e("XLEN", "s") == 0
    e.stream(3)
    e("XDEL", "s", "2-0")
    assert e("XLEN", "s") == 2


def test_xlen_cannot_tell_an_empty_stream_from_none(e: Engine) -> None:
    """Base §7.2, trap: EXISTS does."""
    e("XADD", "s", "MAXLEN", 0, "1-0", "f", "v")
    assert (e("XLEN", "s"), e("XLEN", "none")) == (0, 0)
    assert (e("EXISTS", "s"), e("EXISTS", "none")) == (1, 0)


def test_xlen_refuses_a_key_of_another_type(e: Engine) -> None:
    e("SET", "str", "x")
    assert e.error("XLEN", "str") == WRONG_TYPE
    assert e.error("XLEN") == arity("xlen")
