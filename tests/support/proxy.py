"""A TCP proxy in front of a server that breaks connections where a test says so.

    client ── commands ──▶ FaultProxy ── asks the rule ──▶ server
       ▲                       │ Forward, Delay, Cut, DropReply
       └────── replies ◀───────┘

The rule is asked for each command with its words and its number; commands of a connection's opening (HELLO,
AUTH, CLIENT, SELECT) are let through unasked and uncounted, so that number 3 is the third thing the code under
test does. `DropReply` waits until the server has answered, so the command has surely run, and then closes both
sides: all earlier replies have gone through, this one is lost. Replies are matched to commands by counting
them; on a connection that subscribes nothing can be counted, and the cut comes with the next thing sent.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import hiredis

from tests.support.wire import end_of, pack

OPENING: Final = frozenset({b"HELLO", b"AUTH", b"CLIENT", b"SELECT"})
SUBSCRIBING: Final = frozenset({b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE", b"MONITOR"})
PUSH: Final = ord(">")
CHUNK: Final = 1 << 16
TIMEOUT_S: Final = 10


@dataclass(frozen=True)
class Forward:
    """Let the command and its reply through."""


@dataclass(frozen=True)
class Delay:
    """Let the command through, later."""

    seconds: float


@dataclass(frozen=True)
class Cut:
    """Close the connection; the server never sees the command."""


@dataclass(frozen=True)
class DropReply:
    """Let the command through, close the connection when the reply is there."""


Action = Forward | Delay | Cut | DropReply
Rule = Callable[[list[bytes], int], Action]
FORWARD: Final = Forward()


class FaultProxy:
    """Listens on a free port of the loopback interface; `rule` may be set at any time."""

    def __init__(self, host: str, port: int, *, opening: frozenset[bytes] = OPENING) -> None:
        self.rule: Rule = lambda _argv, _number: FORWARD
        self.number = 0  # commands that have come, openings left out
        self.counts: Counter[str] = Counter()  # the same by name
        self.connections = 0  # that have been let in
        self._target = (host, port)
        self._opening = opening
        self._plans: list[_Plan] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._flowing = threading.Event()
        self._flowing.set()
        self._refuse_until = 0.0
        self._links: set[_Link] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, name="fault-proxy", daemon=True)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._flowing.set()
        with contextlib.suppress(OSError):  # wakes accept
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()
        self._thread.join(TIMEOUT_S)

    def cut(self, nth: int = 1, *, command: str | None = None) -> None:
        """Close the connection before the nth command from now, or the nth of that name, is forwarded."""
        self._plan(nth, command, Cut())

    def drop_reply(self, nth: int = 1, *, command: str | None = None) -> None:
        """Forward the nth command from now, or the nth of that name, and close before its reply returns."""
        self._plan(nth, command, DropReply())

    def delay(self, seconds: float, nth: int = 1, *, command: str | None = None) -> None:
        """Hold the nth command from now, or the nth of that name, back for a while."""
        self._plan(nth, command, Delay(seconds))

    def refuse(self, seconds: float) -> None:
        """Reset new connections for a while; those that are open stay."""
        self._refuse_until = time.monotonic() + seconds

    def cut_all(self) -> None:
        """Close every connection that is open."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()

    def freeze(self) -> None:
        """Forward nothing more in either direction until `thaw`; connections stay open."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Forward again, first what has come meanwhile."""
        self._flowing.set()

    def reset(self) -> None:
        """Forget rule, plans and counts."""
        with self._lock:
            self.rule = lambda _argv, _number: FORWARD
            self._plans.clear()
            self.counts.clear()
            self.number, self._refuse_until = 0, 0.0
        self.thaw()

    def wait_until_flowing(self) -> None:
        self._flowing.wait()

    def judge(self, argv: list[bytes]) -> Action:
        """What becomes of a command: plans come before the rule."""
        if argv[0].upper() in self._opening:
            return FORWARD
        with self._lock:
            self.number += 1
            self.counts[argv[0].upper().decode("latin-1")] += 1
            number = self.number
            due = [plan for plan in self._plans if plan.counts_down(argv[0])]
            self._plans = [plan for plan in self._plans if plan not in due]
        return due[0].action if due else self.rule(argv, number)

    def forget(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)

    def _plan(self, nth: int, command: str | None, action: Action) -> None:
        with self._lock:
            self._plans.append(_Plan(nth, command and command.upper().encode(), action))

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            if time.monotonic() < self._refuse_until:
                reset(client)
                continue
            try:
                server = socket.create_connection(self._target, timeout=TIMEOUT_S)
            except OSError:  # the server is away, and so are we
                reset(client)
                continue
            server.settimeout(None)
            link = _Link(self, client, server)
            with self._lock:
                self._links.add(link)
                self.connections += 1
            link.start()


