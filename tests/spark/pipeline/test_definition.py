"""What is wrong with a pipeline is said when it is made: no Spark, no Java, no server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from millstream.delivery.policy import RetryPolicy
from millstream.errors import ConfigError
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

GROUP = GroupSource("orders", group="billing")
RANGE = RangeSource("orders")
PARTS: dict[str, Any] = {"source": GROUP, "sinks": [Parquet("out")]}
COLUMNS = {"type": "object", "properties": {"_id": {"type": "string"}}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": "orders"}, "source: must be a GroupSource"),
        ({"source": GroupSource("", group="g")}, "source: "),
        ({"source": GroupSource("orders", group="")}, "source: which group"),
        ({"source": GroupSource("orders", group="g", lease=0.1)}, "source: option 'lease'"),
        ({"source": GroupSource("orders", group="g", options={"startingOffsets": "latest"})}, "startingOffsets"),
        ({"source": RangeSource("orders", starting="somewhere")}, "source: option 'startingOffsets'"),
        ({"source": RangeSource("orders", options={"fetchsise": 1})}, "fetchSize"),
        ({"steps": ["upper"]}, "steps: number 1"),
        ({"sinks": []}, "sinks: there is none"),
        ({"sinks": ["out"]}, "sinks: 'out' is not a sink"),
        ({"sinks": [Parquet("")]}, "sinks: Parquet needs the path"),
        ({"sinks": [Parquet("out", partition_by="hour")]}, "partition_by of Parquet is a list"),
        ({"sinks": [StreamSink("out", options={"maxlenn": 1})]}, "sinks: .*maxlen"),
        ({"sinks": [Jdbc("postgres://x", "t")]}, "jdbc:"),
        ({"sinks": [Format("")]}, "name of a format"),
        ({"sinks": [Format("delta", "path", table="t")]}, "not both"),
        ({"schema": int}, "schema: "),
        ({"schema": COLUMNS}, "schema: the column '_id'"),
        ({"schema": COLUMNS, "source": RangeSource("orders", columns="n int")}, "source: columns"),
        ({"retry": 3}, "retry: must be a RetryPolicy"),
        ({"watermark": ("at", "1 hour")}, "watermark: rows of a group"),
        ({"source": RANGE, "watermark": "1 hour"}, "watermark: must be a column"),
        ({"source": RANGE, "output_mode": "replace"}, "output_mode: must be one of"),
        ({"rejects": Parquet("bad")}, "rejects: rows of a group"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_and_named(change: dict[str, Any], words: str) -> None:
    Pipeline(**PARTS)
    with pytest.raises(ConfigError, match=words):
        Pipeline(**PARTS | change)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Rows(3), "a function of a row"),  # type: ignore[arg-type]
        (lambda: Rows(print, adds="a int", gives="b int"), "leave out one"),
        (lambda: Sql("SELECT 1"), r"FROM \{rows\}"),
        (lambda: Require(" ", "why"), "needs a condition"),
        (lambda: Require(3, "why"), "as text"),  # type: ignore[arg-type]
        (lambda: Require("a > 0", "why", is_final="no"), "is_final of Require"),  # type: ignore[arg-type]
        (lambda: Require("a > 0", "why {"), "cannot be read"),
        (lambda: Require("a > 0", "why {}"), "names no column"),
    ],
)
def test_a_step_that_cannot_work_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_pipeline_is_made_without_spark() -> None:
    import subprocess

    code = (
        "import sys; from millstream.spark.pipeline.definition import *; Pipeline(source=GroupSource('a', group='g'), "
        "sinks=[Parquet('x')]); sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_another_address_goes_to_the_source_and_to_streams_that_follow_it() -> None:
    own = StreamSink("out", url="redis://elsewhere")
    found = Pipeline(source=GROUP, sinks=[StreamSink("out"), own, Parquet("x")]).at("redis://there")
    assert found.source.url == "redis://there"
    assert [getattr(sink, "url", None) for sink in found.sinks] == ["redis://there", "redis://elsewhere", None]


def test_passwords_are_in_no_repr() -> None:
    made = Pipeline(source=GroupSource("a", group="g", url="redis://:secret@h"), sinks=[Jdbc("jdbc:x:secret", "t")])
    assert "secret" not in repr(made)


TOML = """
name = "orders"
checkpoint = "state"
trigger = "5 seconds"
schema = "shop_app:Order"

