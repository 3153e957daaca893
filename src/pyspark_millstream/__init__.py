"""Spark looks for packages named `pyspark_…` and finds `format("millstream")` here, so that nobody must register it."""

from millstream.spark.range.source import MillstreamSource as DefaultSource

__all__ = ["DefaultSource"]
