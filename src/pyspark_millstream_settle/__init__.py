"""Spark looks for packages named `pyspark_…` and finds `format("millstream.settle")` here."""

from millstream.spark.settle_sink import SettleSource as DefaultSource

__all__ = ["DefaultSource"]
