"""D16: a handler that never lets go of the interpreter keeps its lease, with a process that renews for it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.delivery.config.settings import Settings
from millstream.errors import ConfigError
from millstream.worker.runtime.lease_process import Child
from millstream.worker.stream import Stream
from tests.scenarios.simulated import Order, make_consumer
from tests.support.ours import SOURCE
from tests.support.places import Site

ROOT = Path(__file__).parent.parent.parent
SECONDS = 5  # five leases


LATER = [pytest.param(name, marks=pytest.mark.long) for name in ("broker", "redis7", "cluster")]


@pytest.fixture(params=["valkey", "redis", *LATER])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    from tests.support.places import visit

    yield from visit(request.param, request, tmp_path)


@contextmanager
def worker(url: str, seconds: int, has_process: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.scenarios.gil_child", url, str(seconds), has_process],
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


def steal_attempts(site: Site, process: subprocess.Popen[str], seconds: float) -> list[bytes]:
    """What a second consumer gets while the first one's handler runs."""
    thief = make_consumer(site.connect(), "thief", Settings(lease=1.0))
    assert process.stdout is not None
    assert process.stdout.readline() == "entered\n"
    end, found = time.monotonic() + seconds, []
    while time.monotonic() < end:
        found += [delivery.id for delivery in thief.fetch(10, 0.2)]
    return found


def test_a_handler_that_holds_the_interpreter_for_five_leases_keeps_its_entry(server: Site) -> None:
    """Scenario D16."""
    with Stream[dict[str, int]]("orders", server.url, group="g") as orders:
        orders.publish({"n": 1})
        with worker(server.url, SECONDS, "yes") as process:
            assert steal_attempts(server, process, SECONDS - 1) == []
            assert process.stdout is not None
            assert process.stdout.readline() == "left\n"
            deadline = time.monotonic() + 60
            while orders.audit().done == 0 and time.monotonic() < deadline:
                time.sleep(0.05)
        assert orders.audit().done == 1


def test_without_the_process_it_is_taken_over(server: Site) -> None:
    """D16. The proof of the test above: threads alone cannot do it."""
    with Stream[dict[str, int]]("orders", server.url, group="g") as orders:
        (entry_id,) = orders.publish_many([{"n": 1}])
        with worker(server.url, 4, "no") as process:
            assert set(steal_attempts(server, process, 3)) == {entry_id.encode()}


def test_the_process_ends_with_its_worker(server: Site) -> None:
    """Scenario D16."""
    with Stream[dict[str, int]]("orders", server.url, group="g") as orders:
        (entry_id,) = orders.publish_many([{"n": 1}])
        with worker(server.url, 60, "yes") as process:
            assert steal_attempts(server, process, 2.5) == []
            process.kill()
            process.wait(60)
            thief = make_consumer(server.connect(), "thief", Settings(lease=1.0))
            deadline, found = time.monotonic() + 60, list[bytes]()
            while not found and time.monotonic() < deadline:
                found += [delivery.id for delivery in thief.fetch(10, 0.2)]
        assert found == [entry_id.encode()]


@pytest.mark.parametrize("url", ["memory://", "file:///tmp/never-made"])
def test_streams_inside_the_process_cannot_be_renewed_from_another(url: str) -> None:
    """Scenario D16."""
    orders = Stream[Order]("orders", "memory://heart", group="g", heartbeat_process=True)
    orders._definition.url = url

    @orders.handler
    def charge(order: Order) -> None: ...

    with pytest.raises(ConfigError, match="inside this process"):
        orders._definition.make_heart(None)  # type: ignore[arg-type]


def test_the_child_renews_up_to_the_deadline() -> None:
    child = Child()
    child.take({"hold": ["1-0", 1, None]}, 100.0)
    child.take({"hold": ["2-0", 1, 5.0]}, 100.0)
    child.take({"hold": ["3-0", 1, 5.0]}, 100.0)
    child.take({"drop": ["3-0", 1]}, 101.0)
    assert child.due(104.9) == [("1-0", 1), ("2-0", 1)]
    child.take({"hold": ["2-0", 1, 10.0]}, 104.9)
    assert child.due(114.0) == [("1-0", 1), ("2-0", 1)]
    assert child.due(115.0) == [("1-0", 1)]
