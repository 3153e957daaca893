"""XREADGROUP CLAIM: due pending entries first, then new ones (new §4.1 to §4.6, §4.8)."""

from __future__ import annotations

import pytest

from .support import (
    LLMAX,
    NIL_ARRAY,
    SYNTAX,
    WRONG_TYPE,
    Engine,
    Failure,
    PythonEngine,
    engine_only,
    entry,
    ids_of,
    spelled,
)

NOT_INTEGER = "ERR min-idle-time is not an integer or out of range"
NOT_POSITIVE = "ERR min-idle-time must be a positive integer"
ONLY_XREADGROUP = "ERR The CLAIM option is only supported by XREADGROUP. You called XREAD instead."
NO_GROUP = "NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option"


def shown(entry_id: str, idle: int, count: int) -> list[object]:
    """An entry as a read with CLAIM shows it."""
    return [*entry(entry_id), idle, count]


def aged(e: Engine, last: int, *idles: int, group: str = "g", key: str = "s") -> None:
    """A stream 1-0 to last-0 whose first entries are pending with c1 for so many milliseconds."""
    e.stream(last, group, key=key)
    e.deliver(group, "c1", "COUNT", len(idles), key=key)
    for ms, idle in enumerate(idles, 1):
        e("XCLAIM", key, group, "c1", 0, f"{ms}-0", "IDLE", idle, "JUSTID")


# Parsing (new §4.1)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("XREAD CLAIM 0 STREAMS s 0", ONLY_XREADGROUP),
        ("XREAD CLAIM x STREAMS s 0", ONLY_XREADGROUP),
        ("XREAD COUNT 1 BLOCK 0 CLAIM", SYNTAX),
        ("XREADGROUP GROUP g c CLAIM x STREAMS s >", NOT_INTEGER),
        ("XREADGROUP GROUP g c CLAIM -0 STREAMS s >", NOT_INTEGER),
        ("XREADGROUP GROUP g c CLAIM 5.5 STREAMS s >", NOT_INTEGER),
        ("XREADGROUP GROUP g c CLAIM +10 STREAMS s >", NOT_INTEGER),
        ("XREADGROUP GROUP g c CLAIM 9223372036854775808 STREAMS s >", NOT_INTEGER),
        ("XREADGROUP GROUP g c CLAIM STREAMS s >", NOT_INTEGER),
        ("XREADGROUP GROUP g c CLAIM -1 STREAMS s >", NOT_POSITIVE),
        ("XREADGROUP GROUP g c COUNT 1 CLAIM", SYNTAX),
        ("XREADGROUP GROUP g c CLAIM 0 CLAIM -1 STREAMS s >", NOT_POSITIVE),
        # later checks as for a plain read
        (
            "XREADGROUP GROUP g c CLAIM 0 STREAMS s t >",
            "ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be specified.",
        ),
        ("XREADGROUP CLAIM 0 COUNT 1 STREAMS s >", "ERR Missing GROUP option for XREADGROUP"),
        ("XREADGROUP GROUP g c CLAIM 0 STREAMS s none > >", NO_GROUP.replace("'s'", "'none'")),
        ("XREADGROUP GROUP g c CLAIM 0 STREAMS s str > >", WRONG_TYPE),
    ],
)
def test_a_bad_claim_is_refused_and_makes_no_consumer(e: Engine, words: str, text: str) -> None:
    e.stream(1, "g")
    e("SET", "str", "x")
    assert e.error(*words.split()) == text
    assert e.consumers() == {}


@pytest.mark.parametrize(
    "options", ["GROUP g c2 CLAIM 100", "CLAIM 100 GROUP g c2", "claim 9999 GROUP g c2 COUNT 5 CLAIM 100 NOACK"]
)
def test_claim_stands_anywhere_and_the_last_one_wins(e: Engine, options: str) -> None:
    aged(e, 1, 200)
    reply = e("XREADGROUP", *options.split(), "STREAMS", "s", ">")
    assert reply == [["s", [shown("1-0", e.near(200), 1)]]]


