"""D18 and D19: a worker that is told to end leaves nothing waiting, and deploys count as nobody's failure."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.delivery.config.settings import Settings
from millstream.testing import Sim
from millstream.worker.stream import Stream
from tests.scenarios.simulated import SERVERS, Order, make_consumer
from tests.support.ours import SOURCE
from tests.support.places import Site

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def worker(url: str, seconds: float, grace: float) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.scenarios.deploy_child", url, str(seconds), str(grace)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": f"{SOURCE}:{ROOT}", "PATH": ""},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)


def wait_for_lines(process: subprocess.Popen[str], count: int) -> None:
    assert process.stdout is not None
    for _ in range(count):
        assert process.stdout.readline() == "entered\n"


@pytest.mark.parametrize("place", ["broker", "valkey", "redis", "redis7", "cluster"], indirect=True)
def test_what_a_terminated_worker_had_is_available_at_once_and_uncounted(place: Site) -> None:
    """D18. Real processes, SIGTERM, handlers that do not end in time: the next worker has all within a second."""
    with Stream[dict[str, int]]("orders", place.url, group="g") as orders:
        orders.publish_many([{"n": n} for n in range(8)])
        with worker(place.url, 60, 0.2) as process:
            wait_for_lines(process, 4)  # four run, four wait in hand
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        account = orders.audit()
        assert (account.pending, account.released + account.undelivered) == (account.released, 8)
        heir = make_consumer(place.connect(), "heir", Settings(lease=30.0))
        heir.open()
        found, deadline = list(heir.fetch(10, 0.05)), time.monotonic() + 20
        while len(found) < 8 and time.monotonic() < deadline:
            found += heir.fetch(10, 0.05)
        assert sorted(delivery.number for delivery in found) == [1] * 8


@pytest.mark.parametrize("place", ["valkey", "redis"], indirect=True)
def test_a_terminated_worker_finishes_what_it_can(place: Site) -> None:
    """Scenario D18."""
    with Stream[dict[str, int]]("orders", place.url, group="g") as orders:
        orders.publish_many([{"n": n} for n in range(4)])
        with worker(place.url, 0.5, 20) as process:
            wait_for_lines(process, 4)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        assert (orders.audit().done, orders.audit().pending) == (4, 0)


@pytest.mark.parametrize("place", ["valkey", pytest.param("redis", marks=pytest.mark.long)], indirect=True)
def test_three_rolling_deploys_dead_letter_nothing(place: Site) -> None:
    """D19. With one retry allowed, three interrupted deliveries would be one too many if they counted."""
    with Stream[dict[str, int]]("orders", place.url, group="g", max_retries=1) as orders:
        orders.publish_many([{"n": n} for n in range(8)])
        for _ in range(3):
            with worker(place.url, 60, 0.1) as process:
                wait_for_lines(process, 4)
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
        with worker(place.url, 0.0, 1) as process:
            deadline = time.monotonic() + 60
            while orders.audit().done < 8 and time.monotonic() < deadline:
                time.sleep(0.05)
        account = orders.audit()
        assert (account.done, account.dead, account.balanced) == (8, 0, True)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "coroutine"])
def test_twenty_deploys_of_two_workers(server: str, is_async: bool) -> None:
    """Scenarios D18, D19."""
    import asyncio

    orders = Stream[Order]("orders", group="g", max_retries=0, shutdown_grace=2.0)
    if is_async:

        @orders.handler(concurrency=3)
        async def charge_later(order: Order) -> None:
            await asyncio.sleep(5)
    else:

        @orders.handler(concurrency=3)
        def charge(order: Order) -> None:
            sim.sleep(5)

    with Sim(orders, workers=2, server=server) as sim:  # type: ignore[arg-type]
        sim.publish_many(orders, [Order(n) for n in range(40)])
        for deploy in range(20):
            sim.advance(1.5)
            name = f"w{deploy % 2 + 1}"
            sim.stop(name)
            sim.start(name)
        sim.run_until_done(300)
        account = sim.audit(orders)
        assert (account.done, account.dead, account.balanced) == (40, 0, True)
        assert {each.attempt for each in sim.happened("handler-entered")} == {1}
