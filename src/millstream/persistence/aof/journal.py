"""The files of one append-only log: load them, append, switch to a new base.

    load ──▶ manifest ──▶ base, increments ──▶ state
    append ──▶ AppendLog ── flush ──▶ the last increment
    switch ──▶ a new increment: a rewrite covers everything before it
    adopt ──▶ the manifest names a new base with everything before that increment
    remove_old, forget_old ──▶ the replaced files are removed

At any power cut the manifest on the disk names whole files: a file is named only once it exists, and removed only
once it is not named. Every method but `remove_old` is called under the owner's lock. Failures of the system are
raised as OSError and leave everything unchanged, or to be repeated.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from uuid import uuid4

from millstream.errors import CorruptFile, PersistenceError
from millstream.persistence.aof.manifest import LogFile, Manifest, numbered, read_manifest
from millstream.persistence.aof.replay import Replay, Replayed
from millstream.persistence.aof.writer import AppendLog, FsyncPolicy, LogLine
from millstream.persistence.files import Files, Handle, free_name, write_file

logger = logging.getLogger(__name__)

TEMPORARY: Final = "temp-"  # files with this prefix were never finished


@dataclass(slots=True)
class Loading:
    """The result of loading a log."""

    files: int = 0
    commands: int = 0
    keys: int = 0  # from an RDB base
    errors: int = 0
    cut_bytes: int = 0  # of a torn end
    functions: list[bytes] = field(default_factory=list)

    def add(self, found: Replayed, cut_bytes: int) -> None:
        self.files += 1
        self.commands += found.commands
        self.keys += found.keys
        self.errors += found.errors
        self.cut_bytes += cut_bytes
        self.functions += found.functions


@dataclass(slots=True)
class SyncJob:
    """A sync that runs outside of the lock."""

    log: AppendLog
    chunks: int
    error: OSError | None = None

    def run(self) -> None:
        """Sync the file. A failure is kept in `error`."""
        try:
            self.log.handle.sync()
        except OSError as error:
            self.error = error


class Journal:
    """An append-only log in a directory of its own."""

    def __init__(self, files: Files, directory: Path, stem: str, policy: FsyncPolicy) -> None:
        self._files = files
        self._directory = directory
        self._stem = stem  # as in appendfilename
        self._policy = policy
        self._manifest = Manifest()
        self._log: AppendLog | None = None  # None: nothing is written
        self._old_bytes = 0  # of all files except the one that is written
        self._job: SyncJob | None = None
        self._retired: list[Handle] = []  # to be closed once no sync runs
        self._is_closed = False
        self._is_waiting = False  # it is begun and has no base yet
        self._orphans: list[LogFile] = []  # files that a manifest on the disk may name, since its write is uncertain

    # Loading

    @property
    def manifest_path(self) -> Path:
        return self._directory / f"{self._stem}.manifest"

    def exists(self) -> bool:
        """Return whether there is a log. The single file of Redis 6 and earlier is moved into the directory."""
        self._adopt_single_file()
        return self._files.exists(self.manifest_path)

    def _adopt_single_file(self) -> None:
        files, old, new = self._files, self._directory.parent / self._stem, self._directory / self._stem
        if files.exists(self.manifest_path) or not (files.exists(old) or files.exists(new)):
            return
        files.make_directory(self._directory)
        if not files.exists(new):
            files.rename(old, new)
            files.sync_directory(old.parent)
        self._write_manifest(Manifest(base=LogFile(self._stem, 1), base_seq=1))
        logger.info("%s is now the base of the log in %s", old, self._directory)

    def refuse_lost_manifest(self) -> None:
        """Raise CorruptFile if files of a log are there and only their manifest is missing.

        The first log of a directory that was being made when the process died has an increment at most, or base 1 and
        nothing after it: that one was never used.
        """
        names = self._files.names(self._directory)
        bases = numbered(names, self._stem, "base")
        filled = [name for name in numbered(names, self._stem, "incr") if self._files.size(self._directory / name)]
        if bases and (filled or max(bases.values()) > 1):
            found = ", ".join([*bases, *filled])
            raise CorruptFile(self.manifest_path, 0, f"it is missing, but these files of its log exist: {found}")
        if filled:
            logger.error(
                "No manifest names %s: not loaded, and left as it is in %s", ", ".join(filled), self._directory
            )

    def load(self, replay: Replay, *, cuts_torn_end: bool = True) -> Loading:
        """Replay all files and cut off a torn end, with a warning.

        Raises CorruptFile if there is damage before the end, or if the end is torn and must not be cut.
        """
        self.look()
        loading = Loading()
        paths = [self._directory / file.name for file in self._manifest.replayed]
        for at, path in enumerate(paths):
            if not self._files.exists(path):
                raise CorruptFile(path, 0, "the manifest names this file, but it does not exist")
            found = replay.file(self._files, path)
            cut_bytes = 0
            if found.torn_at is not None:
                if any(self._files.size(later) for later in paths[at + 1 :]):
                    raise CorruptFile(path, found.torn_at, "the last command is incomplete, and other files follow")
                if not cuts_torn_end:
                    reason = "the file ends inside a command; aof-load-truncated is no"
                    raise CorruptFile(path, found.torn_at, reason, can_be_cut=True)
                cut_bytes = self._cut(path, found.torn_at, keeps_copy=found.tail_holds_commands)
            loading.add(found, cut_bytes)
        return loading

    def look(self) -> None:
        """Read the manifest only."""
        self._manifest = self._read_manifest().with_numbers_of(self._manifest)

    def _read_manifest(self) -> Manifest:
        try:
            return read_manifest(b"".join(self._files.read(self.manifest_path)))
        except PersistenceError as error:
            raise CorruptFile(self.manifest_path, 0, str(error)) from error

    def _cut(self, path: Path, size: int, *, keeps_copy: bool) -> int:
        """Cut a torn end off and return the number of bytes.

        A torn word that contains whole commands is nearly always a value with RESP text. Should it be a damaged length
        that swallows acknowledged commands, the copy has them.
        """
        cut_bytes = self._files.size(path) - size
        if keeps_copy:
            copy = free_name(self._files, path, "cut")
            write_file(self._files, copy, self._files.read(path, size))
            logger.warning("The end that is cut off %s contains whole commands, it is kept in %s", path, copy)
        logger.warning("The end of %s is not whole, cutting off %d bytes at offset %d", path, cut_bytes, size)
        handle = self._files.open(path)
        try:
            handle.truncate(size)
            handle.sync()
        finally:
            handle.close()
        return cut_bytes

    def _remove_leftovers(self) -> None:
        """Remove files that a rewrite has replaced or not finished."""
        for name in self._files.names(self._directory):
            if name.startswith(TEMPORARY):
                self.remove_old((LogFile(name, 0),))
        old = self.old
        self.remove_old(old)
        self.forget_old(old)
        named = {file.name for file in self._manifest.incrs}
        for name in numbered(self._files.names(self._directory), self._stem, "incr").keys() - named:
            if self._files.size(self._directory / name):
                logger.warning("The manifest does not name %s: not loaded, left as it is", self._directory / name)
            else:
                self.remove_old((LogFile(name, 0),))

    # Writing

    def start(self) -> None:
        """Continue after the loaded data, in a new increment if there is none."""
        self._remove_leftovers()
        if not self._manifest.incrs:
            self.switch()
            return
        path = self._directory / self._manifest.incrs[-1].name
        self._old_bytes = self._size_of(self._manifest.replayed[:-1])
        handle = self._files.open(path)
        self._log = AppendLog(handle, self._files.size(path), keeps_unsynced=self._keeps_unsynced)

    @property
    def _keeps_unsynced(self) -> bool:
        return self._policy is not FsyncPolicy.NO

    @property
    def policy(self) -> FsyncPolicy:
        return self._policy

    @policy.setter
    def policy(self, policy: FsyncPolicy) -> None:
        self._policy = policy
        if self._log is not None:
            self._log.keeps_unsynced = self._keeps_unsynced

    @property
    def is_written(self) -> bool:
        """Return whether nothing waits to be written."""
        return self._log is None or not self._log.waiting_bytes

    @property
    def is_synced(self) -> bool:
        """Return whether everything is on the device."""
        return self._log is None or self._log.is_synced

    @property
    def is_syncing(self) -> bool:
        """Return whether a sync runs outside of the lock."""
        return self._job is not None

    @property
    def is_waiting(self) -> bool:
        """Return whether this log has no base yet: the manifest does not name it and may belong to an older log."""
        return self._is_waiting

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return self._old_bytes + (self._log.size if self._log is not None else 0)

    @property
    def waiting_bytes(self) -> int:
        return self._log.waiting_bytes if self._log is not None else 0

    def append(self, lines: Iterable[LogLine]) -> None:
        """Queue lines; `flush` writes them."""
        assert self._log is not None, "the log is not open"
        self._log.append(lines)

    def append_encoded(self, db: int, pieces: list[bytes]) -> None:
        """Queue encoded lines of one database, in pieces."""
        assert self._log is not None, "the log is not open"
        self._log.append_encoded(db, pieces)

    def flush(self, *, sync: bool) -> None:
        """Write the queued lines and, on request, sync them."""
        log = self._log
        if log is None:
            return
        if log.waiting_bytes:
            log.write()
        if sync and not log.is_synced:
            log.sync()

    def begin_sync(self) -> SyncJob | None:
        """Return a sync to run outside of the lock and to pass to `end_sync`; None if there is nothing to sync."""
        log = self._log
        if log is None or self._job is not None or not (chunks := log.begin_sync()):
            return None
        self._job = SyncJob(log, chunks)
        return self._job

    def end_sync(self, job: SyncJob) -> None:
        """Record the end of a sync. Raises its error."""
        self._job = None
        while self._retired:
            self._retired.pop().close()
        if job.log is self._log:
            job.log.end_sync(job.chunks, succeeded=job.error is None)
            if job.error is not None:
                raise job.error

    def close(self) -> None:
        """Stop writing. Call flush first."""
        self._is_closed = True
        self._close_log()

    def _close_log(self) -> None:
        log, self._log = self._log, None
        if log is None:
            return
        if self._job is not None:
            self._retired.append(log.handle)
        else:
            log.handle.close()

    # Rewriting

    def switch(self, *, is_first: bool = False) -> LogFile:
        """Continue in a new increment, so that everything before it can be replaced. Returns the increment.

        Earlier data is synced first: after a power cut nothing may be missing before data that exists. The first
        increment of a log is not named before it has a base, because an older log may exist.
        """
        self.flush(sync=True)
        self.make_room()
        manifest = self._manifest.with_incr(self._stem)
        new = manifest.incrs[-1]
        # the number is not reused, whatever happens now
        self._manifest = self._manifest.with_numbers_of(manifest)
        handle = self._files.create(self._directory / new.name)
        try:
            self._files.sync_directory(self._directory)
            if not is_first and not self._is_waiting:
                self._write_manifest(manifest)
        except BaseException:
            handle.close()
            self._orphans.append(new)
            raise
        self._close_log()
        self._is_waiting |= is_first
        self._manifest = manifest
        self._old_bytes = self._size_of(manifest.replayed[:-1])
        self._log = AppendLog(handle, 0, keeps_unsynced=self._keeps_unsynced)
        return new

    def make_room(self) -> None:
        """Create the directory if it is missing, as for a log that was never on.

        The numbers of existing files are not reused: a file that no manifest names may be the rest of a lost log.
        """
        self._files.make_directory(self._directory)
        names = self._files.names(self._directory)
        incrs, bases = numbered(names, self._stem, "incr"), numbered(names, self._stem, "base")
        used = Manifest(
            incr_seq=max(incrs.values(), default=0),
            base_seq=0 if self._manifest.base else max(bases.values(), default=0),
        )
        self._manifest = self._manifest.with_numbers_of(used)

    def new_base(self, ending: str) -> LogFile:
        """Return the base to write."""
        self._manifest = self._manifest.with_new_base_number()
        return self._manifest.latest_base(self._stem, ending)

    def path_of(self, file: LogFile) -> Path:
        """Return the path of a file."""
        return self._directory / file.name

    def temporary_path_of(self, file: LogFile) -> Path:
        """Return a unique path for writing a file until it is whole."""
        return self._directory / f"{TEMPORARY}{uuid4().hex}-{file.name}"

    def adopt(self, base: LogFile, since: LogFile | None) -> None:
        """Adopt a finished base in place of all files before the increment `since`, or of all files."""
        manifest = self._manifest.with_base(base, since)
        try:
            self._write_manifest(manifest)
        except OSError:
            self._orphans.append(base)
            raise
        manifest = replace(manifest, history=(*manifest.history, *self._orphans))
        self._orphans = []
        self._is_waiting = False
        self._manifest = manifest
        self._old_bytes = self._size_of(manifest.replayed[:-1])

    @property
    def old(self) -> tuple[LogFile, ...]:
        """Return the files that are not needed any more."""
        return self._manifest.history

    def remove_old(self, old: tuple[LogFile, ...]) -> None:
        """Remove files that are not needed. Large ones take a while, so call this without the lock."""
        for file in old:
            with contextlib.suppress(OSError):  # it only takes up space
                self._files.remove(self._directory / file.name)

    def forget_old(self, removed: tuple[LogFile, ...]) -> None:
        """Drop removed files from the manifest, unless the log was closed and may belong to another process."""
        if removed and not self._is_closed:
            kept = tuple(file for file in self._manifest.history if file not in removed)
            self._manifest = replace(self._manifest, history=kept)
            with contextlib.suppress(OSError):  # the next one will not name them
                self._write_manifest(self._manifest)

    def _write_manifest(self, manifest: Manifest) -> None:
        write_file(self._files, self.manifest_path, [manifest.to_text().encode("utf-8", "surrogateescape")])

    def _size_of(self, files: Iterable[LogFile]) -> int:
        return sum(self._files.size(self._directory / file.name) for file in files)
