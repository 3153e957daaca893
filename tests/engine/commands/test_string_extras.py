from __future__ import annotations

import pytest

from millstream.engine.commands import execute
from millstream.engine.keys.keyspace import Keyspace
from tests.engine.commands.plain import Plain

# What is answered, and to which errors, is compared with a real server in tests/server/commands/test_against_redis.py.


def test_several_strings_are_logged_with_the_time_they_expire_at(e: Plain) -> None:
    did = e.did("MSETEX 2 a 1 b 2 EX 100")
    at = e.now_ms + 100_000
    assert (did.reply, did.log, did.dirty) == (1, [f"MSETEX 2 a 1 b 2 PXAT {at}"], 2)
    assert e("PEXPIRETIME b") == at
    assert e.did("MSETEX 2 a 3 b 4 XX KEEPTTL").log == ["MSETEX 2 a 3 b 4 KEEPTTL"]
    assert e("PEXPIRETIME b") == at
    assert e.did("MSETEX 1 a 5").log == ["MSETEX 1 a 5"]
    assert e("TTL a") == -1


def test_a_condition_holds_for_all_keys_or_nothing_is_set(e: Plain) -> None:
    e("SET a 1")
    assert e.did("MSETEX 2 a 2 b 2 NX").nothing()
    assert e.did("MSETEX 2 a 2 b 2 XX").nothing()
    assert e("MGET a b") == [b"1", None]


@pytest.mark.parametrize(
    ("request_", "logged"),
    [
        ("INCREX k BYINT 5", "SET k 15 KEEPTTL"),
        ("INCREX k PERSIST", "SET k 11"),
        ("INCREX k PXAT 9000000000000", "SET k 11 PXAT 9000000000000"),
        ("INCREX k ENX PXAT 9000000000000", "SET k 11 KEEPTTL"),
        ("INCREX k BYFLOAT 0.5", "SET k 10.5 KEEPTTL"),
        ("INCREX k BYINT 50 UBOUND 20 SATURATE", "SET k 20 KEEPTTL"),
        ("INCREX k PXAT 1", "DEL k"),
    ],
)
def test_a_counter_is_logged_as_what_it_became(e: Plain, request_: str, logged: str) -> None:
    e("SET k 10 PXAT 8000000000000")
    assert e.did(request_).log == [logged]


def test_a_counter_beyond_its_bound_changes_nothing(e: Plain) -> None:
    e("SET k 10")
    did = e.did("INCREX k BYINT 5 UBOUND 12 EX 100")
    assert (did.reply, did.log, did.dirty) == ([10, 0], [], 0)
    assert e("TTL k") == -1
    assert e.did("INCREX missing BYINT 5 UBOUND 2").reply == [0, 0]
    assert e("EXISTS missing") == 0


def test_fractions_are_exact_to_eighty_bits(e: Plain) -> None:
    e("INCREX f BYFLOAT 0.1")
    assert e("INCREX f BYFLOAT 0.2") == [b"0.3", b"0.2"]


def test_fractions_are_doubles_in_resp3() -> None:
    assert execute(Keyspace(), 0, [b"INCREX", b"f", b"BYFLOAT", b"1.5"], 0, protocol=3).reply == [1.5, 1.5]
