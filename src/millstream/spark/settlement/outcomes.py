"""Functions of rows whose failures are outcomes of single rows, and do not end the query.

    decided = try_map(orders, charge, "order_id string, paid double")
    good, settlements = split(decided)

What a worker's handler may raise, a function may raise here, with the same meaning: nothing is done, `Retry(60)` again
in a minute, `Reject("no such customer")` to the dead letters, `Release()` back to the group, anything else again after
the backoff and to the dead letters when it was the last try.

    process(orders, charge, "…", lambda good, batch_id: good.write.…, url=…, group="billing").start()

runs the function, writes the good rows with any writer of Spark and settles then: what fails in between is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.types import StructField, StructType, _parse_datatype_string

from millstream.delivery import signals
from millstream.delivery.settlement import DeadLetter, Reason
from millstream.errors import ConfigError
from millstream.spark.runtime.compat import arrow_schema
from millstream.spark.runtime.tasks import begin, rows_of
from millstream.spark.settlement.rows import ACK, DEAD, RELEASE, RETRY

NOTHING = "no output"  # the reason of a row that is done and for which the function has returned None
CARRIED = ("stream", "id", "consumer", "delivery_count")
_OUTCOME = "outcome string, reason string, error string, traceback string, delay double"

Function = Callable[[Row], object]
Sink = Callable[[DataFrame, int], object]


def outcome_of(failure: Exception) -> dict[str, Any]:
    """The outcome columns of a row whose function has failed."""
    match failure:
        case signals.Release() | signals.Interrupted():
            return {"outcome": RELEASE}
        case signals.Reject():
            return {"outcome": DEAD, **_told(Reason.REJECTED, failure, failure.reason)}
        case signals.Retry():
            return {"outcome": RETRY, **_told(Reason.RETRIES, failure), "delay": failure.delay}
    return {"outcome": RETRY, **_told(Reason.RETRIES, failure)}


def _told(reason: Reason, failure: Exception, error: str | None = None) -> dict[str, Any]:
    letter = DeadLetter.of(reason, failure, error)
    return {"reason": str(reason), "error": letter.error, "traceback": letter.traceback}


def try_map(df: DataFrame, function: Function, schema: StructType | str) -> DataFrame:
    """Each row through a function; columns of `schema`, then those that say which entry it was and how it ends.

    The function is given a Row and returns a dict, a Row or a tuple, or None for a row that is done without output.
    """
    columns = schema if isinstance(schema, StructType) else _struct(schema)
    for name in ("stream", "id"):
        if name not in df.columns:
            raise ConfigError(f"try_map needs the column {name!r} of the source, to say which entry a row was")
    carried = [name for name in CARRIED if name in df.columns]
    taken = {field.name for field in columns.fields} & {*carried, *_struct(_OUTCOME).names}
    if taken:
        raise ConfigError(f"columns {', '.join(sorted(taken))} of the schema are try_map's own: name yours otherwise")
    result = StructType([*columns.fields, *(_field(df, name) for name in carried), *_struct(_OUTCOME).fields])
    return df.mapInArrow(_mapper(function, columns.names, carried, arrow_schema(result)), result)


def _field(df: DataFrame, name: str) -> StructField:
    return StructField(name, df.schema[name].dataType, True)


def _struct(text: str) -> StructType:
    found = _parse_datatype_string(text)
    assert isinstance(found, StructType)
    return found


def _mapper(
    function: Function, names: Sequence[str], carried: Sequence[str], schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin("rows")
        for batch in batches:
            yield mapped(batch, function, names, carried, schema)

    return run


def mapped(
    batch: pa.RecordBatch, function: Function, names: Sequence[str], carried: Sequence[str], schema: pa.Schema
) -> pa.RecordBatch:
    """A batch through a function, row by row."""
    rows = [_tried(row, function, names, carried) for row in rows_of(batch)]
    try:
        return pa.RecordBatch.from_pylist(rows, schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):  # a row's result does not fit: find out which
        return pa.RecordBatch.from_pylist([_fitting(row, names, schema) for row in rows], schema)


def _tried(row: Mapping[str, Any], function: Function, names: Sequence[str], carried: Sequence[str]) -> dict[str, Any]:
    which = {name: row[name] for name in carried}
    try:
        result = function(Row(**row))
        if result is None:
            return {**which, "outcome": ACK, "reason": NOTHING}
        return {**_columns(result, names), **which, "outcome": ACK}
    except Exception as failure:  # as a handler's: it is the row's, and not the query's
        return {**which, **outcome_of(failure)}


def _columns(result: object, names: Sequence[str]) -> dict[str, Any]:
    if isinstance(result, Row) and hasattr(result, "__fields__"):
        return {name: value for name, value in result.asDict().items() if name in names}
    if isinstance(result, Mapping):
        unknown = set(result) - set(names)
        if unknown:
            raise ConfigError(f"the function returned {', '.join(sorted(map(str, unknown)))}, which the schema lacks")
        return dict(result)
    if isinstance(result, (tuple, list)) and len(result) == len(names):
        return dict(zip(names, result, strict=True))
    raise ConfigError(f"the function must return a dict, a Row or a tuple of {len(names)}, not {type(result).__name__}")


def _fitting(row: dict[str, Any], names: Sequence[str], schema: pa.Schema) -> dict[str, Any]:
    try:
        pa.RecordBatch.from_pylist([row], schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        which = {name: row[name] for name in CARRIED if name in row}
        return {**which, **outcome_of(TypeError(f"the function's result does not fit the schema: {error}"))}
    return row


def split(df: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The good rows with the function's columns, stream and id; and the settlements of all rows.

    Both come from the same frame: persist it first, or the function runs twice.
    """
    added = [name for name in (*CARRIED, *_struct(_OUTCOME).names) if name in df.columns]
    own = [name for name in df.columns if name not in added]
    is_good = (df["outcome"] == ACK) & df["reason"].isNull()
    return df.where(is_good).select(*own, "stream", "id"), df.select(*added)


def process(df: DataFrame, function: Function, schema: StructType | str, sink: Sink, **options: object) -> Any:
    """A writer of a streaming query that maps, writes the good rows with `sink(good, batch_id)`, and then settles.

    `options` are those of the settle sink: url, group, and what else the source was given. A batch that fails before
    its end is run again with the same rows, so that the sink should put a batch that it has had in its place again.
    """
    from millstream.spark.settlement.sink import settle

    def run(batch: DataFrame, batch_id: int) -> None:
        decided = try_map(batch, function, schema).persist()
        try:
            good, settlements = split(decided)
            sink(good, batch_id)
            settle(settlements, **options).save()
        finally:
            decided.unpersist()

    return df.writeStream.foreachBatch(run)
