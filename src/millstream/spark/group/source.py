"""Group mode as Spark sees it: an adapter over `group_planning`, `group_reading` and `rows`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from millstream.spark.group.missing import read_accounted
from millstream.spark.group.offsets import OffsetPart
from millstream.spark.group.options import GroupRead
from millstream.spark.group.planner import GroupPlanner
from millstream.spark.runtime.compat import arrow_schema
from millstream.spark.runtime.errors import plainly
from millstream.spark.runtime.tasks import begin
from millstream.spark.wire.rows import META, RowBuilder, columns_of

GROUP_META = {**META, "delivery_count": pa.int32(), "idle_ms": pa.int64(), "consumer": pa.string()}


class GroupPartition(InputPartition):
    """A part of a batch as Spark hands it to an executor."""

    def __init__(self, part: OffsetPart) -> None:
        self.part = part


class GroupStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read in group mode."""

    def __init__(self, options: GroupRead, schema: StructType) -> None:
        from millstream.spark.range.source import field_names

        self._options = options
        arrow = arrow_schema(schema)
        columns = columns_of(arrow, field_names(schema), GROUP_META)
        self._names = frozenset(arrow.names)
        self._builder = RowBuilder(arrow, columns, options.read.mode, options.read.timestamps)
        self._planner_: GroupPlanner | None = None

    @property
    def _planner(self) -> GroupPlanner:
        if self._planner_ is None:
            self._planner_ = GroupPlanner(self._options)
        return self._planner_

    def initialOffset(self) -> dict[str, Any]:
        with plainly():
            return self._planner.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with plainly():
            return self._planner.latest(start)

    def prepareForTriggerAvailableNow(self) -> None:
        with plainly():
            self._planner.aim()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._planner.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with plainly():
            return [GroupPartition(part) for part in self._planner.parts(end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, GroupPartition):  # what Spark makes of no partitions at all
            return
        begin("read")
        with plainly():
            for chunk in read_accounted(self._options, partition.part):
                about = {name: column for name, column in chunk.about().items() if name in self._names}
                yield self._builder.build(partition.part.stream, chunk.entries, about)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark commits the last batch of a run never, so that batches end in `latestOffset`."""

    def stop(self) -> None:
        if self._planner_ is not None:
            self._planner_.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner_": None}
