"""CLIENT, COMMAND, INFO, scripts, and the commands that only have to be there."""

from __future__ import annotations

import re

import pytest
from redis.lock import Lock

from millstream.server.commands import TABLE
from tests.server.support import Peer, World

# CLIENT


def field(line: bytes, name: str) -> bytes:
    found = re.search(rb"\b" + name.encode() + rb"=(\S*)", line)
    assert found is not None, name
    return found[1]


def test_a_client_is_described_by_what_it_did(world: World, a: Peer, b: Peer) -> None:
    a("CLIENT SETNAME me")
    a("CLIENT SETINFO LIB-NAME lib")
    a("SELECT 3")
    a("WATCH k")
    a("MULTI")
    a("PING")
    world.clock.advance(5000)
    line = b(f"CLIENT LIST ID {a.session.id}")
    expected = {
        "name": b"me",
        "lib-name": b"lib",
        "db": b"3",
        "watch": b"1",
        "multi": b"1",
        "flags": b"x",
        "age": b"5",
        "idle": b"5",
        "cmd": b"ping",
        "resp": b"2",
        "user": b"default",
        "sub": b"0",
    }
    assert {name: field(line, name) for name in expected} == expected


def test_flags_tell_who_blocks_and_who_listens(a: Peer, b: Peer) -> None:
    assert field(a("CLIENT INFO"), "flags") == b"N"
    a("SUBSCRIBE c")
    assert field(b("CLIENT LIST TYPE pubsub"), "flags") == b"P"
    a("UNSUBSCRIBE")
    a("XREAD BLOCK 0 STREAMS s $")
    assert field(b(f"CLIENT LIST ID {a.session.id}"), "flags") == b"b"


def test_info_is_text_with_a_prefix_in_resp3(world: World) -> None:
    assert re.match(rb"=\d+\r\ntxt:id=", world.peer(3)("CLIENT INFO"))


def test_ids_grow(world: World) -> None:
    first, second = world.peer(), world.peer()
    assert int(second("CLIENT ID")[1:]) > int(first("CLIENT ID")[1:])


def test_who_is_killed_is_cut_off(world: World, a: Peer, b: Peer) -> None:
    assert a(f"CLIENT KILL ID {b.session.id}") == b":1\r\n"
    assert b.is_cut_off
    address = a.session.address
    assert a(["CLIENT", "KILL", "ADDR", address]) == b":0\r\n"  # SKIPME is the default
    assert not a.is_cut_off
    assert a(["CLIENT", "KILL", "ADDR", address, "SKIPME", "no"]) == b":1\r\n"
    assert a.is_cut_off


def test_no_client_at_an_address_is_an_error(a: Peer) -> None:
    assert a("CLIENT KILL 1.2.3.4:5") == b"-ERR No such client\r\n"


@pytest.mark.parametrize("container", ["CLIENT", "CONFIG", "COMMAND", "PUBSUB", "SCRIPT", "SLOWLOG", "MEMORY"])
def test_containers_have_help(a: Peer, container: str) -> None:
    lines = a(f"{container} HELP").split(b"\r\n")
    assert lines[1] == f"+{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:".encode()
    assert lines[-3:] == [b"+HELP", b"+    Print this help.", b""]
    assert a(f"{container} HELP x") == (
        f"-ERR wrong number of arguments for '{container.lower()}|help' command\r\n".encode()
    )


# COMMAND


def test_the_count_is_of_the_table(a: Peer) -> None:
    assert a("COMMAND COUNT") == b":%d\r\n" % len(TABLE)
    assert a("COMMAND").startswith(b"*%d\r\n" % len(TABLE))
    assert a("COMMAND INFO").startswith(b"*%d\r\n" % len(TABLE))


def test_a_command_is_described_as_in_redis(world: World) -> None:
    """Base §15.2, verbatim."""
    key = (
        b"$12\r\nbegin_search\r\n%2\r\n$4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n%1\r\n$5\r\nindex\r\n:1\r\n"
        b"$9\r\nfind_keys\r\n%2\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n%3\r\n"
        b"$7\r\nlastkey\r\n:0\r\n$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n"
    )
    assert world.peer(3)("COMMAND INFO xnack nope") == (
        b"*2\r\n*10\r\n$5\r\nxnack\r\n:-7\r\n~2\r\n+write\r\n+fast\r\n:1\r\n:1\r\n:1\r\n"
        b"~3\r\n+@write\r\n+@stream\r\n+@fast\r\n~0\r\n"
        b"~1\r\n%3\r\n$5\r\nflags\r\n~2\r\n+RW\r\n+update\r\n" + key + b"~0\r\n_\r\n"
    )


def test_containers_list_their_subcommands(a: Peer) -> None:
    reply = a("COMMAND INFO xgroup")
    assert reply.startswith(b"*1\r\n*10\r\n$6\r\nxgroup\r\n:-2\r\n*0\r\n:0\r\n:0\r\n:0\r\n*1\r\n+@slow\r\n")
    assert b"$13\r\nxgroup|create\r\n:-5\r\n" in reply


