"""How long a server takes from being started to answering, with a log of 1,250,000 commands to replay.

Each replays what it has logged itself: 500,000 entries appended, all of them read one by one, half of them
acknowledged. After every start the state is looked at.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from bench.load import GROUP, KEY, load, prepare
from bench.peers import log_size
from tests.support.servers import free_port
from tests.support.wire import Closed, Wire

ADDED, ACKED = 500_000, 250_000
COMMANDS = 2 * ADDED + ACKED
CONNECTIONS, DEPTH = 50, 100
START_LIMIT_S, STOP_LIMIT_S = 120, 60
POLL_S = 0.002


class ReplayFailed(Exception):
    """The server did not start, or not with what it had."""


class Replay:
    """A server's own log in a directory of its own."""

    def __init__(self, generator: Path, binary: Path, options: tuple[str, ...], directory: Path) -> None:
        self._command = [str(binary), "--bind", "127.0.0.1", "--dir", str(directory), "--save", "", *options]
        self._directory = directory
        with self._started() as (process, port, _):
            prepare(port, CONNECTIONS)
            requests = {"xadd": ADDED, "xreadgroup": ADDED, "xack": ACKED}
            load(generator, port, requests, connections=CONNECTIONS, depth=DEPTH)
            process.send_signal(signal.SIGTERM)
            if process.wait(STOP_LIMIT_S):
                raise ReplayFailed(f"{binary.name} ended with status {process.returncode} when asked to")

    @property
    def size(self) -> int:
        """Bytes of the log."""
        return log_size(self._directory)

    def round(self) -> float:
        """Seconds from starting the process to its first PONG."""
        with self._started() as (_, port, took):
            with Wire(port) as wire:
                found = wire.ask(b"XLEN", KEY) + wire.ask(b"XPENDING", KEY, GROUP)[:20]
            wanted = b":%d\r\n*4\r\n:%d\r\n" % (ADDED, ADDED - ACKED)
            if not found.startswith(wanted):
                raise ReplayFailed(f"{self._command[0]} came back with {found!r} instead of {wanted!r}")
            return took

    @contextlib.contextmanager
    def _started(self) -> Iterator[tuple[subprocess.Popen[bytes], int, float]]:
        port = free_port()
        with (self._directory / "log").open("ab") as log:
            start = time.perf_counter()
            process = subprocess.Popen(
                [*self._command, "--port", str(port)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self._await_answer(process, port, start + START_LIMIT_S)
            yield process, port, time.perf_counter() - start
        finally:
            process.kill()
            process.wait(STOP_LIMIT_S)

    def _await_answer(self, process: subprocess.Popen[bytes], port: int, deadline: float) -> None:
        while time.perf_counter() < deadline and process.poll() is None:
            with contextlib.suppress(OSError, Closed), Wire(port, timeout_s=START_LIMIT_S) as wire:
                while time.perf_counter() < deadline:
                    if wire.ask(b"PING") == b"+PONG\r\n":  # an error until all is replayed
                        return
                    time.sleep(POLL_S)
            time.sleep(POLL_S)
        log = (self._directory / "log").read_text(errors="replace")
        raise ReplayFailed(f"{self._command[0]} does not start:\n{log[-2000:]}")
