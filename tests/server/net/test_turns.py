"""One connection cannot take time or memory from others: floods before AUTH, and peers that do not read."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.ours import WAIT_S, Process, eventually, read_until
from tests.support.wire import Wire, pack

FLOODS = {
    "inline words": b"a " * 30_000 + b"\n",
    "inline quotes": b'"a" ' * 15_000 + b"\n",
    "one long word": b"x" * 60_000 + b"\n",
    "nested arrays": b"*99999\r\n" * 8192,
    "huge count": b"*2147483647\r\n" + b"$0\r\n\r\n" * 10_000,
    "empty lines": b"\n" * 65536,
    "short requests": b"*1\r\n$1\r\nx\r\n" * 5_000,
    "short lines": b"x\n" * 32_768,
    "single bytes": b"x",
}
# Four connections that send one of them as fast as they can, and connect again when they are sent away.
FLOOD = """
import ast, selectors, socket, sys
port, data = int(sys.argv[1]), ast.literal_eval(sys.stdin.readline())
socks = {}
while True:
    for number in range(4):
        sock = socks.get(number)
        if sock is None:
            sock = socks[number] = socket.create_connection(("127.0.0.1", port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
        try:
            sock.send(data)
            sock.recv(1 << 16)
        except BlockingIOError:
            pass
        except OSError:
            sock.close()
            del socks[number]
    if sys.argv[2] == "slow":
        import time
        time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server with a password, in a process."""
    with started(tmp_path_factory.mktemp("guarded"), "--requirepass", "pw") as process:
        yield process


@contextlib.contextmanager
def started(directory: Path, *arguments: str) -> Iterator[Process]:
    process = Process(*arguments, "--appendonly", "no", directory=directory)
    try:
        yield process.await_start()
    finally:
        process.close()


@contextlib.contextmanager
def flood(port: int, data: bytes) -> Iterator[None]:
    command = [sys.executable, "-c", FLOOD, str(port), "slow" if len(data) > 1 else "fast"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as attacker:
        try:
            assert attacker.stdin is not None
            attacker.stdin.write(repr(data).encode() + b"\n")
            attacker.stdin.flush()
            time.sleep(0.3)  # it has begun
            yield
            assert attacker.poll() is None
        finally:
            attacker.kill()


def cpu_seconds(pid: int) -> float:
    """The time that a process has had of the processors."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(process: Process) -> int:
    """Bytes of memory that a server has now."""
    return int(Path(f"/proc/{process.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_before_auth_gets_less_than_half_of_the_servers_time(guarded: Process, name: str) -> None:
    with (
        socket.create_connection(("127.0.0.1", guarded.port), timeout=WAIT_S) as sock,
        flood(guarded.port, FLOODS[name]),
    ):
        sock.sendall(pack([b"AUTH", b"pw"]))
        assert read_until(sock, b"\r\n") == b"+OK\r\n"
        used_s, started_s = cpu_seconds(guarded.process.pid), time.monotonic()
        for _ in range(20):
            sock.sendall(pack([b"INCR", b"n"]))
            assert read_until(sock, b"\r\n").startswith(b":")
            time.sleep(0.05)
        used_s = cpu_seconds(guarded.process.pid) - used_s
        assert used_s < 0.5 * (time.monotonic() - started_s)


# Peers that do not read

VALUE = b"v" * (1 << 20)
MANY = 2_900
REPLY = b"$%d\r\n%b\r\n" % (len(VALUE), VALUE)


def is_alone(wire: Wire) -> bool:
    return b"connected_clients:1\r\n" in wire.ask(b"INFO", b"clients")


def watch(process: Process, wire: Wire, seconds: float, until: Callable[[], bool] = bool) -> tuple[int, float]:
    """Ask another thing again and again: the most memory and the time of the processors that the server had."""
    most, used_s, end_s = 0, cpu_seconds(process.process.pid), time.monotonic() + seconds
    while time.monotonic() < end_s and not until():
        assert wire.ask(b"PING") == b"+PONG\r\n"
        most = max(most, resident(process))
        time.sleep(0.005)
    return most, cpu_seconds(process.process.pid) - used_s


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server without limits, in a process."""
    with started(tmp_path_factory.mktemp("open")) as process:
        yield process


@contextlib.contextmanager
def silent(port: int, data: bytes) -> Iterator[socket.socket]:
    """A peer that sends and does not read."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(pack([b"PING"]))
        assert read_until(sock, b"\r\n") == b"+PONG\r\n"
        sock.sendall(data)
        yield sock


def test_replies_that_nobody_reads_take_little_memory_and_none_of_others_time(open_server: Process) -> None:
    with Wire(open_server.port) as wire:
        wire.ask(b"SET", b"k", VALUE)
        before = resident(open_server)
        with silent(open_server.port, pack([b"GET", b"k"]) * MANY) as sock:
            most, used_s = watch(open_server, wire, 1.5)
            assert most - before < 64 << 20
            assert used_s < 0.75
            received = 0
            while received < MANY * len(REPLY):  # and it gets all of them when it reads
                received += len(sock.recv(1 << 20))


MESSAGES = {
    "MONITOR": pack([b"MONITOR"]),
    "CLIENT TRACKING": pack([b"HELLO", b"3"]) + pack(b"CLIENT TRACKING ON BCAST".split()),
    "SUBSCRIBE": pack([b"SUBSCRIBE", b"__keyspace@0__:k"]) + pack([b"PSUBSCRIBE", b"*"]),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_peer_that_reads_no_messages_is_closed_at_the_default_limit(open_server: Process, name: str) -> None:
    with Wire(open_server.port) as wire:
        wire.ask(b"FLUSHALL")
        wire.ask(b"CONFIG", b"SET", b"notify-keyspace-events", b"KEA")
        wire.ask(b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 0 0 0 pubsub 32mb 8mb 60")
        with silent(open_server.port, MESSAGES[name]):
            eventually(lambda: not is_alone(wire))
            for number in range(3000):
                wire.ask(b"SET", b"%d" % number + b"k" * 50_000, b"1")
                if is_alone(wire):
                    break
            assert eventually(lambda: is_alone(wire))
        wire.ask(b"FLUSHALL")
        wire.ask(b"CONFIG", b"SET", b"notify-keyspace-events", b"")


TOO_MUCH = {
    "requests": pack([b"GET", b"k"]) * MANY,
    "a transaction": pack([b"MULTI"]) + pack([b"GET", b"k"]) * MANY + pack([b"EXEC"]),
    "a script": pack([b"EVAL", b"local t = {} for i = 1, 60 do t[i] = redis.call('GET', 'k') end return t", b"0"]),
    "reads of a group": pack([*b"XREADGROUP GROUP g c COUNT 1 STREAMS s >".split()]) * 500,
    "long reads": pack([*b"XRANGE s - +".split()]) * 20,
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_peer_that_leaves_more_unread_than_it_may_is_closed_in_time(open_server: Process, name: str) -> None:
    with Wire(open_server.port) as wire:
        wire.ask(b"FLUSHALL")
        wire.ask(b"SET", b"k", VALUE)
        wire.ask(b"XGROUP", b"CREATE", b"s", b"g", b"0", b"MKSTREAM")
        for _ in range(50):
            wire.ask(b"XADD", b"s", b"*", b"f", VALUE)
        assert wire.ask(b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 20mb 20mb 1") == b"+OK\r\n"
        before = resident(open_server)
        with silent(open_server.port, TOO_MUCH[name]):
            most, used_s = watch(open_server, wire, WAIT_S, lambda: is_alone(wire))
        assert is_alone(wire)
        assert used_s < 2
        if name not in ("a script", "long reads"):  # one reply of theirs is that large
            assert most - before < 84 << 20
