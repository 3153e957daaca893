"""XADD IDMP and IDMPAUTO, XCFGSET, XIDMPRECORD (new §8)."""

from __future__ import annotations

import pytest

from .support import BAD_ID, ID_EXHAUSTED, NOT_AN_INTEGER, SYNTAX, TOP_ID, WRONG_TYPE, Engine, arity, entry, spelled

TWICE = "ERR syntax error, IDMP/IDMPAUTO specified multiple times"
AUTO_PID = "ERR syntax error, IDMPAUTO requires a non-empty producer ID"
PID = "ERR syntax error, IDMP requires a non-empty producer ID"
IID = "ERR syntax error, IDMP requires a non-empty idempotent ID"
EXPLICIT = "ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs"


def add(e: Engine, iid: str | bytes, *fields: str, pid: str = "p", key: str = "s") -> str:
    return e("XADD", key, "IDMP", pid, iid, "*", *(fields or ("f", "v")))


def tracked(e: Engine, key: str = "s") -> dict[str, int]:
    """The idempotency fields of XINFO STREAM but for the settings."""
    info = e.info(key)
    return {name: info[name] for name in ("pids-tracked", "iids-tracked", "iids-added", "iids-duplicates")}


# Words (new §8.2)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["IDMP", "p", "i", "IDMP", "p", "i", "*", "f", "v"], TWICE),
        (["IDMP", "p", "i", "IDMPAUTO", "p", "*", "f", "v"], TWICE),
        (["IDMPAUTO", "p", "IDMPAUTO", "p", "*", "f", "v"], TWICE),
        (["IDMPAUTO", "", "*", "f", "v"], AUTO_PID),
        (["IDMP", "", "i", "*", "f", "v"], PID),
        (["IDMP", "", "", "*", "f", "v"], PID),
        (["IDMP", "p", "", "*", "f", "v"], IID),
        (["IDMP", "p", "i", "5-0", "f", "v"], EXPLICIT),
        (["IDMP", "p", "i", "5-*", "f", "v"], EXPLICIT),
        (["IDMPAUTO", "p", "5-0", "f", "v"], EXPLICIT),
        (["IDMP", "p", "i", "x", "f", "v"], BAD_ID),
        # the word rows fire when the word is met
        (["IDMP", "", "i", "MAXLEN", "x", "*", "f", "v"], PID),
        (["MAXLEN", "x", "IDMP", "", "i", "*", "f", "v"], NOT_AN_INTEGER),
        # the explicit-id error comes before LIMIT, arity and the zero id
        (["IDMP", "p", "i", "LIMIT", "5", "5-0", "f", "v"], EXPLICIT),
        (["IDMP", "p", "i", "5-0", "f", "v", "f"], EXPLICIT),
        (["IDMP", "p", "i", "0-0", "f", "v"], EXPLICIT),
        (
            ["IDMP", "p", "i", "LIMIT", "5", "*", "f", "v"],
            "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy",
        ),
        (["IDMP", "p", "i", "*", "f", "v", "f"], arity("xadd")),
        # without the words it needs, an option is taken for the id
        (["NOMKSTREAM", "KEEPREF", "IDMPAUTO"], BAD_ID),
        (["NOMKSTREAM", "KEEPREF", "IDMP", "p"], BAD_ID),
    ],
)
@pytest.mark.parametrize("kind", ["missing", "string", "stream"])
def test_bad_words_are_refused_before_the_key_is_looked_at(e: Engine, words: list[str], text: str, kind: str) -> None:
    """New §8.2: also before WRONGTYPE."""
    if kind == "string":
        e("SET", "k", "x")
    if kind == "stream":
        e("XADD", "k", "1-0", "f", "v")
    assert e.error("XADD", "k", *words) == text
    if kind == "missing":
        assert e("EXISTS", "k") == 0
    if kind == "stream":
        assert (e("XLEN", "k"), e.info("k")["pids-tracked"]) == (1, 0)


def test_the_key_is_looked_at_last(e: Engine) -> None:
    """New §8.2 step 1."""
    e("SET", "str", "x")
    assert e.error("XADD", "str", "IDMP", "p", "i", "*", "f", "v") == WRONG_TYPE
    assert spelled(e.wire("XADD", "s", "NOMKSTREAM", "IDMP", "p", "i", "*", "f", "v")) == "$-1"
    assert spelled(e.wire("XADD", "s", "NOMKSTREAM", "IDMP", "p", "i", "*", "f", "v", protocol=3)) == "_"
    assert e("EXISTS", "s") == 0


