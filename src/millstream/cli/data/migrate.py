"""`millstream migrate SOURCE TARGET`: a server's keys to another server; and how what came of a move is told."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis
from rich.console import Console
from rich.text import Text

from millstream.cli.common import confirm
from millstream.cli.exits import Exit, Failure
from millstream.migration import Endpoint, Move, Options, Report
from millstream.migration.copying import name_of
from millstream.migration.place import shown
from millstream.migration.progress import Bar
from millstream.migration.resume import Notes

HELP: Final = """Copy all keys of a server to another one: Redis from 6.2 on, Valkey, a cluster, or this broker.

\b
  millstream migrate redis://localhost:6379 redis://localhost:7000
  millstream migrate redis://localhost:6379 redis+cluster://:PASSWORD@node1:6379 --match 'orders*'

Addresses: redis://, rediss:// (TLS), unix:// (a socket), redis+cluster://, rediss+cluster://, with redis-py's options.

Streams keep their ids, counters, groups, consumers, and pending entries with owner, count, time and released zone. A
target that knows no XNACK gets released entries as pending entries of a consumer named "released"; that is warned of.
Streams that are copied entry by entry (long ones, or when no payload is understood) lose pending entries whose entry is
gone; they are counted. When a consumer was last seen is lost then, too.

--replace asks before keys are overwritten (--yes does not); --dry-run only says what would be done.

What is done is noted in a file: a move that was broken off goes on when it is started again in the same way. The
source may be written to meanwhile: what came later is picked up in a second pass. Stop whoever reads in groups before
that, because nothing tells of acknowledgements. At the end both sides are read and compared.

Exit codes: 0 all is there and the same, 1 something is not (see the list), 2 wrong use.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the command line asks for."""

    match: str | None = None
    db: int | None = None
    replace: bool = False
    dry_run: bool = False
    by_entries: bool = False
    state: str | None = None
    yes: bool = False
    as_json: bool = False


def migrate(source: str, target: str, wishes: Wishes) -> None:
    """Move keys, tell what came of it, and end with 1 if something is missing."""
    about = {"source": shown(source), "target": shown(target), "db": wishes.db, "match": wishes.match}
    options = Options(match=wishes.match, replace=wishes.replace, by_entries=wishes.by_entries)
    notes = Notes(_state_path(wishes.state, about), about)
    with reaching():
        places = Endpoint.connect(source, wishes.db), Endpoint.connect(target, wishes.db)
        if wishes.replace and not (wishes.dry_run or wishes.yes):
            _ask(Move(*places, options, notes=notes))
        with Bar(Console(stderr=True)) as bar:
            move = Move(*places, options, notes=notes, watcher=bar)
            report = _going_on(move, notes) if not wishes.dry_run else move.look()
    if wishes.dry_run:
        show_plan(report, replace=wishes.replace, as_json=wishes.as_json)
    else:
        show(report, as_json=wishes.as_json)


def _ask(move: Move) -> None:
    """Ask before keys are overwritten, if there are any."""
    existing = move.look().existing
    if existing:
        names = ", ".join(map(name_of, existing[:5])) + (", …" if len(existing) > 5 else "")
        confirm(f"Overwrite {len(existing)} keys on the target ({names})?", yes=False)


def _state_path(named: str | None, about: dict[str, Any]) -> Path:
    """The file that was named, or one in this directory that no other move has."""
    if named is not None:
        return Path(named)
    mark = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:8]
    return Path(f"millstream-migrate-{mark}.json")


def _going_on(move: Move, notes: Notes) -> Report:
    """Run a move; whatever breaks it off, say how to go on."""
    try:
        return move.run()
    except (redis.RedisError, OSError) as error:
        raise Failure(f"{error}\nstart it again to go on: what is done is noted in {notes.path}") from error


@contextmanager
def reaching() -> Iterator[None]:
    """Tell what a server answers with, or that it does not, in one line."""
    try:
        yield
    except redis.RedisError as error:
        raise Failure(str(error)) from error
    except OSError as error:
        raise Failure(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error


# What came of it


def show(report: Report, *, as_json: bool) -> None:
    """Print a report; the end of the process with 1 if something is wrong."""
    if as_json:
        print(json.dumps(facts(report)))
    else:
        _print(report)
    if not report.is_good:
        raise SystemExit(Exit.FAILED)


def facts(report: Report) -> dict[str, Any]:
    """A report for programs."""
    return {
        "ok": report.is_good,
        "keys": report.copied,
        "kinds": report.found.by_kind,
        "entries": report.found.entries,
        "whole": report.whole,
        "resumed": report.resumed,
        "resumed_at": report.resumed_at,
        "caught_up": report.caught_up,
        "existing": list(map(name_of, report.existing)),
        "ghosts": report.ghosts,
        "warnings": report.warnings,
        "problems": report.problems,
    }


def _print(report: Report) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if report.resumed or report.resumed_at:
        where = f", went on with {report.resumed_at}" if report.resumed_at else ""
        console.print(Text(f"{report.resumed} keys were there from an earlier run{where}"))
    console.print(Text(f"{report.copied} keys copied ({_kinds(report)}), {report.found.entries} entries"))
    if report.caught_up:
        console.print(Text(f"{report.caught_up} keys had changed meanwhile and were brought up to date"))
    if report.ghosts:
        console.print(Text(f"{report.ghosts} pending entries stay behind: their entries are gone from the stream"))
    for warning in report.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))
    for problem in report.problems:
        console.print(Text(f"differs: {problem}", style="red"))
    if report.is_good:
        console.print(Text("verified: counts, ids, checksums, groups and pending entries are the same", style="green"))


def _kinds(report: Report) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in report.found.by_kind.items()) or "none"


def show_plan(report: Report, *, replace: bool, as_json: bool) -> None:
    """Print what would be copied."""
    if as_json:
        print(json.dumps(facts(report)))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(f"{len(report.found.kinds)} keys ({_kinds(report)}), {report.found.entries} entries"))
    fate = "would be replaced" if replace else "are in the way (--replace overwrites them)"
    if report.existing:
        console.print(Text(f"{len(report.existing)} keys are on the target already and {fate}"))
    console.print(Text("nothing was changed"))
