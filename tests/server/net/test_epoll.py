"""Plain sockets in turns: nothing is mixed up, lost or promised too early, whatever peers do in the middle of one."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.persistence.files import RealFiles, RealHandle
from millstream.persistence.store import Store
from millstream.server.core.hub import Hub
from millstream.server.net import epoll as reactor_module
from millstream.server.net.epoll import IS_POSSIBLE, SocketTransport, open_listening
from millstream.server.net.listener import Endpoints
from millstream.server.net.serve import BackgroundServer
from tests.support.ours import WAIT_S, Ours, eventually, read_all, read_until, serving
from tests.support.wire import pack, split

pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason="this system has no epoll: the loop's own transports are used")

PING = pack([b"PING"])
READ = (b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", b"1", b"STREAMS", b"s", b">")


@pytest.fixture
def ours() -> Iterator[Ours]:
    with serving() as server:
        yield server


def ask(sock: socket.socket, *words: bytes, end: bytes = b"\r\n") -> bytes:
    sock.sendall(pack(words))
    return read_until(sock, end)


def read_replies(sock: socket.socket, count: int) -> list[bytes]:
    """So many replies, and no more than that."""
    data = bytearray()
    while True:
        data += sock.recv(1 << 16)
        with contextlib.suppress(IndexError, ValueError):  # the last one is not whole
            replies = split(bytes(data))
            if len(replies) >= count and sum(map(len, replies)) == len(data):
                assert len(replies) == count
                return replies


@contextlib.contextmanager
def one_turn(ours: Ours) -> Iterator[None]:
    """What is sent in here is found all at once: meanwhile the loop waits for the lock, with a turn for a decoy."""
    with ours.open() as decoy:
        ask(decoy, b"PING")
        with ours.hub.lock:
            decoy.sendall(PING)
            time.sleep(0.05)  # the loop sees the decoy first, else there are two turns: that is all that could differ
            yield
        read_until(decoy, b"+PONG\r\n")


def several(ours: Ours, count: int) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    stack.socks = [stack.enter_context(ours.open()) for _ in range(count)]  # type: ignore[attr-defined]
    return stack


def streams(ours: Ours) -> list[SocketTransport]:
    return [connection._transport for connection in ours.listener.connections]


# Requests and replies


def test_sockets_are_served_without_the_transports_of_the_loop(ours: Ours) -> None:
    with ours.open() as sock:
        ask(sock, b"PING")
        (stream,) = streams(ours)
        assert type(stream) is SocketTransport


def test_bytes_of_different_connections_are_kept_apart(ours: Ours) -> None:
    rng = random.Random(1)
    with several(ours, 20) as stack:
        socks = stack.socks  # type: ignore[attr-defined]
        left = [b""] * 20
        for at in range(20):
            for n in range(30):
                append = [b"XADD", b"s%d" % at, b"%d-1" % (n + 1), b"f", b"v"]
                left[at] += pack([b"ECHO", b"%d-%d" % (at, n)]) + pack(append)
        while any(left):
            with one_turn(ours) if rng.random() < 0.05 else contextlib.nullcontext():
                for at, sock in enumerate(socks):
                    size = rng.choice([1, 7, 50, 200])
                    sock.sendall(left[at][:size])
                    left[at] = left[at][size:]
        for at, sock in enumerate(socks):
            expected = []
            for n in range(30):
                text, entry_id = b"%d-%d" % (at, n), b"%d-1" % (n + 1)
                expected += [b"$%d\r\n%b\r\n" % (len(word), word) for word in (text, entry_id)]
            assert read_replies(sock, 60) == expected


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        ((b"XADD", b"s", b"*", b"f", b"v" * 30), b"$"),
        ((b"XACK", b"s", b"g", b"1-1"), b":0\r\n"),
        ((b"ECHO", b"hello"), b"$5\r\nhello\r\n"),
    ],
)
def test_a_request_can_be_cut_at_every_byte_while_others_send_theirs(
    ours: Ours, words: tuple[bytes, ...], reply: bytes
) -> None:
    whole = pack(words)
    with ours.open() as cut, ours.open() as other, ours.open() as third:
        ask(other, b"XGROUP", b"CREATE", b"s", b"g", b"$", b"MKSTREAM")
        for at in range(1, len(whole)):
            for sock, data in ((cut, whole[:at]), (other, whole), (third, whole)):
                sock.sendall(data)
            assert [read_replies(sock, 1)[0].startswith(reply) for sock in (other, third)] == [True, True]
            cut.sendall(whole[at:])
            assert read_replies(cut, 1)[0].startswith(reply)
        assert eventually(lambda: ours.server.connections == 3)


def test_many_connections_with_one_request_each_are_answered_in_one_turn(ours: Ours) -> None:
    count = 300  # more than a turn takes at a time
    with several(ours, count) as stack:
        socks = stack.socks  # type: ignore[attr-defined]
        ask(socks[0], b"XGROUP", b"CREATE", b"s", b"g", b"$", b"MKSTREAM")
        for sock in socks:
            ask(sock, b"XADD", b"s", b"*", b"f", b"v")
        with one_turn(ours):
            for at, sock in enumerate(socks):
                sock.sendall(pack([b"XADD", b"s", b"*", b"f", b"value of connection %04d" % at]))
        ids = [read_replies(sock, 1)[0].split(b"\r\n")[1] for sock in socks]
        assert len(set(ids)) == count
        entries = dict(zip(*ours.hub.keyspace.databases[0].values[b"s"].entries.read(0, 2**128), strict=True))  # type: ignore[attr-defined]
        for at, entry_id in enumerate(ids):
            assert b"value of connection %04d" % at in bytes(entries[entry_id])
        assert ask(socks[0], b"XLEN", b"s") == b":%d\r\n" % (2 * count)


def test_ten_thousand_requests_in_one_write_are_answered_in_order(ours: Ours) -> None:
    count = 10_000
    kinds = [(b"XADD", b"s", b"*", b"f", b"v" * 30), READ, (b"ECHO", b"x"), (b"XACK", b"s", b"g", b"1-1"), (b"NOPE",)]
    with ours.open() as sock:
        ask(sock, b"XGROUP", b"CREATE", b"s", b"g", b"$", b"MKSTREAM")
        for order in ([0] * count, [at % 5 for at in range(count)], [at // 100 % 5 for at in range(count)]):
            sock.sendall(b"".join(pack(kinds[kind]) for kind in order) + pack([b"ECHO", b"the end"]))
            replies = split(read_until(sock, b"$7\r\nthe end\r\n"))[:-1]
            assert len(replies) == count
            for kind, reply in zip(order, replies, strict=True):
                assert reply.startswith((b"$", b"*", b"$1\r\nx", b":0\r\n", b"-ERR unknown command 'NOPE'")[kind])
            added = [reply.split(b"\r\n")[1] for kind, reply in zip(order, replies, strict=True) if kind == 0]
            ids = [tuple(map(int, entry_id.split(b"-"))) for entry_id in added]
            assert ids == sorted(set(ids))


def test_errors_in_the_middle_of_a_batch_are_answered_in_their_places(ours: Ours) -> None:
    append = pack([b"XADD", b"s", b"*", b"f", b"v" * 30])
    bad = pack([b"XADD", b"text", b"*", b"f", b"v" * 30])
    with several(ours, 10) as stack:
        socks = stack.socks  # type: ignore[attr-defined]
        ask(socks[0], b"SET", b"text", b"x")
        ask(socks[0], b"XADD", b"s", b"*", b"f", b"v")
        for _ in range(3):
            with one_turn(ours):
                for at, sock in enumerate(socks):
                    sock.sendall(append + bad + append if at % 2 else bad if at % 4 else append)
            for at, sock in enumerate(socks):
                kinds = [reply[:6] for reply in read_replies(sock, 3 if at % 2 else 1)]
                expected = [b"$", b"-WRONG", b"$"] if at % 2 else [b"-WRONG" if at % 4 else b"$"]
                assert [kind[: len(want)] for kind, want in zip(kinds, expected, strict=True)] == expected


# Peers that do not read


def test_a_client_that_does_not_read_is_closed_at_its_limit_and_others_are_served() -> None:
    with serving(client_output_buffer_limit="normal 4mb 0 0") as ours, ours.open() as slow, ours.open() as other:
        ask(other, b"SET", b"k", b"v" * 500_000)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        slow.sendall(pack([b"GET", b"k"]) * 200)
        assert eventually(lambda: ours.server.connections == 1)
        assert ask(other, b"PING") == b"+PONG\r\n"
        assert len(read_all(slow)) < 100_000_000


def test_a_client_that_does_not_read_is_not_read_from_and_gets_everything_in_the_end(ours: Ours) -> None:
    reply = b"$500000\r\n" + b"v" * 500_000 + b"\r\n"
    with ours.open() as slow, ours.open() as other:
        ask(other, b"SET", b"k", b"v" * 500_000)
        ask(slow, b"PING")
        slow.sendall(pack([b"GET", b"k"]) * 40)
        assert eventually(lambda: any(stream._is_choked for stream in streams(ours)))
        (stream,) = (stream for stream in streams(ours) if stream._is_choked)
        assert ask(other, b"PING") == b"+PONG\r\n"
        received = bytearray()
        while len(received) < 40 * len(reply):
            received += slow.recv(1 << 16)
        assert received == reply * 40
        assert eventually(lambda: not stream._is_choked and not stream._is_paused)
        assert ask(slow, b"PING") == b"+PONG\r\n"


def test_a_client_that_is_cut_while_it_is_not_read_from_leaves_nothing(ours: Ours) -> None:
    with ours.open() as slow, ours.open() as other:
        ask(other, b"SET", b"k", b"v" * 5_000_000)
        slow.sendall(pack([b"GET", b"k"]) * 4)
        assert eventually(lambda: any(stream._is_choked for stream in streams(ours)))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        slow.close()
        assert eventually(lambda: ours.server.connections == 1)
        assert ask(other, b"PING") == b"+PONG\r\n"
    assert eventually(ours.is_deserted)


# Peers that go in the middle


def test_clients_that_close_in_the_middle_of_a_batch_cost_nobody_else_theirs(ours: Ours) -> None:
    with several(ours, 20) as stack:
        socks = stack.socks  # type: ignore[attr-defined]
        for sock in socks:
            ask(sock, b"XADD", b"s", b"*", b"f", b"v")
        with one_turn(ours):
            for at, sock in enumerate(socks):
                sock.sendall(pack([b"XADD", b"s", b"*", b"f", b"v" * 30]))
                if at % 3 == 1:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if at % 3:
                    sock.close()
        for sock in socks[::3]:
            assert read_replies(sock, 1)[0].startswith(b"$")
        assert eventually(lambda: ours.server.connections == len(socks[::3]))
        length = int(ask(socks[0], b"XLEN", b"s")[1:])
        assert 20 + len(socks[::3]) <= length <= 40
    assert eventually(ours.is_deserted)


def test_clients_that_are_killed_within_the_turn_of_their_requests(ours: Ours) -> None:
    with ours.open() as killer, ours.open() as victim, ours.open() as third:
        ask(third, b"XADD", b"s", b"*", b"f", b"v")
        number = ask(victim, b"CLIENT", b"ID")[1:-2]
        with one_turn(ours):
            killer.sendall(pack([b"CLIENT", b"KILL", b"ID", number]))
            for sock in (victim, third):
                sock.sendall(pack([b"XADD", b"s", b"*", b"f", b"v" * 30]))
        assert read_until(killer, b"\r\n") == b":1\r\n"
        assert read_replies(third, 1)[0].startswith(b"$")
        assert read_all(victim).count(b"\r\n") in (0, 2)  # before it, or not at all
        victim.close()  # else it is waited for
        assert eventually(lambda: ours.server.connections == 2)


def test_a_client_that_kills_itself_gets_the_replies_before(ours: Ours) -> None:
    with ours.open() as sock:
        number = ask(sock, b"CLIENT", b"ID")[1:-2]
        sock.sendall(PING + pack([b"CLIENT", b"KILL", b"ID", number, b"SKIPME", b"no"]) + PING)
        assert read_all(sock) == b"+PONG\r\n:1\r\n"
    assert eventually(ours.is_deserted)


def test_what_a_half_closed_peer_asked_for_is_answered(ours: Ours) -> None:
    value = b"v" * 3_000_000  # more than the system takes at once
    with ours.open() as sock:
        ask(sock, b"SET", b"k", value)
        sock.sendall(pack([b"GET", b"k"]) * 3 + pack([b"XADD", b"s", b"1-1", b"f", b"v"]))
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b"$%d\r\n%b\r\n" % (len(value), value) * 3 + b"$3\r\n1-1\r\n"
    assert eventually(ours.is_deserted)
    with ours.open() as waiting:  # nobody would read what it waits for
        waiting.sendall(pack([b"BLPOP", b"list", b"0"]))
        assert eventually(lambda: len(ours.hub.waiters) == 1)
        waiting.shutdown(socket.SHUT_WR)
        assert read_all(waiting) == b""
    assert eventually(ours.is_deserted)
    assert ours.hub.run([b"RPUSH", b"list", b"x"]) == 1


# Promises


class HeldFiles(RealFiles):
    """Files whose syncs wait until they are let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.let_go.set()
        self.syncs = 0

    def create(self, path: Path) -> RealHandle:
        handle = super().create(path)
        return HeldHandle(self, handle)


