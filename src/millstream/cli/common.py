"""Where the streams are that a command is about, and how its answers are shown: as a table, or as JSON for scripts."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from millstream.cli.exits import Exit, Failure
from millstream.client import Backend, connect

DEFAULT_URL = "redis://127.0.0.1:6379"

Url = Annotated[str | None, typer.Option("--url", help=f"Where the streams are (MILLSTREAM_URL, or {DEFAULT_URL}).")]
AsJson = Annotated[bool, typer.Option("--json", help="Answer as JSON.")]
Group = Annotated[str, typer.Option("--group", help="The group.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


def address(url: str | None) -> str:
    return url or os.environ.get("MILLSTREAM_URL") or DEFAULT_URL


def opened(url: str | None) -> Backend:
    """The place that the command line, the environment or the default names."""
    return connect(address(url))


def show(rows: Iterable[Any], columns: Sequence[str], *, as_json: bool, empty: str) -> None:
    """Dataclass rows as a table of these columns, or all of them as a JSON list."""
    found = [dataclasses.asdict(row) for row in rows]
    if as_json:
        print(json.dumps(found, default=_plain))
        return
    if not found:
        print(empty)
        return
    table = Table(box=None, pad_edge=False)
    for column in columns:
        is_number = isinstance(found[0].get(column), int | float)
        table.add_column(column.replace("_", " "), justify="right" if is_number else "left", overflow="fold")
    for row in found:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    Console(soft_wrap=False).print(table)


def show_one(value: Any, *, as_json: bool) -> None:
    """One answer: its fields below each other, or as a JSON object."""
    fields = value if isinstance(value, dict) else dataclasses.asdict(value)
    if as_json:
        print(json.dumps(fields, default=_plain))
        return
    width = max(map(len, fields))
    for name, content in fields.items():
        print(f"{name.replace('_', ' '):<{width}}  {_cell(content)}")


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone; without a terminal only --yes says yes."""
    if yes:
        return
    if not os.isatty(0):
        raise Failure(f"{question} Say --yes: there is nobody here to ask.", Exit.USAGE)
    if not typer.confirm(question):
        raise Failure("left as it is")


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)


def _plain(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
