"""DUMP and RESTORE as commands: replies, effects, options."""

from __future__ import annotations

import pytest

from millstream.engine.keys.keyspace import Keyspace
from millstream.persistence.rdb import dump_payload
from tests.persistence.rdb.support import NOW_MS, run, sealed, wire
from tests.support.servers import RealServer

HELLO = dump_payload(b"hello")


def did(keyspace: Keyspace, *argv: bytes, trusted: bool = False) -> tuple[object, list[bytes], list[str], int]:
    """What a command answered, what it logged but for the payload, its events, its changes."""
    outcome = run(keyspace, *argv, trusted=trusted)
    log = [b" ".join(word if word != HELLO else b"HELLO" for word in line) for _, line in outcome.log]
    events = [f"{event.kind} {event.name.decode()}" for event in outcome.events]
    return outcome.reply, log, events, outcome.dirty


def test_dump_answers_null_if_there_is_no_key() -> None:
    assert did(Keyspace(), b"DUMP", b"k") == (None, [], ["m keymiss"], 0)


def test_dump_answers_the_payload() -> None:
    keyspace = Keyspace()
    run(keyspace, b"SET", b"k", b"hello")
    assert did(keyspace, b"DUMP", b"k") == (HELLO, [], [], 0)


def test_a_large_value_is_not_compressed() -> None:
    keyspace = Keyspace()
    run(keyspace, b"SET", b"small", b"x" * 60_000)
    run(keyspace, b"SET", b"large", b"x" * 70_000)
    for key, is_compressed in ((b"small", True), (b"large", False)):
        payload = run(keyspace, b"DUMP", key).reply
        assert isinstance(payload, bytes)
        assert (len(payload) < 2000) == is_compressed


def test_restore_makes_a_key() -> None:
    keyspace = Keyspace()
    done = did(keyspace, b"RESTORE", b"k", b"0", HELLO)
    assert done == (b"OK", [b"RESTORE k 0 HELLO"], ["n new", "g restore"], 1)
    assert wire(keyspace, b"GET", b"k") == b"$5\r\nhello\r\n"


def test_restore_does_not_take_the_place_of_a_key_unless_told_to() -> None:
    keyspace = Keyspace()
    run(keyspace, b"SADD", b"k", b"x")
    run(keyspace, b"EXPIRE", b"k", b"100")
    refused = wire(keyspace, b"RESTORE", b"k", b"0", HELLO)
    assert refused == b"-BUSYKEY Target key name already exists.\r\n"
    done = did(keyspace, b"RESTORE", b"k", b"0", HELLO, b"REPLACE")
    events = ["n new", "g restore", "o overwritten", "c type_changed"]
    assert done == (b"OK", [b"RESTORE k 0 HELLO REPLACE"], events, 1)
    assert wire(keyspace, b"TTL", b"k") == b":-1\r\n"
    assert did(keyspace, b"RESTORE", b"k", b"0", HELLO, b"REPLACE")[2] == events[:3]


def test_a_time_to_live_is_logged_as_a_time() -> None:
    keyspace = Keyspace()
    at_ms = b"%d" % (NOW_MS + 5000)
    assert did(keyspace, b"RESTORE", b"k", b"5000", HELLO)[1] == [b"RESTORE k %b HELLO ABSTTL" % at_ms]
    assert wire(keyspace, b"PTTL", b"k") == b":5000\r\n"
    done = did(keyspace, b"RESTORE", b"k", at_ms, HELLO, b"absttl", b"REPLACE")
    assert done[1] == [b"RESTORE k %b HELLO absttl REPLACE" % at_ms]
    assert wire(keyspace, b"PTTL", b"k") == b":5000\r\n"


