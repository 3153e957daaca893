"""What commands report of what they did: log, events, touched and readied keys, changes.

The table of new §9, the propagation forms of new §4.7 and §7.5 and of base §9, the counts of base §2.3, what
WATCH sees (base §7.17). `now` in a logged line is the command's own time.
"""

from __future__ import annotations

import pytest

from .support import TOP_ID, Did, Engine, Failure, PythonEngine, engine_only


def held(e: Engine) -> None:
    """1-0 to 3-0; c of group g holds 1-0 and 2-0; 3-0 is new."""
    e.stream(3, "g")
    e.deliver("g", "c", "COUNT", 2)


def nothing(reply: object) -> Did:
    """No effect at all."""
    return Did(reply=reply, log=[], events=[], touched=[], dirty=0)


def claimed(entry_id: str, *, to: str = "d", count: int, last: str = "2-0", time: str = "now", key: str = "s") -> str:
    """How a delivery to a consumer of group g is logged."""
    tail = f"TIME {time} RETRYCOUNT {count} FORCE JUSTID LASTID {last}"
    return f"XCLAIM {key} g {to} 0 {entry_id} {tail}"


# The whole table for commands that are logged as they came (new §9, base §9)

VERBATIM = [  # words, reply, events, touched, ready, dirty
    ("XADD s 9-0 f v", "9-0", ["xadd s"], True, True, 1),
    ("xadd s 9 F v", "9-0", ["xadd s"], True, True, 1),
    ("XADD s NOMKSTREAM MAXLEN 1 9-0 f v", "9-0", ["xadd s", "xtrim s"], True, True, 1),
    ("XADD s MAXLEN = 9 9-0 f v", "9-0", ["xadd s"], True, True, 1),
    ("XADD s DELREF MINID 3 9-0 f v", "9-0", ["xadd s", "xtrim s"], True, True, 1),
    ("XDEL s 1-0 2-0 7-0", 2, ["xdel s"], True, False, 2),
    ("XDELEX s ACKED IDS 1 3-0", [2], None, False, False, 0),
    ("XDELEX s IDS 2 1-0 3-0", [1, 1], ["xdel s"], True, False, 2),
    ("XTRIM s MAXLEN 1", 2, ["xtrim s"], True, False, 2),
    ("xtrim s minid = 2 DELREF", 1, ["xtrim s"], True, False, 1),
    ("XSETID s 9-0", "OK", ["xsetid s"], False, False, 1),
    ("XGROUP CREATE s new $", "OK", ["xgroup-create s"], False, False, 1),
    ("xgroup create s new 0 ENTRIESREAD 2", "OK", ["xgroup-create s"], False, False, 1),
    ("XGROUP SETID s g $", "OK", ["xgroup-setid s"], False, False, 1),
    ("XGROUP DESTROY s g", 1, ["xgroup-destroy s"], False, True, 1),
    ("XGROUP CREATECONSUMER s g d", 1, ["xgroup-createconsumer s"], False, False, 1),
    ("XGROUP DELCONSUMER s g c", 2, ["xgroup-delconsumer s"], False, False, 1),
    ("XACK s g 1-0 2-0 3-0 1-0", 2, [], False, False, 2),
    ("XACKDEL s g IDS 2 1-0 9-9", [1, -1], ["xdel s"], True, False, 1),
    ("XACKDEL s g ACKED IDS 2 1-0 2-0", [1, 1], ["xdel s"], True, False, 2),
    ("XNACK s g FAIL IDS 2 1-0 1-0", 2, [], False, True, 2),
    ("xnack s g silent retrycount 3 ids 1 01", 1, [], False, True, 1),
    ("XNACK s g FATAL IDS 2 3-0 9-9 FORCE", 1, [], False, True, 1),
    ("XCFGSET s IDMP-DURATION 7", "OK", [], False, False, 1),
    ("XIDMPRECORD s p i 1", "OK", [], False, False, 1),
]


@pytest.mark.parametrize(
    ("words", "reply", "events", "touched", "ready", "dirty"), VERBATIM, ids=[row[0] for row in VERBATIM]
)
def test_a_command_with_effect_is_logged_as_it_came(
    e: Engine, words: str, reply: object, events: list[str] | None, touched: bool, ready: bool, dirty: int
) -> None:
    held(e)
    assert e.did(*words.split()) == Did(
        reply=reply,
        log=[words] if dirty else [],
        events=events or [],
        touched=["s"] if touched else [],
        ready=["s"] if ready else [],
        dirty=dirty,
    )


