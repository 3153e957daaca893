"""Stream ids and integers of the naive model: a pair of numbers, and the words that stand for one."""

from __future__ import annotations

import re

from millstream.errors import CommandError

Id = tuple[int, int]

U64 = 2**64 - 1
I64 = 2**63 - 1
ZERO: Id = (0, 0)
TOP: Id = (U64, U64)

BADID = "ERR Invalid stream ID specified as stream command argument"
NOT_INTEGER = "ERR value is not an integer or out of range"
SYNTAX = "ERR syntax error"


def text(entry_id: Id) -> bytes:
    """An id as it is printed."""
    return b"%d-%d" % entry_id


def integer(word: bytes, error: str = NOT_INTEGER) -> int:
    """A canonical signed 64-bit decimal."""
    if re.fullmatch(rb"0|-?[1-9][0-9]{0,18}", word) is None or not -I64 - 1 <= int(word) <= I64:
        raise CommandError(error)
    return int(word)


def half(word: bytes) -> int:
    """One half of an id, as C's strtoull reads it: leading blanks, a plus sign and zeros are fine."""
    if re.fullmatch(rb"[ \t\n\v\f\r]*\+?[0-9]+", word) is None or int(word) > U64:
        raise CommandError(BADID)
    return int(word)


def plain(word: bytes, missing_seq: int = 0) -> Id:
    """`ms` or `ms-seq`, none of the signs that stand for an id."""
    if len(word) > 127:
        raise CommandError(BADID)
    ms, dash, seq = word.partition(b"-")
    return half(ms), half(seq) if dash else missing_seq


def bound(word: bytes, missing_seq: int) -> Id:
    """An id, or `-` and `+` for the lowest and the highest."""
    return {b"-": ZERO, b"+": TOP}.get(word) or plain(word, missing_seq)


def after(entry_id: Id) -> Id:
    """The next id; there must be one."""
    ms, seq = entry_id
    return (ms, seq + 1) if seq < U64 else (ms + 1, 0)


def before(entry_id: Id) -> Id:
    """The id in front of this one; there must be one."""
    ms, seq = entry_id
    return (ms, seq - 1) if seq > 0 else (ms - 1, U64)


def range_start(word: bytes) -> Id:
    """The first id of a range; `(` leaves the id itself out."""
    if not word.startswith(b"("):
        return bound(word, 0)
    start = plain(word[1:])
    if start == TOP:
        raise CommandError("ERR invalid start ID for the interval")
    return after(start)


def range_end(word: bytes) -> Id:
    """The last id of a range; a missing sequence number is the highest one."""
    if not word.startswith(b"("):
        return bound(word, U64)
    end = plain(word[1:], U64)
    if end == ZERO:
        raise CommandError("ERR invalid end ID for the interval")
    return before(end)
