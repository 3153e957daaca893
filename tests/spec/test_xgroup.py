"""XGROUP, XREADGROUP and XACK (base §7.7, §7.9, §7.10, §7.11)."""

from __future__ import annotations

import pytest

from .support import (
    BAD_ID,
    NIL_ARRAY,
    NOT_AN_INTEGER,
    SYNTAX,
    TOP_ID,
    WRONG_TYPE,
    Engine,
    arity,
    entry,
    ids_of,
    spelled,
)

NEEDS_KEY = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM "
    "option to create an empty stream automatically."
)
BUSY = "BUSYGROUP Consumer Group name already exists"
ENTRIESREAD = "ERR value for ENTRIESREAD must be positive or -1"
NO_GROUP = "NOGROUP No such consumer group 'nog' for key name 's'"


def bad_use(sent: str) -> str:
    return f"ERR unknown subcommand or wrong number of arguments for '{sent}'. Try XGROUP HELP."


# Errors (base §7.9)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", arity("xgroup")),
        ("NOSUCH s g", "ERR unknown subcommand 'NOSUCH'. Try XGROUP HELP."),
        ("CREATE s g", arity("xgroup|create")),
        ("SETID s g", arity("xgroup|setid")),
        ("DESTROY s", arity("xgroup|destroy")),
        ("CREATECONSUMER s g", arity("xgroup|createconsumer")),
        ("DELCONSUMER s g", arity("xgroup|delconsumer")),
        ("DELCONSUMER s g c x", arity("xgroup|delconsumer")),
        ("create s g 0 NOSUCH", bad_use("create")),
        ("CREATE s g 0 ENTRIESREAD", bad_use("CREATE")),
        ("CREATE s g 0 MKSTREAM ENTRIESREAD 1 MKSTREAM", bad_use("CREATE")),  # more than 8 words
        ("SETID s g 0 MKSTREAM", bad_use("SETID")),
        ("SETID s g 0 ENTRIESREAD", bad_use("SETID")),
        ("CREATE s g 0 ENTRIESREAD x", NOT_AN_INTEGER),
        ("CREATE s g 0 ENTRIESREAD -2", ENTRIESREAD),
        ("SETID s g 0 ENTRIESREAD -2", ENTRIESREAD),
        # options, then the type, then the key, then the group, then the id
        ("CREATE str g 0 ENTRIESREAD -2", ENTRIESREAD),
        ("CREATE str g x", WRONG_TYPE),
        ("DESTROY str g", WRONG_TYPE),
        ("CREATE none g x", NEEDS_KEY),  # trap: even when the id is bad
        ("SETID none g 0", NEEDS_KEY),
        ("DESTROY none g", NEEDS_KEY),
        ("CREATECONSUMER none g c", NEEDS_KEY),
        ("DELCONSUMER none g c", NEEDS_KEY),
        ("SETID s nog x", NO_GROUP),
        ("CREATECONSUMER s nog c", NO_GROUP),
        ("DELCONSUMER s nog c", NO_GROUP),
        ("SETID s g x", BAD_ID),
        ("CREATE s new x", BAD_ID),
        ("CREATE s g x", BAD_ID),  # the id is parsed before the name is found taken
        ("CREATE s g 0", BUSY),
        ("CREATE s g $ MKSTREAM", BUSY),
        ("CREATE none g x MKSTREAM", BAD_ID),
    ],
)
def test_xgroup_refuses(e: Engine, words: str, text: str) -> None:
    e.stream(1, "g")
    e("SET", "str", "x")
    assert e.error("XGROUP", *words.split()) == text
    assert e("EXISTS", "none") == 0  # trap: with MKSTREAM a bad id does not make the key


# XGROUP (base §7.9)


@pytest.mark.parametrize(("at", "last"), [("0", "0-0"), ("2", "2-0"), ("$", "3-0"), ("9-9", "9-9"), (TOP_ID, TOP_ID)])
def test_create_starts_anywhere(e: Engine, at: str, last: str) -> None:
    """The id need not exist and may be in the future."""
    e.stream(3)
    assert spelled(e.wire("XGROUP", "CREATE", "s", "g", at)) == "+OK"
    assert e.group_info()["last-delivered-id"] == last


def test_mkstream_makes_an_empty_stream(e: Engine) -> None:
    assert e("XGROUP", "CREATE", "s", "g", "$", "mkstream", "ENTRIESREAD", 3) == "OK"
    assert (e("TYPE", "s"), e("XLEN", "s")) == ("stream", 0)
    assert e.group_info()["last-delivered-id"] == "0-0"
    assert e("XADD", "s", "1-0", "f", "v") == "1-0"
    assert e.deliver("g", "c") == ["1-0"]


