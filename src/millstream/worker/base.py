"""What the blocking and the asyncio `Stream` have in common: how they are made, and what they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, Unpack

from millstream.client.payload import Codec
from millstream.client.type_arguments import argument_of
from millstream.delivery.config.settings import Settings, SettingsOverrides
from millstream.delivery.policy import Rule
from millstream.delivery.recorder import NullRecorder, Recorder
from millstream.errors import ConfigError
from millstream.worker.definition import Definition
from millstream.worker.handlers import Middleware
from millstream.worker.message import Message
from millstream.worker.runtime.loop import Worker

T = TypeVar("T")
M = TypeVar("M", bound=Middleware)


class StreamBase(Generic[T]):
    """A stream, a group on it, and the type of what it carries."""

    def __init__(
        self,
        name: str,
        url: str = "memory://",
        *,
        group: str = "workers",
        type: Any = None,
        codec: Codec[T] | None = None,
        settings: Settings | None = None,
        recorder: Recorder | None = None,
        on: Mapping[type[BaseException], Rule] | None = None,
        fields: bool = False,
        maxlen: int | None = None,
        **overrides: Unpack[SettingsOverrides],
    ) -> None:
        self._workers: list[Worker] = []  # of each `run` that is in progress
        self._definition = Definition(
            self,
            name,
            url,
            group,
            type,
            settings,
            overrides,
            recorder or NullRecorder(),
            on or {},
            fields,
            maxlen,
            codec,
        )

    def type_argument(self) -> Any:
        """Return the type in `Stream[Type](…)` or of a subclass of `Stream[Type]`; None if neither says one."""
        return argument_of(getattr(self, "__orig_class__", None) or self.__class__, StreamBase)

    @staticmethod
    def present(message: Message[Any]) -> Any:
        """Make of a message what coroutine handlers and their middleware get."""
        return message

    @property
    def name(self) -> str:
        return self._definition.name

    @property
    def group(self) -> str:
        return self._definition.group

    @property
    def settings(self) -> Settings:
        return self._definition.settings

    def middleware(self, function: M) -> M:
        """Wrap every call of the handler: `function(call_next, message)`, a coroutine if the handler is one.

        Several wrap each other in the order in which they are added: the first one is outermost.
        """
        if not callable(function):
            raise ConfigError(f"middleware: {function!r} must be a function (call_next, message)")
        self._definition.middlewares.append(function)
        return function

    def stop(self, *, at_once: bool = False) -> None:
        """End `run`, also from another thread: what is in hand is finished or released; `at_once`: released."""
        for worker in tuple(self._workers):
            worker.stop(at_once=at_once)

    @contextmanager
    def _registered(self, worker: Worker) -> Iterator[None]:
        """Have `stop` and `reset_topology` reach a worker while this is open; `run` may be called more than once."""
        self._workers.append(worker)
        try:
            yield
        finally:
            self._workers.remove(worker)
