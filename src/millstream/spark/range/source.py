"""The source `millstream` as Spark sees it: thin adapters over options, planning, reading and rows.

    DataSource ─┬─ reader        batch: partitions() fixes the spans, read() turns one into record batches
                ├─ streamReader  the planner's side lives in one process a query, read() in the executors'
                ├─ writer, streamWriter        see `sink`
                ├─ option "group"              see `group_source` for reads, `settle_sink` for writes
                └─ option "table"              see `tables`

Reader objects are pickled: whatever holds a socket or a thread is made when it is first needed and left behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from millstream.errors import ConfigError
from millstream.spark.group.options import GROUP_SCHEMA, has_group, parse_group_read
from millstream.spark.options import LATEST, Read, parse_read, parse_table
from millstream.spark.range.filters import IdComparison, Narrowed, narrow
from millstream.spark.range.planner import Limits, RangePlanner
from millstream.spark.range.reader import Span, read_span
from millstream.spark.range.splits import batch_spans, missing
from millstream.spark.runtime.compat import arrow_schema
from millstream.spark.runtime.errors import plainly
from millstream.spark.runtime.tasks import begin
from millstream.spark.wire.metadata import StreamMetadata
from millstream.spark.wire.rows import RowBuilder, columns_of

__all__ = ["MillstreamSource", "RowReader", "SpanPartition", "arrow_schema", "field_names"]

SCHEMA = "stream string, id string, timestamp timestamp, seq bigint, fields map<string, binary>"
_OPERATORS = {EqualTo: "=", GreaterThan: ">", GreaterThanOrEqual: ">=", LessThan: "<", LessThanOrEqual: "<=", In: "in"}


class MillstreamSource(DataSource):
    """`format("millstream")`."""

    @classmethod
    def name(cls) -> str:
        return "millstream"

    def schema(self) -> StructType | str:
        with plainly():
            if "table" in self.options:
                from millstream.spark.tables import table_schema

                return table_schema(parse_table(self.options))
            if has_group(self.options):
                parse_group_read(self.options)
                return GROUP_SCHEMA
            parse_read(self.options)
            return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        with plainly():
            if "table" in self.options:
                from millstream.spark.tables import TableReader

                return TableReader(parse_table(self.options), schema)
            if has_group(self.options):
                raise ConfigError("a group can be read by a streaming query only: use spark.readStream, or no 'group'")
            return EntryReader(parse_read(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            if "table" in self.options:
                raise ConfigError("a table can be read as a batch only: use spark.read, or leave out option 'table'")
            if has_group(self.options):
                from millstream.spark.group.source import GroupStreamReader

                return GroupStreamReader(parse_group_read(self.options), schema)
            return EntryStreamReader(parse_read(self.options), schema)
        except ConfigError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from millstream.spark.settlement.sink import batch_settler
        from millstream.spark.sink.sink import batch_writer

        with plainly():
            if has_group(self.options):
                return batch_settler(self.options, schema, overwrite)
            return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from millstream.spark.settlement.sink import stream_settler
        from millstream.spark.sink.sink import stream_writer

        with plainly():
            if has_group(self.options):
                return stream_settler(self.options, schema)
            return stream_writer(self.options, schema)


class SpanPartition(InputPartition):
    """A span as Spark hands it to an executor."""

    def __init__(self, span: Span) -> None:
        self.span = span


class RefusedStreamReader(DataSourceStreamReader):
    """Stands for a reader that cannot be made, and says why when it is first asked.

    Raised where the reader is made, the error would be hidden by one of Spark's own (a variable without a value).
    """

    def __init__(self, error: ConfigError) -> None:
        self._reason = str(error)

    def initialOffset(self) -> dict[str, Any]:
        with plainly():
            raise ConfigError(self._reason)

    def latestOffset(self, *_: object) -> dict[str, Any]:  # as this or an older Spark calls it
        return self.initialOffset()

    def getDefaultReadLimit(self) -> ReadLimit:
        self.initialOffset()
        return ReadAllAvailable()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self.initialOffset()
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self.initialOffset()
        return iter(())


class RowReader:
    """What both readers do in the executors."""

    def __init__(self, options: Read, schema: StructType) -> None:
        self._options = options
        self._arrow = arrow_schema(schema)
        self._builder = RowBuilder(
            self._arrow, columns_of(self._arrow, field_names(schema)), options.mode, options.timestamps
        )

    def rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's rows."""
        if not isinstance(partition, SpanPartition):  # what Spark makes of no partitions at all
            return
        begin("read")
        options, span = self._options, partition.span
        with plainly():
            for entries in read_span(options.connection, span, options.fetch, fail_on_loss=options.fail_on_loss):
                yield self._builder.build(span.stream, entries)


