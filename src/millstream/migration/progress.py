"""Progress of a move: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class Watcher(Protocol):
    """Receives the progress of a move."""

    def begin(self, what: str, total: int) -> None:
        """Begin a phase of `total` steps."""
        ...

    def step(self, count: int = 1) -> None:
        """Count steps as done."""
        ...


class Silent:
    """Shows nothing."""

    def begin(self, what: str, total: int) -> None:
        pass

    def step(self, count: int = 1) -> None:
        pass


class Bar:
    """Shows a bar for each phase."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, what: str, total: int) -> None:
        self._task = self._progress.add_task(what, total=total)

    def step(self, count: int = 1) -> None:
        if self._task is not None:
            self._progress.advance(self._task, count)
