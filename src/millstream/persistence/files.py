"""The only module that opens files: write, sync, rename, read. Other modules define their content.

A `Handle` is a file for writing. The caller names the offset of each write, so a write that failed halfway, or whose
sync failed, is repeated at the same offset. A name is durable only once its directory is synced, which `rename` does
itself and `create` does not.

Errors are the system's own (`OSError`): callers know their meaning.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Final, Protocol

from millstream.errors import PersistenceError

CHUNK: Final = 1 << 18  # bytes read at a time
_LOCK_NAME: Final = "millstream.lock"
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
_LONGEST_HOLDER: Final = 24
_HOLDER: Final = re.compile(rb"(?:[0-9]{1,20}\n?)?\0*")  # zeros: the process number was not on the disk at a power cut
_LOCK_TRIES: Final = 5
_LOCK_PAUSE_S: Final = 0.02


class Handle(Protocol):
    """A file for writing."""

    def write_at(self, at: int, data: bytes) -> int:
        """Write at this offset. Returns the number of bytes written, which may be fewer than given."""
        ...

    def sync(self) -> None:
        """Return when all written data is on the device."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to this size."""
        ...

    def close(self) -> None:
        """Close the file without a sync."""
        ...


class Files(Protocol):
    """The file system operations that persistence needs."""

    def exists(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int: ...

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted; none if there is no such directory."""
        ...

    def read(self, path: Path, at: int = 0) -> Iterator[bytes]:
        """Yield the content from this offset on, in pieces."""
        ...

    def make_directory(self, directory: Path) -> None:
        """Make a directory and its parents. It may exist already."""
        ...

    def create(self, path: Path) -> Handle:
        """Create an empty file; an existing one is emptied."""
        ...

    def open(self, path: Path) -> Handle:
        """Open an existing file."""
        ...

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file within its directory, durably. A file of that name is replaced."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file if it exists."""
        ...

    def sync_directory(self, directory: Path) -> None:
        """Make the names in a directory durable."""
        ...

    def is_directory(self, path: Path) -> bool: ...

    def is_regular(self, path: Path) -> bool:
        """Return whether this is a regular file, and not a directory, pipe or device."""
        ...

    def resolve(self, path: Path) -> Path:
        """Return the path without symbolic links."""
        ...

    def lock(self, directory: Path) -> Callable[[], None]:
        """Lock a directory. Returns a function that unlocks it. Raises PersistenceError if another has locked it."""
        ...

    def is_locked_by(self, directory: Path) -> str | None:
        """Return who has locked a directory: empty if it is unlocked, None if no broker has ever locked it."""
        ...


def _sync(fd: int) -> None:
    """Sync a file. On macOS only a special call reaches the device."""
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:
        fcntl.fcntl(fd, full_sync)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(fd)  # fdatasync covers the size; timestamps are not needed
    else:
        os.fsync(fd)


class RealHandle:
    """A file of the operating system."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write_at(self, at: int, data: bytes) -> int:
        return os.pwrite(self._fd, data, at)

    def sync(self) -> None:
        _sync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    __del__ = close  # a broker that was dropped without a close keeps no file open


class RealFiles:
    """The file system of this machine."""

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def names(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory)) if directory.is_dir() else []

    def read(self, path: Path, at: int = 0) -> Iterator[bytes]:
        with path.open("rb", buffering=0) as file:
            file.seek(at)
            while chunk := file.read(CHUNK):
                yield chunk

    def make_directory(self, directory: Path) -> None:
        if not directory.is_dir():
            directory.mkdir(parents=True, exist_ok=True)
            self.sync_directory(directory.parent)

    def create(self, path: Path) -> RealHandle:
        return RealHandle(os.open(path, _NEW_FILE, 0o644))

    def open(self, path: Path) -> RealHandle:
        return RealHandle(os.open(path, os.O_WRONLY | os.O_CLOEXEC))

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)
        self.sync_directory(new.parent)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync_directory(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def is_regular(self, path: Path) -> bool:
        return path.is_file()

    def resolve(self, path: Path) -> Path:
        return path.resolve()

    def lock(self, directory: Path) -> Callable[[], None]:
        fd = _open_lock(directory / _LOCK_NAME, os.O_RDWR | os.O_CREAT)
        try:
            holder = os.pread(fd, _LONGEST_HOLDER, 0)
            if not _HOLDER.fullmatch(holder):
                raise PersistenceError(f"{directory / _LOCK_NAME} is not a lock file of Millstream: move it away")
            if not _try_lock(fd):
                raise PersistenceError(f"{directory} is in use by another broker{_named(holder)}")
        except BaseException:
            os.close(fd)
            raise
        # The system releases a lock when its holder dies: the content only names the process. It is empty on a full
        # disk.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        return RealHandle(fd).close

    def is_locked_by(self, directory: Path) -> str | None:
        try:
            fd = _open_lock(directory / _LOCK_NAME, os.O_RDONLY | os.O_NONBLOCK)
        except (OSError, PersistenceError):
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _named(os.pread(fd, _LONGEST_HOLDER, 0)).removeprefix(", ") or "another process"
        finally:
            os.close(fd)
        return ""


def _open_lock(path: Path, flags: int) -> int:
    """Open a lock file without following links, because its content is overwritten."""
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PersistenceError(f"{path} is a symbolic link, not a lock file of Millstream: move it away") from error
        raise


def _try_lock(fd: int) -> bool:
    """Lock a file. A process that only checks the lock takes it for a moment, so try again before giving up."""
    for left in reversed(range(_LOCK_TRIES)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if left:
                time.sleep(_LOCK_PAUSE_S)
        else:
            return True
    return False


def _named(holder: bytes) -> str:
    pid = holder.decode(errors="replace").strip()
    if not pid.isdigit():
        return ""
    return f", process {pid}" + (" (this one)" if int(pid) == os.getpid() else "")


class ByteSource:
    """The pieces of a file as `read(count)`, for callers that name a size."""

    __slots__ = ("_left", "_pieces", "given")

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = b""
        self.given = 0  # bytes, so far

    def starts_with(self, prefixes: tuple[bytes, ...]) -> bool:
        """Return whether the unread bytes begin like this. Nothing is read."""
        self._left = self._left or next(self._pieces, b"")
        return self._left.startswith(prefixes)

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes, none at the end."""
        data = self._left or next(self._pieces, b"")
        data, self._left = data[:count], data[count:]
        self.given += len(data)
        return data


def read_between(files: Files, path: Path, start: int, end: int) -> Iterator[bytes]:
    """Read the content from one offset up to another, in pieces."""
    left = end - start
    for chunk in files.read(path, start):
        if len(chunk) >= left:
            yield chunk[:left]
            return
        left -= len(chunk)
        yield chunk


def end_of_content(files: Files, path: Path, start: int = 0) -> int:
    """Return the offset after the last byte that is not zero; `start` if all bytes from there on are zeros."""
    end = files.size(path)
    while end > start:
        at = max(start, end - CHUNK)
        content = b"".join(read_between(files, path, at, end)).rstrip(b"\0")
        if content:
            return at + len(content)
        end = at
    return start


def write_all(handle: Handle, at: int, data: bytes) -> int:
    """Write all of the data in as many calls as necessary. Returns the offset after it."""
    left = memoryview(data)
    while left:
        taken = handle.write_at(at, bytes(left) if len(left) < len(data) else data)
        at += taken
        left = left[taken:]
    return at


def write_file(files: Files, path: Path, chunks: Iterable[bytes]) -> int:
    """Write a whole file under another name, sync it, then rename it. Returns its size.

    Readers see the old file or the new one, also after a power cut. An unfinished file is removed.
    """
    temporary = path.with_name(f"temp-{path.name}")
    handle = files.create(temporary)
    try:
        size = 0
        try:
            for chunk in chunks:
                size = write_all(handle, size, chunk)
            handle.sync()
        finally:
            handle.close()
        files.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            files.remove(temporary)
        raise
    return size


def free_name(files: Files, path: Path, word: str) -> Path:
    """Return a name beside this file that no file has yet: `NAME.WORD.NUMBER`."""
    return next(copy for number in count(1) if not files.exists(copy := path.with_name(f"{path.name}.{word}.{number}")))


def copy_file(files: Files, source: Path, target: Path) -> None:
    """Make a durable copy of a file."""
    write_file(files, target, files.read(source))