def test_names_are_bytes_and_may_be_empty(e: Engine) -> None:
    """Base §0.2."""
    e.stream(1, "", "G", "g")
    assert e.deliver("", "") == ["1-0"]
    assert e.owners("") == {"1-0": ""}
    assert e.pending("g") == []
    assert e.pending("")[0][2] == e.near(0)


def test_setid_forgets_entries_read(e: Engine) -> None:
    """Trap: invalid if not given, even if it was valid before; the PEL is untouched."""
    e.stream(5, "g")
    e.deliver("g", "c", "COUNT", 3)
    assert e.progress() == (3, 2)
    e("XGROUP", "SETID", "s", "g", "3-0")
    assert e.progress() == (None, None)
    e("XGROUP", "SETID", "s", "g", "3-0", "entriesread", 3)
    assert e.progress() == (3, 2)
    e("XGROUP", "SETID", "s", "g", "3-0", "ENTRIESREAD", -1)
    assert e.progress() == (None, None)
    assert list(e.owners()) == ["1-0", "2-0", "3-0"]


def test_destroy_answers_zero_for_a_missing_group(e: Engine) -> None:
    """Trap: on a missing key it is an error (above)."""
    e.stream(1, "g")
    assert e("XGROUP", "DESTROY", "s", "nog") == 0
    assert e("XGROUP", "DESTROY", "s", "g") == 1
    assert e("XINFO", "GROUPS", "s") == []


def test_createconsumer_tells_whether_it_made_one(e: Engine) -> None:
    e.stream(1, "g")
    assert e("XGROUP", "CREATECONSUMER", "s", "g", "c") == 1
    assert e("XGROUP", "CREATECONSUMER", "s", "g", "c") == 0
    assert list(e.consumers()) == ["c"]


def test_delconsumer_drops_its_pending_entries(e: Engine) -> None:
    """The messages are lost to the group."""
    e.stream(3, "g")
    e.deliver("g", "c", "COUNT", 2)
    e.deliver("g", "d")
    assert e("XGROUP", "DELCONSUMER", "s", "g", "nobody") == 0
    assert e("XGROUP", "DELCONSUMER", "s", "g", "c") == 2
    assert e.owners() == {"3-0": "d"}
    assert e("XAUTOCLAIM", "s", "g", "d", 0, "0", "JUSTID") == ["0-0", ["3-0"], []]
    assert e("XDELEX", "s", "ACKED", "IDS", 3, "1-0", "2-0", "3-0") == [1, 1, 2]


# Times of consumers (base §7.7)


def times(e: Engine, name: str = "c") -> tuple[int, int]:
    """(idle, inactive)."""
    consumer = e.consumers()[name]
    return consumer["idle"], consumer["inactive"]


@pytest.mark.parametrize(
    ("words", "seen", "active"),
    [
        ("XREADGROUP GROUP g c STREAMS s >", True, True),
        ("XREADGROUP GROUP g c NOACK STREAMS s >", True, False),
        ("XREADGROUP GROUP g c STREAMS s 0", True, False),
        ("XREADGROUP GROUP g c STREAMS empty >", None, None),
        ("XCLAIM s g c 0 1-0", True, True),
        ("XCLAIM s g c 0 1-0 JUSTID", True, True),
        ("XCLAIM s g c 999999 1-0", True, False),
        ("XAUTOCLAIM s g c 0 0", True, True),
        ("XAUTOCLAIM s g c 0 0 JUSTID", True, True),
        ("XAUTOCLAIM s g c 999999 0", True, False),
        ("XACK s g 1-0", False, False),
        ("XPENDING s g - + 9 c", False, False),
        ("XGROUP CREATECONSUMER s g c", False, False),
        ("XNACK s g FAIL IDS 1 1-0", False, False),
    ],
)
def test_who_is_seen_and_who_is_active(e: Engine, words: str, seen: bool | None, active: bool | None) -> None:
    """Seen: asked for something. Active: got at least one entry into its pending list."""
    e.stream(2, "g")
    e("XGROUP", "CREATE", "empty", "g", "0", "MKSTREAM")
    e.deliver("g", "c", "COUNT", 1)
    e.wait(500)
    e(*words.split())
    if seen is None:
        assert list(e.consumers(key="empty")) == ["c"]
        assert e.consumers(key="empty")["c"]["inactive"] == -1
        return
    assert times(e) == (e.near(0 if seen else 500), e.near(0 if active else 500))


@pytest.mark.parametrize("options", ["", "CLAIM 60000", "NOACK"])
def test_a_read_of_nothing_is_seen_but_not_active(e: Engine, options: str) -> None:
    e.stream(1, "g")
    e.deliver("g", "c")
    e.wait(500)
    assert e("XREADGROUP", "GROUP", "g", "c", *options.split(), "STREAMS", "s", ">") is NIL_ARRAY
    assert times(e) == (e.near(0), e.near(500))


