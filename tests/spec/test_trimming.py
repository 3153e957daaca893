"""XTRIM and the trimming of XADD: nodes, limits, strategies (base §7.6, new §7.3, §7.4, §7.6)."""

from __future__ import annotations

import pytest

from .support import BAD_ID, NOT_AN_INTEGER, SYNTAX, WRONG_TYPE, Engine, arity, spelled

LIMIT_WITHOUT_TRIM = "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"
LIMIT_WITHOUT_APPROX = "ERR syntax error, LIMIT cannot be used without the special ~ option"
NO_TRIM = "ERR syntax error, XTRIM must be called with a trimming strategy"
TWO_TRIMS = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"


def ids(*numbers: int) -> list[str]:
    return [f"{number}-0" for number in numbers]


def nodes(e: Engine, last: int, per_node: int, *groups: str) -> None:
    """A stream 1-0 to last-0 in nodes of so many entries; its groups have read nothing."""
    e.configure("stream-node-max-entries", per_node)
    e.stream(last, *groups)


def read_and_ack(e: Engine, *acked: int) -> None:
    """Group g reads everything and acknowledges these."""
    e.deliver("g", "c")
    if acked:
        e("XACK", "s", "g", *ids(*acked))


# Words (base §7.6, new §7.3)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("MAXLEN 1 MAXLEN 1", TWO_TRIMS),
        ("MAXLEN 1 MINID 1", TWO_TRIMS),
        ("MAXLEN x", NOT_AN_INTEGER),
        ("MAXLEN ~", NOT_AN_INTEGER),  # a modifier only if a word follows
        ("MAXLEN =", NOT_AN_INTEGER),
        ("MINID ~", BAD_ID),
        ("MAXLEN -1", "ERR The MAXLEN argument must be >= 0."),
        ("MAXLEN ~ 1 LIMIT -1", "ERR The LIMIT argument must be >= 0."),
        ("MAXLEN ~ 1 LIMIT x", NOT_AN_INTEGER),
        ("MINID x", BAD_ID),
        ("LIMIT 5", LIMIT_WITHOUT_TRIM),
        ("LIMIT 0", NO_TRIM),
        ("KEEPREF ACKED", SYNTAX),
        ("MAXLEN 5 DELREF ACKED", SYNTAX),
        ("MAXLEN 5 KEEPREF KEEPREF", SYNTAX),
        ("MAXLEN 5 LIMIT 5", LIMIT_WITHOUT_APPROX),
        ("MAXLEN 5 LIMIT 0", LIMIT_WITHOUT_APPROX),
        ("MAXLEN 5 6", SYNTAX),
        ("NOSUCH 5", SYNTAX),
        ("NOMKSTREAM MAXLEN 5", SYNTAX),
        ("MAXLEN 5 LIMIT", SYNTAX),
        ("5 MAXLEN", SYNTAX),
        # the first failure in reading order wins
        ("MAXLEN x MINID 1", NOT_AN_INTEGER),
        ("MAXLEN 5 LIMIT 5 NOSUCH", SYNTAX),
    ],
)
@pytest.mark.parametrize("kind", ["missing", "string", "stream"])
def test_xtrim_refuses_bad_words_whatever_the_key_holds(e: Engine, words: str, text: str, kind: str) -> None:
    if kind == "string":
        e("SET", "k", "x")
    if kind == "stream":
        e.stream(9, key="k")
    assert e.error("XTRIM", "k", *words.split()) == text
    if kind == "stream":
        assert e("XLEN", "k") == 9


def test_xtrim_on_nothing_and_on_another_type(e: Engine) -> None:
    assert e("XTRIM", "none", "MAXLEN", 0) == 0
    assert e("EXISTS", "none") == 0
    e("SET", "str", "x")
    assert e.error("XTRIM", "str", "MAXLEN", 0) == WRONG_TYPE
    assert e.error("XTRIM", "s", "MAXLEN") == arity("xtrim")


@pytest.mark.parametrize(
    "words",
    [
        "MAXLEN 2",
        "MAXLEN = 2",
        "MINID 3",
        "MINID = 3-0",
        "ACKED MAXLEN 2",
        "MAXLEN 2 KEEPREF",
        "delref minid 2-1",
        "LIMIT 0 MAXLEN ~ 2 DELREF",
    ],
)
def test_options_of_xtrim_come_in_any_order(e: Engine, words: str) -> None:
    e.stream(4)
    assert spelled(e.wire("XTRIM", "s", *words.split())) == ":2"
    assert e.live() == ids(3, 4)


