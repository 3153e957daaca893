"""Sockets: who gets in, what goes over them, and that nothing of a connection stays behind."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from millstream import Broker, ConfigError
from millstream.clock import ManualClock
from millstream.errors import CommandError
from millstream.server.core.hub import Hub
from millstream.server.net import connection as connection_module
from millstream.server.net.listener import DENIED, CannotListen, Endpoints, is_loopback
from millstream.server.net.serve import BackgroundServer
from tests.server.support import START_MS
from tests.support.ours import Ours, eventually, read_all, read_until, serving
from tests.support.servers import free_port
from tests.support.wire import Closed, pack

PING = pack([b"PING"])
NOWHERE = "192.0.2.1"  # reserved for documentation: no machine has this address


@pytest.fixture
def ours() -> Iterator[Ours]:
    with serving() as server:
        yield server


def ask(sock: socket.socket, *words: bytes, end: bytes = b"\r\n") -> bytes:
    sock.sendall(pack(words))
    return read_until(sock, end)


def cut(sock: socket.socket) -> None:
    """Close as a peer that crashes: the system resets the connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


# Requests and replies


def test_requests_are_answered_in_order_however_they_are_cut(ours: Ours) -> None:
    requests = pack([b"SET", b"k", b"v" * 1000]) + b"PING\r\n" + pack([b"GET", b"k"]) + pack([b"NOPE"]) + PING
    expected = b"+OK\r\n+PONG\r\n$1000\r\n" + b"v" * 1000 + b"\r\n-ERR unknown command 'NOPE'\r\n+PONG\r\n"
    for size in (1, 3, 100, len(requests)):
        with ours.open() as sock:
            for at in range(0, len(requests), size):
                sock.sendall(requests[at : at + size])
            assert read_until(sock, expected[-20:]) == expected


def test_a_pipeline_is_answered_although_nothing_is_read_until_all_is_sent(ours: Ours) -> None:
    count = 200_000
    with ours.open() as sock:
        sock.sendall(pack([b"ECHO", b"x" * 100]) * count)  # more than sockets and our high-water mark hold
        sock.sendall(pack([b"ECHO", b"end"]))
        data = read_until(sock, b"$3\r\nend\r\n")
        assert data == b"$100\r\n%b\r\n" % (b"x" * 100) * count + b"$3\r\nend\r\n"


def test_half_a_connection_is_closed_behind_its_replies(ours: Ours) -> None:
    with ours.open() as sock:
        sock.sendall(PING * 1000)
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b"+PONG\r\n" * 1000
    assert eventually(ours.is_deserted)


@pytest.mark.parametrize("part", [b"PIN", b"*2\r\n$4\r\nECHO\r\n$10\r\nab", pack([b"BLPOP", b"list", b"0"])])
def test_half_a_connection_is_closed_although_a_part_of_a_request_is_left(ours: Ours, part: bytes) -> None:
    with ours.open() as sock:
        sock.sendall(PING * 3 + part)
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b"+PONG\r\n" * 3
    assert eventually(ours.is_deserted)


def test_a_large_value_goes_both_ways(ours: Ours) -> None:
    value = b"v" * (20 << 20)
    with ours.open() as sock:
        assert ask(sock, b"SET", b"k", value) == b"+OK\r\n"
        assert ask(sock, b"GET", b"k", end=b"v\r\n") == b"$%d\r\n%b\r\n" % (len(value), value)


def test_quit_is_answered_and_ends_the_connection(ours: Ours) -> None:
    with ours.open() as sock:
        sock.sendall(pack([b"QUIT"]) + PING)
        assert read_all(sock) == b"+OK\r\n"
    assert eventually(ours.is_deserted)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"*1\r\n:5\r\n", b"expected '$', got ':'"),
        (b"*x\r\n", b"invalid multibulk length"),
        (b"*1\r\n$-7\r\n", b"invalid bulk length"),
        (b"'\r\n", b"unbalanced quotes in request"),
        (b"x" * 70_000, b"too big inline request"),
    ],
)
def test_a_protocol_error_is_answered_once_and_ends_the_connection(ours: Ours, data: bytes, error: bytes) -> None:
    with ours.open() as sock:
        sock.sendall(PING + data)
        with contextlib.suppress(OSError):  # all of it is thrown away, and must not keep the error from the peer
            sock.sendall(b"x" * 100_000)
        assert read_all(sock) == b"+PONG\r\n-ERR Protocol error: " + error + b"\r\n"
    assert eventually(ours.is_deserted)


