"""A handler and how it is called: the payload, or the payload and its message; blocking, or a coroutine."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millstream.errors import ConfigError
from millstream.worker.message import Message

Handler = Callable[..., Any]
Middleware = Callable[[Callable[[Message[Any]], Any], Message[Any]], Any]


@dataclass(frozen=True, slots=True)
class Registered:
    """A function that handles entries, and how many of it run at once."""

    function: Handler
    concurrency: int
    timeout_s: float | None
    is_async: bool
    wants_message: bool

    @classmethod
    def of(cls, function: Handler, concurrency: int, timeout_s: float | None) -> Registered:
        if concurrency < 1:
            raise ConfigError(f"concurrency: must be 1 or more, not {concurrency}")
        if timeout_s is not None and not timeout_s > 0:
            raise ConfigError(f"timeout: must be more than 0 seconds, not {timeout_s}")
        wanted = [
            each
            for each in inspect.signature(function).parameters.values()
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.VAR_POSITIONAL)
        ]
        if not wanted:
            raise ConfigError(f"{function!r} takes no argument: a handler takes the payload, and may take the message")
        wants_message = len(wanted) > 1 or wanted[0].kind is inspect.Parameter.VAR_POSITIONAL
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object whose call is a coroutine
        )
        return cls(function, concurrency, timeout_s, is_async, wants_message)

    def call(self, message: Message[Any]) -> Any:
        """Run it, or for a coroutine begin it."""
        return self.function(message.data, message) if self.wants_message else self.function(message.data)

    def wrapped(self, middleware: Middleware | None) -> Callable[[Message[Any]], Any]:
        """The handler with the hook around it; the hook of a coroutine is a coroutine."""
        if middleware is None:
            return self.call
        return lambda message: middleware(self.call, message)
