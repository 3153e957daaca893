from __future__ import annotations

import pytest

from millstream.engine.commands import execute
from millstream.engine.keys.keyspace import Keyspace
from millstream.engine.outcome import NIL_ARRAY, Wait
from tests.engine.commands.plain import Plain

# What is answered, and to which errors, is compared with a real server in tests/server/commands/test_against_redis.py.


def test_popping_that_waits_is_logged_as_popping(e: Plain) -> None:
    e("RPUSH l a b c")
    did = e.did("BLPOP nope l 0")
    assert (did.reply, did.log, did.events, did.dirty) == ([b"l", b"a"], ["LPOP l"], ["l lpop l"], 1)
    did = e.did("BRPOP l 0")
    assert (did.reply, did.log) == ([b"l", b"c"], ["RPOP l"])


def test_popping_many_is_logged_with_how_many_there_were(e: Plain) -> None:
    e("RPUSH l a b c")
    did = e.did("LMPOP 2 nope l RIGHT COUNT 9")
    assert (did.reply, did.log, did.dirty) == ([b"l", [b"c", b"b", b"a"]], ["RPOP l 3"], 3)
    assert e("EXISTS l") == 0


def test_moving_tells_the_target_first(e: Plain) -> None:
    e("RPUSH a 1")
    did = e.did("LMOVE a b LEFT RIGHT")
    assert (did.reply, did.log, did.dirty) == (b"1", ["LMOVE a b LEFT RIGHT"], 1)
    assert did.events == ["n new b", "l rpush b", "l lpop a", "g del a"]


def test_a_list_moved_to_itself_is_rotated(e: Plain) -> None:
    e("RPUSH l 1 2 3")
    assert e("RPOPLPUSH l l") == b"3"
    assert e("LRANGE l 0 -1") == [b"3", b"1", b"2"]
    e("DEL l")
    e("RPUSH l 1")
    assert e("LMOVE l l LEFT RIGHT") == b"1"
    assert e("LRANGE l 0 -1") == [b"1"]


@pytest.mark.parametrize("request_", ["BLMOVE a b LEFT RIGHT 0", "BRPOPLPUSH a b 0"])
def test_a_move_that_waits_is_logged_without_its_timeout(e: Plain, request_: str) -> None:
    e("RPUSH a 1")
    assert e.did(request_).log in (["LMOVE a b LEFT RIGHT"], ["RPOPLPUSH a b"])


def test_a_target_of_another_kind_leaves_the_source_alone(e: Plain) -> None:
    e("RPUSH a 1")
    e("SET b x")
    assert e.error("LMOVE a b LEFT LEFT").startswith("WRONGTYPE ")
    assert e("LRANGE a 0 -1") == [b"1"]


@pytest.mark.parametrize(
    ("argv", "keys", "timeout_ms"),
    [
        ([b"BLPOP", b"a", b"b", b"0.0001"], (b"a", b"b"), 1),
        ([b"BRPOP", b"a", b"1.5"], (b"a",), 1500),
        ([b"BLMOVE", b"a", b"b", b"LEFT", b"LEFT", b"0"], (b"a",), 0),
        ([b"BRPOPLPUSH", b"a", b"b", b"2"], (b"a",), 2000),
        ([b"BLMPOP", b"3", b"2", b"a", b"b", b"LEFT"], (b"a", b"b"), 3000),
        ([b"BZPOPMIN", b"a", b"b", b"1e-9"], (b"a", b"b"), 1),
        ([b"BZMPOP", b"3", b"2", b"a", b"b", b"MIN", b"COUNT", b"2"], (b"a", b"b"), 3000),
    ],
)
def test_what_finds_nothing_waits_where_it_may(argv: list[bytes], keys: tuple[bytes, ...], timeout_ms: int) -> None:
    waits = execute(Keyspace(), 0, argv, 1000, may_block=True).reply
    assert waits == Wait(keys, timeout_ms, argv)
    assert execute(Keyspace(), 0, argv, 1000).reply in (None, NIL_ARRAY)


def test_sorted_sets_are_popped_as_lists_are(e: Plain) -> None:
    e("ZADD z 1 a 2 b 3 c")
    did = e.did("BZPOPMIN nope z 0")
    assert (did.reply, did.log, did.events) == ([b"z", b"a", 1.0], ["ZPOPMIN z"], ["z zpopmin z"])
    did = e.did("ZMPOP 1 z MAX COUNT 5")
    assert (did.reply, did.log) == ([b"z", [[b"c", 3.0], [b"b", 2.0]]], ["ZPOPMAX z 2"])
    assert did.events == ["z zpopmax z", "g del z"]