NO_EFFECT = [
    ("XADD none NOMKSTREAM * f v", None),
    ("XDEL s 9-9", 0),
    ("XDEL none 1-0", 0),
    ("XDELEX s IDS 1 9-9", [-1]),
    ("XTRIM s MAXLEN 3", 0),
    ("XTRIM s MAXLEN ~ 1", 0),
    ("XTRIM s MAXLEN 0 ACKED", 0),
    ("XTRIM none MAXLEN 0", 0),
    ("XACK s g 3-0", 0),
    ("XACKDEL s g IDS 1 3-0", [-1]),
    ("XNACK s g FAIL IDS 1 3-0", 0),
    ("XGROUP DESTROY s nog", 0),
    ("XGROUP CREATECONSUMER s g c", 0),
    ("XGROUP DELCONSUMER s g d", 0),
    ("XCLAIM s g c 60000 1-0", []),
    ("XCLAIM s g c 0 3-0", []),
    ("XCLAIM s g c 60000 1-0 LASTID 2-0", []),
    ("XCLAIM s g c 60000 1-0 LASTID 1-0", []),
    ("XAUTOCLAIM s g c 60000 0", ["0-0", [], []]),
    ("XCFGSET s IDMP-DURATION 100 IDMP-MAXSIZE 100", "OK"),
    ("XLEN s", 3),
    ("XPENDING s g - + 0", []),
]


@pytest.mark.parametrize(("words", "reply"), NO_EFFECT, ids=[row[0] for row in NO_EFFECT])
def test_a_command_without_effect_reports_none(e: Engine, words: str, reply: object) -> None:
    held(e)
    assert e.did(*words.split(), watch=("s", "none")) == nothing(reply)


def test_a_history_read_reports_nothing(e: Engine) -> None:
    """New §4.7: count and time change locally only."""
    held(e)
    did = e.did("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", 0)
    assert did == nothing(did.reply)
    assert e.counts() == {"1-0": 2, "2-0": 2}


def test_recording_a_known_id_reports_nothing(e: Engine) -> None:
    """New §8.5."""
    held(e)
    e("XIDMPRECORD", "s", "p", "i", "1-0")
    assert e.did("XIDMPRECORD", "s", "p", "i", "1-0") == nothing("OK")


@pytest.mark.parametrize(
    "words",
    [
        "XADD s 1-0 f v",
        "XADD s MAXLEN 0 1-0 f v",
        "XNACK s g FAIL IDS 2 1-0 x",
        "XDEL s 1-0 x",
        "XACK s g 1-0 x",
        "XDELEX s IDS 2 1-0 x",
        "XACKDEL s g IDS 2 1-0 x",
        "XTRIM s MAXLEN -1",
        "XGROUP CREATE s g 0",
        "XREADGROUP GROUP g new STREAMS s none > >",
        "XCLAIM s g new 0 1-0 NOSUCH",
        "XAUTOCLAIM s g new 0 0 COUNT 0",
        "XSETID s 2-0",
        "XGROUP SETID s g x",
    ],
)
def test_a_refused_command_has_no_effect(e: Engine, words: str) -> None:
    held(e)
    did = e.did(*words.split())
    assert isinstance(did.reply, Failure)
    assert did == nothing(did.reply)


# XADD and XTRIM (new §7.5, §9, base §9)


@pytest.mark.parametrize("written", ["*", "99999999999999-*"])
def test_a_generated_id_is_logged(e: Engine, written: str) -> None:
    held(e)
    did = e.did("XADD", "s", written, "f", "*")
    assert did.log == [f"XADD s {did.reply} f *"]


def test_making_a_stream_is_told_before_adding_to_it(e: Engine) -> None:
    """Base §8.3, class n."""
    did = e.did("XADD", "s", "1-0", "f", "v", classes="tn")
    assert (did.events, did.touched, did.ready) == (["new s", "xadd s"], ["s"], ["s"])


def test_making_a_stream_for_a_group_touches_its_key(e: Engine) -> None:
    """Base §7.17, §8.3."""
    did = e.did("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM", classes="tn")
    assert (did.log, did.events) == (["XGROUP CREATE s g $ MKSTREAM"], ["new s", "xgroup-create s"])
    assert (did.touched, did.dirty) == (["s"], 1)


