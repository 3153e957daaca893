"""KEEPREF, DELREF, ACKED with XDELEX and XACKDEL (new §6, §7.1, §7.2, §7.7)."""

from __future__ import annotations

import pytest

from .support import BAD_ID, SYNTAX, TOP_ID, WRONG_TYPE, Engine, arity, ids_of, spelled

NUMIDS = "ERR Number of IDs must be a positive integer"
MISMATCH = "ERR The `numids` parameter must match the number of arguments"


@pytest.fixture
def shared(e: Engine) -> Engine:
    """1-0 to 5-0 read by c1 of g1 and, but for 5-0, by c2 of g2; 1-0 acknowledged by both, 2-0 by g1."""
    e.stream(5, "g1", "g2")
    e.deliver("g1", "c1")
    e.deliver("g2", "c2", "COUNT", 4)
    e("XACK", "s", "g1", "1-0", "2-0")
    e("XACK", "s", "g2", "1-0")
    return e


# Arguments (new §6.2)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("KEEPREF KEEPREF IDS 1 1-0", SYNTAX),
        ("DELREF ACKED IDS 1 1-0", SYNTAX),
        ("ACKED IDS 1 1-0 KEEPREF", SYNTAX),
        ("NOSUCH IDS 1 1-0", SYNTAX),
        ("IDS 1 1-0 2-0", SYNTAX),
        ("IDS 1 1-0 IDS", SYNTAX),
        ("KEEPREF 1-0 2-0", SYNTAX),
        ("1-0 2-0 3-0", SYNTAX),
        ("IDS 0 1-0", NUMIDS),
        ("IDS -1 1-0", NUMIDS),
        ("IDS x 1-0", NUMIDS),
        ("IDS 01 1-0", NUMIDS),
        ("IDS 2 1-0", MISMATCH),
        ("IDS 3 1-0 KEEPREF", MISMATCH),
        ("IDS 9223372036854775807 1-0", MISMATCH),
        ("IDS 1 1-0 IDS 2 2-0", MISMATCH),
        ("IDS 1 x", BAD_ID),
        ("IDS 2 1-0 x", BAD_ID),
        ("IDS 2 1-0 KEEPREF", BAD_ID),  # the word is swallowed as an id
        ("IDS 1 1-0 IDS 1 x", BAD_ID),
    ],
)
@pytest.mark.parametrize("command", ["XDELEX s", "XACKDEL s g1"])
def test_bad_words_are_refused_and_change_nothing(shared: Engine, command: str, words: str, text: str) -> None:
    before = shared.owners("g1"), shared.owners("g2")
    assert shared.error(*command.split(), *words.split()) == text
    assert shared.live() == ["1-0", "2-0", "3-0", "4-0", "5-0"]
    assert (shared.owners("g1"), shared.owners("g2")) == before


def test_too_few_words(e: Engine) -> None:
    assert e.error("XDELEX", "s", "IDS", "1") == arity("xdelex")
    assert e.error("XACKDEL", "s", "g", "IDS", "1") == arity("xackdel")


@pytest.mark.parametrize("words", ["keepref IDS 1 3-0", "IDS 1 3-0 KEEPREF", "IDS 2 x y IDS 1 3-0", "IDS 1 3"])
@pytest.mark.parametrize("command", ["XDELEX s", "XACKDEL s g1"])
def test_strategy_and_ids_come_in_either_order(shared: Engine, command: str, words: str) -> None:
    """A repeated IDS block replaces the earlier one, whose ids are never parsed."""
    assert shared(*command.split(), *words.split()) == [1]
    assert shared.live() == ["1-0", "2-0", "4-0", "5-0"]


def test_wrongtype_comes_before_the_words_and_a_missing_key_after_them(e: Engine) -> None:
    """New §6.2, order of checks; §7.7 case 5: without a key or group, ids are not validated."""
    e("SET", "str", "x")
    assert e.error("XDELEX", "str", "NOSUCH", "IDS", 1, "x") == WRONG_TYPE
    assert e.error("XACKDEL", "str", "g", "NOSUCH", "IDS", 1, "x") == WRONG_TYPE
    assert e.error("XDELEX", "none", "NOSUCH", "IDS", 1, "x") == SYNTAX
    assert e.error("XACKDEL", "none", "g", "IDS", 2, "x") == MISMATCH
    assert e("XDELEX", "none", "IDS", 2, "a", "b") == [-1, -1]
    assert e("XACKDEL", "none", "g", "IDS", 2, "a", "b") == [-1, -1]
    e.stream(1)
    assert e("XACKDEL", "s", "nog", "DELREF", "IDS", 3, "a", "1-0", "b") == [-1, -1, -1]
    assert e.live() == ["1-0"]


