"""Streams in Spark: `register(spark)`, or nothing where the package is installed; `session()` for a desk.

    spark = millstream.spark.session()
    spark.readStream.format("millstream").option("url", …).option("stream", "orders").load()

Importing this brings in neither Spark nor Java: that happens with the first call.
"""

from typing import Any

from millstream.spark.session import register, session

__all__ = ["register", "session", "settle"]


def settle(df: Any, **options: object) -> Any:
    """A writer that settles the rows of a frame: `.start()` it if the frame is streaming, `.save()` it if not."""
    from millstream.spark.settle_sink import settle as writer

    return writer(df, **options)
