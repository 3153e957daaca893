"""Steps of a pipeline that work on single rows: what fails is an outcome of the row, and does not end the query.

    Rows(charge, adds="paid double") ──┐
    the payload's schema ──────────────┴─▶ Stage ── in the executors ──▶ good rows, and others with how they end

Neighbouring row steps become one stage, so that rows are turned into Python values and back once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType, _parse_datatype_string

from millstream.delivery.policy import RetryPolicy
from millstream.delivery.settlement import DeadLetter, Reason
from millstream.errors import ConfigError, MalformedPayload
from millstream.spark.pipeline.schemas import Table
from millstream.spark.pipeline.sources import TYPES
from millstream.spark.pipeline.steps import Require, Rows
from millstream.spark.runtime.tasks import begin, rows_of
from millstream.spark.settlement.outcomes import outcome_of
from millstream.spark.settlement.rows import ACK, DEAD, RETRY

# How a row ended, behind its own columns: null for a good one, `ack` for one that is done without output.
ENDS = "_outcome string, _reason string, _error string, _traceback string, _delay double"

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parsed:
    """The first step where a schema is given: the payload's bytes become its columns."""

    table: Table
    payload: str
    name = "schema"


RowStep = Rows | Parsed


def columns_after(step: RowStep, before: StructType) -> StructType:
    """Return the columns after a step."""
    ours = [each for each in before.fields if each.name in TYPES]
    match step:
        case Parsed():
            return StructType([*ours, *_struct(step.table.ddl).fields])
        case Rows(gives=str() as gives):
            return StructType([*ours, *_struct(gives).fields])
    added = _struct(step.adds).fields if step.adds is not None else []
    new = {each.name for each in added}
    return StructType([*(each for each in before.fields if each.name not in new), *added])


def run(step: RowStep, row: Values) -> Values | None:
    """Return the row after a step, or None if it is done."""
    if isinstance(step, Parsed):
        payload = row.pop(step.payload)
        if payload is None:
            raise MalformedPayload(step.payload, "is missing")
        row.update(step.table.read(payload))
        return row
    result = step.function(Row(**row))
    if step.gives is not None:
        return None if result is None else {name: row[name] for name in TYPES if name in row} | _given(step, result)
    return row if result is None or step.adds is None else row | _given(step, result)


def _given(step: Rows, result: object) -> Values:
    if isinstance(result, Row):
        return result.asDict()
    if isinstance(result, Mapping):
        return dict(result)
    raise TypeError(f"{step.name} must return a dict, a Row or None, not {type(result).__name__}")


@dataclass(frozen=True, slots=True)
class Stage:
    """Row steps that follow each other."""

    steps: tuple[RowStep, ...]
    policy: RetryPolicy

    def apply(self, frame: DataFrame) -> DataFrame:
        """All rows, with columns that say how they ended."""
        _check_columns(frame, self.steps[0].name)
        columns = frame.schema
        for step in self.steps:
            columns = columns_after(step, columns)
        result = StructType([*(StructField(each.name, each.dataType) for each in columns), *_struct(ENDS).fields])
        return frame.mapInArrow(_mapper(self, _arrow(result)), result)


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that rows must meet: a stage that needs no Python."""

    step: Require

    def apply(self, frame: DataFrame) -> DataFrame:
        """All rows, with columns that say how they ended."""
        _check_columns(frame, self.step.name)
        outcome, reason = (DEAD, Reason.REJECTED) if self.step.is_final else (RETRY, Reason.RETRIES)
        is_bad = ~f.coalesce(f.expr(self.step.condition), f.lit(False))
        ends = {"_outcome": f.lit(outcome), "_reason": f.lit(str(reason)), "_error": self._error()}
        columns = [
            f.when(is_bad, ends.get(each.name, f.lit(None))).cast(each.dataType).alias(each.name)
            for each in _struct(ENDS).fields
        ]
        return frame.select("*", *columns)

    def _error(self) -> Column:
        pieces: list[Column] = []
        for text, name in self.step.parts():
            pieces.append(f.lit(text))
            if name is not None:
                pieces.append(f.coalesce(f.col(f"`{name}`").cast("string"), f.lit("null")))
        return f.concat(*pieces) if pieces else f.lit("")


AnyStage = Stage | Check


def _check_columns(frame: DataFrame, step: str) -> None:
    for name in ("_stream", "_id"):
        if name not in frame.columns:
            raise ConfigError(
                f"steps: before {step!r} the column {name!r} was dropped, which says which entry a row is: keep the "
                "columns that begin with _"
            )


def good_rows(staged: DataFrame) -> DataFrame:
    """Those that go on."""
    return staged.where("_outcome is null").drop(*_struct(ENDS).names)


def ended_rows(staged: DataFrame) -> DataFrame:
    """Those that end here, as the settle sink wants them."""
    about = [name for name in ("_stream", "_id", "_consumer", "_delivery_count") if name in staged.columns]
    chosen = staged.where("_outcome is not null").select(*about, *_struct(ENDS).names)
    return chosen.toDF(*(name.removeprefix("_") for name in chosen.columns))


Batches = Iterator[pa.RecordBatch]


def _mapper(stage: Stage, schema: pa.Schema) -> Callable[[Batches], Batches]:
    def mapped(batches: Batches) -> Batches:
        begin("rows")
        for batch in batches:
            yield stepped(batch, stage, schema)

    return mapped


def stepped(batch: pa.RecordBatch, stage: Stage, schema: pa.Schema) -> pa.RecordBatch:
    """Run a batch through row steps."""
    rows = [_tried(row, stage) for row in rows_of(batch)]
    try:
        return pa.RecordBatch.from_pylist(rows, schema)
    except _UNFIT:  # a row's values do not fit its columns: find out which
        return pa.RecordBatch.from_pylist([_fitting(row, schema) for row in rows], schema)


_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


def _tried(row: Values, stage: Stage) -> Values:
    about = {name: row[name] for name in TYPES if name in row}
    current: Values | None = row
    try:
        for step in stage.steps:
            assert current is not None
            current = run(step, current)
            if current is None:
                return about | {"_outcome": ACK}
    except Exception as failure:  # as a handler's: it is the row's, and not the query's
        return about | end_of(failure, stage.policy)
    return current or {}


def end_of(failure: Exception, policy: RetryPolicy) -> Values:
    """Return the outcome columns of a row whose step has failed."""
    if isinstance(failure, MalformedPayload):
        return {"_outcome": DEAD, "_reason": str(Reason.MALFORMED), "_error": str(failure)}
    return {f"_{name}": value for name, value in outcome_of(failure, policy).items()}


def _fitting(row: Values, schema: pa.Schema) -> Values:
    try:
        pa.RecordBatch.from_pylist([row], schema)
    except _UNFIT as error:
        letter = DeadLetter.of(Reason.REJECTED, error, f"a value does not fit its column: {error}")
        about = {name: row[name] for name in TYPES if name in row}
        return about | {"_outcome": DEAD, "_reason": str(letter.reason), "_error": letter.error}
    return row


def _struct(text: str) -> StructType:
    found = _parse_datatype_string(text)
    assert isinstance(found, StructType)
    return found


def _arrow(schema: StructType) -> pa.Schema:
    from millstream.spark.range.source import arrow_schema

    return arrow_schema(schema)