@pytest.mark.parametrize(
    ("words", "logged"),
    [
        # the resulting length, also if nothing was trimmed
        ("MAXLEN ~ 5", "MAXLEN = 5"),
        ("MAXLEN ~ 6", "MAXLEN = 7"),
        ("MAXLEN ~ 100", "MAXLEN = 11"),
        ("maxlen ~ 5 limit 2", "maxlen = 9 limit 2"),
        ("MAXLEN ~ 5 LIMIT 0 KEEPREF NOMKSTREAM", "MAXLEN = 5 LIMIT 0 KEEPREF NOMKSTREAM"),
        ("DELREF MAXLEN ~ 6", "DELREF MAXLEN = 6"),
        # the id of the oldest entry still stored
        ("MINID ~ 6", "MINID = 5-0"),
        ("MINID ~ 1", "MINID = 1-0"),
        ("MINID ~ 99999999999999999", f"MINID = {TOP_ID}"),
        ("MAXLEN ~ 0", "MAXLEN = 0"),
    ],
)
def test_xadd_logs_what_an_approximate_trim_came_to(e: Engine, words: str, logged: str) -> None:
    """New §7.5: XADD does this whenever `~` was used."""
    e.configure("stream-node-max-entries", 2)
    e.stream(10)
    did = e.did("XADD", "s", *words.split(), "11-0", "f", "v")
    assert did.log == [f"XADD s {logged} 11-0 f v"]
    assert did.dirty == 1


@pytest.mark.parametrize(
    ("words", "removed", "logged"),
    [
        ("MAXLEN ~ 5", 4, "MAXLEN = 6"),
        ("maxlen ~ 0 LIMIT 4", 4, "maxlen = 6 LIMIT 4"),
        ("MAXLEN ~ 5 DELREF", 5, "MAXLEN = 5 DELREF"),
        ("MAXLEN ~ 5 ACKED", 5, "MAXLEN = 5 ACKED"),
        ("MINID ~ 6", 4, "MINID = 5-0"),
        ("MINID ~ 99", 10, f"MINID = {TOP_ID}"),
    ],
)
def test_xtrim_logs_what_an_approximate_trim_came_to(e: Engine, words: str, removed: int, logged: str) -> None:
    """New §7.5."""
    e.configure("stream-node-max-entries", 2)
    e.stream(10)
    did = e.did("XTRIM", "s", *words.split())
    assert (did.reply, did.dirty, did.events, did.touched) == (removed, removed, ["xtrim s"], ["s"])
    assert did.log == [f"XTRIM s {logged}"]


def test_the_logged_id_may_be_that_of_a_dead_entry(e: Engine) -> None:
    """New §7.5: first stored id, tombstones included."""
    e.configure("stream-node-max-entries", 3)
    e.stream(6)
    e("XDEL", "s", "4-0")
    assert e.did("XTRIM", "s", "MINID", "~", "5-0").log == ["XTRIM s MINID = 4-0"]


@engine_only
@pytest.mark.parametrize("command", ["XTRIM s MINID ~ 4 {}", "XADD s {} MINID ~ 4 7-0 f v"])
@pytest.mark.parametrize("strategy", ["DELREF", "ACKED"])
def test_a_replayed_minid_trim_deletes_what_was_deleted(e: PythonEngine, command: str, strategy: str) -> None:
    """New §7.5: here 8.10.2 logs a threshold that deletes nothing, which is not copied."""
    e.stream(6)
    e(*command.format(strategy).split())
    assert e.live()[:3] == ["4-0", "5-0", "6-0"]
    assert e.replayed().live() == e.live()


# Idempotent production (new §8.2, §9)


def test_an_idempotent_append_is_logged_with_its_id_and_words(e: Engine) -> None:
    did = e.did("XADD", "s", "IDMP", "p", "i", "MAXLEN", "~", 9, "*", "f", "v")
    assert did.log == [f"XADD s IDMP p i MAXLEN = 1 {did.reply} f v"]
    assert (did.events, did.touched, did.ready, did.dirty) == (["xadd s"], ["s"], ["s"], 1)