# Exact trimming (base §7.6)


def test_exact_trimming_removes_the_oldest_until_it_fits(e: Engine) -> None:
    nodes(e, 10, 3)
    assert e("XTRIM", "s", "MAXLEN", 20) == 0
    assert e("XTRIM", "s", "MAXLEN", 10) == 0
    assert e("XTRIM", "s", "MAXLEN", 5) == 5
    assert e.live() == ids(6, 7, 8, 9, 10)
    assert e("XTRIM", "s", "MINID", "8") == 2
    assert e.live() == ids(8, 9, 10)
    assert e("XTRIM", "s", "MAXLEN", 0) == 3
    assert e("EXISTS", "s") == 1


def test_exact_trimming_passes_over_deleted_entries(e: Engine) -> None:
    nodes(e, 10, 4)
    e("XDEL", "s", *ids(1, 2, 6))
    assert e("XTRIM", "s", "MAXLEN", 5) == 2
    assert e.live() == ids(5, 7, 8, 9, 10)


# Approximate trimming (base §7.6)


def test_approximate_trimming_removes_whole_nodes(e: Engine) -> None:
    """The Tcl suite: 600 after `MAXLEN ~ 555` with 100 per node."""
    for ms in range(1, 1001):
        e("XADD", "s", "MAXLEN", "~", 555, f"{ms}-0", "f", "v")
    assert e("XLEN", "s") == 600


def test_a_limit_stops_before_a_node_that_would_exceed_it(e: Engine) -> None:
    """The Tcl suite: 71 then 62 with `LIMIT 30` at 10 per node."""
    nodes(e, 100, 10)
    e("XADD", "s", "MAXLEN", "~", 55, "LIMIT", 30, "101-0", "f", "v")
    assert e("XLEN", "s") == 71
    e("XADD", "s", "MAXLEN", "~", 55, "LIMIT", 30, "102-0", "f", "v")
    assert e("XLEN", "s") == 62


def test_without_a_limit_a_hundred_nodes_worth_is_the_limit(e: Engine) -> None:
    """The Tcl suite: 2 with 1 per node and the default limit of 100."""
    nodes(e, 102, 1)
    assert e("XTRIM", "s", "MAXLEN", "~", 1) == 100
    assert e("XLEN", "s") == 2


def test_nodes_without_a_number_of_entries_have_a_limit_of_ten_thousand(e: Engine) -> None:
    """New §7.3: 100 x stream-node-max-entries, replaced by 10000 if that is not positive."""
    nodes(e, 11_000, 0)
    per_node = 11_000 // e.info()["radix-tree-keys"]
    assert 10_000 - 2 * per_node < e("XTRIM", "s", "MAXLEN", "~", 1) <= 10_000


def test_limit_zero_is_no_limit(e: Engine) -> None:
    nodes(e, 102, 1)
    assert e("XTRIM", "s", "MAXLEN", "~", 1, "LIMIT", 0) == 101


@pytest.mark.parametrize(
    ("words", "removed"),
    [
        ("MAXLEN ~ 4 LIMIT 1", 0),  # trap: a node of 2 is never split
        ("MAXLEN ~ 4 LIMIT 2", 2),
        ("MAXLEN ~ 4 LIMIT 3", 2),
        ("MAXLEN ~ 4 LIMIT 4", 4),
        ("MAXLEN ~ 4", 6),
        ("MAXLEN ~ 5", 4),
        ("MAXLEN ~ 0", 10),  # trap: may empty the stream
        ("MAXLEN ~ 10", 0),
        ("MINID ~ 3", 2),
        ("MINID ~ 4", 2),
        ("MINID ~ 5", 4),
        ("MINID ~ 11", 10),
        ("MINID ~ 11 LIMIT 5", 4),
    ],
)
def test_approximate_trimming_in_nodes_of_two(e: Engine, words: str, removed: int) -> None:
    nodes(e, 10, 2)
    assert e("XTRIM", "s", *words.split()) == removed
    assert e.live() == ids(*range(removed + 1, 11))


def test_a_limit_counts_live_entries_and_nodes_count_dead_ones(e: Engine) -> None:
    """Base §7.6, new §7.4 steps 2 and 3."""
    nodes(e, 9, 3)
    e("XDEL", "s", *ids(1, 2, 6))
    assert e("XTRIM", "s", "MINID", "~", "6-0") == 1  # the second node ends with the dead 6-0, which is not below
    assert e("XTRIM", "s", "MINID", "~", "6-1", "LIMIT", 2) == 2
    assert e.live() == ids(7, 8, 9)


