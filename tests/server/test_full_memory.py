"""A server whose process gets no more memory: it closes connections or refuses, and never runs what is only data."""

from __future__ import annotations

import contextlib
import resource
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ours import WAIT_S, Process, eventually, read_until
from tests.support.wire import Closed, pack

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux limits another process")

HIDDEN = pack([b"SET", b"executed", b"1"])  # must stay what it is, a part of a value
VALUE = HIDDEN * (300_000 // len(HIDDEN))
WRITERS = 4
ROOM = 80 << 20  # bytes that the server may still take


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    process = Process(
        "--dir", "data", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0", directory=tmp_path
    )
    try:
        yield process.await_start()
    finally:
        process.close()


def limit_memory(process: Process, room: int) -> None:
    pid = process.process.pid
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize() + room, resource.RLIM_INFINITY))


def connect(process: Process) -> socket.socket:
    return socket.create_connection(("127.0.0.1", process.port), WAIT_S)


def write_until_it_fails(process: Process, key: bytes, added: set[bytes], refused: list[bytes]) -> None:
    """Append until several appends have failed or a connection has been closed some times."""
    closed = 0
    while closed < 3 and len(refused) < 40:
        with contextlib.suppress(OSError, Closed), connect(process) as sock:
            while len(refused) < 40:
                sock.sendall(pack([b"XADD", key, b"*", b"f", VALUE]))
                reply = read_until(sock, b"\r\n")
                if reply.startswith(b"$"):
                    reply = reply if reply.count(b"\r\n") == 2 else reply + read_until(sock, b"\r\n")
                    added.add(reply.split(b"\r\n")[1])
                else:
                    refused.append(reply)
        closed += 1


def test_full_memory_never_makes_data_a_command_and_loses_nothing_that_was_answered(server: Process) -> None:
    added: list[set[bytes]] = [set() for _ in range(WRITERS)]
    refused: list[list[bytes]] = [[] for _ in range(WRITERS)]
    limit_memory(server, ROOM)
    writers = [
        threading.Thread(target=write_until_it_fails, args=(server, b"s%d" % at, added[at], refused[at]))
        for at in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(WAIT_S)
        assert not writer.is_alive()
    assert any(added)
    assert all(reply.startswith((b"-OOM ", b"-MISCONF ")) for replies in refused for reply in replies), refused
    limit_memory(server, 1 << 30)
    answered = 0

    def is_well() -> bool:
        nonlocal answered
        with contextlib.suppress(OSError, Closed), connect(server) as sock:
            sock.sendall(pack([b"EXISTS", b"executed"]))
            assert read_until(sock, b"\r\n") == b":0\r\n"
            for at in range(WRITERS):
                sock.sendall(pack([b"XLEN", b"s%d" % at]))
                answered += int(read_until(sock, b"\r\n")[1:])
            return True
        return False

    assert eventually(is_well)
    assert server.err.count("MemoryError") < 200  # a line for what fails, and no loop that spins
    server.process.kill()
    server.process.wait(WAIT_S)
    again = Process("--dir", "data", directory=server.directory, port=server.port)
    try:
        again.await_start()
        with connect(again) as sock:
            sock.sendall(pack([b"EXISTS", b"executed"]))
            assert read_until(sock, b"\r\n") == b":0\r\n"
            for at, ids in enumerate(added):
                for entry_id in ids:
                    sock.sendall(pack([b"XRANGE", b"s%d" % at, entry_id, entry_id]))
                    assert entry_id in read_until(sock, VALUE + b"\r\n")
    finally:
        again.close()
