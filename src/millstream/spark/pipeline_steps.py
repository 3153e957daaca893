"""Steps of a pipeline as values, made without Spark. What rows go through is in `pipeline_rows`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Rows:
    """A function of one row. Raise Retry, Reject or Release, or anything else, which means again later.

    `adds` are columns that it adds to those of the row; `gives` are all that a row has afterwards, besides ours. With
    neither it only looks. It returns a dict of these columns, or None: with `adds` or neither the row stays as it is,
    with `gives` it is done and goes nowhere.
    """

    function: Callable[[Any], object]
    adds: str | None = field(default=None, kw_only=True)
    gives: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"steps: Rows takes a function of a row, not {self.function!r}")
        if self.adds is not None and self.gives is not None:
            raise ConfigError(f"steps: {self.name} cannot both add columns and give all of them: leave out one")

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))


@dataclass(frozen=True, slots=True)
class Sql:
    """A query over the rows: `SELECT *, quantity * price AS total FROM {rows}`. Keep the columns that begin with _."""

    query: str

    def __post_init__(self) -> None:
        if "{rows}" not in self.query:
            raise ConfigError("steps: a Sql step says where the rows go: SELECT … FROM {rows}")

    def __call__(self, frame: DataFrame) -> DataFrame:
        return frame.sparkSession.sql(self.query, rows=frame)