[source]
stream = "orders"
group = "billing"
lease = 20
max_rows = 5000

[retry]
max_retries = 5
backoff = 0.5

[[steps]]
rows = "shop_app:total"
adds = "total bigint"
[[steps]]
sql = "SELECT * FROM {rows}"
[[steps]]
require = "total > 0"
error = "order {order} is for nothing"
is_final = true
[[steps]]
frame = "shop_app:same"

[[sinks]]
parquet = "accepted"
partition_by = ["country"]
[[sinks]]
stream = "out"
"""
APP = """
from dataclasses import dataclass
@dataclass
class Order:
    order: int
    country: str
def total(row): return {"total": 1}
def same(frame): return frame
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shop_app.py").write_text(APP)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shop_app", raising=False)
    return tmp_path


def test_the_common_cases_come_from_toml(app: Path) -> None:
    (app / "pipe.toml").write_text(TOML)
    found = Pipeline.from_toml(app / "pipe.toml")
    assert found.source == GroupSource("orders", group="billing", lease=20, max_rows=5000)
    assert (found.name, found.checkpoint, found.trigger) == ("orders", "state", "5 seconds")
    assert found.retry.max_retries == 5
    assert found.retry.backoff.first == 0.5
    assert [type(step).__name__ for step in found.steps] == ["Rows", "Sql", "Require", "function"]
    assert found.steps[2] == Require("total > 0", "order {order} is for nothing", is_final=True)
    assert found.sinks == [Parquet("accepted", partition_by=["country"]), StreamSink("out")]
    assert found.schema.__name__ == "Order"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('group = "billing"', 'groop = "billing"', "source: there is no 'groop'"),
        ("[[steps]]\nsql", "[[steps]]\nsgl", "steps: there is no 'sgl'"),
        ('error = "order {order} is for nothing"', "", "steps: a step has sql, rows, frame, or require with error"),
        ('parquet = "accepted"', 'parket = "accepted"', "sinks: a sink has parquet"),
        ('"shop_app:total"', '"shop_app:sum"', "has no 'sum'"),
        ('"shop_app:total"', '"total"', "names nothing"),
        ('name = "orders"', 'nane = "orders"', "the file: there is no 'nane'"),
        ("max_retries = 5", "max_retries = -1", "max_retries"),
        ('name = "orders"', "name = ", "is not TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(app: Path, old: str, new: str, words: str) -> None:
    assert old in TOML
    (app / "pipe.toml").write_text(TOML.replace(old, new))
    with pytest.raises(ConfigError, match=words) as caught:
        Pipeline.from_toml(app / "pipe.toml")
    assert "pipe.toml" in str(caught.value)


def test_a_schema_may_stand_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "pipe.toml").write_text(
        '[source]\nstream = "orders"\n[schema]\ntype = "object"\n[schema.properties.n]\ntype = "integer"\n'
        '[[sinks]]\nparquet = "out"\n[rejects]\nparquet = "bad"\n[watermark]\ncolumn = "at"\ndelay = "1 hour"\n'
    )
    found = Pipeline.from_toml(tmp_path / "pipe.toml")
    assert found.source == RangeSource("orders")
    assert found.rejects == Parquet("bad")
    assert found.watermark == ("at", "1 hour")
    assert found.retry == RetryPolicy()


def test_a_back_fill_up_to_now_has_what_was_appended_in_this_millisecond() -> None:
    pytest.importorskip("pyspark")
    from millstream.spark.pipeline.run import moment

    assert moment("now", 1_700_000_000_000) > 1_700_000_000_000  # where a read ends, which it does not read
    assert moment("1s", 1_700_000_000_000) == 1_699_999_999_000
    assert moment(5, 1_700_000_000_000) == 5
