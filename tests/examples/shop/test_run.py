"""A run of the demo at a twentieth of its size: sums, Parquet files and report against the generator's truth."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from examples.shop.events import Kind, truth
from tests.examples.shop.conftest import HAS_SPARK, SEED, SIZE, rows, summary
from tests.examples.shop.test_report_in_browser import FIGURES
from tests.support.browser import Texts, rendered, require_browser

pytestmark = [pytest.mark.timeout(1800), pytest.mark.skipif(not HAS_SPARK, reason="pyspark is not installed")]


def test_what_it_sends_is_done_dead_or_a_duplicate(finished: tuple[Path, str]) -> None:
    found, made = summary(finished[0]), truth(SIZE, SEED)
    assert found["sent"] == SIZE == found["done"] + found["dead"] + found["pending"] + found["refused"]
    assert found["pending"] == 0
    assert found["refused"] == made.again > 0
    assert found["dead_reasons"] == {"malformed": made.kinds[Kind.MALFORMED]}
    assert found["redriven"] >= made.kinds[Kind.UNKNOWN] > 0
    assert found["retried"] >= made.kinds[Kind.FLAKY] > 0
    assert found["by_spark"] > 0
    assert found["by_workers"] > 0
    assert found["redelivered"] > 0


def test_the_parquet_files_hold_what_the_generator_made(finished: tuple[Path, str]) -> None:
    found, made = rows(finished[0]), truth(SIZE, SEED)
    assert sorted(int(str(row["order"])) for row in found) == sorted(made.accepted)
    revenue: Counter[str] = Counter()
    for row in found:
        at = str(row["at"])
        assert row["hour"] == f"{at[:10]}-{at[11:13]}"
        assert row["title"]
        revenue[at[:13]] += int(str(row["quantity"])) * int(str(row["price"]))
    assert revenue == made.revenue


def test_it_says_where_to_go_on(finished: tuple[Path, str]) -> None:
    directory, said = finished
    assert "it adds up" in said
    assert str(directory / "report.html") in said
    commands = said.split("to go on:")[1].strip().splitlines()
    assert [line.split("millstream ")[1].split()[0] for line in commands] == ["serve", "dead", "pipeline"]


def test_a_browser_shows_its_summary_in_the_report(finished: tuple[Path, str]) -> None:
    require_browser()
    found = summary(finished[0])
    shown = Texts(rendered(finished[0] / "report.html"))
    assert {name: shown.by_id[f"sum-{name}"] for name in FIGURES} == {name: str(found[name]) for name in FIGURES}
    assert shown.by_id["verdict"] == "It adds up."
