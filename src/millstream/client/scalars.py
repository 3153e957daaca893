"""Single values as JSON: numbers, text, and what is written as text; see shapes."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path, PosixPath, PurePath, PurePosixPath
from types import NoneType
from typing import Any, Final
from uuid import UUID

from millstream.errors import MalformedPayload

NULL, BOOLEAN, INTEGER, NUMBER, STRING, ARRAY, OBJECT = (
    "null",
    "boolean",
    "integer",
    "number",
    "string",
    "array",
    "object",
)
EVERY: Final = frozenset({NULL, BOOLEAN, INTEGER, NUMBER, STRING, ARRAY, OBJECT})
KINDS: Final = {NoneType: NULL, bool: BOOLEAN, int: INTEGER, float: NUMBER, str: STRING, list: ARRAY, dict: OBJECT}

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """How the values of one type become JSON values and back; both raise MalformedPayload."""

    name: str  # for messages: "an int"
    kinds: frozenset[str]  # the kinds of JSON value that it writes; no two members of a union may share one
    write: Convert
    read: Convert


def wrong(name: str, value: object) -> MalformedPayload:
    """Return the error for a value of the wrong type; it does not contain the value."""
    return MalformedPayload("", f"must be {name}, not {a(type(value).__name__)}")


def a(name: str) -> str:
    """Return a name with its article, for messages."""
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def _scalar(kind: type, name: str) -> Shape:
    def same(value: Any) -> Any:
        if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
            return value
        raise wrong(name, value)

    return Shape(name, frozenset({KINDS[kind]}), same, same)


def as_float(value: Any) -> float:
    """Return a float; a whole number is accepted too, since other languages write 1.0 as 1."""
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise wrong("a float", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise MalformedPayload("", "must be a finite number")
    return number


def _text(kind: type, name: str, to_text: Callable[[Any], str], from_text: Callable[[str], Any]) -> Shape:
    """Return the shape of a type that is written as text."""

    def write(value: Any) -> str:
        if not isinstance(value, kind) or (kind is date and isinstance(value, datetime)):
            raise wrong(name, value)
        return to_text(value)

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            raise wrong(f"{name} as text", value)
        try:
            return from_text(value)
        except (ValueError, InvalidOperation, OverflowError) as error:
            raise MalformedPayload("", f"must be {name} as text") from error

    return Shape(name, frozenset({STRING}), write, read)


def _decimal_text(value: Decimal) -> str:
    if not value.is_finite():
        raise MalformedPayload("", "must be a finite number")
    return str(value)


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise ValueError("not finite")
    return value


def _int_of_key(text: str) -> int:
    value = int(text)
    if str(value) != text:  # "007" and "7" would fall together
        raise ValueError("not as Python writes it")
    return value


_DURATION: Final = re.compile(r"(-?)P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,6}))?S)?)?", re.ASCII)


def _duration_text(value: timedelta) -> str:
    """Return a duration in ISO 8601, as `P1DT2H3M4.5S`."""
    micros = abs(value) // timedelta(microseconds=1)
    seconds, micros = divmod(micros, 1_000_000)
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    fraction = f".{micros:06d}".rstrip("0") if micros else ""
    parts = [(days, "D"), ("", "T"), (hours, "H"), (minutes, "M"), (f"{seconds}{fraction}", "S")]
    sign = "-" if value < timedelta(0) else ""
    return f"{sign}P" + "".join(f"{number}{unit}" for number, unit in parts if number != 0)


def _duration(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()[1:]):
        raise ValueError("not a duration")
    sign, days, hours, minutes, seconds, fraction = match.groups()
    found = timedelta(
        days=int(days or 0),
        hours=int(hours or 0),
        minutes=int(minutes or 0),
        seconds=int(seconds or 0),
        microseconds=int((fraction or "").ljust(6, "0")),
    )
    return -found if sign else found


def _base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


FLOAT: Final = Shape("a float", frozenset({NUMBER}), as_float, as_float)
INT_KEY: Final = _text(int, "an int", str, _int_of_key)
SCALARS: Final[dict[Any, Shape]] = {
    None: _scalar(NoneType, "None"),
    NoneType: _scalar(NoneType, "None"),
    bool: _scalar(bool, "a bool"),
    int: _scalar(int, "an int"),
    str: _scalar(str, "a str"),
    float: FLOAT,
    bytes: _text(bytes, "bytes", lambda value: base64.b64encode(value).decode(), _base64),
    datetime: _text(datetime, "a datetime", datetime.isoformat, datetime.fromisoformat),
    date: _text(date, "a date", date.isoformat, date.fromisoformat),
    time: _text(time, "a time", time.isoformat, time.fromisoformat),
    Decimal: _text(Decimal, "a Decimal", _decimal_text, _decimal),
    UUID: _text(UUID, "a UUID", str, UUID),
    timedelta: _text(timedelta, "a timedelta", _duration_text, _duration),
    Path: _text(Path, "a Path", str, Path),
    PosixPath: _text(Path, "a Path", str, Path),
    PurePath: _text(PurePath, "a path", str, PurePath),
    PurePosixPath: _text(PurePosixPath, "a path", str, PurePosixPath),
}