# Which streams are served (new §4.2)


def test_the_consumer_is_made_even_if_nothing_is_served(e: Engine) -> None:
    """§4.2 step 3."""
    e.stream(1, "g")
    e.deliver("g", "c1")
    assert e.claim("g", "c2", 60_000) is NIL_ARRAY
    assert sorted(e.consumers()) == ["c1", "c2"]
    assert e.consumers()["c2"]["inactive"] == -1


def test_a_claimable_stream_without_new_entries_serves_claims_only(e: Engine) -> None:
    """§4.2 step 4."""
    aged(e, 2, 100, 100)
    assert ids_of(e.claim("g", "c2", 50)) == ["1-0", "2-0"]
    assert e.group_info()["last-delivered-id"] == "2-0"


def test_an_entry_is_due_when_it_has_been_idle_for_min_idle(e: Engine) -> None:
    """§4.2 step 1: now - delivery_time >= min-idle-time."""
    e.stream(1, "g")
    e.deliver("g", "c1")
    e.wait(30)
    assert e.claim("g", "c2", 5000) is NIL_ARRAY
    assert e.claim("g", "c2", 30) == [shown("1-0", e.near(30), 1)]


@engine_only
def test_an_entry_is_due_at_the_very_millisecond(e: Engine) -> None:
    e.stream(1, "g")
    e.deliver("g", "c1")
    e.wait(29)
    assert e.claim("g", "c2", 30) is NIL_ARRAY
    e.wait(1)
    assert e.claim("g", "c2", 30) == [shown("1-0", 30, 1)]


def test_a_ghost_at_the_head_does_not_hide_a_due_entry(e: Engine) -> None:
    """§4.2 step 1: entries that are not live are skipped."""
    aged(e, 3, 900, 500, 5)
    e("XDEL", "s", "1-0")
    assert ids_of(e.claim("g", "c2", 300)) == ["2-0"]


def test_a_deleted_tail_is_not_new(e: Engine) -> None:
    """§4.4: "has new" looks at live entries only."""
    aged(e, 2, 100)
    e("XDEL", "s", "2-0")
    assert e.claim("g", "c2", 60_000) is NIL_ARRAY
    assert e.claim("g", "c2", 50) == [shown("1-0", e.near(100), 1)]
    assert e.group_info()["last-delivered-id"] == "1-0"


def test_several_streams_are_served_in_the_order_of_the_arguments(e: Engine) -> None:
    aged(e, 1, 100, key="a")
    aged(e, 2, 5, key="b")
    aged(e, 1, 100, key="c")
    reply = e("XREADGROUP", "GROUP", "g", "c2", "CLAIM", 50, "STREAMS", "c", "b", "a", ">", ">", ">")
    assert [(key, [item[0] for item in entries]) for key, entries in reply] == [
        ("c", ["1-0"]),
        ("b", ["2-0"]),
        ("a", ["1-0"]),
    ]


# The sticky switch-off (new §4.2, §4.8 case 6)


@pytest.mark.parametrize(
    ("streams", "expected"),
    [
        ("a b 0 >", [("a", {}), ("b", {"2-0": 2})]),
        ("b a > 0", [("b", {"1-0": 4, "2-0": 4}), ("a", {})]),
        ("a b c > 0 >", [("a", {"1-0": 4, "2-0": 4}), ("b", {}), ("c", {"2-0": 2})]),
        ("b c a > > 0", [("b", {"1-0": 4, "2-0": 4}), ("c", {"1-0": 4, "2-0": 4}), ("a", {})]),
    ],
)
def test_a_history_id_switches_claiming_off_for_what_follows(
    e: Engine, streams: str, expected: list[tuple[str, dict[str, int]]]
) -> None:
    """Also when the history was empty; streams before it are not affected. Expected: id to width of the entry."""
    for key in "abc":
        aged(e, 2, 100, key=key)
    reply = e("XREADGROUP", "GROUP", "g", "c2", "CLAIM", 50, "STREAMS", *streams.split())
    assert [(key, {item[0]: len(item) for item in entries}) for key, entries in reply] == expected


