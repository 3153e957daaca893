"""Redis 8.10 streams, modelled naively: lists and dicts, every operation as slow as it is plain.

`NaiveRedis.run(argv, now_ms)` answers a stream command with a reply value, an error being a value too. It was
written from the two specifications without looking at the engine, so that the two can be held against each other;
`test_naive_against_redis` holds it against a real server. It knows one database, no expiry, no blocking (BLOCK is
read and answered at once), no log. SET and DEL are there for keys of the wrong type and keys that go away.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.engine.outcome import OK, Reply
from millstream.errors import CommandError

from . import naive_groups, naive_info, naive_read, naive_write
from .naive_stream import Stream

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


class NaiveRedis:
    """One database of streams and strings."""

    def __init__(self, node_max_entries: int = 100, node_max_bytes: int = 4096, protocol: int = 2) -> None:
        self.node_max_entries = node_max_entries
        self.node_max_bytes = node_max_bytes
        self.protocol = protocol  # what MAXSIZE counts depends on it, and the shape of XREAD's reply
        self.values: dict[bytes, Stream | bytes] = {}

    def run(self, argv: list[bytes], now_ms: int) -> Reply:
        """Run one command; the reply."""
        try:
            return COMMANDS[argv[0].upper()](self, argv, now_ms)
        except CommandError as error:
            return error

    def stream(self, key: bytes) -> Stream | None:
        """The stream under a key, None if there is no such key."""
        value = self.values.get(key)
        if isinstance(value, bytes):
            raise CommandError(WRONG_TYPE)
        return value

    def existing(self, key: bytes) -> Stream:
        """The stream under a key that must exist."""
        stream = self.stream(key)
        if stream is None:
            raise CommandError("ERR no such key")
        return stream

    def make_stream(self, key: bytes) -> Stream:
        stream = Stream()
        self.values[key] = stream
        return stream

    def streams(self) -> list[Stream]:
        return [value for value in self.values.values() if isinstance(value, Stream)]

    def sweep(self, now_ms: int) -> None:
        """What the server does once a second: forget old idempotent ids."""
        for stream in self.streams():
            stream.sweep(now_ms)


def _set(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    world.values[argv[1]] = argv[2]
    return OK


def _del(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    return len([key for key in argv[1:] if world.values.pop(key, None) is not None])


COMMANDS: dict[bytes, Callable[[NaiveRedis, list[bytes], int], Reply]] = {
    b"SET": _set,
    b"DEL": _del,
    b"XADD": naive_write.xadd,
    b"XTRIM": naive_write.xtrim,
    b"XDEL": naive_write.xdel,
    b"XDELEX": naive_write.xdelex,
    b"XSETID": naive_write.xsetid,
    b"XCFGSET": naive_write.xcfgset,
    b"XIDMPRECORD": naive_write.xidmprecord,
    b"XLEN": naive_read.xlen,
    b"XRANGE": naive_read.xrange,
    b"XREVRANGE": naive_read.xrange,
    b"XREAD": naive_read.xread,
    b"XREADGROUP": naive_read.xreadgroup,
    b"XGROUP": naive_groups.xgroup,
    b"XACK": naive_groups.xack,
    b"XACKDEL": naive_groups.xackdel,
    b"XNACK": naive_groups.xnack,
    b"XPENDING": naive_groups.xpending,
    b"XCLAIM": naive_groups.xclaim,
    b"XAUTOCLAIM": naive_groups.xautoclaim,
    b"XINFO": naive_info.xinfo,
}