def test_addresses_of_both_ends_are_listed(ours: Ours) -> None:
    with ours.open() as sock, socket.socket(socket.AF_UNIX) as local:
        local.connect(str(ours.unix_socket))
        assert ask(local, b"PING") == b"+PONG\r\n"
        listed = ask(sock, b"CLIENT", b"LIST", end=b"\n\r\n").decode()
        assert f"addr=127.0.0.1:{sock.getsockname()[1]} laddr=127.0.0.1:{ours.port} " in listed
        assert f"addr={ours.unix_socket}:0 laddr={ours.unix_socket}:0 " in listed


def test_debug_for_this_machine_is_for_this_machine() -> None:
    with serving(enable_debug_command="local") as ours, ours.open() as sock:
        assert ask(sock, b"DEBUG", b"SLEEP", b"0") == b"+OK\r\n"
        session = ours.hub.session(lambda data: None, address=b"10.1.2.3:5", local_address=b"10.1.2.4:6")
        assert not session._may_debug()


# Who gets in


def test_one_client_too_many_is_told_so_and_another_has_room_when_one_leaves() -> None:
    with serving(maxclients="2") as ours:
        with ours.open() as first, ours.open() as second:
            assert ask(first, b"PING") == ask(second, b"PING") == b"+PONG\r\n"
            with ours.open() as third:
                assert read_all(third) == b"-ERR max number of clients reached\r\n"
            assert b"rejected_connections:1\r\n" in ask(first, b"INFO", b"stats", end=b"\r\n\r\n")
        assert eventually(ours.is_deserted)
        with ours.open() as fourth:
            assert ask(fourth, b"PING") == b"+PONG\r\n"


@pytest.mark.parametrize("address", ["0.0.0.0", "*", "::*", "10.0.0.1", "-10.0.0.1", "example.invalid"])
def test_others_are_let_in_only_with_a_password(address: str) -> None:
    with pytest.raises(ConfigError, match="protected mode"):
        BackgroundServer(Hub(), Endpoints((address,), 0))
    with pytest.raises(ConfigError, match="requirepass"):
        Broker().serve_in_background(address)
    assert not is_loopback(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "-::1", "localhost"])
def test_this_machine_is_let_in_without_one(address: str) -> None:
    assert is_loopback(address)


def test_a_server_whose_password_was_taken_away_serves_this_machine_only() -> None:
    with serving() as ours:
        refusal = ours.listener.refusal
        assert refusal(b"10.0.0.5:123") == DENIED
        for address in (b"127.0.0.1:123", b"[::1]:5", b"%b:0" % str(ours.unix_socket).encode()):
            assert refusal(address) is None
        ours.hub.run([b"CONFIG", b"SET", b"requirepass", b"pw"])
        assert refusal(b"10.0.0.5:123") is None
        ours.hub.run([b"CONFIG", b"SET", b"requirepass", b"", b"protected-mode", b"no"])
        assert refusal(b"10.0.0.5:123") is None


def test_a_client_that_has_not_logged_in_is_kept_short() -> None:
    with serving(requirepass="pw") as ours:
        with ours.open() as sock:
            assert ask(sock, b"GET", b"k") == b"-NOAUTH Authentication required.\r\n"
            sock.sendall(b"*11\r\n")
            assert read_all(sock) == b"-ERR Protocol error: unauthenticated multibulk length\r\n"
        with ours.open() as sock:
            sock.sendall(b"*2\r\n$4\r\nAUTH\r\n$16385\r\n")
            assert read_all(sock) == b"-ERR Protocol error: unauthenticated bulk length\r\n"
        assert eventually(ours.is_deserted)


def test_a_client_that_neither_logs_in_nor_reads_is_closed() -> None:
    with serving(requirepass="pw") as ours, ours.open() as sock:
        with pytest.raises((ConnectionResetError, BrokenPipeError)):  # noqa: PT012
            for _ in range(100_000):
                sock.sendall(pack([b"HELLO", b"3"]) * 100)  # whose refusal is long
        assert eventually(ours.is_deserted)