def test_after_a_history_id_a_stream_with_due_entries_only_is_left_out(e: Engine) -> None:
    aged(e, 1, 100, key="a")
    aged(e, 1, 100, key="b")
    reply = e("XREADGROUP", "GROUP", "g", "c1", "CLAIM", 50, "STREAMS", "a", "b", "0", ">")
    assert reply == [["a", [entry("1-0")]]]
    assert e.counts(key="b") == {"1-0": 1}


# The claim phase (new §4.3)


def test_the_idle_and_count_shown_are_those_before_this_delivery(e: Engine) -> None:
    """§4.8 case 1: first claim says 1 while XPENDING then says 2; new entries say 0 and 0."""
    aged(e, 2, 250)
    assert e.claim("g", "c2", 100) == [shown("1-0", e.near(250), 1), shown("2-0", 0, 0)]
    assert e.counts() == {"1-0": 2, "2-0": 1}
    assert e.pending()[0][2] == e.near(0)


def test_ghosts_are_skipped_kept_and_free(e: Engine) -> None:
    """§4.8 case 2: never removed, never counted against COUNT."""
    aged(e, 3, 300, 200, 100)
    e("XDEL", "s", "1-0")
    assert ids_of(e.claim("g", "c2", 0, "COUNT", 2)) == ["2-0", "3-0"]
    assert e.owners() == {"1-0": "c1", "2-0": "c2", "3-0": "c2"}
    assert e.counts()["1-0"] == 1


def test_ones_own_entries_are_claimed_too(e: Engine) -> None:
    """§4.8 case 3."""
    aged(e, 1, 100)
    assert e.claim("g", "c1", 50) == [shown("1-0", e.near(100), 1)]
    assert (e.owners(), e.counts()) == ({"1-0": "c1"}, {"1-0": 2})


def test_claim_zero_takes_everything_once(e: Engine) -> None:
    """§4.8 case 4: even entries delivered in the same millisecond; each once a call."""
    e.stream(3, "g")
    e.deliver("g", "c1")
    assert ids_of(e.claim("g", "c2", 0)) == ["1-0", "2-0", "3-0"]
    assert ids_of(e.claim("g", "c2", 0)) == ["1-0", "2-0", "3-0"]
    assert e.counts() == {"1-0": 3, "2-0": 3, "3-0": 3}


def test_count_spans_both_phases(e: Engine) -> None:
    """§4.8 case 5, §4.4: claims can exhaust COUNT, and then last_id does not move."""
    aged(e, 5, 100, 100)
    assert ids_of(e.claim("g", "c2", 50, "COUNT", 2)) == ["1-0", "2-0"]
    assert e.group_info()["last-delivered-id"] == "2-0"
    e("XCLAIM", "s", "g", "c1", 0, "1-0", "2-0", "IDLE", 100)
    assert ids_of(e.claim("g", "c2", 50, "COUNT", 3)) == ["1-0", "2-0", "3-0"]
    assert e.group_info()["last-delivered-id"] == "3-0"


@pytest.mark.parametrize("count", [0, -5])
def test_a_count_of_zero_or_less_is_no_limit(e: Engine, count: int) -> None:
    """§4.4."""
    aged(e, 4, 100, 100)
    assert ids_of(e.claim("g", "c2", 50, "COUNT", count)) == ["1-0", "2-0", "3-0", "4-0"]


