from __future__ import annotations

import pytest

from millstream.engine.outcome import Members
from tests.engine.commands.plain import Plain

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
NOT_POSITIVE = "ERR value is out of range, must be positive"


def _members(e: Plain, key: str = "s") -> set[bytes]:
    reply = e(f"SMEMBERS {key}")
    assert isinstance(reply, Members)
    assert len(set(reply)) == len(reply)
    return set(reply)  # type: ignore[arg-type]


def test_sadd_counts_new_members(e: Plain) -> None:
    did = e.did("SADD s a b a")
    assert (did.reply, did.log, did.events, did.dirty) == (2, ["SADD s a b a"], ["n new s", "s sadd s"], 2)
    assert e.did("SADD s a").nothing()
    assert _members(e) == {b"a", b"b"}


def test_srem_counts_and_the_set_goes_with_its_last_member(e: Plain) -> None:
    e("SADD s a b c")
    did = e.did("SREM s a x")
    assert (did.reply, did.events, did.dirty) == (1, ["s srem s"], 1)
    assert e.did("SREM s x").nothing()
    did = e.did("SREM s b c")
    assert (did.events, did.dirty) == (["s srem s", "g del s"], 2)
    assert e.did("SREM s b").nothing()


def test_membership(e: Plain) -> None:
    e("SADD s a b")
    assert (e("SISMEMBER s a"), e("SISMEMBER s x"), e("SISMEMBER missing a")) == (1, 0, 0)
    assert e("SMISMEMBER s a x b") == [1, 0, 1]
    assert e("SMISMEMBER missing a x") == [0, 0]
    assert (e("SCARD s"), e("SCARD missing")) == (2, 0)
    assert _members(e, "missing") == set()


def test_smembers_is_a_set_in_resp3(e: Plain) -> None:
    e("SADD s a")
    assert e.wire("SMEMBERS s", 2) == b"*1\r\n$1\r\na\r\n"
    assert e.wire("SMEMBERS s", 3) == b"~1\r\n$1\r\na\r\n"
    assert e.wire("SPOP s 1", 3) == b"~1\r\n$1\r\na\r\n"
    assert e.wire("SPOP s 1", 3) == b"~0\r\n"
    assert e.wire("SRANDMEMBER s 1", 3) == b"*0\r\n"


def test_spop_is_logged_as_the_removal_of_what_it_chose(e: Plain) -> None:
    e("SADD s a b c d")
    did = e.did("SPOP s")
    assert isinstance(did.reply, bytes)
    assert did.log == [f"SREM s {did.reply.decode()}"]
    assert (did.events, did.dirty) == (["s spop s"], 1)
    did = e.did("SPOP s 2")
    assert isinstance(did.reply, Members)
    assert did.log == [b" ".join([b"SREM s", *did.reply]).decode()]  # type: ignore[list-item]
    assert (did.events, did.dirty) == (["s spop s"], 2)
    did = e.did("SPOP s")
    assert did.events == ["s spop s", "g del s"]
    assert e("EXISTS s") == 0


def test_spop_of_all_is_logged_as_del(e: Plain) -> None:
    e("SADD s a b c")
    did = e.did("SPOP s 5")
    assert sorted(did.reply) == [b"a", b"b", b"c"]  # type: ignore[type-var,arg-type]
    assert (did.log, did.events, did.touched, did.dirty) == (["DEL s"], ["s spop s", "g del s"], ["s"], 3)


def test_spop_of_nothing_does_nothing(e: Plain) -> None:
    e("SADD s a")
    assert e.did("SPOP s 0").nothing()
    assert e("SPOP missing") is None
    assert e("SPOP missing 3") == []


def test_spop_reaches_every_member(e: Plain) -> None:
    e("SADD s " + " ".join(map(str, range(40))))
    assert {e("SPOP s") for _ in range(40)} == {b"%d" % number for number in range(40)}


def test_srandmember_is_distinct_for_a_positive_count_only(e: Plain) -> None:
    e("SADD s a b c d e")
    for count in range(8):
        reply = e(f"SRANDMEMBER s {count}")
        assert isinstance(reply, list)
        assert len(set(reply)) == len(reply) == min(count, 5)  # type: ignore[arg-type]
    assert len(e("SRANDMEMBER s -20")) == 20  # type: ignore[arg-type]
    assert {e("SRANDMEMBER s") for _ in range(200)} == {b"a", b"b", b"c", b"d", b"e"}
    assert (e("SRANDMEMBER missing"), e("SRANDMEMBER missing 2"), e("SRANDMEMBER s 0")) == (None, [], [])
    assert e("SCARD s") == 5


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("SPOP s -1", NOT_POSITIVE),
        ("SPOP k x", NOT_POSITIVE),
        ("SPOP s 1 2", "ERR syntax error"),
        ("SRANDMEMBER s 1 2", "ERR syntax error"),
        ("SRANDMEMBER s x", "ERR value is not an integer or out of range"),
        (
            f"SRANDMEMBER missing {-(2**63)}",
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ),
        (f"SRANDMEMBER s {-(2**62)}", "ERR value is out of range"),  # ours: Redis would go on until memory ends
        ("SADD k a", WRONG_TYPE),
        ("SREM k a", WRONG_TYPE),
        ("SPOP k", WRONG_TYPE),
        ("SPOP k 1", WRONG_TYPE),
        ("SMEMBERS k", WRONG_TYPE),
        ("SCARD k", WRONG_TYPE),
        ("SISMEMBER k a", WRONG_TYPE),
        ("SMISMEMBER k a", WRONG_TYPE),
        ("SRANDMEMBER k", WRONG_TYPE),
    ],
)
def test_a_set_command_is_refused_and_changes_nothing(e: Plain, command: str, error: str) -> None:
    e("SADD s a b")
    e("SET k v")
    assert e.error(command) == error
