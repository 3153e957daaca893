"""DUMP and RESTORE: a value as bytes that another server can take.

They are rows like the engine's commands; the owner of a command table adds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millstream.engine.commands.plain.common import delete
from millstream.engine.commands.plain.generic import type_of
from millstream.engine.faults import SYNTAX, fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.outcome import OK, Reply
from millstream.engine.streams.stream import Stream
from millstream.engine.table import Registry
from millstream.engine.text.args import I64_MAX, integer
from millstream.persistence.rdb import dump_payload, restore_payload

REGISTRY = Registry("generic")

BUSY_KEY: Final = "BUSYKEY Target key name already exists."
BAD_TTL: Final = "ERR Invalid TTL value, must be >= 0"
BAD_IDLETIME: Final = "ERR Invalid IDLETIME value, must be >= 0"
BAD_FREQ: Final = "ERR Invalid FREQ value, must be >= 0 and <= 255"

_WORTH_COMPRESSING: Final = 1 << 16  # bytes; compressing more would block other clients


@REGISTRY.command(
    "dump",
    2,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="2.6.0",
    summary="Answers the value of a key as bytes that RESTORE takes.",
)
def dump(call: CommandContext, argv: list[bytes]) -> Reply:
    """DUMP key

    The bytes, null if there is no such key.
    """
    value = call.lookup_to_read(argv[1])
    if value is None:
        return None
    return dump_payload(value, compress=call.settings.rdbcompression and _is_small(value), now_ms=call.now_ms)


def _is_small(value: object) -> bool:
    """Return whether a value is compressed like in Redis. Large values are not, because that would take too long."""
    match value:
        case bytes():
            return len(value) <= _WORTH_COMPRESSING
        case Stream():
            return sum(block.size for block in value.entries.blocks) <= _WORTH_COMPRESSING
        case _:
            return False  # elements are usually short, and short strings are not compressed


@dataclass(slots=True)
class _RestoreWords:
    """The options of a RESTORE."""

    replace: bool = False
    absolute: bool = False
    idle_s: int | None = None
    frequency: int | None = None

    @classmethod
    def parse(cls, words: list[bytes]) -> _RestoreWords:
        found = cls()
        at = 0
        while at < len(words):
            name = words[at].upper()
            has_value = at + 1 < len(words)
            if name == b"REPLACE":
                found.replace = True
            elif name == b"ABSTTL":
                found.absolute = True
            elif name == b"IDLETIME" and has_value and found.frequency is None:
                found.idle_s = _within(words[at + 1], I64_MAX, BAD_IDLETIME)
                at += 1
            elif name == b"FREQ" and has_value and found.idle_s is None:
                found.frequency = _within(words[at + 1], 255, BAD_FREQ)
                at += 1
            else:
                raise fault(SYNTAX)
            at += 1
        return found


def _within(word: bytes, most: int, text: str) -> int:
    value = integer(word)
    if not 0 <= value <= most:
        raise fault(text)
    return value


@REGISTRY.command(
    "restore",
    -4,
    "write denyoom",
    keys=(1, 1, 1),
    access="OW update",
    since="2.6.0",
    summary="Makes a key from the bytes that DUMP has answered.",
    extra_categories="@dangerous",
)
def restore(call: CommandContext, argv: list[bytes]) -> Reply:
    """RESTORE key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]"""
    words = _RestoreWords.parse(argv[4:])
    key = argv[1]
    old = call.peek(key)
    if old is not None and not words.replace:
        raise fault(BUSY_KEY)
    ttl = _within(argv[2], I64_MAX, BAD_TTL)
    is_checked = call.settings.sanitize_dump_payload and not call.trusted
    value = restore_payload(argv[3], call.settings, call.now_ms, sanitize=is_checked)
    at_ms = ttl if words.absolute or not ttl else ttl + call.now_ms
    # a time beyond 64 bits has wrapped to the past in Redis
    if ttl and (at_ms <= call.now_ms or at_ms > I64_MAX) and not call.trusted:
        if old is not None:
            delete(call, key, (b"DEL", key))
        return OK
    _put(call, key, old, value, at_ms, words.idle_s)
    call.log(*argv[:2], b"%d" % at_ms, *argv[3:], *((b"ABSTTL",) if ttl and not words.absolute else ()))
    call.dirty += 1
    return OK


def _put(call: CommandContext, key: bytes, old: object | None, value: object, at_ms: int, idle_s: int | None) -> None:
    """Store a value and report it."""
    db = call.db
    if old is None:
        call.add(key, value)
    else:
        db.values[key] = value  # in its place: a scan under way must still meet this key
        db.expires.pop(key, None)
        db.idempotent.discard(key)
        call.event("n", b"new", key)
        call.ready(key)
    if at_ms:
        db.expires[key] = at_ms
    if isinstance(value, Stream) and value.producers:
        db.idempotent.add(key)
    db.accessed[key] = call.now_ms - 1000 * (idle_s or 0)
    call.touch(key)
    call.event("g", b"restore", key)
    if old is not None:
        call.event("o", b"overwritten", key)
        if type_of(old) != type_of(value):
            call.event("c", b"type_changed", key)
