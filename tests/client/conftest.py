"""Backends for blocking code and for asyncio behind the same words, so that each test is written once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millstream.client import aconnect, connect
from tests.support.places import place, sentinel_port, served_broker

__all__ = ["Open", "kind", "open_backend", "place", "sentinel_port", "served_broker"]

Open = Callable[..., Any]


class Driven:
    """An `AsyncBackend` whose coroutines are run to their end."""

    def __init__(self, url: str, **options: Any) -> None:
        self._runner = asyncio.Runner()
        try:
            self.backend = self._runner.run(aconnect(url, **options))
        except BaseException:
            self._runner.close()
            raise

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.backend, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **kwargs: self._runner.run(found(*args, **kwargs))

    def wind_up(self) -> None:
        self._runner.run(self.backend.close())
        self._runner.close()


@pytest.fixture(params=["blocking", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_backend(kind: str) -> Iterator[Open]:
    """`open_backend(url, …)`: a backend of either kind, closed behind the test."""
    opened: list[Any] = []

    def open_one(url: str, **options: Any) -> Any:
        made = connect(url, **options) if kind == "blocking" else Driven(url, **options)
        opened.append(made)
        return made

    yield open_one
    for backend in opened:
        backend.wind_up() if isinstance(backend, Driven) else backend.close()
