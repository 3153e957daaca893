"""Waiting for keys (base §6), as far as it is the engine's: when a read waits, for what, and who is woken."""

from __future__ import annotations

from typing import Any

import pytest

from .support import NIL_ARRAY, WRONG_TYPE, Engine, Failure, PythonEngine, Reader, engine_only, entry, ids_of

NO_GROUP = "NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option"


def wait_of(e: PythonEngine, *words: str | int) -> Any:
    """The `Wait` of a read that finds nothing."""
    return e.outcome(*words, may_block=True).reply


def read_group(e: Engine, consumer: str = "c", *options: str | int) -> Reader:
    return e.block("XREADGROUP", "GROUP", "g", consumer, *options, "BLOCK", 0, "STREAMS", "s", ">")


# What a read waits for (base §6 points 1 to 3)


@engine_only
def test_a_wait_has_the_keys_and_the_timeout(e: PythonEngine) -> None:
    """Point 1."""
    wait = wait_of(e, "XREAD", "BLOCK", 250, "STREAMS", "a", "b", "$", "5-0")
    assert (wait.keys, wait.timeout_ms) == ((b"a", b"b"), 250)
    assert (wait.group, wait.wake_at_ms) == (False, None)
    assert wait_of(e, "XREAD", "BLOCK", 0, "STREAMS", "a", "$").timeout_ms == 0


