"""Where a pipeline's rows go: values with `write(frame, batch)`, which is called again if a batch is run again.

Parquet        a directory a batch, overwritten when the batch is run again: each row once
Format         any format of Spark; Delta is told the batch and skips one that it has had
StreamSink     entries of a stream; a batch that is run again is appended again
Jdbc           a table; the same
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from millstream.errors import ConfigError
from millstream.spark.options import parse_write
from millstream.spark.pipeline.sources import CONSUMER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter


@dataclass(frozen=True, slots=True)
class Batch:
    """Which batch it is: the same when it is run again."""

    query: str  # of the checkpoint
    number: int

    @property
    def name(self) -> str:
        return f"{self.query[:8]}-{self.number}"


class Sink(Protocol):
    """Takes the good rows of a batch."""

    def write(self, frame: DataFrame, batch: Batch) -> None: ...

    def check(self) -> None:
        """Raise a ConfigError for what can be known to be wrong before Spark starts."""


@dataclass(frozen=True, slots=True)
class Parquet:
    """Parquet files below a directory, in `batch=<name>/<partitions>`; Spark reads them all as one table."""

    path: str | os.PathLike[str]
    partition_by: Sequence[str] = field(default=(), kw_only=True)
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def write(self, frame: DataFrame, batch: Batch) -> None:
        writer = _writer(frame, self.options, self.partition_by)
        writer.mode("overwrite").parquet(f"{os.fspath(self.path)}/batch={batch.name}")

    def check(self) -> None:
        _check_path("Parquet", self.path)
        _check_names("Parquet", self.partition_by)


@dataclass(frozen=True, slots=True)
class Format:
    """Any format that Spark can append to: delta, iceberg, csv, json, orc."""

    format: str
    path: str | os.PathLike[str] | None = None
    table: str | None = field(default=None, kw_only=True)  # instead of a path
    partition_by: Sequence[str] = field(default=(), kw_only=True)
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def write(self, frame: DataFrame, batch: Batch) -> None:
        known = {"txnAppId": batch.query, "txnVersion": batch.number} if self.format == "delta" else {}
        writer = _writer(frame, known | dict(self.options), self.partition_by).format(self.format).mode("append")
        if self.table is not None:
            writer.saveAsTable(self.table)
        else:
            writer.save(None if self.path is None else os.fspath(self.path))

    def check(self) -> None:
        if not self.format:
            raise ConfigError("sinks: Format needs the name of a format, such as delta")
        if self.path is not None and self.table is not None:
            raise ConfigError("sinks: Format takes a path or a table, not both")
        _check_names("Format", self.partition_by)


@dataclass(frozen=True, slots=True)
class StreamSink:
    """Entries of a stream, a field a column."""

    stream: str
    url: str | None = field(default=None, kw_only=True, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def write(self, frame: DataFrame, batch: Batch) -> None:
        # Columns of ours would be read as fields of the payload by whoever reads that stream.
        own = frame.drop(*(name for name in frame.columns if name.startswith("_")))
        own.write.format("millstream").mode("append").options(**self._options()).save()

    def check(self) -> None:
        parse_write(self._options())

    def _options(self) -> dict[str, str]:
        found = {"stream": self.stream, "url": self.url} | dict(self.options)
        return {name: str(value) for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Jdbc:
    """A table of a database, by Spark's own JDBC writer; its driver must be on Spark's class path."""

    url: str = field(repr=False)
    table: str
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True, repr=False)

    def write(self, frame: DataFrame, batch: Batch) -> None:
        writer = _writer(frame, self.options, ()).format("jdbc").mode("append")
        writer.option("url", self.url).option("dbtable", self.table).save()

    def check(self) -> None:
        if not self.url.startswith("jdbc:"):
            raise ConfigError("sinks: the url of Jdbc begins with jdbc:")
        if not self.table:
            raise ConfigError("sinks: Jdbc needs the name of a table")


def _writer(frame: DataFrame, options: Mapping[str, Any], partition_by: Sequence[str]) -> DataFrameWriter:
    lacking = [name for name in partition_by if name not in frame.columns]
    if lacking:
        there = ", ".join(frame.columns)
        raise ConfigError(f"sinks: there is no column {lacking[0]!r} to partition by; there are {there}")
    writer = frame.drop(CONSUMER).write.options(**{name: str(value) for name, value in options.items()})
    return writer.partitionBy(*partition_by) if partition_by else writer


def _check_path(what: str, path: object) -> None:
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise ConfigError(f"sinks: {what} needs the path of a directory, not {path!r}")


def _check_names(what: str, names: object) -> None:
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"sinks: partition_by of {what} is a list of columns, not {names!r}")
