"""A script that takes long: others are answered meanwhile as a real Redis answers them, and may end it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support.ours import Process, serving
from tests.support.servers import RealServer
from tests.support.wire import Wire, pack

BUSY = b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n"
LOOP = [b"EVAL", b"while true do end", b"0"]
WRITE = b"redis.call('SET', 'x', 1) local start = os.clock() while os.clock() - start < 1 do end return 5"
FOREVER = b"redis.call('SET', 'x', 1) while true do end"
LIBRARY = b"#!lua name=l\nredis.register_function('f', function() while true do end end)"


class Line:
    """A connection whose replies are read as they come."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)

    def close(self) -> None:
        self._socket.close()

    def send(self, *requests: list[bytes]) -> None:
        self._socket.sendall(b"".join(map(pack, requests)))

    def read(self, lines: int) -> list[bytes]:
        """So many lines of replies."""
        data = b""
        while data.count(b"\r\n") < lines:
            chunk = self._socket.recv(1 << 16)
            assert chunk, f"the server closed the connection after {data!r}"
            data += chunk
        return data.splitlines(keepends=True)

    def ask(self, *words: bytes) -> bytes:
        self.send(list(words))
        return self.read(1)[0]

    def until_busy(self) -> None:
        """Wait until a script is taking long."""
        for _ in range(600):
            if self.ask(b"PING").startswith(b"-BUSY"):
                return
            time.sleep(0.02)
        pytest.fail("no script takes long")


