"""Versions of RDB, and options for reading and writing values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from millstream.engine.keys.keyspace import KeyspaceSettings

VERSION: Final = 15  # the RDB version of Redis 8.10
STREAM_TYPES: Final = (15, 19, 21, 26, 27)
# The version for a stream type: that of the newest release without a newer type.
VERSION_OF: Final = {15: 9, 19: 10, 21: 11, 26: 13, 27: VERSION}
FOREIGN_VERSIONS: Final = frozenset({80})  # Valkey 9, whose values are those of version 11
RELEASED_TO: Final = b"released"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options for reading values."""

    settings: KeyspaceSettings
    now_ms: int  # the time at which idempotency records expire
    sanitize: bool = False  # refuse readable bodies that no server writes
    lenient: bool = False  # accept bodies that Redis can write but refuses to read


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options for writing values."""

    stream_type: int = STREAM_TYPES[-1]
    version: int = VERSION
    now_ms: int | None = None  # idempotency records expired by then are left out
    released_to: bytes = RELEASED_TO  # the owner of released entries in stream types before 27

    @classmethod
    def of(cls, stream_type: int, version: int | None, now_ms: int | None, released_to: bytes) -> WriteOptions:
        """Return the options for a stream type. The default version is the one that belongs to the type."""
        if stream_type not in STREAM_TYPES:
            raise ValueError(f"no stream type: {stream_type}")
        if version is None:
            version = VERSION_OF[stream_type]
        return cls(stream_type=stream_type, version=version, now_ms=now_ms, released_to=released_to)
