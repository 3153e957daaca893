"""CONFIG."""

from __future__ import annotations

import pytest

from millstream.errors import ConfigError
from millstream.server.core.hub import Hub
from tests.server.support import Peer, World


def test_settings_are_found_by_pattern_in_any_case(a: Peer) -> None:
    assert a("CONFIG GET STREAM-idmp-*") == (
        b"*4\r\n$20\r\nstream-idmp-duration\r\n$3\r\n100\r\n$19\r\nstream-idmp-maxsize\r\n$3\r\n100\r\n"
    )
    assert a("CONFIG GET none none*") == b"*0\r\n"


def test_a_plain_name_comes_back_as_it_was_asked(a: Peer) -> None:
    assert a("CONFIG GET MaxMemory") == b"*2\r\n$9\r\nMaxMemory\r\n$1\r\n0\r\n"


def test_everything_can_be_read_and_most_of_it_written_back(a: Peer) -> None:
    lines = a("CONFIG GET *").split(b"\r\n")
    names, values = lines[2::4], lines[4::4]
    assert len(names) == len(set(names)) > 30
    for name, value in zip(names, values, strict=False):
        assert a(["CONFIG", "SET", name, value]).startswith((b"+OK", b"-ERR CONFIG SET failed"))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("stream-node-max-entries", "x", "argument couldn't be parsed into an integer"),
        ("stream-node-max-entries", "-1", "argument must be between 0 and 9223372036854775807 inclusive"),
        ("stream-idmp-duration", "86401", "argument must be between 1 and 86400 inclusive"),
        ("stream-idmp-maxsize", "0", "argument must be between 1 and 10000 inclusive"),
        ("stream-node-max-bytes", "1.5", "argument must be a memory value"),
        ("maxmemory", "1mib", "argument must be a memory value"),
        ("appendonly", "1", "argument must be 'yes' or 'no'"),
        ("appendfsync", "x", "argument(s) must be one of the following: everysec, always, no"),
        ("databases", "3", "can't set immutable config"),
        ("dir", "x", "can't set protected config"),
        ("save", "60", "Invalid save parameters"),
        ("notify-keyspace-events", "q", "Invalid event class character. Use 'Ag$lshzxeKEtmdnocaSTIV'."),
        ("proto-max-bulk-len", "1kb", "argument must be between 1048576 and 9223372036854775807 inclusive"),
    ],
)
def test_a_value_that_will_not_do_is_refused_with_a_reason(a: Peer, name: str, value: str, reason: str) -> None:
    assert a(["CONFIG", "SET", name, value]).decode() == (
        f"-ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}\r\n"
    )


def test_all_are_set_or_none(a: Peer) -> None:
    assert a("CONFIG SET timeout 5 hz x").startswith(b"-ERR CONFIG SET failed (possibly related to argument 'hz')")
    assert a("CONFIG SET timeout 5 nope x") == (
        b"-ERR Unknown option or number of arguments for CONFIG SET - 'nope'\r\n"
    )
    assert a("CONFIG SET timeout 5 TIMEOUT 6").endswith(b"- duplicate parameter\r\n")
    assert a("CONFIG GET timeout") == b"*2\r\n$7\r\ntimeout\r\n$1\r\n0\r\n"


@pytest.mark.parametrize(("value", "number"), [("4kb", 4096), ("1k", 1000), ("2MB", 2 << 20), ("", 0), ("7", 7)])
def test_memory_has_units(a: Peer, value: str, number: int) -> None:
    assert a(["CONFIG", "SET", "maxmemory", value]) == b"+OK\r\n"
    assert a("CONFIG GET maxmemory").endswith(b"\r\n%d\r\n" % number)


def test_settings_of_streams_act(world: World, a: Peer) -> None:
    a("CONFIG SET stream-node-max-entries 10 stream-node-max-bytes 0 stream-idmp-duration 7 stream-idmp-maxsize 8")
    settings = world.hub.keyspace.settings
    assert (settings.stream_node_max_entries, settings.stream_node_max_bytes) == (10, 0)
    assert (settings.stream_idmp_duration, settings.stream_idmp_maxsize) == (7, 8)


def test_the_longest_bulk_string_can_be_set(a: Peer) -> None:
    a("CONFIG SET proto-max-bulk-len 1mb")
    assert a.raw(b"*2\r\n$4\r\nECHO\r\n$1048577\r\n") == b"-ERR Protocol error: invalid bulk length\r\n"


def test_statistics_start_again_but_not_the_count_of_changes(a: Peer) -> None:
    a("SET k v")
    a("NOPE")
    assert b"total_error_replies:1\r\n" in a("INFO stats")
    assert a("CONFIG RESETSTAT") == b"+OK\r\n"
    assert b"total_error_replies:0\r\n" in a("INFO stats")
    assert b"errorstat_" not in a("INFO errorstats")
    assert b"rdb_changes_since_last_save:1\r\n" in a("INFO persistence")


@pytest.mark.parametrize("settings", [{"nope": "1"}, {"hz": "x"}])
def test_a_hub_refuses_settings_it_cannot_use(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Hub(settings=settings)
