"""Threads for blocking handlers. A thread whose handler overstays its time is written off and replaced.

Python cannot end a thread: what can be done is not to wait for it. They are daemons, so a stuck one does not keep the
process from ending either.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from millstream.worker.runtime.threads import SYSTEM, Supervisor, Threads

Job = Callable[[], None]


class ThreadPool:
    """`size` threads that run jobs in turn. Jobs raise nothing: one that does ends its thread and is reported."""

    def __init__(self, size: int, name: str, threads: Threads = SYSTEM, supervisor: Supervisor | None = None) -> None:
        self._threads = threads
        self._supervisor = supervisor or Supervisor(lambda: None)
        self._jobs: queue.SimpleQueue[Job | None] = threads.SimpleQueue()
        self._name = name
        self._written_off: set[int] = set()  # idents of threads that end after their job
        self._lock = threading.Lock()
        self._count = 0
        for _ in range(size):
            self._add_thread()

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def replace(self, ident: int) -> None:
        """Give up on a thread: another takes its place now, and it ends when its job does."""
        with self._lock:
            if ident in self._written_off:
                return
            self._written_off.add(ident)
        self._add_thread()

    def close(self) -> None:
        """Let idle threads end; busy ones end after their job."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _add_thread(self) -> None:
        self._count += 1
        name = f"{self._name}-{self._count}"
        self._threads.Thread(target=self._supervisor.guard(name, self._run), name=name, daemon=True).start()

    def _run(self) -> None:
        ident = threading.get_ident()
        while (job := self._jobs.get()) is not None:
            job()
            with self._lock:
                if ident in self._written_off:
                    self._written_off.discard(ident)
                    return
