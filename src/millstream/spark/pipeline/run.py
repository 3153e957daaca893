"""Runs a pipeline in Spark: one batch after the other, or a single one for tests and for history.

    batch ──▶ stages and steps ──▶ good rows ──▶ every sink ──▶ settle: good rows done, others as they ended
                     └── rows that ended ─────────────────────────────▲

All of a batch happens in one call, so that a batch is done or is run again. `stop` waits for that call to end.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from millstream.delivery.deadletters import seconds_of
from millstream.delivery.policy import decide
from millstream.delivery.settlement import Ack, DeadLetter, Later, Reason, Release
from millstream.errors import ConfigError, MillstreamError
from millstream.printable import safe_logger
from millstream.spark.options import parse_read
from millstream.spark.pipeline.definition import Pipeline
from millstream.spark.pipeline.poison import find_culprits, is_of_steps
from millstream.spark.pipeline.rows import AnyStage, Check, Parsed, RowStep, Stage, ended_rows, good_rows
from millstream.spark.pipeline.schemas import table_of
from millstream.spark.pipeline.sinks import Batch, Parquet, Sink
from millstream.spark.pipeline.sources import (
    CONSUMER,
    COUNT,
    ID,
    STREAM,
    TYPES,
    GroupSource,
    Source,
    history,
    read_schema,
)
from millstream.spark.pipeline.steps import Require, Rows
from millstream.spark.runtime.session import register, session
from millstream.spark.settlement.rows import ACK, RETRY, Other, failure_of
from millstream.spark.settlement.sink import settle
from millstream.spark.wire.metadata import StreamMetadata

log = safe_logger(logging.getLogger(__name__))
STOP_S = 60.0  # how long a batch may take to end when the pipeline is stopped
FIELDS = "fields"


@dataclass(slots=True)
class Applied:
    """Rows behind all steps, and what was kept on the way to settle from."""

    rows: DataFrame
    stages: list[DataFrame] = field(default_factory=list)  # kept: all rows that came to one, and how they ended

    def close(self) -> None:
        for each in self.stages:
            each.unpersist()

    def ended(self) -> DataFrame | None:
        """Return the rows that ended before the last step."""
        frames = [ended_rows(each) for each in self.stages]
        return reduce(DataFrame.unionByName, frames) if frames else None


def plan(pipeline: Pipeline) -> list[AnyStage | Callable[[DataFrame], DataFrame]]:
    """Return the steps, with consecutive row steps joined."""
    steps: list[Any] = list(pipeline.steps)
    if pipeline.schema is not None:
        steps.insert(0, Parsed(table_of(pipeline.schema), pipeline.payload))
    found: list[AnyStage | Callable[[DataFrame], DataFrame]] = []
    waiting: list[RowStep] = []
    for step in steps:
        if isinstance(step, Rows | Parsed):
            waiting.append(step)
            continue
        if waiting:
            found.append(Stage(tuple(waiting), pipeline.retry))
            waiting = []
        found.append(Check(step) if isinstance(step, Require) else step)
    return [*found, Stage(tuple(waiting), pipeline.retry)] if waiting else found


def applied(pipeline: Pipeline, frame: DataFrame) -> Applied:
    """Return a batch after the steps. Each stage is cached, because a function may answer differently the next time."""
    found = Applied(frame)
    for step in plan(pipeline):
        if isinstance(step, AnyStage):
            staged = step.apply(found.rows).persist()
            found.stages.append(staged)
            found.rows = good_rows(staged)
        else:
            found.rows = step(found.rows)
            if not isinstance(found.rows, DataFrame):
                name = getattr(step, "__name__", step)
                raise ConfigError(f"steps: {name!r} gave back {found.rows!r}, not a DataFrame")
    return found


def named(frame: DataFrame, meta: Mapping[str, str]) -> DataFrame:
    """Return the source's columns about entries under reserved names."""
    theirs = {name: ours for ours, name in meta.items()}
    return frame.toDF(*(theirs.get(name, name) for name in frame.columns))


# Running


