"""Entry ids: text as clients write it, and numbers that compare.

An id is kept in two forms. Its canonical text (`b"1767225600000-0"`) names it on the wire and in dictionaries: an
acknowledgement needs no parsing and a reply no printing. Its `key`, `ms << 64 | seq`, is for everything that
compares: ranges, bisecting, the last id of a stream.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from millstream.engine.faults import BAD_ID, INVALID_END, INVALID_START, fault
from millstream.engine.text.args import U64_MAX

MAX_KEY: Final = (1 << 128) - 1
LONGEST: Final = 127  # bytes; a longer text is no id

# What C's strtoull reads: blanks, a plus sign, digits. A minus sign separates the halves.
_HALF = re.compile(rb"[ \t\n\v\f\r]*\+?[0-9]+\Z")


class EntryId(NamedTuple):
    """An id for people: milliseconds and sequence number."""

    ms: int
    seq: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"

    @classmethod
    def parse(cls, text: str | bytes) -> EntryId:
        """Read `ms-seq` or `ms`; CommandError if it is neither."""
        key = strict(text.encode() if isinstance(text, str) else text)
        return cls(key >> 64, key & U64_MAX)


def order(text: bytes) -> int:
    """Return the key of a canonical text; not for text that comes from outside."""
    ms, _, seq = text.partition(b"-")
    return int(ms) << 64 | int(seq)


def text_of(key: int) -> bytes:
    """Return the canonical text of a key."""
    return b"%d-%d" % (key >> 64, key & U64_MAX)


def parse(word: bytes, missing_seq: int = 0) -> int | None:
    """Parse an id as a client may write it. Returns its key or None; `missing_seq` stands for a sequence left out."""
    if len(word) > LONGEST:
        return None
    # Redis reads the text as a C string
    ms_text, dash, seq_text = word.partition(b"\0")[0].partition(b"-")
    ms = _half(ms_text)
    if ms is None:
        return None
    if not dash:
        return ms << 64 | missing_seq
    seq = _half(seq_text)
    return None if seq is None else ms << 64 | seq


def strict(word: bytes, missing_seq: int = 0) -> int:
    """As parse; BADID if the text is no id."""
    key = parse(word, missing_seq)
    if key is None:
        raise fault(BAD_ID)
    return key


def strict_all(words: list[bytes]) -> list[int]:
    """All of them, or BADID before anything happens."""
    return [strict(word) for word in words]


def bound(word: bytes, *, is_start: bool) -> int:
    """Parse an end of a range: an id, `-`, `+`, or an id after `(`, which is excluded."""
    if word == b"-":
        return 0
    if word == b"+":
        return MAX_KEY
    missing_seq = 0 if is_start else U64_MAX
    if word[:1] != b"(":
        return strict(word, missing_seq)
    key = strict(word[1:], missing_seq)
    if is_start:
        if key == MAX_KEY:
            raise fault(INVALID_START)
        return key + 1
    if key == 0:
        raise fault(INVALID_END)
    return key - 1


def _half(text: bytes) -> int | None:
    if not text.isdigit() and _HALF.match(text) is None:
        return None
    value = int(text)
    return value if value <= U64_MAX else None
