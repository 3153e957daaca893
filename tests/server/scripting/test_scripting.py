"""EVAL, FUNCTION and their like: one atomic unit, what is logged and told of it, who may run what, the libraries."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator

import pytest
import redis

from millstream.broker import Broker
from millstream.errors import CommandError, PersistenceError
from millstream.server.core.hub import Hub
from tests.server.support import START_MS, Peer, World


def sha_of(script: str) -> str:
    return hashlib.sha1(script.encode()).hexdigest()


def run(peer: Peer, script: str, *keys: str, args: tuple[str | int, ...] = ()) -> bytes:
    return peer(["EVAL", script, len(keys), *keys, *args])


# One unit


def test_what_a_script_did_is_logged_as_one_transaction_and_never_as_a_script(world: World, a: Peer) -> None:
    run(a, "redis.call('SET', 'a', 1) redis.call('XADD', 's', '*', 'f', 'v') redis.call('GET', 'a')")
    entry = f"XADD s {START_MS}-0 f v".encode()
    assert world.logged() == [[b"MULTI", b"SET a 1", entry, b"EXEC"]]


def test_one_change_is_logged_as_it_is_and_none_not_at_all(world: World, a: Peer) -> None:
    run(a, "return redis.call('SET', 'a', 1)")
    run(a, "return redis.call('GET', 'a')")
    assert world.logged() == [[b"SET a 1"]]


def test_what_was_done_before_an_error_stays_and_is_logged(world: World, a: Peer) -> None:
    assert run(a, "redis.call('SET', 'a', 1) redis.call('NOPE')").startswith(b"-ERR Unknown Redis command")
    assert a("GET a") == b"$1\r\n1\r\n"
    assert world.logged() == [[b"SET a 1"]]


def test_inside_a_transaction_everything_is_one_batch(world: World, a: Peer) -> None:
    a("MULTI")
    a("SET x 1")
    run(a, "redis.call('SET', 'y', 2) redis.call('SET', 'z', 3)")
    a("EXEC")
    assert world.logged() == [[b"MULTI", b"SET x 1", b"SET y 2", b"SET z 3", b"EXEC"]]


def test_readers_are_served_when_the_script_has_ended(world: World, a: Peer, b: Peer) -> None:
    b("XREAD BLOCK 0 STREAMS s $")
    run(a, "redis.call('XADD', 's', '1-1', 'a', '1') redis.call('XADD', 's', '1-2', 'a', '2')")
    assert b.read().count(b"1-") == 2  # both: it did not wake after the first
    b("XREAD BLOCK 0 STREAMS s $")
    run(a, "redis.call('XADD', 's', '1-3', 'a', '3') redis.call('XDEL', 's', '1-3')")
    assert b.is_blocked


def test_commands_of_a_script_do_not_block(a: Peer) -> None:
    a("XGROUP CREATE s g $ MKSTREAM")
    assert run(a, "return redis.call('XREAD', 'BLOCK', 0, 'STREAMS', 's', '$')") == b"$-1\r\n"
    assert run(a, "return redis.call('XREADGROUP', 'GROUP', 'g', 'c', 'BLOCK', 0, 'STREAMS', 's', '>')") == b"$-1\r\n"
    assert run(a, "return redis.call('WAIT', 1, 0)") == b":0\r\n"


def test_time_stands_still(world: World, a: Peer) -> None:
    script = "local t = redis.call('TIME') for i = 1, 1e5 do end local u = redis.call('TIME') return t[2] == u[2]"
    hub = Hub()
    assert run(Peer(hub), script) == b":1\r\n"
    assert run(a, "redis.call('SET', 'k', 'v', 'PX', 100) return redis.call('PTTL', 'k')") == b":100\r\n"


def test_a_watched_key_that_a_script_changes_fails_the_transaction(a: Peer, b: Peer) -> None:
    a("WATCH k")
    run(b, "return redis.call('SET', 'k', 'v')")
    a("MULTI")
    a("PING")
    assert a("EXEC") == b"*-1\r\n"


def test_events_and_messages_come_in_the_order_they_happened(world: World, a: Peer, b: Peer) -> None:
    a("CONFIG SET notify-keyspace-events KEA")
    b("PSUBSCRIBE *")
    run(a, "redis.call('SET', 'k', 'v') redis.call('PUBLISH', 'c', 'between') redis.call('DEL', 'k')")
    told = b.read()
    assert told.index(b"set\r\n") < told.index(b"between") < told.index(b"del\r\n")


def test_messages_to_the_caller_follow_its_reply(world: World) -> None:
    peer = world.peer(3)
    peer("SUBSCRIBE c")
    reply = run(peer, "redis.call('PUBLISH', 'c', 'm') return 'done'")
    assert reply.startswith(b"$4\r\ndone\r\n>3")


def test_the_database_that_a_script_selects_is_its_own(world: World, a: Peer) -> None:
    a("SELECT 2")
    assert run(a, "redis.call('SET', 'in2', 1) redis.call('SELECT', 5) redis.call('SET', 'in5', 1)") == b"$-1\r\n"
    assert a("EXISTS in2 in5") == b":1\r\n"
    assert [db for db, _ in world.journal[-1]] == [2, 2, 5, 5]
    assert run(a, "return redis.call('EXISTS', 'in2', 'in5')") == b":1\r\n"


def test_those_who_monitor_see_the_script_and_then_its_commands(a: Peer, b: Peer) -> None:
    b("MONITOR")
    run(a, "redis.call('SET', 'k', 'v')")
    lines = b.read().split(b"\r\n")
    assert b'"EVAL" "redis.call(' in lines[0]
    assert lines[1].endswith(b'[0 lua] "SET" "k" "v"')


def test_commands_and_errors_are_counted_once(world: World, a: Peer) -> None:
    run(a, "redis.call('SET', 'k', 'v') redis.pcall('INCR', 'k') redis.call('INCR', 'k')")
    stats = world.hub.stats
    assert stats.by_command["set"].calls == 1
    assert (stats.by_command["incr"].calls, stats.by_command["incr"].failed) == (2, 2)
    assert (stats.by_command["eval"].calls, stats.by_command["eval"].failed) == (1, 1)
    assert stats.by_error["ERR"] == 2
    run(a, "redis.call('GET')")
    assert stats.by_command["get"].rejected == 1
    assert stats.by_error["ERR"] == 3


# Scripts by their hash


def test_a_script_is_known_by_its_hash_once_it_ran(a: Peer) -> None:
    script = "return {KEYS[1], ARGV[1]}"
    assert a(f"EVALSHA {sha_of(script)} 1 k a").startswith(b"-NOSCRIPT")
    assert run(a, script, "k", args=("a",)) == b"*2\r\n$1\r\nk\r\n$1\r\na\r\n"
    assert a(f"EVALSHA {sha_of(script).upper()} 1 k a") == b"*2\r\n$1\r\nk\r\n$1\r\na\r\n"
    a("SCRIPT FLUSH")
    assert a(f"EVALSHA {sha_of(script)} 1 k a").startswith(b"-NOSCRIPT")


def test_of_scripts_that_eval_brought_only_the_newest_are_kept(world: World, a: Peer) -> None:
    a(["SCRIPT", "LOAD", "return 'loaded'"])
    run(a, "return 'used'")
    for number in range(499):
        run(a, f"return {number}")
    run(a, "return 'used'")
    run(a, "return 'one more'")
    kept = a(["SCRIPT", "EXISTS", *map(sha_of, ("return 'loaded'", "return 'used'", "return 0", "return 1"))])
    assert kept == b"*4\r\n:1\r\n:1\r\n:0\r\n:1\r\n"
    assert len(world.hub.scripts) == 501


def test_a_script_that_is_broken_is_not_kept(a: Peer) -> None:
    assert run(a, "x x").startswith(b"-ERR Error compiling script")
    assert a(["SCRIPT", "EXISTS", sha_of("x x")]) == b"*1\r\n:0\r\n"


def test_many_keys_and_arguments_and_words_go_through(a: Peer) -> None:
    keys = [f"k{number}" for number in range(20_000)]
    assert run(a, "return {#KEYS, KEYS[20000], #ARGV}", *keys) == b"*3\r\n:20000\r\n$6\r\nk19999\r\n:0\r\n"
    script = "local t = {} for i = 1, 7000 do t[i] = i .. '' end return redis.call('RPUSH', 'l', unpack(t))"
    assert run(a, script) == b":7000\r\n"
    assert a("LINDEX l 6999") == b"$4\r\n7000\r\n"


def test_bytes_that_are_no_text_go_through(a: Peer) -> None:
    every = bytes(range(256))
    assert a(["EVAL", b"return ARGV[1]", 0, every]) == b"$256\r\n%b\r\n" % every
    assert a(["EVAL", b"redis.call('SET', 'k', ARGV[1]) return redis.call('GET', 'k')", 0, every]).endswith(
        every + b"\r\n"
    )
    assert a(["EVAL", b"return '\xff\xfe'", 0]) == b"$2\r\n\xff\xfe\r\n"


# Who may do what


def test_a_script_may_run_what_its_caller_may(world: World, a: Peer) -> None:
    a("ACL SETUSER worker on nopass +@all -del ~own:*")
    a("AUTH worker x")
    assert run(a, "return redis.call('SET', 'own:k', 'v')") == b"+OK\r\n"
    assert run(a, "return redis.call('DEL', 'own:k')").startswith(
        b"-ERR ACL failure in script: User worker has no permissions"
    )
    assert run(a, "return redis.call('GET', 'k')").startswith(
        b"-ERR ACL failure in script: No permissions to access a key"
    )
    assert (
        run(a, "return {redis.acl_check_cmd('DEL', 'own:k'), redis.acl_check_cmd('GET', 'own:k')}")
        == b"*2\r\n$-1\r\n:1\r\n"
    )
    assert a(["EVAL", "return 1", 1, "k"]).startswith(b"-NOPERM")


def test_a_write_that_the_log_cannot_take_is_refused_inside_scripts_too(world: World, a: Peer) -> None:
    world.hub.gates.append(lambda session, row, argv: CommandError("MISCONF no") if "write" in row.flags else None)
    assert run(a, "return redis.pcall('SET', 'k', 'v')") == b"-MISCONF no\r\n"
    assert run(a, "return redis.call('GET', 'k')") == b"$-1\r\n"


@pytest.mark.parametrize("command", ["SET k v", "XADD s * a b", "PUBLISH c m", "SPUBLISH c m", "DEL k"])
def test_a_script_that_declares_to_read_only_does(world: World, a: Peer, command: str) -> None:
    call = "return redis.call(" + ", ".join(f"'{word}'" for word in command.split()) + ")"
    for request in (["EVAL_RO", call, 0], ["EVAL", "#!lua flags=no-writes\n" + call, 0]):
        assert a(request).startswith(b"-ERR Write commands are not allowed from read-only scripts.")
    assert world.logged() == []


def test_when_memory_is_used_up_a_script_may_read_and_finish_what_it_has_begun(a: Peer) -> None:
    a(["SET", "k", "x" * 100])
    a(["FUNCTION", "LOAD", "#!lua name=l\nredis.register_function('f', function() return 1 end)"])
    a("CONFIG SET maxmemory 1")
    out = b"-OOM command not allowed when used memory > 'maxmemory'."
    assert run(a, "return redis.call('STRLEN', 'k')") == b":100\r\n"
    assert run(a, "return redis.call('SET', 'k', 'v')").startswith(out)
    assert run(a, "redis.call('DEL', 'k') return redis.call('SET', 'k', 'v')") == b"+OK\r\n"
    assert run(a, "#!lua\nreturn 1") == out + b"\r\n"
    assert a(["EVAL_RO", "#!lua\nreturn 1", 0]) == out + b"\r\n"
    assert run(a, "#!lua flags=allow-oom\nreturn redis.call('SET', 'k', 'v')") == b"+OK\r\n"
    assert run(a, "#!lua flags=no-writes\nreturn 1") == b":1\r\n"
    assert a("FCALL f 0") == out + b"\r\n"


# Functions

COUNTER = """#!lua name=counter
local count = 0
redis.register_function('count', function(keys, args) count = count + 1 return {count, keys[1], args[1]} end)
redis.register_function{function_name='peek', callback=function() return count end, flags={'no-writes'}}
"""


def test_functions_keep_what_their_library_has(a: Peer) -> None:
    assert a(["FUNCTION", "LOAD", COUNTER]) == b"$7\r\ncounter\r\n"
    assert a("FCALL count 1 k v") == b"*3\r\n:1\r\n$1\r\nk\r\n$1\r\nv\r\n"
    assert a("FCALL count 0") == b"*1\r\n:2\r\n"
    assert a("FCALL_RO peek 0") == b":2\r\n"
    assert a("FUNCTION DELETE counter") == b"+OK\r\n"
    assert a("FCALL peek 0") == b"-ERR Function not found\r\n"


def test_commands_that_change_libraries_are_logged_as_they_are(world: World, a: Peer) -> None:
    a(["FUNCTION", "LOAD", COUNTER])
    dump = a("FUNCTION DUMP").split(b"\r\n", 1)[1][:-2]
    a(["FUNCTION", "RESTORE", dump, "REPLACE"])
    a("FUNCTION DELETE counter")
    a("FUNCTION FLUSH")
    a(["FUNCTION", "LOAD", "nonsense"])
    assert world.logged() == [
        [b"FUNCTION LOAD " + COUNTER.encode()],
        [b"FUNCTION RESTORE " + dump + b" REPLACE"],
        [b"FUNCTION DELETE counter"],
        [b"FUNCTION FLUSH"],
    ]


def test_a_library_that_fails_leaves_the_old_one_in_place(a: Peer) -> None:
    a(["FUNCTION", "LOAD", COUNTER])
    a("FCALL count 0")
    for broken in ("x x", "error('x')", "return 1", "redis.register_function('a-b', function() end)"):
        assert a(["FUNCTION", "LOAD", "REPLACE", "#!lua name=counter\n" + broken]).startswith(b"-ERR")
    other = "#!lua name=other\nredis.register_function('count', function() end)"
    assert a(["FUNCTION", "LOAD", other]) == b"-ERR Function count already exists\r\n"
    assert a("FCALL count 0") == b"*1\r\n:2\r\n"


def test_what_a_function_does_is_logged_as_commands(world: World, a: Peer) -> None:
    a(
        [
            "FUNCTION",
            "LOAD",
            "#!lua name=l\nredis.register_function('f', function(k) return redis.call('INCR', k[1]) end)",
        ]
    )
    world.logged()
    assert a("FCALL f 1 n") == b":1\r\n"
    assert world.logged() == [[b"INCR n"]]


class _Background:
    functions: object = None


class _Store:
    """What of a store the libraries are connected with."""

    load_function: object = None
    run_other: object = None

    def __init__(self) -> None:
        self.background = _Background()


def test_a_store_brings_libraries_back_from_its_log_and_its_snapshots() -> None:
    first = World()
    peer = first.peer()
    peer(["FUNCTION", "LOAD", COUNTER])
    peer(
        [
            "FUNCTION",
            "LOAD",
            "REPLACE",
            COUNTER.replace("counter", "second").replace("'count'", "'c2'").replace("'peek'", "'p2'"),
        ]
    )
    peer("FUNCTION DELETE counter")
    store, second = _Store(), World()
    second.hub.libraries.keep_in(store)  # type: ignore[arg-type]
    for batch in first.journal:
        for db, argv in batch:
            assert store.run_other(db, list(argv))  # type: ignore[operator]
    assert not store.run_other(0, [b"NOPE"])  # type: ignore[operator]
    assert second.peer()("FUNCTION LIST") == peer("FUNCTION LIST")
    assert second.logged() == []  # what is replayed is not logged again
    third = World()
    third.hub.libraries.keep_in(other := _Store())  # type: ignore[arg-type]
    for code in store.background.functions():  # type: ignore[operator]
        other.load_function(code)  # type: ignore[operator]
    assert third.peer()("FUNCTION LIST WITHCODE") == peer("FUNCTION LIST WITHCODE")
    with pytest.raises(PersistenceError, match="cannot be loaded"):
        other.run_other(0, [b"FUNCTION", b"LOAD", b"nonsense"])  # type: ignore[operator]


def test_what_a_script_logs_goes_to_the_log_of_the_process(a: Peer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="millstream.server.scripting.lua"):
        run(a, "redis.log(redis.LOG_WARNING, 'watch', 1, 'out')")
    assert caplog.records[-1].levelno == logging.WARNING
    assert caplog.records[-1].getMessage() == "A script says: watch 1 out"


# Interruptions


def test_an_interruption_ends_a_script_whatever_it_catches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> bool:
        raise KeyboardInterrupt

    for script in (
        "while true do pcall(function() while true do end end) end",
        "while true do xpcall(function() while true do end end, function() return 1 end) end",
        "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(world.hub.runner, "tick", interrupt)
            with pytest.raises(KeyboardInterrupt):
                run(world.peer(), script)
        assert run(world.peer(), "return 1") == b":1\r\n"


def test_scripts_of_many_threads_take_turns() -> None:
    hub = Hub()
    failures: list[bytes] = []

    def work() -> None:
        peer = Peer(hub)
        for _ in range(200):
            reply = run(peer, "local n = redis.call('GET', 'n') or 0 redis.call('SET', 'n', n + 1) return 1")
            if reply != b":1\r\n":
                failures.append(reply)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert Peer(hub)("GET n") == b"$4\r\n1600\r\n"
    hub.close()


# Clients


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    with Broker() as broker:
        yield broker.client()


def test_the_lock_of_redis_py_works(client: redis.Redis) -> None:
    lock = client.lock("name", timeout=10)
    assert lock.acquire(blocking=False)
    assert not client.lock("name", timeout=10).acquire(blocking=False)
    assert lock.extend(5)
    assert lock.reacquire()
    assert lock.owned()
    lock.release()
    assert client.lock("name", timeout=10).acquire(blocking=False)


def test_a_registered_script_is_loaded_when_it_is_missing(client: redis.Redis) -> None:
    script = client.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    assert script(keys=["n"], args=[5]) == 5
    client.script_flush()
    assert script(keys=["n"], args=[5]) == 10
    pipeline = client.pipeline()
    script(keys=["n"], args=[1], client=pipeline)
    assert pipeline.execute() == [11]


def test_functions_work_through_redis_py(client: redis.Redis) -> None:
    client.function_load(COUNTER)
    assert client.fcall("count", 1, "k", "v") == [1, b"k", b"v"]
    dump = client.function_dump()
    client.function_flush()
    client.function_restore(dump)
    assert client.fcall_ro("peek", 0) == 0
    with pytest.raises(redis.ResponseError, match="Function not found"):
        client.fcall("nope", 0)


def test_a_worker_moves_entries_by_script(client: redis.Redis) -> None:
    """The kind of script that work queues on streams send: retry, and set aside what failed too often."""
    move = client.register_script("""
        local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3])
        if #claimed == 0 then return false end
        local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)
        local attempts = pending[1][4]
        if attempts < tonumber(ARGV[4]) then return redis.status_reply('retry') end
        local fields = claimed[1][2]
        fields[#fields + 1] = 'attempts'
        fields[#fields + 1] = attempts
        local id = redis.call('XADD', KEYS[2], '*', unpack(fields))
        redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
        redis.call('XDEL', KEYS[1], ARGV[3])
        return {id, redis.call('XLEN', KEYS[1])}
    """)
    client.xgroup_create("jobs", "workers", mkstream=True)
    entry = client.xadd("jobs", {"task": "send"})
    client.xreadgroup("workers", "one", {"jobs": ">"})
    assert move(keys=["jobs", "dead"], args=["workers", "two", entry, 3]) == b"retry"
    moved = move(keys=["jobs", "dead"], args=["workers", "two", entry, 3])
    assert moved[1] == 0
    assert client.xrange("dead") == [(moved[0], {b"task": b"send", b"attempts": b"3"})]
    assert client.xpending("jobs", "workers")["pending"] == 0


def test_a_script_schedules_and_fetches_jobs(client: redis.Redis) -> None:
    """Another one: due jobs from a sorted set into a stream, with JSON inside."""
    schedule = client.register_script("""
        local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
        for _, job in ipairs(due) do
            local decoded = cjson.decode(job)
            redis.call('XADD', KEYS[2], '*', 'name', decoded.name, 'args', cjson.encode(decoded.args))
            redis.call('ZREM', KEYS[1], job)
        end
        return #due
    """)
    client.zadd("later", {'{"name":"a","args":[1,2]}': 1, '{"name":"b","args":[]}': 2, '{"name":"c","args":[3]}': 99})
    assert schedule(keys=["later", "now"], args=[10, 100]) == 2
    assert [fields for _, fields in client.xrange("now")] == [
        {b"name": b"a", b"args": b"[1,2]"},
        {b"name": b"b", b"args": b"{}"},
    ]
    assert client.zcard("later") == 1


def test_a_reply_is_converted_within_the_limits_of_scripts(a: Peer) -> None:
    nested = "local t = {1} for i = 1, %d do t = {t, t} end return t"
    assert len(run(a, nested % 18)) == 4 * (2**18 - 1) + 2**18 * len("*1\r\n:1\r\n")
    assert run(a, nested % 60) == b"-ERR not enough memory\r\n"
    circle = run(a, "local t = {} t[1] = t t[2] = t return t")
    assert circle.startswith(b"*2\r\n*2\r\n")
    assert b"-ERR reached lua stack limit\r\n" in circle
    again = run(a, "local one = {1, 'x'} return {one, {one}, one}")
    assert again == b"*3\r\n*2\r\n:1\r\n$1\r\nx\r\n*1\r\n*2\r\n:1\r\n$1\r\nx\r\n*2\r\n:1\r\n$1\r\nx\r\n"
    assert run(a, "local t = {} for i = 1, 10000 do t[i] = i end return t").startswith(b"*10000\r\n:1\r\n:2\r\n")


def test_the_case_of_a_functions_name_does_not_matter(a: Peer) -> None:
    a(["FUNCTION", "LOAD", "#!lua name=lib\nredis.register_function('Hello', function() return 1 end)"])
    assert a("FCALL HELLO 0") == a("FCALL hello 0") == b":1\r\n"
    again = a(["FUNCTION", "LOAD", "#!lua name=other\nredis.register_function('HELLO', function() return 2 end)"])
    assert again == b"-ERR Function HELLO already exists\r\n"