def test_count_is_per_stream(e: Engine) -> None:
    aged(e, 2, 100, key="a")
    aged(e, 2, 100, key="b")
    reply = e("XREADGROUP", "GROUP", "g", "c2", "COUNT", 1, "CLAIM", 50, "STREAMS", "a", "b", ">", ">")
    assert [(key, ids_of(entries)) for key, entries in reply] == [("a", ["1-0"]), ("b", ["1-0"])]


def test_the_longest_idle_comes_first_and_the_walk_stops_at_the_first_that_is_not_due(e: Engine) -> None:
    """§4.3."""
    aged(e, 4, 200, 900, 10, 500)
    assert e.claim("g", "c2", 100) == [
        shown("2-0", e.near(900), 1),
        shown("4-0", e.near(500), 1),
        shown("1-0", e.near(200), 1),
    ]
    assert e.owners() == {"1-0": "c2", "2-0": "c2", "3-0": "c1", "4-0": "c2"}


def test_noack_keeps_claimed_entries_pending_and_new_ones_not(e: Engine) -> None:
    """§4.8 case 7."""
    aged(e, 2, 100)
    assert ids_of(e.claim("g", "c2", 50, "NOACK")) == ["1-0", "2-0"]
    assert e.owners() == {"1-0": "c2"}
    assert e.group_info()["last-delivered-id"] == "2-0"


def test_the_idle_of_a_released_entry_is_the_time_itself(e: Engine) -> None:
    """§4.8 case 8, §4.3: not 0, not -1."""
    aged(e, 1, 100)
    e.nack("FAIL", "1-0")
    now = e.near(e.now_ms)
    assert e.claim("g", "c2", 50) == [shown("1-0", now, 1)]


def test_a_released_entry_is_due_only_while_min_idle_is_not_above_the_time(e: Engine) -> None:
    """§4.3: CLAIM with the greatest number does not return it, XCLAIM does."""
    aged(e, 1, 100)
    e.nack("FAIL", "1-0")
    assert e.claim("g", "c2", LLMAX) is NIL_ARRAY
    assert e.claim("g", "c2", e.now_ms + 60_000) is NIL_ARRAY
    assert e("XCLAIM", "s", "g", "c2", LLMAX, "1-0", "JUSTID") == ["1-0"]


@engine_only
def test_a_delivery_in_the_future_counts_as_long_ago(e: Engine) -> None:
    """§4.2 step 1, §4.3: unsigned, so it is claimable and shown with a negative idle; XPENDING shows 0.

    A real server reaches this through RESTORE only, the engine when its clock steps back.
    """
    e.stream(1, "g")
    e.deliver("g", "c1")
    e.wait(-400)
    assert e.pending() == [["1-0", "c1", 0, 1]]
    assert e.claim("g", "c2", LLMAX) == [shown("1-0", -400, 1)]
    assert e.claim("g", "c2", 1) is NIL_ARRAY


def test_claiming_makes_a_consumer_active(e: Engine) -> None:
    """§4.3: consumer active_time := now."""
    aged(e, 1, 100)
    e.claim("g", "c2", 50)
    consumer = e.consumers()["c2"]
    assert (consumer["pending"], consumer["inactive"]) == (1, e.near(0))


def test_an_entry_may_come_twice_after_the_group_was_set_back(e: Engine) -> None:
    """§4.4: claimed, then delivered as new; the stored count ends at 1."""
    aged(e, 1, 100)
    e("XGROUP", "SETID", "s", "g", "0")
    assert e.claim("g", "c2", 50) == [shown("1-0", e.near(100), 1), shown("1-0", 0, 0)]
    assert e.counts() == {"1-0": 1}


def test_an_entry_that_comes_twice_with_noack_keeps_the_claimed_count(e: Engine) -> None:
    """§4.4."""
    aged(e, 1, 100)
    e("XGROUP", "SETID", "s", "g", "0")
    assert ids_of(e.claim("g", "c2", 50, "NOACK")) == ["1-0", "1-0"]
    assert (e.owners(), e.counts()) == ({"1-0": "c2"}, {"1-0": 2})


