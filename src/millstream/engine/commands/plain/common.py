"""Shared by the commands on plain keys: report a change, drop an empty value, read counts and ranges."""

from __future__ import annotations

from collections.abc import Sized

from millstream.engine import faults
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.text.args import I64_MAX, as_integer, integer


def changed(call: CommandContext, key: bytes, kind: str, event: bytes, argv: list[bytes], changes: int = 1) -> None:
    """Report that a command modified a key. It is logged as `argv` unless nothing changed (LTRIM)."""
    call.touch(key)
    call.event(kind, event, key)
    if changes:
        call.log(*argv)
    call.dirty += changes


def drop_if_empty(call: CommandContext, key: bytes, value: Sized) -> None:
    """Remove a key whose hash, list, set or sorted set has become empty."""
    if not len(value):
        call.remove(key)
        call.event("g", b"del", key)


def delete(call: CommandContext, key: bytes, logged_as: tuple[bytes, ...]) -> None:
    """Remove a key that is there: one change, a `del` event, and the command that replays it."""
    call.remove(key)
    call.touch(key)
    call.event("g", b"del", key)
    call.log(*logged_as)
    call.dirty += 1


def positive(word: bytes) -> int:
    """Return a count of at least 0. Raises one error for negative numbers and for text."""
    value = as_integer(word)
    if value is None or value < 0:
        raise fault(faults.NOT_POSITIVE)
    return value


def integer_between(word: bytes, low: int, high: int) -> int:
    """Return an integer within a range. Raises an error that names the range."""
    value = integer(word)
    if not low <= value <= high:
        raise faults.not_between(low, high)
    return value


def window(start: int, stop: int, size: int) -> tuple[int, int]:
    """Turn Redis's inclusive range, negative from the end, into a half-open range; an empty one is 0, 0."""
    if start < 0:
        start = max(start + size, 0)
    if stop < 0:
        stop += size
    if start > stop or start >= size:
        return 0, 0
    return start, min(stop, size - 1) + 1


def time_given(amount: bytes, command: str) -> int:
    """Return the number of an expiry option, which must be above 0."""
    value = integer(amount)
    if value <= 0:
        raise faults.invalid_expire(command)
    return value


def deadline(call: CommandContext, unit: bytes, value: int, command: str) -> int:
    """Return the expiry time in Unix ms: EX and PX count from now, EXAT and PXAT are absolute."""
    scale = 1000 if unit in (b"EX", b"EXAT") else 1
    base_ms = call.now_ms if unit in (b"EX", b"PX") else 0
    if value > I64_MAX // scale or value * scale > I64_MAX - base_ms:
        raise faults.invalid_expire(command)
    return value * scale + base_ms


def expire_at(call: CommandContext, key: bytes, at_ms: int, *options: bytes) -> None:
    """Set the expiry of an existing key. A time in the past deletes the key, except during replay (see is_due)."""
    if at_ms <= call.now_ms and not call.trusted:
        delete(call, key, (b"DEL", key))
        return
    call.db.expires[key] = at_ms
    changed(call, key, "g", b"expire", [b"PEXPIREAT", key, b"%d" % at_ms, *options])


def persist_key(call: CommandContext, key: bytes) -> bool:
    """Remove a key's expiry. Returns whether it had one."""
    if call.db.expires.pop(key, None) is None:
        return False
    changed(call, key, "g", b"persist", [b"PERSIST", key])
    return True
