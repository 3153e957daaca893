"""A worker that was frozen for longer than its lease begins nothing that is not its own any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from millstream.client import connect
from millstream.delivery.config.settings import Settings
from millstream.delivery.delivery import Delivery
from millstream.delivery.settlement import Ack
from millstream.worker.message import Lease, Message
from millstream.worker.stream import Stream
from tests.scenarios.fleet import until
from tests.scenarios.simulated import Order, make_consumer
from tests.scenarios.test_real_servers import frozen_at_will
from tests.support.ours import SOURCE
from tests.support.servers import RealServer

ROOT = Path(__file__).parent.parent.parent
LEASE_S = 1.5
# The check and the first line of a handler are two moments: a freeze can fall between them, though hardly ever.
IN_BETWEEN = 2


@dataclass(frozen=True)
class Line:
    what: str
    entry: str
    fence: str
    is_valid: bool


def lines(path: Path) -> list[Line]:
    if not path.exists():
        return []
    rows = [line.split() for line in path.read_text().splitlines()]
    return [Line(row[0], row[1], row[2], row[3] == "1") for row in rows]


@contextmanager
def worker(url: str, file: Path, how: str) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.frozen_child", url, str(LEASE_S), str(file), how],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}:{ROOT}"},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait(10)


@pytest.mark.parametrize("how", ["run", "consume"])
def test_a_worker_that_wakes_begins_nothing_that_others_have_begun(
    valkey_server: RealServer, tmp_path: Path, how: str
) -> None:
    """Every line of the file is one write of one process: their order is the order in which things happened."""
    url, file, count = f"redis://127.0.0.1:{valkey_server.port}", tmp_path / "lines", 400
    with Stream[dict[str, int]]("orders", url, group="g") as orders:
        orders.backend.execute("FLUSHALL")
        orders.publish_many([{"n": n} for n in range(count)])
        with worker(url, file, how) as frozen:
            until(lambda: len(lines(file)) >= 40)
            frozen.send_signal(signal.SIGSTOP)
            with worker(url, file, "run"):
                until(lambda: orders.audit().done == count, 120)
                frozen.send_signal(signal.SIGCONT)
                until(lambda: all_ended(lines(file)), 60)
    seen = lines(file)
    stale = [line for line, later in judged(seen) if line.what == "begin" and later]
    assert len(stale) <= IN_BETWEEN, stale
    deluded = [line for line, later in judged(seen) if line.is_valid and later]
    assert len(deluded) <= IN_BETWEEN, deluded
    begun_invalid = [line for line in seen if line.what == "begin" and not line.is_valid]
    assert len(begun_invalid) <= IN_BETWEEN, begun_invalid


def all_ended(seen: list[Line]) -> bool:
    return sum(line.what == "begin" for line in seen) == sum(line.what == "end" for line in seen)


def judged(seen: list[Line]) -> Iterator[tuple[Line, bool]]:
    """Each line with whether a later delivery of its entry had begun before it."""
    newest: dict[str, str] = {}
    for line in seen:
        yield line, newest.get(line.entry, "") > line.fence
        if line.what == "begin":
            newest[line.entry] = max(newest.get(line.entry, ""), line.fence)


def test_a_lease_ends_by_the_clock_alone() -> None:
    now = 1_000
    lease = Lease(until_ms=1_500, watch_ms=lambda: now)
    assert lease.valid
    now = 1_500
    assert not lease.valid


def test_a_lease_is_invalid_while_no_renewal_gets_through_and_valid_again_after_one(valkey_server: RealServer) -> None:
    url = f"redis://127.0.0.1:{valkey_server.port}"
    orders = Stream[Order]("orders", url, group="g", lease=0.6)
    begun, go_on, seen = threading.Event(), threading.Event(), list[Message[Order]]()

    @orders.handler
    def charge(order: Order, message: Message[Order]) -> None:
        seen.append(message)
        begun.set()
        go_on.wait(30)

    with orders:
        orders.backend.execute("FLUSHALL")
        with frozen_at_will(orders, url) as gate:
            orders.publish(Order(1))
            assert begun.wait(30)
            (message,) = seen
            gate.clear()
            until(lambda: not message.lease.valid)
            assert orders.audit().pending == 1  # nobody has taken it: only the clock has run
            gate.set()
            until(lambda: message.lease.valid)
            go_on.set()
            until(lambda: orders.audit().done == 1)


def test_a_lease_is_invalid_before_another_consumer_can_have_the_entry(valkey_server: RealServer) -> None:
    url = f"redis://127.0.0.1:{valkey_server.port}"
    orders = Stream[Order]("orders", url, group="g", lease=0.5)
    with orders:
        orders.backend.execute("FLUSHALL")
        orders.publish(Order(1))
        begun, go_on, seen = threading.Event(), threading.Event(), list[Message[Order]]()

        @orders.handler
        def charge(order: Order, message: Message[Order]) -> None:
            seen.append(message)
            begun.set()
            go_on.wait(30)

        with frozen_at_will(orders, url) as gate:
            assert begun.wait(30)
            gate.clear()
            with connect(url) as backend:
                heir = make_consumer(backend, "heir", Settings(lease=0.5))
                taken: list[Delivery] = []
                until(lambda: taken.extend(heir.fetch(1, 0.02)) or bool(taken))
                assert not seen[0].lease.valid
                heir.settle([(taken[0], Ack())])
            go_on.set()
