"""What the blocking and the asyncio `Stream` have in common: how they are made, and what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from millstream.delivery.config.settings import Settings
from millstream.delivery.policy import Rule
from millstream.delivery.recorder import NullRecorder, Recorder
from millstream.worker.definition import Definition
from millstream.worker.handlers import Middleware
from millstream.worker.runtime.loop import Worker

T = TypeVar("T")


class StreamBase(Generic[T]):
    """A stream, a group on it, and the type of what it carries."""

    _worker: Worker | None = None

    def __init__(
        self,
        name: str,
        url: str = "memory://",
        *,
        group: str = "workers",
        type: Any = None,
        settings: Settings | None = None,
        recorder: Recorder | None = None,
        on: Mapping[type[BaseException], Rule] | None = None,
        fields: bool = False,
        maxlen: int | None = None,
        **overrides: Any,
    ) -> None:
        self._definition = Definition(
            self, name, url, group, type, settings, overrides, recorder or NullRecorder(), on or {}, fields, maxlen
        )

    @property
    def name(self) -> str:
        return self._definition.name

    @property
    def group(self) -> str:
        return self._definition.group

    @property
    def settings(self) -> Settings:
        return self._definition.settings

    def middleware(self, function: Middleware) -> Middleware:
        """Wrap every call of the handler: `function(call_next, message)`, a coroutine if the handler is one."""
        self._definition.middleware = function
        return function

    def stop(self) -> None:
        """End `run`, also from another thread: what is in hand is finished or released."""
        if self._worker is not None:
            self._worker.stop()
