"""A run as one HTML file: no script, nothing loaded from elsewhere. Knows figures, nothing of how they were got.

    report(summary, samples, retries) ──▶ text

Figures of the summary stand in elements with ids (`sum-done`), for people who link to them and for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise

from examples.shop.figures import Sample, Summary
from millstream.printable import printable

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 190, 62, 26, 10
INK, SOFT = "#1f2a37", "#d5dae1"
COLORS = ("#2f6f9f", "#c2571a", "#4c8c4a", "#8a5fb0")

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1f2a37;background:#fbfbfa;margin:0 auto;max-width:1380px;padding:24px}
h1{font-size:24px;margin:0 0 4px}h2{font-size:16px;margin:0 0 8px}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(480px,1fr));gap:18px}
.card{background:#fff;border:1px solid #d5dae1;border-radius:8px;padding:16px}
table{border-collapse:collapse;width:100%}td,th{padding:3px 8px;text-align:left;border-bottom:1px solid #eceff3}
td.n{text-align:right;font-variant-numeric:tabular-nums}svg{width:100%;height:auto}
.verdict{padding:10px 14px;border-radius:8px;margin:14px 0;background:#e5f2e5}.wrong{background:#fbe3dc}
"""


def report(summary: Summary, samples: Sequence[Sample], retries: Mapping[int, int]) -> str:
    """The whole page. `retries`: accepted orders by the delivery that they were accepted with."""
    cards = [
        _card("Throughput", rate_plot(samples)),
        _card("Lag and pending", level_plot(samples, {"not delivered yet": _lag, "pending": _pending})),
        _card(
            "Waiting for a retry, released, dead",
            level_plot(samples, {"waiting for a retry": _waiting, "released": _released, "dead letters": _dead}),
        ),
        _card(
            "Accepted orders by delivery (from the second on)",
            bars({f"delivery {number}": count for number, count in sorted(retries.items()) if number > 1}),
        ),
        _card("Dead letters by reason", bars(summary.dead_reasons)),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Millstream: a run</title>'
        f"<style>{_STYLE}</style></head><body><h1>What became of {summary.sent:,} orders</h1>"
        f"{_verdict(summary)}{_sums(summary)}"
        f'<div class="grid">{"".join(cards)}</div></body></html>'
    )


def shown(text: str) -> str:
    """Return text from data for a page: without markup and without characters that control how it is shown."""
    return escape(printable(text))


def _lag(sample: Sample) -> int:
    return sample.lag


def _pending(sample: Sample) -> int:
    return sample.pending


def _waiting(sample: Sample) -> int:
    return sample.waiting


def _released(sample: Sample) -> int:
    return sample.released


def _dead(sample: Sample) -> int:
    return sample.dead


def _verdict(summary: Summary) -> str:
    problems = summary.problems
    if not problems:
        return '<p class="verdict" id="verdict">It adds up.</p>'
    lines = "".join(f"<li>{shown(text)}</li>" for text in problems)
    return f'<div class="verdict wrong" id="verdict">It does not add up:<ul>{lines}</ul></div>'


def _sums(summary: Summary) -> str:
    rows = [
        ("sent", summary.sent, "orders that the producer sent"),
        ("done", summary.done, "settled as done, by the server's audit"),
        ("dead", summary.dead, "dead letters that are left"),
        ("pending", summary.pending, "not settled yet"),
        ("refused", summary.refused, "duplicates: sent twice with the same token, refused by the server"),
        ("accepted", summary.accepted, "rows in Parquet, each order once"),
        ("by-spark", summary.by_spark, "of these: accepted by the Spark pipeline"),
        ("by-workers", summary.by_workers, "of these: accepted by the workers"),
        ("redriven", summary.redriven, "dead letters sent back after the product table was completed"),
        ("redelivered", summary.redelivered, "in the hands of the killed worker, recovered when its lease ran out"),
        ("twice", summary.twice, "accepted by somebody who lost it before it was settled, and again: left out"),
        ("retried", summary.retried, "accepted with a later delivery than the first"),
        ("revenue", summary.revenue, "cents, the sum of the windowed table"),
    ]
    body = "".join(
        f'<tr><td>{name.replace("-", " ")}</td><td class="n" id="sum-{name}">{value}</td><td>{shown(meaning)}</td></tr>'
        for name, value, meaning in rows
    )
    return (
        '<div class="card"><h2>Summary</h2><p>sent = done + dead + pending + duplicates: '
        f"{summary.sent} = {summary.done} + {summary.dead} + {summary.pending} + {summary.refused}; "
        f"{summary.seconds:.0f} seconds</p><table>{body}</table></div><p></p>"
    )


