"""Commands on the engine in this process, without a client library between: words in, the RESP2 reply out.

Fast path for `redis_clients.make_client`, which it equals reply by reply. Test: `tests/client/test_direct.py`. A call
uses one of as many sessions as there are callers at the same time, as a pool of connections does.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

import hiredis

from millstream.broker import Broker
from millstream.broker.inside import BrokerInside
from millstream.broker.redis_clients import Pipe
from millstream.errors import CommandError
from millstream.server.core.hub import Hub

_INCOMPLETE: Final = object()
Word = bytes | str | int | float
T = TypeVar("T")


class DirectClient:
    """Runs commands in the calling thread; threads may share it."""

    def __init__(self, broker: Broker, make_error: Callable[[str], Exception]) -> None:
        self._hub = broker._hub
        self._db = broker._db
        self._inside = BrokerInside(broker)
        self._make_error = make_error  # what an error reply becomes: raised, or an element of a list
        self._free: list[_Line] = []
        self._all: set[_Line] = set()
        self._is_closed = False

    def execute(self, words: Sequence[Word]) -> Any:
        """Return the reply to one command; raise what `make_error` makes of an error, or OSError at the end."""
        if self._is_closed:
            raise BrokenPipeError(errno.EPIPE, "closed")
        try:
            line = self._free.pop()
        except IndexError:
            line = self._open()
        try:
            reply = line.ask(words)
        except BaseException:  # a reply may still come: nobody else may get it
            line.close()
            self._all.discard(line)
            raise
        self._free.append(line)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def inside(self, step: Callable[[BrokerInside], T | None]) -> T | None:
        """Run a step under the broker's lock; None if it must run as a command. Raises as `execute` does."""
        if self._is_closed:
            raise BrokenPipeError(errno.EPIPE, "closed")
        hub = self._hub
        if hub.gates or hub.monitors:  # what these must see or may refuse comes from a session
            return None
        try:
            return cast("T | None", hub.run_together(lambda: cast("Any", step(self._inside))))
        except CommandError as error:
            raise self._make_error(error.wire.decode("utf-8", "replace")) from None

    def close(self) -> None:
        """End all sessions, also those that wait."""
        self._is_closed = True
        for line in list(self._all):
            line.close()

    def _open(self) -> _Line:
        line = _Line(self._hub, self._make_error)
        self._all.add(line)
        if self._db:
            line.ask(("SELECT", self._db))
        return line


class _Line:
    """A session and the parser of its replies; for one caller at a time."""

    __slots__ = ("_pipe", "_reader")

    def __init__(self, hub: Hub, make_error: Callable[[str], Exception]) -> None:
        self._pipe = Pipe(hub)
        self._reader = hiredis.Reader(replyError=make_error, notEnoughData=_INCOMPLETE)

    def ask(self, words: Sequence[Word]) -> Any:
        """Return the reply to a command; an error reply is returned too."""
        pipe = self._pipe
        pipe.sendall(hiredis.pack_command(tuple(words)))  # type: ignore[arg-type]
        while (reply := self._parsed()) is _INCOMPLETE:
            if pipe.is_at_end or not pipe.wait(None):
                raise ConnectionResetError(errno.ECONNRESET, "the broker has closed the session")
        return reply

    def _parsed(self) -> Any:
        chunks, reader = self._pipe._chunks, self._reader
        while chunks:
            reader.feed(chunks.popleft())
        return reader.gets()

    def close(self) -> None:
        self._pipe.close()
