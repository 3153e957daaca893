"""Is a log, or a snapshot, whole? And if not: where is it damaged, and what can be kept of it?

    check(path)    a directory with a manifest, a manifest, a log file, a snapshot
    fix            cuts the file behind its last whole command, after copying it beside itself

A file is read as it is when it is loaded, but for what its commands would do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millstream.errors import BadFormat, PersistenceError
from millstream.persistence.aof.manifest import Manifest, read_manifest
from millstream.persistence.aof.replay import RDB_MAGICS
from millstream.persistence.aof.scan import Damaged, Scanner, Torn
from millstream.persistence.files import (
    ByteSource,
    Files,
    RealFiles,
    copy_file,
    end_of_content,
    free_name,
    read_between,
)
from millstream.persistence.rdb.file import read_rdb

_NEVER_MS: Final = 0  # no key has expired by then


@dataclass(frozen=True, slots=True)
class Damage:
    """The first thing that is wrong."""

    path: Path
    at: int
    reason: str
    keeps: int | None  # how many bytes a repair would keep; None: it cannot be repaired
    is_torn: bool = False  # only the end is missing: a server cuts it off by itself

    def __str__(self) -> str:
        return f"{self.path} is damaged at offset {self.at}: {self.reason}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found."""

    files: int
    commands: int
    damage: Damage | None = None
    fixed: bool = False
    copy: Path | None = None  # of the damaged file as it was

    @property
    def ok(self) -> bool:
        """Whether everything is whole, now."""
        return self.damage is None or self.fixed

    @property
    def text(self) -> str:
        """The report for people."""
        if self.damage is None:
            return f"whole: {self.files} {'file' if self.files == 1 else 'files'}, {self.commands} commands"
        if self.fixed:
            return f"{self.damage}\nrepaired: cut to {self.damage.keeps} bytes; as it was: {self.copy}"
        if self.damage.keeps is None:
            return f"{self.damage}\nthis cannot be repaired"
        hint = "a server would cut it there by itself" if self.damage.is_torn else "--fix would cut it"
        return f"{self.damage}\n{hint}: {self.damage.keeps} bytes would be kept"


def check(path: Path, *, fix: bool = False, files: Files | None = None) -> CheckReport:
    """Check a directory, a manifest, a log file or a snapshot; with `fix`, repair what can be repaired."""
    files = files or RealFiles()
    report = _check_all(files, path)
    damage = report.damage
    if not fix or damage is None or damage.keeps is None:
        return report
    copy = free_name(files, damage.path, "damaged")
    copy_file(files, damage.path, copy)
    handle = files.open(damage.path)
    try:
        handle.truncate(damage.keeps)
        handle.sync()
    finally:
        handle.close()
    return CheckReport(report.files, report.commands, damage, fixed=True, copy=copy)


check_file = check


def _check_all(files: Files, path: Path) -> CheckReport:
    manifest_path = _manifest_of(files, path)
    if manifest_path is None:
        if not files.exists(path):
            return CheckReport(0, 0, Damage(path, 0, "there is no such file", None))
        return _check_one(files, path, is_last=True)
    try:
        manifest = read_manifest(b"".join(files.read(manifest_path)))
    except PersistenceError as error:
        return CheckReport(1, 0, Damage(manifest_path, 0, str(error), None))
    return _check_log(files, manifest_path.parent, manifest)


def _manifest_of(files: Files, path: Path) -> Path | None:
    """The manifest that a path names or holds."""
    if path.suffix == ".manifest":
        return path
    for name in files.names(path):
        if name.endswith(".manifest"):
            return path / name
        nested = [inner for inner in files.names(path / name) if inner.endswith(".manifest")]
        if nested:
            return path / name / nested[0]
    return None


def _check_log(files: Files, directory: Path, manifest: Manifest) -> CheckReport:
    commands = 0
    paths = [directory / file.name for file in manifest.replayed]
    for at, path in enumerate(paths):
        if not files.exists(path):
            return CheckReport(at, commands, Damage(path, 0, "the manifest names this file, but it is not there", None))
        report = _check_one(files, path, is_last=not any(map(files.size, filter(files.exists, paths[at + 1 :]))))
        commands += report.commands
        if report.damage is not None:
            return CheckReport(at + 1, commands, report.damage)
    return CheckReport(len(paths), commands)


def _check_one(files: Files, path: Path, *, is_last: bool) -> CheckReport:
    start = 0
    try:
        start = _check_preamble(files, path)
    except BadFormat as error:
        return CheckReport(1, 0, Damage(path, error.at or 0, error.what, None))
    return _check_commands(files, path, start, is_last=is_last)


def _check_preamble(files: Files, path: Path) -> int:
    """Read the RDB that a file may begin with; where the commands start."""
    source = ByteSource(files.read(path))
    if not source.starts_with(RDB_MAGICS):
        return 0
    loaded = read_rdb(source.read, _NEVER_MS)
    return source.given - len(loaded.rest)


def _check_commands(files: Files, path: Path, start: int, *, is_last: bool) -> CheckReport:
    commands, whole_until, multi_at = 0, start, None
    end = end_of_content(files, path, start)
    scanner = Scanner(read_between(files, path, start, end), start)
    damage: Damage | None = None
    try:
        for command in scanner:
            name = command.argv[0].upper()
            commands += 1
            if name == b"MULTI" and multi_at is None:
                multi_at = command.start
            elif name == b"EXEC":
                if multi_at is None:
                    reason = "an EXEC without MULTI"
                    return CheckReport(1, commands, Damage(path, command.start, reason, whole_until))
                multi_at = None
            if multi_at is None:
                whole_until = command.end
    except Torn as torn:
        damage = Damage(path, torn.at, "the file ends inside a command", whole_until, is_torn=is_last)
    except Damaged as bad:
        damage = Damage(path, bad.at, bad.reason, whole_until)
    if damage is None and multi_at is None and end < files.size(path):
        damage = Damage(path, end, "zero bytes follow the last command", whole_until, is_torn=is_last)
    if damage is None and multi_at is not None:
        damage = Damage(path, multi_at, "the file ends inside a transaction", whole_until, is_torn=is_last)
    return CheckReport(1, commands, damage)
