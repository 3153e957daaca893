"""The sink `millstream` as Spark sees it: adapters over packing and writing, for batches and for streams.

    write(record batches) ── by stream ──▶ pack ──▶ a writer a stream ──▶ message: what was written where

A micro-batch that Spark runs again, in whole or task by task, lands once: rows are written under the query's id, the
number of the batch and the number of the partition, which Spark gives to every attempt alike. A partition may have its
rows in another order, as after a shuffle. Where it has other rows, the query fails and says so: see `fence`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millstream.errors import ConfigError
from millstream.spark.options import Write, parse_write
from millstream.spark.runtime.compat import arrow_schema
from millstream.spark.runtime.errors import plainly
from millstream.spark.runtime.tasks import begin
from millstream.spark.sink.choice import chosen_way, make_writer
from millstream.spark.sink.fence import FenceWriter, check_written
from millstream.spark.sink.packing import Layout, by_stream, layout_of, pack
from millstream.spark.sink.writer import Identity, PlainWriter

# Spark keeps these for the tasks of a micro-batch, but has no documented way to ask for them.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """What a task has written under a fence: rows a stream."""

    identity: Identity
    rows: dict[str, int]


@dataclass(frozen=True)
class AppendSink:
    """What a task needs to write."""

    options: Write
    layout: Layout
    run: str  # of a batch write: its identity

    def write(self, batches: Iterator[pa.RecordBatch], identity: Identity) -> Written:
        """Write a task's rows."""
        begin("write")
        writers: dict[str, PlainWriter] = {}
        try:
            for batch in batches:
                for stream, rows in by_stream(batch, self.layout, self.options.stream):
                    if not rows.num_rows:
                        continue
                    if stream not in writers:
                        writers[stream] = make_writer(self.options, stream, identity)
                    writers[stream].write(pack(rows, self.layout, keep_nulls=self.options.keep_nulls))
            for writer in writers.values():
                writer.finish()
        finally:
            for writer in writers.values():
                writer.close()
        fenced = {stream: writer for stream, writer in writers.items() if isinstance(writer, FenceWriter)}
        return Written(identity, {stream: writer.rows for stream, writer in fenced.items()})

    def check(self, messages: list[WriterCommitMessage | None], *, forget: bool) -> None:
        """Raise unless the streams have what the tasks of a batch say; see `check_written`."""
        written = [message for message in messages if isinstance(message, Written)]
        if not written or self.options.idempotence not in ("auto", "fence"):
            return
        streams = {stream for each in written for stream in each.rows}
        own = self.options.stream
        if own is not None and own not in streams and chosen_way(self.options, own) == "fence":
            streams.add(own)  # an earlier run may have had rows where this one has none
        run = written[0].identity
        for stream in streams:
            expected = {each.identity.partition: each.rows.get(stream, 0) for each in written}
            check_written(self.options.connection, stream, run.query, run.batch, expected, forget=forget)


class EntryWriter(DataSourceArrowWriter):
    """A batch write: a task that is run again writes nothing twice."""

    def __init__(self, sink: AppendSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with plainly():
            return self._sink.write(iterator, Identity(self._sink.run, 0, _partition()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Check the counts of all tasks and remove their fences."""
        with plainly():
            self._sink.check(messages, forget=True)


class EntryStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write: a micro-batch that is run again lands once."""

    def __init__(self, sink: AppendSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with plainly():
            return self._sink.write(iterator, _identity())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with plainly():
            self._sink.check(messages, forget=False)


def _identity() -> Identity:
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context else None
    batch = context.getLocalProperty(BATCH_ID) if context else None
    if query is None or batch is None:
        raise ConfigError("this Spark does not tell a task which micro-batch it is: set option 'idempotence' to none")
    return Identity(query, int(batch), _partition())


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context else 0


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> EntryWriter:
    """Return the writer of `df.write`."""
    if overwrite:
        raise ConfigError("a stream can only be appended to: use mode('append'), and delete it first if need be")
    return EntryWriter(make_sink(options, schema))


def stream_writer(options: Mapping[str, str], schema: StructType) -> EntryStreamWriter:
    """Return the writer of `df.writeStream`."""
    return EntryStreamWriter(make_sink(options, schema))


def make_sink(options: Mapping[str, str], schema: StructType) -> AppendSink:
    """Return the checked settings of the tasks."""
    write = parse_write(options)
    layout = layout_of(arrow_schema(schema), write.stream is not None)
    return AppendSink(write, layout, uuid.uuid4().hex)
