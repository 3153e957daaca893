"""Threads and timers of a broker go on, or end loudly, when something in them fails. Each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAIL_TWICE = """
def fail_twice(owner, name, error):
    real, calls = getattr(owner, name), 0
    def broken(self, *args, **named):
        nonlocal calls
        calls += 1
        if calls < 3:
            raise error
        return real(self, *args, **named)
    setattr(owner, name, broken)
"""
TIMER = """
from millstream import Broker
from millstream.server.core.hub import Hub
fail_twice(Hub, "tick", SystemExit(0))
client = Broker().client()
assert client.xread({"s": "$"}, block=300) in ([], {}, None)
print("answered")
"""
LOOP_TIMER = """
import redis
from millstream import Broker
from millstream.server.core.hub import Hub
fail_twice(Hub, "tick", RuntimeError("tick"))
with Broker().serve_in_background() as server:
    client = redis.Redis(port=server.port, socket_timeout=30)
    assert client.xread({"s": "$"}, block=300) in ([], {}, None)
    print("answered")
"""
KEEPER = """
import threading
from millstream.persistence.ticker import Ticker
class Store:
    pause_s = 0.01
    def tick(self):
        ticked.set()
ticked, store = threading.Event(), Store()
fail_twice(Store, "tick", SystemExit(0))
ticker = Ticker(store)
assert ticked.wait(30)
print("answered")
"""
PLANNER = """
import threading
from millstream.spark.group.planner import LeaseKeeper
renewed = threading.Event()
class Batch:
    def keep(self):
        renewed.set()
fail_twice(Batch, "keep", SystemExit(0))
keeper = LeaseKeeper(0.01)
keeper.add(b"batch", [Batch().keep])
assert renewed.wait(30)
print("answered")
"""
SERVER = """
import sys
from millstream import Broker
server = Broker().serve_in_background()
server._server._loop.call_soon_threadsafe(sys.exit, 0)
server._thread.join(30)
print("answered")
"""


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (TIMER, "The timer failed and tries again"),
        (LOOP_TIMER, "The timer failed and tries again"),
        (KEEPER, "Keeping failed in a way it must not"),
        (PLANNER, "renewing the leases of a batch failed unexpectedly"),
        (SERVER, "the server in this process has ended unexpectedly"),
    ],
    ids=["timer", "loop-timer", "keeper", "planner", "server"],
)
def test_what_fails_is_logged_with_its_traceback_and_work_goes_on(script: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", FAIL_TWICE + script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "answered\n", done.stderr
    assert said in done.stderr
    assert "Traceback (most recent call last)" in done.stderr
