"""Fixtures for tests of the server without sockets."""

from __future__ import annotations

import pytest

from tests.server.support import Peer, World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def a(world: World) -> Peer:
    """A connection."""
    return world.peer()


@pytest.fixture
def b(world: World) -> Peer:
    """Another one."""
    return world.peer()