def test_a_forced_entry_ahead_of_the_group_comes_twice(e: Engine) -> None:
    """§4.4: XNACK FORCE created it ahead."""
    e.stream(1, "g")
    e("XNACK", "s", "g", "FAIL", "IDS", 1, "1-0", "FORCE")
    now = e.near(e.now_ms)
    assert e.claim("g", "c2", 0) == [shown("1-0", now, 0), shown("1-0", 0, 0)]
    assert e.pending() == [["1-0", "c2", e.near(0), 1]]


# The shape of the reply (new §4.5)


def test_the_reply_on_the_wire(e: Engine) -> None:
    e("XADD", "s", "1-0", "f", "v1")
    e("XADD", "s", "2-0", "f", "v2")
    e("XGROUP", "CREATE", "s", "g", "0")
    e.deliver("g", "c1", "COUNT", 1)
    e("XNACK", "s", "g", "FATAL", "IDS", 1, "1-0")
    read = ("XREADGROUP", "GROUP", "g", "c2", "CLAIM", 100, "STREAMS", "s", ">")
    text = spelled(e.wire(*read))
    assert text.startswith("*1 *2 $1 s *2 *4 $3 1-0 *2 $1 f $2 v1 :1")
    assert text.endswith(":9223372036854775807 *4 $3 2-0 *2 $1 f $2 v2 :0 :0")
    assert spelled(e.wire(*read)) == "*-1"
    assert spelled(e.wire(*read, protocol=3)) == "_"
    e("XNACK", "s", "g", "FAIL", "IDS", 1, "1-0", "RETRYCOUNT", 3)
    text = spelled(e.wire(*read, protocol=3))
    assert text.startswith("%1 $1 s *1 *4 $3 1-0 *2 $1 f $2 v1 :1")
    assert text.endswith(" :3")


@engine_only
def test_the_reply_on_the_wire_to_the_millisecond(e: Engine) -> None:
    e("XADD", "s", "1-0", "f", "v1")
    e("XGROUP", "CREATE", "s", "g", "0")
    e.deliver("g", "c1")
    e("XADD", "s", "2-0", "f", "v2")
    e.wait(250)
    expected = "*2 *4 $3 1-0 *2 $1 f $2 v1 :250 :1 *4 $3 2-0 *2 $1 f $2 v2 :0 :0"
    e("COPY", "s", "t")
    read = ("XREADGROUP", "GROUP", "g", "c2", "CLAIM", 100, "STREAMS")
    assert spelled(e.wire(*read, "s", ">")) == f"*1 *2 $1 s {expected}"
    assert spelled(e.wire(*read, "t", ">", protocol=3)) == f"%1 $1 t {expected}"


# BLOCK and CLAIM (new §4.6)


def test_a_waiting_claim_is_served_when_the_entry_is_due(e: Engine) -> None:
    e.stream(1, "g")
    e.deliver("g", "c1")
    reader = e.block("XREADGROUP", "GROUP", "g", "c2", "BLOCK", 5000, "CLAIM", 200, "STREAMS", "s", ">")
    assert reader.is_waiting()
    e.wait(201)
    assert reader.reply() == [["s", [shown("1-0", e.near(201), 1)]]]


@engine_only
def test_a_waiting_claim_knows_when_it_is_due(e: PythonEngine) -> None:
    """wake_at = min-idle + the time of the oldest live pending entry of all keys, else + now."""
    e.stream(2, "g", key="a")
    e.stream(2, "g", key="b")
    read = ("XREADGROUP", "GROUP", "g", "c2", "BLOCK", 5000, "CLAIM", 1000, "STREAMS", "a", "b", ">", ">")
    e.deliver("g", "c1", key="a")
    start = e.now_ms
    e.wait(30)
    e.deliver("g", "c1", key="b")
    e.wait(30)
    assert e.outcome(*read, may_block=True).reply.wake_at_ms == start + 1000
    e("XDEL", "a", "1-0", "2-0")  # ghosts are not seen
    assert e.outcome(*read, may_block=True).reply.wake_at_ms == start + 1030
    e("XACK", "b", "g", "1-0", "2-0")
    wait = e.outcome(*read, may_block=True).reply
    assert wait.wake_at_ms == start + 60 + 1000
    assert (wait.keys, wait.timeout_ms, wait.group) == ((b"a", b"b"), 5000, True)


