"""`millstream holds`: what queries keep in streams, and letting it go."""

from __future__ import annotations

from typing import Annotated

import typer

from millstream.cli import common, output
from millstream.cli.exits import Exit, Failure
from millstream.client import Backend
from millstream.delivery import inspect
from millstream.delivery.holds import Hold, holds_of, release_hold
from millstream.delivery.keys import Keys
from millstream.delivery.steps import Steps
from millstream.printable import printable

Pattern = Annotated[str, typer.Argument(metavar="PATTERN", help="A stream, or a glob pattern of streams.")]
Release = Annotated[
    str | None, typer.Option("--release", metavar="QUERY", help="End what this query keeps. It must not be running.")
]


def holds(
    pattern: Pattern = "*", release: Release = None, url: common.Url = None, as_json: common.AsJson = False
) -> None:
    """List what queries keep in streams until their batch is over, or end it for a query that will not come back.

    A query that is started again needs its hold: without it, its last batch lacks the entries that were settled.
    """
    with common.opened(url) as backend:
        found = [hold for name in inspect.stream_names(backend, pattern) for hold in current_holds(backend, name)]
        if release is None:
            columns = ("stream", "query", "first", "age_s", "quiet_s")
            output.show(found, columns, as_json=as_json, empty="no query keeps anything")
            return
        chosen = [hold for hold in found if hold.query == release]
        if not chosen:
            raise Failure(f"no query {release!r} keeps anything in {pattern!r}", Exit.USAGE)
        for hold in chosen:
            removed = release_hold(backend, _steps(backend, hold.stream), hold)
            output.say(f"{printable(hold.stream)}: released; {output.plural(removed, 'entry', 'entries')} removed")


def current_holds(backend: Backend, stream: str) -> list[Hold]:
    """Return the holds of a stream, by the server's clock."""
    return holds_of(backend, stream, backend.run(_steps(backend, stream).server_time()))


def _steps(backend: Backend, stream: str) -> Steps:
    groups = inspect.group_states(backend, stream)
    group = groups[0].name if groups else ""
    keys = Keys(stream.encode("utf-8", "surrogateescape"))
    return Steps(keys, group.encode("utf-8", "surrogateescape"), backend.capabilities)
