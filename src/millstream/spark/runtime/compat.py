"""What differs between the releases of PySpark that we run on: 4.1, and 4.2 or later.

Before 4.2 Spark asks a Python source for the newest offset without saying where the query is or how much it may have,
so that a trigger cannot be limited there. Everything else is the same.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = [
    "HAS_LIMITS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
]

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS = True
except ImportError:
    HAS_LIMITS = False

    class ReadLimit:  # type: ignore[no-redef]
        """Stands for what this PySpark does not have."""

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """The same."""

    @dataclass
    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """The same."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """The same."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        """The same."""

        max_bytes: int


_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {"timestamp_utc": True}
)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of rows with this one."""
    return to_arrow_schema(schema, **_UTC)
