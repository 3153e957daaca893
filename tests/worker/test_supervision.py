"""No part of a worker ends silently: each is ended in turn, in a process of its own.

Either the process ends with a non-zero status and a traceback, or the part is restarted. None may hang.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import RealServer

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60  # a process that hangs would hang for ever


def run(part: str, url: str = "memory://", kind: str = "blocking") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.worker.end_a_part", part, url, kind],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=ROOT,
    )


@pytest.mark.parametrize(
    ("part", "kind", "name"),
    [
        ("reader", "blocking", "MemoryError"),
        ("settler", "blocking", "the thread that settles"),
        ("settler", "async", "the thread that settles"),
        ("keeper", "blocking", "the thread that renews leases"),
        ("pool", "blocking", "millstream-orders-1"),
        ("answer", "async", "the task of a handler"),
        ("stop-the-loop", "async", "the event loop of the handlers"),
        ("exit-in-a-task", "async", "the event loop of the handlers"),
        ("consume", "blocking", "the thread that renews leases"),
    ],
)
def test_a_part_that_ends_takes_the_process_with_it_loudly(part: str, kind: str, name: str) -> None:
    done = run(part, kind=kind)
    assert done.returncode == 1, done.stderr
    assert "Traceback (most recent call last)" in done.stderr
    assert name in done.stderr


@pytest.mark.parametrize(
    ("part", "kind", "error"),
    [
        ("exit", "blocking", "SystemExit"),
        ("exit", "async", "SystemExit"),
        ("interrupt", "blocking", "KeyboardInterrupt"),
        ("interrupt", "async", "KeyboardInterrupt"),
        ("own-cancelled-task", "async", "CancelledError"),
        ("cancel-oneself", "async", "CancelledError"),
    ],
)
def test_what_a_handler_raises_counts_as_its_failure(part: str, kind: str, error: str) -> None:
    done = run(part, kind=kind)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done=0 dead=5\n", "each is tried max_retries + 1 times and then a dead letter"
    assert f"the handler raised {error}" in done.stderr


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_recorder_that_raises_stops_no_work(kind: str) -> None:
    done = run("recorder", kind=kind)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done=5 dead=0\n"
    assert done.stderr.count("the recorder's hook settled failed") == 1, "once, not for every entry"
    assert "ValueError: settled" in done.stderr


def test_the_lease_keeping_process_is_started_again(valkey_server: RealServer) -> None:
    done = run("heart", f"redis://127.0.0.1:{valkey_server.port}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("another heart\n")
    assert "has ended with status -9" in done.stderr
