"""Payloads: values of a stream's type to the fields of an entry and back.

    codec_for(Order)                Order(7, "tea")  <──▶  data: {"id":7,"item":"tea"}
    codec_for(bytes)                b"..."           <──▶  data: ...
    codec_for(Order, fields=True)   Order(7, "tea")  <──▶  id: 7, item: tea

By default the value is UTF-8 JSON in the one field `data`, and bytes stand there as they are: there is no field
that says which, because the stream's type does. Fields of other names are passed over. With `fields=True` a dict
or a record goes straight into the entry's fields, one each, as a program in another language would write them by
hand: text and bytes as they are, None by leaving the field out, everything else as JSON. Nothing is ever
pickled. Whatever the bytes, `decode` raises nothing but MalformedPayload.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Generic, NoReturn, TypeVar, Union, get_args, get_origin

from millstream.client import records
from millstream.client.scalars import STRING, wrong
from millstream.client.shapes import shape_of
from millstream.errors import ConfigError, MalformedPayload

T = TypeVar("T")

DATA: Final = b"data"  # the field that holds a payload
TEXT_OR_BYTES: Final = str | bytes

Encode = Callable[[Any], dict[bytes, bytes]]
Decode = Callable[[Mapping[bytes, bytes]], Any]


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """How values of one type are put into entries; both raise MalformedPayload, which names field and rule."""

    encode: Callable[[T], dict[bytes, bytes]]
    decode: Callable[[Mapping[bytes, bytes]], T]

    @classmethod
    def of(cls, dumps: Callable[[T], bytes], loads: Callable[[bytes], T]) -> Codec[T]:
        """Return a codec that keeps a value as these bytes in the field `data`."""

        def decode(entry: Mapping[bytes, bytes]) -> T:
            if DATA not in entry:
                raise MalformedPayload("data", "is missing")
            return loads(entry[DATA])

        return cls(lambda value: {DATA: dumps(value)}, decode)


def checked_codec(codec: Codec[T]) -> Codec[T]:
    """Wrap a codec of the user's: whatever `decode` raises is MalformedPayload, and `encode` must return fields."""

    def encode(value: T) -> dict[bytes, bytes]:
        written = codec.encode(value)
        if not isinstance(written, dict) or not all(
            isinstance(name, bytes) and isinstance(text, bytes) for name, text in written.items()
        ):
            raise MalformedPayload("", "must be encoded by the codec as a dict of bytes")
        return _not_empty(written)

    def decode(entry: Mapping[bytes, bytes]) -> T:
        try:
            return codec.decode(entry)
        except MalformedPayload:
            raise
        except Exception as error:  # no entry may stop a reader
            raise MalformedPayload("", f"is refused by the codec ({type(error).__name__})") from error

    return Codec(encode, decode)


def codec_for(type_: type[T] | Any, *, fields: bool = False) -> Codec[T]:
    """Return the codec for a type; raises ConfigError if the type cannot be a payload.

    Takes dataclasses, named tuples, TypedDicts, pydantic models, and list, tuple and dict of these and of None,
    bool, int, float, str, bytes, datetime, date, time, timedelta, Decimal, UUID, Path, Enum, Literal, set, frozenset,
    and unions that JSON can tell apart: of different kinds, or of records that share a field whose Literal differs.
    Generic dataclasses may have arguments, and constraints in `Annotated` are checked both ways.
    """
    bare = records.bare(type_)
    if fields:
        return _guarded(*_field_codec(bare))
    leaf = _bytes_leaf() if bare is bytes else _model_leaf(bare) if records.is_model(bare) else _json_leaf(type_)

    def encode(value: T) -> dict[bytes, bytes]:
        return {DATA: _within("data", leaf.write, value)}

    def decode(entry: Mapping[bytes, bytes]) -> T:
        data = entry.get(DATA)
        if data is None:
            raise MalformedPayload("data", "is missing")
        value: T = _within("data", leaf.read, data)
        return value

    return _guarded(encode, decode)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """How one value becomes the bytes of one field."""

    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


def _bytes_leaf() -> _Leaf:
    def write(value: Any) -> bytes:
        if not isinstance(value, bytes):
            raise wrong("bytes", value)
        return value

    return _Leaf(write, bytes)


def _model_leaf(type_: Any) -> _Leaf:
    return _Leaf(lambda value: records.model_text(type_, value), lambda data: records.model_of(type_, data))


def _json_leaf(type_: Any) -> _Leaf:
    shape = shape_of(type_)
    return _Leaf(lambda value: _dumped(shape.write(value)), lambda data: shape.read(_loaded(data)))


