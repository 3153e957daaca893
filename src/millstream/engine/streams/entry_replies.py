"""Entries as replies: joined from the fragments that the entry log keeps."""

from __future__ import annotations

from typing import Final

from millstream.engine.outcome import Encoded

_LONGEST: Final = len(b"%d-%d" % (2**64, 2**64))
_FEW: Final = 8
_AT_ONCE: Final = 500  # entries: a join takes 80 bytes a piece meanwhile, and much memory is not had for nothing
# How an entry begins, by the length of its id.
_HEADS: Final = [b"*2\r\n$%d\r\n" % size for size in range(_LONGEST + 1)]
_CLAIMED_HEADS: Final = [b"*4\r\n$%d\r\n" % size for size in range(_LONGEST + 1)]


def encode_entry(entry_id: bytes, fragment: bytes) -> bytes:
    """`[id, [field, value …]]`"""
    return b"*2\r\n$%d\r\n%b\r\n%b" % (len(entry_id), entry_id, fragment)


def append_entries(out: list[bytes], ids: list[bytes], fragments: list[bytes]) -> None:
    """Append `[id, [field, value …]]` of each."""
    _append(out, _HEADS, ids, fragments, b"")


def append_claimed(out: list[bytes], ids: list[bytes], fragments: list[bytes], idle_ms: int, count: int) -> None:
    """Append `[id, [field, value …], idle, delivery count]` of each, the shape of a CLAIM read."""
    _append(out, _CLAIMED_HEADS, ids, fragments, b":%d\r\n:%d\r\n" % (idle_ms, count))


def _append(out: list[bytes], heads: list[bytes], ids: list[bytes], fragments: list[bytes], tail: bytes) -> None:
    if len(ids) < _FEW:
        for index, entry_id in enumerate(ids):
            out.append(b"%b%b\r\n%b%b" % (heads[len(entry_id)], entry_id, fragments[index], tail))
        return
    # Column by column, which lists do by themselves: formatting each entry takes three times as long if there are many.
    for first in range(0, len(ids), _AT_ONCE):
        some = ids[first : first + _AT_ONCE]
        pieces = [b"\r\n"] * (5 * len(some))
        pieces[0::5] = [heads[len(entry_id)] for entry_id in some]
        pieces[1::5] = some
        pieces[3::5] = fragments[first : first + _AT_ONCE]
        pieces[4::5] = [tail] * len(some)
        out.append(b"".join(pieces))


def entries_reply(ids: list[bytes], fragments: list[bytes]) -> Encoded:
    """Return an array of entries."""
    parts = [b"*%d\r\n" % len(ids)]
    append_entries(parts, ids, fragments)
    return Encoded(b"".join(parts))
