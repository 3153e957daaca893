"""XNACK: giving pending entries back to the group (new §1.3, §1.6, §2)."""

from __future__ import annotations

import pytest

from .support import BAD_ID, LLMAX, NIL_ARRAY, NOT_AN_INTEGER, WRONG_TYPE, Engine, arity, engine_only, ids_of, spelled

NO_GROUP = "NOGROUP No such key 's' or consumer group 'nog'"
NO_KEY = "NOGROUP No such key 'none' or consumer group 'g'"
MODE = "ERR mode must be SILENT, FAIL, or FATAL"
NUMIDS = "ERR numids must be a positive integer"
MISMATCH = "ERR number of IDs doesn't match numids"
NO_IDS = "ERR syntax error, expected IDS keyword"
RETRYCOUNT = "ERR Invalid RETRYCOUNT value, must be >= 0"


def unrecognized(word: str) -> str:
    return f"ERR Unrecognized XNACK option '{word}'"


@pytest.fixture
def delivered(e: Engine) -> Engine:
    """1-0 to 4-0, all pending with consumer c1 of group g."""
    e.stream(4, "g")
    e.deliver("g", "c1")
    return e


@pytest.mark.parametrize(
    ("words", "text"),
    [
        # step 1
        ("s g FAIL IDS 1", arity("xnack")),
        # step 3
        ("none g FAIL IDS 1 1-0", NO_KEY),
        ("s nog FAIL IDS 1 1-0", NO_GROUP),
        # step 4
        ("s g MAYBE IDS 1 1-0", MODE),
        ("s g IDS 1 1-0 FAIL", MODE),
        # step 5: IDS
        ("s g FAIL IDS 0 1-0", NUMIDS),
        ("s g FAIL IDS -1 1-0", NUMIDS),
        ("s g FAIL IDS x 1-0", NUMIDS),
        ("s g FAIL IDS 01 1-0", NUMIDS),
        ("s g FAIL IDS 2147483648 1-0", NUMIDS),
        ("s g FAIL IDS 2147483647 1-0", MISMATCH),
        ("s g FAIL IDS 2 1-0", MISMATCH),
        ("s g FAIL FORCE IDS 1", MISMATCH),
        ("s g FAIL IDS 1 1-0 IDS 2 2-0", MISMATCH),
        # step 5: the other options
        ("s g FAIL IDS 1 1-0 RETRYCOUNT x", NOT_AN_INTEGER),
        ("s g FAIL IDS 1 1-0 RETRYCOUNT 9223372036854775808", NOT_AN_INTEGER),
        ("s g FAIL IDS 1 1-0 RETRYCOUNT -1", RETRYCOUNT),
        ("s g FAIL IDS 1 1-0 RETRYCOUNT -1 RETRYCOUNT 5", RETRYCOUNT),
        ("s g FAIL IDS 1 1-0 RETRYCOUNT", unrecognized("RETRYCOUNT")),
        ("s g FAIL IDS 1 1-0 ids", unrecognized("ids")),
        ("s g FAIL IDS 1 1-0 FATAL", unrecognized("FATAL")),
        ("s g FAIL IDS 1 1-0 2-0", unrecognized("2-0")),
        ("s g FAIL 1-0 IDS 1 1-0", unrecognized("1-0")),
        ("s g FAIL IDS 1 1-0 xYz", unrecognized("xYz")),
        # step 5: the first failure wins
        ("s g FAIL RETRYCOUNT x IDS 0 1-0", NOT_AN_INTEGER),
        ("s g FAIL IDS 0 1-0 RETRYCOUNT x", NUMIDS),
        # step 6
        ("s g SILENT FORCE RETRYCOUNT 5", NO_IDS),
        ("s g SILENT FORCE FORCE FORCE", NO_IDS),
        # step 7; all ids are parsed before any change
        ("s g FAIL IDS 2 1-0 x", BAD_ID),
        ("s g FAIL IDS 2 1-0 *", BAD_ID),
        ("s g FAIL IDS 1 x IDS 1 y", BAD_ID),
        # §2.4 case 2: the FORCE is swallowed as an id
        ("s g FAIL IDS 2 1-0 FORCE", BAD_ID),
    ],
)
def test_xnack_refuses_bad_words_in_a_fixed_order(delivered: Engine, words: str, text: str) -> None:
    """New §2.1, §2.3, §2.4 case 2."""
    before = delivered.pending()
    assert delivered.error("XNACK", *words.split()) == text
    assert delivered.owners() == {item[0]: item[1] for item in before}
    assert delivered.counts() == {item[0]: item[3] for item in before}


