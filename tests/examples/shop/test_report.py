"""The report of a run: one file, its figures those of the summary, and it says so when something does not add up."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import pytest

from examples.shop.figures import Sample, Summary
from examples.shop.report import report

RIGHT = Summary(
    sent_truth=1000,
    again_truth=5,
    malformed_truth=10,
    unknown_truth=1,
    accepted_truth=985,
    revenue_truth=123_456,
    sent=1000,
    refused=5,
    published=995,
    done=985,
    dead=10,
    pending=0,
    redriven=1,
    dead_reasons={"malformed": 10},
    accepted=985,
    accepted_orders=985,
    is_accepted_right=True,
    by_spark=900,
    by_workers=85,
    revenue=123_456,
    is_revenue_right=True,
    redelivered=3,
    twice=1,
    retried=20,
    seconds=12.5,
)
SAMPLES = [
    Sample(at_s=n / 2, published=100 * n, done=90 * n, lag=10 * n, pending=n, released=0, waiting=n // 2, dead=n)
    for n in range(20)
]


class Page(HTMLParser):
    """What is in elements with an id, which tags there are, and what they would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self._id: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.loaded += [value for name, value in attrs if name in ("src", "href") and value]
        self._id = found.get("id") or self._id
        if found.get("id"):
            self.texts[str(found["id"])] = ""

    def handle_data(self, data: str) -> None:
        if self._id is not None:
            self.texts[self._id] += data

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "p", "div"):
            self._id = None


def test_its_figures_are_those_of_the_summary() -> None:
    page = Page(report(RIGHT, SAMPLES, {1: 965, 2: 15, 3: 5}))
    for name in ("sent", "done", "dead", "pending", "refused", "accepted", "redriven", "redelivered", "revenue"):
        assert page.texts[f"sum-{name}"] == str(getattr(RIGHT, name)), name
    assert page.texts["verdict"] == "It adds up."


def test_it_needs_no_script_and_loads_nothing() -> None:
    text = report(RIGHT, SAMPLES, {1: 965, 2: 20})
    page = Page(text)
    assert "script" not in page.tags
    assert page.loaded == []
    assert not re.search(r"url\(|@import|https?:", text)
    assert page.tags.count("svg") == 5


@pytest.mark.parametrize(
    "change",
    [
        {"done": 984},
        {"dead": 11},
        {"pending": 1},
        {"refused": 4},
        {"sent": 999},
        {"published": 994},
        {"accepted": 986},
        {"accepted_orders": 984},
        {"is_accepted_right": False},
        {"revenue": 1},
        {"is_revenue_right": False},
        {"dead_reasons": {"malformed": 9, "retries": 1}},
        {"dead_reasons": {"malformed": 11}},
        {"redriven": 0},
        {"by_workers": 84},
        {"again_truth": 6},
    ],
    ids=str,
)
def test_every_figure_that_is_wrong_is_a_problem(change: dict[str, object]) -> None:
    wrong = dataclasses.replace(RIGHT, **change)  # type: ignore[arg-type]
    assert RIGHT.problems == []
    assert wrong.problems
    assert "does not add up" in Page(report(wrong, SAMPLES, {})).texts["verdict"]


def test_a_run_that_is_too_short_to_draw_has_a_report_all_the_same() -> None:
    page = Page(report(RIGHT, SAMPLES[:1], {}))
    assert page.texts["sum-sent"] == "1000"


def test_texts_from_data_are_escaped() -> None:
    evil = "<script>x</script>\x1b[2J\u202e"
    page = report(dataclasses.replace(RIGHT, dead_reasons={evil: 10}), SAMPLES, {1: 10})
    assert "<script>" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;x&lt;/script&gt;\\x1b[2J\\u202e" in page