def test_a_duplicate_is_a_change_for_the_log_only(e: Engine) -> None:
    """New §8.7 case 2: logged as it came, `*` and `~` untouched."""
    first = e("XADD", "s", "IDMPAUTO", "p", "*", "f", "v")
    did = e.did("XADD", "s", "IDMPAUTO", "p", "MAXLEN", "~", 0, "*", "f", "v")
    assert did == Did(reply=first, log=["XADD s IDMPAUTO p MAXLEN ~ 0 * f v"], events=[], touched=[], ready=[], dirty=1)


# XREADGROUP (new §4.7, base §9)


def test_a_delivery_is_logged_as_claims_and_a_position(e: Engine) -> None:
    """LASTID is the group's last id before the read; the new consumer is implied by the claims."""
    held(e)
    e.fill(4, 4)
    did = e.did("XREADGROUP", "GROUP", "g", "d", "STREAMS", "s", ">")
    assert did.log == [claimed("3-0", count=1), claimed("4-0", count=1), "XGROUP SETID s g 4-0 ENTRIESREAD 4"]
    assert (did.events, did.touched, did.ready, did.dirty) == (["xgroup-createconsumer s"], [], [], 2)


def test_an_unknown_number_of_entries_read_is_logged_as_minus_one(e: Engine) -> None:
    """Base §9; a tombstone ahead of the group hides the number (base §7.15)."""
    held(e)
    e.fill(4, 5)
    e("XDEL", "s", "4-0")
    did = e.did("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "s", ">")
    assert did.log == [claimed("3-0", to="c", count=1), "XGROUP SETID s g 3-0 ENTRIESREAD -1"]
    assert (did.events, did.dirty) == ([], 1)


def test_a_delivery_without_ack_is_logged_as_a_position(e: Engine) -> None:
    """Base §9: SETID, then CREATECONSUMER if it was made."""
    held(e)
    did = e.did("XREADGROUP", "GROUP", "g", "d", "NOACK", "STREAMS", "s", ">")
    assert did.log == ["XGROUP SETID s g 3-0 ENTRIESREAD 3", "XGROUP CREATECONSUMER s g d"]
    assert (did.events, did.dirty) == (["xgroup-createconsumer s"], 2)
    e.fill(4, 4)
    did = e.did("XREADGROUP", "GROUP", "g", "d", "NOACK", "STREAMS", "s", ">")
    assert (did.log, did.events, did.dirty) == (["XGROUP SETID s g 4-0 ENTRIESREAD 4"], [], 1)


@pytest.mark.parametrize("words", ["STREAMS s 0", "NOACK STREAMS s 0", "CLAIM 60000 STREAMS s >", "STREAMS s >"])
def test_a_consumer_made_by_a_read_of_nothing_is_logged(e: Engine, words: str) -> None:
    """New §4.7 step 4, base §9."""
    held(e)
    e("XGROUP", "SETID", "s", "g", "$")
    did = e.did("XREADGROUP", "GROUP", "g", "d", *words.split())
    assert did.log == ["XGROUP CREATECONSUMER s g d"]
    assert (did.events, did.touched, did.dirty) == (["xgroup-createconsumer s"], [], 1)
    did = e.did("XREADGROUP", "GROUP", "g", "d", *words.split())
    assert did == nothing(did.reply)


@engine_only
def test_a_consumer_made_by_a_read_that_waits_is_logged(e: PythonEngine) -> None:
    """Base §9: … or blocked."""
    e("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    words = ("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">")
    outcome = e.outcome(*words, may_block=True)
    assert outcome.log == [(0, (b"XGROUP", b"CREATECONSUMER", b"s", b"g", b"c"))]
    assert outcome.dirty == 1
    assert e.outcome(*words, may_block=True).log == []


def test_a_read_with_claim_logs_claims_then_deliveries_then_the_position(e: Engine) -> None:
    """New §4.7: RETRYCOUNT is the count after the delivery."""
    held(e)
    e.nack("FAIL", "2-0")
    e("XCLAIM", "s", "g", "c", 0, "1-0", "RETRYCOUNT", 6)
    did = e.did("XREADGROUP", "GROUP", "g", "d", "CLAIM", 0, "STREAMS", "s", ">")
    assert did.log == [
        claimed("2-0", count=2),
        claimed("1-0", count=7),
        claimed("3-0", count=1),
        "XGROUP SETID s g 3-0 ENTRIESREAD 3",
    ]
    assert (did.events, did.touched, did.ready, did.dirty) == (["xgroup-createconsumer s"], [], [], 2)


def test_a_read_that_only_claims_logs_no_position(e: Engine) -> None:
    held(e)
    did = e.did("XREADGROUP", "GROUP", "g", "c", "CLAIM", 0, "COUNT", 1, "STREAMS", "s", ">")
    assert (did.log, did.events, did.dirty) == ([claimed("1-0", to="c", count=2)], [], 1)


def test_claims_of_a_read_without_ack_are_logged(e: Engine) -> None:
    """New §4.7 step 4: with NOACK the made consumer is logged as well."""
    held(e)
    did = e.did("XREADGROUP", "GROUP", "g", "d", "NOACK", "CLAIM", 0, "STREAMS", "s", ">")
    assert did.log == [
        claimed("1-0", count=2),
        claimed("2-0", count=2),
        "XGROUP SETID s g 3-0 ENTRIESREAD 3",
        "XGROUP CREATECONSUMER s g d",
    ]
    assert did.dirty == 2


def test_each_stream_of_a_read_counts_as_one_change(e: Engine) -> None:
    """New §9: dirty +1 per stream with effects and per made consumer."""
    e.stream(1, "g", key="a")
    e.stream(1, "g", key="b")
    e.deliver("g", "d", key="b")
    e.fill(2, 2, "b")
    did = e.did("XREADGROUP", "GROUP", "g", "d", "STREAMS", "a", "b", ">", ">", watch=("a", "b"))
    assert did.log == [
        claimed("1-0", count=1, last="0-0", key="a"),
        "XGROUP SETID a g 1-0 ENTRIESREAD 1",
        claimed("2-0", count=1, last="1-0", key="b"),
        "XGROUP SETID b g 2-0 ENTRIESREAD 2",
    ]
    assert (did.events, did.touched, did.dirty) == (["xgroup-createconsumer a"], [], 3)


# XCLAIM and XAUTOCLAIM (new §9, base §9)


def test_a_claim_is_logged_with_the_ids_as_typed(e: Engine) -> None:
    """New §9: TIME and RETRYCOUNT are what the entry now has."""
    held(e)
    did = e.did("XCLAIM", "s", "g", "d", 0, "01", "2-00")
    assert did.log == [claimed("01", count=2), claimed("2-00", count=2)]
    assert (did.events, did.touched, did.ready, did.dirty) == (["xgroup-createconsumer s"], [], [], 3)


def test_a_claim_logs_the_time_and_count_it_was_told(e: Engine) -> None:
    held(e)
    did = e.did("XCLAIM", "s", "g", "c", 0, "1-0", "TIME", 1000, "RETRYCOUNT", 9, "JUSTID")
    assert (did.log, did.dirty) == ([claimed("1-0", to="c", count=9, time="1000")], 1)


def test_a_forced_claim_is_logged(e: Engine) -> None:
    held(e)
    did = e.did("XCLAIM", "s", "g", "c", 0, "3-0", "FORCE")
    assert (did.log, did.dirty) == ([claimed("3-0", to="c", count=2)], 1)


def test_an_autoclaim_logs_canonical_ids(e: Engine) -> None:
    held(e)
    did = e.did("XAUTOCLAIM", "s", "g", "d", 0, "01", "JUSTID")
    assert did.log == [claimed("1-0", count=1), claimed("2-0", count=1)]
    assert (did.events, did.dirty) == (["xgroup-createconsumer s"], 3)


def test_a_lastid_travels_with_the_claims(e: Engine) -> None:
    held(e)
    did = e.did("XCLAIM", "s", "g", "c", 0, "1-0", "LASTID", "3-0")
    assert (did.log, did.dirty) == ([claimed("1-0", to="c", count=2, last="3-0")], 1)


def test_a_lastid_without_claims_is_logged_as_a_position(e: Engine) -> None:
    held(e)
    did = e.did("XCLAIM", "s", "g", "c", 60_000, "1-0", "LASTID", "3-0")
    assert did.log == ["XGROUP SETID s g 3-0 ENTRIESREAD 2"]
    assert (did.reply, did.events, did.dirty) == ([], [], 1)


@pytest.mark.parametrize("words", ["XCLAIM s g d 60000 1-0", "XAUTOCLAIM s g d 60000 0"])
def test_a_consumer_made_by_a_claim_of_nothing_is_not_logged(e: Engine, words: str) -> None:
    """New §9, base §9, trap."""
    held(e)
    did = e.did(*words.split())
    assert (did.log, did.events, did.dirty) == ([], ["xgroup-createconsumer s"], 1)


@pytest.mark.parametrize("words", ["XCLAIM s g d 60000 1-0 2-0", "XAUTOCLAIM s g d 60000 0"])
def test_a_dropped_ghost_is_logged_as_a_claim_of_its_owner_or_as_an_ack(e: Engine, words: str) -> None:
    """New §9: an owned one replays as a claim of the old owner, which drops it; an unowned one as XACK."""
    held(e)
    e("XGROUP", "CREATECONSUMER", "s", "g", "d")
    e("XCLAIM", "s", "g", "c", 0, "1-0", "TIME", 1000, "RETRYCOUNT", 4)
    e.nack("FAIL", "2-0")
    e("XDEL", "s", "1-0", "2-0")
    did = e.did(*words.split())
    assert did.log == [claimed("1-0", to="c", count=4, time="1000"), "XACK s g 2-0"]
    assert (did.events, did.touched, did.dirty) == ([], [], 2)


# Deleting (new §7.1, §7.2, §9)


def test_dropping_references_of_a_ghost_only_is_not_logged(e: Engine) -> None:
    """New §7.1: still so in 8.10.2."""
    held(e)
    e("XDEL", "s", "1-0")
    assert e.did("XDELEX", "s", "DELREF", "IDS", 1, "1-0") == nothing([-1])
    assert list(e.owners()) == ["2-0"]


@pytest.mark.parametrize("strategy", ["KEEPREF", "DELREF", "ACKED"])
def test_only_acknowledging_is_no_modification(e: Engine, strategy: str) -> None:
    """New §7.2, §9, row XACKDEL: no event, no modified signal; dirty counts acks, not deletions."""
    held(e)
    e("XGROUP", "CREATE", "s", "behind", "0")
    if strategy != "ACKED":
        e("XDEL", "s", "1-0")
    did = e.did("XACKDEL", "s", "g", strategy, "IDS", 1, "1-0")
    assert did == Did(
        reply=[2 if strategy == "ACKED" else 1],
        log=[f"XACKDEL s g {strategy} IDS 1 1-0"],
        events=[],
        touched=[],
        ready=[],
        dirty=1,
    )


def test_one_event_for_several_deletions(e: Engine) -> None:
    """New §7.7 case 10."""
    held(e)
    assert e.did("XDELEX", "s", "IDS", 3, "1-0", "2-0", "3-0").events == ["xdel s"]


# Keys that come and go with other commands


@pytest.mark.parametrize(
    ("words", "misses"),
    [
        ("XLEN none", 1),
        ("XRANGE none - +", 1),
        ("XREVRANGE none + -", 1),
        ("XREAD STREAMS none 0", 2),
        ("XREAD STREAMS none $", 2),
        ("XREAD STREAMS none none 0 +", 4),
        ("XPENDING none g", 1),
        ("XPENDING none g - + 1", 1),
        ("XINFO STREAM none", 1),
        ("XINFO GROUPS none", 1),
        ("XINFO CONSUMERS none g", 1),
        ("XREADGROUP GROUP g c STREAMS none >", 1),
        ("XACK none g 1", 1),
        ("XACKDEL none g IDS 1 1-0", 1),
        ("XCLAIM none g c 0 1-0", 1),
        ("XAUTOCLAIM none g c 0 0", 1),
        ("XADD none NOMKSTREAM * f v", 0),
        ("XDEL none 1-0", 0),
        ("XTRIM none MAXLEN 0", 0),
        ("XDELEX none IDS 1 1-0", 0),
        ("XNACK none g FAIL IDS 1 1-0", 0),
        ("XGROUP DESTROY none g", 0),
        ("XSETID none 1-0", 0),
        ("XCFGSET none IDMP-DURATION 1", 0),
        ("XIDMPRECORD none p i 1-0", 0),
    ],
)
def test_which_commands_tell_that_a_key_is_missing(e: Engine, words: str, misses: int) -> None:
    """Base §8.3, class m, and what 8.10.2 does beyond it: by how the key is looked up, not by what is done."""
    assert e.did(*words.split(), classes="m").events == ["keymiss none"] * misses


@engine_only
def test_an_expired_stream_is_deleted_before_it_is_made_anew(e: Engine) -> None:
    """Base §3, §9: a real server's background cycle would be there first."""
    e.stream(3, "g")
    e("PEXPIRE", "s", 20)
    e.wait(30)
    did = e.did("XADD", "s", "1-0", "f", "v", classes="tx", watch=())
    assert did.log == ["DEL s", "XADD s 1-0 f v"]
    assert did.events == ["expired s", "xadd s"]


# Replay (base §9)


def visible(e: Engine, key: str = "s") -> object:
    """What a log must bring back: all but the times when consumers were seen or active."""
    full = e.full(key, "COUNT", 0)
    for group in full["groups"]:
        for consumer in group["consumers"]:
            del consumer["seen-time"], consumer["active-time"]
    return full


@engine_only
@pytest.mark.parametrize(
    "script",
    [
        ["XADD s * f v", "XADD s MAXLEN ~ 1 * f v", "XADD s 99999999999999-* f v"],
        [
            "XGROUP CREATE s g $ MKSTREAM",
            "XADD s 1-0 f v",
            "XADD s 2-0 f v",
            "XREADGROUP GROUP g c STREAMS s >",
            "XNACK s g FAIL IDS 2 2-0 1-0",
            "XREADGROUP GROUP g d CLAIM 0 COUNT 1 STREAMS s >",
        ],
        [
            "XADD s 1-0 f v",
            "XADD s 2-0 f v",
            "XGROUP CREATE s g 0",
            "XREADGROUP GROUP g c NOACK STREAMS s >",
            "XREADGROUP GROUP g d STREAMS s 0",
            "XGROUP SETID s g 0",
            "XREADGROUP GROUP g d COUNT 1 STREAMS s >",
        ],
        [
            "XADD s 1-0 f v",
            "XADD s 2-0 f v",
            "XGROUP CREATE s g 0",
            "XREADGROUP GROUP g c STREAMS s >",
            "XDEL s 1-0",
            "XAUTOCLAIM s g d 0 0",
            "XCLAIM s g e 0 2-0 IDLE 500 RETRYCOUNT 9 LASTID 7-0",
        ],
        [
            "XADD s 1-0 f v",
            "XGROUP CREATE s g 0",
            "XREADGROUP GROUP g c STREAMS s >",
            "XNACK s g FATAL IDS 1 1-0",
            "XDEL s 1-0",
            "XAUTOCLAIM s g c 0 0",
        ],
        [
            "XADD s IDMP p i * f v",
            "XADD s IDMP p i * f v",
            "XADD s IDMPAUTO q * f v",
            "XCFGSET s IDMP-MAXSIZE 5",
            "XADD s IDMP p j MAXLEN ~ 1 * f v",
        ],
        [
            "XADD s 1-0 f v",
            "XADD s 2-0 f v",
            "XADD s 3-0 f v",
            "XGROUP CREATE s g 0",
            "XGROUP CREATE s h 2-0",
            "XREADGROUP GROUP g c STREAMS s >",
            "XACKDEL s g ACKED IDS 2 1-0 3-0",
            "XDELEX s DELREF IDS 1 2-0",
            "XTRIM s MAXLEN ~ 0 DELREF",
            "XSETID s 9-0 ENTRIESADDED 50 MAXDELETEDID 4-0",
        ],
    ],
    ids=lambda script: script[-1],
)
def test_replaying_the_log_brings_everything_back(e: PythonEngine, script: list[str]) -> None:
    """Outcomes, not requests: a minute later, on another clock, the same state."""
    for words in script:
        e(*words.split())
        e.wait(7)
    assert visible(e.replayed()) == visible(e)


@engine_only
def test_a_log_ignores_the_limits_of_its_trims(e: PythonEngine) -> None:
    """Base §9, trap: replay with another node size must give the same length."""
    e.configure("stream-node-max-entries", 2)
    e.stream(10)
    e("XADD", "s", "MAXLEN", "~", 0, "LIMIT", 3, "11-0", "f", "v")
    assert e("XLEN", "s") == 9
    assert e.replayed().live() == e.live()