# Duplicates (new §8.2 steps 3 and 4)


def test_a_duplicate_is_answered_with_the_id_of_the_first(e: Engine) -> None:
    """New §8.7 case 1: new fields are ignored and trimming is skipped entirely."""
    first = add(e, "r1")
    e("XADD", "s", "*", "f", "v")
    assert e("XADD", "s", "MAXLEN", 0, "IDMP", "p", "r1", "*", "f", "other") == first
    assert e("XLEN", "s") == 2
    assert e("XRANGE", "s", first, first) == [entry(first)]
    assert tracked(e) == {"pids-tracked": 1, "iids-tracked": 1, "iids-added": 1, "iids-duplicates": 1}


def test_producers_do_not_share_their_ids(e: Engine) -> None:
    first = add(e, "r1", pid="p1")
    assert add(e, "r1", pid="p2") != first
    assert tracked(e) == {"pids-tracked": 2, "iids-tracked": 2, "iids-added": 2, "iids-duplicates": 0}


def test_ids_of_producers_are_bytes(e: Engine) -> None:
    """New §0.2: binary-safe and case-sensitive."""
    first = add(e, b"\x00\xffa")
    assert add(e, b"\x00\xffA") != first
    assert add(e, b"\x00\xffa", pid="P") != first
    assert add(e, b"\x00\xffa") == first


def test_a_duplicate_does_not_wake_a_reader(e: Engine) -> None:
    """New §8.7 case 2."""
    add(e, "r1")
    reader = e.block("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
    add(e, "r1")
    assert reader.is_waiting()
    add(e, "r2")
    assert len(reader.reply()[0][1]) == 1


@pytest.mark.parametrize("forget", ["XDEL", "XTRIM"])
def test_deleting_the_entry_forgets_nothing(e: Engine, forget: str) -> None:
    """New §8.7 case 5, §8.2 step 3."""
    first = add(e, "r1")
    assert (e("XDEL", "s", first) if forget == "XDEL" else e("XTRIM", "s", "MAXLEN", 0)) == 1
    assert add(e, "r1") == first
    assert e("XLEN", "s") == 0


def test_deleting_the_key_forgets_everything(e: Engine) -> None:
    """New §8.7 case 5."""
    add(e, "r1")
    e("DEL", "s")
    add(e, "r1")
    assert tracked(e) == {"pids-tracked": 1, "iids-tracked": 1, "iids-added": 1, "iids-duplicates": 0}


def test_an_expired_key_forgets_everything(e: Engine) -> None:
    """New §8.7 case 5."""
    add(e, "r1")
    e("PEXPIRE", "s", 20)
    e.wait(30)
    add(e, "r1")
    assert tracked(e) == {"pids-tracked": 1, "iids-tracked": 1, "iids-added": 1, "iids-duplicates": 0}


def test_a_failed_append_leaves_an_empty_producer(e: Engine) -> None:
    """New §8.2 step 2."""
    e("XADD", "s", TOP_ID, "f", "v")
    assert e.error("XADD", "s", "IDMP", "p", "r1", "*", "f", "v") == ID_EXHAUSTED
    assert tracked(e) == {"pids-tracked": 1, "iids-tracked": 0, "iids-added": 0, "iids-duplicates": 0}


def test_an_idempotent_append_trims(e: Engine) -> None:
    e.stream(5)
    e("XADD", "s", "IDMP", "p", "r1", "MAXLEN", 2, "*", "f", "v")
    assert e("XLEN", "s") == 2


# Eviction (new §8.7 case 4)


def test_the_oldest_id_of_a_producer_is_dropped_first(e: Engine) -> None:
    add(e, "r0")
    e("XCFGSET", "s", "IDMP-MAXSIZE", 2)
    made = {iid: add(e, iid) for iid in ("r1", "r2")}
    other = add(e, "r1", pid="q")
    assert add(e, "r1") == made["r1"]  # a hit does not refresh its position
    add(e, "r3")
    assert add(e, "r2") == made["r2"]
    assert add(e, "r1", pid="q") == other  # per producer
    assert add(e, "r1") != made["r1"]
    assert tracked(e)["iids-tracked"] == 3


# The automatic id (new §8.2)


@pytest.mark.parametrize(
    ("fields", "iid"),
    [
        (["f", "v"], "6e95729ee727f0814aedffba55730079"),
        (["f1", "v1", "f2", "v2"], "7193082837792097800900d09de161ea"),
        (["f2", "v2", "f1", "v1"], "7193082837792097800900d09de161ea"),
        (["field-name", "some value of moderate length", "n", "42"], "8dbd684bbbb76950e0aca7921a545b63"),
        (["x" * 40, "y" * 60], "89b8cd0f0151f3bb87898badcedd92c0"),
    ],
)
def test_the_automatic_id_is_computed_bit_exactly(e: Engine, fields: list[str], iid: str) -> None:
    first = e("XADD", "s", "IDMPAUTO", "p", "*", *fields)
    assert add(e, bytes.fromhex(iid)) == first
    e("XADD", "t", "*", "f", "v")
    stored = add(e, bytes.fromhex(iid), key="t")
    assert e("XADD", "t", "IDMPAUTO", "p", "*", *fields) == stored


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        ("f2 v2 f1 v1", True),
        ("f1 v1 f2 v2", True),
        ("f1 v2 f2 v1", False),
        ("f1 v1", False),
        ("f1 v1 f2 v2 f2 v2", False),
        ("v1 f1 v2 f2", False),
    ],
)
def test_what_counts_as_the_same_fields(e: Engine, fields: str, same: bool) -> None:
    first = e("XADD", "s", "IDMPAUTO", "p", "*", "f1", "v1", "f2", "v2")
    again = e("XADD", "s", "NOMKSTREAM", "MAXLEN", 100, "IDMPAUTO", "p", "*", *fields.split())
    assert (again == first) is same
    assert e("XLEN", "s") == (1 if same else 2)
    assert e("XADD", "s", "IDMPAUTO", "another", "*", "f1", "v1", "f2", "v2") != first


