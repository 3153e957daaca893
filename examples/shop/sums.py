"""Counts what came of a run, each figure at its own place: see `figures`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from examples.shop.events import Kind, Truth
from examples.shop.figures import Summary
from examples.shop.orders import GROUP, STREAM
from examples.shop.pipeline import WORKERS
from examples.shop.producer import Progress
from examples.shop.state import State
from millstream import Stream


def summary_of(
    url: str, directory: Path, state: State, made: Truth, twice: int, seconds: float
) -> tuple[Summary, dict[int, int]]:
    """The summary, and accepted orders by the delivery that they were accepted with."""
    progress = Progress.read(directory / "producer.json")
    with Stream[Any](STREAM, url, group=GROUP) as stream:
        audit = stream.audit()
        reasons = Counter(letter.reason for letter in stream.dead.list())
    rows = accepted_rows(directory)
    by_workers, deliveries = rows["batch"].count(WORKERS), Counter(rows["_delivery_count"])
    hours = revenue_by_hour(directory)
    summary = Summary(
        sent_truth=made.sent,
        again_truth=made.again,
        malformed_truth=made.kinds[Kind.MALFORMED],
        unknown_truth=made.kinds[Kind.UNKNOWN],
        accepted_truth=len(made.accepted),
        revenue_truth=sum(made.revenue.values()),
        sent=progress.sent,
        refused=progress.refused,
        published=audit.published or 0,
        done=audit.done,
        dead=audit.dead,
        pending=audit.pending + audit.undelivered + audit.delayed,
        redriven=audit.redriven,
        dead_reasons=dict(sorted(reasons.items())),
        accepted=len(rows["order"]),
        accepted_orders=len(set(rows["order"])),
        is_accepted_right=are_right(rows, made),
        by_spark=len(rows["order"]) - by_workers,
        by_workers=by_workers,
        revenue=sum(hours.values()),
        is_revenue_right=hours == made.revenue,
        redelivered=state.redelivered,
        twice=twice,
        retried=sum(count for number, count in deliveries.items() if number > 1),
        seconds=seconds,
    )
    return summary, dict(deliveries)


def accepted_rows(directory: Path) -> dict[str, list[Any]]:
    """The accepted orders, from the Parquet files themselves and without Spark."""
    files = ds.dataset(directory / "accepted", format="parquet", partitioning="hive")
    columns = ["order", "batch", "_delivery_count", "quantity", "price", "at"]
    found: dict[str, list[Any]] = files.to_table(columns=columns).to_pydict()
    return found


def are_right(rows: dict[str, list[Any]], made: Truth) -> bool:
    """Whether rows are the orders that were made, with what they cost."""
    revenue: Counter[str] = Counter()
    for quantity, price, at in zip(rows["quantity"], rows["price"], rows["at"], strict=True):
        revenue[at[:13]] += quantity * price
    return set(rows["order"]) == made.accepted and revenue == made.revenue


def revenue_by_hour(directory: Path) -> Counter[str]:
    """Cents by hour, from the windowed table: of each window the last update counts."""
    latest: dict[tuple[str, str], int] = {}
    for update in sorted((directory / "revenue").iterdir()):
        for row in ds.dataset(update, format="parquet").to_table().to_pylist():
            latest[(row["hour"].strftime("%Y-%m-%dT%H"), row["country"])] = row["revenue"]
    found: Counter[str] = Counter()
    for (hour, _), cents in latest.items():
        found[hour] += cents
    return found


def write_json(summary: Summary, path: Path) -> None:
    path.write_text(json.dumps(summary.as_json(), indent=1))
