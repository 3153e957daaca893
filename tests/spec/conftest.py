"""The one fixture of the specification tests: a fresh `Engine`, see support.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .support import Engine, make_engine


@pytest.fixture
def e() -> Iterator[Engine]:
    """A fresh, empty engine (or an emptied real server, see support.py)."""
    engine = make_engine()
    yield engine
    engine.close()
