"""`millstream import FILE.rdb`: load the keys of a snapshot into a running server."""

from __future__ import annotations

from typing import Annotated

import redis
import typer
from rich.console import Console

from millstream.cli import common
from millstream.cli.data.exporting import Gathered, from_snapshot
from millstream.cli.data.migrate import reaching, show, show_plan
from millstream.cli.output import plural
from millstream.migration import Endpoint, Move, Options, Report
from millstream.migration.progress import Bar
from millstream.server.core.hub import Hub


def import_file(
    file: Annotated[str, typer.Argument(metavar="FILE", help="RDB file to read.")],
    url: common.Url = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite keys that exist on the server.")] = False,
    dry_run: common.DryRun = False,
    yes: common.Yes = False,
    as_json: common.AsJson = False,
) -> None:
    """Load the keys of an RDB file, written by Redis, Valkey or this broker, into a running server.

    \b
      millstream import dump.rdb
      millstream import dump.rdb --url redis://localhost:7000 --replace

    Keys go to the database that they come from. A key that exists on the server is left alone and listed; with
    --replace it is overwritten, after confirmation. --dry-run prints what would be loaded and ends as the real run
    would. The server may be older than the one that wrote the file: streams go in the newest form that it takes.

    Exit codes: 0 all keys are there and verified, 1 some are not (they are listed), 2 wrong use, 3 the file is damaged.
    """
    path = common.require_file(file)
    target, options = common.address(url), Options(replace=replace)
    with reaching():
        gathered = from_snapshot(path)
        if dry_run or (replace and not yes):
            looked = _move_all(gathered, target, options, is_look=True)
        if dry_run:
            show_plan(looked, replace=replace, as_json=as_json)
            return
        if replace and not yes and looked.existing:
            common.confirm(f"Overwrite {plural(len(looked.existing), 'key')} on the server?", yes=False)
        report = _move_all(gathered, target, options)
    show(report, as_json=as_json)


def _move_all(gathered: Gathered, url: str, options: Options, *, is_look: bool = False) -> Report:
    """Copy every database that has keys to the database of the same number, or only look what would happen."""
    total = Report()
    hub = Hub(keyspace=gathered.keyspace)
    try:
        for database in gathered.keyspace:
            if database.values:
                target = Endpoint.connect(url, database.index)
                with Bar(Console(stderr=True)) as bar:
                    move = Move(Endpoint.of_hub(hub, database.index), target, options, watcher=bar)
                    _add(total, move.look() if is_look else move.run())
        if not is_look:
            total.warnings += _load_functions(gathered.functions, url)
    finally:
        hub.close()
    return total


def _add(total: Report, report: Report) -> None:
    """Add a report to the total. Databases may have keys of the same name, so only counts are added."""
    number = len(total.found.kinds)
    for place, (key, kind) in enumerate(report.found.kinds.items()):
        name = key if key not in total.found.kinds else b"%d:%s" % (number + place, key)
        total.found.kinds[name] = kind
        if key in report.found.lengths:
            total.found.lengths[name] = report.found.lengths[key]
    total.copied += report.copied
    total.whole += report.whole
    total.ghosts += report.ghosts
    total.existing += report.existing
    total.warnings += report.warnings
    total.problems += report.problems


def _load_functions(libraries: list[bytes], url: str) -> list[str]:
    """Load function libraries on every node. Returns warnings for those that are refused."""
    warnings = []
    target = Endpoint.connect(url)
    for library in libraries:
        try:
            target.ask_nodes("FUNCTION", "LOAD", library)
        except redis.ResponseError as error:
            warnings.append(f"a function library was not loaded: {error}")
    return warnings
