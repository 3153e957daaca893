"""BITFIELD: integers of any width inside a string."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millstream.engine import faults
from millstream.engine.commands.derived.bits import bit_offset
from millstream.engine.commands.plain.common import changed
from millstream.engine.commands.plain.strings import modify
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.outcome import Reply
from millstream.engine.table import Registry
from millstream.engine.text.args import as_integer, integer

REGISTRY = Registry("bitmap")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A signed or unsigned integer of some width."""

    is_signed: bool
    width: int

    @property
    def low(self) -> int:
        return -(1 << (self.width - 1)) if self.is_signed else 0

    @property
    def high(self) -> int:
        return (1 << (self.width - 1 if self.is_signed else self.width)) - 1

    def wrapped(self, value: int) -> int:
        """Return the value that the lowest bits of a number have."""
        value &= (1 << self.width) - 1
        return value - (1 << self.width) if self.is_signed and value > self.high else value


@dataclass(frozen=True, slots=True)
class _Operation:
    """One step of BITFIELD."""

    name: bytes  # GET, SET, INCRBY
    kind: _Kind
    offset: int
    operand: int = 0
    overflow: bytes = b"WRAP"


def _kind(word: bytes) -> _Kind:
    is_signed = word[:1] == b"i"
    width = as_integer(word[1:])
    if word[:1] not in (b"i", b"u") or width is None or not 1 <= width <= (64 if is_signed else 63):
        raise fault(faults.BAD_BITFIELD_TYPE)
    return _Kind(is_signed, width)


_OPERANDS: Final = {b"GET": 2, b"SET": 3, b"INCRBY": 3, b"OVERFLOW": 1}


def _parse(words: list[bytes]) -> list[_Operation]:
    operations = []
    overflow, at = b"WRAP", 0
    while at < len(words):
        name = words[at].upper()
        if name not in _OPERANDS or at + _OPERANDS[name] >= len(words):
            raise fault(faults.SYNTAX)
        if name == b"OVERFLOW":
            overflow = words[at + 1].upper()
            if overflow not in (b"WRAP", b"SAT", b"FAIL"):
                raise fault(faults.BAD_OVERFLOW)
        else:
            kind = _kind(words[at + 1])
            offset = bit_offset(words[at + 2], kind.width)
            operand = 0 if name == b"GET" else integer(words[at + 3])
            operations.append(_Operation(name, kind, offset, operand, overflow))
        at += 1 + _OPERANDS[name]
    return operations


def _read(value: bytes | bytearray, operation: _Operation) -> int:
    """Return a field; bits beyond the end of the string are clear."""
    start, stop = operation.offset, operation.offset + operation.kind.width
    first, end = start >> 3, (stop + 7) >> 3
    window = int.from_bytes(bytes(value[first:end]).ljust(end - first, b"\0"), "big") >> (end * 8 - stop)
    return operation.kind.wrapped(window)


def _write(value: bytearray, operation: _Operation, number: int) -> None:
    start, stop = operation.offset, operation.offset + operation.kind.width
    first, end = start >> 3, (stop + 7) >> 3
    shift, mask = end * 8 - stop, (1 << operation.kind.width) - 1
    window = int.from_bytes(value[first:end], "big")
    window = window & ~(mask << shift) | (number & mask) << shift
    value[first:end] = window.to_bytes(end - first, "big")


def _bounded(operation: _Operation, number: int) -> int | None:
    """Apply the overflow rule to a result; None means that the step fails."""
    kind = operation.kind
    if operation.name == b"SET" and not kind.is_signed:
        number &= (1 << 64) - 1  # a negative operand counts as a large one
    if kind.low <= number <= kind.high:
        return number
    match operation.overflow:
        case b"FAIL":
            return None
        case b"SAT":
            return kind.high if number > kind.high else kind.low
        case _:
            return kind.wrapped(number)


def _run(value: bytearray, operations: list[_Operation]) -> tuple[list[Reply], int]:
    """Run the steps on a string that is long enough; return their replies and the number of changes."""
    replies: list[Reply] = []
    changes = 0
    for operation in operations:
        old = _read(value, operation)
        if operation.name == b"GET":
            replies.append(old)
            continue
        number = _bounded(operation, operation.operand + (old if operation.name == b"INCRBY" else 0))
        if number is None:
            replies.append(None)
            continue
        _write(value, operation, number)
        changes += old != number
        replies.append(old if operation.name == b"SET" else number)
    return replies, changes


@REGISTRY.command(
    "bitfield",
    -2,
    "write denyoom",
    keys=(1, 1, 1),
    access="RW access update variable_flags",
    since="3.2.0",
    summary="Reads and changes integers of any width inside a string.",
)
def bitfield(call: CommandContext, argv: list[bytes]) -> Reply:
    """BITFIELD key [GET encoding offset | [OVERFLOW <WRAP | SAT | FAIL>] <SET encoding offset value |
    INCRBY encoding offset increment> [...]]
    """
    operations = _parse(argv[2:])
    writes = [operation for operation in operations if operation.name != b"GET"]
    if not writes:
        return _get_all(call, argv[1], operations)
    old = call.typed(argv[1], bytes)
    end = max((operation.offset + operation.kind.width + 7) >> 3 for operation in writes)
    value = bytearray((old or b"").ljust(end, b"\0"))
    replies, changes = _run(value, operations)
    changes += old is None or len(value) > len(old)
    if changes:
        modify(call, argv[1], bytes(value), existed=old is not None)
        changed(call, argv[1], "$", b"setbit", argv, changes)
    return replies


def _get_all(call: CommandContext, key: bytes, operations: list[_Operation]) -> list[Reply]:
    found = call.typed_to_read(key, bytes) or b""
    return [_read(found, operation) for operation in operations]


@REGISTRY.command(
    "bitfield_ro",
    -2,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO access",
    since="6.0.0",
    summary="Reads integers of any width inside a string.",
)
def bitfield_ro(call: CommandContext, argv: list[bytes]) -> Reply:
    """BITFIELD_RO key [GET encoding offset [GET encoding offset ...]]"""
    operations = _parse(argv[2:])
    if any(operation.name != b"GET" for operation in operations):
        raise fault(faults.BITFIELD_RO_GET)
    return _get_all(call, argv[1], operations)
