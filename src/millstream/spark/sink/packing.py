"""Rows to the bytes of commands, a column at a time: no Python object a value. Knows nothing of servers.

    n  v            $1 * $1 n $1 7 $1 v $5 hello        a row's words: its id, names and values, each with its length
    7  hello   ──▶  ▲ joined by Arrow, row by row

What comes before a row's words (the command, the key, the fence) is the same for many rows and is added by `writing`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError, MalformedPayload

STREAM, ID, FIELDS = "stream", "id", "fields"
_EMPTY = pa.scalar(b"", pa.binary())
_LINE = pa.scalar(b"\r\n", pa.binary())
_DOLLAR = pa.scalar(b"$", pa.binary())


@dataclass(frozen=True, slots=True)
class Layout:
    """What the columns of the rows are."""

    stream: str | None  # the column that says where a row goes; None: all go to one stream
    id: str | None  # the column with ids; None: the server makes them
    fields: str | None  # the column with all fields in a map; None: each other column is a field
    names: tuple[str, ...] = ()  # of these other columns


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows for one stream."""

    words: pa.Array  # of each row, as bytes
    counts: npt.NDArray[np.int64]  # how many each has

    def __len__(self) -> int:
        return len(self.counts)


def layout_of(schema: pa.Schema, has_stream: bool) -> Layout:
    """Assign columns by their names. Raises ConfigError if rows could not become entries."""
    names = schema.names
    fields = FIELDS if FIELDS in names and pa.types.is_map(schema.field(FIELDS).type) else None
    stream = None if has_stream or STREAM not in names else STREAM
    if stream is None and not has_stream:
        raise ConfigError("where to? Set option 'stream', or give the rows a column `stream`")
    for name in (stream, ID if ID in names else None):
        if name is not None and not pa.types.is_string(schema.field(name).type):
            hint = "it names the entry's id; rename it to write a field" if name == ID else "it names each row's stream"
            raise ConfigError(f"column {name!r} must be a string, but is {schema.field(name).type}: {hint}")
    others = () if fields else tuple(name for name in names if name not in (STREAM, ID))
    if not fields and not others:
        raise ConfigError("the rows have no column that could be a field of an entry")
    return Layout(stream, ID if ID in names else None, fields, others)


def by_stream(batch: pa.RecordBatch, layout: Layout, default: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each stream, in order."""
    if layout.stream is None:
        assert default is not None
        yield default, batch
        return
    column = batch.column(layout.stream)
    if column.null_count:
        raise MalformedPayload(STREAM, "a row has no stream to go to: fill the column, or set option 'stream'")
    found = pc.unique(column).to_pylist()
    for stream in found:
        yield stream, batch if len(found) == 1 else batch.filter(pc.equal(column, stream))


def pack(batch: pa.RecordBatch, layout: Layout, *, keep_nulls: bool) -> Packed:
    """Return a batch's rows as words."""
    if layout.fields is not None:
        pieces, counts = _from_map(batch.column(layout.fields))
    else:
        pieces, counts = _from_columns(batch, layout.names, keep_nulls)
    if bool((counts == 0).any()):
        raise MalformedPayload("", "a row has no field that is not null: an entry needs one (option 'nulls': 'empty')")
    ids = _ids(batch, layout)
    return Packed(pc.binary_join_element_wise(ids, *pieces, _EMPTY), 1 + 2 * counts)


def _ids(batch: pa.RecordBatch, layout: Layout) -> pa.Array | pa.Scalar:
    if layout.id is None:
        return pa.scalar(b"$1\r\n*\r\n", pa.binary())
    ids = batch.column(layout.id)
    if ids.null_count:
        ids = ids.fill_null("*")
    return _bulk(ids.cast(pa.binary()))


def _from_columns(
    batch: pa.RecordBatch, names: tuple[str, ...], keep_nulls: bool
) -> tuple[list[pa.Array], npt.NDArray[np.int64]]:
    pieces, counts = [], np.zeros(batch.num_rows, dtype=np.int64)
    for name in names:
        values = as_bytes(batch.column(name))
        if keep_nulls and values.null_count:
            values = values.fill_null(b"")
        piece = _bulk(values, b"$%d\r\n%s\r\n" % (len(name.encode()), name.encode()))
        if piece.null_count:
            counts += piece.is_valid().to_numpy(zero_copy_only=False)
            piece = piece.fill_null(b"")
        else:
            counts += 1
        pieces.append(piece)
    return pieces, counts


def _from_map(column: pa.MapArray) -> tuple[list[pa.Array], npt.NDArray[np.int64]]:
    # Taken apart by `flatten`, which minds slices and nulls, as the map's own children do not.
    lengths = pc.fill_null(pc.list_value_length(column.cast(_as_list(column.type))), 0)
    flat = column.cast(_as_list(column.type)).flatten()
    keys, items = flat.flatten() if len(flat) else (pa.array([], pa.binary()), pa.array([], pa.binary()))
    values = as_bytes(items)
    pairs = pc.binary_join_element_wise(_bulk(as_bytes(keys)), _bulk(values.fill_null(b"")), _EMPTY)
    counts = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    return [pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), pairs), _EMPTY)], counts


def _as_list(kind: pa.MapType) -> pa.DataType:
    return pa.list_(pa.struct([pa.field("key", kind.key_type, False), pa.field("value", kind.item_type)]))


def _bulk(values: pa.Array, before: bytes = b"") -> pa.Array:
    """Each value with its length in front; null stays null."""
    sizes = pc.binary_length(values).cast(pa.string()).cast(pa.binary())
    head = pa.scalar(before + b"$", pa.binary())
    return pc.binary_join_element_wise(head, sizes, _LINE, values, _LINE, _EMPTY)


def as_bytes(values: pa.Array) -> pa.Array:
    """Convert a column to field values: text in UTF-8, times in ISO 8601, nested values in JSON."""
    kind = values.type
    if pa.types.is_binary(kind):
        return values
    if pa.types.is_nested(kind):
        return pa.array([None if value is None else _json(value, kind) for value in values.to_pylist()], pa.binary())
    if pa.types.is_timestamp(kind):
        return pc.replace_substring(values.cast(pa.string()), " ", "T", max_replacements=1).cast(pa.binary())
    return values.cast(pa.string()).cast(pa.binary())


def _json(value: object, kind: pa.DataType) -> bytes:
    return json.dumps(_plain(value, kind), ensure_ascii=False, separators=(",", ":"), default=str).encode()


def _plain(value: object, kind: pa.DataType) -> object:
    """Convert maps to objects; Arrow gives lists of pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {str(name): _plain(item, kind.item_type) for name, item in value}  # type: ignore[attr-defined]
    if pa.types.is_list(kind):
        return [_plain(item, kind.value_type) for item in value]  # type: ignore[attr-defined]
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}  # type: ignore[index]
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