class HeldHandle(RealHandle):
    __slots__ = ("_files",)

    def __init__(self, files: HeldFiles, handle: RealHandle) -> None:
        super().__init__(handle._fd)
        handle._fd = -1
        self._files = files

    def sync(self) -> None:
        self._files.syncs += 1
        assert self._files.let_go.wait(WAIT_S)
        super().sync()


def test_with_always_no_reply_is_sent_before_the_log_is_synced(tmp_path: Path) -> None:
    files = HeldFiles()
    hub = Hub(settings={"appendonly": "yes", "appendfsync": "always"})
    store = hub.store = Store(hub, tmp_path, files=files)
    store.open()
    with BackgroundServer(hub, Endpoints(port=0)) as server:
        ours = Ours(hub, server, tmp_path)
        with several(ours, 12) as stack:
            socks = stack.socks  # type: ignore[attr-defined]
            for sock in socks:
                ask(sock, b"XADD", b"s", b"*", b"f", b"v")
            before = files.syncs
            files.let_go.clear()
            with hub.lock:  # so that they are found together
                for sock in socks:
                    sock.sendall(pack([b"XADD", b"s", b"*", b"f", b"v" * 30]))
            assert eventually(lambda: files.syncs > before)
            for sock in socks:
                sock.settimeout(0.02)
                with pytest.raises(TimeoutError):
                    sock.recv(1)
            files.let_go.set()
            for sock in socks:
                sock.settimeout(WAIT_S)
                assert read_replies(sock, 1)[0].startswith(b"$")
            assert files.syncs - before <= 4  # one for many of them
    store.close()
    hub.close()


