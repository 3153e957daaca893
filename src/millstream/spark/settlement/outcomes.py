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
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.types import StructField, StructType, _parse_datatype_string

from millstream.delivery.policy import RetryPolicy, answered
from millstream.delivery.settlement import DeadLetter, Reason
from millstream.errors import ConfigError
from millstream.spark.group.policies import check_travels, policy_text
from millstream.spark.runtime.compat import arrow_schema
from millstream.spark.runtime.tasks import begin, rows_of
from millstream.spark.settlement.rows import ACK, DEAD, RELEASE, RETRY

NOTHING = "no output"  # the reason of a row that is done and for which the function has returned None
CARRIED = ("stream", "id", "consumer", "delivery_count")
_OUTCOME = "outcome string, reason string, error string, traceback string, delay double"

Function = Callable[[Row], object]
Sink = Callable[[DataFrame, int], object]


def outcome_of(failure: Exception, policy: RetryPolicy) -> dict[str, Any]:
    """Return the outcome columns of a row whose function has failed; the sink decides by them."""
    found = answered(policy, failure)
    match found.answer:
        case "release":
            return {"outcome": RELEASE}
        case "reject":
            return {"outcome": DEAD, **_told(found.letter(found.reason))}
    return {"outcome": RETRY, **_told(found.letter(Reason.RETRIES)), "delay": found.delay_s}


def _told(letter: DeadLetter) -> dict[str, Any]:
    return {"reason": str(letter.reason), "error": letter.error, "traceback": letter.traceback}


def try_map(df: DataFrame, function: Function, schema: StructType | str, retry: RetryPolicy | None = None) -> DataFrame:
    """Each row through a function; columns of `schema`, then those that say which entry it was and how it ends.

    The function is given a Row and returns a dict, a Row or a tuple, or None for a row that is done without output. Of
    `retry` the rules for exceptions count here, and the rest where the rows are settled.
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
    call = RowCall(function, tuple(columns.names), tuple(carried), arrow_schema(result), retry or RetryPolicy())
    return df.mapInArrow(call.batches, result)


def _field(df: DataFrame, name: str) -> StructField:
    return StructField(name, df.schema[name].dataType, True)


def _struct(text: str) -> StructType:
    found = _parse_datatype_string(text)
    assert isinstance(found, StructType)
    return found


@dataclass(frozen=True)
class RowCall:
    """What the executors need to run a function on rows."""

    function: Function
    names: tuple[str, ...]
    carried: tuple[str, ...]
    schema: pa.Schema
    policy: RetryPolicy

    def batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin("rows")
        for batch in batches:
            yield mapped(batch, self)


def mapped(batch: pa.RecordBatch, call: RowCall) -> pa.RecordBatch:
    """Run a batch through a function, row by row."""
    rows = [_tried(row, call) for row in rows_of(batch)]
    try:
        return pa.RecordBatch.from_pylist(rows, call.schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):  # a row's result does not fit: find out which
        return pa.RecordBatch.from_pylist([_fitting(row, call) for row in rows], call.schema)


def _tried(row: Mapping[str, Any], call: RowCall) -> dict[str, Any]:
    which = {name: row[name] for name in call.carried}
    try:
        result = call.function(Row(**row))
        if result is None:
            return {**which, "outcome": ACK, "reason": NOTHING}
        return {**_columns(result, call.names), **which, "outcome": ACK}
    except Exception as failure:  # as a handler's: it is the row's, and not the query's
        return {**which, **outcome_of(failure, call.policy)}


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


def _fitting(row: dict[str, Any], call: RowCall) -> dict[str, Any]:
    try:
        pa.RecordBatch.from_pylist([row], call.schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        which = {name: row[name] for name in CARRIED if name in row}
        unfit = TypeError(f"the function's result does not fit the schema: {error}")
        return {**which, **outcome_of(unfit, call.policy)}
    return row


def split(df: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the good rows with the function's columns, stream and id, and the settlements of all rows.

    Both come from the same frame: persist it first, or the function runs twice.
    """
    added = [name for name in (*CARRIED, *_struct(_OUTCOME).names) if name in df.columns]
    own = [name for name in df.columns if name not in added]
    is_good = (df["outcome"] == ACK) & df["reason"].isNull()
    return df.where(is_good).select(*own, "stream", "id"), df.select(*added)


def process(
    df: DataFrame,
    function: Function,
    schema: StructType | str,
    sink: Sink,
    retry: RetryPolicy | None = None,
    **options: object,
) -> Any:
    """Return a streaming writer that maps, writes good rows with `sink(good, batch_id)`, and then settles.

    `options` are those of the settle sink: url, group, and what else the source was given. A batch that fails before
    its end is run again with the same rows, so that the sink should put a batch that it has had in its place again.
    `retry` says what failures mean and when rows are given up; option `retryPolicy` is made of it.
    """
    from millstream.spark.settlement.sink import settle

    if retry is not None:
        check_travels(retry)
        options["retryPolicy"] = policy_text(retry)

    def run(batch: DataFrame, batch_id: int) -> None:
        decided = try_map(batch, function, schema, retry).persist()
        try:
            good, settlements = split(decided)
            sink(good, batch_id)
            settle(settlements, **options).save()
        finally:
            decided.unpersist()

    return df.writeStream.foreachBatch(run)
