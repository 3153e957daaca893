"""Python types as JSON: for each type how a value is written and read, worked out once.

    shape_of(Order) ──▶ Shape: write(Order(…)) -> {"id": 7, …}     read({"id": 7, …}) -> Order(…)

It knows nothing about entries or bytes. Types are strict both ways: a str where an int is expected is an error,
and so is a bool. What JSON has no word for is written as text that other languages read too: moments in ISO
8601, Decimal and UUID as they print, bytes in base64, an Enum as its value. Keys that a type does not know are
passed over when reading, so that a producer can add a field before its consumers know it.
"""

from __future__ import annotations

from enum import Enum, Flag
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin

from millstream.client import records
from millstream.client.constraints import Constraint, constraints_of
from millstream.client.scalars import (
    ARRAY,
    EVERY,
    FLOAT,
    INT_KEY,
    INTEGER,
    KINDS,
    NUMBER,
    OBJECT,
    SCALARS,
    STRING,
    Convert,
    Shape,
    a,
    as_float,
    wrong,
)
from millstream.errors import ConfigError, MalformedPayload


def shape_of(type_: Any) -> Shape:
    """Return the shape of a type; raises ConfigError if it cannot be a payload."""
    try:
        return _Builder().build(type_)
    except RecursionError:
        raise ConfigError(f"{_label(type_)}: refers to itself without end") from None


class _Builder:
    """One run over a type; remembers the records it has met, which may hold themselves."""

    def __init__(self) -> None:
        self._records: dict[Any, Shape | None] = {}

    def build(self, type_: Any) -> Shape:
        type_, metadata = records.bare_and_metadata(type_)
        shape, constraints = self._build(type_), constraints_of(metadata)
        return _constrained(shape, constraints) if constraints else shape

    def _build(self, type_: Any) -> Shape:
        if type_ in SCALARS or type_ in _BARE:
            return SCALARS.get(type_) or _BARE[type_]
        if type_ is Any or type_ is object or isinstance(type_, TypeVar):
            return _ANY
        origin = get_origin(type_) or type_
        if origin is Literal:
            return _choice("one of the values allowed", [(value, value) for value in get_args(type_)])
        if origin in (Union, UnionType):
            return self._union(get_args(type_))
        if records.is_model(type_):
            return _model(type_)
        if records.is_record(type_):
            return self._record(type_)
        return self._container(type_, origin)

    def _container(self, type_: Any, origin: Any) -> Shape:
        args = get_args(type_)
        if origin is list:
            return _array("a list", list, self.build(args[0] if args else Any))
        if origin in (set, frozenset):
            return _array(a(origin.__name__), origin, self.build(args[0] if args else Any))
        if origin is dict:
            return self._dict(*(args or (str, Any)))
        if origin is tuple and args[1:] == (...,):
            return _array("a tuple", tuple, self.build(args[0]))
        if origin is tuple and args:
            return _fixed(tuple(self.build(arg) for arg in args))
        if isinstance(type_, type) and issubclass(type_, Enum) and not issubclass(type_, Flag):
            return _choice(a(type_.__name__), [(member, member.value) for member in type_])
        raise ConfigError(f"{_label(type_)}: cannot be a payload, nor part of one")

    def _dict(self, key: Any, value: Any) -> Shape:
        keys = INT_KEY if records.bare(key) is int else self.build(key)
        if keys.kinds != {STRING} and keys is not INT_KEY:
            raise ConfigError(f"{_label(key)}: the keys of a dict must be written as text")
        return _mapping(keys, self.build(value))

    def _union(self, members: tuple[Any, ...]) -> Shape:
        shapes = [self.build(member) for member in members]
        if _ANY in shapes:
            return _ANY
        tagged = [member for member in members if records.is_record(records.bare(member))]
        if len(tagged) > 1:
            one = self._tagged([records.bare(member) for member in tagged])
            shapes = [one, *(shape for shape, member in zip(shapes, members, strict=True) if member not in tagged)]
        by_kind: dict[str, Shape] = {}
        for shape in shapes:
            for kind in shape.kinds:
                if kind in by_kind:
                    raise ConfigError(
                        f"{by_kind[kind].name} or {shape.name}: both are written as a JSON {kind}, "
                        "so they could not be told apart"
                    )
                by_kind[kind] = shape
        return _either(shapes, by_kind)

    def _tagged(self, types: list[Any]) -> Shape:
        """Several records, told apart by a field that each of them has as a Literal with values of its own."""
        name = " or ".join(a(type_.__name__) for type_ in types)
        literals = [records.literals_of(records.record_of(type_)) for type_ in types]
        for tag in set.intersection(*(set(found) for found in literals)):
            values = [value for found in literals for value in found[tag]]
            if len(set(values)) == len(values):
                pairs = zip(types, literals, strict=True)
                return _tagged(name, tag, {value: self.build(t) for t, found in pairs for value in found[tag]})
        raise ConfigError(
            f"{name}: could not be told apart; give each a field of the same name with another Literal as its type"
        )

    def _record(self, type_: Any) -> Shape:
        name = a(type_.__name__)
        if type_ in self._records:  # inside itself: it will be known when values come
            done = self._done
            return Shape(name, frozenset({OBJECT}), lambda v: done(type_).write(v), lambda v: done(type_).read(v))
        self._records[type_] = None
        record = records.record_of(type_)
        parts = {}
        for part in record.parts:
            try:
                parts[part.name] = self.build(part.type)
            except ConfigError as error:
                raise ConfigError(f"{type_.__name__}.{part.name}: {error}") from error
        self._records[type_] = shape = _object(name, record, parts)
        return shape

    def _done(self, type_: Any) -> Shape:
        shape = self._records[type_]
        assert shape is not None
        return shape