# XCFGSET (new §8.4)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "ERR At least one parameter must be specified"),
        ("NOSUCH 1", SYNTAX),
        ("IDMP-DURATION", SYNTAX),
        ("IDMP-MAXSIZE", SYNTAX),
        ("IDMP-DURATION 5 IDMP-DURATION 5", "ERR IDMP-DURATION specified multiple times"),
        ("IDMP-MAXSIZE 5 IDMP-MAXSIZE 6", "ERR IDMP-MAXSIZE specified multiple times"),
        ("IDMP-DURATION x", NOT_AN_INTEGER),
        ("IDMP-DURATION 000", NOT_AN_INTEGER),  # new §8.7 case 8
        ("IDMP-MAXSIZE 1.5", NOT_AN_INTEGER),
        ("IDMP-DURATION 0", "ERR IDMP-DURATION must be between 1 and 86400 seconds"),
        ("IDMP-DURATION 86401", "ERR IDMP-DURATION must be between 1 and 86400 seconds"),
        ("IDMP-MAXSIZE 0", "ERR IDMP-MAXSIZE must be between 1 and 10000 entries"),
        ("IDMP-MAXSIZE 10001", "ERR IDMP-MAXSIZE must be between 1 and 10000 entries"),
        ("IDMP-MAXSIZE -1", "ERR IDMP-MAXSIZE must be between 1 and 10000 entries"),
        # left to right, and all checks precede any change
        ("IDMP-DURATION 5 NOSUCH 1", SYNTAX),
        ("IDMP-DURATION 0 NOSUCH 1", "ERR IDMP-DURATION must be between 1 and 86400 seconds"),
        ("IDMP-DURATION 5 IDMP-MAXSIZE 0", "ERR IDMP-MAXSIZE must be between 1 and 10000 entries"),
    ],
)
def test_xcfgset_refuses_bad_words_and_changes_nothing(e: Engine, words: str, text: str) -> None:
    assert e.error("XCFGSET", "s", *words.split()) == "ERR no such key"
    e("SET", "str", "x")
    assert e.error("XCFGSET", "str", *words.split()) == WRONG_TYPE
    add(e, "r1")
    assert e.error("XCFGSET", "s", *words.split()) == text
    info = e.info()
    assert (info["idmp-duration"], info["idmp-maxsize"], info["iids-tracked"]) == (100, 100, 1)


