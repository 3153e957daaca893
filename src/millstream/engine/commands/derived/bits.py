"""Strings as arrays of bits: SETBIT, BITCOUNT, BITOP and the others but BITFIELD. Bit 0 is the highest of byte 0."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_, or_, xor
from typing import Final

from millstream.engine import faults
from millstream.engine.commands.derived.storing import store
from millstream.engine.commands.plain.common import changed
from millstream.engine.commands.plain.strings import MAX_SIZE, modify
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.outcome import Reply
from millstream.engine.table import Registry
from millstream.engine.text.args import as_integer, integer

REGISTRY = Registry("bitmap")


def bit_offset(word: bytes, width: int = 0) -> int:
    """Read the position of a bit; with a width, `#n` means the n-th field of that width."""
    counts_fields = width > 0 and word[:1] == b"#"
    value = as_integer(word[1:] if counts_fields else word)
    if value is None:
        raise fault(faults.BAD_BIT_OFFSET)
    value *= width if counts_fields else 1
    if not 0 <= value < MAX_SIZE * 8:
        raise fault(faults.BAD_BIT_OFFSET)
    return value


@REGISTRY.command(
    "setbit",
    4,
    "write denyoom",
    keys=(1, 1, 1),
    access="RW access update",
    since="2.2.0",
    summary="Sets or clears a bit of a string, which grows as needed; answers the old bit.",
)
def setbit(call: CommandContext, argv: list[bytes]) -> Reply:
    """SETBIT key offset value"""
    offset = bit_offset(argv[2])
    if argv[3] not in (b"0", b"1"):
        raise fault(faults.BAD_BIT)
    old = call.typed(argv[1], bytes)
    at, mask = offset >> 3, 0x80 >> (offset & 7)
    grown = bytearray((old or b"").ljust(at + 1, b"\0"))
    was_set, is_set = bool(grown[at] & mask), argv[3] == b"1"
    if old is None or len(grown) > len(old) or was_set != is_set:
        grown[at] = grown[at] | mask if is_set else grown[at] & ~mask
        modify(call, argv[1], bytes(grown), existed=old is not None)
        changed(call, argv[1], "$", b"setbit", argv)
    return int(was_set)


@REGISTRY.command(
    "getbit",
    3,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO access",
    since="2.2.0",
    summary="Answers a bit of a string, 0 beyond its end.",
)
def getbit(call: CommandContext, argv: list[bytes]) -> Reply:
    """GETBIT key offset"""
    offset = bit_offset(argv[2])
    found = call.typed_to_read(argv[1], bytes) or b""
    at = offset >> 3
    return found[at] >> (7 - (offset & 7)) & 1 if at < len(found) else 0


# Ranges of bits


@dataclass(frozen=True, slots=True)
class _BitRange:
    """A range of bytes or bits as the client gives it: both ends included, negative ends count from the end."""

    start: int = 0
    end: int | None = None  # None: to the end of the string
    in_bits: bool = False

    def bits(self, size: int) -> tuple[int, int]:
        """Return the half-open range of bits in a string of this many bytes; it may be empty."""
        total = size * 8 if self.in_bits else size
        end = total - 1 if self.end is None else self.end
        start = max(self.start + total, 0) if self.start < 0 else self.start
        end = max(end + total, 0) if end < 0 else end
        end = min(end, total - 1)
        unit = 1 if self.in_bits else 8
        return (start * unit, (end + 1) * unit) if start <= end else (0, 0)


def _range(words: list[bytes]) -> _BitRange:
    """Read `[start [end [BYTE | BIT]]]`."""
    if len(words) > 3:
        raise fault(faults.SYNTAX)
    start = integer(words[0]) if words else 0
    in_bits = False
    if len(words) == 3:
        unit = words[2].upper()
        if unit not in (b"BYTE", b"BIT"):
            raise fault(faults.SYNTAX)
        in_bits = unit == b"BIT"
    return _BitRange(start, integer(words[1]) if len(words) > 1 else None, in_bits)


def _number(found: bytes, start: int, stop: int) -> int:
    """Return the bits from start to stop - 1 as a number."""
    first, end = start >> 3, (stop + 7) >> 3
    window = int.from_bytes(found[first:end], "big") >> (end * 8 - stop)
    return window & ((1 << (stop - start)) - 1)


@REGISTRY.command(
    "bitcount",
    -2,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="2.6.0",
    summary="Counts the bits that are set in a string or in a range of it.",
)
def bitcount(call: CommandContext, argv: list[bytes]) -> Reply:
    """BITCOUNT key [start end [BYTE | BIT]]"""
    if len(argv) == 3:
        raise fault(faults.SYNTAX)
    if len(argv) > 3:
        integer(argv[2])
        integer(argv[3])  # Redis reads both ends before the unit
    wanted = _range(argv[2:])
    found = call.typed_to_read(argv[1], bytes) or b""
    if wanted.end is not None and wanted.start < 0 and wanted.end < wanted.start:
        return 0  # BITPOS moves such ends to the first byte
    return _number(found, *wanted.bits(len(found))).bit_count()


@REGISTRY.command(
    "bitpos",
    -3,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="2.8.7",
    summary="Answers the position of the first bit that is set, or of the first that is clear.",
)
def bitpos(call: CommandContext, argv: list[bytes]) -> Reply:
    """BITPOS key bit [start [end [BYTE | BIT]]]"""
    bit = integer(argv[2])
    if bit not in (0, 1):
        raise fault(faults.BITPOS_BIT)
    wanted = _range(argv[3:])
    found = call.typed_to_read(argv[1], bytes)
    if found is None:
        return -1 if bit else 0
    start, stop = wanted.bits(len(found))
    if start == stop:
        return -1
    size = stop - start
    number = _number(found, start, stop)
    if not bit:
        number ^= (1 << size) - 1
    if number:
        return start + size - number.bit_length()
    # A string is followed by clear bits without end, unless the caller has named an end.
    return stop if not bit and wanted.end is None else -1


# BITOP


def _one(numbers: list[int]) -> int:
    """Return the bits that exactly one number has."""
    once = more = 0
    for number in numbers:
        more |= once & number
        once |= number
    return once & ~more


def _combine(operation: bytes, numbers: list[int], size: int) -> int:
    first, rest = numbers[0], reduce(or_, numbers[1:], 0)
    match operation:
        case b"AND":
            return reduce(and_, numbers)
        case b"OR":
            return first | rest
        case b"XOR":
            return reduce(xor, numbers)
        case b"NOT":
            return first ^ ((1 << size * 8) - 1)
        case b"DIFF":
            return first & ~rest
        case b"DIFF1":
            return rest & ~first
        case b"ANDOR":
            return first & rest
        case _:
            return _one(numbers)


_OPERATIONS: Final = frozenset({b"AND", b"OR", b"XOR", b"NOT", b"DIFF", b"DIFF1", b"ANDOR", b"ONE"})
_NEED_TWO: Final = frozenset({b"DIFF", b"DIFF1", b"ANDOR"})


@REGISTRY.command(
    "bitop",
    -4,
    "write denyoom",
    keys=(2, -1, 1),
    access="OW update",
    rest_access="RO access",
    since="2.6.0",
    summary="Combines strings bit by bit and stores the result; answers its length.",
)
def bitop(call: CommandContext, argv: list[bytes]) -> Reply:
    """BITOP <AND | OR | XOR | NOT | DIFF | DIFF1 | ANDOR | ONE> destkey key [key ...]"""
    operation = argv[1].upper()
    if operation not in _OPERATIONS:
        raise fault(faults.SYNTAX)
    if operation == b"NOT" and len(argv) != 4:
        raise fault(faults.BITOP_NOT_ONE)
    if operation in _NEED_TWO and len(argv) < 5:
        raise faults.bitop_needs_two(operation)
    inputs = [call.typed_to_read(key, bytes) or b"" for key in argv[3:]]
    size = max(map(len, inputs))
    numbers = [int.from_bytes(word.ljust(size, b"\0"), "big") for word in inputs]
    return store(call, argv[2], _combine(operation, numbers, size).to_bytes(size, "big"), "$", b"set", argv)
