"""A broker's state in a directory: loaded when it is opened; from then on every change is logged.

    commands ──▶ log lines ── before replies go out ──▶ Journal, the append-only log
    once a second, in a thread of its own: sync, try again what failed, begin a rewrite or a snapshot that is due

When the log cannot be written, the commands just run are answered with an error, and further writes are refused, while
reads go on. Changes that are in memory but not in the log are queued and written as soon as that works again; so a
command that was refused this way may still have happened, whole, as after a lost connection.

The host is whatever runs commands: it has the lock, the keyspace, the settings, and the hooks that are named below.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from millstream.engine.faults import fault
from millstream.engine.table import Command
from millstream.errors import BadFormat, CommandError, CorruptFile, WriteFailed
from millstream.persistence.aof.journal import Journal, Loading
from millstream.persistence.aof.replay import Other, Replay
from millstream.persistence.aof.writer import FsyncPolicy
from millstream.persistence.background import Background
from millstream.persistence.files import ByteSource, Files, RealFiles
from millstream.persistence.host import Host, PersistenceSettings
from millstream.persistence.malloc import give_back
from millstream.persistence.rdb.file import read_rdb
from millstream.persistence.ticker import PERIOD_S, Ticker

logger = logging.getLogger(__name__)

SNAPSHOTS_FAIL: Final = (
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands that "
    "may modify the data set are disabled, because this instance is configured to report errors during writes if RDB "
    "snapshotting fails (stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB "
    "error."
)

CANNOT_TURN: Final = (
    "ERR CONFIG SET failed (possibly related to argument 'appendonly') - Unable to turn on AOF. Check server logs."
)

_RETRY_S: Final = 0.1  # while the log cannot be written
_LONGEST_JOIN_S: Final = 5.0  # a cancelled dump ends after the piece it is writing
_WRITING_SCRIPTS: Final = frozenset({"eval", "evalsha", "fcall"})


@dataclass(frozen=True, slots=True)
class Opened:
    """What was found when a store was opened."""

    source: str  # "log", "snapshot" or "nothing"
    keys: int
    commands: int  # replayed
    seconds: float
    cut_bytes: int = 0  # of a torn end

    def __str__(self) -> str:
        if self.source == "nothing":
            return "nothing was there yet"
        replayed = f", {self.commands} commands replayed" if self.source == "log" else ""
        return f"{self.keys} keys from the {self.source}{replayed} in {self.seconds:.2f} s"


class Store:
    """The state of a host in a directory."""

    def __init__(
        self,
        host: Host,
        directory: Path,
        *,
        files: Files | None = None,
        in_background: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without background work nothing happens by itself: call `tick`."""
        self._host = host
        self._directory = directory
        self._files = files or RealFiles()
        self._in_background = in_background
        self._monotonic = monotonic
        self._unlock: Callable[[], None] | None = None  # None: not open
        self._journal: Journal | None = None  # None: appendonly no
        self._failure: OSError | None = None  # why the log could not be written last time
        self._tried_s = 0.0  # when that was
        self._delayed_writes = 0  # writes that began during a sync
        self._keeper: Ticker | None = None
        self.background = Background(host, self._files, directory, in_thread=in_background)
        self.load_function: Callable[[bytes], None] | None = None  # takes a library from an RDB file
        self.run_other: Other | None = None  # runs a logged command that the engine does not have

    # Opening and closing

    def open(self) -> Opened:
        """Load the state and log every change from now on.

        Raises CorruptFile if it cannot be read, WriteFailed if it cannot be written, PersistenceError if it is locked.
        """
        with self._host.lock:
            started_s = self._monotonic()
            try:
                self._files.make_directory(self._directory)
                self._unlock = self._lock()
                self.background.remove_leftovers()
                source, loading = self._load()
            except OSError as error:
                self._let_go()
                raise WriteFailed(self._directory, error) from error
            except BaseException:
                self._let_go()
                raise
            self._connect()
            keys = sum(len(db.values) for db in self._host.keyspace)
            took_s = self._monotonic() - started_s
            opened = Opened(source, keys, loading.commands, took_s, loading.cut_bytes)
            logger.info("Opened %s: %s", self._directory, opened)
            return opened

    def _lock(self) -> Callable[[], None]:
        """Lock the directory, and that of the log if a link leads elsewhere. Returns a function that unlocks."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._files.lock(self._directory))
            logs = self._directory / os.fsdecode(self._config["appenddirname"])
            is_elsewhere = self._files.resolve(logs).parent != self._files.resolve(self._directory)
            if is_elsewhere and self._files.is_directory(logs):
                stack.callback(self._files.lock(logs))
            return stack.pop_all().close

    def _load(self) -> tuple[str, Loading]:
        if not self._config.is_on("appendonly"):
            return self._load_snapshot()
        journal = self._new_journal()
        if not journal.exists():
            journal.refuse_lost_manifest()
            found = self._load_snapshot()
            self.background.new_log(journal)
            self._journal = journal
            return found
        loading = self._replay(journal)
        journal.start()
        self._journal = journal
        self.background.rewrites.size_after = journal.size
        return "log", loading

    def _replay(self, journal: Journal) -> Loading:
        replay = Replay(self._host.keyspace, self._host.now_ms(), self.run_other)
        loading = journal.load(replay, cuts_torn_end=self._config.is_on("aof-load-truncated"))
        self._take_functions(loading.functions)
        return loading

    def _new_journal(self) -> Journal:
        config = self._config
        directory = self._directory / os.fsdecode(config["appenddirname"])
        stem = os.fsdecode(config["appendfilename"])
        return Journal(self._files, directory, stem, FsyncPolicy(config["appendfsync"]))

    def _load_snapshot(self) -> tuple[str, Loading]:
        path = self.background.snapshot_path
        if not self._files.exists(path):
            return "nothing", Loading()
        source = ByteSource(self._files.read(path))
        try:
            loaded = read_rdb(source.read, self._host.now_ms(), keyspace=self._host.keyspace)
        except BadFormat as error:
            raise CorruptFile.of(path, error) from error
        self.background.snapshots.loaded_keys = loaded.keys
        self._take_functions(loaded.functions)
        return "snapshot", Loading(keys=loaded.keys)

    def _take_functions(self, functions: Iterable[bytes]) -> None:
        for library in functions:
            if self.load_function is None:
                logger.warning("A function library was found that cannot be loaded: %d bytes", len(library))
            else:
                self.load_function(library)

    def _connect(self) -> None:
        host = self._host
        host.setting_hooks.append(self._setting_changed)
        host.before_replies = self.before_replies
        self.background.snapshots.on_end = self._guard
        self._guard()
        self._offer_journal()
        host.keep_swept()
        if self._in_background:
            self._keeper = Ticker(self)

    def close(self) -> None:
        """Write everything to the disk and unlock the directory. Raises WriteFailed if the log cannot be finished."""
        with self._host.lock:
            if self._unlock is None:
                return
            if self._keeper is not None:
                self._keeper.stop()
            self.background.cancel()
        self.background.join(_LONGEST_JOIN_S)
        with self._host.lock:
            if self._unlock is None:
                return
            try:
                self._finish_base()
                if self._journal is not None:
                    self._journal.flush(sync=True)
            except OSError as error:
                raise WriteFailed(self._directory, error) from error
            finally:
                self._disconnect()
                self._let_go()

    def abandon(self) -> None:
        """Close all files in the child of a fork without a change: they belong to the parent. Does not wait."""
        self._let_go()

    def _disconnect(self) -> None:
        host = self._host
        self.background.snapshots.on_end = None
        if self._gate in host.gates:
            host.gates.remove(self._gate)
        host.setting_hooks.remove(self._setting_changed)
        host.before_replies = None
        host.journal = host.encoded_journal = None

    def _offer_journal(self) -> None:
        journal = self._journal
        self._host.journal = journal.append if journal is not None else None
        self._host.encoded_journal = journal.append_encoded if journal is not None else None

    def _let_go(self) -> None:
        self._stop_log()
        if self._unlock is not None:
            self._unlock()
            self._unlock = None

    def _stop_log(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    # Logging

    @property
    def _config(self) -> PersistenceSettings:
        return self.background.config

    def before_replies(self) -> CommandError | None:
        """Write the logged lines, and sync them if the policy says so. Returns the error to answer if that fails.

        Unlike in Redis a write does not wait for a running sync, so every answered change outlives the process.
        """
        journal = self._journal
        if journal is None or (journal.is_written and (journal.is_synced or not self._syncs_always(journal))):
            return None
        return self._flush(journal)

    def commit(self) -> None:
        """Do the same as before_replies for callers that cannot take replies back. Raises WriteFailed."""
        with self._host.lock:
            if self.before_replies() is not None and self._failure is not None:
                raise WriteFailed(self._directory, self._failure) from self._failure

    def _flush(self, journal: Journal) -> CommandError | None:
        self._tried_s = self._monotonic()
        self._delayed_writes += journal.is_syncing  # the system may block this write until the sync ends
        has_failed = self._failure is not None  # then only a successful sync proves that the disk works again
        try:
            journal.flush(sync=self._syncs_always(journal) or (has_failed and journal.policy is not FsyncPolicy.NO))
        except OSError as error:
            return self._fail(error)
        except MemoryError:
            return self._fail(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
        if self._failure is not None:
            logger.warning("The log can be written again, nothing was lost: %s", self._directory)
            self._failure = None
            self._guard()
        return None

    def _syncs_always(self, journal: Journal) -> bool:
        return journal.policy is FsyncPolicy.ALWAYS and not self._spares_disk

    @property
    def _spares_disk(self) -> bool:
        """Return whether syncs are suspended because a file is being written in the background."""
        return self.background.is_busy and self._config.is_on("no-appendfsync-on-rewrite")

    # Failing

    def _fail(self, error: OSError) -> CommandError:
        if self._failure is None:
            logger.error("The log cannot be written, refusing commands that write: %s", error)
        self._failure = error
        self._guard()
        if self._keeper is not None:
            self._keeper.hurry()
        return misconf(error)

    def _guard(self) -> None:
        """Install the gate only while there is something to refuse: it costs every command a call."""
        gates = self._host.gates
        is_needed = self._failure is not None or self.background.snapshots.last_failed
        if is_needed and self._gate not in gates:
            gates.append(self._gate)
        elif not is_needed and self._gate in gates:
            gates.remove(self._gate)

    def _gate(self, session: Any, row: Command, argv: list[bytes]) -> CommandError | None:
        """Refuse commands that write while the log cannot be written."""
        failure, snapshots = self._failure, self.background.snapshots
        if (failure is None and not snapshots.last_failed) or not _is_write(session, row):
            return None
        if failure is not None and self._journal is not None:
            is_too_soon = self._monotonic() - self._tried_s < _RETRY_S
            return misconf(failure) if is_too_soon else self._flush(self._journal)
        if snapshots.last_failed and self.background.save_points:
            return fault(SNAPSHOTS_FAIL)
        return None

    # What is due

    def tick(self) -> None:
        """Do due work: repeat failed writes, sync, begin or end background work."""
        with self._host.lock:
            journal = self._journal
            if self._unlock is None:
                return
            if journal is not None and not journal.is_written:
                self._flush(journal)
            is_everysec = journal is not None and journal.policy is FsyncPolicy.EVERYSEC and not self._spares_disk
            job = journal.begin_sync() if journal is not None and is_everysec else None
        if journal is not None and job is not None:
            job.run()  # outside of the lock, so that clients go on
            with self._host.lock:
                try:
                    journal.end_sync(job)
                except OSError as error:
                    self._fail(error)
        with self._host.lock:
            if self._unlock is not None:
                self.background.run()
                is_wanted = self._journal is not None or self.background.is_rewrite_scheduled
                journal = self._journal_to_rewrite() if is_wanted else None
                self.background.begin_what_is_due(journal, is_log_on=self._journal is not None)
            has_freed = self.background.take_freed()
        if has_freed:
            give_back()  # outside of the lock, because it can take a moment

    @property
    def pause_s(self) -> float:
        """Return the seconds until `tick` should be called again."""
        return PERIOD_S if self._failure is None else _RETRY_S

    # Requests of the administrator

    @property
    def directory(self) -> Path:
        """Return the directory of all files."""
        return self._directory

    def settle(self, *, save: bool | None = False) -> None:
        """Write the log to the disk now. `save` writes a snapshot, too: True yes, None if there are save points."""
        if save or (save is None and self.background.save_points):
            self.background.save()
        try:
            if self._journal is not None:
                self._journal.flush(sync=True)
        except OSError as error:
            self._fail(error)
            raise WriteFailed(self._directory, error) from error

    def begin_rewrite(self) -> None:
        """Begin to rewrite the log. Raises WriteFailed if that is impossible."""
        self.background.begin_rewrite(self._journal_to_rewrite(), is_log_on=self._journal is not None)

    def _journal_to_rewrite(self) -> Journal:
        """Return the log, or one that exists although logging is off: as in Redis it gets a new base."""
        if self._journal is not None:
            return self._journal
        journal = self._new_journal()
        if journal.exists():
            journal.look()
        return journal

    def _setting_changed(self, name: str) -> None:
        if name == "appendfsync" and self._journal is not None:
            self._journal.policy = FsyncPolicy(self._config[name])
        elif name == "appendonly":
            self._turn_log(on=self._config.is_on(name))

    def _turn_log(self, *, on: bool) -> None:
        if on == (self._journal is not None):
            return
        try:
            if on:
                self._start_log()
            else:
                self._end_log()
        except (OSError, WriteFailed) as error:
            self._config.put("appendonly", b"no" if on else b"yes")
            logger.error("The log cannot be turned %s: %s", "on" if on else "off", error)
            raise fault(CANNOT_TURN) from error
        self._offer_journal()

    def _start_log(self) -> None:
        """Begin a log with the state in memory.

        As in Redis its base is written in the background, and until it exists a crash leaves the old state: see
        aof_rewrite_in_progress and aof_rewrite_scheduled of INFO.
        """
        background = self.background
        if background.rewrites.started_ms is not None:  # of a log that is off, which could otherwise adopt it
            background.cancel()
        journal = self._journal_to_rewrite()
        if background.is_busy:  # with a snapshot
            journal.switch(is_first=True)
            background.is_rewrite_scheduled = True
        else:
            background.begin_rewrite(journal, is_log_on=True, is_first=True)
        self._journal = journal

    def _finish_base(self) -> None:
        """Write the first base of the log now if it is missing."""
        if self._journal is not None and self._journal.is_waiting:
            self.background.cancel()
            self.background.is_rewrite_scheduled = False
            self.background.new_log(self._journal)

    def _end_log(self) -> None:
        assert self._journal is not None
        self.background.cancel()
        self._journal.flush(sync=True)
        self._stop_log()
        self._failure = None
        self._guard()

    def reload_log(self) -> None:
        """DEBUG LOADAOF: forget everything and load the log."""
        self._finish_base()
        journal = self._journal_to_rewrite()
        journal.flush(sync=True)
        if not journal.exists():
            return
        self._forget_everything()
        self._replay(journal)
        self._host.keep_swept()

    def reload_snapshot(self, *, save: bool = True, forget: bool = True, merge: bool = False) -> None:
        """DEBUG RELOAD: write a snapshot, forget everything and load it.

        What is not to be forgotten must not be in the snapshot too, unless the two are to be merged.
        """
        if save:
            self.background.save()
        kept = [(dict(db.values), dict(db.expires)) for db in self._host.keyspace] if merge and not forget else []
        if forget or merge:
            self._forget_everything()
        self._load_snapshot()
        for db, (values, expires) in zip(self._host.keyspace, kept, strict=False):
            for key in values.keys() - db.values.keys():
                db.values[key] = values[key]
                if key in expires:
                    db.expires[key] = expires[key]
        self._host.keep_swept()

    def _forget_everything(self) -> None:
        for db in self._host.keyspace:
            for part in (db.values, db.expires, db.idempotent, db.accessed):
                part.clear()
            db.order = None

    def info(self) -> Iterator[tuple[str, object]]:
        """Return the fields of INFO persistence, in Redis's order."""
        yield from self.background.info(self._host.dirty)
        yield "aof_last_write_status", "ok" if self._failure is None else "err"
        yield "aof_last_cow_size", 0
        journal = self._journal
        if journal is not None:
            yield "aof_current_size", journal.size
            yield "aof_base_size", self.background.rewrites.size_after
            yield "aof_pending_rewrite", int(self.background.is_rewrite_scheduled)
            yield "aof_buffer_length", journal.waiting_bytes
            yield "aof_pending_bio_fsync", int(journal.is_syncing)
            yield "aof_delayed_fsync", self._delayed_writes


def misconf(error: OSError) -> CommandError:
    """Return the answer to a command that writes while the log cannot be written."""
    return fault(f"MISCONF Errors writing to the AOF file: {error.strerror or error}")


def _is_write(session: Any, row: Command) -> bool:
    """Return whether a command may change something. Scripts may, unless they declare not to."""
    if row.name == "exec":
        return any("write" in queued.flags for queued, _ in session.queue or ())
    return "write" in row.flags or row.name in _WRITING_SCRIPTS
