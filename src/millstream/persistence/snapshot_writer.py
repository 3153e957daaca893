"""Write a whole keyspace into one file in the background: an RDB snapshot, or the base of a log.

    freeze, under the lock ──▶ Dump.run, in a thread ──▶ a temporary file, synced ──▶ its owner renames it

The thread shares the interpreter with the threads that serve clients, so it yields to them: it rests as long as it has
worked, and meanwhile threads are switched often.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from millstream.engine.keys.keyspace import Keyspace
from millstream.persistence.aof.rewrite import rewritten
from millstream.persistence.aof.writer import encode_line
from millstream.persistence.files import Files, write_all
from millstream.persistence.rdb.file import write_rdb

_PIECE: Final = 1 << 18  # bytes written at a time
_LONGEST_REST_S: Final = 0.1
_SWITCH_S: Final = 0.0005  # how long a thread may keep the interpreter while others wait for it


class Form(Enum):
    """The format of a file; the value is the ending of its name."""

    RDB = "rdb"
    AOF = "aof"  # commands


class Cancelled(Exception):
    """The dump was cancelled."""


@dataclass(slots=True, kw_only=True)
class Dump:
    """One file being written."""

    files: Files
    path: Path  # a temporary one
    keyspace: Keyspace  # frozen, or guarded by the lock until the dump is done
    form: Form
    now_ms: int  # idempotency records expired by then are left out of RDB
    aux: Mapping[bytes, bytes] = field(default_factory=dict)  # the AUX fields of an RDB file
    functions: Iterable[bytes] = ()
    makes_way: bool = False
    size: int = 0
    error: Exception | None = None
    is_cancelled: bool = False
    _rested_s: float = 0.0

    def run(self) -> None:
        """Write the file and sync it. A failure is kept in `error` and leaves no file."""
        try:
            with _switching_often() if self.makes_way else contextlib.nullcontext():
                self._write()
        except Exception as error:
            self.error = error.with_traceback(None)  # it refers to this dump, and so to the whole copy
            self.discard()

    def start(self, done: Callable[[Dump], None]) -> threading.Thread:
        """Run in a separate thread, which calls `done`."""

        def work() -> None:
            self.run()
            done(self)

        thread = threading.Thread(target=work, name="millstream-dump", daemon=True)
        thread.start()
        return thread

    def move_to(self, path: Path) -> None:
        """Rename the file to its final path."""
        self.files.rename(self.path, path)

    def discard(self) -> None:
        """Remove the file, unless it has its final path."""
        with contextlib.suppress(OSError):
            self.files.remove(self.path)

    def _write(self) -> None:
        handle = self.files.create(self.path)
        self._rested_s = time.perf_counter()

        def put(data: bytes) -> None:
            self.size = write_all(handle, self.size, data)
            self._make_way()

        try:
            if self.form is Form.RDB:
                write_rdb(self.keyspace, put, now_ms=self.now_ms, aux=self.aux, functions=self.functions)
            else:
                for library in self.functions:
                    put(encode_line((b"FUNCTION", b"LOAD", library)))
                for piece in _pieces(rewritten(self.keyspace)):
                    put(piece)
            handle.sync()
        finally:
            handle.close()

    def _make_way(self) -> None:
        if self.is_cancelled:
            raise Cancelled
        if self.makes_way:
            worked_s = time.perf_counter() - self._rested_s
            time.sleep(min(worked_s, _LONGEST_REST_S))
            self._rested_s = time.perf_counter()


def _pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in longer pieces."""
    gathered: list[bytes] = []
    size = 0
    for part in parts:
        gathered.append(part)
        size += len(part)
        if size >= _PIECE:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


@contextlib.contextmanager
def _switching_often() -> Iterator[None]:
    """Make the interpreter switch threads often."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(min(before_s, _SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)
