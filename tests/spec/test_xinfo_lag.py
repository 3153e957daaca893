"""XINFO (base §7.14, new §8.6), entries-read and lag (base §7.15, new §7.6)."""

from __future__ import annotations

import pytest

from .support import NOT_AN_INTEGER, WRONG_TYPE, Engine, arity, entry, ids_of, pairs, spelled

STREAM_FIELDS = [
    "length",
    "radix-tree-keys",
    "radix-tree-nodes",
    "last-generated-id",
    "max-deleted-entry-id",
    "entries-added",
    "recorded-first-entry-id",
    "idmp-duration",
    "idmp-maxsize",
    "pids-tracked",
    "iids-tracked",
    "iids-added",
    "iids-duplicates",
]


# Shapes and errors (base §7.14)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", arity("xinfo")),
        ("NOSUCH s", "ERR unknown subcommand 'NOSUCH'. Try XINFO HELP."),
        ("STREAM", arity("xinfo|stream")),
        ("GROUPS s x", arity("xinfo|groups")),
        ("CONSUMERS s", arity("xinfo|consumers")),
        ("HELP x", arity("xinfo|help")),
        ("STREAM none", "ERR no such key"),
        ("GROUPS none", "ERR no such key"),
        ("CONSUMERS none g", "ERR no such key"),
        ("STREAM str", WRONG_TYPE),
        ("GROUPS str", WRONG_TYPE),
        ("CONSUMERS str g", WRONG_TYPE),
        ("CONSUMERS s nog", "NOGROUP No such consumer group 'nog' for key name 's'"),
        ("Stream s NOSUCH", "ERR unknown subcommand or wrong number of arguments for 'Stream'. Try XINFO HELP."),
        ("STREAM s FULL COUNT", "ERR unknown subcommand or wrong number of arguments for 'STREAM'. Try XINFO HELP."),
        ("STREAM s FULL LIMIT 1", "ERR unknown subcommand or wrong number of arguments for 'STREAM'. Try XINFO HELP."),
        ("STREAM s FULL COUNT x", NOT_AN_INTEGER),
    ],
)
def test_xinfo_refuses(e: Engine, words: str, text: str) -> None:
    e.stream(1, "g")
    e("SET", "str", "x")
    assert e.error("XINFO", *words.split()) == text


def test_xinfo_stream_has_its_fields_in_order(e: Engine) -> None:
    """Base §7.14, trap: order and number; new §8.6."""
    e.stream(2, "g")
    reply = e("XINFO", "STREAM", "s")
    assert len(reply) == 32
    assert list(pairs(reply)) == [*STREAM_FIELDS, "groups", "first-entry", "last-entry"]
    assert pairs(reply) == {
        "length": 2,
        "radix-tree-keys": 1,
        "radix-tree-nodes": 1,
        "last-generated-id": "2-0",
        "max-deleted-entry-id": "0-0",
        "entries-added": 2,
        "recorded-first-entry-id": "1-0",
        "idmp-duration": 100,
        "idmp-maxsize": 100,
        "pids-tracked": 0,
        "iids-tracked": 0,
        "iids-added": 0,
        "iids-duplicates": 0,
        "groups": 1,
        "first-entry": entry("1-0"),
        "last-entry": entry("2-0"),
    }
    assert e.wire("XINFO", "STREAM", "s").startswith(b"*32\r\n")
    assert e.wire("XINFO", "STREAM", "s", protocol=3).startswith(b"%16\r\n")


