"""Progress lines of a running pipeline on standard error, and its result at the end.

query ── recentProgress ──▶ Watch (a thread) ──▶ "3 batches, 60,000 rows, 12 s"
group ── audit before and after ─────────────▶ result: done, dead, pending
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from millstream.cli import output
from millstream.errors import BackendError, ConfigError
from millstream.spark.pipeline.definition import GroupSource, Pipeline

if TYPE_CHECKING:
    from millstream.spark.pipeline.run import RunningPipeline
    from millstream.worker.audit import Audit

PERIOD_ONCE_S: Final = 2.0
PERIOD_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run has done. Of a group: how its account changed, with what others did meanwhile."""

    batches: int
    rows: int
    done: int | None  # None: the source is no group
    dead: int | None
    pending: int | None  # at the end: waiting for a retry, or in the hands of others
    seconds: float


class Watch:
    """Counts the batches of a query while this is open, and prints a line now and then."""

    def __init__(self, running: RunningPipeline, period_s: float) -> None:
        self._running, self._period_s = running, period_s
        self._begun = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="millstream-progress", daemon=True)
        self._last_batch = -1
        self.batches = self.rows = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        if error is None:
            self._count()

    def _watch(self) -> None:
        due = self._period_s
        while not self._is_over.wait(0.5):
            before = self.batches
            if self._running.is_active:
                self._count()
            if self.batches > before and self.seconds >= due:
                due = self.seconds + self._period_s
                batches = output.plural(self.batches, "batch", "batches")
                output.warn(f"{batches}, {output.plural(self.rows, 'row')}, {self.seconds:.0f} s")

    def _count(self) -> None:
        """Add what Spark has reported since; it keeps its last 100 reports."""
        for each in self._running.query.recentProgress:
            if each["batchId"] > self._last_batch:
                self._last_batch = each["batchId"]
                if each["numInputRows"]:
                    self.batches += 1
                    self.rows += each["numInputRows"]


def run(pipeline: Pipeline, *, once: bool, url: str | None, master: str | None) -> Ran:
    """Run a pipeline with progress lines. Returns what it has done."""
    output.warn(f"starting Spark for {pipeline.name or 'the pipeline'}")
    before = _audit(pipeline, url)
    running = pipeline.start(once=once, url=url, master=master)
    with Watch(running, PERIOD_ONCE_S if once else PERIOD_S) as watch:
        running.run()
    after = _audit(pipeline, url)
    if before is None or after is None:
        return Ran(watch.batches, watch.rows, None, None, None, round(watch.seconds, 1))
    dead = after.dead - before.dead
    return Ran(watch.batches, watch.rows, after.done - before.done, dead, after.pending, round(watch.seconds, 1))


def _audit(pipeline: Pipeline, url: str | None) -> Audit | None:
    """Return the account of the pipeline's group; None if it reads no group, or several streams."""
    from millstream.worker.stream import Stream

    source = pipeline.at(url).source
    if not isinstance(source, GroupSource) or any(char in source.stream for char in ",*?{["):
        return None
    options: dict[str, Any] = {} if source.dead_letter is None else {"dead_letter": source.dead_letter}
    try:
        with Stream[Any](source.stream, source.url or "", group=source.group, **options) as stream:
            return stream.audit()
    except (BackendError, ConfigError):  # credentials may be in other options; Spark itself reports what is wrong
        return None