@pytest.mark.parametrize("words", ["MAYBE IDS 0 x", "FAIL IDS 1 nonsense", "FAIL WHAT IS THIS", "FAIL IDS 0 1-0"])
def test_a_missing_group_beats_every_argument_error(delivered: Engine, words: str) -> None:
    """New §2.4 case 1: XACK on the same missing key answers 0."""
    assert delivered.error("XNACK", "none", "g", *words.split()) == NO_KEY
    assert delivered.error("XNACK", "s", "nog", *words.split()) == NO_GROUP
    delivered("SET", "str", "x")
    assert delivered.error("XNACK", "str", "g", *words.split()) == WRONG_TYPE
    assert delivered("XACK", "none", "g", "1-0") == 0
    assert delivered("XACK", "s", "nog", "1-0") == 0


@pytest.mark.parametrize(
    "words",
    [
        "FAIL IDS 1 1-0 RETRYCOUNT 7 FORCE",
        "FAIL FORCE RETRYCOUNT 7 IDS 1 1-0",
        "fail retrycount 7 ids 1 1-0 force force",
        "FAIL RETRYCOUNT 3 IDS 1 1-0 RETRYCOUNT 7",
        "FAIL IDS 2 2-0 nonsense RETRYCOUNT 7 IDS 1 1-0",  # the first block is replaced, its ids never parsed
        "FAIL IDS 1 01 RETRYCOUNT 7",
    ],
)
def test_options_follow_the_mode_in_any_order(delivered: Engine, words: str) -> None:
    """New §2.1."""
    assert delivered("XNACK", "s", "g", *words.split()) == 1
    assert delivered.owners() == {"1-0": "", "2-0": "c1", "3-0": "c1", "4-0": "c1"}
    assert delivered.counts()["1-0"] == 7


def test_the_reply_counts_what_was_released(delivered: Engine) -> None:
    """New §2.2, §2.3: the same integer in both protocols; unknown ids are skipped, repeated ids count."""
    assert spelled(delivered.wire("XNACK", "s", "g", "FAIL", "IDS", 2, "1-0", "2-0")) == ":2"
    assert spelled(delivered.wire("XNACK", "s", "g", "FAIL", "IDS", 1, "9-9", protocol=3)) == ":0"
    assert delivered.nack("FAIL", "3-0", "9-9", "3-0") == 2


def test_a_repeated_id_applies_the_mode_each_time(delivered: Engine) -> None:
    """New §2.2."""
    delivered("XCLAIM", "s", "g", "c1", 0, "1-0", "RETRYCOUNT", 5)
    assert delivered.nack("SILENT", "1-0", "1-0", "1-0") == 3
    assert delivered.counts()["1-0"] == 2


@pytest.mark.parametrize(
    ("count", "words", "becomes"),
    [
        (5, "SILENT", 4),
        (1, "SILENT", 0),
        (0, "SILENT", 0),
        (LLMAX, "SILENT", LLMAX - 1),
        (5, "FAIL", 5),
        (0, "FAIL", 0),
        (5, "FATAL", LLMAX),
        (5, "SILENT RETRYCOUNT 9", 9),
        (5, "FAIL RETRYCOUNT 0", 0),
        (5, "FATAL RETRYCOUNT 42", 42),
        (5, f"FAIL RETRYCOUNT {LLMAX}", LLMAX),
    ],
)
def test_the_mode_decides_the_count_of_a_pending_entry(delivered: Engine, count: int, words: str, becomes: int) -> None:
    """New §1.6; §2.4 cases 4 and 5."""
    mode, *retrycount = words.split()
    delivered("XCLAIM", "s", "g", "c1", 0, "1-0", "RETRYCOUNT", count)
    assert delivered("XNACK", "s", "g", mode, "IDS", 1, "1-0", *retrycount) == 1
    assert delivered.counts()["1-0"] == becomes


