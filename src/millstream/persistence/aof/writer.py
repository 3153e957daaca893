"""Write the append-only log: encode commands, and append them to a file without a loss.

    append(lines) ──▶ waiting ── write() ──▶ unsynced ── sync ──▶ on the device
                         ▲                      │
                         └──────────────────────┘ the sync failed: all of it is written again at its offset

The format is Redis's own: arrays of bulk strings, with SELECT where the database changes. A line is whole or absent: a
log that ends inside a line is cut before it when it is loaded, and one that ends inside MULTI … EXEC before the MULTI.

Written bytes are kept until a sync has succeeded. After a failed sync the system may have dropped the pages and would
report success for the next sync, so the bytes must be written again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, TypeAlias

from millstream.persistence.files import Handle

LogLine: TypeAlias = tuple[int, tuple[bytes, ...]]  # a database and a command that replays what happened in it

_SIZES: Final = tuple(b"$%d\r\n" % size for size in range(256))
_COUNTS: Final = tuple(b"*%d\r\n" % count for count in range(64))
_MOST_PREFIXES: Final = 4096


class FsyncPolicy(Enum):
    """The policy for syncing written data to the device."""

    ALWAYS = b"always"  # before any reply
    EVERYSEC = b"everysec"  # once a second, by another thread
    NO = b"no"  # when the system sees fit


def encode_line(argv: Sequence[bytes]) -> bytes:
    """Encode a command as in the log."""
    size = len(argv)
    parts = [_COUNTS[size] if size < 64 else b"*%d\r\n" % size]
    for word in argv:
        size = len(word)
        parts += (_SIZES[size] if size < 256 else b"$%d\r\n" % size, word, b"\r\n")
    return b"".join(parts)


_FENCES: Final = {(name,): encode_line((name,)) for name in (b"MULTI", b"EXEC")}  # around every delivery


class LineEncoder:
    """Encodes lines for one log: remembers the database, and has fast paths for the frequent commands of workers."""

    __slots__ = ("_prefixes", "db")

    def __init__(self) -> None:
        self.db: int | None = None  # the database of the last line; None: a SELECT is needed
        self._prefixes: dict[tuple[bytes, bytes, bytes], bytes] = {}  # the encoded beginning of claims, by consumer

    def encode(self, lines: Iterable[LogLine]) -> bytes:
        """Encode lines."""
        parts: list[bytes] = []
        for db, argv in lines:
            if db != self.db:
                parts.append(self.select(db))
            fence = _FENCES.get(argv) if len(argv) == 1 else None
            parts.append(fence or self.encode_one(argv))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def select(self, db: int) -> bytes:
        """Return the SELECT that a line of this database needs; empty if the last line had the same database."""
        if db == self.db:
            return b""
        self.db = db
        return encode_line((b"SELECT", b"%d" % db))

    def encode_one(self, argv: tuple[bytes, ...]) -> bytes:
        """Encode one line without SELECT. One format for all words takes half the time of a loop."""
        match argv:
            case (b"XADD", key, entry_id, name, value):
                return b"*5\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
                    len(key),
                    key,
                    len(entry_id),
                    entry_id,
                    len(name),
                    name,
                    len(value),
                    value,
                )
            case (b"XACK", key, group, entry_id):
                return b"*4\r\n$4\r\nXACK\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
                    len(key),
                    key,
                    len(group),
                    group,
                    len(entry_id),
                    entry_id,
                )
            case (b"XGROUP", b"SETID", key, group, entry_id, b"ENTRIESREAD", read):
                return (
                    b"*7\r\n$6\r\nXGROUP\r\n$5\r\nSETID\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"
                    b"$11\r\nENTRIESREAD\r\n$%d\r\n%b\r\n"
                    % (len(key), key, len(group), group, len(entry_id), entry_id, len(read), read)
                )
            case (
                b"XCLAIM",
                key,
                group,
                consumer,
                b"0",
                entry_id,
                b"TIME",
                time,
                b"RETRYCOUNT",
                count,
                b"FORCE",
                b"JUSTID",
                b"LASTID",
                last,
            ):
                prefix = self._prefixes.get((key, group, consumer)) or self._claim_prefix(key, group, consumer)
                return (
                    b"%b$%d\r\n%b\r\n$4\r\nTIME\r\n$%d\r\n%b\r\n$10\r\nRETRYCOUNT\r\n$%d\r\n%b\r\n"
                    b"$5\r\nFORCE\r\n$6\r\nJUSTID\r\n$6\r\nLASTID\r\n$%d\r\n%b\r\n"
                    % (prefix, len(entry_id), entry_id, len(time), time, len(count), count, len(last), last)
                )
        return encode_line(argv)

    def _claim_prefix(self, key: bytes, group: bytes, consumer: bytes) -> bytes:
        if len(self._prefixes) >= _MOST_PREFIXES:
            self._prefixes.clear()
        words = encode_line((b"XCLAIM", key, group, consumer, b"0"))
        prefix = self._prefixes[key, group, consumer] = b"*14\r\n" + words.removeprefix(b"*5\r\n")
        return prefix


class AppendLog:
    """The file that is appended to, and the data that is not yet safe in it.

    Every method is called under the owner's lock. Only the handle's `sync` may run outside of it, between
    `begin_sync` and `end_sync`.
    """

    __slots__ = (
        "_at",
        "_encoder",
        "_has_untracked",
        "_synced_at",
        "_unsynced",
        "_waiting",
        "handle",
        "keeps_unsynced",
        "waiting_bytes",
    )

    def __init__(self, handle: Handle, size: int, *, keeps_unsynced: bool) -> None:
        """Continue at `size`, the end of the last whole command."""
        self.handle = handle
        self.keeps_unsynced = keeps_unsynced  # False: there are no syncs, so written data counts as safe
        self.waiting_bytes = 0  # not written yet
        self._encoder = LineEncoder()
        self._at = size  # the end of the written data
        self._synced_at = size  # the end of the synced data
        self._unsynced: list[bytes] = []  # written, from _synced_at to _at
        self._waiting: list[bytes] = []  # from _at on
        self._has_untracked = False  # data was written, not kept, and not synced since

    @property
    def size(self) -> int:
        """Return the size of the file once everything is written."""
        return self._at + self.waiting_bytes

    @property
    def is_synced(self) -> bool:
        """Return whether everything is on the device."""
        return not self._waiting and not self._unsynced and not self._has_untracked

    def append(self, lines: Iterable[LogLine]) -> None:
        """Queue lines for the next `write`. A MemoryError leaves everything unchanged, the database included."""
        db = self._encoder.db
        try:
            data = self._encoder.encode(lines)
            self._waiting.append(data)
        except MemoryError:
            self._encoder.db = db
            raise
        self.waiting_bytes += len(data)

    def append_encoded(self, db: int, pieces: list[bytes]) -> None:
        """Queue encoded lines of one database, in arbitrary pieces."""
        before = self._encoder.db
        try:
            data = self._encoder.select(db) + b"".join(pieces)
            self._waiting.append(data)
        except MemoryError:
            self._encoder.db = before
            raise
        self.waiting_bytes += len(data)

    def write(self) -> None:
        """Write the queued data. After OSError or MemoryError a part may be written, and the rest stays queued."""
        if len(self._waiting) > 1:
            with contextlib.suppress(MemoryError):  # without memory for the joined data, write it piece by piece
                self._waiting = [b"".join(self._waiting)]
        while self._waiting:
            data = self._waiting[0]
            taken = self.handle.write_at(self._at, data)
            if taken == len(data):
                del self._waiting[0]
                done = data
            else:
                done, self._waiting[0] = data[:taken], data[taken:]
            self._at += taken
            self.waiting_bytes -= taken
            if self.keeps_unsynced:
                self._unsynced.append(done)
        if not self.keeps_unsynced:
            self._unsynced = []
            self._synced_at = self._at
            self._has_untracked = True

    def sync(self) -> None:
        """Sync the written data. After OSError it must be written again."""
        chunks = self.begin_sync()
        try:
            self.handle.sync()
        except OSError:
            self.end_sync(chunks, succeeded=False)
            raise
        self.end_sync(chunks, succeeded=True)
        self._has_untracked = False

    def begin_sync(self) -> int:
        """Return the state that a sync starting now will cover, for `end_sync`."""
        return len(self._unsynced)

    def end_sync(self, chunks: int, *, succeeded: bool) -> None:
        """Record the end of a sync. After a failure all data since the last good sync is queued again."""
        if succeeded:
            self._synced_at += sum(map(len, self._unsynced[:chunks]))
            del self._unsynced[:chunks]
            return
        self._waiting = self._unsynced + self._waiting
        self.waiting_bytes += sum(map(len, self._unsynced))
        self._unsynced = []
        self._at = self._synced_at

    def close(self) -> None:
        """Close the file."""
        self.handle.close()