# Pauses, and the end


def test_requests_wait_for_the_end_of_a_pause_and_keep_their_order(ours: Ours) -> None:
    with several(ours, 8) as stack, ours.open() as admin:
        socks = stack.socks  # type: ignore[attr-defined]
        for sock in socks:
            ask(sock, b"XADD", b"s", b"*", b"f", b"v")
        ask(admin, b"CLIENT", b"PAUSE", b"60000", b"ALL")
        for sock in socks:
            sock.sendall(pack([b"XADD", b"s", b"*", b"f", b"v" * 30]) + PING)
        assert eventually(lambda: len(ours.hub.pause._waiting) == 8)
        ours.hub.run([b"CLIENT", b"UNPAUSE"])
        for sock in socks:
            first, second = read_replies(sock, 2)
            assert first.startswith(b"$")
            assert second == b"+PONG\r\n"


def test_replies_that_are_on_their_way_are_sent_before_the_server_ends() -> None:
    value = b"v" * 8_000_000
    with serving() as ours, ours.open() as sock:
        ask(sock, b"SET", b"k", value)
        sock.sendall(pack([b"GET", b"k"]))
        assert eventually(lambda: any(stream.get_write_buffer_size() for stream in streams(ours)))
        stopping = threading.Thread(target=ours.server.stop)
        stopping.start()
        assert read_all(sock) == b"$%d\r\n%b\r\n" % (len(value), value)
        stopping.join(WAIT_S)
        assert not stopping.is_alive()
    with pytest.raises(OSError, match="refused"):
        ours.open()