def _card(title: str, drawing: str) -> str:
    return f'<div class="card"><h2>{shown(title)}</h2>{drawing}</div>'


# Plots


def rate_plot(samples: Sequence[Sample]) -> str:
    """Entries a second, published and done."""
    return _lines(
        samples,
        {
            "published a second": _rates(samples, lambda each: each.published),
            "done a second": _rates(samples, lambda each: each.done),
        },
    )


def level_plot(samples: Sequence[Sample], levels: Mapping[str, Callable[[Sample], int]]) -> str:
    """Figures as they were at each look."""
    return _lines(samples, {name: [float(level(each)) for each in samples] for name, level in levels.items()})


def _rates(samples: Sequence[Sample], count: Callable[[Sample], int]) -> list[float]:
    rates = [0.0] * min(1, len(samples))
    for before, after in pairwise(samples):
        rates.append(max(0, count(after) - count(before)) / max(0.001, after.at_s - before.at_s))
    return rates


def _lines(samples: Sequence[Sample], series: Mapping[str, Sequence[float]]) -> str:
    if len(samples) < 2:
        return "<p>too short a run to draw</p>"
    start, end = samples[0].at_s, samples[-1].at_s
    most = max((value for values in series.values() for value in values), default=0.0) or 1.0
    places = [LEFT + (each.at_s - start) / max(0.001, end - start) * (WIDTH - LEFT - 10) for each in samples]
    drawn = [_axes(most, start, end)]
    for color, (name, values) in zip(COLORS, series.items(), strict=False):
        points = " ".join(f"{x:.1f},{_height(value, most):.1f}" for x, value in zip(places, values, strict=True))
        drawn.append(
            f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{points}">'
            f"<title>{shown(name)}</title></polyline>"
        )
    return _svg("".join(drawn), HEIGHT) + _legend(list(series))


def _height(value: float, most: float) -> float:
    return HEIGHT - BOTTOM - value / most * (HEIGHT - BOTTOM - TOP)


def _axes(most: float, start: float, end: float) -> str:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = _height(most * share, most)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="{SOFT}"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{most * share:,.0f}</text>'
        )
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        x = LEFT + share * (WIDTH - LEFT - 10)
        second = start + share * (end - start)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{second:.0f} s</text>')
    return "".join(parts)


def _legend(names: Sequence[str]) -> str:
    return (
        "<p>"
        + " &nbsp; ".join(
            f'<span style="color:{color}">&#9632;</span> {shown(name)}'
            for color, name in zip(COLORS, names, strict=False)
        )
        + "</p>"
    )


def bars(values: Mapping[str, int]) -> str:
    """A bar each, with its number."""
    if not values:
        return "<p>none</p>"
    most = max(values.values()) or 1
    rows = []
    for place, (name, value) in enumerate(values.items()):
        y, width = place * 30 + 8, value / most * (WIDTH - 260)
        rows.append(
            f'<text x="0" y="{y + 14}">{shown(name)}</text>'
            f'<rect x="130" y="{y}" width="{width:.1f}" height="18" fill="{COLORS[place % len(COLORS)]}"/>'
            f'<text x="{138 + width:.1f}" y="{y + 14}">{value:,}</text>'
        )
    return _svg("".join(rows), 30 * len(values) + 10)


def _svg(body: str, height: int) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" font-family="system-ui,sans-serif" font-size="12" fill="{INK}" '
        f'role="img">{body}</svg>'
    )
