"""Our own server for tests: in a thread of this process, or as `millstream serve` in another one."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import millstream
from millstream.clock import Clock
from millstream.server.core.hub import Hub
from millstream.server.net.listener import Endpoints, Listener
from millstream.server.net.serve import BackgroundServer
from tests.support.servers import free_port
from tests.support.wire import Closed, Wire

WAIT_S = 60
ROOT = Path(__file__).parents[2]
# Where the package under test is: the source tree, or the compiled copy that `make test-compiled` puts before it.
SOURCE = Path(millstream.__file__).parents[1]


@dataclass
class Ours:
    """A server in a thread."""

    hub: Hub
    server: BackgroundServer
    unix_socket: Path

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def listener(self) -> Listener:
        assert self.server._listener is not None
        return self.server._listener

    def connect(self, protocol: int = 2) -> Wire:
        return Wire(self.port, protocol)

    def open(self) -> socket.socket:
        """A bare connection; reads on it end after WAIT_S."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def is_deserted(self) -> bool:
        """Whether no trace of a connection is left."""
        hub = self.hub
        with hub.lock:
            return not (self.server.connections or len(hub.sessions) or len(hub.waiters) or hub.monitors)


@contextlib.contextmanager
def serving(*, clock: Clock | None = None, tls_port: int | None = None, **settings: str) -> Iterator[Ours]:
    """A server on a free port and on a unix socket; settings are written with `_` for `-`."""
    named = {name.replace("_", "-"): value for name, value in settings.items()}
    hub = Hub(clock=clock, settings=named)
    with tempfile.TemporaryDirectory(prefix="millstream-ours-") as directory:
        path = Path(directory) / "s"
        endpoints = Endpoints(port=0, tls_port=tls_port, unix_socket=str(path))
        with BackgroundServer(hub, endpoints) as server:
            yield Ours(hub, server, path)
        hub.close()


def eventually(test: Callable[[], bool], seconds: float = WAIT_S) -> bool:
    """Whether something becomes true in time."""
    deadline = time.monotonic() + seconds
    while not test():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def read_all(sock: socket.socket) -> bytes:
    """All bytes up to the end of the connection, also if it is cut."""
    parts = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while chunk := sock.recv(1 << 16):
            parts += chunk
    return bytes(parts)


def read_until(sock: socket.socket, end: bytes) -> bytes:
    """Bytes up to this ending."""
    parts = bytearray()
    while not parts.endswith(end):
        chunk = sock.recv(1 << 16)
        if not chunk:
            raise Closed(f"closed after {bytes(parts[-200:])!r}")
        parts += chunk
    return bytes(parts)


# As a process


class Process:
    """`millstream serve` as people start it."""

    def __init__(self, *arguments: str, directory: Path, port: int | None = None) -> None:
        self.port = free_port() if port is None else port
        self.directory = directory
        self._out = (directory / "out").open("w+b")
        self._err = (directory / "err").open("w+b")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "millstream", "serve", *arguments, "--port", str(self.port)],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            cwd=directory,
            env=environment(),
        )

    def await_start(self) -> Process:
        """Wait until it has said that it is there."""
        started = eventually(lambda: "stop " in self.out or self.process.poll() is not None)
        assert started, "it says nothing"
        assert self.process.poll() is None, self.err
        return self

    @property
    def out(self) -> str:
        return (self.directory / "out").read_text()

    @property
    def err(self) -> str:
        return (self.directory / "err").read_text()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        self._out.close()
        self._err.close()


def environment() -> dict[str, str]:
    """Ours, with the package under test first on the path, even where it is not installed."""
    paths = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
