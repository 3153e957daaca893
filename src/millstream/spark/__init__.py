"""Streams in Spark: `register(spark)`, or nothing where the package is installed; `session()` for a desk.

    spark = millstream.spark.session()
    spark.readStream.format("millstream").option("url", …).option("stream", "orders").load()

Importing this brings in neither Spark nor Java: that happens with the first call.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millstream.spark.runtime.session import register, session

if TYPE_CHECKING:
    from millstream.spark.pipeline.definition import (
        Format,
        GroupSource,
        Jdbc,
        Parquet,
        Pipeline,
        RangeSource,
        Require,
        Rows,
        Sql,
        StreamSink,
    )

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
    "register",
    "session",
    "settle",
]


def __getattr__(name: str) -> Any:
    """Import names of pipelines on first use: Spark's workers import this package and do not need them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("millstream.spark.pipeline.definition"), name)


def settle(df: Any, **options: object) -> Any:
    """Return a writer that settles the rows of a frame: call `.start()` for a streaming frame, `.save()` otherwise."""
    from millstream.spark.settlement.sink import settle as writer

    return writer(df, **options)