def test_one_who_does_not_read_does_not_keep_the_server_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.server.net.listener._CLOSING_S", 0.2)
    with serving() as ours, ours.open() as sock:
        ask(sock, b"SET", b"k", b"v" * 8_000_000)
        sock.sendall(pack([b"GET", b"k"]) * 4)
        assert eventually(lambda: any(stream.get_write_buffer_size() for stream in streams(ours)))
        ours.server.stop()
        assert ours.is_deserted()


# Taking in


def test_when_no_more_files_can_be_opened_clients_wait_for_room(
    ours: Ours, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reactor_module, "_FULL_PAUSE_S", 0.05)
    listening = next(iter(ours.listener._reactor._listening))  # type: ignore[union-attr]
    full = threading.Event()

    class Full:
        """The socket that listens, while the system is out of files."""

        def fileno(self) -> int:
            return listening.fileno()

        def accept(self) -> tuple[socket.socket, object]:
            if full.is_set():
                raise OSError(24, "Too many open files")
            return listening.accept()

        def close(self) -> None:
            listening.close()

    reactor = ours.listener._reactor
    assert reactor is not None
    stand_in = Full()

    def replace() -> None:
        reactor.loop.remove_reader(listening.fileno())
        del reactor._listening[listening]
        reactor.listen(stand_in, ours.listener._new_connection)  # type: ignore[arg-type]

    full.set()
    reactor.loop.call_soon_threadsafe(replace)
    assert eventually(lambda: stand_in in reactor._listening)  # type: ignore[comparison-overlap]
    with ours.open() as sock:
        sock.sendall(PING)
        assert eventually(lambda: "No more connections" in caplog.text)
        assert ours.server.connections == 0
        full.clear()
        assert read_until(sock, b"\r\n") == b"+PONG\r\n"


def test_all_sockets_are_closed_if_one_address_of_a_name_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            open_listening("127.0.0.1", taken.getsockname()[1], 5)
