"""Floating-point numbers as Redis reads and prints them, to the last digit.

Scores are doubles. Redis prints them with Grisu2, which is always correct but in one of a thousand cases not the
shortest text, so `repr` would differ; `double_text` follows the same steps. INCRBYFLOAT computes with the 80-bit
numbers of x86, of which Python has none: here they are pairs of integers, rounded to 64 significant bits.

    word ── parse_double ──▶ float ── double_text ──▶ bytes          ZADD, ZINCRBY, replies
    word ── parse_bound ──▶ float                                    score ranges: C rules, generous
    word ── parse_extended ──▶ Extended ── add_extended ── extended_text ──▶ bytes     INCRBYFLOAT
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Final, NamedTuple


class Extended(NamedTuple):
    """An 80-bit number: so many times two to the power."""

    bits: int  # at most 64 of them, and a sign
    power: int  # from -16445


_DECIMAL: Final = re.compile(rb"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?")
_HEX: Final = re.compile(rb"([+-]?)0[xX]([0-9a-fA-F]*)(?:\.([0-9a-fA-F]*))?(?:[pP]([+-]?\d+))?")
_INFINITY: Final = re.compile(rb"([+-]?)inf(?:inity)?", re.IGNORECASE)
_C_BLANKS: Final = b" \t\n\v\f\r"
_EXTENDED_MAX_CHARS: Final = 5 * 1024
_FAR: Final = {10: 10_200, 2: 40_000}  # with a power beyond this a text of that length is out of every range


def parse_double(word: bytes) -> float | None:
    """Parse a score. Returns None for blanks, nan and what is out of range (see `_reader_is_silent`)."""
    value = _any_double(word)
    if value is None:
        return None
    if (math.isinf(value) or value == 0.0) and not _exact_extreme(word) and not _reader_is_silent(word):
        return None
    return value


def parse_bound(word: bytes) -> float | None:
    """Parse the number of a score range as C's strtod does: leading blanks pass, a NUL ends it, an empty text is 0."""
    word = word.split(b"\0", 1)[0]
    if not word:
        return 0.0
    return _any_double(word.lstrip(_C_BLANKS))


def double_text(value: float) -> bytes:
    """Return a double as Redis prints it."""
    if math.isinf(value):
        return b"inf" if value > 0 else b"-inf"
    if value != value:
        return b"nan"
    if value == 0.0:
        return b"-0" if math.copysign(1.0, value) < 0 else b"0"
    if value.is_integer() and abs(value) < 2**62:
        return b"%d" % int(value)
    digits, power = _grisu2(abs(value))
    return (b"-" if value < 0 else b"") + _laid_out(digits, power)


def parse_extended(word: bytes) -> Extended | float | None:
    """Parse an INCRBYFLOAT operand. Returns None when it is no number or out of range; a float only for infinities."""
    if len(word) >= _EXTENDED_MAX_CHARS:
        return None
    if match := _INFINITY.fullmatch(word):
        return -math.inf if match[1] == b"-" else math.inf
    exact = _exact(word)
    if exact is None:
        return None
    rounded = _to_extended(*exact)
    return None if rounded is None or (exact[0] and not rounded.bits) else rounded


def add_extended(left: Extended | float, right: Extended | float) -> Extended | None:
    """Return the sum, or None when it is not finite."""
    if isinstance(left, float) or isinstance(right, float):
        return None
    power = min(left.power, right.power)
    total = (left.bits << (left.power - power)) + (right.bits << (right.power - power))
    return _to_extended(total << max(power, 0), 1 << max(-power, 0))


def extended_text(value: Extended) -> bytes:
    """17 digits behind the point, trailing zeros cut off."""
    scaled = abs(value.bits) * 10**17
    if value.power >= 0:
        scaled <<= value.power
    else:
        scaled = _quotient(scaled, 1 << -value.power)
    whole, rest = divmod(scaled, 10**17)
    text = _decimal(whole)
    if rest:
        text += f".{rest:017d}".rstrip("0")
    return ("-" + text if value.bits < 0 and scaled else text).encode()