@pytest.mark.parametrize(
    ("call", "keys"),
    [
        ("GET k", ["k"]),
        ("MSET a 1 b 2", ["a", "b"]),
        ("DEL a b c", ["a", "b", "c"]),
        ("XGROUP CREATE s g $", ["s"]),
        ("XREAD COUNT 1 STREAMS a b 0 0", ["a", "b"]),
        ("XREADGROUP GROUP g c STREAMS a b > >", ["a", "b"]),
        ("EVAL x 2 a b c", ["a", "b"]),
        ("EVAL x 0", []),
    ],
)
def test_keys_are_found_in_a_call(a: Peer, call: str, keys: list[str]) -> None:
    expected = "".join(f"${len(key)}\r\n{key}\r\n" for key in keys)
    assert a(f"COMMAND GETKEYS {call}").decode() == f"*{len(keys)}\r\n{expected}"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("nope", "ERR Invalid command specified"),
        ("ping", "ERR The command has no key arguments"),
        ("subscribe c", "ERR The command has no key arguments"),
        ("ssubscribe c", "ERR The command has no key arguments"),
        ("get", "ERR Invalid number of arguments specified for command"),
    ],
)
def test_calls_without_keys_are_told_apart(a: Peer, call: str, text: str) -> None:
    assert a(f"COMMAND GETKEYS {call}").decode() == f"-{text}\r\n"


def test_names_can_be_filtered(a: Peer) -> None:
    assert a("COMMAND LIST FILTERBY PATTERN xnac*") == b"*1\r\n$5\r\nxnack\r\n"
    assert b"$4\r\nxadd\r\n" in a("COMMAND LIST FILTERBY ACLCAT stream")
    assert a("COMMAND LIST FILTERBY MODULE json") == b"*0\r\n"


def test_every_command_has_documentation(a: Peer) -> None:
    assert a("COMMAND DOCS").startswith(b"*%d\r\n" % (2 * len(TABLE)))
    assert a("COMMAND DOCS nope") == b"*0\r\n"
    for row in TABLE.values():
        assert row.summary, row.name


# INFO


def test_info_has_sections_in_order_and_none_for_what_it_does_not_know(a: Peer) -> None:
    text = a("INFO").split(b"\r\n", 1)[1]
    titles = re.findall(rb"^# (\w+)\r$", text, re.MULTILINE)
    usual = (
        b"Server Clients Memory Persistence Threads Stats Replication CPU Hotkeys Modules Errorstats Cluster Keyspace"
    )
    assert titles == usual.split()
    assert a("INFO nope") == b"$0\r\n\r\n"
    assert b"# Commandstats\r\n" in a("INFO everything")
    assert a("INFO KEYSPACE").startswith(b"$12\r\n# Keyspace\r\n")


def test_commands_and_errors_are_counted(a: Peer) -> None:
    for request in ("SET k x", "INCR k", "GET", "NOPE", "XGROUP DESTROY none g"):
        a(request)
    text = a("INFO all")
    ran = rb"calls=1,usec=\d+,usec_per_call=[\d.]+,rejected_calls=0,failed_calls=1"
    assert re.search(rb"\r\ncmdstat_incr:" + ran + rb"\r\n", text)
    assert b"\r\ncmdstat_get:calls=0,usec=0,usec_per_call=0.00,rejected_calls=1,failed_calls=0\r\n" in text
    assert b"\r\ncmdstat_xgroup|destroy:calls=1," in text
    assert b"\r\nerrorstat_ERR:count=4\r\n" in text
    assert b"\r\ntotal_error_replies:4\r\n" in text


def test_keys_and_changes_are_counted(world: World, a: Peer) -> None:
    a("SET k 1 PX 1000")
    a("SET l 1")
    a("GET k")
    a("GET none")
    text = a("INFO")
    for line in (
        b"db0:keys=2,expires=1,avg_ttl=1000,subexpiry=0",
        b"rdb_changes_since_last_save:2",
        b"keyspace_hits:1",
        b"keyspace_misses:1",
        b"redis_version:8.10.0",
        b"role:master",
        b"cluster_enabled:0",
    ):
        assert line + b"\r\n" in text
    world.pass_ms(1001)
    assert b"expired_keys:1\r\n" in a("INFO stats")


# Scripts


def test_the_lock_scripts_of_redis_py_are_known(world: World, a: Peer) -> None:
    """Base §10.5: their hashes, and that the client loads them when it is told NOSCRIPT."""
    for script, sha in (
        (Lock.LUA_RELEASE_SCRIPT, b"c3f8721cbb97f72bc19e972846bd7aaf91901658"),
        (Lock.LUA_EXTEND_SCRIPT, b"a4e8783852e6b949f9ef3a97212805108459a890"),
        (Lock.LUA_REACQUIRE_SCRIPT, b"1cac51482acf5858da00f6d685d68f886cd6b6b2"),
    ):
        assert a(["EVALSHA", sha, 1, "k", "t"]) == b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
        assert a(["SCRIPT", "LOAD", script]) == b"$40\r\n%b\r\n" % sha
        assert a(["EVALSHA", sha.upper(), 1, "k", "t", 1]) == b":0\r\n"


