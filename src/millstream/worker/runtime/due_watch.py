"""Hears of delayed entries that are due before anybody looks for the next one.

    publish(delay=0.2) ── first of all that wait, and due soon ──▶ an element in the list `wake`
    one worker of all  ── BLPOP ──▶ looks for the next due time now, and appends the entry when it has come

Workers learn the next due time every few seconds in any case. So an element that nobody takes, or whose taker ends,
makes an entry late by seconds and loses nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from millstream.delivery.consumer import Consumer
from millstream.errors import BackendError
from millstream.printable import safe_logger
from millstream.worker.runtime.threads import Supervisor, Threads

logger = safe_logger(logging.getLogger(__name__))
WAIT_S = 2.0  # no wait is longer, so that a closed connection is noticed
AGAIN_AFTER_S = 5.0  # when the server cannot be asked


class DueWatch:
    """A thread that waits on the keeper's second connection; `start`, then `stop`."""

    def __init__(
        self, consumer: Consumer, on_sooner: Callable[[], None], threads: Threads, supervisor: Supervisor
    ) -> None:
        self._consumer = consumer
        self._on_sooner = on_sooner
        self._threads = threads
        self._supervisor = supervisor
        self._stop = threads.Event()

    def start(self) -> None:
        work = self._supervisor.guard("the thread that waits for delayed entries", self._run)
        self._threads.Thread(target=work, name="millstream-due", daemon=True).start()

    def stop(self) -> None:
        """Let the thread end: soon, and without being waited for, since nothing depends on it."""
        self._stop.set()

    def _run(self) -> None:
        is_away = False
        while not self._stop.is_set():
            try:
                if self._consumer.await_sooner(WAIT_S):
                    self._on_sooner()
                is_away = False
            except BackendError as error:
                if not is_away and not self._stop.is_set():
                    logger.info("delayed entries of %r may be some seconds late now: %s", self._consumer.stream, error)
                is_away = True
                self._stop.wait(AGAIN_AFTER_S)
            except Exception:
                if not self._stop.is_set():  # the connection is closed under a thread that still waits on it
                    raise