@engine_only
def test_a_read_without_claim_has_no_time_of_its_own(e: PythonEngine) -> None:
    e.stream(1, "g")
    e.deliver("g", "c1")
    read = ("XREADGROUP", "GROUP", "g", "c2", "BLOCK", 0, "STREAMS", "s", ">")
    assert e.outcome(*read, may_block=True).reply.wake_at_ms is None


@engine_only
def test_a_claim_does_not_wait_where_blocking_is_not_allowed(e: Engine) -> None:
    """§4.6: inside MULTI and scripts the reply is the null array at once."""
    e.stream(1, "g")
    e.deliver("g", "c1")
    assert e("XREADGROUP", "GROUP", "g", "c2", "BLOCK", 0, "CLAIM", 1000, "STREAMS", "s", ">") is NIL_ARRAY


@pytest.mark.parametrize(
    "words",
    [
        "XCLAIM s g c1 0 1-0 IDLE 9000",
        "XCLAIM s g c1 0 1-0 TIME 5",
        "XGROUP SETID s g 0",
        "XACK s g 2-0",
        "XDELEX s IDS 1 2-0",
        "XACKDEL s g IDS 1 2-0",
        "XAUTOCLAIM s g c1 0 0",
    ],
)
def test_these_do_not_wake_a_waiting_claim(e: Engine, words: str) -> None:
    """§4.6, table: noticed only at the registered time."""
    e.stream(2, "g")
    e.deliver("g", "c1")
    reader = e.block("XREADGROUP", "GROUP", "g", "c2", "BLOCK", 0, "CLAIM", 5000, "STREAMS", "s", ">")
    e(*words.split())
    assert reader.is_waiting()


def test_an_entry_made_older_is_noticed_at_the_registered_time(e: Engine) -> None:
    """§4.6, table, and §4.8 case 9: the whole command runs again then."""
    e.stream(2, "g")
    e.deliver("g", "c1")
    reader = e.block("XREADGROUP", "GROUP", "g", "c2", "BLOCK", 0, "CLAIM", 250, "STREAMS", "s", ">")
    e("XCLAIM", "s", "g", "c1", 0, "2-0", "IDLE", 9000)
    e("XACK", "s", "g", "1-0")
    assert reader.is_waiting()
    e.wait(251)
    ((_, entries),) = reader.reply()
    assert ids_of(entries) == ["2-0"]


def test_an_entry_claimed_meanwhile_makes_the_reader_wait_on(e: Engine) -> None:
    """§4.8 case 9: a timer that ignores later changes would hand it out."""
    e.stream(1, "g")
    e.deliver("g", "c1")
    reader = e.block("XREADGROUP", "GROUP", "g", "c2", "BLOCK", 0, "CLAIM", 200, "STREAMS", "s", ">")
    e.wait(120)
    e("XCLAIM", "s", "g", "c3", 0, "1-0")
    e.wait(100)
    assert reader.is_waiting()
    e.wait(150)
    ((_, entries),) = reader.reply()
    assert ids_of(entries) == ["1-0"]


