"""The fast path of a backend to a broker in this process gives what redis-py gives."""

from __future__ import annotations

import threading
import time
from typing import Any

import hiredis
import pytest

from millstream import Broker
from millstream.broker.direct import DirectClient
from millstream.client import connect
from millstream.client.calls import Call, as_is
from millstream.client.local_brokers import share_broker
from millstream.errors import ServerReplied, Unavailable

PROGRAM: list[tuple[Any, ...]] = [
    ("SET", "k", "v"),
    ("GET", b"k"),
    ("GET", "none"),
    ("INCR", "k"),
    ("INCRBY", "n", 7),
    ("ZADD", "z", 1.5, "a", "-inf", "b"),
    ("ZRANGE", "z", 0, -1, "WITHSCORES"),
    ("XADD", "s", "1-1", "f", "v", "f", "\udcff".encode("utf-8", "surrogateescape")),
    ("XADD", "s", "1-1", "f", "v"),
    ("XGROUP", "CREATE", "s", "g", "0"),
    ("XREADGROUP", "GROUP", "g", "c", "COUNT", 5, "STREAMS", "s", ">"),
    ("XREADGROUP", "GROUP", "no", "c", "STREAMS", "s", ">"),
    ("XPENDING", "s", "g"),
    ("LPUSH", "s", "x"),
    ("NOSUCHCOMMAND", "x"),
    ("EVALSHA", "0" * 40, 0),
    ("EVAL", "return {1, redis.pcall('INCR', 'k'), {false, 'x'}, redis.status_reply('OK')}", 1, "k"),
    ("EVAL", "return redis.error_reply('CUSTOM text of it')", 0),
    ("XADD", "large", "1-1", "f", b"x" * 300_000),
    ("XRANGE", "large", "-", "+"),
]


def outcome(run: Any, words: tuple[Any, ...]) -> Any:
    """A reply with its errors as text."""
    try:
        return plain(run(*words))
    except ServerReplied as error:
        return f"raised {error}"


def plain(reply: Any) -> Any:
    if isinstance(reply, list):
        return [plain(each) for each in reply]
    return f"error {str(reply).removeprefix('ERR ')}" if isinstance(reply, Exception) else reply


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_replies_and_errors_are_those_of_a_client_over_a_socket(scheme: str, tmp_path: Any) -> None:
    url = "memory://direct" if scheme == "memory" else f"file://{tmp_path}/kept"
    with Broker() as broker, broker.serve_in_background() as served, connect(url) as ours:
        assert ours._direct is not None
        with connect(f"redis://127.0.0.1:{served.port}") as theirs:
            for words in PROGRAM:
                expected = outcome(lambda *argv: theirs.execute(*argv, key=b"k"), words)
                assert outcome(lambda *argv: ours.execute(*argv, key=b"k"), words) == expected, words


def test_threads_wait_and_work_beside_each_other() -> None:
    with connect("memory://beside") as backend:
        found: list[Any] = []

        def wait(number: int) -> None:
            found.append(backend.run(Call(("BLPOP", f"l{number}", 20), b"l", as_is, block_ms=20_000)))

        threads = [threading.Thread(target=wait, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for number in range(8):
            backend.execute("RPUSH", f"l{number}", number)
        for thread in threads:
            thread.join(20)
        assert sorted(found) == [[b"l%d" % number, b"%d" % number] for number in range(8)]


def test_closing_ends_those_who_wait() -> None:
    backend = connect("memory://closing")
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            backend.run(Call(("BLPOP", "l", 0), b"l", as_is, block_ms=0))
        except Unavailable as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    deadline = time.monotonic() + 20
    while b"blocked_clients:1" not in backend.execute("INFO", "clients", key=b"") and time.monotonic() < deadline:
        time.sleep(0.005)
    backend.close()
    thread.join(20)
    assert len(ended) == 1
    with pytest.raises(Unavailable, match="closed"):
        backend.execute("GET", "k")


def test_a_session_whose_caller_was_interrupted_is_not_used_again() -> None:
    with Broker() as broker:
        client = DirectClient(broker, ServerReplied)
        line = client._open()
        client._free.append(line)
        line._pipe._session.feed(hiredis.pack_command(("PING",)))  # an answer that nobody waits for any more
        line.close()
        with pytest.raises(OSError, match="Broken pipe"):
            client.execute(("GET", "k"))
        assert client.execute(("GET", "k")) is None


def test_a_broker_with_another_database_is_used_in_that() -> None:
    with Broker(db=3) as broker:
        held = share_broker("third", broker)
        with connect("memory://third") as backend:
            backend.execute("SET", "k", "v")
            assert broker.client().get("k") == b"v"
        held.close()
