"""Connections without sockets, for tests: a hub with a clock moved by hand, and peers that talk to it in words."""

from __future__ import annotations

import time

from millstream.clock import ManualClock
from millstream.server.core.hub import Hub, LogLine
from millstream.server.core.session import Session
from tests.support.wire import pack

START_MS = 1_767_225_600_000


def words(request: str | bytes | list[str | bytes | int]) -> list[bytes]:
    """`"SET k v"` or a list of words, as the words of a request."""
    if isinstance(request, str):
        request = list(request.split(" "))
    if isinstance(request, bytes):
        return request.split(b" ")
    return [word if isinstance(word, bytes) else str(word).encode() for word in request]


class Peer:
    """The other end of a session. Calling it sends a request and gives what has come back since."""

    def __init__(self, hub: Hub, protocol: int = 2) -> None:
        self._received: list[bytes] = []
        self.is_cut_off = False
        self.session: Session = hub.session(self._received.append, self._cut_off)
        if protocol != 2:
            self(f"HELLO {protocol}")

    def _cut_off(self) -> None:
        self.is_cut_off = True

    def __call__(self, request: str | bytes | list[str | bytes | int]) -> bytes:
        return self.raw(pack(words(request)))

    def raw(self, data: bytes) -> bytes:
        """Send bytes as they are."""
        self.session.feed(data)
        return self.read()

    def read(self) -> bytes:
        """What has come since the last time."""
        data = b"".join(self._received)
        self._received.clear()
        return data

    def wait(self, end: bytes) -> None:
        """Wait until what has come ends like this: for what the timer does on a real clock."""
        deadline = time.monotonic() + 60
        while not b"".join(self._received).endswith(end) and time.monotonic() < deadline:
            time.sleep(0.001)

    @property
    def is_blocked(self) -> bool:
        return self.session.waiter is not None


class World:
    """A hub, its clock, and a journal that remembers."""

    def __init__(self, **settings: str) -> None:
        self.clock = ManualClock(START_MS)
        self.journal: list[list[LogLine]] = []
        named = {name.replace("_", "-"): value for name, value in settings.items()}
        self.hub = Hub(clock=self.clock, settings=named, journal=self.journal.append)

    def peer(self, protocol: int = 2) -> Peer:
        return Peer(self.hub, protocol)

    def pass_ms(self, ms: int) -> None:
        """Let time go by, and do what is due then."""
        self.clock.advance(ms)
        self.hub.tick()

    def logged(self) -> list[list[bytes]]:
        """The journal's batches since the last time, each line as one text."""
        batches = [[b" ".join(argv) for _, argv in batch] for batch in self.journal]
        self.journal.clear()
        return batches