def _plain(value: Any) -> Any:
    """Check a value without a declared type: JSON must bring it back as it was."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return as_float(value)
    if isinstance(value, list):
        return _each(value, _plain)
    if not isinstance(value, dict):
        raise wrong("a value that JSON knows", value)
    for key in value:
        if not isinstance(key, str):
            raise wrong("a dict whose keys are all str", key)
    return _each_pair(value.items(), _same_key, _plain)


def _each(items: Any, convert: Convert) -> list[Any]:
    """All items converted; an error says which one it was."""
    done: list[Any] = []
    try:
        for item in items:
            done.append(convert(item))
    except MalformedPayload as error:
        raise error.within(f"[{len(done)}]") from error.__cause__
    return done


def _each_pair(items: Any, convert_key: Convert, convert: Convert) -> dict[Any, Any]:
    """All keys and values converted; an error says where it was."""
    done: dict[Any, Any] = {}
    key: Any = None
    at_key = True
    try:
        for key, value in items:
            at_key = True
            converted = convert_key(key)
            at_key = False
            done[converted] = convert(value)
    except MalformedPayload as error:
        raise error.within("(key)" if at_key else f"{key}") from error.__cause__
    return done


def _same_key(key: Any) -> Any:
    return key


def _at(place: str, convert: Convert, value: Any) -> Any:
    """Convert a value; an error says where the value was."""
    try:
        return convert(value)
    except MalformedPayload as error:
        raise error.within(place) from error.__cause__


def _array(name: str, kind: type, item: Shape) -> Shape:
    def write(value: Any) -> list[Any]:
        if not isinstance(value, kind):
            raise wrong(name, value)
        return _each(value, item.write)

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise wrong("a list", value)
        items = _each(value, item.read)
        try:
            return kind(items)
        except TypeError as error:  # a list or dict cannot be in a set
            raise MalformedPayload("", f"must be {name} of values that can be in one") from error

    return Shape(name, frozenset({ARRAY}), write, read)


class RuleBroken(MalformedPayload):
    """A value of the right type that a constraint refuses."""


def _constrained(shape: Shape, constraints: list[Constraint]) -> Shape:
    """Return a shape whose values must keep constraints, on their way in and out."""

    def checked(value: Any) -> Any:
        for constraint in constraints:
            try:
                is_kept = constraint.is_kept(value)
            except Exception as error:  # a predicate is the user's code; None has no length
                raise RuleBroken("", f"{constraint.text}, which failed ({type(error).__name__})") from error
            if not is_kept:
                raise RuleBroken("", constraint.text)
        return value

    def write(value: Any) -> Any:
        written = shape.write(value)
        checked(value)
        return written

    return Shape(shape.name, shape.kinds, write, lambda value: checked(shape.read(value)))


def _fixed(items: tuple[Shape, ...]) -> Shape:
    """Return the shape of a tuple of fixed length, each item of its own type."""
    name = f"a tuple of {len(items)}"

    def sized(value: Any, kind: type[list[Any]] | type[tuple[Any, ...]]) -> Any:
        if not isinstance(value, kind):
            raise wrong(name, value)
        if len(value) != len(items):
            raise MalformedPayload("", f"must be {name}, not of {len(value)}")
        return value

    def write(value: Any) -> list[Any]:
        pairs = zip(items, sized(value, tuple), strict=True)
        return [_at(f"[{place}]", item.write, part) for place, (item, part) in enumerate(pairs)]

    def read(value: Any) -> tuple[Any, ...]:
        pairs = zip(items, sized(value, list), strict=True)
        return tuple(_at(f"[{place}]", item.read, part) for place, (item, part) in enumerate(pairs))

    return Shape(name, frozenset({ARRAY}), write, read)


def _mapping(keys: Shape, values: Shape) -> Shape:
    def checked(value: Any) -> Any:
        if not isinstance(value, dict):
            raise wrong("a dict", value)
        return value.items()

    def write(value: Any) -> dict[str, Any]:
        return _each_pair(checked(value), keys.write, values.write)

    def read(value: Any) -> dict[Any, Any]:
        return _each_pair(checked(value), keys.read, values.read)

    return Shape("a dict", frozenset({OBJECT}), write, read)


def _choice(name: str, pairs: list[tuple[Any, Any]]) -> Shape:
    """One of a few members, each written as its value; 1 and True are not the same here."""
    kinds = {type(value) for _, value in pairs}
    if not kinds <= {NoneType, bool, int, str}:
        raise ConfigError(f"{name}: its values must be str, int, bool or None, to be written as JSON")
    members = {(type(value), value): member for member, value in pairs}
    texts = {(type(member), member): value for member, value in pairs}

    def write(value: Any) -> Any:
        try:
            return texts[type(value), value]
        except (KeyError, TypeError):
            raise wrong(name, value) from None

    def read(value: Any) -> Any:
        try:
            return members[type(value), value]
        except (KeyError, TypeError):
            raise MalformedPayload("", f"must be {name}") from None

    return Shape(name, frozenset(KINDS[kind] for kind in kinds), write, read)


def _either(shapes: list[Shape], by_kind: dict[str, Shape]) -> Shape:
    name = " or ".join(shape.name for shape in shapes)
    exact_first = sorted(shapes, key=lambda shape: shape is FLOAT)  # a float takes whole numbers too

    def write(value: Any) -> Any:
        inner: MalformedPayload | None = None
        for shape in exact_first:
            try:
                return shape.write(value)
            except MalformedPayload as error:
                inner = error if error.field or isinstance(error, RuleBroken) else inner
        raise inner or wrong(name, value)

    def read(value: Any) -> Any:
        kind = KINDS[type(value)]
        shape = by_kind.get(kind) or (by_kind.get(NUMBER) if kind == INTEGER else None)
        if shape is None:
            raise wrong(name, value)
        return shape.read(value)

    return Shape(name, frozenset(by_kind), write, read)


def _tagged(name: str, tag: str, members: dict[str, Shape]) -> Shape:
    def write(value: Any) -> Any:
        word = value.get(tag) if isinstance(value, dict) else getattr(value, tag, None)
        if not isinstance(word, str) or word not in members:
            raise wrong(name, value)
        return members[word].write(value)

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise wrong(f"{name} as an object", value)
        word = value.get(tag)
        if not isinstance(word, str) or word not in members:
            raise MalformedPayload(tag, "is missing" if tag not in value else f"must say which it is: {name}")
        return members[word].read(value)

    return Shape(name, frozenset({OBJECT}), write, read)


def _object(name: str, record: records.Record, parts: dict[str, Shape]) -> Shape:
    required = [part.name for part in record.parts if part.is_required]

    def write(value: Any) -> dict[str, Any]:
        return {key: _at(key, parts[key].write, item) for key, item in record.take(value).items()}

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise wrong(f"{name} as an object", value)
        for key in required:
            if key not in value:
                raise MalformedPayload(key, "is missing")
        return record.make({key: _at(key, shape.read, value[key]) for key, shape in parts.items() if key in value})

    return Shape(name, frozenset({OBJECT}), write, read)


def _model(type_: Any) -> Shape:
    """Return the shape of a pydantic model inside another type; the model's own rules hold."""
    return Shape(a(type_.__name__), frozenset({OBJECT}), *records.model_values(type_))


def _label(type_: Any) -> str:
    return getattr(type_, "__name__", None) or repr(type_)


_ANY: Final = Shape("anything", EVERY, _plain, _plain)
_BARE: Final = {list: _array("a list", list, _ANY), dict: _mapping(SCALARS[str], _ANY)}