# The reference predicate (new §6.1)


def test_without_groups_nothing_is_referenced(e: Engine) -> None:
    """New §7.7 case 2."""
    e.stream(2)
    assert e("XDELEX", "s", "ACKED", "IDS", 3, "1-0", "9-9", "2-0") == [1, -1, 1]


def test_an_id_beyond_some_group_is_referenced(e: Engine) -> None:
    e.stream(3, "g1", "g2")
    e.deliver("g1", "c", "NOACK")
    e.deliver("g2", "c", "NOACK", "COUNT", 1)
    assert e("XDELEX", "s", "ACKED", "IDS", 3, "1-0", "2-0", "3-0") == [1, 2, 2]


@pytest.mark.parametrize(
    "skip", ["XGROUP SETID s g $", "XREADGROUP GROUP g c NOACK STREAMS s >", "XCLAIM s g c 0 9-9 LASTID 1-0"]
)
def test_what_was_skipped_or_read_without_ack_counts_as_acknowledged(e: Engine, skip: str) -> None:
    """New §6.1, §7.7 case 6."""
    e.stream(1, "g")
    assert e("XDELEX", "s", "ACKED", "IDS", 1, "1-0") == [2]
    e(*skip.split())
    assert e("XDELEX", "s", "ACKED", "IDS", 1, "1-0") == [1]


def test_what_a_group_was_made_after_counts_as_acknowledged(e: Engine) -> None:
    """New §6.1, §7.7 case 6: XGROUP CREATE with `$`."""
    e.stream(1)
    e("XGROUP", "CREATE", "s", "g", "$")
    assert e("XDELEX", "s", "ACKED", "IDS", 1, "1-0") == [1]


def test_the_least_last_id_follows_every_change_of_groups(e: Engine) -> None:
    """New §1.5: SETID back and forth, creation, destruction."""
    e.stream(9)
    e("XGROUP", "CREATE", "s", "g1", "5-0")
    assert e("XDELEX", "s", "ACKED", "IDS", 2, "1-0", "6-0") == [1, 2]
    e("XGROUP", "SETID", "s", "g1", "0")
    assert e("XDELEX", "s", "ACKED", "IDS", 1, "2-0") == [2]
    e("XGROUP", "SETID", "s", "g1", "6-0")
    assert e("XDELEX", "s", "ACKED", "IDS", 2, "2-0", "6-0") == [1, 1]
    e("XGROUP", "CREATE", "s", "g2", "2-0")
    assert e("XDELEX", "s", "ACKED", "IDS", 1, "3-0") == [2]
    e("XGROUP", "DESTROY", "s", "g2")
    assert e("XDELEX", "s", "ACKED", "IDS", 1, "3-0") == [1]
    e("XGROUP", "DESTROY", "s", "g1")
    assert e("XDELEX", "s", "ACKED", "IDS", 1, "9-0") == [1]
    e("XGROUP", "CREATE", "s", "g3", "0")
    assert e("XDELEX", "s", "ACKED", "IDS", 1, "4-0") == [2]
    assert e.deliver("g3", "c", "NOACK", "COUNT", 1) == ["4-0"]
    assert e("XDELEX", "s", "ACKED", "IDS", 1, "4-0") == [1]


def test_a_claim_with_lastid_moves_the_least_last_id(e: Engine) -> None:
    e.stream(3, "g")
    e("XCLAIM", "s", "g", "c", 0, "9-9", "LASTID", "2-0")
    assert e("XDELEX", "s", "ACKED", "IDS", 2, "2-0", "3-0") == [1, 2]


# XDELEX (new §7.1)


def test_xdelex_on_the_wire(e: Engine) -> None:
    """New §7.2, the wire examples: the same in both protocols."""
    e.stream(2, "g")
    e.deliver("g", "c")
    e("XACK", "s", "g", "1-0")
    assert spelled(e.wire("XDELEX", "s", "ACKED", "IDS", 3, "1-0", "2-0", "9-9")) == "*3 :1 :2 :2"
    assert spelled(e.wire("XDELEX", "s", "IDS", 2, "2-0", "9-9", protocol=3)) == "*2 :1 :-1"
    assert spelled(e.wire("XDELEX", "nokey", "IDS", 2, "a", "b")) == "*2 :-1 :-1"


