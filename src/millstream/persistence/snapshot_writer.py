"""A whole keyspace into one file, beside everything else: an RDB snapshot, or the base of a log.

    freeze, under the lock ──▶ Dump.run, in a thread ──▶ a temporary file, synced ──▶ its owner gives it its name

The thread shares the interpreter with those who serve clients, so it makes way for them: it rests as long as it has
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
_SWITCH_S: Final = 0.0005  # how long a thread may keep the interpreter while others want it


class Form(Enum):
    """How a keyspace is written; the value is what its file's name ends with."""

    RDB = "rdb"
    AOF = "aof"  # commands


class Cancelled(Exception):
    """The dump is no longer wanted."""


@dataclass(slots=True, kw_only=True)
class Dump:
    """One file being written."""

    files: Files
    path: Path  # a temporary one
    keyspace: Keyspace  # frozen, or under the lock until it is done
    form: Form
    now_ms: int  # idempotency records that have expired by then are left out of RDB
    aux: Mapping[bytes, bytes] = field(default_factory=dict)  # what an RDB file says about itself
    functions: Iterable[bytes] = ()
    makes_way: bool = False
    size: int = 0
    error: Exception | None = None
    is_cancelled: bool = False
    _rested_s: float = 0.0

    def run(self) -> None:
        """Write the file and sync it. What goes wrong is in `error`, and nothing is left behind then."""
        try:
            with _switching_often() if self.makes_way else contextlib.nullcontext():
                self._write()
        except Exception as error:
            self.error = error.with_traceback(None)  # which has this dump, and with it the whole copy
            self.discard()

    def start(self, done: Callable[[Dump], None]) -> threading.Thread:
        """Run in a thread of its own; `done` is called from there."""

        def work() -> None:
            self.run()
            done(self)

        thread = threading.Thread(target=work, name="millstream-dump", daemon=True)
        thread.start()
        return thread

    def move_to(self, path: Path) -> None:
        """Give the file its place."""
        self.files.rename(self.path, path)

    def discard(self) -> None:
        """Remove the file, if it is not in its place."""
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
    """The same bytes in longer pieces."""
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
    """Let others have the interpreter soon after they ask for it."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(min(before_s, _SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)