def test_a_lock_is_released_extended_and_taken_again(world: World, a: Peer) -> None:
    a("SET k token PX 1000")
    assert a(["EVAL", Lock.LUA_EXTEND_SCRIPT, 1, "k", "other", 500, 0]) == b":0\r\n"
    assert a(["EVAL", Lock.LUA_EXTEND_SCRIPT, 1, "k", "token", 500, 0]) == b":1\r\n"
    assert a("PTTL k") == b":1500\r\n"
    assert a(["EVAL", Lock.LUA_EXTEND_SCRIPT, 1, "k", "token", 700, 1]) == b":1\r\n"
    assert a("PTTL k") == b":700\r\n"
    assert a(["EVAL", Lock.LUA_REACQUIRE_SCRIPT, 1, "k", "token", 900]) == b":1\r\n"
    assert a("PTTL k") == b":900\r\n"
    assert a(["EVAL", Lock.LUA_RELEASE_SCRIPT, 1, "k", "other"]) == b":0\r\n"
    assert a(["EVAL", Lock.LUA_RELEASE_SCRIPT, 1, "k", "token"]) == b":1\r\n"
    assert a("EXISTS k") == b":0\r\n"


@pytest.mark.parametrize(
    "script",
    [
        'if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end',
        "if redis.call('GET', KEYS[1]) == ARGV[1] then\n return redis.call('DEL', KEYS[1]) -- ours\nelse return 0\nend",
        "--[[ ours ]] local v = redis.call('get', KEYS[1]); "
        "if v == ARGV[1] then return redis.call('del', KEYS[1]) end; return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('del', KEYS[1]) return 1 end return 0",
    ],
)
def test_a_release_is_recognised_however_it_is_written(a: Peer, script: str) -> None:
    a("SET k token")
    assert a(["EVAL", script, 1, "k", "other"]) == b":0\r\n"
    assert a(["EVAL", script, 1, "k", "token"]) == b":1\r\n"
    assert a("EXISTS k") == b":0\r\n"


def test_scripts_can_be_listed_and_forgotten(a: Peer) -> None:
    a(["SCRIPT", "LOAD", "return 1"])
    sha = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"
    assert a(f"SCRIPT EXISTS {sha} x") == b"*2\r\n:1\r\n:0\r\n"
    assert a("SCRIPT FLUSH now") == b"-ERR SCRIPT FLUSH only support SYNC|ASYNC option\r\n"
    assert a("SCRIPT FLUSH") == b"+OK\r\n"
    assert a(f"SCRIPT EXISTS {sha}") == b"*1\r\n:0\r\n"


def test_what_a_script_did_is_logged_as_commands(world: World, a: Peer) -> None:
    a("SET k token")
    world.logged()
    a(["EVAL", Lock.LUA_RELEASE_SCRIPT, 1, "k", "token"])
    assert [[line.upper() for line in batch] for batch in world.logged()] == [[b"DEL K"]]


# Commands that only have to be there


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        ("ROLE", b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"),
        ("SLOWLOG GET", b"*0\r\n"),
        ("SLOWLOG LEN", b":0\r\n"),
        ("LATENCY RESET", b":0\r\n"),
        ("FUNCTION FLUSH", b"+OK\r\n"),
        ("FUNCTION LIST", b"*0\r\n"),
        ("CLUSTER SLOTS", b"-ERR This instance has cluster support disabled\r\n"),
        ("READONLY", b"-ERR This instance has cluster support disabled\r\n"),
        ("CLIENT TRACKING OFF", b"+OK\r\n"),
        ("CLIENT NO-TOUCH on", b"+OK\r\n"),
        ("CONFIG REWRITE", b"-ERR The server is running without a config file\r\n"),
        ("MEMORY USAGE none", b"$-1\r\n"),
    ],
)
def test_small_commands_answer(a: Peer, request_: str, reply: bytes) -> None:
    assert a(request_) == reply


def test_time_is_the_clock_s(world: World, a: Peer) -> None:
    world.clock.advance(123)
    assert a("TIME") == b"*2\r\n$10\r\n1767225600\r\n$6\r\n123000\r\n"


def test_memory_usage_grows_with_the_value(a: Peer) -> None:
    a("SET short x")
    a(["SET", "long", "x" * 1000])
    a("XADD s * f v")
    sizes = [int(a(f"MEMORY USAGE {key}")[1:]) for key in ("short", "long", "s")]
    assert 0 < sizes[0] < sizes[1]
    assert sizes[2] > 100


def test_monitor_shows_what_others_do(world: World, a: Peer, b: Peer) -> None:
    assert a("MONITOR") == b"+OK\r\n"
    assert world.hub.observed
    b(["SET", "k", b"\x00v"])
    b("AUTH x")
    shown = a.read().splitlines()
    assert re.fullmatch(rb'\+\d+\.\d{6} \[0 embedded:\d+\] "SET" "k" "\\x00v"', shown[0])
    assert shown[1].endswith(b'] "AUTH" "(redacted)"')
    assert a("RESET") == b"+RESET\r\n"
    b("PING")
    assert a.read() == b""
