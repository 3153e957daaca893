"""Pipelines from TOML, for the cases that need no program of their own, or only functions of one.

    name = "orders"
    checkpoint = "checkpoint"
    schema = "app:Order"                  # or a table [schema] that is a JSON Schema

    [source]
    stream = "orders"
    group = "billing"                     # without a group: a range

    [[steps]]
    sql = "SELECT *, quantity * price AS total FROM {rows}"
    [[steps]]
    rows = "app:charge"                   # a function of a row
    adds = "paid double"
    [[steps]]
    require = "paid > 0"                  # in SQL; is_final = true: no second try
    error = "order {order} is not paid"
    [[steps]]
    frame = "app:enrich"                  # a function of a DataFrame

    [[sinks]]
    parquet = "accepted"
    partition_by = ["country"]

Every name that is not known is refused with those that are.
"""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from millstream.delivery.policy import Backoff, RetryPolicy
from millstream.errors import ConfigError
from millstream.spark.pipeline.sinks import Format, Jdbc, Parquet, Sink, StreamSink
from millstream.spark.pipeline.sources import GroupSource, RangeSource, Source
from millstream.spark.pipeline.steps import Require, Rows, Sql

P = TypeVar("P")
Table = Mapping[str, Any]
PLAIN = ("payload", "output_mode", "trigger", "checkpoint", "name")
TOP = (*PLAIN, "schema", "source", "steps", "sinks", "retry", "rejects", "watermark")


def pipeline_from(make: Callable[..., P], path: str | os.PathLike[str]) -> P:
    """Return the pipeline that a file describes."""
    file = Path(path)
    try:
        with file.open("rb") as opened:
            found = tomllib.load(opened)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error
    try:
        return make(**_parts(found, file.parent))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def _parts(found: Table, where: Path) -> dict[str, Any]:
    _known(found, TOP, "the file")
    if "source" not in found:
        raise ConfigError("source: there is no table [source]")
    parts: dict[str, Any] = {name: found[name] for name in PLAIN if name in found}
    parts["source"] = source_of(found["source"])
    parts["steps"] = [_step(step, where) for step in found.get("steps", [])]
    parts["sinks"] = [_sink(sink) for sink in found.get("sinks", [])]
    if "schema" in found:
        schema = found["schema"]
        parts["schema"] = imported(schema, where) if isinstance(schema, str) else schema
    if "retry" in found:
        parts["retry"] = retry_of(found["retry"])
    if "rejects" in found:
        parts["rejects"] = _sink(found["rejects"])
    if "watermark" in found:
        mark = _known(found["watermark"], ("column", "delay"), "watermark")
        parts["watermark"] = (mark.get("column", ""), mark.get("delay", ""))
    return parts


def source_of(table: Table) -> Source:
    """Return the source of a table."""
    kind = GroupSource if "group" in table else RangeSource
    _known(table, tuple(kind.__dataclass_fields__), "source")
    if "stream" not in table:
        raise ConfigError("source: stream is missing")
    return kind(**table)


def retry_of(table: Table) -> RetryPolicy:
    """Return the retry policy of a table."""
    _known(table, ("max_retries", "backoff"), "retry")
    backoff = table.get("backoff", {})
    given: dict[str, Any] = {"first": backoff} if isinstance(backoff, int | float) else dict(backoff)
    _known(given, tuple(Backoff.__dataclass_fields__), "retry.backoff")
    return RetryPolicy(max_retries=table.get("max_retries", 3), backoff=Backoff(**given))


def _step(table: Table, where: Path) -> Any:
    _known(table, ("sql", "rows", "require", "frame", "adds", "gives", "error", "is_final"), "steps")
    match table:
        case {"sql": str() as query}:
            return Sql(query)
        case {"rows": str() as target}:
            return Rows(imported(target, where), adds=table.get("adds"), gives=table.get("gives"))
        case {"require": str() as condition, "error": str() as error}:
            return Require(condition, error, is_final=table.get("is_final", False))
        case {"frame": str() as target}:
            return imported(target, where)
    raise ConfigError("steps: a step has sql, rows, frame, or require with error")


def _sink(table: Table) -> Sink:
    rest = {name: value for name, value in table.items() if name not in ("parquet", "format", "stream", "jdbc")}
    match table:
        case {"parquet": path}:
            _known(rest, ("partition_by", "options"), "sinks")
            return Parquet(path, **rest)
        case {"format": name}:
            _known(rest, ("path", "table", "partition_by", "options"), "sinks")
            return Format(name, **rest)
        case {"stream": name}:
            _known(rest, ("url", "options"), "sinks")
            return StreamSink(name, **rest)
        case {"jdbc": url}:
            _known(rest, ("table", "options"), "sinks")
            return Jdbc(url, rest.pop("table", ""), **rest)
    raise ConfigError("sinks: a sink has parquet, format, stream or jdbc")


def _known(table: Any, names: tuple[str, ...], what: str) -> Table:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{what}: must be a table, not {table!r}")
    unknown = sorted(set(table) - set(names))
    if unknown:
        raise ConfigError(f"{what}: there is no {unknown[0]!r}; there are {', '.join(names)}")
    return table


def imported(target: str, where: Path) -> Any:
    """Load MODULE:NAME. Modules are also searched beside the file."""
    module_name, mark, name = target.partition(":")
    if not mark or not module_name or not name:
        raise ConfigError(f"{target!r} names nothing: MODULE:NAME, such as app:charge")
    if (here := str(where.absolute())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # found, but something that it imports is not
        raise ConfigError(f"there is no module {module_name!r} to import from {here}") from error
    if not hasattr(module, name):
        raise ConfigError(f"{module_name!r} has no {name!r}")
    return getattr(module, name)
