"""The load generator must notice a server that answers wrongly: here is one that does so on purpose."""

from __future__ import annotations

import contextlib
import itertools
import os
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import hiredis
import pytest

from bench.load import LoadFailed, NoCompiler, Run, generator, load

Answer = Callable[[list[bytes], bytes], bytes]  # the request, the right reply; the reply that is sent


class Scripted(socketserver.ThreadingTCPServer):
    """Answers each request rightly, unless its `answer` says otherwise."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, answer: Answer, *, chunk: int = 1 << 16) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.chunk = answer, chunk
        self._lock = threading.Lock()
        self._values: list[bytes] = []
        self._read = 0

    def reply(self, request: list[bytes]) -> bytes:
        with self._lock:
            return self.answer(request, self._right(request))

    def _right(self, request: list[bytes]) -> bytes:
        match request[0]:
            case b"PING":
                return b"+PONG\r\n"
            case b"XADD":
                self._values.append(request[4])
                return bulk(b"1700000000000-%d" % len(self._values))
            case b"XREADGROUP":
                self._read += 1
                return delivery(self._read, self._values[self._read - 1])
            case _:
                return b":1\r\n"


class Handler(socketserver.BaseRequestHandler):
    server: Scripted

    def handle(self) -> None:
        reader = hiredis.Reader()
        with contextlib.suppress(ConnectionError):
            while data := self.request.recv(1 << 16):
                reader.feed(data)
                replies = b"".join(self.server.reply(request) for request in iter(reader.gets, False))
                for start in range(0, len(replies), self.server.chunk):
                    self.request.sendall(replies[start : start + self.server.chunk])


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def delivery(number: int, value: bytes) -> bytes:
    return b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n%b*2\r\n$1\r\nf\r\n%b" % (
        bulk(b"1700000000000-%d" % number),
        bulk(value),
    )


@pytest.fixture(scope="module")
def binary() -> Iterator[Path]:
    try:
        with generator() as built:
            yield built
    except NoCompiler as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def loaded(
    binary: Path, answer: Answer = lambda request, right: right, *, chunk: int = 1 << 16, limit_s: int = 20
) -> dict[str, Run]:
    """All workloads, 60 requests each, on a scripted server."""
    with Scripted(answer, chunk=chunk) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            requests = dict.fromkeys(("ping", "xadd", "xreadgroup", "xack"), 60)
            return load(binary, server.server_address[1], requests, connections=3, depth=4, limit_s=limit_s)
        finally:
            server.shutdown()
            thread.join(60)


def in_place_of(command: bytes, reply: bytes, at: int = 30) -> Answer:
    """Answer the so-manieth request of a kind with something else."""
    seen = itertools.count(1)

    def answer(request: list[bytes], right: bytes) -> bytes:
        return reply if request[0] == command and next(seen) == at else right

    return answer


@pytest.mark.parametrize("chunk", [1 << 16, 7, 1])
def test_right_replies_are_counted_however_they_are_cut(binary: Path, chunk: int) -> None:
    runs = loaded(binary, chunk=chunk)
    assert list(runs) == ["ping", "xadd", "xreadgroup", "xack"]
    for run in runs.values():
        assert run.requests == 60
        assert run.per_second == pytest.approx(60 / run.seconds, rel=0.01)
        assert 0 < run.p50_us <= run.p99_us <= run.max_us


@pytest.mark.parametrize("command", [b"PING", b"XADD", b"XREADGROUP", b"XACK"])
@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        (b"-OOM command not allowed\r\n", "an error"),
        (b"*-1\r\n", "a nil"),
        (b"$-1\r\n", "a nil"),
        (b"_\r\n", "a nil"),
        (b":0\r\n", "a wrong reply"),
        (b"+PONK\r\n", "a wrong reply"),
        (b"*0\r\n", "a wrong reply"),
    ],
)
def test_an_error_a_nil_or_nonsense_ends_the_run(binary: Path, command: bytes, reply: bytes, complaint: str) -> None:
    with pytest.raises(LoadFailed, match=f"{complaint} to {command.decode().lower()}"):
        loaded(binary, in_place_of(command, reply))


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (b"XADD", bulk(b"1700000000000")),
        (b"XADD", bulk(b"1700000000000-")),
        (b"XADD", bulk(b"1700000000000-07")),
        (b"XADD", bulk(b"1-1")),
        (b"XADD", b"$5\r\n1700000000000-30\r\n"),
        (b"XREADGROUP", delivery(30, b"y" * 100)),
        (b"XREADGROUP", delivery(30, b"x" * 99)),
        (b"XREADGROUP", delivery(30, b"%016x" % 999 + b"x" * 84)),
        (b"XREADGROUP", delivery(99, b"%016x" % 29 + b"x" * 84)),
        (b"XREADGROUP", delivery(30, b"").replace(b"*1\r\n", b"*2\r\n")),
        (b"XACK", b":2\r\n"),
        (b"XACK", b":11\r\n"),
    ],
)
def test_a_reply_that_is_nearly_right_ends_the_run(binary: Path, command: bytes, reply: bytes) -> None:
    with pytest.raises(LoadFailed, match=f"a wrong reply to {command.decode().lower()}"):
        loaded(binary, in_place_of(command, reply))


def test_an_entry_that_is_handed_out_twice_ends_the_run(binary: Path) -> None:
    first: list[bytes] = []

    def answer(request: list[bytes], right: bytes) -> bytes:
        if request[0] == b"XREADGROUP":
            first.append(right)
        return first[0] if len(first) == 60 else right

    with pytest.raises(LoadFailed, match="a wrong reply to xreadgroup"):
        loaded(binary, answer)


def test_an_id_that_two_connections_were_answered_ends_the_run(binary: Path) -> None:
    def answer(request: list[bytes], right: bytes) -> bytes:
        if request[0] != b"XADD":
            return right
        return bulk(b"1700000000000-%d" % next(numbers[threading.get_ident()]))

    numbers: dict[int, Iterator[int]] = Counters()
    with pytest.raises(LoadFailed, match="an id twice"):
        loaded(binary, answer)


class Counters(dict[int, Iterator[int]]):
    """A count for each thread, so for each connection."""

    def __missing__(self, key: int) -> Iterator[int]:
        self[key] = itertools.count(1)
        return self[key]


def test_a_reply_too_many_ends_the_run(binary: Path) -> None:
    with pytest.raises(LoadFailed, match=r"more replies than requests|a wrong reply"):
        loaded(binary, in_place_of(b"XACK", b":1\r\n:1\r\n", at=60))


def test_silence_ends_the_run_when_time_is_up(binary: Path) -> None:
    with pytest.raises(LoadFailed, match="when time was up"):
        loaded(binary, in_place_of(b"XADD", b""), limit_s=1)


def test_a_closed_connection_ends_the_run(binary: Path) -> None:
    def answer(request: list[bytes], right: bytes) -> bytes:
        if request[0] == b"XACK":
            raise ConnectionAbortedError
        return right

    with pytest.raises(LoadFailed, match=r"closed a connection|cannot read"):
        loaded(binary, answer)


def test_what_was_not_appended_cannot_be_read(binary: Path) -> None:
    with pytest.raises(LoadFailed, match="as many xadd before it"):
        load(binary, 1, {"xreadgroup": 1}, connections=1, depth=1)