class RunningPipeline:
    """A pipeline that has been started."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession, *, once: bool) -> None:
        self.pipeline = pipeline
        self.spark = spark
        self.batches = 0  # that were run to their end by this process
        self._working = threading.Lock()
        self._known = threading.Event()
        self._stopping = threading.Event()
        self._last = -1
        self.query = self._start(once)
        self._known.set()

    def _start(self, once: bool) -> StreamingQuery:
        pipeline = self.pipeline
        frame = self._read()
        writer = frame.writeStream.foreachBatch(self._batch).queryName(pipeline.name)
        if pipeline.watermark is not None:
            writer = writer.outputMode(pipeline.output_mode)
        if pipeline.checkpoint is not None:
            writer = writer.option("checkpointLocation", str(pipeline.checkpoint))
        if once:
            writer = writer.trigger(availableNow=True)
        elif pipeline.trigger is not None:
            writer = writer.trigger(processingTime=pipeline.trigger)
        return writer.start()

    def _read(self) -> DataFrame:
        pipeline, source = self.pipeline, self.pipeline.source
        payload = None if pipeline.schema is None else pipeline.payload
        reader = self.spark.readStream.format("millstream").options(**source.read_options(None, pipeline.retry))
        frame = named(reader.schema(read_schema(source, payload)).load(), source.meta)
        if pipeline.watermark is None:
            return frame
        # Steps that keep a state have to see the stream itself; a row that fails ends the query then.
        column, lateness = pipeline.watermark
        is_marked = False
        for step in [None, *plan(pipeline)]:
            if step is not None:
                frame = good_rows(_strict(step.apply(frame))) if isinstance(step, AnyStage) else step(frame)
            if not is_marked and column in frame.columns:  # as soon as there is such a column, before it is grouped by
                frame, is_marked = frame.withWatermark(column, lateness), True
        if not is_marked:
            raise ConfigError(f"watermark: there is no column {column!r}; there are {', '.join(frame.columns)}")
        return frame

    def _batch(self, frame: DataFrame, number: int) -> None:
        self._known.wait(STOP_S)
        with self._working:
            if self._stopping.is_set():
                raise MillstreamError("the pipeline is stopping: this batch is for the next run")
            batch = Batch(str(self.query.id), number)
            if self.pipeline.watermark is not None:
                _write(self.pipeline.sinks, frame, batch)
            else:
                work(self.pipeline, frame, batch)
            self.batches += 1
            self._last = number

    @property
    def is_active(self) -> bool:
        return self.query.isActive

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end; whether it has ended. A failure is raised."""
        if seconds is None:
            self.query.awaitTermination()
            return True
        return bool(self.query.awaitTermination(max(0.001, seconds)))  # type: ignore[arg-type]

    def stop(self, seconds: float = STOP_S) -> None:
        """Let the batch that is under way end, and then the query."""
        is_idle = self._working.acquire(timeout=seconds)
        try:
            self._stopping.set()
            self._await_commit(min(5.0, seconds))
            self.query.stop()
        finally:
            if is_idle:
                self._working.release()

    def _await_commit(self, seconds: float) -> None:
        """Wait until the last batch is in Spark's log: stopped before, it would be run again."""
        until = time.monotonic() + seconds
        while self._last >= 0 and self.query.isActive and time.monotonic() < until:
            progress = self.query.lastProgress
            if progress is not None and progress["batchId"] >= self._last:
                return
            time.sleep(0.05)

    def run(self) -> None:
        """Wait for its end; SIGTERM and SIGINT stop it, where this is the main thread."""
        asked = threading.Event()
        with _signals(asked):
            while not asked.is_set():
                if self.wait(0.5):
                    return
        self.stop()


@contextmanager
def _signals(asked: threading.Event) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def started(pipeline: Pipeline, spark: SparkSession | None, *, once: bool, master: str | None) -> RunningPipeline:
    """Start a pipeline."""
    return RunningPipeline(pipeline, _session(pipeline, spark, master), once=once)


def _session(pipeline: Pipeline, spark: SparkSession | None, master: str | None) -> SparkSession:
    if spark is not None:
        return register(spark)
    return session(pipeline.name) if master is None else session(pipeline.name, master=master)


def work(pipeline: Pipeline, frame: DataFrame, batch: Batch) -> None:
    """Do all of one batch. Rows with which it fails as a whole end as failed ones, and it is done without them."""
    try:
        _work(pipeline, frame, batch)
        return
    except Exception as error:
        if not is_of_steps(error):
            raise
        log.warning("batch %d of %r failed: its rows are searched for the cause", batch.number, pipeline.name)
        poisoned = find_culprits(frame, lambda rows: _compute(pipeline, rows))
        if poisoned is None:
            raise
    log.error("%d rows make batch %d fail and are tried again alone", len(poisoned.errors), batch.number)
    try:
        _work(pipeline, poisoned.good, batch, poisoned.ended)
    finally:
        poisoned.close()


def _compute(pipeline: Pipeline, frame: DataFrame) -> None:
    """Run the steps, and write nothing."""
    found = applied(pipeline, frame)
    try:
        found.rows.write.format("noop").mode("overwrite").save()
    finally:
        found.close()


