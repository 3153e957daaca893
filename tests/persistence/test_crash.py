"""A broker is killed at random moments: whatever it had answered is there when it comes back."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millstream.persistence.aof.check import check
from millstream.persistence.store import Store
from millstream.server.core.hub import Hub

KILLS = int(os.environ.get("MILLSTREAM_KILLS", "10"))
ROOT = Path(__file__).parents[2]


def run_and_kill(
    directory: Path, policy: str, seed: int, seconds: float, child: str = "tests.persistence.crash_child"
) -> list[tuple[str, str]]:
    """What a broker had answered before it was killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", child, str(directory), policy, str(seed)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        said: list[bytes] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            said.append(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        said += process.stdout.readlines()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    lines = [line.decode().split() for line in said if line.endswith(b"\n")]
    return [(what, entry_id) for what, entry_id in lines]


class Found:
    """What a directory holds."""

    def __init__(self, directory: Path) -> None:
        hub = Hub(settings={"appendonly": "yes"})
        store = Store(hub, directory)
        self.opened = store.open()
        stream = hub.keyspace.databases[0].values[b"s"]
        self.entries = set(stream.entries.read(0, 1 << 128)[0])  # type: ignore[attr-defined]
        pending = stream.groups[b"g"].pending.by_id  # type: ignore[attr-defined]
        self.held = {entry_id for entry_id, hold in pending.items() if hold.consumer is not None}
        self.released = {entry_id for entry_id, hold in pending.items() if hold.consumer is None}
        store.close()


@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_everything_that_was_answered_is_there_after_a_kill(policy: str, tmp_path: Path) -> None:
    """The system outlives the process here, so that everysec loses nothing either."""
    choose = random.Random(policy)
    kills = KILLS if policy == "always" else max(1, KILLS // 5)
    added: set[bytes] = set()
    last: dict[bytes, str] = {}  # entry to what was last answered about it
    for round_ in range(kills):
        said = run_and_kill(tmp_path, policy, round_, choose.uniform(0.02, 0.3))
        assert said
        for what, text in said:
            if what == "added":
                added.add(text.encode())
            else:
                last[text.encode()] = what
        assert check(tmp_path).damage is None or check(tmp_path).damage.is_torn  # type: ignore[union-attr]
        found = Found(tmp_path)
        assert added <= found.entries
        # The last thing the process did may not have been said any more: one entry may be a step further.
        further = [entry_id for entry_id, what in last.items() if not is_as_answered(found, entry_id, what)]
        assert len(further) <= 1, further
        for entry_id in further:
            assert last[entry_id] == "claimed"
            last[entry_id] = "released" if entry_id in found.released else "acked"


def is_as_answered(found: Found, entry_id: bytes, what: str) -> bool:
    match what:
        case "acked":
            return entry_id not in found.held and entry_id not in found.released
        case "released":
            return entry_id in found.released
        case _:
            return entry_id in found.held
