"""A pipeline: a source, steps, sinks and what becomes of rows that fail, as one value to check, to try and to run.

    pipe = Pipeline(
        source=GroupSource("orders", group="billing"),
        schema=Order,
        steps=[Rows(charge, adds="paid double"), lambda orders: orders.join(products, "product")],
        sinks=[Parquet("accepted", partition_by=["country"])],
        checkpoint="checkpoint",
    )
    pipe.test([{"order": 7, …}])          a local batch, no server
    pipe.run()                            until SIGTERM; once=True: what is there now

A batch of a group is written to every sink and then settled, in this order: good rows are done, failed ones retried or
set aside. What ends in between is run again with the same rows. Importing this brings in neither Spark nor Java.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from millstream.delivery.policy import RetryPolicy
from millstream.errors import ConfigError
from millstream.spark.pipeline import schemas
from millstream.spark.pipeline.sinks import Format, Jdbc, Parquet, Sink, StreamSink
from millstream.spark.pipeline.sources import GroupSource, RangeSource, Source, check_names
from millstream.spark.pipeline.steps import Require, Rows, Sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millstream.spark.pipeline.run import Backfilled, Result, RunningPipeline

__all__ = [
    "Format",
    "GroupSource",
    "Jdbc",
    "Parquet",
    "Pipeline",
    "RangeSource",
    "Require",
    "Rows",
    "Sql",
    "StreamSink",
]

FrameStep = Callable[["DataFrame"], "DataFrame"]
Step = Rows | Require | Sql | FrameStep
OUTPUT_MODES = ("append", "update", "complete")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What is done to the entries of a stream. One that exists has been checked, as far as that goes without Spark."""

    source: Source
    steps: Sequence[Step] = ()
    sinks: Sequence[Sink] = ()
    schema: Any = None  # what payloads look like: a dataclass, a pydantic model, a JSON Schema; see `schemas`
    payload: str = "data"  # the field that holds them
    retry: RetryPolicy = field(default_factory=RetryPolicy)  # of a group's rows
    rejects: Sink | None = None  # of a range: where rows go that fail; None: the query fails
    watermark: tuple[str, str] | None = None  # of a range: a column of time and how late it may be, "1 hour"
    output_mode: str = "append"  # with a watermark
    trigger: str | None = None  # how often, "10 seconds"; None: at once when there is something
    checkpoint: str | os.PathLike[str] | None = None  # None: begins anew each time
    name: str = "pipeline"

    def __post_init__(self) -> None:
        if not isinstance(self.source, GroupSource | RangeSource):
            raise ConfigError(f"source: must be a GroupSource or a RangeSource, not {self.source!r}")
        self._check_parts()
        _naming("source", lambda: self.source.check(self.retry))
        if self.schema is not None:
            if self.source.columns is not None:
                raise ConfigError("source: columns name fields of entries, and schema what is in one of them: give one")
            check_names(list(schemas.table_of(self.schema).names), "schema")
        if self.source.is_group:
            self._check_group()

    def _check_parts(self) -> None:
        for at, step in enumerate(self.steps):
            if not callable(step) and not isinstance(step, Rows | Require | Sql):
                raise ConfigError(
                    f"steps: number {at + 1} is neither Rows, Require, Sql nor a function of frames: {step!r}"
                )
        if not self.sinks:
            raise ConfigError("sinks: there is none, and nothing would be kept: give one, such as Parquet('accepted')")
        for sink in (*self.sinks, *([] if self.rejects is None else [self.rejects])):
            if not hasattr(sink, "write") or not hasattr(sink, "check"):
                raise ConfigError(f"sinks: {sink!r} is not a sink: use Parquet, Format, StreamSink or Jdbc")
            _naming("sinks", sink.check)
        if not isinstance(self.retry, RetryPolicy):
            raise ConfigError(f"retry: must be a RetryPolicy, not {self.retry!r}")
        if self.output_mode not in OUTPUT_MODES:
            raise ConfigError(f"output_mode: must be one of {', '.join(OUTPUT_MODES)}, not {self.output_mode!r}")
        if self.watermark is not None and not _is_watermark(self.watermark):
            example = '("at", "1 hour")'
            raise ConfigError(f"watermark: must be a column and how late it may be, {example}, not {self.watermark!r}")

    def _check_group(self) -> None:
        if self.watermark is not None:
            raise ConfigError(
                "watermark: rows of a group come in any order and are settled one by one; use a RangeSource, or a "
                "query of its own over what this pipeline writes"
            )
        if self.rejects is not None:
            raise ConfigError("rejects: rows of a group that fail are retried and become dead letters: leave it out")

    # Making one

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """Read a pipeline from a TOML file; see `toml`."""
        from millstream.spark.pipeline.toml import pipeline_from

        return pipeline_from(cls, path)

    def at(self, url: str | None) -> Self:
        """Return the same pipeline at another server. Its target streams move along unless they name a server."""
        if url is None:
            return self
        here = self.source.url
        sinks = [
            replace(each, url=url) if isinstance(each, StreamSink) and each.url in (None, here) else each
            for each in self.sinks
        ]
        return replace(self, source=replace(self.source, url=url), sinks=sinks)

    # Using it

    def test(self, rows: Sequence[Any], *, spark: SparkSession | None = None) -> Result:
        """What the steps make of rows, in a local batch and without a server.

        A row is a payload (bytes, str, or a dict that becomes JSON) where the pipeline has a schema, else a dict of
        columns. `_delivery_count` in a dict says which delivery it is.
        """
        from millstream.spark.pipeline.run import tried

        return tried(self, rows, spark)

    def start(
        self,
        spark: SparkSession | None = None,
        *,
        once: bool = False,
        url: str | None = None,
        master: str | None = None,
    ) -> RunningPipeline:
        """Start it and come back: what comes back has `stop()`, `wait()` and the query."""
        from millstream.spark.pipeline.run import started

        return started(self.at(url), spark, once=once, master=master)

    def run(
        self,
        spark: SparkSession | None = None,
        *,
        once: bool = False,
        url: str | None = None,
        master: str | None = None,
    ) -> None:
        """Work until SIGTERM, SIGINT or a failure; with `once`, until all is done that is there now."""
        self.start(spark, once=once, url=url, master=master).run()

    def backfill(
        self,
        from_: Any,
        to: Any = "now",
        *,
        spark: SparkSession | None = None,
        url: str | None = None,
        master: str | None = None,
    ) -> Backfilled:
        """Run the same steps over history. Rows that the sinks already have are left out."""
        from millstream.spark.pipeline.run import backfilled

        return backfilled(self.at(url), from_, to, spark, master)


def _is_watermark(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(each, str) and each for each in value)


def _naming(what: str, check: Callable[[], None]) -> None:
    """Run a check whose complaint is made to name the field of the pipeline."""
    try:
        check()
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith(what) else f"{what}: {text}") from None