def _work(pipeline: Pipeline, frame: DataFrame, batch: Batch, culprits: DataFrame | None = None) -> None:
    source = pipeline.source
    first = None if plan(pipeline) and isinstance(plan(pipeline)[0], AnyStage) else frame.persist()
    found = applied(pipeline, frame)
    try:
        ended = _both(found.ended(), culprits)
        if not isinstance(source, GroupSource):
            _reject(pipeline, ended, batch)
        _write(pipeline.sinks, found.rows, batch)
        if isinstance(source, GroupSource):
            manifest = found.stages[0] if first is None else first
            settle(_settlements(manifest, ended), **source.settle_options(None, pipeline.retry)).save()
    finally:
        found.close()
        if first is not None:
            first.unpersist()


def _both(one: DataFrame | None, other: DataFrame | None) -> DataFrame | None:
    if one is None or other is None:
        return other if one is None else one
    return one.unionByName(other, allowMissingColumns=True)


def _write(sinks: Sequence[Sink], rows: DataFrame, batch: Batch) -> None:
    kept = rows.persist() if len(sinks) > 1 else rows
    try:
        for sink in sinks:
            sink.write(kept, batch)
    finally:
        if len(sinks) > 1:
            kept.unpersist()


def _settlements(manifest: DataFrame, ended: DataFrame | None) -> DataFrame:
    """How every row of a batch ends. What is not among those that ended is done, also if a step has left it out."""
    about = manifest.select(STREAM, ID, CONSUMER, COUNT).toDF("stream", "id", "consumer", "delivery_count")
    if ended is None:
        return about.withColumn("outcome", f.lit(ACK))
    done = about.join(f.broadcast(ended.select("stream", "id")), ["stream", "id"], "left_anti")
    # Those that are done first: as long as only they have left the batch, `settle_acks` need not look at each.
    return done.withColumn("outcome", f.lit(ACK)).unionByName(ended, allowMissingColumns=True)


def _reject(pipeline: Pipeline, ended: DataFrame | None, batch: Batch) -> None:
    """Handle failed rows without a group in which they could be settled."""
    if ended is None:
        return
    failed = ended.where(f.col("outcome") != ACK)
    if pipeline.rejects is not None:
        pipeline.rejects.write(failed.withColumnsRenamed({"stream": STREAM, "id": ID}), batch)
    elif found := failed.head():
        raise MillstreamError(
            f"{found['id']} of {found['stream']!r} failed: {found['error'] or found['outcome']}; a range cannot try it "
            "again: set rejects= to a sink for such rows, or use a GroupSource"
        )


def _strict(staged: DataFrame) -> DataFrame:
    failed = f.concat_ws(" ", "_id", f.lit("of"), "_stream", f.lit("failed:"), "_error")
    is_bad = f.col("_outcome").isNotNull() & (f.col("_outcome") != ACK)
    told = f.when(is_bad, f.raise_error(failed).cast("string")).otherwise(f.col("_outcome"))
    return staged.withColumn("_outcome", told)


# Trying


@dataclass(frozen=True, slots=True)
class Failed:
    """A row that a step has ended."""

    row: int  # its place among those that were given, from 0
    reason: str
    error: str
    delay: float | None = None  # seconds until the next try, where a step has said so


@dataclass(frozen=True, slots=True)
class Result:
    """What became of rows."""

    good: list[dict[str, Any]]  # as sinks get them
    retried: list[Failed]
    dead: list[Failed]
    released: list[int]  # places


def tried(pipeline: Pipeline, rows: Sequence[Any], spark: SparkSession | None) -> Result:
    """Return what a pipeline makes of rows."""
    here = spark or session(pipeline.name)
    found = applied(pipeline, _given(pipeline, rows, here))
    try:
        good = [
            {name: value for name, value in row.asDict(True).items() if name not in TYPES}
            for row in found.rows.collect()
        ]
        ended = found.ended()
        result = Result(good, [], [], [])
        for row in [] if ended is None else sorted(ended.collect(), key=lambda row: _place(row["id"])):
            _sort(pipeline, row, result)
        return result
    finally:
        found.close()


def _sort(pipeline: Pipeline, row: Any, result: Result) -> None:
    place, told = _place(row["id"]), {name: row[name] or "" for name in ("reason", "error", "traceback")}
    delay_s = row["delay"]
    failure = failure_of(Other(b"", None, None, row["outcome"] or RETRY, **told, delay_s=delay_s))
    match decide(pipeline.retry, row.asDict().get("delivery_count", 1), failure):
        case DeadLetter(reason=reason, error=error):
            result.dead.append(Failed(place, str(reason), error))
        case Release():
            result.released.append(place)
        case Later():
            result.retried.append(Failed(place, str(Reason.RETRIES), told["error"], delay_s))
        case Ack():
            pass


def _place(entry_id: str) -> int:
    return int(entry_id.split("-")[0]) - 1


