"""Finds the rows that make a batch fail as a whole, so that the others can go on.

    batch fails ── fails without rows, or passes now? ──▶ the error is not of a row: raised
                └─ else halves, and halves of those that fail ──▶ culprits, each of which fails alone

A step in SQL that raises, or a function that ends its process, fails the task and with it the batch. Nothing says which
row it was. The steps are tried on parts of the batch, without sinks, until single rows are left that fail.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from millstream.printable import safe_logger
from millstream.spark.pipeline.sources import CONSUMER, COUNT, ID, STREAM
from millstream.spark.settlement.rows import RETRY

log = safe_logger(logging.getLogger(__name__))

MOST = 20  # culprits of one batch: where more rows fail, something else is wrong
ERROR_SIZE = 500
_NUMBER = "_number"
JobFailed = (PySparkException, Py4JError)

Try = Callable[[DataFrame], None]


@dataclass(slots=True)
class Poisoned:
    """A batch, and the rows of it that fail alone with their errors."""

    rows: DataFrame  # kept; all rows with a number
    errors: dict[int, str] = field(default_factory=dict)

    @property
    def good(self) -> DataFrame:
        """The others."""
        return self.rows.where(~self._is_culprit).drop(_NUMBER)

    @property
    def ended(self) -> DataFrame:
        """The culprits as the settle sink wants them: tried again, and dead letters after the last try."""
        error = f.lit(None).cast("string")
        for number, text in self.errors.items():
            error = f.when(f.col(_NUMBER) == number, f.lit(text)).otherwise(error)
        about = [name for name in (STREAM, ID, CONSUMER, COUNT) if name in self.rows.columns]
        chosen = self.rows.where(self._is_culprit).select(*about, error.alias("_error"))
        found = chosen.toDF(*(name.removeprefix("_") for name in chosen.columns))
        return found.withColumns({"outcome": f.lit(RETRY), "reason": f.lit("the batch fails with this row")})

    @property
    def _is_culprit(self) -> Column:
        return f.col(_NUMBER).isin(list(self.errors))

    def close(self) -> None:
        self.rows.unpersist()


def find_culprits(frame: DataFrame, attempt: Try) -> Poisoned | None:
    """Return the rows with which `attempt` fails alone; None if it is not for single rows that it fails."""
    numbered = frame.withColumn(_NUMBER, f.row_number().over(Window.orderBy(STREAM, ID))).persist()
    found = Poisoned(numbered)
    try:
        count = numbered.count()
        if not count or _error(numbered.where(f.lit(False)).drop(_NUMBER), attempt) is not None:
            return _nothing(found)

        def error_of(low: int, high: int) -> str | None:
            return _error(numbered.where(f.col(_NUMBER).between(low, high)).drop(_NUMBER), attempt)

        for number, text in _bisected(1, count, error_of):
            if len(found.errors) == MOST:
                log.error("more than %d rows of a batch of %d fail its steps: it is left as it is", MOST, count)
                return _nothing(found)
            found.errors[number] = text
    except JobFailed:
        found.close()
        raise
    return found if found.errors else _nothing(found)


def _nothing(found: Poisoned) -> Poisoned | None:
    found.close()
    return None


def is_of_steps(error: Exception) -> bool:
    """Whether an error may be of the steps. One of ours is of a source or sink, such as a server that is away."""
    return isinstance(error, JobFailed) and "millstream.errors." not in str(error)


def _bisected(low: int, high: int, error_of: Callable[[int, int], str | None]) -> Iterator[tuple[int, str]]:
    """Yield the numbers from `low` to `high` that fail alone, with their errors."""
    error = error_of(low, high)
    if error is None:
        return
    if low == high:
        yield low, error
        return
    middle = (low + high) // 2
    yield from _bisected(low, middle, error_of)
    yield from _bisected(middle + 1, high, error_of)


def _error(rows: DataFrame, attempt: Try) -> str | None:
    """Return how an attempt with these rows fails; None if it does not."""
    try:
        attempt(rows)
    except JobFailed as error:
        return _told(str(error))
    return None


def _told(text: str) -> str:
    """Return the lines of a Spark error that say what went wrong: those of its cause, without stack traces."""
    lines = [
        line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("at ", "..."))
    ]
    causes = [line for line in lines if line.startswith(("Caused by:", "org.apache.spark.Spark")) and ": " in line]
    return (causes[-1] if causes else lines[0] if lines else "the task failed")[:ERROR_SIZE]