class EntryReader(DataSourceReader):
    """A batch read: everything between two bounds that are fixed when it is planned."""

    def __init__(self, options: Read, schema: StructType) -> None:
        self._options = options
        self._rows = RowReader(options, schema)
        self._narrowed = Narrowed()
        self._fields = field_names(schema)
        self.pushFilters = _Pushing(self)  # type: ignore[method-assign]

    def narrow(self, filters: Sequence[Filter]) -> None:
        """Read no more than these filters allow, as far as the server can help."""
        # A column that is a field of the entry says nothing about the entry, whatever its name.
        self._narrowed = narrow(each for each in comparisons(filters) if each.column not in self._fields)

    def partitions(self) -> Sequence[InputPartition]:
        with plainly():
            server = StreamMetadata(self._options.connection)
            try:
                return [SpanPartition(server.placed(span)) for span in self._spans(server)]
            finally:
                server.close()

    def _spans(self, server: StreamMetadata) -> list[Span]:
        options, found = self._options, []
        for stream in server.find(options.choice):
            state = server.state(stream)
            if state is None and options.fail_on_missing and options.choice.pattern is None:
                raise missing(stream)
            if state is not None:
                found.append((stream, state))
        spans: list[Span] = []
        least = None if options.min_partitions is None else max(1, options.min_partitions // max(1, len(found)))
        for stream, state in found:
            window = self._narrowed.of(state)
            spans += batch_spans({stream: state}, options.starting, options.ending, window, least)
        return spans

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.rows(partition)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "pushFilters"}


class _Pushing:
    """`pushFilters` of a reader that works whether or not Spark pushes filters.

    Spark refuses a reader that has a `pushFilters` of its own while `spark.sql.python.filterPushdown.enabled` is
    false, which it is by default; it looks at `__func__` to see that. This one says that it is the inherited one:
    Spark calls it if the setting is on, and leaves it alone if not.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: EntryReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        with plainly():
            self._reader.narrow(filters)
        return filters  # Spark applies them all again


class EntryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read in range mode."""

    def __init__(self, options: Read, schema: StructType) -> None:
        if options.ending.default != LATEST or options.ending.by_stream:
            raise ConfigError("'endingOffsets' and 'endingTimestamp' are for batch reads: a streaming query has no end")
        self._options = options
        self._rows = RowReader(options, schema)
        self._planner_: RangePlanner | None = None

    @property
    def _planner(self) -> RangePlanner:
        if self._planner_ is None:
            self._planner_ = RangePlanner(self._options)
        return self._planner_

    def initialOffset(self) -> dict[str, Any]:
        with plainly():
            return self._planner.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with plainly():
            return self._planner.latest(start, self._limits(limit))

    def _limits(self, limit: ReadLimit) -> Limits:
        match limit:
            case ReadMaxRows(max_rows=rows):
                return Limits(rows, self._options.max_bytes)
            case ReadMaxBytes(max_bytes=size):
                return Limits(None, size)
        return Limits()

    def prepareForTriggerAvailableNow(self) -> None:
        with plainly():
            self._planner.aim()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._planner.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with plainly():
            return [SpanPartition(span) for span in self._planner.spans(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.rows(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: a read in range mode leaves no trace."""

    def stop(self) -> None:
        if self._planner_ is not None:
            self._planner_.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner_": None}


def field_names(schema: StructType) -> Mapping[str, str]:
    """Columns whose metadata says which entry field they are."""
    return {field.name: field.metadata["field"] for field in schema.fields if "field" in (field.metadata or {})}


def comparisons(filters: Sequence[Filter]) -> Iterator[IdComparison]:
    """Spark's filters in our words; those that say nothing about what we can narrow are left out."""
    for each in filters:
        operator = _OPERATORS.get(type(each))
        if operator is not None and len(each.attribute) == 1:  # type: ignore[attr-defined]
            yield IdComparison(each.attribute[0], operator, each.value)  # type: ignore[attr-defined]
