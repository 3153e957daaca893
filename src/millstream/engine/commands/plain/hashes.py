"""Hashes: fields and values under one key. A hash is removed with its last field."""

from __future__ import annotations

from millstream.engine import faults
from millstream.engine.commands.plain.common import changed, drop_if_empty
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.keys.values import Hash
from millstream.engine.outcome import OK, Pairs, Reply
from millstream.engine.table import Registry
from millstream.engine.text.args import I64_MAX, I64_MIN, as_integer, integer

REGISTRY = Registry("hash")


def _to_write(call: CommandContext, key: bytes) -> Hash:
    """Return the hash of a key, creating it if it is missing."""
    found = call.typed(key, Hash)
    if found is None:
        found = Hash()
        call.add(key, found)
    return found


def _set_pairs(call: CommandContext, argv: list[bytes], name: str) -> int:
    """Set fields to values. Returns the number of new fields."""
    if len(argv) % 2 == 1:
        raise faults.wrong_arity(name)
    fields = _to_write(call, argv[1])
    before = len(fields)
    fields.update(zip(argv[2::2], argv[3::2], strict=True))
    changed(call, argv[1], "h", b"hset", argv, len(argv) // 2 - 1)
    return len(fields) - before


@REGISTRY.command(
    "hset",
    -4,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW update",
    since="2.0.0",
    summary="Sets fields of a hash; answers how many of them are new.",
)
def hset(call: CommandContext, argv: list[bytes]) -> Reply:
    """HSET key field value [field value ...]"""
    return _set_pairs(call, argv, "hset")


@REGISTRY.command(
    "hmset",
    -4,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW update",
    since="2.0.0",
    summary="Sets fields of a hash; the older form of HSET, which answers OK.",
)
def hmset(call: CommandContext, argv: list[bytes]) -> Reply:
    """HMSET key field value [field value ...]"""
    _set_pairs(call, argv, "hmset")
    return OK


@REGISTRY.command(
    "hsetnx",
    4,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW insert",
    since="2.0.0",
    summary="Sets a field of a hash if the field does not exist.",
)
def hsetnx(call: CommandContext, argv: list[bytes]) -> Reply:
    """HSETNX key field value"""
    found = call.typed(argv[1], Hash)
    if found is not None and argv[2] in found:
        return 0
    _to_write(call, argv[1])[argv[2]] = argv[3]
    changed(call, argv[1], "h", b"hset", argv)
    return 1


@REGISTRY.command(
    "hget",
    3,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO access",
    since="2.0.0",
    summary="Answers the value of a field.",
)
def hget(call: CommandContext, argv: list[bytes]) -> Reply:
    """HGET key field"""
    found = call.typed_to_read(argv[1], Hash)
    return None if found is None else found.get(argv[2])


@REGISTRY.command(
    "hmget",
    -3,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO access",
    since="2.0.0",
    summary="Answers the values of several fields, nil for those that do not exist.",
)
def hmget(call: CommandContext, argv: list[bytes]) -> Reply:
    """HMGET key field [field ...]"""
    found = call.typed_to_read(argv[1], Hash) or Hash()
    return [found.get(field) for field in argv[2:]]


@REGISTRY.command(
    "hgetall",
    2,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="2.0.0",
    summary="Answers all fields with their values.",
)
def hgetall(call: CommandContext, argv: list[bytes]) -> Reply:
    """HGETALL key"""
    found = call.typed_to_read(argv[1], Hash) or Hash()
    return Pairs(word for pair in found.items() for word in pair)


@REGISTRY.command(
    "hkeys", 2, "readonly", keys=(1, 1, 1), access="RO access", since="2.0.0", summary="Answers all fields of a hash."
)
def hkeys(call: CommandContext, argv: list[bytes]) -> Reply:
    """HKEYS key"""
    return [*(call.typed_to_read(argv[1], Hash) or Hash())]


@REGISTRY.command(
    "hvals", 2, "readonly", keys=(1, 1, 1), access="RO access", since="2.0.0", summary="Answers all values of a hash."
)
def hvals(call: CommandContext, argv: list[bytes]) -> Reply:
    """HVALS key"""
    return [*(call.typed_to_read(argv[1], Hash) or Hash()).values()]


@REGISTRY.command(
    "hlen", 2, "readonly fast", keys=(1, 1, 1), access="RO", since="2.0.0", summary="Counts the fields of a hash."
)
def hlen(call: CommandContext, argv: list[bytes]) -> Reply:
    """HLEN key"""
    return len(call.typed_to_read(argv[1], Hash) or ())


@REGISTRY.command(
    "hexists",
    3,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO",
    since="2.0.0",
    summary="Tells whether a hash has a field.",
)
def hexists(call: CommandContext, argv: list[bytes]) -> Reply:
    """HEXISTS key field"""
    return int(argv[2] in (call.typed_to_read(argv[1], Hash) or ()))


@REGISTRY.command(
    "hstrlen",
    3,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO",
    since="3.2.0",
    summary="Counts the bytes of a field's value.",
)
def hstrlen(call: CommandContext, argv: list[bytes]) -> Reply:
    """HSTRLEN key field"""
    found = call.typed_to_read(argv[1], Hash) or Hash()
    return len(found.get(argv[2], b""))


@REGISTRY.command(
    "hdel",
    -3,
    "write fast",
    keys=(1, 1, 1),
    access="RW delete",
    since="2.0.0",
    summary="Removes fields from a hash; answers how many there were.",
)
def hdel(call: CommandContext, argv: list[bytes]) -> Reply:
    """HDEL key field [field ...]"""
    found = call.typed(argv[1], Hash)
    if found is None:
        return 0
    removed = sum(found.pop(field, None) is not None for field in argv[2:])
    if removed:
        changed(call, argv[1], "h", b"hdel", argv, removed)
        drop_if_empty(call, argv[1], found)
    return removed


@REGISTRY.command(
    "hincrby",
    4,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW access update",
    since="2.0.0",
    summary="Adds a number to the integer in a field; a missing field counts as 0.",
)
def hincrby(call: CommandContext, argv: list[bytes]) -> Reply:
    """HINCRBY key field increment"""
    key, field, increment = argv[1], argv[2], integer(argv[3])
    found = call.typed(key, Hash)
    old = as_integer((found or Hash()).get(field, b"0"))
    if old is None:
        raise fault(faults.HASH_NOT_INTEGER)
    value = old + increment
    if not I64_MIN <= value <= I64_MAX:
        raise fault(faults.OVERFLOW)
    _to_write(call, key)[field] = b"%d" % value
    changed(call, key, "h", b"hincrby", argv)
    return value