# XREADGROUP (base §7.10)

UNBALANCED = "ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be specified."


def meaningless(sign: str) -> str:
    return (
        f"ERR The {sign} ID is meaningless in the context of XREADGROUP: you want to read the history of this "
        f"consumer by specifying a proper ID, or use the > ID to get new messages. The {sign} ID would just return "
        "an empty result set."
    )


def no_group(key: str, group: str) -> str:
    return f"NOGROUP No such key '{key}' or consumer group '{group}' in XREADGROUP with GROUP option"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("GROUP g c STREAMS s", arity("xreadgroup")),
        ("GROUP g c STREAMS s t >", UNBALANCED),
        ("COUNT 1 BLOCK 0 STREAMS s >", "ERR Missing GROUP option for XREADGROUP"),
        ("GROUP g c NOSUCH STREAMS s >", SYNTAX),
        ("GROUP g c COUNT 1 STREAMS", SYNTAX),
        ("NOACK NOACK NOACK NOACK GROUP g", SYNTAX),
        ("GROUP g c COUNT x STREAMS s >", NOT_AN_INTEGER),
        ("GROUP g c BLOCK x STREAMS s >", "ERR timeout is not an integer or out of range"),
        ("GROUP g c BLOCK -1 STREAMS s >", "ERR timeout is negative"),
        ("GROUP g c STREAMS s $", meaningless("$")),
        ("GROUP g c STREAMS s +", meaningless("+")),
        ("GROUP g c STREAMS s x", BAD_ID),
        ("GROUP g c STREAMS none >", no_group("none", "g")),
        ("GROUP nog c STREAMS s >", no_group("s", "nog")),
        ("GROUP nog c STREAMS s $", no_group("s", "nog")),  # per stream: the group before the id
        ("GROUP g c STREAMS str >", WRONG_TYPE),
        ("GROUP g c STREAMS s str > $", WRONG_TYPE),
        ("GROUP g c STREAMS s none $ >", meaningless("$")),  # streams in order
        ("GROUP g c STREAMS s none > >", no_group("none", "g")),
    ],
)
def test_xreadgroup_refuses_and_changes_nothing(e: Engine, words: str, text: str) -> None:
    """All streams are checked before anything changes."""
    e.stream(1, "g")
    e("SET", "str", "x")
    assert e.error("XREADGROUP", *words.split()) == text
    assert e.consumers() == {}
    assert e.group_info()["last-delivered-id"] == "0-0"


def test_group_stands_anywhere_and_the_last_wins(e: Engine) -> None:
    e.stream(1, "g", "h")
    e("XREADGROUP", "COUNT", 1, "GROUP", "g", "c", "group", "h", "d", "STREAMS", "s", ">")
    assert (e.owners("g"), e.owners("h")) == ({}, {"1-0": "d"})


