"""Copy a key as a payload of DUMP, or a plain value by commands if the target takes no payload.

DUMP ──▶ RESTORE as it is ── refused ──▶ read here and written in older forms ── all refused ──▶ commands
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis

from millstream.engine.keys.keyspace import KeyspaceSettings
from millstream.engine.streams.stream import Stream
from millstream.errors import CommandError
from millstream.migration.copying import name_of, no_release
from millstream.migration.place import Endpoint, Words
from millstream.migration.streams import Hidden, released
from millstream.persistence.rdb import STREAM_TYPES, VERSION_OF, dump_payload, restore_payload
from millstream.persistence.rdb.crc64 import crc64

LARGEST: Final = 32 << 20  # bytes; more would hold up a server for too long
_SHORT: Final = 64 << 10  # bytes; keys up to this size are moved many at a time
_PAGE: Final = 500
_FORMS: Final = (None, *reversed(STREAM_TYPES))  # None: as it came
_TEMPORARY: Final = (redis.exceptions.OutOfMemoryError, redis.exceptions.ReadOnlyError)

WRITES: Final = {"hash": "HSET", "set": "SADD", "list": "RPUSH"}
SCANS: Final = {"hash": ("HSCAN", "HGETALL"), "set": ("SSCAN", "SMEMBERS")}  # in pages, and at once
PLAIN: Final = ("string", "list", "hash", "set", "zset")


def dump(source: Endpoint, key: bytes) -> bytes | None:
    """Dump a key. Returns its payload; None if the key is gone or too large, or the server refuses."""
    try:
        size = source.ask(key, "MEMORY", "USAGE", key)
        if size is None or size > LARGEST:
            return None
        payload: bytes | None = source.ask(key, "DUMP", key)
        return payload
    except redis.ResponseError:  # forbidden, or a value that cannot be dumped
        return None


def decode(payload: bytes, now_ms: int) -> object | None:
    """Decode a payload. Returns its value; None if its form is not known here."""
    try:
        return restore_payload(payload, KeyspaceSettings(), now_ms)
    except CommandError:
        return None


def hidden_of(payload: bytes | None, now_ms: int) -> Hidden | None:
    """Return the parts of a stream that only its payload tells, no command."""
    value = None if payload is None else decode(payload, now_ms)
    return Hidden.of(value) if isinstance(value, Stream) else None


@dataclass(frozen=True, slots=True)
class Dumped:
    """A key as a payload."""

    key: bytes
    payload: bytes
    ttl_ms: int  # 0: it does not expire

    @property
    def is_stream(self) -> bool:
        return self.payload[0] in STREAM_TYPES


def dump_short(source: Endpoint, keys: Sequence[bytes]) -> list[Dumped]:
    """Dump the keys that are short, in a few batched calls."""
    sizes = source.ask_each(keys, "MEMORY", "USAGE")
    short = [key for key, size in zip(keys, sizes, strict=True) if isinstance(size, int) and size <= _SHORT]
    ends = source.ask_each(short, "PTTL")
    payloads = source.ask_each(short, "DUMP")
    return [
        Dumped(key, payload, ttl_of(end))
        for key, end, payload in zip(short, ends, payloads, strict=True)
        if isinstance(payload, bytes) and isinstance(end, int) and end != -2
    ]


def ttl_of(end: int) -> int:
    """Convert a PTTL answer for RESTORE, where 0 means that the key does not expire."""
    return max(end, 1) if end >= 0 else 0


class Restorer:
    """Restores payloads on one target, and remembers which form it has taken last."""

    def __init__(self, target: Endpoint) -> None:
        self._target = target
        # places in _FORMS, for streams and for others: a target that refused a form refuses it every time
        self._first = {True: 0, False: 0}
        self._versions: dict[int, bool] = {}

    def restore(self, dumped: Dumped, now_ms: int) -> list[str] | None:
        """Restore a key from a payload, replacing its value. Returns warnings; None if the target takes no form."""
        first = self._first[dumped.is_stream]
        if _FORMS[first] is None:
            if self._try(dumped.key, dumped.payload, dumped.ttl_ms):
                return []
            first += 1
        value = decode(dumped.payload, now_ms)
        for place in range(first, len(_FORMS) if value is not None else 0):
            form = _FORMS[place] or STREAM_TYPES[-1]
            if self._takes(dumped.key, VERSION_OF[form]):
                payload = dump_payload(value, stream_type=form, now_ms=now_ms, compress=False)
                if self._try(dumped.key, payload, dumped.ttl_ms):
                    self._first[dumped.is_stream] = place
                    return list(_lost(dumped.key, value, form))
        return None

    def _takes(self, key: bytes, version: int) -> bool:
        """Return whether the target reads payloads of a version; the probe has no body and changes nothing."""
        if version not in self._versions:
            empty = bytes((STREAM_TYPES[0],)) + version.to_bytes(2, "little")
            try:
                self._target.ask(key, "RESTORE", key, 0, empty + crc64(empty).to_bytes(8, "little"), "REPLACE")
            except redis.ResponseError as error:
                self._versions[version] = "version or checksum" not in str(error)
        return self._versions.get(version, True)

    def restore_each(self, many: Iterable[Dumped], now_ms: int) -> dict[bytes, list[str]]:
        """Restore keys in one batch, in the form that was taken last. Returns warnings by restored key."""
        commands: list[tuple[bytes, Words]] = []
        warnings: list[list[str]] = []
        for dumped in many:
            form = _FORMS[self._first[dumped.is_stream]]
            made = _in_form(dumped, form, now_ms)
            if made is not None:
                commands.append((dumped.key, ("RESTORE", dumped.key, dumped.ttl_ms, made[1], "REPLACE")))
                warnings.append(list(_lost(dumped.key, made[0], form)))
        replies = self._target.ask_many(commands)
        taken = zip(commands, replies, warnings, strict=True)
        return {key: lost for (key, _), reply, lost in taken if reply == b"OK"}

    def _try(self, key: bytes, payload: bytes, ttl_ms: int) -> bool:
        try:
            self._target.ask(key, "RESTORE", key, ttl_ms, payload, "REPLACE")
        except _TEMPORARY:
            raise
        except redis.ResponseError:
            return False
        return True


def _in_form(dumped: Dumped, form: int | None, now_ms: int) -> tuple[object | None, bytes] | None:
    """Return the value, if it had to be read, and its payload in a form; None if it cannot be read."""
    if form is None:
        return None, dumped.payload
    value = decode(dumped.payload, now_ms)
    if value is None:
        return None
    return value, dump_payload(value, stream_type=form, now_ms=now_ms, compress=False)


def _lost(key: bytes, value: object | None, form: int | None) -> Iterator[str]:
    """Yield a warning for each part of a stream that an older form cannot hold."""
    if form is None or not isinstance(value, Stream):
        return
    if form < 26 and value.producers:
        yield f"{name_of(key)}: the target has no idempotent production: its records are not copied"
    if form < 27:
        for name in value.groups:
            count = sum(1 for _ in released(value, name))
            if count:
                yield no_release(key, name, count)


# Plain values by commands


def copy_plain(source: Endpoint, target: Endpoint, key: bytes, kind: str) -> None:
    """Copy a plain value to the target in pages, replacing what is there."""
    target.ask(key, "DEL", key)
    for words in _making(source, key, kind):
        target.ask(key, *words)


def _making(source: Endpoint, key: bytes, kind: str) -> Iterator[Words]:
    if kind == "string":
        value = source.ask(key, "GET", key)
        if value is not None:
            yield ("SET", key, value)
        return
    for page in pages(source, key, kind):
        if kind == "zset":
            yield ("ZADD", key, *(word for at in range(0, len(page), 2) for word in (page[at + 1], page[at])))
        else:
            yield (WRITES[kind], key, *page)


def lost_ends(source: Endpoint, key: bytes, kind: str) -> Iterator[str]:
    """Yield a warning if fields of a hash expire by themselves: the copy's do not."""
    if kind != "hash" or not source.knows("hpexpiretime"):
        return
    for page in pages(source, key, kind):
        fields = page[::2]
        if any(at_ms > 0 for at_ms in source.ask(key, "HPEXPIRETIME", key, "FIELDS", len(fields), *fields) or ()):
            yield f"{name_of(key)}: fields that would expire do not on the target"
            return


def pages(place: Endpoint, key: bytes, kind: str) -> Iterator[list[Any]]:
    """Yield pages of a value's elements, flat as commands answer; an element of a value that changes may come twice."""
    if kind in SCANS:
        yield from _scan(place, key, *SCANS[kind])
        return
    command, scores = ("LRANGE", ()) if kind == "list" else ("ZRANGE", ("WITHSCORES",))
    start = 0
    while page := place.ask(key, command, key, start, start + _PAGE - 1, *scores):
        yield page
        start += _PAGE


def _scan(place: Endpoint, key: bytes, scan: str, whole: str) -> Iterator[list[Any]]:
    if not place.knows(scan.lower()):
        flat = place.ask(key, whole, key)
        yield from (flat[at : at + 2 * _PAGE] for at in range(0, len(flat), 2 * _PAGE))
        return
    cursor = b"0"
    while True:
        cursor, page = place.ask(key, scan, key, cursor, "COUNT", _PAGE)
        if page:
            yield page
        if cursor == b"0":
            return