def _any_double(word: bytes) -> float | None:
    """Parse a double by C's grammar, infinities and out-of-range numbers included; None for nan and other text."""
    if match := _INFINITY.fullmatch(word):
        return -math.inf if match[1] == b"-" else math.inf
    if _has_digits(_DECIMAL.fullmatch(word)):
        return float(word)
    if not _has_digits(_HEX.fullmatch(word)):
        return None
    try:
        return float.fromhex(word.decode())
    except OverflowError:
        return -math.inf if word.startswith(b"-") else math.inf


def _has_digits(match: re.Match[bytes] | None) -> bool:
    return match is not None and bool(match[2] or match[3])


def _exact_extreme(word: bytes) -> bool:
    """Whether a result of zero or infinity is what the text says, and no overflow or underflow."""
    match = _DECIMAL.fullmatch(word) or _HEX.fullmatch(word)
    return match is None or not ((match[2] or b"") + (match[3] or b"")).strip(b"0")


def _reader_is_silent(word: bytes) -> bool:
    """Whether Redis takes an overflow or underflow of this decimal for a plain infinity or zero.

    Its fast reader handles up to 19 digits with a power of ten from -342 to 308 and reports nothing; whatever it
    passes on to the C library is refused when out of range. So 9e308 is infinity and 1e309 an error.
    """
    match = _DECIMAL.fullmatch(word)
    if match is None:
        return False
    digits = ((match[2] or b"") + (match[3] or b"")).lstrip(b"0")
    power = _bounded(match[4]) - len(match[3] or b"")
    return len(digits) <= 19 and -342 <= power <= 308


def _bounded(exponent: bytes | None) -> int:
    """Return an exponent, cut to a size that is safe to compute with."""
    if not exponent:
        return 0
    digits = exponent.lstrip(b"+-0")
    size = int(digits) if 0 < len(digits) <= 9 else (0 if not digits else 10**9)
    return -size if exponent.startswith(b"-") else size


# Python refuses to turn more than 4300 digits into a number at once.
_CHUNK: Final = 4000
_TEN_TO_CHUNK: Final = int(10**_CHUNK)


def _integer(digits: bytes) -> int:
    if len(digits) <= _CHUNK:
        return int(digits)
    head, tail = digits[:-_CHUNK], digits[-_CHUNK:]
    return _integer(head) * _TEN_TO_CHUNK + int(tail)


def _decimal(number: int) -> str:
    if number < _TEN_TO_CHUNK:
        return str(number)
    head, tail = divmod(number, _TEN_TO_CHUNK)
    return _decimal(head) + str(tail).zfill(_CHUNK)


def _exact(word: bytes) -> tuple[int, int] | None:
    """Return the fraction that a decimal or hexadecimal text names; far out of range, any one that is so too."""
    base, per_digit, match = 10, 10, _DECIMAL.fullmatch(word)
    if match is None:
        base, per_digit, match = 2, 16, _HEX.fullmatch(word)
    if match is None or not _has_digits(match):
        return None
    fraction = match[3] or b""
    digits = (match[2] or b"") + fraction
    mantissa = _integer(digits) if base == 10 else int(digits, 16)
    exponent = max(-_FAR[base], min(_FAR[base], _bounded(match[4]))) if mantissa else 0
    numerator = mantissa * int(base ** max(exponent, 0))
    divisor = int(base ** max(-exponent, 0)) * int(per_digit ** len(fraction))
    return (-numerator if match[1] == b"-" else numerator), divisor


def _quotient(numerator: int, divisor: int) -> int:
    """Divided and rounded, a half to the even neighbour; both are positive."""
    whole, rest = divmod(numerator, divisor)
    return whole + (2 * rest > divisor or (2 * rest == divisor and whole & 1))


def _to_extended(numerator: int, divisor: int) -> Extended | None:
    """Round a fraction to 64 bits; None when it is too large."""
    size = abs(numerator)
    power = max(size.bit_length() - divisor.bit_length() - 64, -16445)
    if size << max(-power - 64, 0) >= divisor << max(power + 64, 0):  # it would have 65 bits
        power += 1
    bits = _quotient(size << max(-power, 0), divisor << max(power, 0))
    if bits.bit_length() + power > 16384:
        return None
    return Extended(-bits if numerator < 0 else bits, power)