def test_nothing_is_left_listening_if_one_address_cannot_be_had() -> None:
    hub = Hub()
    with serving() as ours:
        free = free_port()
        with pytest.raises(CannotListen, match=f"127.0.0.1, port {ours.port}"):
            BackgroundServer(hub, Endpoints(("127.0.0.1",), ours.port))
        with pytest.raises(CannotListen, match="another server"):
            BackgroundServer(hub, Endpoints(port=free, unix_socket=str(ours.unix_socket)))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", free))
        with pytest.raises(CannotListen, match="nothing to listen on"):
            BackgroundServer(hub, Endpoints(port=None))
        with ours.open() as sock:  # and the one that was there goes on
            assert ask(sock, b"PING") == b"+PONG\r\n"


def test_an_address_that_may_be_missing_may_be_missing() -> None:
    hub = Hub(settings={"requirepass": "pw"})
    with BackgroundServer(hub, Endpoints(("127.0.0.1", f"-{NOWHERE}"), 0)) as server:
        assert server.host == "127.0.0.1"
    with pytest.raises(CannotListen, match=NOWHERE):
        BackgroundServer(hub, Endpoints(("127.0.0.1", NOWHERE), 0))
    with serving() as ours, pytest.raises(CannotListen, match="in use"):
        BackgroundServer(hub, Endpoints(("-127.0.0.1",), ours.port))


def test_a_unix_socket_gets_its_permissions_and_goes_away(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with BackgroundServer(Hub(), Endpoints(port=None, unix_socket=str(path), unix_permissions=0o700)) as server:
        assert path.stat().st_mode & 0o777 == 0o700
        with pytest.raises(AttributeError):
            _ = server.port
    assert not path.exists()


def test_a_unix_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with BackgroundServer(Hub(), Endpoints(port=None, unix_socket=str(path))), socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        assert ask(sock, b"PING") == b"+PONG\r\n"


# Leaving


def test_a_peer_that_vanishes_leaves_nothing_behind(ours: Ours) -> None:
    for number in range(60):
        sock = ours.open()
        match number % 6:
            case 0:
                sock.sendall(pack([b"XREAD", b"BLOCK", b"0", b"STREAMS", b"s", b"$"]))
            case 1:
                ask(sock, b"SUBSCRIBE", b"c", end=b":1\r\n")
            case 2:
                ask(sock, b"MONITOR")
            case 3:
                sock.sendall(PING[:5])
            case 4:
                ask(sock, b"MULTI")
                ask(sock, b"SET", b"k", b"v")
            case 5:
                ask(sock, b"WATCH", b"k")
        if number % 2:
            cut(sock)
        else:
            sock.close()
    assert eventually(ours.is_deserted)
    assert not ours.hub.pubsub.channels.by_name
    assert not len(ours.hub.watches)


def test_killing_a_client_closes_its_socket(ours: Ours) -> None:
    with ours.open() as victim, ours.open() as killer:
        number = ask(victim, b"CLIENT", b"ID")[1:-2]
        victim.sendall(pack([b"XREAD", b"BLOCK", b"0", b"STREAMS", b"s", b"$"]))
        assert eventually(lambda: len(ours.hub.waiters) == 1)
        assert ask(killer, b"CLIENT", b"KILL", b"ID", number) == b":1\r\n"
        assert read_all(victim) == b""
    assert eventually(ours.is_deserted)


def test_a_client_that_is_sent_away_but_stays_is_cut_off(ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "LINGER_S", 0.05)
    with ours.open() as sock:
        sock.sendall(pack([b"QUIT"]))
        assert read_all(sock) == b"+OK\r\n"
        assert eventually(ours.is_deserted)  # although our end is open


def test_stopping_closes_everything_and_the_hub_lives_on() -> None:
    hub = Hub()
    server = BackgroundServer(hub, Endpoints(port=0))
    port = server.port
    socks = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(20)]
    for sock in socks:
        assert ask(sock, b"PING") == b"+PONG\r\n"
    socks[0].sendall(pack([b"XREAD", b"BLOCK", b"0", b"STREAMS", b"s", b"$"]))
    server.stop()
    assert [read_all(sock) for sock in socks] == [b""] * 20
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    assert not len(hub.sessions)
    assert hub.run([b"SET", b"k", b"v", b"PX", b"30"]) == b"OK"  # deadlines are kept without the loop, too
    assert eventually(lambda: not hub.keyspace.databases[0].values)
    hub.close()
    for sock in socks:
        sock.close()


