"""Handlers are plain functions or coroutines, with the payload or with the payload and the message."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import ConfigError
from millstream.worker.handlers import Registered


class Told:
    data = "payload"


def call(function: Any) -> Any:
    return Registered.of(function, 1, None).call(Told())  # type: ignore[arg-type]


def test_a_handler_is_given_what_it_takes() -> None:
    assert call(lambda data: data) == "payload"
    assert isinstance(call(lambda data, message: message), Told)
    assert len(call(lambda *args: args)) == 2
    assert call(lambda data, *, option=1: option) == 1


def test_coroutines_are_recognised_also_behind_a_call_method() -> None:
    async def coroutine(data: object) -> None: ...

    class Callable:
        async def __call__(self, data: object) -> None: ...

    assert Registered.of(coroutine, 1, None).is_async
    assert Registered.of(Callable(), 1, None).is_async
    assert not Registered.of(lambda data: None, 1, None).is_async


def test_a_plain_function_that_returns_a_coroutine_has_failed() -> None:
    """It is acknowledged otherwise, and nothing of it has run; decorators of coroutines often make such functions."""

    async def coroutine(data: object) -> None: ...

    async def middleware(call_next: Any, message: Any) -> Any:
        return call_next(message)

    with pytest.raises(TypeError, match="async def"):
        call(lambda data: coroutine(data))
    with pytest.raises(TypeError, match="async def"):
        Registered.of(print, 1, None).wrapped([middleware])(Told())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "concurrency", "timeout", "named"),
    [(lambda: None, 1, None, "must take the payload"), (print, 0, None, "concurrency"), (print, 1, 0, "timeout")],
)
def test_what_cannot_work_is_refused_by_name(function: Any, concurrency: int, timeout: float, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Registered.of(function, concurrency, timeout)


def test_middleware_wraps_the_call() -> None:
    said = []

    def hook(call_next: Any, message: Any) -> Any:
        said.append("before")
        result = call_next(message)
        said.append("after")
        return result

    wrapped = Registered.of(lambda data: said.append(data) or "result", 1, None).wrapped([hook])
    assert wrapped(Told()) == "result"  # type: ignore[arg-type]
    assert said == ["before", "payload", "after"]
