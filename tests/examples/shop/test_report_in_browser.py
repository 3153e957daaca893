"""The report in a real browser: what it shows is what the summary says."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.shop.report import report
from tests.examples.shop.test_report import RIGHT, SAMPLES
from tests.support.browser import Texts, rendered, require_browser

FIGURES = ("sent", "done", "dead", "pending", "refused", "accepted", "redriven", "redelivered", "retried", "revenue")


@pytest.fixture(autouse=True)
def browser() -> str:
    return require_browser()


def test_a_browser_shows_the_figures_and_the_plots(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(report(RIGHT, SAMPLES, {1: 965, 2: 20}))
    shown = Texts(rendered(page))
    figures = {name: str(getattr(RIGHT, name)) for name in FIGURES}
    assert {name: shown.by_id[f"sum-{name}"] for name in FIGURES} == figures
    assert shown.by_id["verdict"] == "It adds up."
    assert shown.tags.count("svg") == 5