def test_dead_entries_fill_a_node(e: Engine) -> None:
    """Base §7.6: (live + dead) >= stream-node-max-entries starts a node."""
    nodes(e, 3, 3)
    e("XDEL", "s", "1-0", "2-0")
    e.fill(4, 4)
    assert e.info()["radix-tree-keys"] == 2
    e("XDEL", "s", "3-0")  # the node's last live entry: the node goes
    assert e.info()["radix-tree-keys"] == 1


def test_a_change_of_the_node_size_does_not_rearrange_old_nodes(e: Engine) -> None:
    """Base §7.6, trap: only what is appended from now on is affected, the open node included."""
    nodes(e, 4, 2)
    e.configure("stream-node-max-entries", 5)
    e.fill(5, 10)
    assert e.info()["radix-tree-keys"] == 3  # [1 2] [3 4 5 6 7] [8 9 10]
    assert e("XTRIM", "s", "MAXLEN", "~", 3) == 7
    e.configure("stream-node-max-entries", 2)
    e.fill(11, 11)
    assert e.info()["radix-tree-keys"] == 2


def test_a_node_size_of_zero_is_no_limit(e: Engine) -> None:
    nodes(e, 150, 0)
    assert e.info()["radix-tree-keys"] == 1
    assert e("XTRIM", "s", "MAXLEN", "~", 0) == 150


@pytest.mark.parametrize(
    ("size", "limit", "keys"), [(1000, 4096, 5), (2000, 4096, 10), (5000, 4096, 20), (100, 4096, 1), (10, 64, 10)]
)
def test_large_entries_make_more_nodes(e: Engine, size: int, limit: int, keys: int) -> None:
    """New §1.1: a node is full when its bytes and those of the new fields reach stream-node-max-bytes."""
    e.configure("stream-node-max-bytes", limit)
    for ms in range(1, 21):
        e("XADD", "s", f"{ms}-0", "f", "x" * size)
    assert e.info()["radix-tree-keys"] == keys


@pytest.mark.parametrize(("size", "keys"), [(4065, 1), (4066, 2)])
def test_a_node_may_have_one_byte_less_than_its_limit(e: Engine, size: int, keys: int) -> None:
    """New §1.1: 4095 still fits; the first entry makes 29, the field 1."""
    e("XADD", "s", "1-0", "f", "v")
    e("XADD", "s", "2-0", "f", "x" * size)
    assert e.info()["radix-tree-keys"] == keys


@pytest.mark.parametrize(
    ("value", "size"),
    [
        # a canonical int64 takes its shortest integer form, and a byte for the way back
        ("0", 2),
        ("127", 2),
        ("128", 3),
        ("-1", 3),
        ("4095", 3),
        ("-4096", 3),
        ("4096", 4),
        ("-4097", 4),
        ("32767", 4),
        ("-32768", 4),
        ("32768", 5),
        ("-32769", 5),
        ("8388607", 5),
        ("8388608", 6),
        ("-8388609", 6),
        ("2147483647", 6),
        ("2147483648", 10),
        ("-9223372036854775808", 10),
        ("9223372036854775807", 10),
        # everything else is a string: one, two or five bytes before it, one or two for the way back
        ("", 2),
        ("01", 4),
        ("-0", 4),
        ("+1", 4),
        (" 1", 4),
        ("9223372036854775808", 21),
        ("x" * 63, 65),
        ("x" * 64, 67),
        ("x" * 125, 128),
        ("x" * 126, 130),
        ("x" * 2000, 2004),
        ("x" * 4095, 4099),
        ("x" * 4096, 4103),
    ],
)
def test_a_node_is_as_large_as_its_listpack(e: Engine, value: str, size: int) -> None:
    """Base §7.6, §12.2, new §10.4: 26 bytes for the first entry `f <value>`, and the value's own."""
    for limit, keys in ((26 + size + 2, 2), (26 + size + 3, 1)):
        e("DEL", "s")
        e.configure("stream-node-max-bytes", limit)
        e("XADD", "s", "1-0", "f", value)
        e("XADD", "s", "2-0", "f", "v")
        assert e.info()["radix-tree-keys"] == keys