def test_xinfo_stream_of_an_empty_stream(e: Engine) -> None:
    e("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    info = e.info()
    assert (info["length"], info["radix-tree-keys"], info["radix-tree-nodes"]) == (0, 0, 1)
    assert (info["last-generated-id"], info["recorded-first-entry-id"]) == ("0-0", "0-0")
    assert spelled(e.wire("XINFO", "STREAM", "s")).endswith("$11 first-entry $-1 $10 last-entry $-1")
    assert spelled(e.wire("XINFO", "STREAM", "s", protocol=3)).endswith("$11 first-entry _ $10 last-entry _")


@pytest.mark.parametrize(("count", "nodes"), [(1, 1), (2, 4), (3, 5), (10, 12), (255, 257)])
def test_radix_tree_nodes_follows_the_rule_for_small_ids(e: Engine, count: int, nodes: int) -> None:
    """New §1.1: n + 2 for 2 <= n <= 255 nodes with keys 1-0 to n-0."""
    e.configure("stream-node-max-entries", 1)
    e.stream(count)
    assert e.info()["radix-tree-keys"] == count
    assert e.info()["radix-tree-nodes"] == nodes


def test_radix_tree_nodes_counts_shared_runs_branches_and_tails(e: Engine) -> None:
    """New §1.1: a run and a branch, the tail of 256-0, again a run and a branch; ends of keys do not count."""
    e.configure("stream-node-max-entries", 1)
    for entry_id in ("1-0", "1-1", "256-0"):
        e("XADD", "s", entry_id, "f", "v")
    assert e.info()["radix-tree-nodes"] == 5


def test_xinfo_full_has_its_fields_in_order(e: Engine) -> None:
    """New §8.6, §3: 15 pairs; a group has 8, a consumer 5."""
    e.stream(2, "g")
    e.deliver("g", "c")
    reply = e("XINFO", "STREAM", "s", "FULL")
    assert len(reply) == 30
    assert list(pairs(reply)) == [*STREAM_FIELDS, "entries", "groups"]
    assert pairs(reply)["entries"] == [entry("1-0"), entry("2-0")]
    assert e.wire("XINFO", "STREAM", "s", "FULL", protocol=3).startswith(b"%15\r\n")


def test_times_are_absolute_in_full_and_idle_elsewhere(e: Engine) -> None:
    """Base §7.14."""
    e.stream(1, "g")
    start = e.near(e.now_ms)
    e.deliver("g", "c")
    e("XGROUP", "CREATECONSUMER", "s", "g", "d")
    group = e.full_group()
    assert group["pending"] == [["1-0", "c", start, 1]]
    first, second = group["consumers"]
    assert (first["seen-time"], first["active-time"], first["pending"]) == (start, start, [["1-0", start, 1]])
    assert (second["seen-time"], second["active-time"], second["pending"]) == (start, -1, [])
    e.wait(40)
    assert (e.consumers()["c"]["idle"], e.consumers()["c"]["inactive"]) == (e.near(40), e.near(40))
    assert (e.consumers()["d"]["idle"], e.consumers()["d"]["inactive"]) == (e.near(40), -1)


@pytest.mark.parametrize(
    ("options", "shown"), [([], 10), (["COUNT", 3], 3), (["count", 0], 12), (["COUNT", -1], 10), (["COUNT", 99], 12)]
)
def test_count_limits_each_list_of_full_by_itself(e: Engine, options: list[str], shown: int) -> None:
    """Base §7.14: default 10, 0 all, negative 10."""
    e.stream(12, "g")
    e.deliver("g", "c")
    info = e.full("s", *options)
    (group,) = info["groups"]
    assert len(info["entries"]) == shown
    assert len(group["pending"]) == shown
    assert len(group["consumers"][0]["pending"]) == shown
    assert (group["pel-count"], group["consumers"][0]["pel-count"]) == (12, 12)


def test_groups_and_consumers_are_arrays_of_maps(e: Engine) -> None:
    """Base §5, §7.14: outer containers stay arrays in RESP3."""
    assert e("XADD", "s", "1-0", "f", "v") == "1-0"
    assert e("XINFO", "GROUPS", "s") == []
    e("XGROUP", "CREATE", "s", "g", "0")
    assert e("XINFO", "CONSUMERS", "s", "g") == []
    e.deliver("g", "c")
    assert spelled(e.wire("XINFO", "GROUPS", "s")) == (
        "*1 *12 $4 name $1 g $9 consumers :1 $7 pending :1 $17 last-delivered-id $3 1-0 $12 entries-read :1 $3 lag :0"
    )
    assert spelled(e.wire("XINFO", "GROUPS", "s", protocol=3)).startswith("*1 %6 $4 name $1 g $9 consumers :1")
    consumers = spelled(e.wire("XINFO", "CONSUMERS", "s", "g", protocol=3))
    assert consumers.startswith("*1 %4 $4 name $1 c $7 pending :1 $4 idle :")
    assert list(e.consumers()["c"]) == ["name", "pending", "idle", "inactive"]


def test_an_unknown_entries_read_is_null(e: Engine) -> None:
    """Base §7.14, trap: entries-read nil and 0 are different."""
    e.stream(1, "g")
    assert "$12 entries-read $-1 $3 lag :1" in spelled(e.wire("XINFO", "GROUPS", "s"))
    assert "$12 entries-read _ $3 lag :1" in spelled(e.wire("XINFO", "GROUPS", "s", protocol=3))
    e("XGROUP", "CREATE", "s", "h", "0", "ENTRIESREAD", 0)
    assert e.progress("h") == (0, 1)


def test_groups_and_consumers_are_listed_in_the_order_of_bytes(e: Engine) -> None:
    """Base §3."""
    names = ["b", "aa", "B", b"\xff", "a", "Z", "ab"]
    ordered = ["B", "Z", "a", "aa", "ab", "b", "\udcff"]
    e.stream(7, *names)
    assert [pairs(group)["name"] for group in e("XINFO", "GROUPS", "s")] == ordered
    for name in names:
        e.deliver("a", name, "COUNT", 1)
    assert list(e.consumers("a")) == ordered
    assert ids_of(e("XPENDING", "s", "a")[3]) == ordered
    assert [group["name"] for group in e.full()["groups"]] == ordered


@pytest.mark.parametrize("command", ["XINFO", "XGROUP"])
def test_help_is_an_array_of_simple_strings(e: Engine, command: str) -> None:
    """Base §7.9, §7.14."""
    lines = spelled(e.wire(command, "HELP")).split(" +")
    head = f"{command} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    assert lines[0] == f"*{len(lines) - 1}"
    assert (lines[1], lines[-2], lines[-1]) == (head, "HELP", "    Print this help.")
    assert e.error(command, "HELP", "x") == arity(f"{command.lower()}|help")


# entries-read and lag (base §7.15)


def test_a_group_at_the_start_knows_its_lag(e: Engine) -> None:
    """Worked example 1."""
    e.stream(5, "g")
    assert e.progress() == (None, 5)
    e.deliver("g", "c", "COUNT", 1)
    assert e.progress() == (1, 4)
    e.deliver("g", "c")
    assert e.progress() == (5, 0)


def test_a_tombstone_ahead_hides_the_lag_until_the_end_is_reached(e: Engine) -> None:
    """Worked example 2: entries 1..5, XDEL 3, CREATE 0."""
    e.stream(5)
    e("XDEL", "s", "3-0")
    e("XGROUP", "CREATE", "s", "g", "0")
    assert e.progress() == (None, None)
    for _ in range(3):
        e.deliver("g", "c", "COUNT", 1)
        assert e.progress() == (None, None)
    e.deliver("g", "c", "COUNT", 1)
    assert e.progress() == (5, 0)


def test_a_tombstone_that_becomes_the_oldest_no_longer_matters(e: Engine) -> None:
    """Worked example 3."""
    e("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    e.fill(1, 1)
    e.deliver("g", "c")
    e.fill(2, 3)
    e("XDEL", "s", "2-0")
    assert e.progress() == (1, None)
    e("XDEL", "s", "1-0")
    assert e.progress() == (1, 1)
    e.deliver("g", "c")
    assert e.progress() == (3, 0)


def test_trimming_past_the_group_makes_the_length_the_lag(e: Engine) -> None:
    """Worked example 4 and the row of base §13: entries-read is estimated anew at the next read."""
    e.stream(5, "g")
    e.deliver("g", "c", "COUNT", 1)
    e("XTRIM", "s", "MAXLEN", 1)
    assert e.progress() == (1, 1)
    e.deliver("g", "c", "COUNT", 1)
    assert e.progress() == (5, 0)


def test_a_group_in_the_middle_has_no_lag(e: Engine) -> None:
    """Typical nil 1."""
    e.stream(5)
    e("XGROUP", "CREATE", "s", "g", "3-0")
    assert e.progress() == (None, None)
    e.deliver("g", "c", "COUNT", 1)
    assert e.progress() == (None, None)
    e.deliver("g", "c", "COUNT", 1)
    assert e.progress() == (5, 0)


def test_a_group_beyond_the_stream_has_no_lag(e: Engine) -> None:
    """Typical nil 3."""
    e.stream(5)
    e("XGROUP", "CREATE", "s", "g", "9-0")
    assert e.progress() == (None, None)


@pytest.mark.parametrize(("at", "lag"), [("0", 5), ("1-0", 4), ("0-5", 5), ("5-0", 0), ("$", 0), ("2-0", None)])
def test_the_position_of_a_new_group_is_estimated(e: Engine, at: str, lag: int | None) -> None:
    """estimate(x): before, at the first, at the last, between."""
    e.stream(5)
    e("XGROUP", "CREATE", "s", "g", at)
    assert e.progress() == (None, lag)


@pytest.mark.parametrize(
    ("deleted", "at", "lag"),
    [
        ("0-5", "0", 5),
        ("0-5", "1-0", 4),
        ("0-5", "0-3", 5),
        ("1-0", "0", None),
        ("1-0", "1-0", None),
        ("1-0", "0-3", None),
        ("5-0", "5-0", 0),
        ("5-0", "1-0", None),
    ],
)
def test_the_highest_deleted_id_decides_whether_a_position_can_be_estimated(
    e: Engine, deleted: str, at: str, lag: int | None
) -> None:
    """estimate(x): only if it is below the first entry; 1-0 is the first, and may be named by XSETID all the same."""
    e.stream(5)
    e("XSETID", "s", "5-0", "MAXDELETEDID", deleted)
    e("XGROUP", "CREATE", "s", "g", at)
    assert e.progress() == (None, lag)


def test_an_empty_or_new_stream_has_no_lag_to_speak_of(e: Engine) -> None:
    """A = 0 or L = 0 -> 0."""
    e("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    assert e.progress() == (None, 0)
    e.fill(1, 3)
    e("XDEL", "s", "1-0", "2-0", "3-0")
    assert e.progress() == (None, 0)
    e("XTRIM", "s", "MAXLEN", 0)
    assert e.progress() == (None, 0)


def test_counters_given_by_users_are_believed(e: Engine) -> None:
    """Trap: SETID x ENTRIESREAD 50 with A 100 -> lag 50."""
    e.stream(100)
    e("XGROUP", "CREATE", "s", "g", "0")
    e("XGROUP", "SETID", "s", "g", "3-0", "ENTRIESREAD", 50)
    assert e.progress() == (50, 50)


def test_entries_read_is_capped_when_given_and_never_corrected_later(e: Engine) -> None:
    """Base §7.9 (8.10 stores min(n, entries_added)), §7.15 (XSETID below r makes the lag negative)."""
    e.stream(5)
    e("XGROUP", "CREATE", "s", "g", "3-0", "ENTRIESREAD", 99)
    assert e.progress() == (5, 0)
    e("XGROUP", "SETID", "s", "g", "3-0", "ENTRIESREAD", 7)
    assert e.progress() == (5, 0)
    e("XTRIM", "s", "MAXLEN", 2)
    e("XGROUP", "SETID", "s", "g", "4-0", "ENTRIESREAD", 5)
    e("XSETID", "s", "5-0", "ENTRIESADDED", 2)
    assert e.progress() == (5, -3)


def test_a_claim_with_lastid_moves_the_group_but_not_its_counter(e: Engine) -> None:
    e.stream(5, "g")
    e.deliver("g", "c", "COUNT", 1)
    e("XCLAIM", "s", "g", "c", 0, "1-0", "LASTID", "3-0")
    assert e.group_info()["last-delivered-id"] == "3-0"
    assert e.progress() == (1, 4)


# Quick rules (new §7.6)


@pytest.mark.parametrize(
    ("words", "lag"),
    [
        ("XDELEX s IDS 1 4-0", None),  # a tombstone after the group's last id
        ("XDELEX s IDS 1 1-0", 3),  # before it
        ("XDELEX s IDS 5 1-0 2-0 3-0 4-0 5-0", 0),
        ("XACKDEL s g IDS 1 1-0", 3),
        ("XACKDEL s g IDS 1 2-0", None),  # at it
        ("XTRIM s MAXLEN 4", 3),
        ("XTRIM s MAXLEN 2", 2),  # past the group's last id: the length
        ("XTRIM s MAXLEN 3 DELREF", 3),
        ("XNACK s g FAIL IDS 1 1-0", 3),
        ("XCLAIM s g d 0 1-0", 3),
        ("XACK s g 1-0 2-0", 3),
    ],
)
def test_what_deleting_does_to_the_lag(e: Engine, words: str, lag: int | None) -> None:
    e.stream(5, "g")
    e.deliver("g", "c", "COUNT", 2)
    e(*words.split())
    assert e.progress() == (2, lag)


def test_holes_left_by_acked_trimming_do_not_touch_the_lag(e: Engine) -> None:
    e.stream(6, "g")
    e.deliver("g", "c", "COUNT", 4)
    e("XACK", "s", "g", "2-0", "3-0")
    assert e("XTRIM", "s", "MAXLEN", 4, "ACKED") == 2
    assert e.live() == ["1-0", "4-0", "5-0", "6-0"]
    assert e.progress() == (4, 2)
