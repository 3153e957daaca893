"""Random bytes and mutated requests on a socket: the right error, no crash, no connection that stays behind.

A conversation is a handful of messages in one connection, cut into pieces anyhow; then our end is closed, the server
must close its own, and everything it said must be replies, with a protocol error at most at the end. What Redis
answers to the same bytes is compared as well, where it is at hand.

MILLSTREAM_FUZZ sets how many messages are sent (50,000 here; `make fuzz` sends a million).
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import socket
from collections.abc import Iterator

import pytest

from millstream.server.commands import TABLE
from tests.support.ours import Ours, eventually, serving
from tests.support.servers import RealServer
from tests.support.wire import end_of, pack

COUNT = int(os.environ.get("MILLSTREAM_FUZZ", "50000"))
AT_ONCE = 32  # connections
MESSAGES = 25  # in a conversation, at most
PROTOCOL_ERRORS = re.compile(
    rb"-ERR Protocol error: (too big inline request|unbalanced quotes in request|too big (m?bulk) count string"
    rb"|invalid multibulk length|expected '\$', got '.'|invalid bulk length|invalid CRLF in request)\r\n",
    re.DOTALL,
)
WORDS = [
    b"PING",
    b"ECHO",
    b"GET",
    b"SET",
    b"XADD",
    b"XRANGE",
    b"XLEN",
    b"XGROUP",
    b"CREATE",
    b"XREADGROUP",
    b"GROUP",
    b"STREAMS",
    b"XREAD",
    b"XACK",
    b"XNACK",
    b"FAIL",
    b"IDS",
    b"MULTI",
    b"EXEC",
    b"DISCARD",
    b"WATCH",
    b"DEL",
    b"NOPE",
    b"k",
    b"s",
    b"g",
    b"c",
    b"0",
    b"1",
    b"-1",
    b"1-1",
    b">",
    b"+",
    b"-",
    b"",
    b"\r\n",
    b"a b",
    b"'",
    b'"',
    b"\x00\xff",
    b"9223372036854775808",
    b"x" * 300,
]
REQUESTS = [
    [b"PING"],
    [b"ECHO", b"howdy"],
    [b"SET", b"k", b"v"],
    [b"GET", b"k"],
    [b"MULTI"],
    [b"EXEC"],
    [b"DISCARD"],
    [b"XADD", b"s", b"1-1", b"f", b"v"],
    [b"XADD", b"s", b"1-*", b"f", b"v"],
    [b"XRANGE", b"s", b"-", b"+"],
    [b"XGROUP", b"CREATE", b"s", b"g", b"0", b"MKSTREAM"],
    [b"XLEN", b"s"],
    [b"DEL", b"s", b"k"],
    [b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", b"2", b"STREAMS", b"s", b">"],
    [b"XACK", b"s", b"g", b"1-1"],
    [b"XNACK", b"s", b"g", b"FAIL", b"IDS", b"1", b"1-1"],
    [b"TYPE", b"s"],
    [b"CLIENT", b"GETNAME"],
]
LENGTHS = [b"-1", b"0", b"1", b"2", b"-2", b"10", b"99999999999", b"+1", b" 1", b"01", b"", b"x", b"2147483648"]
INLINE = [
    b"PING",
    b"SET k v",
    b"GET 'k'",
    b'ECHO "a\\x41\\n"',
    b'ECHO "a',
    b"ECHO 'a'b",
    b"",
    b"  ",
    b"*",
    b"$5",
    b"EXEC",
]


def request(rng: random.Random) -> bytes:
    """A request in its canonical form, now and then of random words."""
    if rng.random() < 0.7:
        return pack(rng.choice(REQUESTS))
    return pack([rng.choice(WORDS) for _ in range(rng.randrange(1, 7))])


def mutated(rng: random.Random, data: bytes) -> bytes:
    """A request with a byte or a length changed, or a piece taken out or put in."""
    at = rng.randrange(len(data))
    match rng.randrange(6):
        case 0:
            return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        case 1:
            return data[:at] + data[at + rng.randrange(1, 8) :]
        case 2:
            return data[:at] + rng.randbytes(rng.randrange(1, 8)) + data[at:]
        case 3:
            mark = rng.choice([b"*", b"$"])
            return re.sub(re.escape(mark) + rb"\d+", lambda found: mark + rng.choice(LENGTHS), data, count=1)
        case 4:
            return data[:at] + data
        case _:
            return data.replace(b"\r\n", rng.choice([b"\n", b"\r", b"\r\r\n", b""]), 1)


def message(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.55:
        return request(rng)
    if kind < 0.65:
        return rng.choice(INLINE) + rng.choice([b"\r\n", b"\n"])
    if kind < 0.97:
        return mutated(rng, request(rng))
    return rng.randbytes(rng.choice([1, 5, 60, 600]))


def conversation(rng: random.Random) -> list[bytes]:
    return [message(rng) for _ in range(rng.randrange(1, MESSAGES + 1))]


def pieces(rng: random.Random, data: bytes) -> Iterator[bytes]:
    """The bytes cut anyhow: whole, in halves, or into crumbs at the start."""
    match rng.randrange(3):
        case 1:
            at = rng.randrange(len(data) + 1)
            yield data[:at]
            data = data[at:]
        case 2:
            crumbs = min(len(data), 20)
            yield from (data[at : at + 1] for at in range(crumbs))
            data = data[crumbs:]
    yield data


def check_replies(data: bytes, sent: bytes) -> None:
    """What a server said must be replies, and a protocol error the last of them."""
    at = 0
    while at < len(data):
        try:
            end = end_of(data, at)
        except ValueError:
            raise AssertionError(f"no reply: {data[at : at + 100]!r}, to {sent!r}") from None
        reply = data[at:end]
        if b"Protocol error" in reply and PROTOCOL_ERRORS.fullmatch(reply):
            assert end == len(data), f"something behind {reply!r}, to {sent!r}"
        assert b"internal error" not in reply, sent
        at = end


def talk(port: int, chats: list[bytes], rng: random.Random | None = None) -> list[bytes]:
    """Hold several conversations at once, our end closed behind each; what the server said until it closed."""
    socks = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in chats]
    with contextlib.ExitStack() as stack:
        for sock, chat in zip(socks, chats, strict=True):
            stack.enter_context(sock)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(OSError):  # it may have closed already
                for piece in [chat] if rng is None else pieces(rng, chat):
                    sock.sendall(piece)
                sock.shutdown(socket.SHUT_WR)
        return [read_to_end(sock) for sock in socks]


def read_to_end(sock: socket.socket) -> bytes:
    parts = bytearray()
    try:
        while chunk := sock.recv(1 << 16):
            parts += chunk
    except ConnectionResetError:
        pass
    return bytes(parts)


@pytest.fixture
def ours() -> Iterator[Ours]:
    with serving(client_query_buffer_limit="1mb") as server:
        yield server


@pytest.mark.timeout(7200)
def test_no_bytes_break_the_server(ours: Ours) -> None:
    seed = int(os.environ.get("MILLSTREAM_SEED", str(random.randrange(2**32))))
    print(f"MILLSTREAM_SEED={seed}")
    rng = random.Random(seed)
    sent = errors = 0
    while sent < COUNT:
        chats = [conversation(rng) for _ in range(AT_ONCE)]
        joined = [b"".join(chat) for chat in chats]
        for chat, said in zip(joined, talk(ours.port, joined, rng), strict=True):
            check_replies(said, chat)
            errors += b"-ERR Protocol error" in said
        sent += sum(map(len, chats))
        ours.hub.run([b"FLUSHALL"])
    assert errors > 20
    assert eventually(ours.is_deserted), f"seed {seed}: connections stay behind"
    with ours.open() as sock:
        sock.sendall(pack([b"PING"]))
        assert sock.recv(100) == b"+PONG\r\n"


@pytest.mark.differential
def test_broken_requests_get_the_errors_of_redis(ours: Ours, redis_server: RealServer) -> None:
    seed = int(os.environ.get("MILLSTREAM_SEED", str(random.randrange(2**32))))
    rng = random.Random(seed)
    wires = [ours.connect(), redis_server.connect()]
    for _ in range(COUNT // 20):
        # A NUL in an inline request keeps Redis from seeing the end of the line: it waits for ever.
        chat = b"".join(conversation(rng)).replace(b"\0", b"\1")
        mine, theirs = (talk(port, [chat])[0] for port in (ours.port, redis_server.port))
        # Redis does not look at the ends of lines, and has commands that we have not: a mutation makes LSET of SET.
        if b"invalid CRLF in request" not in mine and not _only_redis_knows(mine, theirs):
            assert mine == theirs, f"seed {seed}: {chat!r}"
        assert [wire.ask(b"FLUSHALL") for wire in wires] == [b"+OK\r\n"] * 2


def _only_redis_knows(mine: bytes, theirs: bytes) -> bool:
    """Whether we refused a command as unknown that Redis took, and that truly is none of ours."""
    refused = [set(re.findall(rb"-ERR unknown command '([^']*)'", replies)) for replies in (mine, theirs)]
    return any(name.lower() not in TABLE for name in refused[0] - refused[1])


def test_a_stalled_request_does_not_hold_up_others(ours: Ours) -> None:
    with ours.open() as stalled, ours.open() as sock:
        stalled.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\n")
        for _ in range(100):
            sock.sendall(pack([b"PING"]))
            assert sock.recv(100) == b"+PONG\r\n"
        assert not select.select([stalled], [], [], 0)[0]
