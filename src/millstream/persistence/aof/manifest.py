"""The files of an append-only log: Redis's manifest, as text and as a value.

    appendonlydir/
      appendonly.aof.manifest      file appendonly.aof.2.base.rdb seq 2 type b
                                   file appendonly.aof.3.incr.aof seq 3 type i
                                   file appendonly.aof.4.incr.aof seq 4 type i
      appendonly.aof.2.base.rdb    the state at some moment
      appendonly.aof.3.incr.aof    the changes since then
      appendonly.aof.4.incr.aof    later changes: the file that is written

Type h marks history: files that a rewrite has replaced and that wait for removal. Numbers are never reused, even
after a failed rewrite, because the manifest that names them may have reached the disk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from millstream.errors import PersistenceError

_SPECIAL: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\a": "\\a", "\b": "\\b"}
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b"}


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the log."""

    name: str
    seq: int

    def line(self, kind: str) -> str:
        """Return the line of the manifest. A name with special characters is quoted."""
        return f"file {_quoted(self.name)} seq {self.seq} type {kind}\n"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a log in the order they are replayed."""

    base: LogFile | None = None
    incrs: tuple[LogFile, ...] = ()
    history: tuple[LogFile, ...] = ()
    base_seq: int = 0  # the highest used number of a base file
    incr_seq: int = 0  # the highest used number of an incremental file

    def to_text(self) -> str:
        """Return the text of the manifest: base, history, increments."""
        lines = [] if self.base is None else [self.base.line("b")]
        lines += [file.line("h") for file in self.history]
        lines += [file.line("i") for file in self.incrs]
        return "".join(lines)

    @property
    def replayed(self) -> tuple[LogFile, ...]:
        """Return the files to load, in order."""
        return self.incrs if self.base is None else (self.base, *self.incrs)

    def with_incr(self, stem: str) -> Manifest:
        """Return the manifest with one more incremental file, which is the one to write."""
        seq = self.incr_seq + 1
        new = LogFile(f"{stem}.{seq}.incr.aof", seq)
        return replace(self, incrs=(*self.incrs, new), incr_seq=seq)

    def with_base(self, base: LogFile, since: LogFile | None) -> Manifest:
        """Return the manifest with a new base that covers everything before `since`. Replaced files become history."""
        at = len(self.incrs) if since is None else self.incrs.index(since)
        old = (*self.incrs[:at], *((self.base,) if self.base is not None else ()))
        return replace(
            self, base=base, incrs=self.incrs[at:], history=(*self.history, *old), base_seq=max(self.base_seq, base.seq)
        )

    def with_new_base_number(self) -> Manifest:
        """Return the manifest with one more used number of a base."""
        return replace(self, base_seq=self.base_seq + 1)

    def latest_base(self, stem: str, ending: str) -> LogFile:
        """Return the base with the last number. `ending` is rdb or aof."""
        return LogFile(f"{stem}.{self.base_seq}.base.{ending}", self.base_seq)

    def with_numbers_of(self, other: Manifest) -> Manifest:
        """Return the same files, with the numbers that the other manifest has used."""
        return replace(self, base_seq=max(self.base_seq, other.base_seq), incr_seq=max(self.incr_seq, other.incr_seq))


@dataclass(slots=True)
class _Parsed:
    base: LogFile | None = None
    incrs: list[LogFile] = field(default_factory=list)
    history: list[LogFile] = field(default_factory=list)


def read_manifest(data: bytes) -> Manifest:
    """Read the content of a manifest file; as in Redis its last line must be whole."""
    manifest = parse_manifest(data.decode("utf-8", "surrogateescape"))
    if not data.endswith(b"\n"):
        raise PersistenceError("the last line of the manifest is incomplete")
    return manifest


def numbered(names: Iterable[str], stem: str, kind: str) -> dict[str, int]:
    """Return which of these names are those of files of this log, with their numbers; `kind` is base or incr."""
    pattern = re.compile(re.escape(stem) + rf"\.([0-9]{{1,18}})\.{kind}\.(?:aof|rdb)")
    return {name: int(match[1]) for name in names if (match := pattern.fullmatch(name))}


def parse_manifest(text: str) -> Manifest:
    """Read a manifest, Redis's or ours; PersistenceError says which line is wrong."""
    found = _Parsed()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            _take_line(found, _words(line))
        except ValueError as error:
            raise PersistenceError(f"line {number} of the manifest {line!r}: {error}") from None
    if not found.base and not found.incrs:
        raise PersistenceError("the manifest names no files to load")
    names = [file.name for file in (*found.incrs, *([found.base] if found.base else []))]
    if len(set(names)) < len(names):
        raise PersistenceError("the manifest names a file twice")
    bases = [file.seq for file in found.history if ".base." in file.name] + ([found.base.seq] if found.base else [])
    incrs = [file.seq for file in (*found.history, *found.incrs) if ".base." not in file.name]
    return Manifest(found.base, tuple(found.incrs), tuple(found.history), max(bases, default=0), max(incrs, default=0))


def _take_line(found: _Parsed, words: list[str]) -> None:
    """Read one line. Unknown keys are ignored, as in Redis."""
    if len(words) < 6 or len(words) % 2:
        raise ValueError("it is not made of names and values")
    values = dict(zip([word.lower() for word in words[::2]], words[1::2], strict=True))
    name, seq, kind = values.get("file"), values.get("seq"), values.get("type")
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise ValueError("a file name is missing or is a path")
    if seq is None or not seq.isdecimal() or int(seq) < 1:
        raise ValueError("the number is missing or is none")
    file = LogFile(name, int(seq))
    if kind == "b":
        if found.base is not None:
            raise ValueError("there is a second base")
        found.base = file
    elif kind == "i":
        if found.incrs and found.incrs[-1].seq >= file.seq:
            raise ValueError("the numbers of the increments do not rise")
        found.incrs.append(file)
    elif kind == "h":
        found.history.append(file)
    else:
        raise ValueError("the type must be b, i or h")


def _quoted(name: str) -> str:
    if name and all(char.isalnum() or char in "._-:" for char in name):
        return name
    return '"' + "".join(_SPECIAL.get(char, char) for char in name) + '"'


def _words(line: str) -> list[str]:
    """Return the words of a line. A word in double quotes may contain blanks and escapes."""
    words: list[str] = []
    at = 0
    while at < len(line):
        if line[at].isspace():
            at += 1
        elif line[at] == '"':
            word, at = _unquote(line, at + 1)
            words.append(word)
        else:
            end = at
            while end < len(line) and not line[end].isspace():
                end += 1
            words.append(line[at:end])
            at = end
    return words


def _unquote(line: str, at: int) -> tuple[str, int]:
    """Return the word up to its closing quote, and the position after it."""
    chars: list[str] = []
    while at < len(line):
        if line[at] == '"':
            return "".join(chars), at + 1
        if line[at] == "\\" and line[at + 1 : at + 2] == "x":
            chars.append(chr(int(line[at + 2 : at + 4], 16)))
            at += 4
        elif line[at] == "\\":
            escaped = line[at + 1 : at + 2]
            chars.append(_ESCAPES.get(escaped, escaped))
            at += 2
        else:
            chars.append(line[at])
            at += 1
    raise ValueError("a quote is not closed")