def _laid_out(digits: bytes, power: int) -> bytes:
    """Digits times ten to the power: plain where it is short, else with an exponent."""
    count = len(digits)
    exponent = power + count - 1
    if power >= 0 and exponent < count + 7:
        return digits + b"0" * power
    if power < 0 and (power > -7 or abs(exponent) < 4):
        point = count + power
        return b"0." + b"0" * -point + digits if point <= 0 else digits[:point] + b"." + digits[point:]
    fraction = b"." + digits[1:] if count > 1 else b""
    return b"%s%se%+d" % (digits[:1], fraction, exponent)


@cache
def _power_of_ten(index: int) -> tuple[int, int]:
    """Ten to the power 8 * index - 348 as 64 bits and a power of two, rounded to nearest."""
    tens = 8 * index - 348
    exact = _to_extended(int(10 ** max(tens, 0)), int(10 ** max(-tens, 0)))
    assert exact is not None  # doubles do not reach that far
    return exact


def _scaling(power: int) -> tuple[int, int, int]:
    """Choose the power of ten that brings 64 bits times 2**power into reach: bits, power of two, power of ten."""
    index = (int(-(power + 87) * 0.30102999566398114) + 348) // 8
    while True:
        bits, exponent = _power_of_ten(index)
        reached = power + exponent + 64
        if -60 <= reached <= -32:
            return bits, exponent, 8 * index - 348
        index += 1 if reached < -60 else -1


def _grisu2(value: float) -> tuple[bytes, int]:
    """Digits and a power of ten that read back as the value, which is positive and finite.

    The value and the ends of the interval that rounds to it are multiplied by a cached power of ten; digits of
    the upper end are taken until what is left fits into the interval, then the last one is moved to the value.
    """
    mantissa, exponent = math.frexp(value)
    power = max(exponent - 53, -1074)
    bits = int(math.ldexp(mantissa, exponent - power))
    low_shift = 2 if bits == 1 << 52 else 1  # below a power of two doubles lie twice as close
    upper, upper_power = (bits << 1) + 1, power - 1
    shift = 64 - upper.bit_length()
    upper, upper_power = upper << shift, upper_power - shift
    lower = ((bits << low_shift) - 1) << (power - low_shift - upper_power)
    scale, scale_power, tens = _scaling(upper_power)
    middle = _scaled(bits << (64 - bits.bit_length()), scale)
    upper, lower = _scaled(upper, scale) - 1, _scaled(lower, scale) + 1
    return _digits(middle, upper, lower, -(upper_power + scale_power + 64), -tens)


def _scaled(bits: int, scale: int) -> int:
    """Return the upper 64 bits of the product, rounded."""
    return (bits * scale + (1 << 63)) >> 64


def _digits(middle: int, upper: int, lower: int, point: int, power: int) -> tuple[bytes, int]:
    """Digits of `upper`, a number with `point` binary places, as few as stay above `lower`."""
    distance, reach = upper - middle, upper - lower
    whole, rest = upper >> point, upper & ((1 << point) - 1)
    digits = bytearray()
    for left in range(9, -1, -1):
        digit, whole = divmod(whole, 10**left)
        if digit or digits:
            digits.append(48 + digit)
        remaining = (whole << point) + rest
        if remaining <= reach:
            _move_last(digits, reach, remaining, 10**left << point, distance)
            return bytes(digits), power + left
    unit = 1
    while True:
        rest, reach, unit, power = rest * 10, reach * 10, unit * 10, power - 1
        digit, rest = rest >> point, rest & ((1 << point) - 1)
        if digit or digits:
            digits.append(48 + digit)
        if rest < reach:
            _move_last(digits, reach, rest, 1 << point, distance * unit)
            return bytes(digits), power


def _move_last(digits: bytearray, reach: int, remaining: int, step: int, distance: int) -> None:
    """Lower the last digit while that comes closer to the value and stays in the interval."""
    while (
        remaining < distance
        and reach - remaining >= step
        and (remaining + step < distance or distance - remaining > remaining + step - distance)
    ):
        digits[-1] -= 1
        remaining += step
