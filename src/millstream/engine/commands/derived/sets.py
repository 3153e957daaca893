"""Intersections, unions and differences of sets, and SMOVE."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TypeAlias

from millstream.engine import faults
from millstream.engine.commands.derived.storing import store
from millstream.engine.commands.plain.common import drop_if_empty
from millstream.engine.commands.plain.waiting import keys_after
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.keys.values import SetOf
from millstream.engine.outcome import Members, Reply
from millstream.engine.table import Registry
from millstream.engine.text.args import I64_MAX, as_integer, integer

REGISTRY = Registry("set")

Combine: TypeAlias = Callable[[list[SetOf]], list[bytes]]


def intersection(sets: list[SetOf]) -> list[bytes]:
    """Return the members that all sets have; walks the smallest one."""
    smallest, *others = sorted(sets, key=len)
    return [member for member in smallest if all(member in other for other in others)]


def union(sets: list[SetOf]) -> list[bytes]:
    """Return the members that any set has."""
    return list(dict.fromkeys(member for found in sets for member in found))


def difference(sets: list[SetOf]) -> list[bytes]:
    """Return the members of the first set that no other has."""
    first, *others = sets
    return [member for member in first if not any(member in other for other in others)]


def _read(call: CommandContext, keys: list[bytes]) -> list[SetOf]:
    return [call.typed_to_read(key, SetOf) or SetOf() for key in keys]


def _store(call: CommandContext, argv: list[bytes], combine: Combine, event: bytes) -> int:
    return store(call, argv[1], SetOf(combine(_read(call, argv[2:]))), "s", event, argv)


@REGISTRY.command(
    "sinter",
    -2,
    "readonly",
    keys=(1, -1, 1),
    access="RO access",
    since="1.0.0",
    summary="Answers the members that several sets have in common.",
)
def sinter(call: CommandContext, argv: list[bytes]) -> Reply:
    """SINTER key [key ...]"""
    return Members(intersection(_read(call, argv[1:])))


@REGISTRY.command(
    "sunion",
    -2,
    "readonly",
    keys=(1, -1, 1),
    access="RO access",
    since="1.0.0",
    summary="Answers the members of several sets.",
)
def sunion(call: CommandContext, argv: list[bytes]) -> Reply:
    """SUNION key [key ...]"""
    return Members(union(_read(call, argv[1:])))


@REGISTRY.command(
    "sdiff",
    -2,
    "readonly",
    keys=(1, -1, 1),
    access="RO access",
    since="1.0.0",
    summary="Answers the members of the first set that the others do not have.",
)
def sdiff(call: CommandContext, argv: list[bytes]) -> Reply:
    """SDIFF key [key ...]"""
    return Members(difference(_read(call, argv[1:])))


@REGISTRY.command(
    "sinterstore",
    -3,
    "write denyoom",
    keys=(1, -1, 1),
    access="OW update",
    rest_access="RO access",
    since="1.0.0",
    summary="Stores the members that several sets have in common; answers how many they are.",
)
def sinterstore(call: CommandContext, argv: list[bytes]) -> Reply:
    """SINTERSTORE destination key [key ...]"""
    return _store(call, argv, intersection, b"sinterstore")


@REGISTRY.command(
    "sunionstore",
    -3,
    "write denyoom",
    keys=(1, -1, 1),
    access="OW update",
    rest_access="RO access",
    since="1.0.0",
    summary="Stores the members of several sets; answers how many they are.",
)
def sunionstore(call: CommandContext, argv: list[bytes]) -> Reply:
    """SUNIONSTORE destination key [key ...]"""
    return _store(call, argv, union, b"sunionstore")


@REGISTRY.command(
    "sdiffstore",
    -3,
    "write denyoom",
    keys=(1, -1, 1),
    access="OW update",
    rest_access="RO access",
    since="1.0.0",
    summary="Stores the members of the first set that the others do not have; answers how many they are.",
)
def sdiffstore(call: CommandContext, argv: list[bytes]) -> Reply:
    """SDIFFSTORE destination key [key ...]"""
    return _store(call, argv, difference, b"sdiffstore")


def counted_keys(argv: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Split `numkeys key [key ...] option ...` into keys and options."""
    number = as_integer(argv[1])
    if number is None or number < 1:
        raise fault(faults.NUMKEYS_BELOW_ONE)
    if number > len(argv) - 2:
        raise fault(faults.TOO_MANY_NUMKEYS)
    return argv[2 : 2 + number], argv[2 + number :]


