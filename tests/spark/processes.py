"""The processes of a Spark driver that a test has started, told apart, so that one of them can be killed.

    python (the driver) ── java (its virtual machine) ─┬─ python: planners, one a source, which live as long as a query
                                                       ├─ python: helpers, which Spark asks for and replaces at will
                                                       └─ java (an executor) ── python: a daemon and its workers

Only descendants of the process that was started are ever looked at. Each is held by a descriptor from the moment that
it is seen, so that a number that was given to somebody else meanwhile is never hit.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

EXECUTOR = "CoarseGrainedExecutorBackend"
PLANNER = "python_streaming_source_runner"


@dataclass(frozen=True)
class Found:
    """A process: what it was started with, and by whom."""

    pid: int
    words: str
    parents: tuple[str, ...]  # what its parents were started with, the first process first
    descriptor: int

    @property
    def is_executor(self) -> bool:
        return EXECUTOR in self.words and "java" in self.words.split()[0]

    @property
    def is_worker(self) -> bool:
        """Whether it is a Python process of an executor."""
        return "python" in self.words.split(" ")[0] and any(EXECUTOR in words for words in self.parents)

    @property
    def is_planner(self) -> bool:
        """Whether it plans the batches of a query, which ends with it."""
        return PLANNER in self.words

    @property
    def is_helper(self) -> bool:
        """Whether it is another Python process of the driver's, such as the one that plans a write."""
        is_python = "python" in self.words.split(" ")[0]
        return is_python and len(self.parents) > 1 and not self.is_planner and not self.is_worker

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)


class Processes:
    """A driver's processes."""

    def __init__(self, pid: int) -> None:
        self._first = (pid, _started(pid))
        self._held: dict[tuple[int, int], Found] = {}  # by number and time of start

    def look(self) -> list[Found]:
        """Those there are now."""
        pid, started = self._first
        with suppress(OSError):
            if _started(pid) == started:
                return list(self._look(pid, ()))
        return []

    def _look(self, pid: int, parents: tuple[str, ...]) -> Iterator[Found]:
        found = self._hold(pid, parents)
        if found is None:
            return
        yield found
        for child in _children(pid):
            yield from self._look(child, (*parents, found.words))

    def _hold(self, pid: int, parents: tuple[str, ...]) -> Found | None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        try:
            key = (pid, _started(pid))
            words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
        except OSError:
            os.close(descriptor)
            return None
        if not words:  # it has ended and nobody has asked how
            os.close(descriptor)
            return None
        if key in self._held:
            os.close(descriptor)
        else:
            self._held[key] = Found(pid, words, parents, descriptor)
        return self._held[key]

    def kill(self, kind: str, luck: random.Random) -> bool:
        """End one process of a kind, or `all`; whether there was one."""
        there = self.look()
        of_kind = {
            "all": there,
            "driver": [each for each in there if not each.is_executor and not each.is_worker],
            "executor": [each for each in there if each.is_executor],
            "worker": [each for each in there if each.is_worker],
            "planner": [each for each in there if each.is_planner],
            "helper": [each for each in there if each.is_helper],
        }[kind]
        for each in of_kind if kind in ("all", "driver") else luck.sample(of_kind, min(1, len(of_kind))):
            each.kill()
        return bool(of_kind)

    def close(self) -> None:
        """End whatever is left of them, executors without a driver too."""
        self.look()
        for each in self._held.values():
            each.kill()
            os.close(each.descriptor)
        self._held.clear()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(child) for child in task.read_text().split()]
    return found


def _started(pid: int) -> int:
    """When a process was started, in the kernel's ticks."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
