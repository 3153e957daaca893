"""Text that is safe to print: what came from data cannot control a terminal, forge a log line or break a table.

Names, ids, errors, payloads and headers are other people's data. `printable` escapes every character that is not
printable (ESC and all other control characters, bidirectional overrides, line separators, lone surrogates) and every
byte that is not UTF-8, as Python writes them: `\\x1b`, `\\u202e`, `\\xff`. The CLI and the demo's report print nothing
from data without it; loggers that are made by `safe_logger` apply it to their arguments and tracebacks.
"""

from __future__ import annotations

import copy
import logging
import numbers
import sys
import traceback
from collections.abc import Iterable, Mapping
from typing import Final

_JOINERS: Final = "\u200c\u200d"  # part of ordinary words and emoji in several scripts


def printable(value: object) -> str:
    """Return a value as one line of text without characters that control how it is shown."""
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes | bytearray) else str(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _JOINERS else _escaped(char) for char in text)


def printable_lines(text: str) -> str:
    """Return a text of several lines with everything escaped but its line feeds and tabs."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def _escaped(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"  # a byte that is not UTF-8, as `surrogateescape` holds it
    return char.encode("unicode_escape").decode("ascii")


def safe_logger(logger: logging.Logger) -> logging.Logger:
    """Return a module's logger after making it escape data in the arguments and the traceback of its records."""
    if not any(isinstance(each, _Escaping) for each in logger.filters):
        logger.addFilter(_Escaping())
    return logger


class _Escaping(logging.Filter):
    """Escape what a record prints; the exception itself stays in the record for error trackers."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_shown, record.args))
        elif isinstance(record.args, Mapping):
            record.args = {name: _shown(value) for name, value in record.args.items()}
        _escape_trace(record)
        return True


def _escape_trace(record: logging.LogRecord) -> None:
    """Put the escaped traceback where every formatter looks for it first."""
    if record.exc_info:
        record.exc_text = printable_trace(traceback.format_exception(*record.exc_info))


def printable_trace(pieces: Iterable[str]) -> str:
    """Return a traceback with data escaped; an exception's message is indented, so no line looks like a record."""
    lines = []
    for piece in pieces:
        first, *rest = piece.strip("\n").split("\n")
        lines += [first, *(line if line.startswith("  ") else f"    {line}" for line in rest)]
    return printable_lines("\n".join(lines))


class LineFormatter(logging.Formatter):
    """Format a record with everything from data escaped: a message is one line, only a traceback has several."""

    def format(self, record: logging.LogRecord) -> str:
        shown = copy.copy(record)
        shown.msg, shown.args = printable(record.getMessage()), None
        _escape_trace(shown)
        return super().format(shown)


class _Shown:
    """An argument of a log line whose text is escaped when it is printed."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return printable(self._value)

    def __repr__(self) -> str:
        return printable(repr(self._value))


def _shown(value: object) -> object:
    """Return an argument as it is if it is a number, else as something that prints escaped."""
    return value if value is None or isinstance(value, numbers.Number) else _Shown(value)


def use_safe_streams() -> None:
    """Let standard output and error take every text: what their encoding lacks is written as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