def test_xcfgset_keeps_the_history_if_nothing_changes(e: Engine) -> None:
    """New §8.7 case 3."""
    first = add(e, "r1")
    assert spelled(e.wire("XCFGSET", "s", "idmp-duration", 100, "IDMP-MAXSIZE", 100)) == "+OK"
    assert add(e, "r1") == first


@pytest.mark.parametrize("words", ["IDMP-DURATION 99", "IDMP-MAXSIZE 99", "IDMP-MAXSIZE 100 IDMP-DURATION 99"])
def test_xcfgset_forgets_all_producers_if_anything_changes(e: Engine, words: str) -> None:
    """New §8.7 case 3: the counters stay."""
    add(e, "r1")
    add(e, "r1")
    add(e, "r1", pid="q")
    assert e("XCFGSET", "s", *words.split()) == "OK"
    assert tracked(e) == {"pids-tracked": 0, "iids-tracked": 0, "iids-added": 2, "iids-duplicates": 1}
    add(e, "r1")
    assert e("XLEN", "s") == 3


@pytest.mark.parametrize(
    ("name", "field", "limits"),
    [("IDMP-DURATION", "idmp-duration", (1, 86400)), ("IDMP-MAXSIZE", "idmp-maxsize", (1, 10000))],
)
def test_xcfgset_takes_the_ends_of_its_ranges(e: Engine, name: str, field: str, limits: tuple[int, int]) -> None:
    e("XADD", "s", "*", "f", "v")
    for value in limits:
        assert e("XCFGSET", "s", name, value) == "OK"
        assert e.info()[field] == value


def test_the_server_settings_count_for_new_streams_only(e: Engine) -> None:
    """New §8.7 case 6."""
    e("XADD", "s", "*", "f", "v")
    e.configure("stream-idmp-duration", 7)
    e.configure("stream-idmp-maxsize", 8)
    e("XADD", "t", "*", "f", "v")
    e("XGROUP", "CREATE", "u", "g", "$", "MKSTREAM")
    shown = [(e.info(key)["idmp-duration"], e.info(key)["idmp-maxsize"]) for key in "stu"]
    assert shown == [(100, 100), (7, 8), (7, 8)]


# XIDMPRECORD (new §8.5)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["s", "", "", "x"], BAD_ID),
        (["none", "", "", "1-0"], "ERR producer ID must be non-empty"),
        (["none", "p", "", "1-0"], "ERR idempotent ID must be non-empty"),
        (["none", "p", "r", "1-0"], "ERR no such key"),
        (["str", "p", "r", "1-0"], WRONG_TYPE),
        (["s", "p", "r", "9-9"], "ERR No such message in stream"),
        (["s", "p", "r", "2-0"], "ERR No such message in stream"),
        (["s", "p", "known", "3-0"], "ERR IID already exists for this producer with a different stream ID"),
        (["s", "p", "r"], arity("xidmprecord")),
        (["s", "p", "r", "1-0", "x"], arity("xidmprecord")),
    ],
)
def test_xidmprecord_refuses_in_a_fixed_order(e: Engine, words: list[str], text: str) -> None:
    e("SET", "str", "x")
    e.stream(3)
    e("XDEL", "s", "2-0")
    e("XIDMPRECORD", "s", "p", "known", "1-0")
    assert e.error("XIDMPRECORD", *words) == text
    assert tracked(e)["iids-added"] == 1


def test_xidmprecord_stores_what_xadd_then_finds(e: Engine) -> None:
    """New §8.5, §8.7 case 7: iids-added counts stores."""
    e("XADD", "s", "99999999999999-0", "f", "v")
    assert spelled(e.wire("XIDMPRECORD", "s", "p", "r", "99999999999999")) == "+OK"
    assert e("XIDMPRECORD", "s", "p", "r", "99999999999999-0") == "OK"
    assert tracked(e) == {"pids-tracked": 1, "iids-tracked": 1, "iids-added": 1, "iids-duplicates": 0}
    assert add(e, "r") == "99999999999999-0"
    assert tracked(e)["iids-duplicates"] == 1


