"""`millstream top`: a live view of streams and groups: rates, lag, pending, released, waiting, dead, signs of life.

    server ── looks ──▶ TopLine ──▶ View (sort, filter, scroll: plain values) ──▶ screen of a terminal
                           └──▶ one record a line in a pipe, one JSON object a round with --json

The keys are in the last line of the screen. Colours: red is dead letters or a backlog that nobody reads, yellow is
entries that wait, green is work that is being done.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millstream.cli import common, output
from millstream.cli import inspect as inspecting
from millstream.delivery import inspect
from millstream.printable import printable

if TYPE_CHECKING:
    from rich.text import Text

    from millstream.client import Backend

# Short titles: a terminal of 80 columns has room for them and for names.
COLUMNS: Final = {
    "stream": "stream",
    "group": "group",
    "in_rate": "in/s",
    "done_rate": "done/s",
    "lag": "lag",
    "pending": "pending",
    "released": "released",
    "waiting": "waiting",
    "dead": "dead",
    "consumers": "workers",
    "last_sign_s": "seen",
}
HELP_LINE: Final = "q quit  ↑↓ PgUp PgDn scroll  s next sort column  r reverse  / filter  Esc clear"
UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END = "\x1b[A", "\x1b[B", "\x1b[5~", "\x1b[6~", "\x1b[H", "\x1b[F"


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
    dead: int | None
    consumers: int
    last_sign_s: float | None  # since the most recent sign of life of a consumer


@dataclass(frozen=True, slots=True)
class View:
    """What the user has chosen to see."""

    sort: str = "stream"
    is_reversed: bool = False
    words: str = ""  # the filter: part of the stream's or the group's name
    is_typing: bool = False  # keys go into the filter
    first: int = 0  # the first line that is shown
    is_over: bool = False

    def key(self, key: str, page: int) -> View:
        """Return the view after a key; `page` is the number of lines on the screen."""
        if self.is_typing:
            return self._typed(key)
        moves = {
            UP: -1,
            "k": -1,
            DOWN: 1,
            "j": 1,
            PAGE_UP: -page,
            PAGE_DOWN: page,
            " ": page,
            HOME: -(10**9),
            "g": -(10**9),
            END: 10**9,
            "G": 10**9,
        }
        if key in moves:
            return replace(self, first=max(0, self.first + moves[key]))
        match key:
            case "q" | "Q":
                return replace(self, is_over=True)
            case "s":
                names = list(COLUMNS)
                return replace(self, sort=names[(names.index(self.sort) + 1) % len(names)], first=0)
            case "r":
                return replace(self, is_reversed=not self.is_reversed, first=0)
            case "/":
                return replace(self, is_typing=True)
            case "\x1b":
                return replace(self, words="", first=0)
        return self

    def _typed(self, key: str) -> View:
        if key in ("\r", "\n"):
            return replace(self, is_typing=False)
        if key == "\x1b":
            return replace(self, is_typing=False, words="", first=0)
        if key in ("\x7f", "\b"):
            return replace(self, words=self.words[:-1], first=0)
        return replace(self, words=self.words + key, first=0) if key.isprintable() else self

    def chosen(self, lines: Sequence[TopLine]) -> list[TopLine]:
        """Return the lines that the filter leaves, in order. Numbers are sorted from large to small."""
        found = [line for line in lines if self.words in line.stream or self.words in line.group]
        if self.sort in ("stream", "group"):
            found.sort(key=lambda line: (getattr(line, self.sort), line.stream, line.group), reverse=self.is_reversed)
        else:
            found.sort(key=lambda line: getattr(line, self.sort) or 0, reverse=not self.is_reversed)
        return found

    def within(self, count: int, page: int) -> View:
        """Return the view scrolled back so far that a full page is shown."""
        return replace(self, first=max(0, min(self.first, count - page)))


def top(
    pattern: inspecting.Pattern = "*",
    every: Annotated[
        float, typer.Option("--every", help="Seconds between two looks.", min=0.01, max=86_400, callback=common.finite)
    ] = 1.0,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="End after this many looks.", min=1, max=common.MOST)
    ] = None,
    sort: Annotated[str, typer.Option("--sort", help=f"Column to sort by: {', '.join(COLUMNS)}.")] = "stream",
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    """Watch streams and groups live until `q` or Ctrl-C: rates, lag, pending, released, waiting and dead entries.

    On a terminal: q quits, arrows and PgUp/PgDn scroll, s and r change the order, / filters by name.
    In a pipe each look prints one line a group: the time, then the columns, separated by tabs.
    """
    if sort not in COLUMNS:
        raise typer.BadParameter(f"--sort: {sort!r} is not one of {', '.join(COLUMNS)}")
    view = View(sort)
    with common.opened(url) as backend:
        if as_json:
            for number, (lines, _) in enumerate(_looks(backend, pattern, rounds, every), 1):
                output.say_json({"round": number, "lines": [asdict(line) for line in view.chosen(lines)]})
        elif not output.is_terminal():
            for lines, now in _looks(backend, pattern, rounds, every):
                for line in view.chosen(lines):
                    output.say(output.record([now, *(getattr(line, name) for name in COLUMNS)]))
        elif rounds is not None:
            for lines, now in _looks(backend, pattern, rounds, every):
                _print(screen(lines, view, backend.url, now, None, output.width()))
        else:
            _watch(backend, pattern, every, view)


# Looking


def _looks(backend: Backend, pattern: str, rounds: int | None, every_s: float) -> Iterator[tuple[list[TopLine], str]]:
    """Look again and again; each time the lines and the time of day."""
    look = Looking(backend, pattern)
    for number in itertools.count(1):
        yield look.lines(), time.strftime("%H:%M:%S")
        if number == rounds:
            return
        time.sleep(every_s)


class Looking:
    """Looks at a server, and remembers the last look for the rates."""

    def __init__(self, backend: Backend, pattern: str) -> None:
        self._backend, self._pattern = backend, pattern
        self._before: Mapping[tuple[str, str], TopLine] = {}
        self._last = 0.0

    def lines(self) -> list[TopLine]:
        """Return the lines now, with rates since the last look."""
        now = time.monotonic()
        passed_s = now - self._last if self._last else None
        names = inspect.stream_names(self._backend, self._pattern)
        found = [line for name in names for line in _lines(self._backend, name, self._before, passed_s)]
        self._before, self._last = {(line.stream, line.group): line for line in found}, now
        return found


def _lines(
    backend: Backend, name: str, before: Mapping[tuple[str, str], TopLine], passed_s: float | None
) -> Iterator[TopLine]:
    state = inspect.stream_state(backend, name)
    if state is None:
        return
    counters = _counters(backend, name)
    added = state.added or 0
    groups = inspect.group_states(backend, name)
    if not groups:
        known = before.get((name, ""))
        rate = _rate(added, known.added if known else None, passed_s)
        yield TopLine(name, "", added, 0, rate, None, None, 0, 0, 0, state.dead, 0, None)
    for group in groups:
        people = [each for each in inspect.consumer_states(backend, name, group.name) if each.name[:1] != "~"]
        done, known = counters.get(f"done:{group.name}", 0), before.get((name, group.name))
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
            len(people),
            min((each.idle_ms / 1000 for each in people), default=None),
        )


def _rate(now: int, before: int | None, passed_s: float | None) -> float | None:
    return None if before is None or not passed_s else round((now - before) / passed_s, 1)


def _counters(backend: Backend, name: str) -> dict[str, int]:
    from millstream.client.calls import Call
    from millstream.delivery.delivery import pairs
    from millstream.delivery.keys import Keys

    key = Keys(common.key_of(name)).meta
    if backend.execute("TYPE", key) != b"hash":  # somebody else's key, or none
        return {}
    flat: list[bytes] = backend.run(Call(("HGETALL", key), key, list))
    return {field.decode("utf-8", "surrogateescape"): int(value) for field, value in pairs(flat) if value.isdigit()}


# Showing


def _watch(backend: Backend, pattern: str, every_s: float, view: View) -> None:
    """Show the screen until `q`, and react to keys between two looks."""
    from rich.console import Console
    from rich.live import Live

    from millstream.cli.keyboard import Keyboard

    console, look = Console(highlight=False, markup=False), Looking(backend, pattern)
    with Keyboard() as keyboard, Live(console=console, auto_refresh=False, screen=True) as live:
        while not view.is_over:
            lines, now, due = look.lines(), time.strftime("%H:%M:%S"), time.monotonic() + every_s
            while not view.is_over:
                page = max(1, console.height - 3)
                view = view.within(len(view.chosen(lines)), page)
                live.update(screen(lines, view, backend.url, now, page, console.width), refresh=True)
                left = due - time.monotonic()
                if left <= 0:
                    break
                for key in keyboard.keys(left):
                    view = view.key(key, page)


def _print(text: Text) -> None:
    from rich.console import Console

    Console(highlight=False, markup=False, soft_wrap=True).print(text)


def screen(lines: Sequence[TopLine], view: View, url: str, now: str, page: int | None, width: int) -> Text:
    """Return what the terminal shows: a title, the column titles, lines, and on a full screen the keys."""
    from rich.text import Text

    found = view.chosen(lines)
    shown = found if page is None else found[view.first : view.first + page]
    rows = [[_cell(name, getattr(line, name)) for name in COLUMNS] for line in shown]
    widths = [max(map(len, each)) for each in zip(COLUMNS.values(), *rows, strict=True)]
    text = Text(f"millstream top  {printable(url)}  {now}\n", style="bold", no_wrap=page is not None)
    arrow = "↑" if view.is_reversed == (view.sort in ("stream", "group")) else "↓"
    titles = [title + (arrow if name == view.sort and page is not None else "") for name, title in COLUMNS.items()]
    widths = [max(size, len(title)) for size, title in zip(widths, titles, strict=True)]
    text.append(_line(titles, widths) + "\n", style="not bold cyan")
    for line, row in zip(shown, rows, strict=True):
        text.append(_line(row, widths) + "\n", style=f"not bold {colour(line)}")
    if page is None:
        text.rstrip()
        return text
    words = f"  filter: {view.words}{'▏' if view.is_typing else ''}" if view.words or view.is_typing else ""
    last = min(len(found), view.first + page)
    text.append("\n" * (page - len(shown)))
    text.append(
        f"{min(view.first + 1, last)}-{last} of {len(found)}  {HELP_LINE}{printable(words)}", style="not bold dim"
    )
    return text


def colour(line: TopLine) -> str:
    """Return the colour of a line: the worst that it shows."""
    is_unread = bool(line.lag or line.released) and not line.consumers
    if line.dead or is_unread:
        return "red"
    if line.lag or line.waiting or line.released:
        return "yellow"
    return "green" if line.done_rate or line.pending else "default"


def _cell(name: str, value: object) -> str:
    if name == "last_sign_s" and isinstance(value, float):
        return f"{value:.0f} s"
    if value is None or (name == "group" and value == ""):
        return "-"
    return f"{value:,}" if isinstance(value, int | float) else printable(value)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        f"{text:<{size}}" if at < 2 else f"{text:>{size}}"
        for at, (text, size) in enumerate(zip(cells, widths, strict=True))
    ]
    return " ".join(padded).rstrip()
