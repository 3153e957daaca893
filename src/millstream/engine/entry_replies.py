"""Entries as replies: joined from the fragments that the entry log keeps."""

from __future__ import annotations

from millstream.engine.outcome import Encoded


def encode_entry(entry_id: bytes, fragment: bytes) -> bytes:
    """`[id, [field, value …]]`"""
    return b"*2\r\n$%d\r\n%b\r\n%b" % (len(entry_id), entry_id, fragment)


def encode_all_claimed(ids: list[bytes], fragments: list[bytes], idle_ms: int, count: int) -> list[bytes]:
    """Of each `[id, [field, value …], idle, delivery count]`, the shape of a CLAIM read."""
    tail = b":%d\r\n:%d\r\n" % (idle_ms, count)
    return [
        b"*4\r\n$%d\r\n%b\r\n%b%b" % (len(entry_id), entry_id, fragment, tail)
        for entry_id, fragment in zip(ids, fragments, strict=True)
    ]


def entries_reply(ids: list[bytes], fragments: list[bytes]) -> Encoded:
    """An array of entries."""
    parts = [b"*%d\r\n" % len(ids)]
    for entry_id, fragment in zip(ids, fragments, strict=True):
        parts.append(b"*2\r\n$%d\r\n%b\r\n" % (len(entry_id), entry_id))
        parts.append(fragment)
    return Encoded(b"".join(parts))