# Peers that do not read, do not speak, or speak too much


def test_a_subscriber_that_does_not_read_is_closed_at_the_hard_limit() -> None:
    with serving(client_output_buffer_limit="pubsub 4mb 0 0") as ours, ours.open() as slow, ours.open() as other:
        ask(slow, b"SUBSCRIBE", b"c", end=b":1\r\n")
        for _ in range(200):
            if ask(other, b"PUBLISH", b"c", b"x" * 100_000) == b":0\r\n":
                break
        else:
            pytest.fail("it was not closed")
        assert eventually(lambda: ours.server.connections == 1)
        assert len(read_all(slow)) < 14_000_000


def test_a_subscriber_that_stays_behind_is_closed_after_a_while() -> None:
    limit = "pubsub 0 2mb 1"
    with serving(client_output_buffer_limit=limit) as ours, ours.open() as slow, ours.open() as other:
        ask(slow, b"SUBSCRIBE", b"c", end=b":1\r\n")
        for _ in range(100):
            assert ask(other, b"PUBLISH", b"c", b"x" * 100_000) == b":1\r\n"
        started = time.monotonic()
        assert eventually(lambda: ours.server.connections == 1)
        assert time.monotonic() - started > 0.5


def test_a_reader_that_falls_behind_is_not_read_from_until_it_has_caught_up(ours: Ours) -> None:
    value = b"v" * 500_000
    with ours.open() as sock:
        ask(sock, b"SET", b"k", value)
        sock.sendall(pack([b"GET", b"k"]) * 100)
        (connection,) = ours.listener.connections
        assert eventually(lambda: connection._is_choked)
        expected = b"$%d\r\n%b\r\n" % (len(value), value)
        received = 0
        while received < 100 * len(expected):
            received += len(sock.recv(1 << 20))
        assert eventually(lambda: not connection._is_choked)
        assert ask(sock, b"PING") == b"+PONG\r\n"


def test_requests_without_end_are_cut_off() -> None:
    with serving(client_query_buffer_limit="1mb") as ours:
        with ours.open() as sock:
            sock.sendall(b"*2\r\n$4\r\nECHO\r\n$30000000\r\n")
            with contextlib.suppress(OSError):
                for _ in range(300):
                    sock.sendall(b"x" * 100_000)
            with contextlib.suppress(OSError):
                assert read_all(sock) == b""  # without a reply
        with ours.open() as sock:  # behind a command that blocks
            sock.sendall(pack([b"XREAD", b"BLOCK", b"0", b"STREAMS", b"s", b"$"]))
            with contextlib.suppress(OSError):
                for _ in range(100):
                    sock.sendall(PING * 10_000)
            with contextlib.suppress(OSError):
                assert read_all(sock) == b""
        with ours.open() as sock:  # in a transaction
            ask(sock, b"MULTI")
            with contextlib.suppress(OSError):
                sock.sendall(pack([b"SET", b"k", b"v" * 300_000]) * 10)
            with contextlib.suppress(OSError):
                assert set(read_all(sock).split(b"\r\n")) <= {b"+QUEUED", b""}
        assert eventually(ours.is_deserted)
        assert ours.hub.run([b"EXISTS", b"k"]) == 0


def test_an_idle_client_is_closed_and_one_that_waits_is_not() -> None:
    with serving(timeout="1") as ours, ours.open() as idle, ours.open() as blocked, ours.open() as listening:
        ask(idle, b"PING")
        blocked.sendall(pack([b"XREAD", b"BLOCK", b"0", b"STREAMS", b"s", b"$"]))
        ask(listening, b"SUBSCRIBE", b"c", end=b":1\r\n")
        assert read_all(idle) == b""
        assert eventually(lambda: ours.server.connections == 2)
        ours.hub.run([b"XADD", b"s", b"1-1", b"f", b"v"])
        assert read_until(blocked, b"$1\r\nv\r\n").startswith(b"*1\r\n")