@pytest.mark.parametrize(
    ("words", "becomes"),
    [("SILENT", 0), ("FAIL", 0), ("FATAL", LLMAX), ("SILENT RETRYCOUNT 3", 3), ("FATAL RETRYCOUNT 3", 3)],
)
def test_the_mode_decides_the_count_of_a_forced_entry(e: Engine, words: str, becomes: int) -> None:
    """New §1.6: XNACK FORCE creating."""
    e.stream(1, "g")
    mode, *retrycount = words.split()
    assert e("XNACK", "s", "g", mode, "IDS", 1, "1-0", "FORCE", *retrycount) == 1
    assert e.pending() == [["1-0", "", -1, becomes]]


def test_releasing_again_is_not_a_no_op(delivered: Engine) -> None:
    """New §2.4 case 3: SILENT decrements again, the entry moves to the end of the zone, the reply counts it."""
    delivered("XCLAIM", "s", "g", "c1", 0, "1-0", "2-0", "RETRYCOUNT", 5)
    assert delivered.nack("SILENT", "1-0", "2-0") == 2
    assert delivered.nack("SILENT", "1-0") == 1
    assert delivered.counts() == {"1-0": 3, "2-0": 4, "3-0": 1, "4-0": 1}
    assert ids_of(delivered.claim("g", "c2", 0, "COUNT", 2)) == ["2-0", "1-0"]


def test_force_on_a_pending_entry_changes_nothing(delivered: Engine) -> None:
    """New §2.4 case 6: no reset to 0."""
    delivered("XCLAIM", "s", "g", "c1", 0, "1-0", "RETRYCOUNT", 5)
    delivered("XNACK", "s", "g", "FAIL", "IDS", 1, "1-0", "FORCE")
    assert delivered.counts()["1-0"] == 5


def test_a_deleted_entry_can_be_released_but_not_forced(delivered: Engine) -> None:
    """New §2.4 case 7."""
    delivered("XDEL", "s", "1-0")
    assert delivered.nack("FAIL", "1-0") == 1
    assert delivered.owners()["1-0"] == ""
    assert delivered("XACK", "s", "g", "1-0") == 1
    assert delivered("XNACK", "s", "g", "FAIL", "IDS", 2, "1-0", "9-9", "FORCE") == 0
    assert "1-0" not in delivered.owners()


def test_force_may_create_an_entry_ahead_of_the_group(e: Engine) -> None:
    """New §2.4 case 8: claimable at once, delivered again by `>` with a count of 1."""
    e.stream(2, "g")
    assert e("XNACK", "s", "g", "FAIL", "IDS", 1, "2-0", "RETRYCOUNT", 7, "FORCE") == 1
    assert e.group_info()["last-delivered-id"] == "0-0"
    assert e("XCLAIM", "s", "g", "c1", 0, "2-0", "JUSTID") == ["2-0"]
    assert e.counts() == {"2-0": 7}
    assert e.deliver("g", "c2") == ["1-0", "2-0"]
    assert e.counts() == {"1-0": 1, "2-0": 1}
    assert e.owners() == {"1-0": "c2", "2-0": "c2"}


def test_without_force_an_undelivered_entry_is_skipped(e: Engine) -> None:
    """New §2.2 step 3."""
    e.stream(1, "g")
    assert e.nack("FAIL", "1-0") == 0
    assert e.pending() == []


def test_a_consumer_outlives_its_last_entry(delivered: Engine) -> None:
    """New §2.4 case 9."""
    delivered.nack("FAIL", "1-0", "2-0", "3-0", "4-0")
    assert delivered.consumers()["c1"]["pending"] == 0


def test_fatal_does_not_prevent_redelivery(delivered: Engine) -> None:
    """New §2.4 case 10: it is only a counter value."""
    delivered.nack("FATAL", "1-0")
    assert ids_of(delivered.claim("g", "c2", 0, "COUNT", 1)) == ["1-0"]
    delivered.nack("FATAL", "1-0")
    assert ids_of(delivered("XAUTOCLAIM", "s", "g", "c3", 0, "0", "COUNT", 1)[1]) == ["1-0"]


