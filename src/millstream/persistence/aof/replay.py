"""Replay a log: run every command of its files again, in order.

    file ── RDB preamble, if it has one ──▶ keyspace
      └──── hiredis ──▶ argv ── MULTI … EXEC held back ──▶ hot forms, or the engine's own dispatch ──▶ keyspace

The few forms that make up nearly all of a log (`hot`) are applied directly. hiredis is fast and does not say where in
the file it is, so what it trips over is read once more by the exact scanner, which tells a torn end from damage and
knows the offsets.

What is applied is what stays in the file. hiredis takes any two bytes after a word for its line end, so a tail of zero
bytes is left out before it reads: a last command whose line end became zeros must not be applied and then cut.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import hiredis

from millstream.engine.commands import TABLE, find
from millstream.engine.keys.keyspace import CommandContext, Keyspace
from millstream.errors import BadFormat, CommandError, CorruptFile
from millstream.persistence.aof.hot import HotForms
from millstream.persistence.aof.scan import Damaged, Scanner, Torn
from millstream.persistence.dump_restore import REGISTRY as RESTORING
from millstream.persistence.files import ByteSource, Files, end_of_content, read_between
from millstream.persistence.rdb.file import read_rdb

logger = logging.getLogger(__name__)

Other = Callable[[int, list[bytes]], bool]  # runs a command that the engine does not have; returns False if unknown

RDB_MAGICS: Final = (b"REDIS", b"VALKEY")
_SENTINEL: Final = [b"millstream: nothing follows"]
# The reader moves unread bytes to the front every kilobyte, so feed it small pieces.
_BITE: Final = 1 << 14
_OTHERS: Final = frozenset({b"select", b"function"})  # known, but not in the engine
_MULTI: Final = frozenset({b"MULTI", b"multi"})
_EXEC: Final = frozenset({b"EXEC", b"exec"})


@dataclass(slots=True)
class Replayed:
    """The result of replaying a file."""

    commands: int = 0
    errors: int = 0  # commands that were answered with an error: ignored, as in Redis
    keys: int = 0  # of an RDB preamble
    size: int = 0  # the end of the last whole command or transaction
    torn_at: int | None = None  # the same, if an incomplete one follows
    tail_holds_commands: bool = False  # what follows contains whole commands, inside a word
    functions: tuple[bytes, ...] = ()  # libraries of an RDB preamble


def is_known(name: bytes) -> bool:
    """Return whether a log may contain a command of this name, apart from MULTI and EXEC."""
    name = name.lower()
    return name in TABLE or name in RESTORING.commands or name in _OTHERS


class Tripped(Exception):
    """The fast reader met something that is not a whole command; the message may say what."""


class Replay:
    """Applies the commands of log files to a keyspace."""

    def __init__(
        self, keyspace: Keyspace, now_ms: int, other: Other | None = None, *, uses_hot_forms: bool = True
    ) -> None:
        """`other` runs commands that the engine does not have. Without hot forms all commands take the general path."""
        self._keyspace = keyspace
        self._now_ms = now_ms
        self._other = other
        self._hot = HotForms(keyspace, now_ms)
        self._forms = self._hot.by_name if uses_hot_forms else {}
        self._begin(Path())

    def _begin(self, path: Path) -> None:
        self._path = path
        self._hot.select(0)
        self._queue: list[list[bytes]] | None = None  # the commands of the open transaction
        self._multi_at = 0  # the number of commands before its MULTI
        self._done = 0  # commands seen in this file
        self._found = Replayed()

    def file(self, files: Files, path: Path) -> Replayed:
        """Apply a whole file. A torn end is reported and not applied. Raises CorruptFile if there is other damage."""
        self._begin(path)
        size = files.size(path)
        with _without_garbage_collection():
            start = self._preamble(files, path)
            end = end_of_content(files, path, start)
            if not self._read_fast(read_between(files, path, start, end)):
                self._read_exactly(Scanner(read_between(files, path, start, end), start))
        if self._found.torn_at is None and end < size:
            self._found.torn_at = end
        found = self._found
        found.commands = self._done
        found.size = size if found.torn_at is None else found.torn_at
        if found.errors:
            logger.warning("%d commands of %s were answered with an error and passed over", found.errors, path)
        return found

    def _preamble(self, files: Files, path: Path) -> int:
        """Load the RDB at the beginning of a file, if there is one. Returns the offset of the commands."""
        source = ByteSource(files.read(path))
        if not source.starts_with(RDB_MAGICS):
            return 0
        try:
            # At time 0 nothing has expired: later expiries are in the following log, or keys are swept later.
            loaded = read_rdb(source.read, 0, keyspace=self._keyspace, keep_expired=True)
        except BadFormat as error:
            raise CorruptFile.of(path, error, source.given) from error
        self._found.keys = loaded.keys
        self._found.functions = tuple(loaded.functions)
        return source.given - len(loaded.rest)

    # Reading

    def _read_fast(self, chunks: Iterable[bytes]) -> bool:
        """Apply commands up to the end or to something that is not a whole command. Returns whether all was whole."""
        reader = hiredis.Reader()
        reader.setmaxbuf(0)
        try:
            for chunk in chunks:
                for at in range(0, len(chunk), _BITE):
                    reader.feed(chunk, at, min(_BITE, len(chunk) - at))
                    self._drain(reader.gets)
            # After a whole command the reader takes this for one; inside a command it cannot.
            reader.feed(b"*1\r\n$%d\r\n%b\r\n" % (len(_SENTINEL[0]), _SENTINEL[0]))
            return reader.gets() == _SENTINEL and self._queue is None
        except (Tripped, hiredis.ProtocolError, TypeError, AttributeError, LookupError, MemoryError):
            # not RESP, or RESP that is not a non-empty list of bytes
            return False

    def _drain(self, gets: Callable[[], Any]) -> None:
        """Apply the parsed commands. `_take` is inlined, since a start spends its time here."""
        forms, queue, done = self._forms, self._queue, self._done
        try:
            for argv in iter(gets, False):
                if queue is not None:
                    if argv[0] in _EXEC:
                        for held in queue:
                            if (form := forms.get(held[0])) is None or not form(held):
                                self._apply_in_general(held)
                        queue = None
                    else:
                        queue.append(argv)
                elif (form := forms.get(argv[0])) is None or not form(argv):
                    if argv[0] in _MULTI:
                        queue = []
                        self._multi_at = done
                    else:
                        self._apply_in_general(argv)
                done += 1
        finally:
            self._queue, self._done = queue, done

    def _read_exactly(self, scanner: Scanner) -> None:
        """Continue where the fast reader stopped, command by command, and note the offset of a torn end."""
        path, applied, seen, here, multi_start = self._path, self._done, 0, 0, 0
        try:
            for command in scanner:
                here = command.start
                if seen >= applied:
                    self._take(command.argv)
                if seen == self._multi_at:
                    multi_start = here
                seen += 1
        except Torn as torn:
            self._found.torn_at = torn.at
            self._found.tail_holds_commands = torn.holds_commands
        except Damaged as damage:
            raise CorruptFile(path, damage.at, damage.reason, can_be_cut=True) from damage
        except Tripped as tripped:
            raise CorruptFile(path, here, str(tripped), can_be_cut=True) from tripped
        if seen < applied:  # an applied command must not be cut
            raise CorruptFile(path, scanner.end, "an argument does not have the length it declares", can_be_cut=True)
        if self._queue is not None:
            # A damaged EXEC would swallow all that follows, so this must not be cut.
            unknown = next((argv[0] for argv in self._queue if not is_known(argv[0])), None)
            if unknown is not None:
                reason = f"the transaction does not end, and holds the command {unknown[:64]!r}, which is not known"
                raise CorruptFile(path, multi_start, reason, can_be_cut=True)
            self._found.torn_at = multi_start

    # Applying

    def _take(self, argv: Any) -> None:
        """Apply a command, or keep it until its transaction is complete."""
        if type(argv) is not list or not argv:
            raise Tripped("this is not a command")
        name = argv[0]
        queue = self._queue
        if queue is not None:
            if name in _EXEC:
                for held in queue:
                    self._apply(held)
                self._queue = None
            else:
                queue.append(argv)
        elif name in _MULTI:
            self._queue = []
            self._multi_at = self._done
        else:
            self._apply(argv)
        self._done += 1

    def _apply(self, argv: list[bytes]) -> None:
        form = self._forms.get(argv[0])
        if form is None or not form(argv):
            self._apply_in_general(argv)

    def _apply_in_general(self, argv: list[bytes]) -> None:
        if type(argv) is not list or not all(type(word) is bytes for word in argv):
            raise Tripped("an argument of a command is not a string")
        name = argv[0].lower()
        if name == b"select":
            self._select(argv)
        elif name in TABLE or name in RESTORING.commands:
            try:
                row = RESTORING.commands.get(name) or find(argv)
                call = CommandContext(self._keyspace, self._hot.db.index, self._now_ms, trusted=True, keep_log=False)
                assert row.run is not None, row.name
                row.run(call, argv)
            except CommandError as error:
                self._note_error(argv, error)
        elif self._other is None or not self._other(self._hot.db.index, argv):
            raise Tripped(f"the command {argv[0][:64]!r} is not known")

    def _select(self, argv: list[bytes]) -> None:
        if len(argv) != 2 or not argv[1].isdigit() or int(argv[1]) >= len(self._keyspace.databases):
            raise Tripped("SELECT of a database that does not exist")
        self._hot.select(int(argv[1]))

    def _note_error(self, argv: list[bytes], error: CommandError) -> None:
        if not self._found.errors:
            logger.warning("Replaying %s from %s: %s", argv[0].decode("latin-1"), self._path, error)
        self._found.errors += 1


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Suspend garbage collection: all loaded objects stay, and visiting them took a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
