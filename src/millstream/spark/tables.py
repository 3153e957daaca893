"""Tables for looking: what is pending, in which groups, with which consumers, and what was set aside.

    spark.read.format("millstream").option("table", "pending").load()

Batch reads only, of one server or of every shard. A table is a picture taken while people work: rows of one stream
are of about the same moment, rows of different streams need not be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from millstream.delivery.deadletters import DeadLetters, Letter
from millstream.delivery.keys import Keys
from millstream.delivery.steps import Publishing
from millstream.errors import ConfigError, ServerReplied
from millstream.spark.options import TableOptions
from millstream.spark.range.splits import missing
from millstream.spark.runtime.compat import arrow_schema
from millstream.spark.runtime.errors import plainly
from millstream.spark.wire.metadata import StreamMetadata

PAGE = 10_000
ROWS_A_BATCH = 10_000
PARTITIONS = 8  # at most; streams are dealt out among them

Row = tuple[Any, ...]
SCHEMAS = {
    "streams": "stream string, length bigint, first_id string, last_id string, entries_added bigint, groups bigint, "
    "max_deleted_id string",
    "groups": "stream string, group string, consumers bigint, pending bigint, last_delivered_id string, "
    "entries_read bigint, lag bigint",
    "consumers": "stream string, group string, consumer string, pending bigint, idle_ms bigint, inactive_ms bigint",
    "pending": "stream string, group string, id string, consumer string, idle_ms bigint, delivery_count bigint",
    "dead_letters": "stream string, id string, original_id string, group string, consumer string, reason string, "
    "error string, traceback string, attempts bigint, retry_count bigint, redriven bigint, dead_at timestamp, "
    "fields map<string, binary>",
}


def table_schema(table: TableOptions) -> str:
    """Return a table's columns."""
    return SCHEMAS[table.name]


@dataclass
class StreamsPartition(InputPartition):
    """Some of the streams."""

    streams: tuple[str, ...]