def test_releasing_leaves_the_group_the_consumer_and_the_stream_alone(delivered: Engine) -> None:
    """New §2.2: what never changes."""
    delivered.wait(20)
    group, info = delivered.group_info(), delivered.info()
    delivered("XNACK", "s", "g", "FAIL", "IDS", 1, "1-0", "FORCE")
    assert delivered.group_info() == group
    assert delivered.info() == info
    consumer = delivered.consumers()["c1"]
    assert (consumer["idle"], consumer["inactive"]) == (delivered.near(20), delivered.near(20))
    assert list(delivered.consumers()) == ["c1"]


# The released zone (new §1.3)


def test_within_one_command_the_zone_has_the_order_of_the_arguments(delivered: Engine) -> None:
    """T4."""
    delivered.nack("FAIL", "3-0", "1-0", "4-0")
    assert ids_of(delivered.claim("g", "c2", 0)) == ["3-0", "1-0", "4-0", "2-0"]


def test_an_owned_entry_of_time_zero_follows_the_zone(delivered: Engine) -> None:
    """T3: XCLAIM TIME 0 does not make an entry nobody's."""
    delivered("XCLAIM", "s", "g", "c1", 0, "1-0", "TIME", 0)
    delivered.nack("FAIL", "2-0")
    assert delivered.owners()["1-0"] == "c1"
    assert ids_of(delivered.claim("g", "c2", 1_000_000)) == ["2-0", "1-0"]
    assert delivered.full_group()["nacked-count"] == 0


def test_released_entries_come_before_all_owned_ones(delivered: Engine) -> None:
    """T2: the zone is a prefix, whatever the times of the owned entries."""
    delivered("XCLAIM", "s", "g", "c1", 0, "1-0", "IDLE", 50_000)
    delivered("XCLAIM", "s", "g", "c1", 0, "2-0", "IDLE", 90_000)
    delivered.nack("FAIL", "4-0")
    assert ids_of(delivered.claim("g", "c2", 0)) == ["4-0", "2-0", "1-0", "3-0"]


def test_among_equal_times_the_entry_touched_later_comes_later(delivered: Engine) -> None:
    """T6."""
    for entry_id in ("3-0", "1-0", "4-0", "2-0"):
        delivered("XCLAIM", "s", "g", "c1", 0, entry_id, "TIME", 1000)
    assert ids_of(delivered.claim("g", "c2", 0)) == ["3-0", "1-0", "4-0", "2-0"]
    for entry_id in ("2-0", "1-0", "3-0"):
        delivered("XCLAIM", "s", "g", "c1", 0, entry_id, "TIME", 1000)
    delivered("XCLAIM", "s", "g", "c1", 0, "4-0", "TIME", 999)
    assert ids_of(delivered.claim("g", "c2", 0)) == ["4-0", "2-0", "1-0", "3-0"]


@engine_only
def test_a_first_delivery_goes_to_the_end_whatever_the_clock_says(e: Engine) -> None:
    """T7: with a clock that stepped back, an entry that is due waits behind one that is not."""
    e.stream(2, "g")
    e.deliver("g", "c1", "COUNT", 1)
    e.wait(-5000)
    e.deliver("g", "c1")
    e.wait(5100)
    assert e.claim("g", "c2", 1000) is NIL_ARRAY
    assert ids_of(e.claim("g", "c2", 100)) == ["1-0", "2-0"]


def test_the_end_of_the_zone_may_be_taken_away(delivered: Engine) -> None:
    """T8: the next release follows what is left."""
    delivered.nack("FAIL", "3-0", "2-0")
    delivered("XACK", "s", "g", "2-0")
    delivered.nack("FAIL", "1-0")
    assert ids_of(delivered.claim("g", "c2", 0)) == ["3-0", "1-0", "4-0"]


