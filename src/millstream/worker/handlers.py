"""A handler and how it is called: the payload, or the payload and its message; blocking, or a coroutine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from millstream.errors import ConfigError
from millstream.worker.message import Message

Handler = Callable[..., Any]
# `function(call_next, message)`; the message is the one that the handler gets, so asyncio's has awaited words
Middleware = Callable[[Callable[[Any], Any], Any], Any]
Present = Callable[[Message[Any]], Any]


def as_it_is(message: Message[Any]) -> Message[Any]:
    """Present a message to blocking handlers."""
    return message


@dataclass(frozen=True, slots=True)
class Registered:
    """A function that handles entries, and how many of it run at once."""

    function: Handler
    concurrency: int
    timeout_s: float | None
    is_async: bool
    wants_message: bool
    present: Present = as_it_is  # makes of a message what handler and middleware get

    @classmethod
    def of(
        cls, function: Handler, concurrency: int, timeout_s: float | None, present: Present = as_it_is
    ) -> Registered:
        """Check a function and how it is to run; ConfigError names what is wrong."""
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise ConfigError(f"concurrency: must be a whole number, 1 or more, not {concurrency!r}")
        if timeout_s is not None and not timeout_s > 0:
            raise ConfigError(f"timeout: must be more than 0 seconds, not {timeout_s}")
        wants_message = _wants_message(function)
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object whose call is a coroutine
        )
        return cls(function, concurrency, timeout_s, is_async, wants_message, present if is_async else as_it_is)

    def call(self, message: Message[Any]) -> Any:
        """Run it, or for a coroutine begin it."""
        return self._call_presented(self.present(message))

    def _call_presented(self, message: Any) -> Any:
        function, data = self.function, message.data
        return self._ran(function(data, message) if self.wants_message else function(data))

    def _ran(self, answer: Any) -> Any:
        """Return what a plain function answered; a coroutine is an error, since nobody awaits it."""
        if not self.is_async and inspect.iscoroutine(answer):
            answer.close()
            raise TypeError(
                "the handler, a plain function, or its middleware returned a coroutine, and nothing of that has run: "
                "make the handler an `async def`"
            )
        return answer

    def wrapped(self, middlewares: Sequence[Middleware]) -> Callable[[Message[Any]], Any]:
        """Put hooks around the handler, the first one outermost; the hook of a coroutine is a coroutine."""
        if not middlewares:
            return self.call
        call: Callable[[Any], Any] = self._call_presented
        for middleware in reversed(middlewares):
            call = partial(middleware, call)
        outermost = call
        return lambda message: self._ran(outermost(self.present(message)))


def _wants_message(function: Handler) -> bool:
    """Whether a handler takes the message besides the payload; ConfigError if it can be called with neither."""
    if not callable(function):
        raise ConfigError(f"{function!r} cannot be a handler: it must be a function or a coroutine function")
    name = getattr(function, "__qualname__", None) or repr(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"the handler {name} yields: calling it would run nothing of it")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C do not say
        return False
    for count in (2, 1):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count == 2
    raise ConfigError(f"the handler {name}{signature} must take the payload, and may take the message: (data, message)")
