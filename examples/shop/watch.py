"""Looks at a run from outside: one sample after the other, kept and shown as they come."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from examples.shop.figures import Sample
from examples.shop.orders import GROUP, STREAM
from examples.shop.producer import Progress
from millstream import Stream
from millstream.delivery.inspect import consumer_states
from millstream.errors import Unavailable
from millstream.worker.audit import audit_of

EVERY_S = 1.0
LINE_EVERY_S = 5.0  # where there is no terminal to draw on


class Watch:
    """The samples of a run; those of the parts before it was stopped are in a file."""

    def __init__(self, url: str, directory: Path, size: int, offset_s: float, *, is_quiet: bool) -> None:
        self._stream: Stream[Any] = Stream(STREAM, url, group=GROUP)
        self._steps = self._stream._definition.steps(self._stream.backend.capabilities)
        self._directory = directory
        self._size = size
        self._file = directory / "samples.jsonl"
        self._begun = time.monotonic() - offset_s
        self.samples = [Sample(**json.loads(line)) for line in self._lines()]
        self.phase = "starting"
        self._console = Console()
        is_drawn = self._console.is_terminal and not is_quiet
        self._live = Live(console=self._console, refresh_per_second=4) if is_drawn else None
        self._next_line_s = float("inf") if is_quiet or is_drawn else self.seconds
        if self._live is not None:
            self._live.start()

    def _lines(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def look(self) -> Sample:
        """One sample."""
        found = audit_of(self._stream.backend.run(self._steps.audit(is_exact=False)), GROUP)
        sample = Sample(
            at_s=round(self.seconds, 2),
            published=found.published or 0,
            done=found.done,
            lag=found.undelivered + found.delayed,
            pending=found.pending,
            released=found.released,
            waiting=found.waiting,
            dead=found.dead,
            phase=self.phase,
        )
        self.samples.append(sample)
        with self._file.open("a") as file:
            file.write(json.dumps(asdict(sample)) + "\n")
        if self._live is not None:
            self._live.update(self.view())
        elif sample.at_s >= self._next_line_s:
            self._next_line_s = sample.at_s + LINE_EVERY_S
            self._console.print(self.line(), highlight=False, soft_wrap=True)
        return sample

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look again and again, in a thread, while something else takes its time."""
        is_over = threading.Event()

        def look() -> None:
            while not is_over.wait(EVERY_S):
                with suppress(Unavailable):  # the broker is busy: the next look will do
                    self.look()

        thread = threading.Thread(target=look, name="demo-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def held_by(self, prefix: str) -> int:
        """How many entries consumers of this name have in hand."""
        states = consumer_states(self._stream.backend, STREAM, GROUP)
        return sum(state.pending for state in states if state.name.startswith(prefix))

    def figures(self) -> Mapping[str, str]:
        """What the last samples say."""
        last = self.samples[-1]
        before = next((each for each in reversed(self.samples) if each.at_s <= last.at_s - 3), self.samples[0])
        span = max(0.001, last.at_s - before.at_s)
        sent = Progress.read(self._directory / "producer.json").sent
        return {
            "sent": f"{sent:,} of {self._size:,}",
            "published / s": f"{(last.published - before.published) / span:,.0f}",
            "done / s": f"{(last.done - before.done) / span:,.0f}",
            "done": f"{last.done:,}",
            "lag": f"{last.lag:,}",
            "pending": f"{last.pending:,}",
            "waiting for a retry": f"{last.waiting:,}",
            "released": f"{last.released:,}",
            "dead": f"{last.dead:,}",
        }

    def line(self) -> str:
        """The same in a line."""
        told = ", ".join(f"{name} {value}" for name, value in self.figures().items())
        return f"{self.samples[-1].at_s:5.0f} s {self.phase}: {told}"

    def view(self) -> Table:
        """The same as a table."""
        title = f"millstream: {self.phase}, {self.samples[-1].at_s:.0f} s"
        table = Table(box=None, title=title, title_justify="left", show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for name, value in self.figures().items():
            table.add_row(name, value)
        return table

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._stream.close()