@pytest.mark.parametrize(
    ("strategy", "replies"),
    [
        # 1-0 acknowledged by both, 2-0 by one, 3-0 by none, 5-0 beyond one, 4-0 a ghost, 0-9 below all, 9-9 unknown
        ("KEEPREF", [1, 1, 1, 1, -1, -1, -1]),
        ("DELREF", [1, 1, 1, 1, -1, -1, -1]),
        ("ACKED", [1, 2, 2, 2, 2, -1, 2]),
    ],
)
def test_xdelex_answers_for_each_id(shared: Engine, strategy: str, replies: list[int]) -> None:
    """New §7.1, the table; §7.7 case 1: ACKED answers 2 for an unknown id ahead of a group and for a ghost."""
    shared("XDEL", "s", "4-0")
    ids = ("1-0", "2-0", "3-0", "5-0", "4-0", "0-9", "9-9")
    assert shared("XDELEX", "s", strategy, "IDS", 7, *ids) == replies


def test_keepref_is_the_default_and_leaves_ghosts(shared: Engine) -> None:
    assert shared("XDELEX", "s", "IDS", 2, "2-0", "3-0") == [1, 1]
    assert shared.live() == ["1-0", "4-0", "5-0"]
    assert list(shared.owners("g1")) == ["3-0", "4-0", "5-0"]
    assert list(shared.owners("g2")) == ["2-0", "3-0", "4-0"]


def test_delref_removes_the_id_from_every_group(shared: Engine) -> None:
    shared.nack("FAIL", "4-0", group="g1")
    assert shared("XDELEX", "s", "DELREF", "IDS", 3, "2-0", "3-0", "4-0") == [1, 1, 1]
    assert list(shared.owners("g1")) == ["5-0"]
    assert shared.owners("g2") == {}
    assert shared.consumers("g1")["c1"]["pending"] == 1
    assert shared.consumers("g2")["c2"]["pending"] == 0


def test_delref_removes_references_even_if_the_entry_is_gone(shared: Engine) -> None:
    """New §7.1, row DELREF: remove refs anyway -> -1."""
    shared("XDEL", "s", "3-0")
    assert shared("XDELEX", "s", "DELREF", "IDS", 1, "3-0") == [-1]
    assert list(shared.owners("g1")) == ["4-0", "5-0"]
    assert list(shared.owners("g2")) == ["2-0", "4-0"]


def test_acked_keeps_what_is_referenced(shared: Engine) -> None:
    shared("XDELEX", "s", "ACKED", "IDS", 5, "1-0", "2-0", "3-0", "4-0", "5-0")
    assert shared.live() == ["2-0", "3-0", "4-0", "5-0"]
    shared("XACK", "s", "g2", "2-0")
    assert shared("XDELEX", "s", "ACKED", "IDS", 1, "2-0") == [1]


@pytest.mark.parametrize(("strategy", "replies"), [("KEEPREF", [1, -1]), ("DELREF", [1, -1]), ("ACKED", [1, -1])])
def test_a_repeated_id_is_gone_the_second_time(shared: Engine, strategy: str, replies: list[int]) -> None:
    """New §7.7 case 9, XDELEX."""
    assert shared("XDELEX", "s", strategy, "IDS", 2, "1-0", "1-0") == replies


def test_xdelex_keeps_the_stream_and_its_books(shared: Engine) -> None:
    """New §7.1: what each deletion changes and what not."""
    groups = [shared.group_info(name)["last-delivered-id"] for name in ("g1", "g2")]
    shared("XDELEX", "s", "IDS", 2, "3-0", "1-0")
    info = shared.info()
    assert (info["length"], info["entries-added"], info["last-generated-id"]) == (3, 5, "5-0")
    assert (info["recorded-first-entry-id"], info["max-deleted-entry-id"]) == ("2-0", "3-0")
    shared("XDELEX", "s", "IDS", 3, "2-0", "4-0", "5-0")
    info = shared.info()
    assert (info["length"], info["recorded-first-entry-id"], info["max-deleted-entry-id"]) == (0, "0-0", "5-0")
    assert [shared.group_info(name)["last-delivered-id"] for name in ("g1", "g2")] == groups
    assert shared("EXISTS", "s") == 1


# XACKDEL (new §7.2)


def test_xackdel_on_the_wire(shared: Engine) -> None:
    """New §7.2: 3-0 still pending in g2; 7-0 not pending in g1."""
    assert spelled(shared.wire("XACKDEL", "s", "g1", "ACKED", "IDS", 2, "3-0", "7-0")) == "*2 :2 :-1"
    assert spelled(shared.wire("XACKDEL", "s", "g2", "ACKED", "IDS", 1, "3-0", protocol=3)) == "*1 :1"