def limit_option(value: bytes) -> int | None:
    """Read LIMIT of the commands that count; 0 means no limit."""
    limit = integer(value, faults.NEGATIVE_CARD_LIMIT)
    if not 0 <= limit <= I64_MAX:
        raise fault(faults.NEGATIVE_CARD_LIMIT)
    return limit or None


def _count(call: CommandContext, argv: list[bytes], combine: Combine, *, flags: frozenset[bytes] = frozenset()) -> int:
    keys, words = counted_keys(argv)
    limit, at = None, 0
    while at < len(words):
        word = words[at].upper()
        if word == b"LIMIT" and at + 1 < len(words):
            limit = limit_option(words[at + 1])
            at += 1
        elif word not in flags:
            raise fault(faults.SYNTAX)
        at += 1
    return sum(1 for _ in islice(combine(_read(call, keys)), limit))


@REGISTRY.command(
    "sintercard",
    -3,
    "readonly movablekeys",
    find_keys=keys_after(1),
    access="RO access",
    since="7.0.0",
    summary="Counts the members that several sets have in common, up to a limit.",
)
def sintercard(call: CommandContext, argv: list[bytes]) -> Reply:
    """SINTERCARD numkeys key [key ...] [LIMIT limit]"""
    return _count(call, argv, intersection)


@REGISTRY.command(
    "sunioncard",
    -3,
    "readonly movablekeys",
    find_keys=keys_after(1),
    access="RO access",
    since="8.10.0",
    summary="Counts the members of several sets, up to a limit; the count is exact with APPROX, too.",
)
def sunioncard(call: CommandContext, argv: list[bytes]) -> Reply:
    """SUNIONCARD numkeys key [key ...] [APPROX] [LIMIT limit]"""
    return _count(call, argv, union, flags=frozenset({b"APPROX"}))


@REGISTRY.command(
    "sdiffcard",
    -3,
    "readonly movablekeys",
    find_keys=keys_after(1),
    access="RO access",
    since="8.10.0",
    summary="Counts the members of the first set that the others do not have, up to a limit.",
)
def sdiffcard(call: CommandContext, argv: list[bytes]) -> Reply:
    """SDIFFCARD numkeys key [key ...] [LIMIT limit]"""
    return _count(call, argv, difference)


@REGISTRY.command(
    "smove",
    4,
    "write fast",
    keys=(1, 2, 1),
    access="RW access delete",
    rest_access="RW insert",
    since="1.0.0",
    summary="Moves a member from one set to another; answers whether it was there.",
)
def smove(call: CommandContext, argv: list[bytes]) -> Reply:
    """SMOVE source destination member"""
    source_key, target_key, member = argv[1:]
    call.lookup(target_key)  # an expired destination goes even if there is nothing to move
    found = call.typed(source_key, SetOf)
    if found is None:
        return 0
    target = call.typed(target_key, SetOf)
    if source_key == target_key:
        return int(member in found)
    if not found.discard(member):
        return 0
    call.event("s", b"srem", source_key)
    drop_if_empty(call, source_key, found)
    if target is None:
        target = SetOf()
        call.add(target_key, target)
    call.touch(source_key)
    call.dirty += 1
    if target.add(member):
        call.dirty += 1
        call.touch(target_key)
        call.event("s", b"sadd", target_key)
    call.log(*argv)
    return 1
