"""Check whether a log or a snapshot is whole, where it is damaged, and how much can be kept.

    check(path)    a directory with a log or a snapshot, a manifest, a log file, a snapshot
    fix            cuts the file after its last whole command, after copying it beside itself

A file is read as it is when it is loaded, but for what its commands would do. A directory that a broker has locked is
read as it is at this moment: its last command may still be on its way. Only `fix` is refused there; it holds the lock
itself. A file that is neither a log nor a snapshot is named, and never changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from millstream.errors import BadFormat, NewerFormat, PersistenceError
from millstream.persistence.aof.manifest import Manifest, read_manifest
from millstream.persistence.aof.recognize import why_foreign
from millstream.persistence.aof.replay import RDB_MAGICS, is_known
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
_MOST_TRIES: Final = 100  # tries for a log whose files are replaced while it is read


@dataclass(frozen=True, slots=True)
class Damage:
    """The first damage in a file."""

    path: Path
    at: int
    reason: str
    keeps: int | None  # the bytes that a repair would keep; None: it cannot be repaired
    is_torn: bool = False  # only the end is missing: a server cuts it off by itself
    is_missing: bool = False  # the file is not there

    def __str__(self) -> str:
        return f"{self.path} is damaged at offset {self.at}: {self.reason}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a check."""

    files: int
    commands: int
    damage: Damage | None = None
    fixed: bool = False
    copy: Path | None = None  # of the damaged file as it was
    foreign: str | None = None  # why there is nothing to check: not ours, or of a newer version
    in_use: str | None = None  # the process that has locked the directory; nothing was changed
    unfinished_at: int | None = None  # of a log in use: the offset of a command that is not complete yet

    @property
    def ok(self) -> bool:
        """Return whether everything is whole now."""
        return self.foreign is None and (self.damage is None or self.fixed)

    @property
    def text(self) -> str:
        """Return the report as text."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        damage = self.damage
        if self.in_use is not None:
            yield f"in use by {self.in_use}: this is how it was a moment ago"
        if self.foreign is not None:
            yield self.foreign
        elif damage is None:
            yield f"whole: {self.files} {'file' if self.files == 1 else 'files'}, {self.commands} commands"
            if self.unfinished_at is not None:
                yield f"the command at offset {self.unfinished_at} is being written"
        else:
            yield str(damage)
            if self.fixed:
                yield f"repaired: cut to {damage.keeps} bytes; as it was: {self.copy}"
            elif damage.keeps is None:
                yield "this cannot be repaired"
            else:
                hint = "a server would cut it there by itself" if damage.is_torn else "--fix would cut it"
                yield f"{hint}: {damage.keeps} bytes would be kept"


def check(
    path: Path,
    *,
    fix: bool = False,
    files: Files | None = None,
    agree: Callable[[Damage, int], None] = lambda damage, size: None,
) -> CheckReport:
    """Check a directory, a manifest, a log file or a snapshot; with `fix`, repair what can be repaired.

    `agree` is called with the damage and the size of its file before that is changed, and raises what keeps it from
    that. PersistenceError: the directory is in use, which keeps `fix` from anything.
    """
    files = files or RealFiles()
    if not fix:
        return _look(files, path)
    with _locked(files, path):
        report = _check_all(files, path)
        damage = report.damage
        if damage is None or damage.keeps is None:
            return report
        agree(damage, files.size(damage.path))
        return replace(report, fixed=True, copy=_repair(files, damage.path, damage.keeps))


check_file = check


def _repair(files: Files, path: Path, keeps: int) -> Path:
    """Cut a file; returns the copy of what it was."""
    copy = free_name(files, path, "damaged")
    try:
        copy_file(files, path, copy)
    except OSError as error:
        raise PersistenceError(f"the copy {copy} cannot be written, nothing was changed: {error.strerror}") from error
    handle = files.open(path)
    try:
        handle.truncate(keeps)
        handle.sync()
    finally:
        handle.close()
    return copy


# Locks


def _lock_directories(files: Files, path: Path) -> list[Path]:
    """Return the directories whose lock may cover a path: its own, and the parent for files in `appenddirname`."""
    path = files.resolve(path)
    directory = path if files.is_directory(path) else path.parent
    return [directory, directory.parent]


@contextlib.contextmanager
def _locked(files: Files, path: Path) -> Iterator[None]:
    """Lock brokers out. A file outside of every directory that a broker has opened needs no lock."""
    directories = [each for each in _lock_directories(files, path) if files.is_locked_by(each) is not None]
    with contextlib.ExitStack() as stack:
        for directory in directories:
            stack.callback(files.lock(directory))
        yield


def _look(files: Files, path: Path) -> CheckReport:
    """Check without changing anything. An unfinished command of a running broker is not damage."""
    holders = [files.is_locked_by(each) for each in _lock_directories(files, path)]
    in_use = next(filter(None, holders), None)
    report = _check_all(files, path)
    if in_use is None:
        return report
    for _ in range(_MOST_TRIES):
        missing = report.damage
        if missing is None or not missing.is_missing:
            break
        report = _check_all(files, path)
        if report.damage == missing:
            break
        # A rewrite has replaced the files that the manifest named, so check again.
    if report.damage is not None and report.damage.is_torn:
        report = replace(report, damage=None, unfinished_at=report.damage.keeps)
    return replace(report, in_use=in_use)


# Checking


def _check_all(files: Files, path: Path) -> CheckReport:
    manifest_path = _manifest_of(files, path)
    if manifest_path is not None:
        return _check_manifest(files, manifest_path)
    if not files.is_directory(path):
        return _check_lone(files, path)
    snapshots = [path / name for name in files.names(path) if name.endswith(".rdb")]
    if not snapshots:
        return CheckReport(0, 0, foreign=f"{path} holds no log and no snapshot: nothing was checked")
    reports = [_check_lone(files, each) for each in snapshots]
    first_bad = next((report for report in reports if not report.ok), reports[0])
    return replace(first_bad, files=len(reports))


def _manifest_of(files: Files, path: Path) -> Path | None:
    """Return the manifest that a path names or contains."""
    if path.suffix == ".manifest":
        return path
    for name in files.names(path):
        if name.endswith(".manifest"):
            return path / name
        nested = [inner for inner in files.names(path / name) if inner.endswith(".manifest")]
        if nested:
            return path / name / nested[0]
    return None


def _check_manifest(files: Files, path: Path) -> CheckReport:
    try:
        manifest = read_manifest(b"".join(files.read(path)))
    except PersistenceError as error:
        return CheckReport(1, 0, Damage(path, 0, str(error), None))
    return _check_log(files, path.parent, manifest)


def _check_log(files: Files, directory: Path, manifest: Manifest) -> CheckReport:
    commands = 0
    paths = [directory / file.name for file in manifest.replayed]
    for at, path in enumerate(paths):
        try:
            followers = [later for later in paths[at + 1 :] if files.exists(later) and files.size(later)]
            report = _check_one(files, path, is_last=not followers)
        except FileNotFoundError:
            missing = Damage(path, 0, "the manifest names this file, but it does not exist", None, is_missing=True)
            return CheckReport(at, commands, missing)
        commands += report.commands
        if not report.ok:
            return replace(report, files=at + 1, commands=commands)
    return CheckReport(len(paths), commands)


def _check_lone(files: Files, path: Path) -> CheckReport:
    """Check a file that no manifest names."""
    if not files.exists(path):
        return CheckReport(0, 0, Damage(path, 0, "there is no such file", None))
    why = why_foreign(files, path)
    if why is not None:
        return CheckReport(0, 0, foreign=f"{path} is neither a log nor a snapshot, {why}: nothing was checked")
    return _check_one(files, path, is_last=True)


def _check_one(files: Files, path: Path, *, is_last: bool) -> CheckReport:
    try:
        start = _check_preamble(files, path)
    except NewerFormat as error:
        return CheckReport(1, 0, foreign=f"{path} cannot be checked: {error.what}")
    except BadFormat as error:
        return CheckReport(1, 0, Damage(path, error.at or 0, error.what, None))
    report = _check_commands(files, path, start)
    damage = report.damage
    if damage is not None and not is_last:
        reason = f"{damage.reason}; other files of the log follow, and would not fit a shorter one"
        return replace(report, damage=replace(damage, reason=reason, keeps=None, is_torn=False))
    return report


def _check_preamble(files: Files, path: Path) -> int:
    """Read the RDB at the beginning of a file, if there is one. Returns the offset of the commands."""
    source = ByteSource(files.read(path))
    if not source.starts_with(RDB_MAGICS):
        return 0
    loaded = read_rdb(source.read, _NEVER_MS)
    return source.given - len(loaded.rest)


def _check_commands(files: Files, path: Path, start: int) -> CheckReport:
    size, end = files.size(path), end_of_content(files, path, start)
    commands, whole_until, multi_at = 0, start, None
    damage: Damage | None = None
    try:
        for command in Scanner(read_between(files, path, start, end), start):
            name = command.argv[0].upper()
            commands += 1
            if name == b"MULTI" and multi_at is None:
                multi_at = command.start
            elif name == b"EXEC" and multi_at is not None:
                multi_at = None
            elif not is_known(name):
                reason = "an EXEC without MULTI" if name == b"EXEC" else f"the command {name[:64]!r} is not known"
                return CheckReport(1, commands, Damage(path, command.start, reason, whole_until))
            if multi_at is None:
                whole_until = command.end
    except Torn as torn:
        damage = Damage(path, torn.at, "the file ends inside a command", whole_until, is_torn=True)
    except Damaged as bad:
        damage = Damage(path, bad.at, bad.reason, whole_until)
    if damage is None and multi_at is not None:
        damage = Damage(path, multi_at, "the file ends inside a transaction", whole_until, is_torn=True)
    if damage is None and end < size:
        damage = Damage(path, end, "zero bytes follow the last command", whole_until, is_torn=True)
    return CheckReport(1, commands, damage)
