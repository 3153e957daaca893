"""Stop a worker when its group has nothing left to do: for scripts, tests and jobs that end.

    worker ── works ──▶ group
                          ▲
    IdleWatch ── audit ───┘    nothing undelivered, nothing pending: stop the worker

A pending entry is one that a handler works on or that waits for its retry; both are waited for. Entries that were
published with a delay are not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final

from millstream.client.backend import connect
from millstream.errors import BackendError
from millstream.worker.audit import audit_of

if TYPE_CHECKING:
    from millstream.client.backend import Backend
    from millstream.worker.definition import Definition
    from millstream.worker.runtime.loop import Worker

PERIOD_S: Final = 0.1


class IdleWatch:
    """Calls `stop` once the group is idle, from a thread of its own, while this is open."""

    def __init__(self, definition: Definition, stop: Callable[[], None]) -> None:
        self._definition, self._stop = definition, stop
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="millstream-idle", daemon=True)

    @classmethod
    def of(cls, definition: Definition, worker: Worker) -> IdleWatch:
        """Return a watch that stops a worker, and have its reads wait no longer than the watch's period."""
        worker.longest_read_s = PERIOD_S
        return cls(definition, worker.stop)

    def __enter__(self) -> IdleWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(1.0)  # it may wait for a server; it is a daemon and ends by itself

    def _watch(self) -> None:
        backend: Backend | None = None
        try:
            while not self._is_over.wait(PERIOD_S):
                try:
                    backend = backend or connect(self._definition.url)
                    if self._is_idle(backend):
                        self._stop()
                        return
                except BackendError:
                    continue  # the worker itself reports a server that is away
        finally:
            if backend is not None:
                backend.close()

    def _is_idle(self, backend: Backend) -> bool:
        account = backend.run(self._definition.steps(backend.capabilities).audit())
        found = audit_of(account, self._definition.group)
        return found.undelivered == 0 and found.pending == 0
