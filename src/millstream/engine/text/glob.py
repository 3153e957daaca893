"""Glob patterns over bytes: KEYS, SCAN MATCH, PSUBSCRIBE, CONFIG GET.

    *      any bytes          [abc] [a-z]   one of these       \\x    x itself
    ?      any byte           [^abc]        any but these

A pattern becomes a regular expression in which each `*` but the last, together with what follows it, is an atomic
group: once the first place for it is found, no other is tried. As every other part matches exactly one byte, that
loses no match, and time stays within pattern times text; plain backtracking would raise the text to the number of
stars. (Whether a byte is a letter of the other case is asked for ASCII letters only.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeAlias

Matcher: TypeAlias = Callable[[bytes], bool]
_MOST_STARS: Final = 1000  # with something between them
_KEPT_SIZE: Final = 1024  # longer patterns are not worth the memory of remembering them


def matches(pattern: bytes, text: bytes, *, ignore_case: bool = False) -> bool:
    """Whether the whole text fits the pattern."""
    return compiled(pattern, ignore_case)(text)


def compiled(pattern: bytes, ignore_case: bool = False) -> Matcher:
    """Return a function that tells whether a text fits the pattern."""
    return _kept(pattern, ignore_case) if len(pattern) <= _KEPT_SIZE else _made(pattern, ignore_case)


def _never(text: bytes) -> bool:
    return False


def _made(pattern: bytes, ignore_case: bool) -> Matcher:
    parts, least = _parts(pattern)
    if len(parts) > _MOST_STARS and sum(map(bool, parts)) > _MOST_STARS:
        return _never  # Redis gives up at so many
    if pattern and not any(parts):
        return bool  # stars alone: in Redis they match every text but the empty one
    flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
    expression: re.Pattern[bytes] | None = None

    def fits(text: bytes) -> bool:
        nonlocal expression
        if len(text) < least:  # so a monstrous pattern is not even compiled
            return False
        if expression is None:
            expression = re.compile(_expression(parts), flags)
        return expression.fullmatch(text) is not None

    return fits


_kept = lru_cache(maxsize=256)(_made)


def _expression(parts: list[bytes]) -> bytes:
    """Join the parts between the stars; the last one is tried from the end."""
    if len(parts) == 1:
        return parts[0]
    middle = b"".join(b"(?>.*?" + part + b")" for part in parts[1:-1] if part)
    return parts[0] + middle + b".*" + parts[-1]


def _parts(pattern: bytes) -> tuple[list[bytes], int]:
    """Regular expressions for the runs of one-byte elements between the stars, and how many elements there are."""
    parts, run, at, elements = [], bytearray(), 0, 0
    while at < len(pattern):
        sign = pattern[at : at + 1]
        if sign == b"*":
            parts.append(bytes(run))
            run.clear()
        elif sign == b"?":
            run += b"."
        elif sign == b"[":
            element, at = _one_of(pattern, at + 1)
            run += element
        else:
            at += sign == b"\\" and at + 1 < len(pattern)
            run += re.escape(pattern[at : at + 1])
        elements += sign != b"*"
        at += 1
    return [*parts, bytes(run)], elements


def _one_of(pattern: bytes, at: int) -> tuple[bytes, int]:
    """Parse a class that starts after its bracket. Returns its expression and the index of its closing bracket.

    A class that is not closed ends with the pattern. In `[a-]` the bracket is the end of the range.
    """
    negated = pattern[at : at + 1] == b"^"
    at += negated
    ranges: dict[tuple[int, int], None] = {}  # a set in order, so that a pattern has one expression
    while at < len(pattern) and pattern[at] != 0x5D:
        first = last = pattern[at]
        if first == 0x5C and at + 1 < len(pattern):
            at += 1
            first = last = pattern[at]
        elif at + 2 < len(pattern) and pattern[at + 1] == 0x2D:
            at += 2
            last = pattern[at]
        ranges[min(first, last), max(first, last)] = None
        at += 1
    if not ranges:
        return (b"." if negated else b"(?!)"), at
    inside = b"".join(b"\\x%02x-\\x%02x" % both for both in ranges)
    return (b"[^" if negated else b"[") + inside + b"]", at
