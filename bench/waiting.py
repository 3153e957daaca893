"""An XADD while many readers of its group wait: one is served, and the server must not pay for the others."""

from __future__ import annotations

import statistics
import time
from collections import deque
from contextlib import ExitStack
from typing import Final

from tests.support.servers import RealServer
from tests.support.wire import Wire, pack

APPENDS: Final = 40  # a round
_KEY, _GROUP = b"waited", b"g"


class Waiting:
    """Readers of one group that wait on connections of their own, and a writer."""

    def __init__(self, server: RealServer, readers: int, stack: ExitStack) -> None:
        self._writer = stack.enter_context(server.connect())
        self._writer.ask(b"DEL", _KEY)
        self._writer.ask(b"XGROUP", b"CREATE", _KEY, _GROUP, b"$", b"MKSTREAM")
        self._waiting: deque[tuple[Wire, bytes]] = deque()
        for number in range(readers):
            words = (b"GROUP", _GROUP, b"c%d" % number, b"COUNT", b"1", b"BLOCK", b"0", b"STREAMS", _KEY, b">")
            reader = (stack.enter_context(server.connect()), pack([b"XREADGROUP", *words]))
            self._wait(reader)
        self._await_blocked(readers)

    def round(self) -> float:
        """Return the median of the seconds that an XADD takes; each reader that is served waits again."""
        took = []
        for _ in range(APPENDS):
            started = time.perf_counter()
            self._writer.ask(b"XADD", _KEY, b"*", b"f", b"v")
            took.append(time.perf_counter() - started)
            reader = self._waiting.popleft()
            reader[0].receive()
            self._wait(reader)
            self._await_blocked(len(self._waiting))
        return statistics.median(took)

    def _wait(self, reader: tuple[Wire, bytes]) -> None:
        reader[0].send(reader[1])
        self._waiting.append(reader)

    def _await_blocked(self, readers: int) -> None:
        deadline = time.monotonic() + 60
        while b"blocked_clients:%d\r\n" % readers not in self._writer.ask(b"INFO", b"clients"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{readers} readers do not wait")
