"""Spark's daemon for Python workers, with what our workers import loaded before it forks them.

    spark.python.daemon.module  millstream.spark.runtime.daemon

Without it every worker process imports Arrow, pandas and this package by itself: about a second each, several a query.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module

from pyspark.daemon import manager

LOADED = (
    "pandas",
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    "millstream.spark.range.source",
    "millstream.spark.pipeline.rows",
    "millstream.spark.settlement.sink",
)


def main() -> None:
    """Load, and serve as PySpark's own daemon does."""
    for name in LOADED:
        with suppress(ImportError):  # a release of PySpark that has it elsewhere: the workers load it then
            import_module(name)
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