@engine_only
def test_a_read_of_a_group_waits_for_the_end_of_its_keys_too(e: PythonEngine) -> None:
    e("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    wait = wait_of(e, "XREADGROUP", "GROUP", "g", "c", "BLOCK", 7, "STREAMS", "s", ">")
    assert (wait.keys, wait.timeout_ms, wait.group) == ((b"s",), 7, True)


@engine_only
def test_a_read_that_may_not_block_is_answered_at_once(e: Engine) -> None:
    """Point 2: inside MULTI and scripts, BLOCK 0 included."""
    e("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    assert e("XREAD", "BLOCK", 0, "STREAMS", "s", "$") is NIL_ARRAY
    assert e("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">") is NIL_ARRAY


@pytest.mark.parametrize("streams", ["a b 0 0", "a b 0 $", "b a $ 0"])
def test_a_read_that_finds_anything_does_not_block(e: Engine, streams: str) -> None:
    """Point 2."""
    e.stream(1, key="a")
    assert e("XREAD", "BLOCK", 0, "STREAMS", *streams.split()) == [["a", [entry("1-0")]]]


@engine_only
def test_a_waiting_dollar_is_the_id_it_stood_for(e: PythonEngine) -> None:
    """Point 3: per stream; `+` and `>` stay as they are."""
    e.stream(3, key="a")
    words = ("XREAD", "BLOCK", 0, "STREAMS", "a", "none", "empty", "$", "$", "+")
    e("XGROUP", "CREATE", "empty", "g", "$", "MKSTREAM")
    argv = wait_of(e, *words).argv
    assert argv[-3:] == [b"3-0", b"0-0", b"+"]
    assert argv[:-3] == [str(word).encode() for word in words[:-3]]
    argv = wait_of(e, "XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "empty", ">").argv
    assert argv[-1] == b">"


def test_a_waiting_dollar_sees_what_comes_after_it_even_if_the_key_is_made_anew(e: Engine) -> None:
    """Point 3: the id it stood for is kept."""
    e.stream(3)
    reader = e.block("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
    e("DEL", "s")
    e.fill(1, 3)
    assert reader.is_waiting()
    e.fill(4, 4)
    assert reader.reply() == [["s", [entry("4-0")]]]


def test_a_waiting_plus_gets_the_newest_entry_only(e: Engine) -> None:
    """Point 3 and base §7.8."""
    reader = e.block("XREAD", "BLOCK", 0, "COUNT", 5, "STREAMS", "s", "+")
    e.stream(1, key="t")
    e.fill(2, 3, "t")
    e("RENAME", "t", "s")
    assert reader.reply() == [["s", [entry("3-0")]]]


# What wakes (base §6 points 4 and 5)

MAKES_READY_FOR_BOTH = ["XADD s 5-0 f v", "RENAME t s", "COPY t s REPLACE"]
MAKES_READY_FOR_GROUPS = {
    "XGROUP DESTROY s g": NO_GROUP,
    "DEL s": NO_GROUP,
    "UNLINK s": NO_GROUP,
    "RENAME s u": NO_GROUP,
    "FLUSHALL": NO_GROUP,
    "FLUSHDB": NO_GROUP,
    "SET s x": WRONG_TYPE,
    "PEXPIRE s -1": NO_GROUP,
}
MAKES_NOTHING_READY = [
    "XGROUP SETID s g 0",
    "XGROUP CREATE s h 0",
    "XGROUP DELCONSUMER s g d",
    "XDEL s 1-0",
    "XTRIM s MAXLEN 0",
    "XSETID s 9-0",
    "XCLAIM s g d 0 1-0 IDLE 9999",
    "XACK s g 1-0",
    "XCFGSET s IDMP-DURATION 5",
]


def prepared(e: Engine) -> None:
    """s with 1-0, read by d of g; t with 1-0 to 9-0 that nobody of its group g has read."""
    e.stream(1, "g")
    e.deliver("g", "d")
    e.stream(9, "g", key="t")


@pytest.mark.parametrize("words", MAKES_READY_FOR_BOTH)
def test_new_entries_wake_every_reader(e: Engine, words: str) -> None:
    prepared(e)
    plain = e.block("XREAD", "BLOCK", 0, "STREAMS", "s", "1-0")
    group = read_group(e)
    e(*words.split())
    last = "5-0" if words.startswith("XADD") else "9-0"
    assert ids_of(plain.reply()[0][1])[-1] == last
    assert ids_of(group.reply()[0][1])[-1] == last


@pytest.mark.parametrize(("words", "text"), MAKES_READY_FOR_GROUPS.items())
def test_the_end_of_a_key_or_group_wakes_readers_of_groups_only(e: Engine, words: str, text: str) -> None:
    """Point 5: XREAD waiters are considered only if the key now holds a stream; then they find nothing."""
    prepared(e)
    plain = e.block("XREAD", "BLOCK", 0, "STREAMS", "s", "1-0")
    group = read_group(e)
    e(*words.split())
    assert group.reply() == Failure(text)
    assert plain.is_waiting()


def test_expiry_wakes_readers_of_groups_only(e: Engine) -> None:
    """Point 4."""
    prepared(e)
    plain = e.block("XREAD", "BLOCK", 0, "STREAMS", "s", "1-0")
    group = read_group(e)
    e("PEXPIRE", "s", 30)
    e.wait(40)
    e("EXISTS", "s")
    assert group.reply() == Failure(NO_GROUP)
    assert plain.is_waiting()


@pytest.mark.parametrize("words", MAKES_NOTHING_READY)
def test_these_wake_nobody(e: Engine, words: str) -> None:
    prepared(e)
    plain = e.block("XREAD", "BLOCK", 0, "STREAMS", "s", "1-0")
    group = read_group(e)
    e(*words.split())
    assert plain.is_waiting()
    assert group.is_waiting()


# Who gets what (base §6 points 6 and 7)


def test_all_plain_readers_get_the_same_entries(e: Engine) -> None:
    """Point 6."""
    readers = [e.block("XREAD", "BLOCK", 0, "STREAMS", "s", "$") for _ in range(2)]
    e.fill(1, 1)
    assert [reader.reply() for reader in readers] == [[["s", [entry("1-0")]]]] * 2


def test_readers_of_a_group_are_served_in_the_order_they_came(e: Engine) -> None:
    """Point 6: the first takes everything, the next block on."""
    e("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    first, second = read_group(e, "c"), read_group(e, "d")
    e.stream(3, "g", key="t")
    e("RENAME", "t", "s")
    assert ids_of(first.reply()[0][1]) == ["1-0", "2-0", "3-0"]
    assert second.is_waiting()
    e.fill(4, 4)
    assert ids_of(second.reply()[0][1]) == ["4-0"]
    assert e.owners() == {"1-0": "c", "2-0": "c", "3-0": "c", "4-0": "d"}


def test_readers_with_a_count_share_what_came(e: Engine) -> None:
    """Point 6."""
    e("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    readers = [read_group(e, name, "COUNT", 2) for name in ("c", "d")]
    e.stream(3, "g", key="t")
    e("RENAME", "t", "s")
    assert [ids_of(reader.reply()[0][1]) for reader in readers] == [["1-0", "2-0"], ["3-0"]]


def test_a_consumer_deleted_meanwhile_is_made_again(e: Engine) -> None:
    """Point 7; and base §7.10, trap: the consumer is made even when the command then blocks."""
    e("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    reader = read_group(e)
    assert list(e.consumers()) == ["c"]
    e("XGROUP", "DELCONSUMER", "s", "g", "c")
    assert e.consumers() == {}
    e.fill(1, 1)
    assert ids_of(reader.reply()[0][1]) == ["1-0"]
    assert e.consumers()["c"]["pending"] == 1


def test_a_reader_woken_for_nothing_takes_nothing(e: Engine) -> None:
    """Points 6 and 11: no pending entry, no moved last id for the one that waits on."""
    e("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    read_group(e, "c")
    second = read_group(e, "d")
    e.fill(1, 1)
    assert second.is_waiting()
    assert e.owners() == {"1-0": "c"}
    assert e.consumers()["d"]["pending"] == 0
    assert e.group_info()["last-delivered-id"] == "1-0"


def test_a_reader_of_several_keys_is_served_by_any_of_them(e: Engine) -> None:
    """Point 9: what has data then, in the order of the arguments."""
    reader = e.block("XREAD", "BLOCK", 0, "STREAMS", "a", "b", "$", "$")
    e.fill(1, 1, "b")
    assert reader.reply() == [["b", [entry("1-0")]]]


def test_a_key_listed_twice_is_waited_for_once(e: Engine) -> None:
    """Point 10."""
    reader = e.block("XREAD", "BLOCK", 0, "STREAMS", "s", "s", "$", "0-5")
    e.fill(1, 1)
    assert reader.reply() == [["s", [entry("1-0")]], ["s", [entry("1-0")]]]