def test_release_wakes_claims_of_the_same_group_only(e: Engine) -> None:
    """§4.6: others silently block again."""
    e.stream(1, "g", "h")
    e.deliver("g", "c1")
    e.deliver("h", "c1")
    block = ("BLOCK", 0, "STREAMS", "s", ">")
    plain = e.block("XREADGROUP", "GROUP", "g", "c2", *block)
    other = e.block("XREADGROUP", "GROUP", "h", "c2", "CLAIM", 60_000, *block)
    claims = e.block("XREADGROUP", "GROUP", "g", "c3", "CLAIM", 60_000, *block)
    e.nack("FAIL", "1-0")
    ((_, entries),) = claims.reply()
    assert ids_of(entries) == ["1-0"]
    assert plain.is_waiting()
    assert other.is_waiting()


def test_released_entries_are_shared_by_waiters_in_the_order_they_came(e: Engine) -> None:
    """§4.6: subject to COUNT."""
    e.stream(3, "g")
    e.deliver("g", "c1")
    block = ("COUNT", 1, "CLAIM", 60_000, "BLOCK", 0, "STREAMS", "s", ">")
    readers = [e.block("XREADGROUP", "GROUP", "g", name, *block) for name in ("x", "y")]
    e.nack("FAIL", "3-0", "1-0", "2-0")
    assert [ids_of(reader.reply()[0][1]) for reader in readers] == [["3-0"], ["1-0"]]


def test_two_waiters_and_one_new_entry(e: Engine) -> None:
    """§4.8 case 10: the second stays blocked and claims it when it is idle enough."""
    e("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    block = ("BLOCK", 0, "CLAIM", 200, "STREAMS", "s", ">")
    first = e.block("XREADGROUP", "GROUP", "g", "c1", *block)
    second = e.block("XREADGROUP", "GROUP", "g", "c2", *block)
    e("XADD", "s", "1-0", "f", "v")
    assert first.reply() == [["s", [shown("1-0", 0, 0)]]]
    assert second.is_waiting()
    e.wait(201)
    assert second.reply() == [["s", [shown("1-0", e.near(201), 1)]]]


def test_a_shorter_min_idle_is_served_first_and_the_longer_one_starts_over(e: Engine) -> None:
    """§4.6: min-idle 900 and 300 on one entry, here 450 and 150."""
    e.stream(1, "g")
    e.deliver("g", "c1")
    long = e.block("XREADGROUP", "GROUP", "g", "c2", "BLOCK", 0, "CLAIM", 450, "STREAMS", "s", ">")
    short = e.block("XREADGROUP", "GROUP", "g", "c3", "BLOCK", 0, "CLAIM", 150, "STREAMS", "s", ">")
    e.wait(151)
    assert ids_of(short.reply()[0][1]) == ["1-0"]
    e.wait(310)
    assert long.is_waiting()
    e.wait(160)
    assert ids_of(long.reply()[0][1]) == ["1-0"]


@pytest.mark.parametrize("words", ["XGROUP DESTROY s g", "DEL s"])
def test_a_waiting_claim_learns_that_its_group_is_gone(e: Engine, words: str) -> None:
    e.stream(1, "g")
    e.deliver("g", "c1")
    reader = e.block("XREADGROUP", "GROUP", "g", "c2", "BLOCK", 0, "CLAIM", 60_000, "STREAMS", "s", ">")
    e(*words.split())
    assert reader.reply() == Failure(NO_GROUP)


def test_a_waiting_claim_learns_that_its_key_was_replaced(e: Engine) -> None:
    e.stream(1, "g")
    e.deliver("g", "c1")
    reader = e.block("XREADGROUP", "GROUP", "g", "c2", "BLOCK", 0, "CLAIM", 60_000, "STREAMS", "s", ">")
    e("SET", "s", "x")
    assert reader.reply() == Failure(WRONG_TYPE)


def test_a_waiting_claim_times_out_with_a_null_array(e: Engine) -> None:
    e.stream(1, "g")
    e.deliver("g", "c1")
    reader = e.block("XREADGROUP", "GROUP", "g", "c2", "BLOCK", 100, "CLAIM", 60_000, "STREAMS", "s", ">")
    assert reader.is_waiting()
    e.wait(100)
    assert reader.reply() is NIL_ARRAY
