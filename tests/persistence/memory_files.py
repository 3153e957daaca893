"""Files in memory that fail as real ones do: full, broken, slow to arrive, gone with the power.

    written ──▶ seen by everybody at once ── sync ──▶ survives a power cut
    create, rename, remove ──▶ seen at once ── sync of the directory ──▶ survive one

`power_cut` leaves what was synced, and of an unsynced tail as much as asked for.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

CHUNK = 1000  # small: reading goes across pieces


class PowerCut(BaseException):
    """The machine is off. No code may catch it."""


class Content:
    """A file: what is seen, and what the device has."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""


class MemoryHandle:
    """A file that is being written."""

    def __init__(self, files: MemoryFiles, path: Path, content: Content) -> None:
        self._files = files
        self._path = path
        self._content = content
        self.is_closed = False

    def write_at(self, at: int, data: bytes) -> int:
        assert not self.is_closed
        self._files.step("write", self._path)
        data = self._files.as_much_as_fits(self._content, at, data)
        content = self._content.data
        content.extend(bytes(max(0, at - len(content))))
        content[at : at + len(data)] = data
        return len(data)

    def sync(self) -> None:
        assert not self.is_closed
        self._files.step("sync", self._path)
        self._content.synced = bytes(self._content.data)

    def truncate(self, size: int) -> None:
        self._files.step("truncate", self._path)
        del self._content.data[size:]

    def close(self) -> None:
        self.is_closed = True


class MemoryFiles:
    """A file system in memory; see the module for what can go wrong with it."""

    def __init__(self) -> None:
        self._seen: dict[Path, Content] = {}
        self._durable: dict[Path, Content] = {}
        self.steps = 0  # what was done that can fail
        self.log: list[tuple[str, str]] = []  # of these: what, and to which file
        self.cut_at: int | None = None  # the step at which the power goes
        self.broken: dict[str, int] = {}  # kinds of steps that fail, and how (errno)
        self.fails_at: dict[int, int] = {}  # single steps that fail
        self.free: int | None = None  # bytes that can still be written; None: any number
        self.longest_write: int | None = None
        self.before_sync: Callable[[], None] | None = None

    # Going wrong

    def step(self, what: str, path: Path) -> None:
        """Something is done: does it work?"""
        self.steps += 1
        self.log.append((what, path.name))
        if self.cut_at is not None and self.steps >= self.cut_at:
            raise PowerCut
        if what == "sync" and self.before_sync is not None:
            self.before_sync()
        code = self.fails_at.get(self.steps, self.broken.get(what, 0))
        if code:
            raise OSError(code, os.strerror(code), str(path))

    def as_much_as_fits(self, content: Content, at: int, data: bytes) -> bytes:
        if self.longest_write is not None:
            data = data[: self.longest_write]
        if self.free is None:
            return data
        room = self.free + max(0, len(content.data) - at)  # writing over something takes no room
        if data and room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data = data[:room]
        self.free -= max(0, at + len(data) - len(content.data))
        return data

    def power_cut(self, tail: float = 0.0) -> None:
        """The machine goes off and on: what was not synced is gone, but for this part of an appended tail."""
        self._seen = dict(self._durable)
        for content in self._seen.values():
            kept = content.synced
            if bytes(content.data[: len(kept)]) == kept:
                kept += bytes(content.data[len(kept) :])[: int(tail * (len(content.data) - len(kept)))]
            content.data, content.synced = bytearray(kept), kept
        self.cut_at = None

    def crash(self) -> None:
        """The process dies; the system and its files go on."""
        self.cut_at = None

    def drop_unsynced(self, path: Path) -> None:
        """What a system does that could not write its pages: they read as zeros, and count as written."""
        content = self._found(path)
        rest = len(content.data) - len(content.synced)
        content.data[len(content.synced) :] = bytes(rest)

    def put(self, path: Path, data: bytes) -> None:
        """A file with this content, durable."""
        content = self._seen[path] = self._durable[path] = Content()
        content.data, content.synced = bytearray(data), data

    def content(self, path: Path) -> bytes:
        return bytes(self._seen[path].data)

    def copy(self) -> MemoryFiles:
        """What is seen, durable, in files of their own."""
        twin = MemoryFiles()
        for path, content in self._seen.items():
            twin.put(path, bytes(content.data))
        return twin

    # Files

    def exists(self, path: Path) -> bool:
        return path in self._seen

    def size(self, path: Path) -> int:
        return len(self._found(path).data)

    def names(self, directory: Path) -> list[str]:
        return sorted({path.relative_to(directory).parts[0] for path in self._seen if directory in path.parents})

    def read(self, path: Path, at: int = 0) -> Iterator[bytes]:
        data = bytes(self._found(path).data)
        for start in range(at, len(data), CHUNK):
            yield data[start : start + CHUNK]

    def make_directory(self, directory: Path) -> None:
        pass

    def create(self, path: Path) -> MemoryHandle:
        self.step("create", path)
        content = self._seen[path] = Content()
        return MemoryHandle(self, path, content)

    def open(self, path: Path) -> MemoryHandle:
        return MemoryHandle(self, path, self._found(path))

    def rename(self, old: Path, new: Path) -> None:
        self.step("rename", new)
        self._seen[new] = self._seen.pop(old)
        self.sync_directory(new.parent)

    def remove(self, path: Path) -> None:
        self.step("remove", path)
        self._seen.pop(path, None)

    def sync_directory(self, directory: Path) -> None:
        self.step("sync directory", directory)
        for path in [path for path in self._durable if path.parent == directory]:
            del self._durable[path]
        self._durable |= {path: content for path, content in self._seen.items() if path.parent == directory}

    def is_directory(self, path: Path) -> bool:
        return bool(self.names(path))

    def is_regular(self, path: Path) -> bool:
        return path in self._seen

    def resolve(self, path: Path) -> Path:
        return path

    def is_locked_by(self, directory: Path) -> str | None:
        return None

    def lock(self, directory: Path) -> Callable[[], None]:
        return lambda: None

    def _found(self, path: Path) -> Content:
        if path not in self._seen:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return self._seen[path]
