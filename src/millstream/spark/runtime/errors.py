"""What goes wrong in a query, in words whose first line says what to do; and how long to bear it.

Spark shows the text of a Python error behind its own first words, but a traceback of its worker in front of it.
`plainly` leaves that out for errors that were worded for people; the worker that raised one ends anyway.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from millstream.errors import BackendError, ConfigError, DeliveryError, MillstreamError, ServerReplied, Unavailable

T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
# Set by Spark for the Python processes that it starts.
_OF_WORKERS = ("PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_SOCK_PATH", "PYTHON_WORKER_FACTORY_SOCK_DIR")
_HIDE = "SPARK_HIDE_TRACEBACK"
_HINTS = {
    "NOAUTH": "set option 'password' (and 'username')",
    "WRONGPASS": "check options 'username' and 'password'",
    "NOPERM": "the user of option 'username' needs this command and this key in its ACL",
    "WRONGTYPE": "the key is not a stream: check option 'stream'",
}


class EntriesLost(DeliveryError):
    """Entries that a query has not read are gone."""

    def __init__(self, stream: str, count: int | str, where: str) -> None:
        super().__init__(
            f"{count} entries of stream {stream!r} were trimmed before they were read ({where}): let the stream keep "
            "more (maxlen, minid), read more often, or set option 'failOnDataLoss' to false to go on without them"
        )
        self.stream = stream
        self.count = count


class Patience:
    """How long a server may be gone: pauses between attempts, and the end of them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._pause = FIRST_PAUSE_S

    def renew(self) -> None:
        """Note that the server answers."""
        if self._since is not None:
            self._since, self._pause = None, FIRST_PAUSE_S

    def bear(self, error: BackendError) -> None:
        """Wait a little, or raise what has been going on for too long or will not pass."""
        if not error.is_retryable:
            raise worded(error) from error
        now = time.monotonic()
        self._since = self._since if self._since is not None else now
        if now - self._since >= self._seconds:
            raise Unavailable(f"{self._told(error)}, or wait longer with option 'retryTimeout' ({error})") from error
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, LONGEST_PAUSE_S)

    def _told(self, error: BackendError) -> str:
        if isinstance(error, ServerReplied):
            return f"the server has refused this for {self._seconds:g} s: put right what it says"
        return f"the server has not answered for {self._seconds:g} s: see that it runs and option 'url' is right"


def patiently(seconds: float, ask: Callable[[], T]) -> T:
    """Return the answer of a call, repeated while the server is unreachable."""
    patience = Patience(seconds)
    while True:
        try:
            return ask()
        except BackendError as error:
            patience.bear(error)


def worded(error: BackendError) -> MillstreamError:
    """Return an error with advice, if there is some."""
    if isinstance(error, ServerReplied) and (hint := _HINTS.get(error.code)):
        return ConfigError(f"{hint}: the server says {str(error)!r}")
    return error


@contextmanager
def plainly() -> Iterator[None]:
    """Let errors of ours reach Spark without a traceback, if we are in one of its workers."""
    try:
        yield
    except MillstreamError as error:
        if any(name in os.environ for name in _OF_WORKERS):
            os.environ[_HIDE] = "1"
        if isinstance(error, BackendError) and (better := worded(error)) is not error:
            raise better from None
        raise
