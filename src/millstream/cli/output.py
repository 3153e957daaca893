"""What commands print: the only module of the CLI that writes to standard output and standard error.

    records     on a terminal a table, in a pipe one record a line, with --json one JSON list
    one answer  its fields below each other, with --json one JSON object
    say, warn   a line on standard output, on standard error

Everything passes `printable`: what came from data cannot control the terminal or break a line.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TextIO

from millstream.printable import printable, printable_lines

GAP: Final = "  "  # between the columns of a table
LONG: Final = frozenset({"error"})  # columns that may be cut to fit a terminal; ids and names never are


class Unwritable(Exception):
    """Standard output takes nothing more: its reader has ended, or its disk is full."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
        self.is_reader_gone = isinstance(error, BrokenPipeError)


def say(text: str) -> None:
    """Print text on standard output."""
    _write(sys.stdout, printable_lines(text))


def warn(text: str) -> None:
    """Print text on standard error, each line behind the program's name."""
    for line in text.splitlines():
        _write(sys.stderr, f"millstream: {printable_lines(line)}")


def say_json(value: object) -> None:
    """Print a value as one line of JSON."""
    say(to_json(value))


def write(text: str) -> None:
    """Print a piece of a line on standard output."""
    _write(sys.stdout, printable_lines(text), end="")


def to_json(value: object) -> str:
    """Return a value as JSON in ASCII: bytes and unknown types become text."""
    return json.dumps(value, default=_plain).replace("\x7f", "\\u007f")


def show(rows: Iterable[Any], columns: Sequence[str], *, as_json: bool, empty: str) -> None:
    """Print dataclasses or dicts: these columns for people and pipes, all fields as a JSON list."""
    found = [row if isinstance(row, dict) else dataclasses.asdict(row) for row in rows]
    if as_json:
        say_json(found)
    elif not found:
        warn(empty)
    elif is_terminal():
        say(table(found, columns, width()))
    else:
        for row in found:
            say(record([row.get(column) for column in columns]))


def show_one(value: Any, *, as_json: bool) -> None:
    """Print one answer: its fields below each other, or as a JSON object."""
    fields = value if isinstance(value, dict) else dataclasses.asdict(value)
    if as_json:
        say_json(fields)
        return
    indent = max(map(len, fields)) + len(GAP)
    for name, content in fields.items():
        text = printable_lines(content) if isinstance(content, str) else cell(content)
        say(f"{name.replace('_', ' '):<{indent}}" + text.replace("\n", "\n" + " " * indent))


def record(values: Sequence[object]) -> str:
    """Return values as one line for a pipe: full, separated by tabs, "-" for what is empty or unknown."""
    return "\t".join(cell(value) for value in values)


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], most: int) -> str:
    """Return rows as a table; only columns in LONG are cut, so a line may be longer than the terminal is wide."""
    from rich.cells import cell_len, set_cell_size

    titles = [column.replace("_", " ") for column in columns]
    texts = [[cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(map(cell_len, each)) for each in zip(titles, *texts, strict=True)]
    rest = most - sum(widths) - len(GAP) * (len(columns) - 1)
    numbers = [isinstance(rows[0].get(column), int | float) for column in columns]
    lines = []
    for line in [titles, *texts]:
        cells = []
        for place, text in enumerate(line):
            size = widths[place]
            if columns[place] in LONG and rest < 0:
                size = max(12, size + rest)
                text = text if cell_len(text) <= size else set_cell_size(text, size - 1) + "…"
            padding = " " * (size - cell_len(text))
            cells.append(padding + text if numbers[place] else text + padding)
        lines.append(GAP.join(cells).rstrip())
    return "\n".join(lines)


def cell(value: object) -> str:
    """Return a value as it stands in a table or a record: "-" if it is empty or unknown."""
    return "-" if value is None or value == "" else printable(value)


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def width() -> int:
    """Return the number of columns of the terminal."""
    try:
        return int(os.environ.get("COLUMNS") or os.get_terminal_size(sys.stdout.fileno()).columns)
    except (OSError, ValueError):
        return 80


def plural(count: int, word: str, many: str | None = None) -> str:
    """Return a number with its noun: 1 entry, 2 entries."""
    return f"{count} {word if count == 1 else many or word + 's'}"


def _write(stream: TextIO | None, text: str, end: str = "\n") -> None:
    if stream is None:  # it was closed before the program began
        return
    try:
        print(text, end=end, file=stream, flush=True)
    except OSError as error:
        raise Unwritable(error) from error


def _plain(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes | bytearray) else str(value)
