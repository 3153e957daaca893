"""What a payload looks like, said once: a dataclass, a pydantic model or a JSON Schema names columns and rules.

    table_of(Order) ──▶ Table(columns=(("order", "bigint"), …), read)         read(b'{"order": 7}') ──▶ {"order": 7}

`read` raises MalformedPayload, which names the part and the rule that it breaks, never the value. Of Spark it knows
the names of its types. Of JSON Schema it takes what names columns and rules for them; a keyword that it does not
know is refused when the table is made, because a rule that is passed over is worse than none.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from millstream.client import records
from millstream.client.payload import codec_for
from millstream.client.scalars import SCALARS
from millstream.errors import ConfigError, MalformedPayload

_PLAIN: Mapping[Any, str] = {
    bool: "boolean",
    int: "bigint",
    float: "double",
    str: "string",
    bytes: "binary",
    datetime.datetime: "timestamp",
    datetime.date: "date",
    datetime.time: "string",
    decimal.Decimal: "decimal(38,18)",
    uuid.UUID: "string",
    datetime.timedelta: "string",
    pathlib.Path: "string",
}
_JSON_TYPES = {"boolean": "boolean", "integer": "bigint", "number": "double", "string": "string"}
_NOTES = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "default", "examples", "format", "deprecated"}
)
_LARGEST = 1 << 63

Read = Callable[[bytes], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of a payload, and how one is read."""

    columns: tuple[tuple[str, str], ...]  # name, Spark's type
    read: Read

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)

    @property
    def ddl(self) -> str:
        return ", ".join(f"`{name}` {kind}" for name, kind in self.columns)


def table_of(schema: Any) -> Table:
    """Return the table that a dataclass, named tuple, TypedDict, pydantic model or JSON Schema describes."""
    if isinstance(schema, Mapping):
        return _json_table(schema)
    if records.is_model(schema) or records.is_record(schema):
        codec = codec_for(schema)
        columns = tuple((name, _spark_type(kind, name)) for name, kind in _parts(schema).items())
        return Table(columns, lambda payload: _columns(codec.decode({b"data": payload})))
    raise ConfigError(
        f"schema: {schema!r} names no columns: give a dataclass, a pydantic model, a TypedDict or a JSON Schema"
    )


# Types of Python


def _parts(type_: Any) -> dict[str, Any]:
    if records.is_model(type_):
        return {name: field.annotation for name, field in type_.model_fields.items()}
    return {part.name: part.type for part in records.record_of(type_).parts}


def _spark_type(kind: Any, place: str) -> str:
    kind = records.bare(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin in (Union, UnionType):
        rest = [each for each in arguments if each is not NoneType]
        if len(rest) == 1:
            return _spark_type(rest[0], place)
    if origin in (list, set, frozenset) or (origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis):
        return f"array<{_spark_type(arguments[0], place)}>"
    if origin is dict and arguments[0] is str:
        return f"map<string,{_spark_type(arguments[1], place)}>"
    if origin is Literal:
        return _spark_type(type(arguments[0]), place)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _spark_type(type(next(iter(kind)).value), place)
    if records.is_model(kind) or records.is_record(kind):
        inner = (f"`{name}`:{_spark_type(part, f'{place}.{name}')}" for name, part in _parts(kind).items())
        return f"struct<{','.join(inner)}>"
    raise ConfigError(f"schema: {place} is of type {kind!r}, for which Spark has no column: use a simpler type")


_TAKEN = frozenset({str, bool, float, bytes, NoneType})


def _columns(value: Any) -> dict[str, Any]:
    found = _plain(value)
    assert isinstance(found, dict)
    return found


def _plain(value: Any) -> Any:
    """Convert a value for Arrow."""
    if type(value) in _TAKEN:  # most are, and the questions below take a while
        return value
    if type(value) is int and -_LARGEST <= value < _LARGEST:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "model_fields_set"):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if hasattr(value, "_asdict"):
        return {name: _plain(each) for name, each in value._asdict().items()}
    match value:
        case enum.Enum():
            return _plain(value.value)
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(each) for each in value]
        case uuid.UUID() | datetime.time() | pathlib.PurePath():
            return str(value)
        case datetime.timedelta():
            return SCALARS[datetime.timedelta].write(value)
        case int() if not isinstance(value, bool) and not -_LARGEST <= value < _LARGEST:
            raise MalformedPayload("", "has a number that is too large for a column of 64 bits")
    return value


# JSON Schema

Check = Callable[[Any], Any]  # the value as a column takes it, or MalformedPayload


def _json_table(schema: Mapping[str, Any]) -> Table:
    if schema.get("type", "object") != "object" or not isinstance(schema.get("properties"), Mapping):
        raise ConfigError("schema: a JSON Schema of a payload has the type object and properties: the columns")
    columns = tuple((name, _json_type(part, name)) for name, part in schema["properties"].items())
    check = _check_of({"type": "object", **schema}, "schema")

    def read(payload: bytes) -> dict[str, Any]:
        try:
            value = json.loads(payload)
        except (ValueError, RecursionError):
            raise MalformedPayload("data", "must be JSON") from None
        try:
            found: dict[str, Any] = check(value)
        except MalformedPayload as error:
            raise error.within("data") from None
        return {name: found.get(name) for name, _ in columns}

    return Table(columns, read)


