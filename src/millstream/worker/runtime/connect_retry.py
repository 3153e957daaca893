"""The first connection of a worker, which may be started before its server is.

A server that cannot be reached, or is still loading, is asked again with the pauses of `reconnect`. What time does not
mend ends it at once: a wrong URL, a wrong password, a server that may not run scripts, a certificate nobody trusts.
"""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from millstream.client.backend import Backend
from millstream.client.urls import hide_password
from millstream.delivery.config.settings import Settings
from millstream.errors import BackendError
from millstream.printable import safe_logger
from millstream.worker.runtime.threads import SYSTEM, EventLike, Threads

logger = safe_logger(logging.getLogger(__name__))
T = TypeVar("T")


@dataclass(slots=True)
class ConnectPatience:
    """How often and for how long a server that is not there is asked again."""

    settings: Settings
    url: str
    stop: EventLike
    wait_s: float | None = None  # None: as long as it takes
    threads: Threads = SYSTEM

    def open(self, open_backend: Callable[[], Backend]) -> Backend | None:
        """Return a backend as soon as the server answers, or None if `stop` was set before."""
        return self.until_it_works(open_backend)

    def until_it_works(self, action: Callable[[], T]) -> T | None:
        """Call until the server can do it; None if `stop` was set before."""
        end = math.inf if self.wait_s is None else self.threads.monotonic() + self.wait_s
        tries = self.settings.reconnect_tries
        failures = 0
        while not self.stop.is_set():
            try:
                return action()
            except BackendError as error:
                left = end - self.threads.monotonic()
                if not can_mend(error) or left <= 0 or (tries is not None and failures >= tries):
                    raise
                failures += 1
                self._pause(error, min(left, self.settings.reconnect.delay(failures)))
        return None

    def _pause(self, error: BackendError, seconds: float) -> None:
        url = hide_password(self.url)
        told = str(error).removeprefix(f"{url}: ")
        logger.warning("%s does not answer yet, trying again in %.1f s: %s", url, seconds, told)
        self.stop.wait(seconds)


def can_mend(error: BackendError) -> bool:
    """Whether the same call may work later without anybody changing anything here."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return False
        cause = cause.__cause__ or cause.__context__
    return error.is_retryable