@pytest.mark.parametrize("strategy", ["KEEPREF", "DELREF", "ACKED"])
def test_xackdel_leaves_alone_what_is_not_pending_in_its_group(shared: Engine, strategy: str) -> None:
    """New §7.2, §7.7 case 3: -1 even if the entry is live and even with DELREF."""
    assert shared("XACKDEL", "s", "g1", strategy, "IDS", 3, "1-0", "2-0", "9-9") == [-1, -1, -1]
    assert shared.live() == ["1-0", "2-0", "3-0", "4-0", "5-0"]
    assert list(shared.owners("g2")) == ["2-0", "3-0", "4-0"]


@pytest.mark.parametrize(
    ("strategy", "reply", "live", "other"),
    [
        ("KEEPREF", [1], ["1-0", "2-0", "4-0", "5-0"], ["2-0", "3-0", "4-0"]),
        ("DELREF", [1], ["1-0", "2-0", "4-0", "5-0"], ["2-0", "4-0"]),
        ("ACKED", [2], ["1-0", "2-0", "3-0", "4-0", "5-0"], ["2-0", "3-0", "4-0"]),
    ],
)
def test_xackdel_acknowledges_and_then_follows_its_strategy(
    shared: Engine, strategy: str, reply: list[int], live: list[str], other: list[str]
) -> None:
    """New §7.2, the table."""
    assert shared("XACKDEL", "s", "g1", strategy, "IDS", 1, "3-0") == reply
    assert shared.live() == live
    assert list(shared.owners("g1")) == ["4-0", "5-0"]
    assert list(shared.owners("g2")) == other


@pytest.mark.parametrize("strategy", ["KEEPREF", "DELREF", "ACKED"])
def test_xackdel_answers_one_for_a_ghost(e: Engine, strategy: str) -> None:
    """New §7.2: 1 even when the entry had already vanished."""
    e.stream(2, "g")
    e.deliver("g", "c")
    e("XDEL", "s", "1-0")
    assert e("XACKDEL", "s", "g", strategy, "IDS", 1, "1-0") == [1]
    assert e.live() == ["2-0"]
    assert list(e.owners()) == ["2-0"]


def test_xackdel_acked_still_minds_its_own_last_id(e: Engine) -> None:
    """New §7.7 case 4: its reference is gone, its last id is not."""
    e.stream(2, "g")
    e.deliver("g", "c")
    e("XGROUP", "SETID", "s", "g", "1-0")
    assert e("XACKDEL", "s", "g", "ACKED", "IDS", 2, "1-0", "2-0") == [1, 2]
    assert e.live() == ["2-0"]
    assert e.owners() == {}


@pytest.mark.parametrize(("strategy", "replies"), [("KEEPREF", [1, -1]), ("DELREF", [1, -1]), ("ACKED", [2, -1])])
def test_a_repeated_id_is_not_pending_the_second_time(shared: Engine, strategy: str, replies: list[int]) -> None:
    """New §7.7 case 9, XACKDEL."""
    assert shared("XACKDEL", "s", "g1", strategy, "IDS", 2, "3-0", "3-0") == replies


def test_xackdel_keeps_the_books_of_the_stream(shared: Engine) -> None:
    shared("XACKDEL", "s", "g1", "IDS", 2, "5-0", "3-0")
    info = shared.info()
    assert (info["length"], info["max-deleted-entry-id"], info["last-generated-id"]) == (3, "5-0", "5-0")
    assert shared.group_info("g1")["last-delivered-id"] == "5-0"
    assert shared.consumers("g1")["c1"]["pending"] == 1


def test_deletion_never_wakes_a_reader(shared: Engine) -> None:
    """New §7.7 case 10."""
    plain = shared.block("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
    group = shared.block("XREADGROUP", "GROUP", "g1", "c", "BLOCK", 0, "CLAIM", 60_000, "STREAMS", "s", ">")
    shared("XDELEX", "s", "DELREF", "IDS", 1, "2-0")
    shared("XACKDEL", "s", "g1", "IDS", 2, "3-0", "4-0")
    assert plain.is_waiting()
    assert group.is_waiting()


def test_the_highest_id_can_be_deleted(e: Engine) -> None:
    e("XADD", "s", TOP_ID, "f", "v")
    assert e("XDELEX", "s", "ACKED", "IDS", 1, TOP_ID) == [1]
    assert ids_of(e("XRANGE", "s", "-", "+")) == []