@pytest.mark.parametrize(
    ("entry_id", "fields", "size"),
    [
        ("2-0", ["f", "v"], 11),  # the names of the first entry: values only
        ("2-0", ["g", "v"], 16),  # other names: their number and themselves
        ("2-0", ["f", "v", "f", "v"], 22),
        ("2-0", ["f", "v", "ff", "v"], 23),
        ("128-0", ["f", "v"], 11),  # ids are kept as differences to the first
        ("129-0", ["f", "v"], 12),
        ("5000-0", ["f", "v"], 13),
        ("1-128", ["f", "v"], 12),
        ("2-300", ["f", "v"], 12),
        ("1767225600000-0", ["f", "v"], 19),
    ],
)
def test_a_node_grows_by_the_listpack_of_an_entry(e: Engine, entry_id: str, fields: list[str], size: int) -> None:
    """New §10.4: flags, two differences, names and values, the number of elements."""
    for limit, keys in ((29 + size + 2, 2), (29 + size + 3, 1)):
        e("DEL", "s")
        e.configure("stream-node-max-bytes", limit)
        e("XADD", "s", "1-0", "f", "v")
        e("XADD", "s", entry_id, *fields)
        e("XADD", "s", "9999999999999-0", "f", "v")
        assert e.info()["radix-tree-keys"] == keys


@pytest.mark.parametrize(
    ("entries", "deleted", "size"),
    [
        (127, 0, 18 + 127 * 11),
        (128, 0, 19 + 128 * 11),
        (130, 0, 19 + 128 * 11 + 2 * 12),
        (130, 3, 18 + 128 * 11 + 2 * 12),
    ],
)
def test_the_counts_of_a_node_are_part_of_its_size(e: Engine, entries: int, deleted: int, size: int) -> None:
    """New §10.4: a number of live entries above 127 takes a byte more; the same for differences of ids."""
    for limit, keys in ((size + 2, 2), (size + 3, 1)):
        e("DEL", "s")
        e.configure("stream-node-max-entries", 0)
        e.configure("stream-node-max-bytes", 4096)
        e.stream(entries)
        for ms in range(deleted):
            e("XDEL", "s", f"{ms + 1}-0")
        e.configure("stream-node-max-bytes", limit)
        e("XADD", "s", "999-0", "f", "v")
        assert e.info()["radix-tree-keys"] == keys


# What trimming changes (new §7.4, §7.6)


@pytest.mark.parametrize("words", ["MAXLEN 4", "MINID 7", "MAXLEN 4 DELREF", "MAXLEN 4 ACKED"])
def test_trimming_moves_the_first_id_and_nothing_else(e: Engine, words: str) -> None:
    """New §7.7 case 8: no max_deleted update."""
    e.stream(10)
    assert e("XTRIM", "s", *words.split()) == 6
    info = e.info()
    assert (info["length"], info["recorded-first-entry-id"], info["entries-added"]) == (4, "7-0", 10)
    assert (info["max-deleted-entry-id"], info["last-generated-id"]) == ("0-0", "10-0")
    e("XTRIM", "s", "MAXLEN", 0)
    assert e.info()["recorded-first-entry-id"] == "0-0"


def test_trimming_leaves_pending_entries_unless_told(e: Engine) -> None:
    """Base §7.6, trap: XTRIM does not touch PELs; new §7.4: DELREF does."""
    e.stream(4, "g")
    e.deliver("g", "c")
    e("XTRIM", "s", "MAXLEN", 3)
    assert list(e.owners()) == ids(1, 2, 3, 4)
    e("XTRIM", "s", "MAXLEN", 1, "DELREF")
    assert list(e.owners()) == ids(1, 4)


# Strategies (new §7.4, the table of consequences)


def test_acked_goes_past_the_boundary_until_the_length_fits(e: Engine) -> None:
    """Row 1."""
    e.stream(10, "g")
    read_and_ack(e, 4, 5, 6, 7, 8, 9, 10)
    assert e("XTRIM", "s", "MAXLEN", 5, "ACKED") == 5
    assert e.live() == ids(1, 2, 3, 9, 10)
    assert e.info()["max-deleted-entry-id"] == "0-0"
    assert e.info()["recorded-first-entry-id"] == "1-0"


def test_acked_may_remove_the_newest(e: Engine) -> None:
    """Row 2."""
    nodes(e, 6, 2, "g")
    read_and_ack(e, 5, 6)
    assert e("XTRIM", "s", "MAXLEN", 2, "ACKED") == 2
    assert e.live() == ids(1, 2, 3, 4)


