"""Streams of their own for each test, in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millstream import Backoff, Stream

_numbers = itertools.count()


@pytest.fixture
def url() -> str:
    """A broker that only this test uses."""
    return f"memory://worker-test-{next(_numbers)}"


@pytest.fixture
def make_stream(url: str) -> Iterator[Callable[..., Stream[Any]]]:
    """Streams with short times; closed at the end."""
    made: list[Stream[Any]] = []

    def make(name: str = "orders", *, type: Any = dict, **settings: Any) -> Stream[Any]:
        short: dict[str, Any] = {"lease": 1.0, "backoff": Backoff(0.02, cap=0.1), "group": "billing"}
        stream: Stream[Any] = Stream(name, url, type=type, **(short | settings))
        assert stream.backend  # the broker lives as long as somebody is connected
        made.append(stream)
        return stream

    yield make
    for stream in made:
        stream.close()