class TableReader(DataSourceReader):
    """A batch read of a table; a schema of the user's may have fewer columns, in any order."""

    def __init__(self, table: TableOptions, schema: StructType) -> None:
        known = [column.split()[0] for column in SCHEMAS[table.name].replace(", binary", "").split(", ")]
        unknown = [name for name in schema.fieldNames() if name not in known]
        if unknown:
            raise ConfigError(f"table {table.name!r} has no column {unknown[0]!r}: it has {', '.join(known)}")
        self._table = table
        self._arrow = arrow_schema(schema)
        self._places = [known.index(name) for name in schema.fieldNames()]

    def partitions(self) -> list[InputPartition]:
        with plainly():
            server = StreamMetadata(self._table.connection)
            try:
                streams = self._streams(server)
            finally:
                server.close()
        count = min(PARTITIONS, len(streams))
        return [StreamsPartition(tuple(streams[part::count])) for part in range(count)]

    def _streams(self, server: StreamMetadata) -> list[str]:
        choice = self._table.choice
        streams = server.find(choice)
        for stream in streams if choice.pattern is None else ():
            if server.state(stream) is None:
                raise missing(stream)
        # A dead-letter stream is shown with the stream that its entries come from.
        own = {Keys(stream.encode()).dead.decode() for stream in streams}
        return [stream for stream in streams if self._table.name != "dead_letters" or stream not in own]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StreamsPartition):
            return
        server = StreamMetadata(self._table.connection)
        with plainly():
            try:
                rows = (row for stream in partition.streams for row in self._rows(server, stream))
                yield from self._batches(rows)
            finally:
                server.close()

    def _rows(self, server: StreamMetadata, stream: str) -> Iterator[Row]:
        read = READERS[self._table.name]
        try:
            yield from read(server, stream, self._table)
        except ServerReplied as error:
            if "no such key" not in str(error) and error.code != "NOGROUP":
                raise  # what went away meanwhile has no rows

    def _batches(self, rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
        chunk: list[Row] = []
        for row in rows:
            chunk.append(row)
            if len(chunk) == ROWS_A_BATCH:
                yield self._batch(chunk)
                chunk = []
        if chunk:
            yield self._batch(chunk)

    def _batch(self, rows: list[Row]) -> pa.RecordBatch:
        arrays = [
            pa.array([row[place] for row in rows], column.type)
            for place, column in zip(self._places, self._arrow, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)


def _stream_rows(server: StreamMetadata, stream: str, table: TableOptions) -> Iterator[Row]:
    found = _named(server.ask("XINFO", "STREAM", stream, key=stream))
    first = found["first-entry"]
    yield (
        stream,
        found["length"],
        _text(first[0]) if first else None,
        _text(found["last-generated-id"]),
        found.get("entries-added"),
        found["groups"],
        _text(found.get("max-deleted-entry-id")),
    )


def _group_rows(server: StreamMetadata, stream: str, table: TableOptions) -> Iterator[Row]:
    for group in _groups(server, stream, table):
        yield (
            stream,
            _text(group["name"]),
            group["consumers"],
            group["pending"],
            _text(group["last-delivered-id"]),
            group.get("entries-read"),
            group.get("lag"),
        )


def _consumer_rows(server: StreamMetadata, stream: str, table: TableOptions) -> Iterator[Row]:
    for group in _groups(server, stream, table):
        for flat in server.ask("XINFO", "CONSUMERS", stream, group["name"], key=stream):
            found = _named(flat)
            inactive = found.get("inactive")
            yield (
                stream,
                _text(group["name"]),
                _text(found["name"]),
                found["pending"],
                found["idle"],
                None if inactive in (None, -1) else inactive,
            )


def _pending_rows(server: StreamMetadata, stream: str, table: TableOptions) -> Iterator[Row]:
    for group in _groups(server, stream, table):
        start = "-"
        while True:
            page = server.ask("XPENDING", stream, group["name"], start, "+", PAGE, key=stream)
            for entry_id, consumer, idle_ms, count in page:
                is_released = consumer == b""  # nobody's: then it is not idle either
                yield (
                    stream,
                    _text(group["name"]),
                    _text(entry_id),
                    None if is_released else _text(consumer),
                    None if is_released else idle_ms,
                    count,
                )
            if len(page) < PAGE:
                break
            start = "(" + page[-1][0].decode()


def _dead_letter_rows(server: StreamMetadata, stream: str, table: TableOptions) -> Iterator[Row]:
    keys = Keys(stream.encode(), table.dead_letters.encode())
    letters = DeadLetters(server.backend, keys, Publishing(keys, server.backend.capabilities))
    for letter in letters.list(group=table.group):
        yield _letter_row(stream, letter)


def _letter_row(stream: str, letter: Letter) -> Row:
    fields = [(name.decode("utf-8", "backslashreplace"), value) for name, value in letter.fields]
    return (
        stream,
        letter.id,
        letter.original_id,
        letter.group,
        letter.consumer,
        letter.reason,
        letter.error,
        letter.traceback,
        letter.attempts,
        letter.retry_count,
        letter.redriven,
        letter.dead_at_ms * 1000,
        fields,
    )


def _groups(server: StreamMetadata, stream: str, table: TableOptions) -> Iterator[dict[str, Any]]:
    for flat in server.ask("XINFO", "GROUPS", stream, key=stream):
        found = _named(flat)
        if table.group is None or _text(found["name"]) == table.group:
            yield found


def _named(flat: list[Any]) -> dict[str, Any]:
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")


READERS: Mapping[str, Callable[[StreamMetadata, str, TableOptions], Iterator[Row]]] = {
    "streams": _stream_rows,
    "groups": _group_rows,
    "consumers": _consumer_rows,
    "pending": _pending_rows,
    "dead_letters": _dead_letter_rows,
}