def test_an_emptied_zone_starts_again(delivered: Engine) -> None:
    """T5."""
    delivered.nack("FAIL", "3-0")
    delivered("XACK", "s", "g", "3-0")
    assert delivered.full_group()["nacked-count"] == 0
    delivered.nack("FAIL", "4-0")
    delivered.nack("FAIL", "1-0")
    assert delivered.full_group()["nacked-count"] == 2
    assert ids_of(delivered.claim("g", "c2", 0)) == ["4-0", "1-0", "2-0"]


def test_a_released_entry_can_be_acknowledged(delivered: Engine) -> None:
    """The crash that a consumer named "" would invite."""
    delivered.nack("FAIL", "1-0")
    assert delivered("XACK", "s", "g", "1-0") == 1
    assert delivered.nack("FAIL", "1-0") == 0
    assert delivered.claim("g", "c2", 60_000) is NIL_ARRAY


# Delivery counters of the other commands (new §1.6)


def test_deliveries_and_claims_count_as_the_table_says(e: Engine) -> None:
    e.stream(1, "g")
    e.deliver("g", "c")
    assert e.counts() == {"1-0": 1}
    e.history("g", "c")
    assert e.counts() == {"1-0": 2}
    e.claim("g", "c", 0)
    assert e.counts() == {"1-0": 3}
    e("XCLAIM", "s", "g", "c", 0, "1-0")
    assert e.counts() == {"1-0": 4}
    e("XAUTOCLAIM", "s", "g", "c", 0, "0")
    assert e.counts() == {"1-0": 5}
    e("XCLAIM", "s", "g", "c", 0, "1-0", "JUSTID")
    e("XAUTOCLAIM", "s", "g", "c", 0, "0", "JUSTID")
    assert e.counts() == {"1-0": 5}
    e("XCLAIM", "s", "g", "c", 0, "1-0", "RETRYCOUNT", 0)
    assert e.counts() == {"1-0": 0}
    e("XCLAIM", "s", "g", "c", 0, "1-0", "RETRYCOUNT", 9, "JUSTID")
    assert e.counts() == {"1-0": 9}


@pytest.mark.parametrize("deliver", ["history", "claim", "XCLAIM", "XAUTOCLAIM"])
def test_a_count_at_its_maximum_stays_there(e: Engine, deliver: str) -> None:
    e.stream(1, "g")
    e.deliver("g", "c")
    e("XCLAIM", "s", "g", "c", 0, "1-0", "RETRYCOUNT", LLMAX)
    if deliver == "history":
        e.history("g", "c")
    elif deliver == "claim":
        e.claim("g", "c", 0)
    else:
        e(deliver, "s", "g", "c", 0, "1-0")
    assert e.counts() == {"1-0": LLMAX}


def test_a_forced_claim_starts_at_one_and_counts_itself(e: Engine) -> None:
    e.stream(3, "g")
    e("XCLAIM", "s", "g", "c", 0, "1-0", "FORCE")
    e("XCLAIM", "s", "g", "c", 0, "2-0", "FORCE", "JUSTID")
    e("XCLAIM", "s", "g", "c", 0, "3-0", "FORCE", "RETRYCOUNT", 7)
    assert e.counts() == {"1-0": 2, "2-0": 1, "3-0": 7}


def test_delivery_as_new_takes_over_and_resets_to_one(e: Engine) -> None:
    e.stream(1, "g")
    e.deliver("g", "c1")
    e("XCLAIM", "s", "g", "c1", 0, "1-0", "RETRYCOUNT", 9)
    e("XGROUP", "SETID", "s", "g", "0")
    assert e.deliver("g", "c2") == ["1-0"]
    assert (e.owners(), e.counts()) == ({"1-0": "c2"}, {"1-0": 1})


def test_delivery_as_new_with_noack_leaves_a_pending_entry_as_it_was(e: Engine) -> None:
    e.stream(1, "g")
    e.deliver("g", "c1")
    e("XCLAIM", "s", "g", "c1", 0, "1-0", "RETRYCOUNT", 9, "IDLE", 5000)
    e("XGROUP", "SETID", "s", "g", "0")
    assert e.deliver("g", "c2", "NOACK") == ["1-0"]
    assert e.pending() == [["1-0", "c1", e.near(5000), 9]]