def _given(pipeline: Pipeline, rows: Sequence[Any], spark: SparkSession) -> DataFrame:
    source = pipeline.source
    payload = None if pipeline.schema is None else pipeline.payload
    wanted = spark.createDataFrame([], read_schema(source, payload)).schema
    made = [_row(pipeline, place, row) for place, row in enumerate(rows)]
    lists = [[row.get(name) for name in wanted.names] for row in made]
    return named(spark.createDataFrame(lists, wanted), source.meta)


def _row(pipeline: Pipeline, place: int, row: Any) -> dict[str, Any]:
    about = {"stream": pipeline.source.stream, "id": f"{place + 1}-0", "consumer": "test", "delivery_count": 1}
    if isinstance(row, Mapping):
        about["delivery_count"] = row.get(COUNT, 1)
        row = {name: value for name, value in row.items() if name != COUNT}
    if pipeline.schema is None:
        if not isinstance(row, Mapping):
            raise ConfigError(f"rows: a pipeline without a schema takes dicts of columns, not {row!r}")
        return about | dict(row)
    text = row if isinstance(row, bytes | str) else json.dumps(row)
    return about | {pipeline.payload: text.encode() if isinstance(text, str) else text}


# History


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What a back-fill has done."""

    rows: int  # that the range had
    written: int  # of these: not there before
    removed: bool = False  # whether the stream had entries of that time that are gone


def backfilled(pipeline: Pipeline, from_: Any, to: Any, spark: SparkSession | None, master: str | None) -> Backfilled:
    """Run the steps over the entries between two times, beside the rows of the live pipeline."""
    targets = [sink for sink in pipeline.sinks if isinstance(sink, Parquet)]
    if len(targets) != len(pipeline.sinks):
        raise ConfigError("sinks: a back-fill leaves out what is there already, and can look that up in Parquet only")
    here = _session(pipeline, spark, master)
    now_ms = time.time_ns() // 1_000_000
    options = history(pipeline.source, None, moment(from_, now_ms), moment(to, now_ms))
    payload = None if pipeline.schema is None else pipeline.payload
    batch = Batch(f"fill{now_ms}", 0)
    frame = named(
        here.read.format("millstream").options(**options).schema(_history_schema(pipeline, payload)).load(),
        pipeline.source.meta,
    )
    kept = frame.persist()
    try:
        written = 0
        for sink in targets:
            found = applied(pipeline, _without(here, kept, sink))
            rows = found.rows.persist()
            sink.write(rows, Batch(batch.query, now_ms))
            written = max(written, rows.count())
            rows.unpersist()
            found.close()
        return Backfilled(kept.count(), written, _is_incomplete(here, pipeline.source, options))
    finally:
        kept.unpersist()


def _is_incomplete(spark: SparkSession, source: Source, options: Mapping[str, str]) -> bool:
    """Warn if a stream has had entries of a time that are gone. A group removes what is done, unless it retains all."""
    read = parse_read(options)
    server = StreamMetadata(read.connection)
    try:
        state = server.state(source.stream)
    finally:
        server.close()
    start = read.starting.default
    if state is None or not isinstance(start, int):
        return False
    is_cut = state.length < (state.added or 0) and start <= state.generated and (state.first or start + 1) > start
    if is_cut:
        log.warning(
            "entries of %r were removed, perhaps some of this time: a group removes what is done (retain=acked, the "
            "default), and producers trim. Option retain=all keeps them for back-fills",
            source.stream,
        )
    return is_cut


def _history_schema(pipeline: Pipeline, payload: str | None) -> str:
    """As the live read, without what only a group's read has: `named` and the steps get it as nulls."""
    text = read_schema(pipeline.source, payload)
    return text.replace("delivery_count int, ", "").replace("consumer string, ", "")


def _without(spark: SparkSession, frame: DataFrame, sink: Parquet) -> DataFrame:
    """Return the rows that a sink does not have, by stream and id."""
    if COUNT not in frame.columns:
        frame = frame.withColumns({COUNT: f.lit(1), CONSUMER: f.lit("backfill")})
    path = str(sink.path)
    hadoop = spark._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
    if not hadoop.getFileSystem(spark._jsc.hadoopConfiguration()).exists(hadoop):
        return frame
    there = spark.read.parquet(path).select(STREAM, ID)
    return frame.join(there, [STREAM, ID], "left_anti")


def moment(value: Any, now_ms: int) -> int:
    """Return a time in ms: "now", a duration ago ("2h"), or a number of ms since 1970."""
    if value == "now":
        return now_ms + 1  # an end is not read, and what was appended in this very millisecond is there
    if isinstance(value, int):
        return value
    return now_ms - round(seconds_of(str(value)) * 1000)
