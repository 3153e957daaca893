"""What commands share: their options, the server that they talk to, and questions before something is lost."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.exits import Exit, Failure
from millstream.printable import printable_lines

if TYPE_CHECKING:
    from millstream.client import Backend

DEFAULT_URL = "redis://127.0.0.1:6379"
MOST = 2**31 - 1


def finite(value: float | None) -> float | None:
    """Refuse nan and inf, which no comparison catches."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


Url = Annotated[
    str | None, typer.Option("--url", help=f"URL of the server. Default: MILLSTREAM_URL, else {DEFAULT_URL}.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Group = Annotated[
    str | None, typer.Option("--group", help="Consumer group. Default: the only group of the stream, else workers.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done and change nothing.")]
StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")]


def address(url: str | None) -> str:
    """Return the URL of the command line, of the environment, or the default."""
    return url or os.environ.get("MILLSTREAM_URL") or DEFAULT_URL


def origin(url: str | None) -> str:
    """Return where the URL comes from, for people who wonder why this server was asked."""
    if url:
        return "from --url"
    return (
        "from MILLSTREAM_URL" if os.environ.get("MILLSTREAM_URL") else "the default; --url or MILLSTREAM_URL changes it"
    )


def opened(url: str | None) -> Backend:
    """Connect to the server that the command line, the environment or the default names; errors say which of them."""
    from millstream.client import connect
    from millstream.errors import Unavailable

    try:
        return connect(address(url))
    except Unavailable as error:
        raise Unavailable(f"{error} ({origin(url)})") from error


def key_of(name: str) -> bytes:
    """Return a name of the command line as a key, byte by byte as it was typed."""
    if not name:
        raise Failure("the name of a stream cannot be empty", Exit.USAGE)
    return name.encode("utf-8", "surrogateescape")


def require_file(name: str, *, pipes: bool = False) -> Path:
    """Return the path of a file that exists; the same error and exit code for every command.

    `pipes`: a named pipe or a device will do too, such as the `/dev/fd/63` of a shell's `<(command)`.
    """
    path = Path(name)
    if not path.is_file() and not (pipes and path.exists() and not path.is_dir()):
        raise Failure(f"there is no file {name!r}" if not path.exists() else f"{name!r} is not a file", Exit.USAGE)
    return path


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone; without a terminal only --yes confirms."""
    if yes:
        return
    if not os.isatty(0):
        raise Failure(f"{question} Confirm with --yes: there is no terminal to ask on.", Exit.USAGE)
    if not typer.confirm(printable_lines(question)):
        raise Failure("cancelled; nothing was changed")