def test_acked_ends_at_the_first_node_that_is_not_whole(e: Engine) -> None:
    """Row 3."""
    nodes(e, 6, 3, "g")
    read_and_ack(e, 4, 5)
    assert e("XTRIM", "s", "MAXLEN", 4, "ACKED") == 0
    assert e.live() == ids(1, 2, 3, 4, 5, 6)


def test_acked_with_minid_removes_what_is_acknowledged_of_whole_nodes(e: Engine) -> None:
    """Row 4."""
    nodes(e, 5, 2, "g")
    read_and_ack(e, 1, 2, 4)
    assert e("XTRIM", "s", "MINID", "~", "6-0", "ACKED") == 3
    assert e.live() == ids(3, 5)


@pytest.mark.parametrize(
    ("words", "removed"),
    [
        ("MAXLEN ~ 95 LIMIT 50 DELREF", 0),  # row 5: the node exceeds LIMIT
        ("MAXLEN ~ 95 DELREF", 5),  # row 6, new §7.7 case 7
        ("MAXLEN ~ 95 KEEPREF", 0),
        ("MAXLEN ~ 95", 0),
        ("MAXLEN ~ 95 ACKED", 5),
        ("MINID ~ 6 DELREF", 5),
        ("MINID ~ 6", 0),
    ],
)
def test_about_means_exactly_with_delref_and_acked(e: Engine, words: str, removed: int) -> None:
    e.stream(100)
    assert e("XTRIM", "s", *words.split()) == removed
    assert e("XLEN", "s") == 100 - removed


@pytest.mark.parametrize("words", ["MAXLEN 4 ACKED", "MINID 7 ACKED", "MAXLEN ~ 4 ACKED", "MINID ~ 7 ACKED"])
def test_acked_without_groups_is_exact_trimming(e: Engine, words: str) -> None:
    """Row 7."""
    nodes(e, 10, 3)
    assert e("XTRIM", "s", *words.split()) == 6
    assert e.live() == ids(7, 8, 9, 10)


def test_acked_removes_nothing_while_a_group_has_read_nothing(e: Engine) -> None:
    """Row 8."""
    nodes(e, 10, 3, "g", "behind")
    read_and_ack(e, *range(1, 11))
    assert e("XTRIM", "s", "MAXLEN", 0, "ACKED") == 0


def test_the_entry_just_added_is_safe_from_acked(e: Engine) -> None:
    """New §7.4, last paragraph."""
    e.stream(3, "g")
    read_and_ack(e, 1, 2, 3)
    e("XADD", "s", "ACKED", "MAXLEN", 0, "4-0", "f", "v")
    assert e.live() == ids(4)
    e("XGROUP", "SETID", "s", "g", "9-0")
    e("XADD", "s", "ACKED", "MAXLEN", 0, "5-0", "f", "v")
    assert e.live() == []


def test_a_strategy_word_of_xadd_applies_to_its_trimming(e: Engine) -> None:
    e.stream(3, "g")
    e.deliver("g", "c")
    e("XADD", "s", "DELREF", "MAXLEN", 2, "4-0", "f", "v")
    assert (e.live(), list(e.owners())) == (ids(3, 4), ids(3))
    e("XADD", "s", "MAXLEN", 2, "ACKED", "5-0", "f", "v")
    assert e.live() == ids(3, 4, 5)
    e("XADD", "s", "MAXLEN", 1, "KEEPREF", "6-0", "f", "v")
    assert (e.live(), list(e.owners())) == (ids(6), ids(3))


def test_a_node_emptied_entry_by_entry_goes(e: Engine) -> None:
    """New §7.4 step 6."""
    nodes(e, 6, 2)
    e("XTRIM", "s", "MAXLEN", 3, "DELREF")
    assert e.live() == ids(4, 5, 6)
    assert e.info()["radix-tree-keys"] == 2


def test_acked_keeps_a_node_that_is_not_emptied(e: Engine) -> None:
    nodes(e, 6, 2, "g")
    read_and_ack(e, 1, 3, 4, 5, 6)
    assert e("XTRIM", "s", "MAXLEN", 2, "ACKED") == 4
    assert e.live() == ids(2, 6)
    assert e.info()["radix-tree-keys"] == 2
    assert e.info()["recorded-first-entry-id"] == "2-0"
