"""`millstream import FILE.rdb`: the keys of a snapshot into a running server."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import redis
from rich.console import Console

from millstream.cli.common import address, confirm
from millstream.cli.data.exporting import Gathered, from_snapshot
from millstream.cli.data.migrate import reaching, show, show_plan
from millstream.cli.exits import Failure
from millstream.migration import Endpoint, Move, Options, Report
from millstream.migration.progress import Bar
from millstream.server.core.hub import Hub

HELP: Final = """Put the keys of an RDB file, written by Redis, Valkey or this broker, into a running server.

\b
  millstream import dump.rdb
  millstream import dump.rdb --url redis://localhost:7000 --replace

Keys go into the database they were in. One that is there already is left alone and listed, unless --replace is given,
which asks first. --dry-run only says what would be done. Without --url the server is that of MILLSTREAM_URL.
The server may be an older one than the file is from: streams go in the newest form that it takes.

Exit codes: 0 all is there and verified, 1 something is not (see the list), 2 wrong use, 3 the file is damaged.
"""


def import_file(file: str, *, url: str | None, replace: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Load a file, move what is in it, tell what came of it."""
    path = Path(file)
    if not path.is_file():
        raise Failure(f"there is no file {file}")
    target, options = address(url), Options(replace=replace)
    with reaching():
        gathered = from_snapshot(path)
        if dry_run or (replace and not yes):
            looked = _move_all(gathered, target, options, is_look=True)
        if dry_run:
            show_plan(looked, replace=replace, as_json=as_json)
            return
        if replace and not yes and looked.existing:
            confirm(f"Overwrite {len(looked.existing)} keys on the server?", yes=False)
        report = _move_all(gathered, target, options)
    show(report, as_json=as_json)


def _move_all(gathered: Gathered, url: str, options: Options, *, is_look: bool = False) -> Report:
    """Every database that has keys, from a broker in this process to the one of the same number; or only look."""
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
    """Databases may have keys of the same name: only their counts are added up."""
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
    """Load function libraries on every node; warnings for those that are refused."""
    warnings = []
    target = Endpoint.connect(url)
    for library in libraries:
        try:
            target.ask_nodes("FUNCTION", "LOAD", library)
        except redis.ResponseError as error:
            warnings.append(f"a function library was not loaded: {error}")
    return warnings
