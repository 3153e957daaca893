"""A message that kills its process becomes a dead letter, and no other message does.

Real processes, really killed, with default settings but for the lease, which the time that each death costs is counted
in. The long tests have the default lease too.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from millstream.worker.stream import Stream
from tests.scenarios.fleet import at
from tests.support.ours import SOURCE
from tests.support.places import Site, place, sentinel_port, served_broker
from tests.support.proxy import Action, Cut, DropReply, FaultProxy, Forward
from tests.support.servers import RealServer

__all__ = ["place", "sentinel_port", "served_broker"]

ROOT = Path(__file__).parent.parent.parent
LEASE_S = 1.0
DEATHS = 3  # one among others in flight, which makes suspects, and max_crashes (2) of those that are handled alone


def start(url: str, concurrency: int, lease_s: float, kind: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.killer_child", url, str(concurrency), str(lease_s), kind],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}:{ROOT}"},
        stderr=subprocess.DEVNULL,
    )


def run_to_the_end(url: str, *, workers: int, concurrency: int, lease_s: float, kind: str, limit_s: float) -> int:
    """Keep workers running until everything is settled. Returns how many died."""
    deaths, end = 0, time.monotonic() + limit_s
    alive = [start(url, concurrency, lease_s, kind) for _ in range(workers)]
    try:
        while alive:
            assert time.monotonic() < end, f"not all is settled within {limit_s:g} s, after {deaths} deaths"
            for process in [process for process in alive if process.poll() is not None]:
                alive.remove(process)
                if process.returncode == -signal.SIGKILL:
                    deaths += 1
                    alive.append(start(url, concurrency, lease_s, kind))
                else:
                    assert process.returncode == 0
            time.sleep(0.02)
    finally:
        for process in alive:
            process.kill()
            process.wait(10)
    return deaths


def publish(url: str, count: int, killers: set[int]) -> None:
    with Stream[dict[str, Any]]("jobs", url, group="g") as jobs:
        jobs.publish_many([{"n": n, "kills": n in killers} for n in range(count)])


def check(url: str, count: int, killers: set[int]) -> None:
    """The killers are dead letters, nothing else is, and the account balances."""
    with Stream[dict[str, Any]]("jobs", url, group="g") as jobs:
        letters = list(jobs.dead.list())
        account = jobs.audit()
    assert {json.loads(letter.by_name[b"data"])["n"] for letter in letters} == killers
    assert {letter.reason for letter in letters} == {"crashed"}
    assert (account.done, account.dead, account.balanced) == (count - len(killers), len(killers), True)


@at("valkey", "redis", "broker")
def test_one_killer_among_200_dies_and_takes_nobody_along(place: Site) -> None:
    publish(place.url, 200, {57})
    deaths = run_to_the_end(place.url, workers=1, concurrency=16, lease_s=LEASE_S, kind="threads", limit_s=250)
    check(place.url, 200, {57})
    assert deaths <= DEATHS


@pytest.mark.long
@at("redis7", "cluster", "unix", "sentinel")
def test_one_killer_among_200_takes_nobody_along_on_other_servers(place: Site) -> None:
    test_one_killer_among_200_dies_and_takes_nobody_along(place)


def test_one_killer_takes_nobody_along_where_the_broker_dies_with_the_worker(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'kept'}"
    publish(url, 200, {57})
    run_to_the_end(url, workers=1, concurrency=16, lease_s=LEASE_S, kind="threads", limit_s=250)
    check(url, 200, {57})


CROWDS = [pytest.param(4, "threads", marks=pytest.mark.long), pytest.param(16, "async", marks=pytest.mark.long)]


@pytest.mark.parametrize(("concurrency", "kind"), [(1, "threads"), (64, "threads"), *CROWDS])
@at("valkey")
def test_one_killer_at_any_concurrency_takes_nobody_along(place: Site, concurrency: int, kind: str) -> None:
    publish(place.url, 200, {57})
    deaths = run_to_the_end(place.url, workers=1, concurrency=concurrency, lease_s=LEASE_S, kind=kind, limit_s=250)
    check(place.url, 200, {57})
    assert deaths <= DEATHS


@pytest.mark.long
@pytest.mark.timeout(1000)
@at("valkey")
def test_one_killer_with_default_settings_takes_nobody_along(place: Site) -> None:
    publish(place.url, 200, {57})
    run_to_the_end(place.url, workers=1, concurrency=16, lease_s=0, kind="threads", limit_s=900)
    check(place.url, 200, {57})


def run_with_faults(port: int, url: str, count: int, killers: set[int], lease_s: float, limit_s: float) -> None:
    publish(url, count, killers)
    luck = random.Random(7)

    def rule(_argv: list[bytes], _number: int) -> Action:
        return luck.choice((Cut(), DropReply())) if luck.random() < 0.01 else Forward()

    with FaultProxy("127.0.0.1", port) as proxy:
        proxy.rule = rule
        run_to_the_end(proxy.url, workers=3, concurrency=16, lease_s=lease_s, kind="threads", limit_s=limit_s)
    check(url, count, killers)


def test_killers_under_connection_faults_take_nobody_along(valkey_server: RealServer) -> None:
    url = f"redis://127.0.0.1:{valkey_server.port}"
    with Stream[dict[str, Any]]("jobs", url, group="g") as jobs:
        jobs.backend.execute("FLUSHALL")
    run_with_faults(valkey_server.port, url, 600, {100, 300, 301, 500}, 1.5, 280)


@pytest.mark.long
@pytest.mark.timeout(1700)
def test_eight_killers_among_3000_with_default_settings_take_nobody_along(valkey_server: RealServer) -> None:
    url = f"redis://127.0.0.1:{valkey_server.port}"
    with Stream[dict[str, Any]]("jobs", url, group="g") as jobs:
        jobs.backend.execute("FLUSHALL")
    run_with_faults(valkey_server.port, url, 3000, {n * 350 + 11 for n in range(8)}, 0, 1600)
