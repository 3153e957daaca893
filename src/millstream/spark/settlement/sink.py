"""The sink `millstream.settle` as Spark sees it, and `settle(df)`: rows that end deliveries.

    settle(decided, url=…, group="billing").option("checkpointLocation", …).start()       a streaming query
    settle(decided, url=…, group="billing").save()                                        in foreachBatch

A settlement that is carried out again, because Spark runs a task or a batch again, does nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from millstream.errors import ConfigError
from millstream.printable import safe_logger
from millstream.spark.group.options import Settling, parse_settling
from millstream.spark.runtime.compat import arrow_schema
from millstream.spark.runtime.errors import plainly
from millstream.spark.runtime.tasks import begin
from millstream.spark.settlement.rows import KNOWN, check_columns
from millstream.spark.settlement.sender import Settler, Tally

log = safe_logger(logging.getLogger(__name__))


class SettleSource(DataSource):
    """`format("millstream.settle")`."""

    @classmethod
    def name(cls) -> str:
        return "millstream.settle"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with plainly():
            return batch_settler(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        with plainly():
            return stream_settler(self.options, schema)


@dataclass
class SettledMessage(WriterCommitMessage):
    """What a task has settled."""

    tally: Tally = field(default_factory=Tally)


def settle_all(options: Settling, batches: Iterator[pa.RecordBatch]) -> SettledMessage:
    """Settle a task's rows."""
    begin("settle")
    with plainly():
        settler = Settler(options)
        for batch in batches:
            settler.add(batch.select([name for name in KNOWN if name in batch.schema.names]))
        return SettledMessage(settler.finish())


def tell(messages: list[WriterCommitMessage | None]) -> Tally:
    """Return what all tasks have settled. Late settlements are logged."""
    total = Tally()
    for message in messages:
        if isinstance(message, SettledMessage):
            total.add(message.tally)
    log.log(
        logging.WARNING if total.lost else logging.DEBUG,
        "settled %s; %d before, %d too late",
        total.settled,
        total.before,
        total.lost,
    )
    return total


class BatchSettler(DataSourceArrowWriter):
    """`df.write`."""

    def __init__(self, options: Settling) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return settle_all(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        tell(messages)


class StreamSettler(DataSourceStreamArrowWriter):
    """`df.writeStream`."""

    def __init__(self, options: Settling) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return settle_all(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        tell(messages)


def batch_settler(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchSettler:
    """Return the writer of `df.write`."""
    if overwrite:
        raise ConfigError("settlements cannot be overwritten: use mode('append')")
    return BatchSettler(_checked(options, schema))


def stream_settler(options: Mapping[str, str], schema: StructType) -> StreamSettler:
    """Return the writer of `df.writeStream`."""
    return StreamSettler(_checked(options, schema))


def _checked(options: Mapping[str, str], schema: StructType) -> Settling:
    found = parse_settling(options)
    check_columns(arrow_schema(schema), found.stream is not None)
    return found


def settle(df: Any, **options: object) -> Any:
    """Return a writer that settles the rows of a frame: call `.start()` for a streaming frame, `.save()` otherwise."""
    from millstream.spark.runtime.session import register

    if find_spec("pyspark_millstream_settle") is None:  # else Spark finds it by itself, and no batch waits for us
        register(df.sparkSession)
    writer = df.writeStream if df.isStreaming else df.write.mode("append")
    return writer.format("millstream.settle").options(**{name: str(value) for name, value in options.items()})