def test_the_system_looks_after_dead_peers() -> None:
    with serving(tcp_keepalive="60") as ours, ours.open() as sock:
        ask(sock, b"PING")
        (connection,) = ours.listener.connections
        server_end = connection._transport.get_extra_info("socket")
        assert server_end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert server_end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
        assert server_end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 20
        assert server_end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_connection_that_breaks_costs_nobody_else_theirs(ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    with ours.open() as bad, ours.open() as good:
        ask(bad, b"CLIENT", b"SETNAME", b"bad")
        handle = type(next(iter(ours.hub.sessions.values())))._handle

        def break_down(session: object, argv: list[bytes]) -> None:
            if getattr(session, "name", b"") == b"bad":
                raise RuntimeError("broken on purpose")
            handle(session, argv)  # type: ignore[arg-type]

        monkeypatch.setattr("millstream.server.core.session.Session._handle", break_down)
        bad.sendall(PING)
        assert read_all(bad) == b""
        assert ask(good, b"PING") == b"+PONG\r\n"
        assert eventually(lambda: ours.server.connections == 1)


# Waiting


def blocked_on(ours: Ours, sock: socket.socket, *words: bytes) -> None:
    """Send a request that blocks, and wait until it does."""
    before = len(ours.hub.waiters)
    sock.sendall(pack(words))
    assert eventually(lambda: len(ours.hub.waiters) == before + 1)


def seconds_until(sock: socket.socket, end: bytes) -> float:
    started = time.perf_counter()
    read_until(sock, end)
    return time.perf_counter() - started


def make_pending(ours: Ours, count: int = 1) -> None:
    ours.hub.run([b"XGROUP", b"CREATE", b"s", b"g", b"0", b"MKSTREAM"])
    for number in range(count):
        ours.hub.run([b"XADD", b"s", b"%d-1" % (number + 1), b"f", b"v"])
    ours.hub.run([b"XREADGROUP", b"GROUP", b"g", b"a", b"STREAMS", b"s", b">"])


CLAIMING = (b"XREADGROUP", b"GROUP", b"g", b"b", b"BLOCK", b"10000", b"CLAIM")


def test_a_claiming_reader_is_woken_at_once_by_a_release(ours: Ours) -> None:
    make_pending(ours, 5)
    late = []
    with ours.open() as reader, ours.open() as other:
        for number in range(5):
            blocked_on(ours, reader, *CLAIMING, b"60000", b"STREAMS", b"s", b">")
            started = time.perf_counter()
            other.sendall(pack([b"XNACK", b"s", b"g", b"FAIL", b"IDS", b"1", b"%d-1" % (number + 1)]))
            assert b"%d-1\r\n" % (number + 1) in read_until(reader, b"\r\n:1\r\n")
            late.append(time.perf_counter() - started)
            read_until(other, b":1\r\n")
    assert min(late) < 0.5  # well before the end of BLOCK


def test_an_entry_that_becomes_due_wakes_a_claiming_reader(ours: Ours) -> None:
    late = []
    make_pending(ours)
    with ours.open() as reader:
        for _ in range(5):
            ours.hub.run([b"XCLAIM", b"s", b"g", b"a", b"0", b"1-1", b"IDLE", b"0"])
            blocked_on(ours, reader, *CLAIMING, b"50", b"STREAMS", b"s", b">")
            late.append(seconds_until(reader, b"\r\n") - 0.05)
    assert min(late) < 0.5


def test_a_deadline_is_met(ours: Ours) -> None:
    with ours.open() as sock:
        took = []
        for _ in range(5):
            sock.sendall(pack([b"XREAD", b"BLOCK", b"50", b"STREAMS", b"s", b"$"]))
            took.append(seconds_until(sock, b"*-1\r\n"))
        assert min(took) > 0.045
        assert min(took) < 0.5


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ([b"DEL", b"s"], b"-NOGROUP No such key 's' or consumer group 'g'"),
        ([b"XGROUP", b"DESTROY", b"s", b"g"], b"-NOGROUP No such key 's' or consumer group 'g'"),
        ([b"SET", b"s", b"v"], b"-WRONGTYPE "),
    ],
)
def test_readers_of_what_is_gone_are_told(ours: Ours, request_: list[bytes], error: bytes) -> None:
    make_pending(ours)
    with ours.open() as one, ours.open() as two, ours.open() as other:
        for number, reader in enumerate((one, two)):
            consumer = b"c%d" % number
            blocked_on(ours, reader, b"XREADGROUP", b"GROUP", b"g", consumer, b"BLOCK", b"0", b"STREAMS", b"s", b">")
        other.sendall(pack(request_))
        assert read_until(one, b"\r\n").startswith(error)
        assert read_until(two, b"\r\n").startswith(error)


