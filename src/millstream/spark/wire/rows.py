"""Entries to rows of typed columns. Knows Arrow's types, nothing of Spark.

    fields  b"12.5"  ──cast──▶  12.5          a column named as the field, of a type that its text can be
            b"x"     ──────▶  null            … and `_corrupt` keeps {"price": "x"}, or the read fails, by mode

A chunk is cast as a whole. Only one that holds a malformed value is halved until the value is alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError, MalformedPayload
from millstream.spark.options import DROPMALFORMED, FAILFAST
from millstream.spark.wire.resp_arrow import Entries

Mask = npt.NDArray[np.bool_]
UTC = pa.timestamp("us", tz="UTC")
CORRUPT = "_corrupt"
META: dict[str, pa.DataType] = {
    "stream": pa.string(),
    "id": pa.string(),
    "timestamp": UTC,
    "seq": pa.int64(),
    "fields": pa.map_(pa.string(), pa.binary()),
    CORRUPT: pa.string(),
}
_TRUE, _FALSE = ("true", "1", "t", "yes", "y"), ("false", "0", "f", "no", "n")
_MOST_TIME = (1 << 63) // 1000 - 1  # ms that fit into microseconds
_MOST_INT64 = (1 << 63) - 1
_PER_SECOND = {"s": 1_000_000, "ms": 1_000, "us": 1}


@dataclass(frozen=True, slots=True)
class Column:
    """One column and where it comes from."""

    name: str
    type: pa.DataType
    is_nullable: bool
    field: bytes | None  # None: about the entry, not from its fields


def columns_of(schema: pa.Schema, fields: Mapping[str, str], meta: Mapping[str, pa.DataType] = META) -> list[Column]:
    """Return the meaning of each column of a schema. `fields` maps columns to entry fields of another name."""
    return [_column(column, fields.get(column.name), meta) for column in schema]


def _column(column: pa.Field, field: str | None, meta: Mapping[str, pa.DataType]) -> Column:
    if field is None and column.name in meta:
        if not _alike(column.type, meta[column.name]):
            raise ConfigError(
                f"column {column.name!r} must be of type {meta[column.name]}: it is about the entry. To read a field "
                f'of that name, give the column another name and the metadata {{"field": "{column.name}"}}'
            )
        return Column(column.name, column.type, column.nullable, None)
    if not _is_readable(column.type):
        raise ConfigError(f"column {column.name!r}: a field cannot be read as {column.type}; use string or binary")
    return Column(column.name, column.type, column.nullable, (field or column.name).encode())


def _alike(mine: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_map(wanted):
        return bool(pa.types.is_map(mine)) and mine.key_type == wanted.key_type and mine.item_type == wanted.item_type
    return bool(mine == wanted)


def _is_readable(kind: pa.DataType) -> bool:
    checks = ("binary", "string", "integer", "floating", "boolean", "timestamp", "date32", "decimal128", "nested")
    return any(getattr(pa.types, f"is_{check}")(kind) for check in checks)


class RowBuilder:
    """Record batches of one schema."""

    def __init__(self, schema: pa.Schema, columns: Sequence[Column], mode: str, timestamps: str = "iso") -> None:
        self._schema = schema
        self._columns = columns
        self._mode = mode
        self._timestamps = timestamps

    def build(self, stream: str, entries: Entries, about: Mapping[str, pa.Array] | None = None) -> pa.RecordBatch:
        """Return the entries as rows. `about` has further columns about entries."""
        bad: dict[str, tuple[Mask, pa.Array]] = {}
        arrays: dict[str, pa.Array] = dict(about or {})
        for column in self._columns:
            if column.field is not None:
                raw = entries.field(column.field)
                arrays[column.name], wrong = convert(raw, column.type, self._timestamps)
                if wrong is not None:
                    bad[column.name] = (wrong, raw)
            elif column.name != CORRUPT and column.name not in arrays:
                arrays[column.name] = about_entries(column.name, stream, entries)
        self._complain(stream, entries, bad, arrays)
        if any(column.name == CORRUPT for column in self._columns):
            arrays[CORRUPT] = _corrupt(bad, entries.count)
        batch = pa.RecordBatch.from_arrays([arrays[column.name] for column in self._columns], schema=self._schema)
        return self._kept(batch, bad)

    def _complain(
        self, stream: str, entries: Entries, bad: dict[str, tuple[Mask, pa.Array]], arrays: Mapping[str, pa.Array]
    ) -> None:
        if bad and self._mode == FAILFAST:
            name, (wrong, _) = next(iter(bad.items()))
            raise self._malformed(name, stream, entries, int(np.flatnonzero(wrong)[0]), "has a value that is none")
        for column in self._columns:
            if not column.is_nullable and column.name in arrays and arrays[column.name].null_count:
                row = int(pc.index(arrays[column.name].is_null(), True).as_py())
                raise self._malformed(column.name, stream, entries, row, "has none, and the column may not be null")

    def _malformed(self, name: str, stream: str, entries: Entries, row: int, what: str) -> MalformedPayload:
        kind = self._schema.field(name).type
        place = f"entry {entries.id_at(row).decode()} of stream {stream!r}"
        rule = f"expected {kind}, but {place} {what} (mode PERMISSIVE reads null, column {CORRUPT} keeps it)"
        return MalformedPayload(name, rule)

    def _kept(self, batch: pa.RecordBatch, bad: dict[str, tuple[Mask, pa.Array]]) -> pa.RecordBatch:
        if not bad or self._mode != DROPMALFORMED:
            return batch
        dropped = np.logical_or.reduce([wrong for wrong, _ in bad.values()])
        return batch.filter(pa.array(~dropped))


def about_entries(name: str, stream: str, entries: Entries) -> pa.Array:
    """Return a column about the entries themselves."""
    if name == "stream":
        return pa.repeat(pa.scalar(stream, pa.string()), entries.count)
    if name == "id":
        return entries.ids().cast(pa.string())
    if name == "fields":
        return _fields(entries)
    ms, sequence = entries.times()
    if name == "timestamp":
        return _bounded(ms, _MOST_TIME, 1000).cast(pa.timestamp("us")).cast(UTC)
    return _bounded(sequence, _MOST_INT64, 1)


def _bounded(numbers: npt.NDArray[np.uint64], most: int, factor: int) -> pa.Array:
    """As int64, times a factor; null for what does not fit."""
    fits = numbers <= np.uint64(most)
    values = (np.where(fits, numbers, 0) * np.uint64(factor)).astype(np.int64)
    return pa.array(values, mask=None if bool(fits.all()) else ~fits)


def _fields(entries: Entries) -> pa.Array:
    offsets, names, values = entries.fields()
    texts, _ = _text(names)
    if texts.null_count:  # a name that is no UTF-8 is shown with its bytes as \\xNN
        texts = pa.array([name.decode("utf-8", "backslashreplace") for name in names.to_pylist()], pa.string())
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), texts, values)


def _corrupt(bad: dict[str, tuple[Mask, pa.Array]], count: int) -> pa.Array:
    """For each row with malformed values these, as JSON."""
    found: list[dict[str, str] | None] = [None] * count
    for name, (wrong, raw) in bad.items():
        for row in np.flatnonzero(wrong):
            shown = raw[int(row)].as_py().decode("utf-8", "backslashreplace")
            found[row] = {**(found[row] or {}), name: shown}
    return pa.array([None if each is None else json.dumps(each, ensure_ascii=False) for each in found], pa.string())


def convert(raw: pa.Array, kind: pa.DataType, timestamps: str = "iso") -> tuple[pa.Array, Mask | None]:
    """Binary values as values of a type, and which of them are malformed (and null): None if none is."""
    if pa.types.is_binary(kind):
        return raw, None
    if pa.types.is_nested(kind):
        return _each(raw, kind, lambda value: _shaped(json.loads(value), kind))
    text, wrong = _text(raw)
    if pa.types.is_string(kind):
        return text, wrong
    values, also = _typed(text, kind, timestamps)
    return values, _either(wrong, also)


def _typed(text: pa.Array, kind: pa.DataType, timestamps: str) -> tuple[pa.Array, Mask | None]:
    if pa.types.is_boolean(kind):
        return _booleans(text)
    if not pa.types.is_timestamp(kind):
        return _cast(text, lambda part: part.cast(kind))
    if timestamps != "iso":
        return _cast(text, lambda part: _counted(part, _PER_SECOND[timestamps], kind))
    return _cast(text, lambda part: _moments(part, kind))


def _counted(part: pa.Array, factor: int, kind: pa.DataType) -> pa.Array:
    """So many units since 1970."""
    return pc.multiply_checked(part.cast(pa.int64()), factor).cast(pa.timestamp("us")).cast(kind)


def _moments(part: pa.Array, kind: pa.DataType) -> pa.Array:
    """ISO 8601 with a zone, or without one: then it is UTC."""
    try:
        return part.cast(UTC).cast(pa.timestamp("us") if kind.tz is None else kind)
    except pa.ArrowInvalid:
        return part.cast(pa.timestamp("us")).cast(kind)


def _text(raw: pa.Array) -> tuple[pa.Array, Mask | None]:
    return _cast(raw, lambda part: part.cast(pa.string()))


def _cast(values: pa.Array, cast: Callable[[pa.Array], pa.Array]) -> tuple[pa.Array, Mask | None]:
    """Cast all of them; those that cannot be, found by halving, become null."""
    try:
        return cast(values), None
    except pa.ArrowInvalid:
        pass
    if len(values) == 1:
        return pa.nulls(1, cast(values.slice(0, 0)).type), np.ones(1, dtype=bool)
    half = len(values) // 2
    (left, wrong_left), (right, wrong_right) = _cast(values.slice(0, half), cast), _cast(values.slice(half), cast)
    masks = [
        mask if mask is not None else np.zeros(len(part), dtype=bool)
        for mask, part in ((wrong_left, left), (wrong_right, right))
    ]
    return pa.concat_arrays([left, right]), np.concatenate(masks)


def _booleans(text: pa.Array) -> tuple[pa.Array, Mask | None]:
    lower = pc.utf8_lower(pc.utf8_trim_whitespace(text))
    is_true = pc.is_in(lower, value_set=pa.array(_TRUE))
    known = pc.or_(is_true, pc.is_in(lower, value_set=pa.array(_FALSE)))
    values = pc.if_else(known, is_true, pa.scalar(None, pa.bool_()))
    wrong = pc.and_(pc.invert(known), text.is_valid()).to_numpy(zero_copy_only=False)
    return values, wrong if bool(wrong.any()) else None


def _either(one: Mask | None, other: Mask | None) -> Mask | None:
    return one if other is None else other if one is None else one | other


def _each(raw: pa.Array, kind: pa.DataType, read: Callable[[bytes], Any]) -> tuple[pa.Array, Mask | None]:
    """Value by value, for what Arrow has no cast for."""
    values: list[Any] = []
    wrong = np.zeros(len(raw), dtype=bool)
    for row, value in enumerate(raw.to_pylist()):
        try:
            values.append(None if value is None else read(value))
            continue
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, pa.ArrowException):
            values.append(None)
            wrong[row] = True
    return pa.array(values, kind), wrong if bool(wrong.any()) else None


def _shaped(value: Any, kind: pa.DataType) -> Any:
    """JSON's value as Arrow wants it; ValueError if it does not fit the type."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        _expect(value, dict)
        return {field.name: _shaped(value.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind):
        _expect(value, dict)
        return [(_shaped(name, kind.key_type), _shaped(item, kind.item_type)) for name, item in value.items()]
    if pa.types.is_list(kind):
        _expect(value, list)
        return [_shaped(item, kind.value_type) for item in value]
    return _plain(value, kind)


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Convert a number, a text, or a JSON value written as text."""
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else json.dumps(value)
    if pa.types.is_boolean(kind):
        _expect(value, bool)
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{type(value).__name__} for {kind}")
    if pa.types.is_floating(kind):
        return float(value)
    if pa.types.is_binary(kind):
        return str(value).encode()
    text = pa.array([value if isinstance(value, str) else json.dumps(value)])
    return _typed(text, kind, "iso")[0][0].as_py() if isinstance(value, str) else text.cast(kind)[0].as_py()


def _expect(value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{type(value).__name__} where {kind.__name__} was expected")
