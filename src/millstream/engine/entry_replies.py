"""Entries as replies: joined from the fragments that the entry log keeps."""

from __future__ import annotations

from millstream.engine.outcome import Encoded


def encode_entry(entry_id: bytes, fragment: bytes) -> bytes:
    """`[id, [field, value …]]`"""
    return b"*2\r\n$%d\r\n%b\r\n%b" % (len(entry_id), entry_id, fragment)


def encode_claimed(entry_id: bytes, fragment: bytes, idle_ms: int, count: int) -> bytes:
    """`[id, [field, value …], idle, delivery count]`, the shape of a CLAIM read."""
    return b"*4\r\n$%d\r\n%b\r\n%b:%d\r\n:%d\r\n" % (len(entry_id), entry_id, fragment, idle_ms, count)


def entries_reply(ids: list[bytes], fragments: list[bytes]) -> Encoded:
    """An array of entries."""
    parts = [b"*%d\r\n" % len(ids)]
    for entry_id, fragment in zip(ids, fragments, strict=True):
        parts.append(b"*2\r\n$%d\r\n%b\r\n" % (len(entry_id), entry_id))
        parts.append(fragment)
    return Encoded(b"".join(parts))