def test_readers_are_served_in_the_order_they_came(ours: Ours) -> None:
    make_pending(ours)
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(ours.open()) for _ in range(10)]
        for number, reader in enumerate(readers):
            blocked_on(
                ours,
                reader,
                b"XREADGROUP",
                b"GROUP",
                b"g",
                b"c%d" % number,
                b"COUNT",
                b"1",
                b"BLOCK",
                b"0",
                b"STREAMS",
                b"s",
                b">",
            )
        writer = stack.enter_context(ours.open())
        writer.sendall(b"".join(pack([b"XADD", b"s", b"%d-0" % n, b"f", b"v"]) for n in range(100, 110)))
        for number, reader in enumerate(readers):
            assert b"%d-0\r\n" % (100 + number) in read_until(reader, b"$1\r\nv\r\n")


def test_requests_behind_one_that_blocks_wait_for_it(ours: Ours) -> None:
    with ours.open() as sock:
        sock.sendall(pack([b"XREAD", b"BLOCK", b"60", b"STREAMS", b"s", b"$"]) + PING)
        assert read_until(sock, b"+PONG\r\n") == b"*-1\r\n+PONG\r\n"


def test_serving_needs_no_thread_for_deadlines(ours: Ours) -> None:
    with ours.open() as sock:
        blocked_on(ours, sock, b"XREAD", b"BLOCK", b"100", b"STREAMS", b"s", b"$")
        ours.hub.run([b"SET", b"k", b"v", b"PX", b"50"])
        names = [thread.name for thread in threading.enumerate()]
        assert "millstream-server" in names
        assert read_until(sock, b"*-1\r\n")
        assert eventually(lambda: not ours.hub.keyspace.databases[0].values)
        mine = ours.hub._timer
        assert type(mine).__name__ == "LoopTimer"


def test_a_clock_that_is_moved_by_hand_stays_so() -> None:
    with serving(clock=ManualClock(START_MS)) as ours, ours.open() as sock:
        assert ask(sock, b"SET", b"k", b"v", b"PX", b"10") == b"+OK\r\n"
        assert ask(sock, b"PTTL", b"k") == b":10\r\n"
        assert ours.hub._timer is None


# Together with the program around it


def test_what_the_program_does_reaches_clients_in_order() -> None:
    with Broker() as broker, broker.serve_in_background() as server:
        client = redis.Redis(port=server.port, socket_timeout=60)
        listener = client.pubsub(ignore_subscribe_messages=True)
        listener.subscribe("news")
        assert eventually(lambda: broker.execute("PUBSUB", "NUMSUB", "news")[1] == 1)
        local = broker.client()

        def publish(who: int) -> None:
            for number in range(200):
                local.publish("news", f"{who}:{number}")

        threads = [threading.Thread(target=publish, args=(who,)) for who in range(3)]
        for thread in threads:
            thread.start()
        seen: dict[bytes, list[int]] = {b"0": [], b"1": [], b"2": []}
        while sum(map(len, seen.values())) < 600:
            message = listener.get_message(timeout=20)
            if message:
                who, number = message["data"].split(b":")
                seen[who].append(int(number))
        assert all(numbers == list(range(200)) for numbers in seen.values())
        for thread in threads:
            thread.join()


