"""Types with named parts: dataclasses, named tuples, TypedDicts, and pydantic models, which look after themselves.

It says which parts such a type has, takes a value apart and puts one together; how a part is written is not its
business. pydantic is never imported: who has a model class has imported it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NotRequired, Required, get_args, get_origin, is_typeddict

from millstream.client.type_arguments import hints_of
from millstream.errors import ConfigError, MalformedPayload

MISSING: Final = object()
DYNAMIC: Final = object()  # a default that is made anew each time


@dataclass(frozen=True, slots=True)
class FieldPart:
    """One named part of a record."""

    name: str
    type: Any
    is_required: bool = True
    default: Any = MISSING  # DYNAMIC where a factory makes it


@dataclass(frozen=True, slots=True)
class Record:
    """The parts of a type, and how its values come apart and together."""

    type: Any
    parts: tuple[FieldPart, ...]
    take: Callable[[Any], dict[str, Any]]
    make: Callable[[dict[str, Any]], Any]


def is_model(type_: Any) -> bool:
    """Whether this is a pydantic model."""
    return isinstance(type_, type) and hasattr(type_, "model_validate_json") and hasattr(type_, "model_dump_json")


def is_record(type_: Any) -> bool:
    """Whether this is a dataclass, a named tuple or a TypedDict; generic ones may have arguments."""
    type_ = get_origin(type_) or type_
    if not isinstance(type_, type):
        return False
    is_named_tuple = issubclass(type_, tuple) and hasattr(type_, "_fields")
    return is_named_tuple or is_typeddict(type_) or dataclasses.is_dataclass(type_)


def bare(type_: Any) -> Any:
    """Return a type without what only annotates it: Annotated, Required, NewType, `type` aliases."""
    return bare_and_metadata(type_)[0]


def bare_and_metadata(type_: Any) -> tuple[Any, list[Any]]:
    """Return a type without what only annotates it, and what `Annotated` said about it."""
    metadata: list[Any] = []
    while True:
        if get_origin(type_) is Annotated:
            metadata += type_.__metadata__
        if get_origin(type_) in (Annotated, Required, NotRequired):
            type_ = get_args(type_)[0]
        elif hasattr(type_, "__supertype__"):
            type_ = type_.__supertype__
        elif type(type_).__name__ == "TypeAliasType":
            type_ = type_.__value__
        else:
            return type_, metadata


def record_of(type_: Any) -> Record:
    """Return the record that a type is; see `is_record`."""
    try:
        hints = hints_of(type_)
    except (NameError, TypeError) as error:
        raise ConfigError(f"{type_.__name__}: its annotations cannot be read: {error}") from error
    type_ = get_origin(type_) or type_
    if is_typeddict(type_):
        return _typed_dict(type_, hints)
    if dataclasses.is_dataclass(type_):
        parts = tuple(_dataclass_part(field, hints[field.name]) for field in dataclasses.fields(type_) if field.init)
    else:
        known = type_._field_defaults
        parts = tuple(
            FieldPart(name, hints[name], name not in known, known.get(name, MISSING)) for name in type_._fields
        )
    names = [part.name for part in parts]

    def take(value: Any) -> dict[str, Any]:
        if not isinstance(value, type_):
            raise MalformedPayload("", f"must be of type {type_.__name__}, not {type(value).__name__}")
        return {name: getattr(value, name) for name in names}

    return Record(type_, parts, take, lambda values: _made(type_, lambda: type_(**values)))


def literals_of(record: Record) -> dict[str, tuple[str, ...]]:
    """Return the parts whose type is a Literal of texts, with those texts."""
    found = {part.name: get_args(bare(part.type)) for part in record.parts if get_origin(bare(part.type)) is Literal}
    return {name: texts for name, texts in found.items() if all(isinstance(text, str) for text in texts)}


def _dataclass_part(field: dataclasses.Field[Any], hint: Any) -> FieldPart:
    if field.default_factory is not dataclasses.MISSING:
        return FieldPart(field.name, hint, False, DYNAMIC)
    if field.default is not dataclasses.MISSING:
        return FieldPart(field.name, hint, False, field.default)
    return FieldPart(field.name, hint)


def _typed_dict(type_: Any, hints: dict[str, Any]) -> Record:
    def is_required(name: str, hint: Any) -> bool:
        # Under `from __future__ import annotations` the class itself does not see Required and NotRequired.
        match get_origin(hint):
            case origin if origin is Required:
                return True
            case origin if origin is NotRequired:
                return False
            case _:
                return name not in type_.__optional_keys__

    parts = tuple(FieldPart(name, hint, is_required(name, hint)) for name, hint in hints.items())
    required = [part.name for part in parts if part.is_required]

    def take(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise MalformedPayload("", f"must be a {type_.__name__}, not {type(value).__name__}")
        for name in required:
            if name not in value:
                raise MalformedPayload(name, "is missing")
        if not value.keys() <= hints.keys():
            raise MalformedPayload("", f"has keys that {type_.__name__} does not know")
        return value

    return Record(type_, parts, take, dict)


def model_values(type_: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """How a model's values become JSON values and back."""

    def write(value: Any) -> Any:
        return json.loads(model_text(type_, value))

    # By way of text: only then the model knows that a date can only come as a str.
    return write, lambda value: model_of(type_, json.dumps(value).encode())


def model_text(type_: Any, value: Any) -> bytes:
    """Return a model's value as JSON, under the names by which the model reads it."""
    if not isinstance(value, type_):
        raise MalformedPayload("", f"must be of type {type_.__name__}, not {type(value).__name__}")
    dumped = _made(type_, lambda: value.model_dump_json(by_alias=True, round_trip=True))
    return bytes(dumped.encode())


def model_of(type_: Any, text: bytes) -> Any:
    """Read a model's value from JSON; the model itself decides how strict that is."""
    return _made(type_, lambda: type_.model_validate_json(text))


def _made(type_: Any, make: Callable[[], Any]) -> Any:
    """Build a value by a class. Its checks are the user's code and may raise anything; no entry may stop a reader."""
    try:
        return make()
    except MalformedPayload:
        raise
    except Exception as error:
        raise MalformedPayload("", f"is refused by {type_.__name__} ({type(error).__name__})") from error
