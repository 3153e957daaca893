"""`millstream export FILE.rdb`: the keys of a server, or of a broker's directory, as a snapshot that Redis loads."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from millstream.cli import common, output
from millstream.cli.data.migrate import reaching
from millstream.cli.exits import Exit, Failure
from millstream.clock import SystemClock
from millstream.engine.keys.keyspace import Keyspace
from millstream.engine.streams.stream import Stream
from millstream.errors import BadFormat, CorruptFile
from millstream.migration import Endpoint, Move
from millstream.migration.copying import no_release
from millstream.migration.progress import Bar
from millstream.migration.streams import released
from millstream.persistence.aof.manifest import read_manifest
from millstream.persistence.aof.replay import Replay
from millstream.persistence.files import ByteSource, RealFiles, write_all
from millstream.persistence.rdb import read_rdb, write_rdb
from millstream.printable import printable
from millstream.server.core.hub import Hub

FORMS: Final = {"redis-8.10": 27, "redis-7.2": 21, "redis-7.0": 19, "valkey": 21}
_DATABASES: Final = 16


@dataclass(slots=True)
class Gathered:
    """What the file will hold."""

    keyspace: Keyspace
    functions: list[bytes] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def export(
    file: Annotated[str, typer.Argument(metavar="FILE", help="RDB file to write.")],
    url: common.Url = None,
    directory: Annotated[
        str | None, typer.Option("--dir", help="Data directory of a broker that does not run, instead of a server.")
    ] = None,
    form: Annotated[
        str, typer.Option("--for", help=f"Server that will load the file: {', '.join(FORMS)}.")
    ] = "redis-8.10",
    yes: common.Yes = False,
    as_json: common.AsJson = False,
) -> None:
    """Write the keys of a server, or of the data directory of a stopped broker, to an RDB file.

    \b
      millstream export backup.rdb
      millstream export backup.rdb --url redis://localhost:7000 --for redis-7.2
      millstream export backup.rdb --dir ./millstream-data --for valkey

    An existing file is overwritten only after confirmation. Servers before Redis 8.8, and Valkey, have no released
    entries: these become pending entries of a consumer named "released". Idempotency records are left out for servers
    that do not know them.

    Exit codes: 0 all keys are in the file, 1 some are not (they are listed) or it could not be written, 2 wrong use,
    3 the files of the directory are damaged.
    """
    if form not in FORMS:
        raise Failure(f"--for: {form!r} is not one of {', '.join(FORMS)}", Exit.USAGE)
    if url is not None and directory is not None:
        raise Failure("--url and --dir: give only one of them", Exit.USAGE)
    if directory is not None and not Path(directory).is_dir():
        raise Failure(f"there is no directory {directory!r}", Exit.USAGE)
    if Path(file).is_dir() or not file:
        raise Failure(f"{file!r} is not a file name", Exit.USAGE)
    if Path(file).exists():
        common.confirm(f"{file!r} exists: overwrite it?", yes=yes)
    with reaching():
        gathered = from_server(common.address(url)) if directory is None else from_directory(Path(directory))
        size = _write(Path(file), gathered, FORMS[form])
    _tell(file, size, gathered, FORMS[form], as_json)
    if gathered.problems:
        raise SystemExit(Exit.FAILED)


# Gathering


def from_server(url: str) -> Gathered:
    """Copy all databases of a server into a broker in this process."""
    if "+cluster" in url.partition("://")[0]:
        databases = [0]
    else:
        (text,) = Endpoint.connect(url).ask_nodes("INFO", "keyspace")
        databases = [int(number) for number in re.findall(rb"^db(\d+):", text, re.MULTILINE)]
    hub = Hub(settings={"databases": str(max([_DATABASES, *(number + 1 for number in databases)]))})
    gathered = Gathered(hub.keyspace)
    try:
        for number in databases:
            with Bar(Console(stderr=True)) as bar:
                source = Endpoint.connect(url, number)
                report = Move(source, Endpoint.of_hub(hub, number), watcher=bar).run()
            gathered.warnings += report.warnings
            gathered.problems += report.problems
    finally:
        hub.close()
    return gathered


def from_directory(directory: Path) -> Gathered:
    """Read the data directory of a broker without changing it; an incomplete last command is left out."""
    files = RealFiles()
    unlock = files.lock(directory)
    try:
        manifest = directory / "appendonlydir" / "appendonly.aof.manifest"
        if files.exists(manifest):
            return _from_log(files, manifest)
        if files.exists(directory / "dump.rdb"):
            return from_snapshot(directory / "dump.rdb")
    finally:
        unlock()
    raise Failure(f"{str(directory)!r} holds no log and no snapshot")


def _from_log(files: RealFiles, manifest: Path) -> Gathered:
    hub = Hub(settings={"databases": str(_DATABASES)})
    gathered = Gathered(hub.keyspace)
    replay = Replay(gathered.keyspace, SystemClock().now_ms(), hub.libraries.replay)
    named = read_manifest(b"".join(files.read(manifest))).replayed
    paths = [manifest.parent / each.name for each in named]
    for at, path in enumerate(paths):
        if not files.exists(path):
            raise CorruptFile(path, 0, "the manifest names this file, but it does not exist")
        found = replay.file(files, path)
        for library in found.functions:
            hub.libraries.replay(0, [b"FUNCTION", b"LOAD", library])
        if found.torn_at is not None:
            if any(files.size(later) for later in paths[at + 1 :]):
                raise CorruptFile(path, found.torn_at, "the last command is incomplete, and other files follow")
            gathered.warnings.append(
                f"the last command of {path} is incomplete and is left out, from offset {found.torn_at}"
            )
    gathered.functions = list(hub.libraries.codes)
    hub.close()
    return gathered


def from_snapshot(path: Path) -> Gathered:
    """Read an RDB file."""
    source = ByteSource(RealFiles().read(path))
    try:
        loaded = read_rdb(source.read, SystemClock().now_ms())
    except BadFormat as error:
        reason = CorruptFile.of(path, error)
        raise Failure(str(reason), Exit.DAMAGED if isinstance(reason, CorruptFile) else Exit.FAILED) from error
    return Gathered(loaded.keyspace, loaded.functions)


# Writing


def _write(path: Path, gathered: Gathered, stream_type: int) -> int:
    """Write a file under another name, sync it, and rename it. Returns its size."""
    files, size = RealFiles(), 0
    unfinished = path.with_name(path.name + ".unfinished")
    handle = files.create(unfinished)

    def write(data: bytes) -> None:
        nonlocal size
        size = write_all(handle, size, data)

    try:
        functions, now_ms = gathered.functions, SystemClock().now_ms()
        write_rdb(gathered.keyspace, write, now_ms=now_ms, stream_type=stream_type, functions=functions)
        handle.sync()
        files.rename(unfinished, path)
    finally:
        handle.close()
        files.remove(unfinished)
    return size


def _tell(file: str, size: int, gathered: Gathered, stream_type: int, as_json: bool) -> None:
    values = [(key, value) for db in gathered.keyspace for key, value in db.values.items()]
    entries = sum(len(value) for _, value in values if isinstance(value, Stream))
    if stream_type < 27:
        for key, value in values:
            gathered.warnings += _released(key, value) if isinstance(value, Stream) else []
    if as_json:
        facts = {"file": file, "bytes": size, "keys": len(values), "entries": entries, "ok": not gathered.problems}
        output.say_json(facts | {"warnings": gathered.warnings, "problems": gathered.problems})
        return
    keys = output.plural(len(values), "key")
    output.say(printable(f"{keys}, {output.plural(entries, 'entry', 'entries')} in {file}, {size} bytes"))
    for warning in gathered.warnings:
        output.say(f"warning: {printable(warning)}")
    for problem in gathered.problems:
        output.say(f"differs: {printable(problem)}")


def _released(key: bytes, stream: Stream) -> list[str]:
    counts = {name: sum(1 for _ in released(stream, name)) for name in stream.groups}
    return [no_release(key, name, count) for name, count in counts.items() if count]