def test_output_that_comes_while_the_last_one_is_sent_is_not_left_behind() -> None:
    """The loop's thread is through with what is queued at the very moment at which another thread adds to it."""
    with Broker() as broker, broker.serve_in_background() as server:
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        ask(sock, b"SUBSCRIBE", b"news", end=b":1\r\n")
        (connection,) = server._listener.connections

        go_on = threading.Event()

        class Unlucky(deque[bytes | None]):
            def append(self, data: bytes | None) -> None:
                if self:
                    go_on.set()
                    assert eventually(lambda: not self)
                super().append(data)

        connection._queued = Unlucky()
        server._listener.loop.call_soon_threadsafe(go_on.wait, 20)
        for number in range(2):
            broker.execute("PUBLISH", "news", number)
        assert read_until(sock, b"$1\r\n1\r\n").count(b"message") == 2
        sock.close()


def test_a_direct_call_wakes_a_client_and_the_other_way_round() -> None:
    with Broker() as broker, broker.serve_in_background() as server:
        client = redis.Redis(port=server.port, socket_timeout=60)
        found: list[object] = []
        thread = threading.Thread(target=lambda: found.append(client.xread({"s": "$"}, block=10_000)))
        thread.start()
        assert eventually(lambda: len(broker._hub.waiters) == 1)
        added = broker.xadd("s", {"f": "v"})
        thread.join(60)
        assert added is not None
        assert added in repr(found).encode()
        thread = threading.Thread(target=lambda: found.append(broker.xread({"t": "$"}, block_ms=10_000)))
        thread.start()
        assert eventually(lambda: len(broker._hub.waiters) == 1)
        client.xadd("t", {"f": "v"})
        thread.join(60)
        assert len(found) == 2
        assert found[1]


def test_a_broker_serves_with_a_password() -> None:
    with Broker() as broker, broker.serve_in_background(password="pw") as server:
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)).ping()
        assert redis.Redis(port=server.port, password="pw").ping()


# The log


def test_replies_of_a_turn_wait_for_one_write_of_the_log(ours: Ours) -> None:
    promises: list[int] = []
    hub = ours.hub
    hub.journal = lambda lines: None
    hub.before_replies = lambda: promises.append(1)
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(ours.open()) for _ in range(20)]
        for sock in socks:
            ask(sock, b"PING")
        promises.clear()
        with hub.lock:  # the loop waits for it, so that all requests are there when it goes on
            for sock in socks:
                sock.sendall(pack([b"SET", b"k", b"v"]))
            time.sleep(0.1)
        assert [read_until(sock, b"\r\n") for sock in socks] == [b"+OK\r\n"] * 20
        assert len(promises) < 5


def test_what_cannot_be_kept_is_not_promised(ours: Ours) -> None:
    hub = ours.hub
    hub.journal = lambda lines: None
    hub.before_replies = lambda: CommandError("MISCONF the disk is full")
    with ours.open() as sock:
        sock.sendall(pack([b"SET", b"k", b"v"]) + PING)
        assert read_until(sock, b"+PONG\r\n") == b"-MISCONF the disk is full\r\n+PONG\r\n"
        sock.sendall(pack([b"SET", b"k", b"v"]))
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b"-MISCONF the disk is full\r\n"


# Many


def test_many_idle_and_busy_connections(ours: Ours) -> None:
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(ours.open()) for _ in range(500)]
        busy = [stack.enter_context(ours.open()) for _ in range(50)]
        assert eventually(lambda: ours.server.connections == 550)
        batch = b"".join(pack([b"XADD", b"s", b"*", b"f", b"%d" % n]) for n in range(20))
        for _ in range(20):
            for sock in busy:
                sock.sendall(batch + pack([b"ECHO", b"end"]))
            for sock in busy:
                data = read_until(sock, b"$3\r\nend\r\n")
                assert data.count(b"\r\n") == 42
                assert b"-" not in data.split(b"\r\n", 1)[0]
        assert ask(busy[0], b"XLEN", b"s") == b":20000\r\n"
        for sock in (idle[0], idle[250], idle[499]):
            assert ask(sock, b"PING") == b"+PONG\r\n"
    assert eventually(ours.is_deserted)


def test_closed_is_raised_for_a_server_that_goes_away() -> None:
    with serving() as ours, ours.open() as sock:
        ask(sock, b"PING")
        threading.Timer(0.05, ours.server._server.stop).start()
        with pytest.raises(Closed):
            read_until(sock, b"never")