def test_xidmprecord_evicts_the_oldest(e: Engine) -> None:
    for seq in range(4):
        e("XADD", "s", f"99999999999999-{seq}", "f", "v")
    e("XCFGSET", "s", "IDMP-MAXSIZE", 2)
    for seq in range(3):
        e("XIDMPRECORD", "s", "p", f"r{seq}", f"99999999999999-{seq}")
    assert tracked(e) == {"pids-tracked": 1, "iids-tracked": 2, "iids-added": 3, "iids-duplicates": 0}
    assert e("XIDMPRECORD", "s", "p", "r0", "99999999999999-3") == "OK"
    assert add(e, "r2") == "99999999999999-2"


# Expiry (new §8.3)


def test_an_id_is_forgotten_after_its_time(e: Engine) -> None:
    """Empty producers go too; the counters stay."""
    e("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    e("XCFGSET", "s", "IDMP-DURATION", 1)
    first = add(e, "r1")
    assert add(e, "r1") == first
    e.wait(1000)
    e.sweep()
    assert tracked(e) == {"pids-tracked": 0, "iids-tracked": 0, "iids-added": 1, "iids-duplicates": 1}
    assert add(e, "r1") != first


def test_the_age_of_an_id_is_that_of_its_entry(e: Engine) -> None:
    """An id from the future lives longer, an ancient one goes at the next sweep."""
    e("XADD", "s", "1-0", "f", "v")
    e("XADD", "s", "99999999999999-0", "f", "v")
    e("XIDMPRECORD", "s", "old", "r", "1-0")
    e("XIDMPRECORD", "s", "new", "r", "99999999999999-0")
    e.sweep()
    assert tracked(e)["pids-tracked"] == 1
    assert add(e, "r", pid="new") == "99999999999999-0"


def test_a_young_id_shields_the_older_ones_behind_it(e: Engine) -> None:
    """The sweep removes from the front of each producer's list only."""
    e("XADD", "s", "1-0", "f", "v")
    e("XADD", "s", "99999999999999-0", "f", "v")
    e("XIDMPRECORD", "s", "p", "young", "99999999999999-0")
    e("XIDMPRECORD", "s", "p", "ancient", "1-0")
    e.sweep()
    assert tracked(e)["iids-tracked"] == 2
    assert add(e, "ancient") == "1-0"


def test_an_expired_id_that_was_not_swept_still_matches(e: Engine) -> None:
    """New §8.2 step 3: expiry is not checked there."""
    e("XADD", "s", "1-0", "f", "v")
    e("XIDMPRECORD", "s", "p", "r", "1-0")
    assert add(e, "r") == "1-0"


@pytest.mark.parametrize("move", ["COPY", "RENAME"])
def test_copies_keep_settings_producers_and_counters(e: Engine, move: str) -> None:
    """New §3, last row; §8.3: the sweep finds copies too."""
    e("XADD", "s", "1-0", "f", "v")
    e("XCFGSET", "s", "IDMP-DURATION", 50, "IDMP-MAXSIZE", 60)
    first = add(e, "r1")
    add(e, "r1")
    e("XIDMPRECORD", "s", "q", "r", "1-0")
    e(move, "s", "t")
    info = e.info("t")
    assert (info["idmp-duration"], info["idmp-maxsize"]) == (50, 60)
    assert tracked(e, "t") == {"pids-tracked": 2, "iids-tracked": 2, "iids-added": 2, "iids-duplicates": 1}
    assert add(e, "r1", key="t") == first
    e.sweep()
    assert tracked(e, "t") == {"pids-tracked": 1, "iids-tracked": 1, "iids-added": 2, "iids-duplicates": 2}


# XINFO (new §8.6)


def test_the_examples_on_the_wire(e: Engine) -> None:
    first = add(e, "r1", pid="p1")
    assert spelled(e.wire("XADD", "s", "IDMP", "p1", "r1", "*", "f", "w")) == f"${len(first)} {first}"
    assert spelled(e.wire("XADD", "s", "IDMP", "p1", "r1", "*", "f", "w", protocol=3)) == f"${len(first)} {first}"
    assert e.error("XADD", "s", "IDMPAUTO", "p1", "5-0", "f", "v") == EXPLICIT
    assert e.error("XIDMPRECORD", "s", "p1", "r9", "9-9") == "ERR No such message in stream"