@pytest.fixture(params=["ours", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[RealServer]:
    """Each of the two, with scripts that take long soon."""
    with ExitStack() as stack:
        found = request.getfixturevalue("redis_server") if request.param == "redis" else stack.enter_context(serving())
        with Wire(found.port) as wire:
            wire.ask(b"FLUSHALL")
            wire.ask(b"CONFIG", b"SET", b"busy-reply-threshold", b"10")
        yield found


@pytest.fixture
def busy(server: RealServer) -> Iterator[Line]:
    with closing(Line(server.port)) as line:
        yield line


@pytest.fixture
def other(server: RealServer) -> Iterator[Line]:
    with closing(Line(server.port)) as line:
        yield line


def test_others_are_told_and_may_end_it(busy: Line, other: Line) -> None:
    busy.send(LOOP, [b"PING"])
    other.until_busy()
    busy.send([b"ECHO", b"behind"])
    other.send([b"XADD", b"s", b"*", b"f", b"v"], [b"GET", b"x"], [b"FUNCTION", b"KILL"], [b"SHUTDOWN"])
    assert other.read(4) == [BUSY] * 4
    assert other.ask(b"NOSUCH").startswith(b"-ERR unknown command 'NOSUCH'")
    assert other.ask(b"SCRIPT", b"KILL") == b"+OK\r\n"
    killed, *rest = busy.read(4)
    assert killed.startswith(b"-ERR Script killed by user with SCRIPT KILL... script: ")
    assert rest == [b"+PONG\r\n", b"$6\r\n", b"behind\r\n"]
    assert other.ask(b"SCRIPT", b"KILL") == b"-NOTBUSY No scripts in execution right now.\r\n"
    assert other.ask(b"EXISTS", b"s") == b":0\r\n"


def test_one_who_was_served_just_before_gets_its_reply(server: RealServer, busy: Line, other: Line) -> None:
    for _ in range(5):
        busy.send(LOOP)
        while other.ask(b"PING") == b"+PONG\r\n":  # now and then it is in the same turn as the script
            pass
        assert other.ask(b"SCRIPT", b"KILL") == b"+OK\r\n"
        busy.read(1)


def test_one_who_comes_meanwhile_is_heard(server: RealServer, busy: Line, other: Line) -> None:
    busy.send(LOOP)
    other.until_busy()
    with closing(Line(server.port)) as late:
        assert late.ask(b"PING") == BUSY
        assert late.ask(b"SCRIPT", b"KILL") == b"+OK\r\n"
    assert busy.read(1)[0].startswith(b"-ERR Script killed")


def test_a_shutdown_that_makes_no_sense_ends_nothing(busy: Line, other: Line) -> None:
    busy.send(LOOP)
    other.until_busy()
    assert other.ask(b"SHUTDOWN", b"NOSAVE", b"SAVE") == b"-ERR syntax error\r\n"
    assert other.ask(b"PING") == BUSY
    assert other.ask(b"SCRIPT", b"KILL") == b"+OK\r\n"
    assert busy.read(1)[0].startswith(b"-ERR Script killed")


def test_one_that_has_written_is_not_ended(busy: Line, other: Line) -> None:
    busy.send([b"EVAL", WRITE, b"0"])
    other.until_busy()
    assert other.ask(b"SCRIPT", b"KILL").startswith(b"-UNKILLABLE Sorry the script already executed write commands")
    assert other.ask(b"SET", b"x", b"2") == BUSY
    assert busy.read(1) == [b":5\r\n"]
    other.send([b"GET", b"x"])
    assert other.read(2)[1] == b"1\r\n"


def test_nothing_stays_of_one_that_a_shutdown_has_ended(tmp_path: Path) -> None:
    with closing(Process("--busy-reply-threshold", "10", directory=tmp_path).await_start()) as process:
        busy, other = Line(process.port), Line(process.port)
        assert busy.ask(b"SET", b"before", b"1") == b"+OK\r\n"
        busy.send([b"EVAL", FOREVER, b"0"])
        other.until_busy()
        other.send([b"SHUTDOWN", b"NOSAVE"])
        with pytest.raises((AssertionError, OSError)):
            busy.read(1)
        assert process.process.wait(60) == 0
    with closing(Process(directory=tmp_path).await_start()) as process, closing(Line(process.port)) as line:
        assert line.ask(b"EXISTS", b"before") == b":1\r\n"
        assert line.ask(b"EXISTS", b"x") == b":0\r\n"


def test_a_function_is_ended_by_its_own_command(busy: Line, other: Line) -> None:
    busy.send([b"FUNCTION", b"LOAD", b"REPLACE", LIBRARY])
    assert busy.read(2)[1] == b"l\r\n"
    busy.send([b"FCALL", b"f", b"0"])
    other.until_busy()
    assert other.ask(b"SCRIPT", b"KILL") == BUSY.replace(b"SCRIPT KILL", b"FUNCTION KILL")
    other.send([b"FUNCTION", b"STATS"])
    told = other.read(26)
    assert told[:13] == [
        b"*4\r\n",
        b"$14\r\n",
        b"running_script\r\n",
        b"*6\r\n",
        b"$4\r\n",
        b"name\r\n",
        b"$1\r\n",
        b"f\r\n",
        b"$7\r\n",
        b"command\r\n",
        b"*3\r\n",
        b"$5\r\n",
        b"FCALL\r\n",
    ]
    assert other.ask(b"FUNCTION", b"KILL") == b"+OK\r\n"
    assert busy.read(1)[0].startswith(b"-ERR Script killed by user with SCRIPT KILL... script: f, on ")


def test_no_half_of_a_transaction_is_run(busy: Line, other: Line) -> None:
    other.send([b"MULTI"], [b"INCR", b"n"])
    assert other.read(2) == [b"+OK\r\n", b"+QUEUED\r\n"]
    busy.send(LOOP)
    time.sleep(0.2)
    assert other.ask(b"EXEC") == b"-EXECABORT Transaction discarded because of: " + BUSY[1:]
    assert other.ask(b"MULTI") == b"+OK\r\n"
    assert other.ask(b"INCR", b"n") == BUSY
    assert other.ask(b"DISCARD") == b"+OK\r\n"
    assert other.ask(b"SCRIPT", b"KILL") == b"+OK\r\n"
    busy.read(1)
    assert other.ask(b"EXISTS", b"n") == b":0\r\n"


def test_one_who_leaves_meanwhile_costs_nobody_anything(server: RealServer, busy: Line, other: Line) -> None:
    leaving = Line(server.port)
    busy.send(LOOP)
    other.until_busy()
    leaving.send([b"PING"])
    leaving.close()
    busy.close()
    assert other.ask(b"PING") == BUSY
    assert other.ask(b"SCRIPT", b"KILL") == b"+OK\r\n"
    for _ in range(100):
        if other.ask(b"PING") == b"+PONG\r\n":
            return
        time.sleep(0.02)
    pytest.fail("the script has not ended")