def _json_type(part: Any, place: str) -> str:
    """Spark's type of a part; a type that may also be null is the type."""
    if not isinstance(part, Mapping):
        raise ConfigError(f"schema: {place} must be a JSON Schema, not {part!r}")
    kinds = [part["type"]] if isinstance(part.get("type"), str) else list(part.get("type", ()))
    kinds = [kind for kind in kinds if kind != "null"]
    if not kinds and (values := part.get("enum") or [part["const"]] if "const" in part or "enum" in part else None):
        kinds = ["string"] if all(isinstance(value, str) for value in values) else []
    match kinds:
        case ["array"]:
            return f"array<{_json_type(part.get('items', {}), place + '[]')}>"
        case ["object"] if part.get("properties"):
            inner = (f"`{name}`:{_json_type(each, f'{place}.{name}')}" for name, each in part["properties"].items())
            return f"struct<{','.join(inner)}>"
        case ["object"]:
            return f"map<string,{_json_type(part.get('additionalProperties', {}), place + '.*')}>"
        case [kind] if kind in _JSON_TYPES:
            return _JSON_TYPES[kind]
    raise ConfigError(f"schema: {place} needs one type (string, integer, number, boolean, array, object)")


def _check_of(schema: Mapping[str, Any], place: str) -> Check:
    unknown = schema.keys() - _RULES.keys() - _NOTES - {"type"}
    if unknown:
        raise ConfigError(
            f"schema: {place} has the keyword {min(unknown)!r}, which is not checked here; there are "
            f"{', '.join(sorted([*_RULES, 'type']))}"
        )
    checks = [_type_check(schema["type"], place)] if "type" in schema else []
    checks += [_RULES[name](schema[name], schema, place) for name in _RULES if name in schema]

    def check(value: Any) -> Any:
        for each in checks:
            value = each(value)
        return value

    return check


_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool) and -_LARGEST <= value < _LARGEST,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def _type_check(kinds: str | list[str], place: str) -> Check:
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    if unknown := set(names) - _KINDS.keys():
        raise ConfigError(f"schema: {place} has the type {min(unknown)!r}; there are {', '.join(_KINDS)}")

    def check(value: Any) -> Any:
        if not any(_KINDS[name](value) for name in names):
            raise MalformedPayload("", f"must be of type {' or '.join(names)}")
        return float(value) if "number" in names and isinstance(value, int) and not isinstance(value, bool) else value

    return check


def _holds(rule: Callable[[Any], bool], text: str, applies: Callable[[Any], bool]) -> Check:
    def check(value: Any) -> Any:
        if applies(value) and not rule(value):
            raise MalformedPayload("", text)
        return value

    return check


def _properties(parts: Mapping[str, Any], schema: Mapping[str, Any], place: str) -> Check:
    checks = {name: _check_of(part, f"{place}.{name}") for name, part in parts.items()}

    def check(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: _inside(name, checks[name], each) if name in checks else each for name, each in value.items()}

    return check


def _items(schema: Mapping[str, Any], _: Mapping[str, Any], place: str) -> Check:
    inner = _check_of(schema, f"{place}[]")

    def check(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [_inside(f"[{at}]", inner, each) for at, each in enumerate(value)]

    return check


def _others(rule: Any, schema: Mapping[str, Any], place: str) -> Check:
    known = schema.get("properties", {}).keys()
    inner = None if isinstance(rule, bool) else _check_of(rule, f"{place}.*")

    def check(value: Any) -> Any:
        if not isinstance(value, dict) or rule is True:
            return value
        if inner is None and not value.keys() <= known:
            raise MalformedPayload("", "has parts that the schema does not name")
        if inner is None:
            return value
        return {name: each if name in known else _inside(name, inner, each) for name, each in value.items()}

    return check


def _required(names: list[str], _: Mapping[str, Any], place: str) -> Check:
    def check(value: Any) -> Any:
        for name in names:
            if isinstance(value, dict) and name not in value:
                raise MalformedPayload(name, "is missing")
        return value

    return check


def _inside(name: str, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except MalformedPayload as error:
        raise error.within(name) from None


_number, _text, _list = _KINDS["number"], _KINDS["string"], _KINDS["array"]
_RULES: Mapping[str, Callable[[Any, Mapping[str, Any], str], Check]] = {
    "required": _required,
    "properties": _properties,
    "additionalProperties": _others,
    "items": _items,
    "enum": lambda rule, *_: _holds(lambda v: v in rule, f"must be one of {', '.join(map(str, rule))}", lambda v: True),
    "const": lambda rule, *_: _holds(lambda v: v == rule, f"must be {rule!r}", lambda v: True),
    "minimum": lambda rule, *_: _holds(lambda v: v >= rule, f"must be at least {rule}", _number),
    "maximum": lambda rule, *_: _holds(lambda v: v <= rule, f"must be at most {rule}", _number),
    "exclusiveMinimum": lambda rule, *_: _holds(lambda v: v > rule, f"must be above {rule}", _number),
    "exclusiveMaximum": lambda rule, *_: _holds(lambda v: v < rule, f"must be below {rule}", _number),
    "minLength": lambda rule, *_: _holds(lambda v: len(v) >= rule, f"must have {rule} characters or more", _text),
    "maxLength": lambda rule, *_: _holds(lambda v: len(v) <= rule, f"must have {rule} characters or less", _text),
    "pattern": lambda rule, *_: _holds(re.compile(rule).search, f"must match {rule}", _text),  # type: ignore[arg-type]
    "minItems": lambda rule, *_: _holds(lambda v: len(v) >= rule, f"must have {rule} items or more", _list),
    "maxItems": lambda rule, *_: _holds(lambda v: len(v) <= rule, f"must have {rule} items or less", _list),
}
