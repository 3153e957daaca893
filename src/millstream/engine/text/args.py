"""Reading arguments: integers, words, counts. Every reader raises the text Redis answers with."""

from __future__ import annotations

from typing import Final

from millstream.engine.faults import NOT_AN_INTEGER, fault

I64_MAX: Final = 2**63 - 1
I64_MIN: Final = -(2**63)
U64_MAX: Final = 2**64 - 1


def as_integer(word: bytes) -> int | None:
    """Parse a canonical signed 64-bit decimal; None for any other text: no `+`, blanks, leading zeros or `-0`."""
    size = len(word)
    if size == 0 or size > 20:
        return None
    digits = word[1:] if word[0] == 45 else word
    # bytes.isdigit knows ASCII digits only, so int() cannot meet anything it would read generously
    if not digits.isdigit() or (digits[0] == 48 and size > 1):
        return None
    value = int(word)
    return value if I64_MIN <= value <= I64_MAX else None


def integer(word: bytes, text: str = NOT_AN_INTEGER) -> int:
    """Parse a canonical signed 64-bit decimal; raises the error `text` for any other word."""
    value = as_integer(word)
    if value is None:
        raise fault(text)
    return value
