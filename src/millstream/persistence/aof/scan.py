"""A log read command by command, with the offset of each: for `check`, and for what the fast reader trips over.

Two kinds of end are told apart. A file that stops inside a command is torn: the write was cut off, and the command
was never acknowledged. Bytes that no command can start or go on with are damage. A tail of zero bytes counts as torn
too: some file systems leave one where a file had grown before its content arrived.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

_LONGEST_HEADER: Final = 32  # `*` or `$` and a number
_LONGEST_NOTE: Final = 4096
_LARGEST_BULK: Final = 1 << 40
_MOST_GUESSES: Final = 1000
_WINDOW: Final = 1 << 16
_COMMAND: Final = re.compile(rb"\r\n\*[1-9][0-9]{0,6}\r\n\$")


@dataclass(frozen=True, slots=True)
class Scanned:
    """A command and where it stands."""

    start: int
    end: int
    argv: list[bytes]


class Torn(Exception):
    """The file ends inside a command."""

    def __init__(self, at: int) -> None:
        super().__init__(f"the file ends inside the command at offset {at}")
        self.at = at  # where that command starts


class Damaged(Exception):
    """There is no command where one must be."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at  # where the command starts that cannot be read
        self.reason = reason


class _Short(Exception):
    """More bytes are needed than there are."""


class Scanner:
    """Reads commands from the pieces of a file; Torn or Damaged end it."""

    def __init__(self, chunks: Iterable[bytes], offset: int = 0, *, looks_closer: bool = True) -> None:
        """`offset` is where in the file the first piece stands. Looking closer tells apart what a bad end is."""
        self._looks_closer = looks_closer
        self._chunks = iter(chunks)
        self._data = b""
        self._offset = offset  # of _data in the file
        self._at = 0  # in _data
        self.end = offset  # where the last whole command, or note, ends

    def __iter__(self) -> Iterator[Scanned]:
        while True:
            start = self._offset + self._at
            try:
                argv = self._command()
            except _Short:
                if self._looks_closer and _commands_follow(self._rest(start)):
                    raise Damaged(start, "a length is wrong: the command would swallow others") from None
                raise Torn(start) from None
            except Damaged as damage:
                if self._looks_closer and _is_cut_short(self._rest(start)):
                    raise Torn(start) from None
                raise Damaged(start, damage.reason) from None
            if argv is None:
                return
            self.end = self._offset + self._at
            if argv:
                yield Scanned(start, self.end, argv)

    def _command(self) -> list[bytes] | None:
        """The next command, nothing of it for a note, None at the end of the file."""
        self._drop_read()
        if not self._fill(1):
            return None
        if self._data[self._at] == 0x23:  # `#TS:…`: when what follows was written
            self._line(_LONGEST_NOTE)
            return []
        count = self._number(b"*", "a command")
        if count < 1:
            raise Damaged(self._offset + self._at, "a command has no words")
        return [self._bulk() for _ in range(count)]

    def _bulk(self) -> bytes:
        size = self._number(b"$", "a word")
        if not 0 <= size < _LARGEST_BULK:
            raise Damaged(self._offset + self._at, f"a word is said to have {size} bytes")
        if not self._fill(size + 2):
            raise _Short
        start, self._at = self._at, self._at + size + 2
        if self._data[start + size : self._at] != b"\r\n":
            raise Damaged(self._offset + start + size, "a word does not end where it should")
        return self._data[start : start + size]

    def _number(self, sign: bytes, what: str) -> int:
        """The number of a header line."""
        here = self._offset + self._at
        if self._fill(1) and self._data[self._at : self._at + 1] != sign:
            found = self._data[self._at : self._at + 16]
            raise Damaged(here, f"{what} must start with {sign.decode()!r}, not {found!r}")
        line = self._line(_LONGEST_HEADER)
        if not line[1:].isdigit():
            raise Damaged(here, f"the length of {what} is {line[1:]!r}")
        return int(line[1:])

    def _line(self, longest: int) -> bytes:
        start = self._at
        while (end := self._data.find(b"\r\n", start)) < 0:
            if len(self._data) - start > longest:
                raise Damaged(self._offset + start, f"a line does not end: {self._data[start : start + 16]!r}")
            if not self._fill(len(self._data) - self._at + 1):
                raise _Short
            start = self._at
        self._at = end + 2
        return self._data[start:end]

    def _fill(self, size: int) -> bool:
        """Have this many bytes from here on; whether the file has them."""
        missing = size - (len(self._data) - self._at)
        if missing <= 0:
            return True
        pieces = [self._data]
        while missing > 0:
            piece = next(self._chunks, b"")
            if not piece:
                break
            pieces.append(piece)
            missing -= len(piece)
        self._data = b"".join(pieces)
        return missing <= 0

    def _drop_read(self) -> None:
        """Forget what is read, now and then: between two commands nobody points into it."""
        if self._at > 1 << 16:
            self._data = self._data[self._at :]
            self._offset += self._at
            self._at = 0

    def _rest(self, start: int) -> bytes:
        """Everything from this offset to the end of the file."""
        return self._data[start - self._offset :] + b"".join(self._chunks)


def _is_cut_short(rest: bytes) -> bool:
    """Whether this is the beginning of a command and then zero bytes to the end of the file."""
    beginning = rest.rstrip(b"\0")
    if len(beginning) == len(rest):
        return False
    try:
        for _ in Scanner([beginning], looks_closer=False):
            return False
    except Torn:
        return True
    except Damaged:
        return False
    return not beginning


def _commands_follow(rest: bytes) -> bool:
    """Whether whole commands stand behind the start of one that seems not to end.

    A length that was hit by damage makes the rest of a file look like one long word. An acknowledged command may be
    part of it, so this is not for us to cut. (A value that holds a log itself, torn, looks the same: `check` helps.)
    """
    for found in islice(_COMMAND.finditer(rest, 1), _MOST_GUESSES):
        window = rest[found.start() + 2 : found.start() + _WINDOW]
        with contextlib.suppress(Torn, Damaged):
            for command in Scanner([window], looks_closer=False):
                if command.argv[0].isalpha():
                    return True
                break
    return False
