"""Read a log command by command, with offsets: for `check`, and where the fast reader stops.

There are two kinds of end. A file that stops inside a command is torn: the write was cut off, and the command was never
acknowledged. Bytes that no command can start or continue with are damage.

Some file systems leave a tail of zero bytes where a file had grown before its content arrived. Callers leave that tail
out (`files.end_of_content`): a whole command ends with a newline, so no byte of one is lost with it.
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
_LONGEST_NAME: Final = 128
_MOST_GUESSES: Final = 1000
_WINDOW: Final = 1 << 16
_HEADER_START: Final = re.compile(rb"[*$]?[0-9]*\r?")
_COMMAND: Final = re.compile(rb"\r\n\*[1-9][0-9]{0,6}\r\n\$")


@dataclass(frozen=True, slots=True)
class Scanned:
    """A command and its offsets."""

    start: int
    end: int
    argv: list[bytes]


class Torn(Exception):
    """The file ends inside a command."""

    def __init__(self, at: int, *, holds_commands: bool) -> None:
        super().__init__(f"the file ends inside the command at offset {at}")
        self.at = at  # the offset of that command
        # Its last word contains whole commands: a value with RESP text, or a damaged length that swallows commands.
        self.holds_commands = holds_commands


class Damaged(Exception):
    """A command is missing or malformed."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at  # the offset of the command that cannot be read
        self.reason = reason


class _Short(Exception):
    """The file has fewer bytes than needed."""


class Scanner:
    """Reads commands from the pieces of a file. Raises Torn or Damaged."""

    def __init__(self, chunks: Iterable[bytes], offset: int = 0) -> None:
        """`offset` is the position of the first piece in the file."""
        self._chunks = iter(chunks)
        self._data = b""
        self._offset = offset  # of _data in the file
        self._at = 0  # in _data
        self.end = offset  # the end of the last whole command or note

    def __iter__(self) -> Iterator[Scanned]:
        while True:
            start = self._offset + self._at
            try:
                argv = self._command()
            except _Short:
                raise Torn(start, holds_commands=_holds_commands(self._rest(start))) from None
            except Damaged as damage:
                raise Damaged(start, damage.reason) from None
            if argv is None:
                return
            self.end = self._offset + self._at
            if argv:
                yield Scanned(start, self.end, argv)

    def _command(self) -> list[bytes] | None:
        """Return the next command, an empty one for a note, None at the end of the file."""
        self._drop_read()
        if not self._fill(1):
            return None
        if self._data[self._at] == 0x23:  # `#TS:…`: the time of the following commands
            self._line(_LONGEST_NOTE)
            return []
        count = self._number(b"*", "a command")
        if count < 1:
            raise Damaged(self._offset + self._at, "a command has no arguments")
        return [self._bulk(_LONGEST_NAME), *(self._bulk(_LARGEST_BULK) for _ in range(count - 1))]

    def _bulk(self, largest: int) -> bytes:
        size = self._number(b"$", "a word")
        if size > largest:
            raise Damaged(self._offset + self._at, f"the length of an argument is {size} bytes")
        if not self._fill(size + 2):
            raise _Short
        start, self._at = self._at, self._at + size + 2
        if self._data[start + size : self._at] != b"\r\n":
            raise Damaged(self._offset + start + size, "an argument does not have the length it declares")
        return self._data[start : start + size]

    def _number(self, sign: bytes, what: str) -> int:
        """Return the number of a header line."""
        here = self._offset + self._at
        if self._fill(1) and self._data[self._at : self._at + 1] != sign:
            found = self._data[self._at : self._at + 16]
            raise Damaged(here, f"{what} must start with {sign.decode()!r}, not {found!r}")
        try:
            line = self._line(_LONGEST_HEADER)
        except _Short:
            if not _HEADER_START.fullmatch(self._data, self._at):
                raise Damaged(here, f"the length of {what} is not a number") from None
            raise
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
        """Make sure of this many unread bytes. Returns whether the file has them."""
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
        """Drop read bytes from time to time. Call it between commands, when no offset into them is in use."""
        if self._at > 1 << 16:
            self._data = self._data[self._at :]
            self._offset += self._at
            self._at = 0

    def _rest(self, start: int) -> bytes:
        """Return everything from this offset to the end of the file."""
        return self._data[start - self._offset :] + b"".join(self._chunks)


def _holds_commands(rest: bytes) -> bool:
    """Return whether the last, torn command contains whole commands."""
    for found in islice(_COMMAND.finditer(rest, 1), _MOST_GUESSES):
        window = rest[found.start() + 2 : found.start() + _WINDOW]
        with contextlib.suppress(_Short, Damaged):
            command = Scanner([window])._command()
            if command and command[0].isalpha():
                return True
    return False
