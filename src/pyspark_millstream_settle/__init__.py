"""Spark looks for packages named `pyspark_…` and finds `format("millstream.settle")` here."""

from millstream.spark.settlement.sink import SettleSource as DefaultSource

__all__ = ["DefaultSource"]
