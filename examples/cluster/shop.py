"""The pipeline of the deployment: orders of a sharded set of streams, as members of one group, into Parquet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream import Backoff, Reject, RetryPolicy
from millstream.spark import GroupSource, Parquet, Pipeline, Rows

STREAMS = 6
SET = f"orders:{{0..{STREAMS - 1}}}"  # these names fall evenly on three shards; docs/scaling.md shows how to see it
NAMES = tuple(f"orders:{number}" for number in range(STREAMS))
GROUP = "billing"


@dataclass
class Order:
    """What a payload looks like."""

    order: int
    quantity: int
    price: float


def checked(row: Any) -> dict[str, Any]:
    """The one rule of this shop; an order that breaks it becomes a dead letter."""
    if row.quantity < 1:
        raise Reject("quantity is below 1")
    return {"total": row.quantity * row.price}


def pipeline(place: Path, max_rows: int) -> Pipeline:
    """Orders into `accepted` below a directory, which all processes of the cluster must see."""
    return Pipeline(
        source=GroupSource(SET, group=GROUP, max_rows=max_rows, options={"retain": "all", "minPartitions": STREAMS}),
        schema=Order,
        steps=[Rows(checked, adds="total double")],
        sinks=[Parquet(place / "accepted")],
        retry=RetryPolicy(max_retries=3, backoff=Backoff(first=1.0)),
        checkpoint=place / "checkpoint",
        name="orders",
    )