@dataclass(eq=False)
class _Plan:
    """One fault that is still to come."""

    left: int
    command: bytes | str | None
    action: Action

    def counts_down(self, name: bytes) -> bool:
        """Whether it is this command's turn."""
        if self.command and name.upper() != self.command:
            return False
        self.left -= 1
        return self.left == 0


class _Link:
    """One client's connection and ours to the server, a thread for each direction."""

    def __init__(self, proxy: FaultProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._awaited: deque[bool] = deque()  # a command a reply: whether that reply is to be lost
        self._subscribes = False
        self._doomed = False  # of a subscriber: cut with the next thing sent
        self._ended = 0  # threads that have
        self._threads = [
            threading.Thread(target=self._run, args=(direction,), name="fault-proxy-link", daemon=True)
            for direction in (self._requests, self._replies)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Close both sides; the threads end."""
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _run(self, direction: Callable[[], None]) -> None:
        try:
            with contextlib.suppress(OSError):
                direction()
        finally:
            self.close()
            self._proxy.forget(self)
            self._ended += 1
            if self._ended == len(self._threads):
                self._client.close()
                self._server.close()

    def _requests(self) -> None:
        reader = hiredis.Reader()
        while chunk := self._client.recv(CHUNK):
            reader.feed(chunk)
            while (argv := reader.gets()) is not False:
                if not self._forward(argv):
                    return

    def _forward(self, argv: list[bytes]) -> bool:
        """Pass a command on; False when the connection is to be cut."""
        action = self._proxy.judge(argv)
        if isinstance(action, Cut):
            self._let_replies_through()
            return False
        if isinstance(action, Delay):
            time.sleep(action.seconds)
        self._subscribes = self._subscribes or argv[0].upper() in SUBSCRIBING
        self._doomed = self._subscribes and isinstance(action, DropReply)
        self._awaited.append(isinstance(action, DropReply))
        self._proxy.wait_until_flowing()
        self._server.sendall(pack(argv))
        return True

    def _let_replies_through(self) -> None:
        """Wait for the answers to what was sent before the command that is cut off."""
        deadline = time.monotonic() + TIMEOUT_S
        while self._awaited and not self._subscribes and time.monotonic() < deadline:
            time.sleep(0.001)

    def _replies(self) -> None:
        waiting = b""
        while chunk := self._server.recv(CHUNK):
            self._proxy.wait_until_flowing()
            if self._subscribes:
                if self._doomed:
                    return
                self._client.sendall(waiting + chunk)
                waiting = b""
                continue
            rest = self._pass_on(waiting + chunk)
            if rest is None:
                return
            waiting = rest

    def _pass_on(self, data: bytes) -> bytes | None:
        """Send the whole replies in `data`; what is left, or None when the next reply is to be lost."""
        at = passed = 0
        is_lost = False
        with contextlib.suppress(ValueError):  # the rest of a reply has not come yet
            while at < len(data):
                end = end_of(data, at)
                if data[at] != PUSH and passed < len(self._awaited):
                    is_lost = self._awaited[passed]
                    if is_lost:
                        break
                    passed += 1
                at = end
        self._client.sendall(data[:at])
        for _ in range(passed):  # only now: a cut waits until these have gone out
            self._awaited.popleft()
        return None if is_lost else data[at:]


def reset(connection: socket.socket) -> None:
    """Close so that the peer sees a reset, not an end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
