"""Steps of a pipeline as values, made without Spark. What rows go through is in `pipeline_rows`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from string import Formatter
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
class Require:
    """A condition that rows must meet, in SQL: `Require("title IS NOT NULL", "no product {product}")`.

    A row that does not, or for which it is null, fails with the error, in which `{column}` stands for a column's value:
    it is retried, or with `is_final` a dead letter at once. As `Rows` with a function that raises, but Spark looks at
    all rows by itself: nothing goes through Python.
    """

    condition: str
    error: str
    is_final: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.condition, str) or not isinstance(self.error, str):
            raise ConfigError(f"steps: Require takes a condition and an error as text, not {self!r}")
        if not isinstance(self.is_final, bool):
            raise ConfigError(f"steps: is_final of Require must be true or false, not {self.is_final!r}")
        if not self.condition.strip():
            raise ConfigError("steps: Require needs a condition in SQL, such as 'quantity > 0'")
        try:
            named = [name for _, name in self.parts()]
        except ValueError as error:
            raise ConfigError(f"steps: the error {self.error!r} of Require cannot be read: {error}") from error
        if "" in named:
            raise ConfigError(f"steps: {{}} in the error {self.error!r} of Require names no column")

    @property
    def name(self) -> str:
        return f"Require({self.condition!r})"

    def parts(self) -> Iterator[tuple[str, str | None]]:
        """Split the error into pieces: text, and the column after it."""
        for text, name, _, _ in Formatter().parse(self.error):
            yield text, name


@dataclass(frozen=True, slots=True)
class Sql:
    """A query over the rows: `SELECT *, quantity * price AS total FROM {rows}`. Keep the columns that begin with _."""

    query: str

    def __post_init__(self) -> None:
        if "{rows}" not in self.query:
            raise ConfigError("steps: a Sql step says where the rows go: SELECT … FROM {rows}")

    def __call__(self, frame: DataFrame) -> DataFrame:
        return frame.sparkSession.sql(self.query, rows=frame)
