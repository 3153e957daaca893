"""Which forms of values there are, and how to read and write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from millstream.engine.keys.keyspace import KeyspaceSettings

VERSION: Final = 15  # of RDB, as Redis 8.10 writes it
STREAM_TYPES: Final = (15, 19, 21, 26, 27)
# The version that goes with a stream type: that of the newest release that has no newer type.
VERSION_OF: Final = {15: 9, 19: 10, 21: 11, 26: 13, 27: VERSION}
FOREIGN_VERSIONS: Final = frozenset({80})  # Valkey 9, whose values are those of version 11
RELEASED_TO: Final = b"released"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read values."""

    settings: KeyspaceSettings
    now_ms: int  # for idempotency records that have expired
    sanitize: bool = False  # refuse what no server writes although it can be made sense of
    lenient: bool = False  # take what Redis can be made to write but refuses to read


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How to write values."""

    stream_type: int = STREAM_TYPES[-1]
    version: int = VERSION
    now_ms: int | None = None  # idempotency records that have expired are left out
    released_to: bytes = RELEASED_TO  # who owns released entries in stream types before 27

    @classmethod
    def of(cls, stream_type: int, version: int | None, now_ms: int | None, released_to: bytes) -> WriteOptions:
        """The options for a stream type; without a version, the one that goes with it."""
        if stream_type not in STREAM_TYPES:
            raise ValueError(f"no stream type: {stream_type}")
        if version is None:
            version = VERSION_OF[stream_type]
        return cls(stream_type=stream_type, version=version, now_ms=now_ms, released_to=released_to)
