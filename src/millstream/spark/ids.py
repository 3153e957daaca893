"""Entry ids as numbers: milliseconds in the upper 64 bits, the sequence number in the lower.

Numbers compare, count and interpolate without a class; `text_of` prints one as Redis does.
"""

from __future__ import annotations

from millstream.errors import ConfigError

_SEQUENCES = 1 << 64
MIN_ID = 0
MAX_ID = (1 << 128) - 1


def parse_id(text: str | bytes, *, default_sequence: int = 0) -> int:
    """Return the number of `ms-seq` or `ms`. Raises ConfigError for other texts."""
    word = text.decode("utf-8", "replace") if isinstance(text, bytes) else text.strip()
    ms, dash, sequence = word.partition("-")
    if not (ms.isdecimal() and (sequence.isdecimal() or not dash)):
        raise ConfigError(f"{word!r} is not an entry id: write milliseconds-sequence, such as 1700000000000-0")
    found = int(ms) * _SEQUENCES + (int(sequence) if dash else default_sequence)
    if int(ms) >= _SEQUENCES or found > MAX_ID or (dash and int(sequence) >= _SEQUENCES):
        raise ConfigError(f"{word!r} is not an entry id: each half must be below 2^64")
    return found


def text_of(number: int) -> str:
    """As Redis prints it."""
    return f"{number // _SEQUENCES}-{number % _SEQUENCES}"


def ms_of(number: int) -> int:
    """Return the time in an id."""
    return number // _SEQUENCES


def first_of(ms: int) -> int:
    """Return the first possible id of a millisecond."""
    return ms * _SEQUENCES
