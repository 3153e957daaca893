"""One suite for every backend: each kind of place, for blocking code and for asyncio."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from millstream.client import connect
from millstream.client.calls import Call, Script, as_is, command
from millstream.errors import ServerReplied, Unavailable
from tests.client.conftest import Open
from tests.support.places import Site

COUNT_UP = Script("redis.call('INCR', KEYS[1]) return {KEYS[1], ARGV[1], #ARGV}")


def test_the_capabilities_are_those_of_the_server(place: Site, open_backend: Open) -> None:
    found = open_backend(place.url).capabilities
    newest = place.is_newest
    assert (found.nack, found.claim_read, found.ackdel, found.acked_trim) == (newest,) * 4
    assert (found.idempotent_add, found.max_size) == (newest,) * 2
    assert (found.scripts, found.functions) == (True, True)
    assert found.denied == {}


def test_probing_leaves_nothing_behind(place: Site, open_backend: Open) -> None:
    backend = open_backend(place.url)
    assert set(backend.each_node("DBSIZE")) == {0}


def test_replies_are_as_the_protocol_gives_them(place: Site, open_backend: Open) -> None:
    backend = open_backend(place.url)
    assert backend.execute("XADD", "s", "5-1", "name", b"\x00\xff", "n", 7) == b"5-1"
    assert backend.execute("XRANGE", "s", "-", "+") == [[b"5-1", [b"name", b"\x00\xff", b"n", b"7"]]]
    backend.execute("XGROUP", "CREATE", "s", "g", "0", key="s")
    read = ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    assert backend.execute(*read, key="s") == [[b"s", [[b"5-1", [b"name", b"\x00\xff", b"n", b"7"]]]]]
    assert backend.execute(*read, key="s") is None
    assert backend.execute("XPENDING", "s", "g") == [1, b"5-1", b"5-1", [[b"c", b"1"]]]
    assert backend.execute("XPENDING", "s", "g", "-", "+", 9)[0][:2] == [b"5-1", b"c"]
    assert backend.execute("XCLAIM", "s", "g", "d", 0, "5-1", "JUSTID") == [b"5-1"]
    assert backend.execute("XAUTOCLAIM", "s", "g", "e", 0, "0-0")[0] == b"0-0"
    groups = backend.execute("XINFO", "GROUPS", "s", key="s")
    assert groups[0][:4] == [b"name", b"g", b"consumers", 3]
    assert backend.execute("XINFO", "STREAM", "s", key="s")[:2] == [b"length", 1]
    assert backend.execute("SET", "k", "v") == b"OK"
    assert backend.execute("SET", "k", "w", "NX") is None
    backend.execute("HSET", "h", "a", 1)
    assert backend.execute("HGETALL", "h") == [b"a", b"1"]


def test_a_script_runs_whether_the_server_has_seen_it_or_not(place: Site, open_backend: Open) -> None:
    backend = open_backend(place.url)
    call = COUNT_UP.call([b"counter"], ["word"], as_is)
    assert backend.run(call) == [b"counter", b"word", 1]
    backend.each_node("SCRIPT", "FLUSH")
    assert backend.run(call) == [b"counter", b"word", 1]
    assert backend.run(call) == [b"counter", b"word", 1]
    assert backend.execute("GET", "counter") == b"3"


def test_an_error_reply_keeps_its_code(place: Site, open_backend: Open) -> None:
    backend = open_backend(place.url)
    backend.execute("SET", "text", "x")
    for words, code in (
        (("XADD", "text", "*", "a", "b"), "WRONGTYPE"),
        (("XADD", "s", "no-id", "a", "b"), "ERR"),
        (("XACK", "s"), "ERR"),
        (("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"), "NOGROUP"),
        (("EVAL", "return redis.call('XLEN', KEYS[1])", 1, "text"), "WRONGTYPE"),
    ):
        with pytest.raises(ServerReplied) as caught:
            backend.execute(*words, key="text" if "text" in words else "s")
        assert caught.value.code == code
        assert not caught.value.is_retryable


def test_full_memory_is_an_error_that_can_pass(place: Site, open_backend: Open) -> None:
    backend = open_backend(place.url)
    script = Script("return redis.call('XADD', KEYS[1], '*', 'a', 'b')").call([b"s"], [], as_is)
    place.fill_memory()
    for call in (command("XADD", "s", "*", "a", "b", key=b"s"), script):
        with pytest.raises(ServerReplied) as caught:
            backend.run(call)
        assert caught.value.code == "OOM"
        assert caught.value.is_retryable
    place.free_memory()
    assert backend.run(script)


def test_a_server_whose_memory_is_full_is_not_taken_for_a_newer_one(place: Site, open_backend: Open) -> None:
    place.fill_memory()
    found = open_backend(place.url).capabilities
    assert found.scripts
    assert not found.idempotent_add
    assert found.claim_read is place.is_newest


def test_a_blocking_read_may_be_longer_than_the_time_limit(place: Site, open_backend: Open) -> None:
    backend = open_backend(place.url, timeout_s=0.2)
    backend.execute("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM", key="s")
    words = ("XREADGROUP", "GROUP", "g", "c", "BLOCK", 500, "STREAMS", "s", ">")
    start = time.monotonic()
    assert backend.run(Call(words, b"s", as_is, can_resend=False, block_ms=500)) is None
    assert 0.4 < time.monotonic() - start < 30


def test_a_blocking_read_ends_with_the_entry(place: Site, open_backend: Open) -> None:
    backend, other = open_backend(place.url), place.connect()
    backend.execute("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM", key="s")
    timer = threading.Timer(0.1, lambda: other.execute("XADD", "s", "7-7", "a", "b"))
    timer.start()
    words = ("XREADGROUP", "GROUP", "g", "c", "BLOCK", 20_000, "STREAMS", "s", ">")
    start = time.monotonic()
    got = backend.run(Call(words, b"s", as_is, can_resend=False, block_ms=20_000))
    timer.join()
    assert got == [[b"s", [[b"7-7", [b"a", b"b"]]]]]
    assert time.monotonic() - start < 15


def test_a_closed_backend_says_so(place: Site, open_backend: Open) -> None:
    backend = open_backend(place.url)
    backend.close()
    backend.close()
    with pytest.raises(Unavailable, match="closed"):
        backend.execute("GET", "k")
    with pytest.raises(Unavailable, match="closed"):
        backend.run(COUNT_UP.call([b"counter"], [], as_is))


def has_blocked_client(backend: Any) -> bool:
    return any(b"blocked_clients:0" not in told for told in backend.each_node("INFO", "clients"))


def test_closing_lets_a_blocked_reader_go(place: Site) -> None:
    backend, looking = connect(place.url), place.connect()
    backend.execute("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM", key="s")
    words = ("XREADGROUP", "GROUP", "g", "c", "BLOCK", 20_000, "STREAMS", "s", ">")
    ends: list[object] = []

    def read() -> None:
        try:
            ends.append(backend.run(Call(words, b"s", as_is, can_resend=False, block_ms=20_000)))
        except Exception as error:
            ends.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    deadline = time.monotonic() + 60
    while not has_blocked_client(looking):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    backend.close()
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(ends[0], Unavailable)


def test_everyone_who_knows_the_url_meets_at_one_place(place: Site, open_backend: Open) -> None:
    one, other = open_backend(place.url), place.connect()
    one.execute("SET", "k", "v")
    assert other.execute("GET", "k") == b"v"
    one.close()
    assert other.execute("GET", "k") == b"v"


def test_two_hundred_threads_share_a_backend(place: Site) -> None:
    backend = place.connect()
    gate = threading.Barrier(201, timeout=30)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            gate.wait()
            words = ("XREAD", "BLOCK", 200, "STREAMS", "nothing", "$")
            backend.run(Call(words, b"nothing", as_is, can_resend=False, block_ms=200))
            for _ in range(2):
                backend.run(COUNT_UP.call([b"counter"], [], as_is))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(200)]
    for thread in threads:
        thread.start()
    gate.wait()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert backend.execute("GET", "counter") == b"400"


def test_it_tells_which_server_has_a_key(place: Site, open_backend: Open) -> None:
    backend = open_backend(place.url)
    backend.execute("SET", "k", "v")
    host, port = backend.node_for("k")
    if place.name in ("memory", "file", "unix"):
        return
    with connect(f"redis://{host}:{port}") as direct:
        assert direct.execute("GET", "k") == b"v"
    assert len(backend.each_node("DBSIZE")) == (3 if place.is_cluster else 1)
    assert sum(backend.each_node("DBSIZE")) == 1
    backend.reset_topology()
    assert backend.execute("GET", "k") == b"v"


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_program_that_closes_nothing_ends_all_the_same(scheme: str, tmp_path: Path) -> None:
    """Its broker's thread may be stopped with a lock in its hand: three of four such programs hung at their end."""
    url = "memory://" if scheme == "memory" else f"file://{tmp_path / 'kept'}"
    program = f"from millstream import Stream\norders = Stream('orders', {url!r})\norders.publish(1)\nprint('end')"
    for _ in range(2):
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
        assert ended.stdout == "end\n"
