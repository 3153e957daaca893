"""A stall of the server that is longer than the lease robs no living worker, and the dead are recovered after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from millstream.delivery.config.settings import RecoveryConfig, Settings
from millstream.worker.stream import Stream
from tests.scenarios.fleet import until
from tests.support import servers
from tests.support.ours import SOURCE
from tests.support.servers import RealServer

ROOT = Path(__file__).parent.parent.parent
LEASE_S = 2.0
STALL_S = 4.0
COUNT = 12
WORKS_S = 6.0  # longer than the stall, so that every entry is in hand all through it


@contextmanager
def worker(url: str, file: Path, how: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that works for a while on each entry; see stalled_child."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.stalled_child", url, str(LEASE_S), str(file), how],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}:{ROOT}"},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait(10)


def begun(file: Path) -> Counter[str]:
    """How often each entry was begun."""
    return Counter(line.split()[0] for line in file.read_text().splitlines()) if file.exists() else Counter()


@contextmanager
def own_server(kind: str) -> Iterator[RealServer]:
    binary = {"valkey": servers.valkey_binary, "redis": servers.redis_binary}[kind]()
    with servers.running(servers.require(binary, kind)) as server:
        yield server


def settings_of(how: str) -> Settings:
    if how == "rfc":
        return RecoveryConfig(min_idle_time=LEASE_S).settings(lease=LEASE_S, reconcile_every=0.5)
    return Settings(lease=LEASE_S)


@pytest.mark.parametrize(
    ("kind", "how", "stall"),
    [
        ("redis", "lease", "pause"),
        ("valkey", "lease", "stop"),
        *[
            pytest.param(*each, marks=pytest.mark.long)
            for each in [
                ("valkey", "lease", "pause"),
                ("redis", "lease", "stop"),
                ("valkey", "rfc", "pause"),
                ("redis", "rfc", "stop"),
            ]
        ],
    ],
)
def test_a_stall_longer_than_the_lease_robs_no_living_worker(kind: str, how: str, stall: str, tmp_path: Path) -> None:
    """Three workers hold twelve entries between them and have room for all; one of the three then dies."""
    file = tmp_path / "begun"
    with own_server(kind) as server, ExitStack() as stack:
        url = f"redis://127.0.0.1:{server.port}"
        orders = stack.enter_context(Stream[dict[str, float]]("orders", url, group="g", settings=settings_of(how)))
        workers = [stack.enter_context(worker(url, file, how)) for _ in range(3)]
        until(lambda: readers(orders) == 3, 60)  # a worker that starts during the stall has not seen it
        orders.publish_many([{"works_s": WORKS_S}] * COUNT)
        until(lambda: sum(begun(file).values()) == COUNT, 60)
        stall_server(server, orders, stall)
        until(lambda: orders.audit().done == COUNT, 120)
        assert set(begun(file).values()) == {1}, begun(file)

        before = sum(begun(file).values())
        orders.publish_many([{"works_s": 1.0}] * 3)
        until(lambda: sum(begun(file).values()) == before + 3, 60)
        workers[0].kill()
        workers[0].wait(10)
        until(lambda: orders.audit().done == COUNT + 3, 180)


def readers(orders: Stream[dict[str, float]]) -> int:
    """How many workers wait for entries: they have started, which with the RFC's profile includes a scan."""
    clients: bytes = orders.backend.execute("CLIENT", "LIST")
    return clients.count(b"cmd=xreadgroup")


def stall_server(server: RealServer, orders: Stream[dict[str, float]], stall: str) -> None:
    if stall == "pause":
        orders.backend.execute("CLIENT", "PAUSE", round(STALL_S * 1000), "ALL")
        time.sleep(STALL_S)
    else:
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(STALL_S)
        os.kill(server.pid, signal.SIGCONT)