@pytest.mark.parametrize("ttl", [(b"1000", b"ABSTTL"), (b"9223372036854775807",)])
def test_a_key_whose_time_is_over_is_not_made(ttl: tuple[bytes, ...]) -> None:
    keyspace = Keyspace()
    assert did(keyspace, b"RESTORE", b"k", ttl[0], HELLO, *ttl[1:]) == (b"OK", [], [], 0)
    run(keyspace, b"SET", b"k", b"x")
    done = did(keyspace, b"RESTORE", b"k", ttl[0], HELLO, *ttl[1:], b"REPLACE")
    assert done == (b"OK", [b"DEL k"], ["g del"], 1)
    assert wire(keyspace, b"EXISTS", b"k") == b":0\r\n"


def test_a_key_whose_time_is_over_is_made_when_a_log_is_replayed() -> None:
    keyspace = Keyspace()
    assert did(keyspace, b"RESTORE", b"k", b"1000", HELLO, b"ABSTTL", trusted=True)[3] == 1
    assert b"k" in keyspace.databases[0].values


def test_a_key_can_be_made_that_was_not_used_for_some_time() -> None:
    keyspace = Keyspace()
    run(keyspace, b"RESTORE", b"k", b"0", HELLO, b"IDLETIME", b"1000")
    assert wire(keyspace, b"OBJECT", b"IDLETIME", b"k") == b":1000\r\n"


def test_a_restored_stream_wakes_waiters_and_has_its_records_swept() -> None:
    keyspace = Keyspace()
    run(keyspace, b"XADD", b"s", b"IDMP", b"p", b"i", b"*", b"f", b"v")
    payload = run(keyspace, b"DUMP", b"s").reply
    assert isinstance(payload, bytes)
    outcome = run(keyspace, b"RESTORE", b"t", b"0", payload)
    assert outcome.ready == [(0, b"t")]
    assert outcome.touched == [(0, b"t")]
    assert keyspace.databases[0].idempotent == {b"s", b"t"}
    run(keyspace, b"RESTORE", b"t", b"0", HELLO, b"REPLACE")
    assert keyspace.databases[0].idempotent == {b"s"}


SAME_ANSWER = [
    [b"RESTORE", b"k", b"0", HELLO],
    [b"RESTORE", b"k", b"0", HELLO],
    [b"RESTORE", b"k", b"-1", b"xx"],
    [b"RESTORE", b"k", b"x", b"xx", b"IDLETIME", b"-1"],
    [b"RESTORE", b"n", b"-1", b"xx"],
    [b"RESTORE", b"n", b"x", b"xx"],
    [b"RESTORE", b"n", b"0", b"xx"],
    [b"RESTORE", b"n", b"0", sealed(b"\x63")],
    [b"RESTORE", b"n", b"0", HELLO, b"FREQ", b"256"],
    [b"RESTORE", b"n", b"0", HELLO, b"FREQ", b"x"],
    [b"RESTORE", b"n", b"0", HELLO, b"FREQ"],
    [b"RESTORE", b"n", b"0", HELLO, b"IDLETIME"],
    [b"RESTORE", b"n", b"0", HELLO, b"IDLETIME", b"1", b"FREQ", b"1"],
    [b"RESTORE", b"n", b"0", HELLO, b"FREQ", b"1", b"IDLETIME", b"1"],
    [b"RESTORE", b"n", b"0", HELLO, b"FREQ", b"-1"],
    [b"RESTORE", b"n", b"0", HELLO, b"foo"],
    [b"RESTORE", b"n", b"0", HELLO, b"FREQ", b"7", b"REPLACE", b"FREQ", b"8"],
    [b"RESTORE", b"k", b"0", HELLO, b"replace", b"ABSTTL"],
    [b"DUMP", b"k"],
    [b"DUMP", b"none"],
]


def test_redis_answers_the_same(redis_server: RealServer) -> None:
    keyspace = Keyspace()
    with redis_server.connect() as connection:
        connection.ask(b"DEL", b"k", b"n", b"none")
        for argv in SAME_ANSWER:
            assert wire(keyspace, *argv) == connection.ask(*argv), argv
        connection.ask(b"DEL", b"k", b"n", b"none")