def test_new_entries_are_delivered_once(e: Engine) -> None:
    e.stream(3, "g")
    assert e.deliver("g", "c", "COUNT", 2) == ["1-0", "2-0"]
    assert e.deliver("g", "d") == ["3-0"]
    assert e("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">") is NIL_ARRAY
    assert e.owners() == {"1-0": "c", "2-0": "c", "3-0": "d"}
    assert e.counts() == {"1-0": 1, "2-0": 1, "3-0": 1}


def test_a_stream_listed_twice_goes_on_where_it_was(e: Engine) -> None:
    e.stream(3, "g")
    reply = e("XREADGROUP", "GROUP", "g", "c", "COUNT", 2, "STREAMS", "s", "s", ">", ">")
    assert [(key, ids_of(entries)) for key, entries in reply] == [("s", ["1-0", "2-0"]), ("s", ["3-0"])]


def test_noack_leaves_nothing_pending_but_makes_the_consumer(e: Engine) -> None:
    """Trap: NOACK still creates the consumer."""
    e.stream(2, "g")
    assert e.deliver("g", "c", "NOACK") == ["1-0", "2-0"]
    assert (e.pending(), list(e.consumers())) == ([], ["c"])
    assert e.group_info()["last-delivered-id"] == "2-0"
    assert e.progress() == (2, 0)


def test_an_empty_history_is_an_empty_list_not_null(e: Engine) -> None:
    """Trap; base §5."""
    e.stream(1, "g")
    read = ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", 0)
    assert spelled(e.wire(*read)) == "*1 *2 $1 s *0"
    assert spelled(e.wire(*read, protocol=3)) == "%1 $1 s *0"


def test_history_counts_and_touches_each_entry(e: Engine) -> None:
    """Trap: history increments counts, `>` redelivery resets to 1."""
    e.stream(2, "g")
    e.deliver("g", "c")
    e("XCLAIM", "s", "g", "c", 0, "1-0", "2-0", "IDLE", 9000, "JUSTID")
    assert e.history("g", "c") == [entry("1-0"), entry("2-0")]
    assert e.pending() == [["1-0", "c", e.near(0), 2], ["2-0", "c", e.near(0), 2]]
    e("XGROUP", "SETID", "s", "g", "0")
    e.deliver("g", "c")
    assert e.counts() == {"1-0": 1, "2-0": 1}


def test_history_is_ones_own_and_above_the_id(e: Engine) -> None:
    e.stream(4, "g")
    e.deliver("g", "c", "COUNT", 3)
    e.deliver("g", "d")
    assert ids_of(e.history("g", "c", "1-0")) == ["2-0", "3-0"]
    assert ids_of(e.history("g", "d")) == ["4-0"]
    assert e.history("g", "c", "9-0") == []
    assert e.group_info()["last-delivered-id"] == "4-0"


def test_noack_has_no_effect_on_history(e: Engine) -> None:
    e.stream(1, "g")
    e.deliver("g", "c")
    e("XREADGROUP", "GROUP", "g", "c", "NOACK", "STREAMS", "s", 0)
    assert e.counts() == {"1-0": 2}


def test_deleted_entries_in_history_are_null_arrays_and_count(e: Engine) -> None:
    """Traps: `*-1`, not nil and not []; COUNT in history counts deleted ones."""
    e.stream(3, "g")
    e.deliver("g", "c")
    e("XDEL", "s", "1-0")
    reply = e("XREADGROUP", "GROUP", "g", "c", "COUNT", 2, "STREAMS", "s", 0)
    assert reply == [["s", [["1-0", NIL_ARRAY], entry("2-0")]]]
    assert e.counts() == {"1-0": 1, "2-0": 2, "3-0": 1}
    wire = spelled(e.wire("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "s", 0, protocol=3))
    assert wire == "%1 $1 s *1 *2 $3 1-0 _"


def test_history_of_the_highest_id_reads_new_entries(e: Engine) -> None:
    """The literal U64-U64 is the internal marker of `>`."""
    e.stream(1, "g")
    reply = e("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", TOP_ID)
    assert reply == [["s", [entry("1-0")]]]
    assert e.owners() == {"1-0": "c"}


def test_history_beside_new_entries_never_blocks(e: Engine) -> None:
    e.stream(1, "g", key="a")
    e.stream(1, "g", key="b")
    e.deliver("g", "c", key="a")
    reply = e("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "a", "b", ">", 0)
    assert reply == [["b", []]]
    assert list(e.consumers(key="b")) == ["c"]


def test_a_deleted_tail_is_not_new(e: Engine) -> None:
    e.stream(2, "g")
    e.deliver("g", "c", "COUNT", 1)
    e("XDEL", "s", "2-0")
    assert e("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">") is NIL_ARRAY
    assert e.group_info()["last-delivered-id"] == "1-0"


# XACK (base §7.11)


def test_xack_counts_what_it_removed(e: Engine) -> None:
    """Traps: any consumer's, duplicates once, `5` means 5-0; never deletes the message, moves nothing."""
    e.stream(6, "g")
    e.deliver("g", "c", "COUNT", 3)
    e.deliver("g", "d")
    assert e("XACK", "s", "g", "1-0", "1-0", "4-0", "9-9") == 2
    assert e("XACK", "s", "g", "5") == 1
    assert e.owners() == {"2-0": "c", "3-0": "c", "6-0": "d"}
    assert e("XLEN", "s") == 6
    assert (e.group_info()["last-delivered-id"], *e.progress()) == ("6-0", 6, 0)


def test_xack_of_a_deleted_message_counts(e: Engine) -> None:
    e.stream(1, "g")
    e.deliver("g", "c")
    e("XDEL", "s", "1-0")
    assert e("XACK", "s", "g", "1-0") == 1


def test_xack_parses_ids_only_if_key_and_group_exist(e: Engine) -> None:
    """Trap; then all ids must parse or nothing is acknowledged."""
    assert e("XACK", "none", "g", "x") == 0
    e.stream(1, "g")
    assert e("XACK", "s", "nog", "x") == 0
    e.deliver("g", "c")
    assert e.error("XACK", "s", "g", "1-0", "x") == BAD_ID
    assert e.owners() == {"1-0": "c"}
    e("SET", "str", "x")
    assert e.error("XACK", "str", "g", "x") == WRONG_TYPE
    assert e.error("XACK", "s", "g") == arity("xack")
