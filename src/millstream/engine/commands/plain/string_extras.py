"""MSETEX, several strings with one expiry, and INCREX, a counter with bounds and an expiry.

INCREX counts in integers, or with BYFLOAT in the 80-bit numbers of INCRBYFLOAT. A result beyond a bound leaves the key
as it is, or with SATURATE sets it to the bound. The log gets the resulting value, as SET.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias

from millstream.engine import faults
from millstream.engine.commands.plain.common import changed, deadline, delete, time_given
from millstream.engine.commands.plain.strings import SetOptions, modify, parse_options
from millstream.engine.commands.plain.waiting import keys_after
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.outcome import Reply
from millstream.engine.table import Registry
from millstream.engine.text.args import I64_MAX, I64_MIN, as_integer, integer
from millstream.engine.text.floats import Extended, add_extended, extended_text, parse_extended

REGISTRY = Registry("string")

_TIMES: Final = frozenset({b"EX", b"PX", b"EXAT", b"PXAT"})
_MSETEX_WORDS: Final = _TIMES | {b"NX", b"XX", b"KEEPTTL"}


@REGISTRY.command(
    "msetex",
    -4,
    "write denyoom movablekeys",
    find_keys=keys_after(1, 2),
    access="OW update",
    since="8.4.0",
    summary="Sets several strings with one expiry, if all keys are there or none is.",
)
def msetex(call: CommandContext, argv: list[bytes]) -> Reply:
    """MSETEX numkeys key value [key value ...] [NX | XX] [EX seconds | PX milliseconds | EXAT unix-time-seconds |
    PXAT unix-time-milliseconds | KEEPTTL]
    """
    number = as_integer(argv[1])
    if number is None or not 0 < number <= 2**31 - 1:
        raise fault(faults.BAD_NUMKEYS)
    if len(argv) < 2 + 2 * number:
        raise fault(faults.BAD_PAIRS)
    words = argv[2 : 2 + 2 * number]
    options = parse_options(argv[2 + 2 * number :], _MSETEX_WORDS)
    at_ms = _time(call, options.expiry, options.amount, "msetex")
    is_there = [call.lookup(key) is not None for key in words[::2]]
    if (options.condition == b"NX" and any(is_there)) or (options.condition == b"XX" and not all(is_there)):
        return 0
    _set_all(call, words, at_ms, options)
    return 1


def _time(call: CommandContext, unit: bytes | None, amount: bytes, command: str) -> int | None:
    """Return the time of an expiry option, or None without one."""
    if unit not in _TIMES:
        return None
    return deadline(call, unit, time_given(amount, command), command)


def _set_all(call: CommandContext, words: list[bytes], at_ms: int | None, options: SetOptions) -> None:
    for key, value in zip(words[::2], words[1::2], strict=True):
        call.overwrite(key, value, keep_ttl=options.expiry == b"KEEPTTL")
        if at_ms is not None:
            call.db.expires[key] = at_ms
            call.event("g", b"expire", key)
        call.touch(key)
        call.event("$", b"set", key)
        call.dirty += 1
    ending = [b"PXAT", b"%d" % at_ms] if at_ms is not None else [options.expiry] if options.expiry else []
    call.log(b"MSETEX", b"%d" % (len(words) // 2), *words, *ending)


# INCREX

Number: TypeAlias = int | Extended


@dataclass(slots=True)
class Increx:
    """The options of INCREX."""

    by: bytes = b"1"
    is_float: bool = False
    lower: bytes | None = None
    upper: bytes | None = None
    saturates: bool = False
    expiry: bytes | None = None  # EX PX EXAT PXAT PERSIST
    amount: bytes = b""
    only_new: bool = False  # ENX: the expiry only for a key that has none


_VALUED: Final = {b"BYINT": "by", b"BYFLOAT": "by", b"LBOUND": "lower", b"UBOUND": "upper"}


def _parse(words: list[bytes]) -> Increx:
    wanted, seen, at = Increx(), set[bytes](), 0
    while at < len(words):
        word = words[at].upper()
        takes_value = word in _VALUED or word in _TIMES
        if takes_value and at + 1 == len(words):
            raise fault(faults.SYNTAX)
        if word in _VALUED:
            setattr(wanted, _VALUED[word], words[at + 1])
        elif takes_value or word == b"PERSIST":
            wanted.expiry, wanted.amount = word, words[at + takes_value]
        elif word not in (b"ENX", b"SATURATE"):
            raise fault(faults.SYNTAX)
        if word in seen:
            raise fault(faults.SYNTAX)
        seen.add(word)
        at += 1 + takes_value
    if {b"BYINT", b"BYFLOAT"} <= seen or len(seen & (_TIMES | {b"PERSIST"})) > 1 or {b"PERSIST", b"ENX"} <= seen:
        raise fault(faults.SYNTAX)
    wanted.is_float, wanted.saturates, wanted.only_new = b"BYFLOAT" in seen, b"SATURATE" in seen, b"ENX" in seen
    if wanted.only_new and wanted.expiry is None:
        raise fault(faults.ENX_WITHOUT_EXPIRY)
    return wanted


@REGISTRY.command(
    "increx",
    -2,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW access update",
    since="8.8.0",
    summary="Adds to a number within bounds and sets its expiry; answers the number and what was added.",
)
def increx(call: CommandContext, argv: list[bytes]) -> Reply:
    """INCREX key [BYINT integer | BYFLOAT float] [LBOUND bound] [UBOUND bound] [SATURATE] [EX seconds |
    PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST] [ENX]
    """
    wanted, key = _parse(argv[2:]), argv[1]
    by, low, high = _operands(wanted)
    at_ms = _time(call, wanted.expiry, wanted.amount, "increx")
    old = call.typed(key, bytes)
    base = _base(wanted, old)
    total = _sum(base, by)
    bounded = _bounded(total, low, high)
    if bounded is not total and not wanted.saturates:
        return [_shown(call, base), _shown(call, 0 if not wanted.is_float else Extended(0, 0))]
    applied = _sum(bounded, _negative(base))
    if isinstance(applied, int) and not I64_MIN <= applied <= I64_MAX:
        raise fault(faults.APPLIED_OVERFLOW)
    _store(call, key, bounded, wanted, at_ms, existed=old is not None)
    return [_shown(call, bounded), _shown(call, applied)]


def _operands(wanted: Increx) -> tuple[Number, Number | None, Number | None]:
    """Return the increment and the bounds as numbers of one kind."""
    if wanted.is_float:
        by, low, high = _float(wanted.by, "Increment"), None, None
        if isinstance(by, float):
            raise fault(faults.INCREMENT_INFINITE)
        read = _bound
        low, high = read(wanted.lower, "LBOUND"), read(wanted.upper, "UBOUND")
        if low is not None and high is not None and _exact(low) > _exact(high):
            raise fault(faults.BOUNDS_CROSSED)
        return by, low, high
    number = integer(wanted.by, "ERR Increment is not an integer or out of range")
    bounds = [
        None if word is None else integer(word, f"ERR {name} is not an integer or out of range")
        for name, word in (("LBOUND", wanted.lower), ("UBOUND", wanted.upper))
    ]
    least, most = I64_MIN if bounds[0] is None else bounds[0], I64_MAX if bounds[1] is None else bounds[1]
    if least > most:
        raise fault(faults.BOUNDS_CROSSED)
    return number, least, most


def _float(word: bytes, name: str) -> Extended | float:
    value = parse_extended(word)
    if value is None:
        raise fault(f"ERR {name} is not a valid float")
    return value


def _bound(word: bytes | None, name: str) -> Extended | None:
    """Read a bound. Returns None for an infinity that does not restrict anything."""
    if word is None:
        return None
    value = _float(word, name)
    if isinstance(value, float):
        if (value > 0) == (name == "UBOUND"):
            return None
        raise fault(f"ERR {name} is not a valid float")
    return value


def _base(wanted: Increx, old: bytes | None) -> Number:
    if not wanted.is_float:
        return 0 if old is None else integer(old)
    value = Extended(0, 0) if old is None else parse_extended(old)
    if value is None:
        raise fault(faults.NOT_A_FLOAT)
    if isinstance(value, float):
        raise fault(faults.VALUE_INFINITE)
    return value


def _sum(left: Number, right: Number) -> Number:
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    assert isinstance(left, Extended)
    assert isinstance(right, Extended)
    total = add_extended(left, right)
    if total is None:
        raise fault(faults.NOT_FINITE)
    return total


def _negative(number: Number) -> Number:
    return -number if isinstance(number, int) else Extended(-number.bits, number.power)


def _exact(number: Number) -> Fraction:
    if isinstance(number, int):
        return Fraction(number)
    return Fraction(number.bits) * Fraction(2) ** number.power


def _bounded(total: Number, low: Number | None, high: Number | None) -> Number:
    """Return the number, or the bound that it exceeds."""
    if high is not None and _exact(total) > _exact(high):
        return high
    if low is not None and _exact(total) < _exact(low):
        return low
    return total


def _shown(call: CommandContext, number: Number) -> Reply:
    """Format a reply: an integer, or a fraction as text in RESP2 and as a double in RESP3."""
    if isinstance(number, int):
        return number
    return float(extended_text(number)) if call.protocol == 3 else extended_text(number)


def _store(
    call: CommandContext, key: bytes, number: Number, wanted: Increx, at_ms: int | None, *, existed: bool
) -> None:
    """Set the counter and its expiry. A time in the past deletes the key instead."""
    has_expiry = existed and key in call.db.expires
    if wanted.only_new and has_expiry:
        at_ms = None
    if at_ms is not None and at_ms <= call.now_ms and not call.trusted:
        if existed:
            delete(call, key, (b"DEL", key))
        return
    value = b"%d" % number if isinstance(number, int) else extended_text(number)
    modify(call, key, value, existed=existed)
    persists = wanted.expiry == b"PERSIST" and has_expiry
    ending = [] if persists else [b"KEEPTTL"] if at_ms is None else [b"PXAT", b"%d" % at_ms]
    changed(call, key, "$", b"incrbyfloat" if wanted.is_float else b"incrby", [b"SET", key, value, *ending])
    if at_ms is not None:
        call.db.expires[key] = at_ms
        call.event("g", b"expire", key)
    elif persists:
        call.db.expires.pop(key, None)
        call.event("g", b"persist", key)
