"""`millstream migrate SOURCE TARGET`: copy a server's keys to another server; and the report of a move."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import redis
import typer
from rich.console import Console

from millstream.cli import common, output
from millstream.cli.exits import Exit, Failure
from millstream.cli.output import plural
from millstream.migration import Endpoint, Move, Options, Report
from millstream.migration.copying import name_of
from millstream.migration.moving import in_the_way
from millstream.migration.place import shown
from millstream.migration.progress import Bar
from millstream.migration.resume import Notes
from millstream.printable import printable


def migrate(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="URL of the server to copy from.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="URL of the server to copy to.")],
    match: Annotated[str | None, typer.Option("--match", help="Only keys that match this glob pattern.")] = None,
    db: Annotated[int | None, typer.Option("--db", help="Database on both servers.", min=0, max=common.MOST)] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite keys that exist on the target.")] = False,
    dry_run: common.DryRun = False,
    by_entries: Annotated[
        bool, typer.Option("--by-entries", help="Copy streams by commands only, never as one payload.")
    ] = False,
    state: Annotated[str | None, typer.Option("--state", help="File that keeps the progress.")] = None,
    yes: common.Yes = False,
    as_json: common.AsJson = False,
) -> None:
    """Copy all keys of a server to another one: Redis from 6.2 on, Valkey, a cluster, or this broker.

    \b
      millstream migrate redis://localhost:6379 redis://localhost:7000
      millstream migrate redis://localhost:6379 redis+cluster://:PASSWORD@node1:6379 --match 'orders*'

    URLs: redis://, rediss:// (TLS), unix:// (a socket), redis+cluster://, rediss+cluster://, with redis-py's options.

    Streams keep their ids, counters, groups, consumers, and pending entries with owner, count, time and released zone.
    A target without XNACK gets released entries as pending entries of a consumer named "released"; a warning says so.
    Streams that are copied entry by entry (long ones, or when the target understands no payload) lose pending entries
    whose entry is gone (they are counted) and the time when a consumer was last seen.

    --replace asks before keys are overwritten, unless --yes is given. --dry-run prints what would be copied and ends
    as the real run would.

    Progress is kept in a file: an interrupted run continues when it is started again with the same arguments. Writers
    may keep appending to the source: a second pass copies what came meanwhile. Stop group readers before that, because
    acknowledgements leave no trace to copy. At the end both servers are read and compared.

    Exit codes: 0 all keys are there and equal, 1 some are not (they are listed), 2 wrong use.
    """
    with reaching():
        endpoints = Endpoint.connect(source, db), Endpoint.connect(target, db)
        _refuse_same(*endpoints)
        about = {"source": shown(source), "target": shown(target), "db": db, "match": match}
        notes = Notes(_state_path(state, about), about)
        options = Options(match=match, replace=replace, by_entries=by_entries)
        if replace and not (dry_run or yes):
            _ask(Move(*endpoints, options, notes=notes))
        with Bar(Console(stderr=True)) as bar:
            move = Move(*endpoints, options, notes=notes, watcher=bar)
            report = _continue(move, notes) if not dry_run else move.look()
    if dry_run:
        show_plan(report, replace=replace, as_json=as_json)
    else:
        show(report, as_json=as_json)


def _refuse_same(source: Endpoint, target: Endpoint) -> None:
    """Raise if both URLs lead to the same keys, whatever they look like."""
    if source.is_same(target):
        raise Failure(f"source and target are the same server: {source.name} and {target.name}", Exit.USAGE)


def _ask(move: Move) -> None:
    """Ask before keys are overwritten, if there are any."""
    existing = move.look().existing
    if existing:
        names = ", ".join(map(name_of, existing[:5])) + (", …" if len(existing) > 5 else "")
        common.confirm(f"Overwrite {plural(len(existing), 'key')} on the target ({names})?", yes=False)


def _state_path(named: str | None, about: dict[str, Any]) -> Path:
    """Return the file that was named, or one in this directory that belongs to this move only."""
    if named is not None:
        return Path(named)
    mark = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:8]
    return Path(f"millstream-migrate-{mark}.json")


def _continue(move: Move, notes: Notes) -> Report:
    """Run a move; if it fails, say how to continue."""
    try:
        return move.run()
    except (redis.RedisError, OSError) as error:
        raise Failure(f"{error}\nstart it again to continue: its progress is kept in {notes.path}") from error


@contextmanager
def reaching() -> Iterator[None]:
    """Report an error of a server or of a file in one line."""
    try:
        yield
    except redis.RedisError as error:
        raise Failure(str(error)) from error
    except OSError as error:
        raise Failure(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error


# The result


def show(report: Report, *, as_json: bool) -> None:
    """Print a report; exit code 1 if something is wrong."""
    if as_json:
        output.say_json(facts(report))
    else:
        _print(report)
    if not report.is_good:
        raise SystemExit(Exit.FAILED)


def facts(report: Report) -> dict[str, Any]:
    """Return a report as JSON has it."""
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
    if report.resumed or report.resumed_at:
        where = f", continued with {report.resumed_at}" if report.resumed_at else ""
        output.say(printable(f"an earlier run had copied {plural(report.resumed, 'key')}{where}"))
    entries = plural(report.found.entries, "entry", "entries")
    output.say(f"{plural(report.copied, 'key')} copied ({_kinds(report)}), {entries}")
    if report.caught_up:
        output.say(f"{plural(report.caught_up, 'key')} changed meanwhile and copied again")
    if report.ghosts:
        ghosts = plural(report.ghosts, "pending entry", "pending entries")
        output.say(f"{ghosts} not copied: the entry itself is gone from the stream")
    _print_list("warning", report.warnings)
    _print_list("differs", report.problems)
    if report.is_good:
        output.say("verified: counts, ids, checksums, groups and pending entries are equal")


def _print_list(what: str, texts: list[str]) -> None:
    for text in texts:
        output.say(f"{what}: {printable(text)}")


def _kinds(report: Report) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in report.found.by_kind.items()) or "none"


def show_plan(report: Report, *, replace: bool, as_json: bool) -> None:
    """Print what would be copied; exit code 1 if the real run would fail, with its words."""
    if not replace:
        report.problems += [in_the_way(key) for key in report.existing]
    if as_json:
        output.say_json(facts(report))
    else:
        entries = plural(report.found.entries, "entry", "entries")
        output.say(f"{plural(len(report.found.kinds), 'key')} ({_kinds(report)}), {entries}")
        if report.existing and replace:
            output.say(f"{plural(len(report.existing), 'key')} on the target would be replaced")
        _print_list("warning", report.warnings)
        _print_list("differs", report.problems)
        output.say("nothing was changed")
    if not report.is_good:
        raise SystemExit(Exit.FAILED)
