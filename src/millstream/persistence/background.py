"""Rewrites of the log and snapshots: one at a time in a separate thread; a second one waits for the first.

rewrite ──▶ switch to a new increment ─┐
save ──────────────────────────────────┴─ freeze ──▶ Dump in a thread ──▶ the file gets its name
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import uuid4

from millstream.engine.keys.keyspace import Keyspace
from millstream.errors import WriteFailed
from millstream.persistence.aof.journal import TEMPORARY, Journal
from millstream.persistence.aof.manifest import LogFile
from millstream.persistence.files import Files
from millstream.persistence.frozen_copy import freeze
from millstream.persistence.host import Host, PersistenceSettings
from millstream.persistence.rewrite_schedule import Rewrites
from millstream.persistence.snapshot_schedule import Snapshots, save_points
from millstream.persistence.snapshot_writer import Cancelled, Dump, Form

logger = logging.getLogger(__name__)

_BASE: Final = {b"aof-base": b"1"}  # the AUX field of an RDB file that is the base of a log
_AUX: Final = {b"redis-ver": b"8.10.0", b"redis-bits": b"64"}  # the AUX field that names the writer of an RDB file


class Background:
    """The file that is being written beside the log. Every method is called under the owner's lock."""

    def __init__(self, owner: Host, files: Files, directory: Path, *, in_thread: bool) -> None:
        """Without threads, `run` does the work that was begun."""
        self._owner = owner
        self._files = files
        self._directory = directory
        self._in_thread = in_thread
        self._dump: Dump | None = None
        self._done: Callable[[Dump], None] = _forget
        self._thread: threading.Thread | None = None  # the last one
        self._has_freed = False  # the frozen copy of a finished dump can be freed
        self.is_rewrite_scheduled = False
        self.is_save_scheduled = False
        self.rewrites = Rewrites()
        self.snapshots = Snapshots(last_ms=owner.now_ms())
        self.functions: Callable[[], Iterable[bytes]] = tuple  # returns the libraries to write into RDB files

    @property
    def config(self) -> PersistenceSettings:
        config: PersistenceSettings = self._owner.config
        return config

    @property
    def is_busy(self) -> bool:
        """Return whether a file is being written."""
        return self._dump is not None

    @property
    def snapshot_path(self) -> Path:
        return self._directory / os.fsdecode(self.config["dbfilename"])

    @property
    def save_points(self) -> list[tuple[int, int]]:
        return save_points(self.config["save"])

    def remove_leftovers(self) -> None:
        """Remove unfinished snapshots."""
        for name in self._files.names(self._directory):
            if name.startswith(TEMPORARY) and name.endswith(self.snapshot_path.name):
                self._files.remove(self._directory / name)

    def begin_what_is_due(self, journal: Journal | None, *, is_log_on: bool) -> None:
        """Begin a rewrite or snapshot that was scheduled, or that is due by growth or time."""
        if self._dump is not None:
            return
        now_ms = self._owner.now_ms()
        with contextlib.suppress(WriteFailed):  # the failure is recorded, and the work is tried again
            if journal is not None and (
                self.is_rewrite_scheduled or (is_log_on and self._is_rewrite_due(journal, now_ms))
            ):
                self.is_rewrite_scheduled = False
                self.begin_rewrite(journal, is_log_on=is_log_on)
            elif self.is_save_scheduled or self.snapshots.is_due(self.save_points, self._owner.dirty, now_ms):
                self.is_save_scheduled = False
                self.begin_save()

    def _is_rewrite_due(self, journal: Journal, now_ms: int) -> bool:
        return self.rewrites.is_due(
            journal.size,
            now_ms,
            percentage=self.config.number("auto-aof-rewrite-percentage"),
            min_size=self.config.number("auto-aof-rewrite-min-size"),
        )

    def run(self) -> None:
        """Do the work that was begun, if there are no threads."""
        if self._dump is not None and not self._in_thread:
            self._dump.run()
            self._done(self._dump)

    def take_freed(self) -> bool:
        """Return whether much memory has become free since the last call."""
        is_through = self._has_freed and (self._thread is None or not self._thread.is_alive())
        self._has_freed = self._has_freed and not is_through
        return is_through

    def cancel(self) -> None:
        """Cancel the file that is being written. Its thread may go on for a moment, without effect."""
        if self._dump is not None:
            self._dump.is_cancelled = True
            self._done = _forget
            self._dump = None
            self.rewrites.started_ms = self.snapshots.started_ms = None

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended. Call it without the lock, which the thread may need."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    # The log

    def new_log(self, journal: Journal) -> None:
        """Begin a log with the state in memory, and wait for its base."""
        since = journal.switch(is_first=True)
        base = journal.new_base(self._base_form.value)
        dump = self._new_dump(journal.temporary_path_of(base), self._owner.keyspace, self._base_form, _BASE)
        dump.run()
        if dump.error is not None:
            raise dump.error
        dump.move_to(journal.path_of(base))
        journal.adopt(base, since)
        old = journal.old
        journal.remove_old(old)
        journal.forget_old(old)
        self.rewrites.size_after = journal.size

    def begin_rewrite(self, journal: Journal, *, is_log_on: bool, is_first: bool = False) -> None:
        """Begin to rewrite the log. Raises WriteFailed if that is impossible. A log that is off gets just a base.

        The first rewrite ignores earlier log files: the log begins with the state in memory.
        """
        self.rewrites.begin(self._owner.now_ms())
        try:
            journal.make_room()
            since = journal.switch(is_first=is_first) if is_log_on else None
        except OSError as error:
            self.note_rewrite(journal, error)
            raise WriteFailed(self._directory, error) from error
        base = journal.new_base(self._base_form.value)
        dump = self._new_dump(journal.temporary_path_of(base), freeze(self._owner.keyspace), self._base_form, _BASE)
        self._begin(dump, _Rewrite(self, journal, base, since))

    @property
    def _base_form(self) -> Form:
        return Form.RDB if self.config.is_on("aof-use-rdb-preamble") else Form.AOF

    def note_rewrite(self, journal: Journal, error: Exception | None) -> None:
        """Record the end of a rewrite."""
        self.rewrites.end(self._owner.now_ms(), journal.size, succeeded=error is None)
        if error is None:
            logger.info("The log is rewritten: %d bytes", journal.size)
        elif not isinstance(error, Cancelled):
            logger.error("The log could not be rewritten: %s", error)
            # without a base there is no log, so try again and again
            self.is_rewrite_scheduled |= journal.is_waiting

    # Snapshots

    def begin_save(self) -> None:
        """Begin to write a snapshot."""
        self.snapshots.begin(self._owner.now_ms(), self._owner.dirty)
        path = self.snapshot_path
        temporary = path.with_name(f"{TEMPORARY}{uuid4().hex}-{path.name}")
        dump = self._new_dump(temporary, freeze(self._owner.keyspace), Form.RDB, {})
        self._begin(dump, _Snapshot(self, path))

    def save(self) -> None:
        """Write a snapshot and wait for it. Raises WriteFailed if it cannot be written."""
        path = self.snapshot_path
        running = self.snapshots.started_ms
        self.snapshots.begin(self._owner.now_ms(), self._owner.dirty)
        dump = self._new_dump(path.with_name(f"{TEMPORARY}{path.name}"), self._owner.keyspace, Form.RDB, {})
        dump.run()
        error = dump.error or _try(lambda: dump.move_to(path))
        self.note_save(error)
        self.snapshots.started_ms = running
        if isinstance(error, OSError):
            raise WriteFailed(path, error) from error
        if error is not None:
            raise error

    def note_save(self, error: Exception | None) -> None:
        """Record whether a snapshot was written."""
        self._owner.dirty -= self.snapshots.end(self._owner.now_ms(), succeeded=error is None)
        if error is not None and not isinstance(error, Cancelled):
            logger.error("The snapshot could not be written: %s", error)

    # Both

    def _begin(self, dump: Dump, plan: _Plan) -> None:
        """Write a frozen copy of all state, then continue with the plan."""
        dump.makes_way = self._in_thread
        self._dump = dump

        def done(dump: Dump) -> None:
            """Give the file its name, unless it was cancelled."""
            with self._owner.lock:
                is_wanted = dump is self._dump
                if is_wanted:
                    self._dump = None
                    plan.note(dump.error or _try(lambda: plan.use(dump)))
            dump.discard()
            if is_wanted:
                plan.clean_up(self._owner.lock)

        self._done = done
        if self._in_thread:
            self._has_freed = True  # once the thread has ended, which refers to the copy until then
            self._thread = dump.start(done)

    def _new_dump(self, path: Path, keyspace: Keyspace, form: Form, aux: Mapping[bytes, bytes]) -> Dump:
        now_ms = self._owner.now_ms()
        about = _AUX | {b"ctime": b"%d" % (now_ms // 1000)} | dict(aux)
        # the log after a base may still refer to a record that has expired and is not swept yet
        keeps_until_ms = 0 if aux is _BASE else now_ms
        return Dump(
            files=self._files,
            path=path,
            keyspace=keyspace,
            form=form,
            now_ms=keeps_until_ms,
            aux=about,
            functions=tuple(self.functions()),
        )

    def info(self, dirty: int) -> Iterator[tuple[str, object]]:
        """Return the fields of INFO persistence, except those of the log itself."""
        now_ms = self._owner.now_ms()
        yield from self.snapshots.info(now_ms, dirty)
        yield "aof_enabled", int(self.config.is_on("appendonly"))
        yield from self.rewrites.info(now_ms, is_scheduled=self.is_rewrite_scheduled)


class _Plan(Protocol):
    """The use of a file that was written in the background."""

    def use(self, dump: Dump) -> None:
        """Give the file its name and put it to use."""

    def note(self, error: Exception | None) -> None:
        """Record whether the file could be written."""

    def clean_up(self, lock: Any) -> None:
        """Remove the replaced files. This can take long, so the lock is not held."""


class _Rewrite:
    """A new base of the log."""

    def __init__(self, background: Background, journal: Journal, base: LogFile, since: LogFile | None) -> None:
        self._background = background
        self._journal = journal
        self._base = base
        self._since = since

    def use(self, dump: Dump) -> None:
        dump.move_to(self._journal.path_of(self._base))
        self._journal.adopt(self._base, self._since)

    def note(self, error: Exception | None) -> None:
        self._background.note_rewrite(self._journal, error)

    def clean_up(self, lock: Any) -> None:
        old = self._journal.old
        self._journal.remove_old(old)
        with lock:
            self._journal.forget_old(old)


class _Snapshot:
    """A snapshot."""

    def __init__(self, background: Background, path: Path) -> None:
        self._path = path
        self._background = background

    def use(self, dump: Dump) -> None:
        dump.move_to(self._path)

    def note(self, error: Exception | None) -> None:
        self._background.note_save(error)

    def clean_up(self, lock: Any) -> None:
        """Do nothing: the file has replaced the old one by taking its name."""


def _try(act: Callable[[], None]) -> OSError | None:
    try:
        act()
    except OSError as error:
        return error
    return None


def _forget(dump: Dump) -> None:
    """Ignore the result of a dump that is not needed any more."""
