"""`millstream top`: a live view of streams and groups: rates, lag, pending, released, dead, signs of life."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.live import Live
from rich.table import Table

from millstream.cli import common
from millstream.client import Backend
from millstream.client.calls import Call
from millstream.delivery import inspect
from millstream.delivery.delivery import pairs
from millstream.delivery.keys import Keys

# As short as they can be said: a terminal of 80 columns has room for them and for names.
COLUMNS = ("stream", "group", "in/s", "done/s", "lag", "pending", "released", "waiting", "dead", "workers", "seen")


@dataclass(frozen=True, slots=True)
class TopLine:
    """One group of one stream at one moment."""

    stream: str
    group: str  # empty: the stream has none
    added: int
    done: int
    in_rate: float | None  # entries a second since the last look
    done_rate: float | None
    lag: int | None
    pending: int
    released: int
    waiting: int
    dead: int
    consumers: int
    last_sign_s: float | None  # of the consumer that was heard of last


def top(pattern: str, *, url: str | None, every_s: float, rounds: int | None, as_json: bool) -> None:
    """Look again and again, until Ctrl-C or for so many rounds."""
    with common.opened(url) as backend:
        before: dict[tuple[str, str], TopLine] = {}
        last = 0.0
        if as_json:
            for number in _rounds(rounds, every_s):
                lines, before, last = _next(backend, pattern, before, last)
                print(json.dumps({"round": number, "lines": [asdict(line) for line in lines]}), flush=True)
            return
        console = Console()
        if not console.is_terminal:
            for _ in _rounds(rounds, every_s):
                lines, before, last = _next(backend, pattern, before, last)
                console.print(_table(lines, backend.url))
            return
        with Live(console=console, auto_refresh=False, screen=rounds is None) as live:
            for _ in _rounds(rounds, every_s):
                lines, before, last = _next(backend, pattern, before, last)
                live.update(_table(lines, backend.url), refresh=True)


def _rounds(rounds: int | None, every_s: float) -> Iterator[int]:
    """Count rounds with a pause between them."""
    for number in itertools.count(1):
        yield number
        if number == rounds:
            return
        time.sleep(every_s)


def _next(
    backend: Backend, pattern: str, before: Mapping[tuple[str, str], TopLine], last: float
) -> tuple[list[TopLine], dict[tuple[str, str], TopLine], float]:
    """The lines now, with rates since the last look."""
    now = time.monotonic()
    lines = [
        line
        for name in inspect.stream_names(backend, pattern)
        for line in _lines(backend, name, before, now - last if last else None)
    ]
    return lines, {(line.stream, line.group): line for line in lines}, now


def _lines(
    backend: Backend, name: str, before: Mapping[tuple[str, str], TopLine], passed_s: float | None
) -> Iterator[TopLine]:
    state = inspect.stream_state(backend, name)
    if state is None:
        return
    counters = _counters(backend, name)
    groups = inspect.group_states(backend, name)
    if not groups:
        known, added = before.get((name, "")), state.added or 0
        rate = _rate(added, known.added if known else None, passed_s)
        yield TopLine(name, "", added, 0, rate, None, None, 0, 0, 0, state.dead, 0, None)
    for group in groups:
        consumers = [
            each for each in inspect.consumer_states(backend, name, group.name) if not each.name.startswith("~")
        ]
        added, done = state.added or 0, counters.get(f"done:{group.name}", 0)
        known = before.get((name, group.name))
        yield TopLine(
            name,
            group.name,
            added,
            done,
            _rate(added, known.added if known else None, passed_s),
            _rate(done, known.done if known else None, passed_s),
            group.lag,
            group.pending,
            group.released,
            group.waiting,
            state.dead,
            len(consumers),
            min((each.idle_ms / 1000 for each in consumers), default=None),
        )


def _rate(now: int, before: int | None, passed_s: float | None) -> float | None:
    return None if before is None or not passed_s else round((now - before) / passed_s, 1)


def _counters(backend: Backend, name: str) -> dict[str, int]:
    key = Keys(name.encode()).meta
    flat: list[bytes] = backend.run(Call(("HGETALL", key), key, list))
    return {field.decode("utf-8", "replace"): int(value) for field, value in pairs(flat)}


def _table(lines: list[TopLine], url: str) -> Table:
    table = Table(
        title=f"millstream top · {url} · {time.strftime('%H:%M:%S')}", box=None, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for column in COLUMNS:
        is_name = column in ("stream", "group")
        table.add_column(column, justify="left" if is_name else "right", overflow="fold", no_wrap=not is_name)
    for line in lines:
        sign = "-" if line.last_sign_s is None else f"{line.last_sign_s:.0f} s"
        numbers = (
            line.in_rate,
            line.done_rate,
            line.lag,
            line.pending,
            line.released,
            line.waiting,
            line.dead,
            line.consumers,
        )
        table.add_row(line.stream, line.group or "-", *("-" if each is None else f"{each:,}" for each in numbers), sign)
    return table