def _plain_leaf(type_: Any) -> _Leaf:
    """As another program would write it by hand: text and bytes as they are, the rest as JSON."""
    bare = records.bare(type_)
    if bare is bytes:
        return _bytes_leaf()
    if bare == TEXT_OR_BYTES:  # either may be written; what comes back is bytes, whatever it looks like
        return _Leaf(lambda value: _utf8(value) if isinstance(value, str) else _bytes_leaf().write(value), bytes)
    shape = shape_of(type_)
    if shape.kinds == {STRING}:
        return _Leaf(lambda value: _utf8(shape.write(value)), lambda data: shape.read(_text(data)))
    return _Leaf(lambda value: _dumped(shape.write(value)), lambda data: shape.read(_loaded(data)))


def _field_codec(type_: Any) -> tuple[Encode, Decode]:
    if (get_origin(type_) or type_) is dict:
        return _dict_fields(*(get_args(type_) or (str, TEXT_OR_BYTES)))
    if records.is_record(type_):
        return _record_fields(records.record_of(type_))
    raise ConfigError(f"{type_!r}: with fields=True a payload is a dict, a dataclass, a named tuple or a TypedDict")


def _dict_fields(key: Any, value: Any) -> tuple[Encode, Decode]:
    if key not in (str, bytes):
        raise ConfigError(f"{key!r}: with fields=True the keys of a dict must be str or bytes")
    names, leaf = _plain_leaf(key), _plain_leaf(value)

    def encode(values: Any) -> dict[bytes, bytes]:
        if not isinstance(values, dict):
            raise wrong("a dict", values)
        return _not_empty({_within("(key)", names.write, k): _within(str(k), leaf.write, v) for k, v in values.items()})

    def decode(entry: Mapping[bytes, bytes]) -> Any:
        return {_within("(key)", names.read, k): _within(_shown(k), leaf.read, v) for k, v in entry.items()}

    return encode, decode


def _record_fields(record: records.Record) -> tuple[Encode, Decode]:
    leaves: list[tuple[str, bytes, _Leaf, bool]] = []
    for part in record.parts:
        inner, can_be_none = _without_none(part.type)
        if can_be_none and not part.is_required and part.default is not None:
            raise ConfigError(f"{part.name}: with fields=True None is written as no field, so None must be its default")
        leaves.append((part.name, part.name.encode(), _plain_leaf(inner), can_be_none))
    optional = {part.name for part in record.parts if not part.is_required}

    def encode(value: Any) -> dict[bytes, bytes]:
        values = record.take(value)
        written = {}
        for name, key, leaf, can_be_none in leaves:
            if name in values and not (can_be_none and values[name] is None):
                written[key] = _within(name, leaf.write, values[name])
        return _not_empty(written)

    def decode(entry: Mapping[bytes, bytes]) -> Any:
        values: dict[str, Any] = {}
        for name, key, leaf, can_be_none in leaves:
            if key in entry:
                values[name] = _within(name, leaf.read, entry[key])
            elif can_be_none and name not in optional:
                values[name] = None
            elif name not in optional:
                raise MalformedPayload(name, "is missing")
        return record.make(values)

    return encode, decode


def _without_none(type_: Any) -> tuple[Any, bool]:
    """Return a type without its None, and whether it had one."""
    bare, metadata = records.bare_and_metadata(type_)
    if get_origin(bare) not in (Union, UnionType) or NoneType not in get_args(bare):
        return type_, False
    rest = tuple(member for member in get_args(bare) if member is not NoneType)
    left: Any = rest[0] if len(rest) == 1 else Union[rest]  # noqa: UP007 - made of a tuple
    return (Annotated[(left, *metadata)] if metadata else left), True


def _not_empty(written: dict[bytes, bytes]) -> dict[bytes, bytes]:
    if not written:
        raise MalformedPayload("", "must have at least one field: an entry cannot be empty")
    return written


def _guarded(encode: Encode, decode: Decode) -> Codec[Any]:
    """Return a codec that refuses values nested too deep instead of exhausting the stack."""

    def guarded_encode(value: Any) -> dict[bytes, bytes]:
        try:
            return encode(value)
        except RecursionError:
            raise MalformedPayload("data", "is nested too deep, or holds itself") from None

    def guarded_decode(entry: Mapping[bytes, bytes]) -> Any:
        try:
            return decode(entry)
        except RecursionError:
            raise MalformedPayload("data", "is nested too deep") from None

    return Codec(guarded_encode, guarded_decode)


def _within(place: str, convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except MalformedPayload as error:
        raise error.within(place) from error.__cause__


def _dumped(value: Any) -> bytes:
    return _utf8(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def _loaded(data: bytes) -> Any:
    try:
        return _DECODER.decode(_text(data))
    except ValueError as error:
        raise MalformedPayload("", "must be JSON") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)  # made once: `loads` with a hook makes one each time


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise MalformedPayload("", "must be text that UTF-8 can write") from error


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedPayload("", "must be UTF-8 text") from error


def _shown(key: bytes) -> str:
    return key.decode("utf-8", "replace")
