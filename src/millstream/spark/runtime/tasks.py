"""What every task of ours in a Python worker of Spark does: begin, and turn Arrow's rows into Python's."""

from __future__ import annotations

import gc
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark import TaskContext


@cache
def begin(kind: str) -> None:
    """Call at the start of a task of some kind; the first one in a process takes what was imported out of the garbage.

    PySpark looks for garbage after every task, through all that its worker has ever loaded: some 50 ms, which is half
    of what a small batch takes. Objects that live now are left alone from here on, and freed as ever when nobody
    refers to them.
    """
    if TaskContext.get() is not None:
        gc.freeze()


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows like `to_pylist` with maps as dicts, in a third of the time."""
    names = batch.schema.names
    columns = [_values(column) for column in batch.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or (_is_plain(kind) and not column.null_count):
        found: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return found
    return list(column.to_pylist(maps_as_pydicts="lossy"))


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_float64(kind) or pa.types.is_boolean(kind))
