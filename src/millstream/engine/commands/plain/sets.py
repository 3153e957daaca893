"""Sets: distinct members without an order. A random choice is logged as the chosen members."""

from __future__ import annotations

from millstream.engine import faults
from millstream.engine.commands.plain.common import changed, delete, drop_if_empty, integer_between, positive
from millstream.engine.commands.plain.draws import draw
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.keys.values import SetOf
from millstream.engine.outcome import Members, Reply
from millstream.engine.table import Registry
from millstream.engine.text.args import I64_MAX

REGISTRY = Registry("set")


@REGISTRY.command(
    "sadd",
    -3,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW insert",
    since="1.0.0",
    summary="Adds members to a set; answers how many of them are new.",
)
def sadd(call: CommandContext, argv: list[bytes]) -> Reply:
    """SADD key member [member ...]"""
    key = argv[1]
    found = call.typed(key, SetOf)
    if found is None:
        found = SetOf()
        call.add(key, found)
    added = sum(found.add(member) for member in argv[2:])
    if added:
        changed(call, key, "s", b"sadd", argv, added)
    return added


@REGISTRY.command(
    "srem",
    -3,
    "write fast",
    keys=(1, 1, 1),
    access="RW delete",
    since="1.0.0",
    summary="Removes members from a set; answers how many of them there were.",
)
def srem(call: CommandContext, argv: list[bytes]) -> Reply:
    """SREM key member [member ...]"""
    key = argv[1]
    found = call.typed(key, SetOf)
    if found is None:
        return 0
    removed = sum(found.discard(member) for member in argv[2:])
    if removed:
        changed(call, key, "s", b"srem", argv, removed)
        drop_if_empty(call, key, found)
    return removed


@REGISTRY.command(
    "smembers",
    2,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="1.0.0",
    summary="Answers all members of a set.",
)
def smembers(call: CommandContext, argv: list[bytes]) -> Reply:
    """SMEMBERS key"""
    return Members(call.typed_to_read(argv[1], SetOf) or ())


@REGISTRY.command(
    "sismember",
    3,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO",
    since="1.0.0",
    summary="Tells whether a set has a member.",
)
def sismember(call: CommandContext, argv: list[bytes]) -> Reply:
    """SISMEMBER key member"""
    return int(argv[2] in (call.typed_to_read(argv[1], SetOf) or ()))


@REGISTRY.command(
    "smismember",
    -3,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO access",
    since="6.2.0",
    summary="Tells for several values whether a set has them as members.",
)
def smismember(call: CommandContext, argv: list[bytes]) -> Reply:
    """SMISMEMBER key member [member ...]"""
    found = call.typed_to_read(argv[1], SetOf) or ()
    return [int(member in found) for member in argv[2:]]


@REGISTRY.command(
    "scard", 2, "readonly fast", keys=(1, 1, 1), access="RO", since="1.0.0", summary="Counts the members of a set."
)
def scard(call: CommandContext, argv: list[bytes]) -> Reply:
    """SCARD key"""
    return len(call.typed_to_read(argv[1], SetOf) or ())


@REGISTRY.command(
    "spop",
    -2,
    "write fast",
    keys=(1, 1, 1),
    access="RW access delete",
    since="1.0.0",
    summary="Removes random members from a set and answers them.",
)
def spop(call: CommandContext, argv: list[bytes]) -> Reply:
    """SPOP key [count]"""
    if len(argv) > 3:
        raise fault(faults.SYNTAX)
    if len(argv) == 3:
        return _pop_many(call, argv[1], positive(argv[2]))
    found = call.typed(argv[1], SetOf)
    if found is None:
        return None
    return _pop(call, argv[1], found, 1)[0]


def _pop_many(call: CommandContext, key: bytes, count: int) -> Members:
    found = call.typed(key, SetOf)
    if found is None or count == 0:
        return Members()
    if count < len(found):
        return Members(_pop(call, key, found, count))
    call.event("s", b"spop", key)
    call.dirty += len(found) - 1  # `delete` counts one change itself
    delete(call, key, (b"DEL", key))
    return Members(found)


def _pop(call: CommandContext, key: bytes, found: SetOf, count: int) -> list[bytes]:
    """Remove `count` random members, logged as SREM of just these. The set must have enough."""
    popped = []
    for _ in range(count):
        member = found[call.keyspace.pick(len(found))]
        found.discard(member)
        popped.append(member)
    changed(call, key, "s", b"spop", [b"SREM", key, *popped], count)
    drop_if_empty(call, key, found)
    return popped


@REGISTRY.command(
    "srandmember",
    -2,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="1.0.0",
    summary="Answers random members of a set: distinct ones for a positive count, any for a negative one.",
)
def srandmember(call: CommandContext, argv: list[bytes]) -> Reply:
    """SRANDMEMBER key [count]"""
    if len(argv) > 3:
        raise fault(faults.SYNTAX)
    count = integer_between(argv[2], -I64_MAX, I64_MAX) if len(argv) == 3 else None
    found = call.typed_to_read(argv[1], SetOf)
    if found is None:
        return None if count is None else []
    if count is None:
        return found[call.keyspace.pick(len(found))]
    return [*draw(call, found, count)]
