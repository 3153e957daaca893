"""What a run is told with: samples taken on the way, and the figures at its end. Values only.

Every figure of `Summary` is counted at a place of its own: by the producer, by the server's audit, in the dead letters,
in the Parquet files, by the generator. `problems` compares them; nothing here is computed from the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look while it runs."""

    at_s: float  # since the start of this run
    published: int
    done: int
    lag: int  # published, not delivered to anybody yet
    pending: int
    released: int  # of the pending ones: in nobody's hands
    waiting: int  # of the pending ones: for their retry
    dead: int
    phase: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Where everything went."""

    # By the generator
    sent_truth: int
    again_truth: int  # sent a second time
    malformed_truth: int
    unknown_truth: int
    accepted_truth: int
    revenue_truth: int  # cents

    # By the producer
    sent: int
    refused: int  # answered with the id of the first one

    # By the server's audit of the stream and group
    published: int
    done: int
    dead: int
    pending: int  # undelivered and delayed ones included
    redriven: int

    # In the dead letters
    dead_reasons: Mapping[str, int] = field(default_factory=dict)

    # In the Parquet files
    accepted: int  # rows
    accepted_orders: int  # different orders
    is_accepted_right: bool  # whether they are the generator's, order by order
    by_spark: int
    by_workers: int
    revenue: int  # cents, of the windowed table
    is_revenue_right: bool  # hour by hour

    # On the way
    redelivered: int  # left by the killed worker and taken over by others
    twice: int  # orders that a worker had accepted before it lost them, accepted again by Spark and left out
    retried: int  # entries that were tried more than once
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @property
    def problems(self) -> list[str]:
        """What does not add up, one sentence each."""
        checks = [
            (
                self.sent == self.done + self.dead + self.pending + self.refused,
                f"sent {self.sent} is not done {self.done} + dead {self.dead} + pending {self.pending} + duplicates "
                f"{self.refused}",
            ),
            (self.sent == self.sent_truth, f"{self.sent} were sent, {self.sent_truth} were made"),
            (self.refused == self.again_truth, f"{self.refused} were refused, {self.again_truth} were made twice"),
            (
                self.published == self.sent - self.refused,
                f"the server counts {self.published} published, the producer {self.sent - self.refused}",
            ),
            (self.pending == 0, f"{self.pending} are still pending"),
            (
                sum(self.dead_reasons.values()) == self.dead,
                f"the audit counts {self.dead} dead letters, the list has {sum(self.dead_reasons.values())}",
            ),
            (
                self.dead_reasons.get("malformed", 0) == self.malformed_truth,
                f"{self.dead_reasons.get('malformed', 0)} dead letters are malformed, not {self.malformed_truth}",
            ),
            (
                self.redriven >= self.unknown_truth,  # more where a last try was lost with the one who had it
                f"{self.redriven} were redriven, {self.unknown_truth} had an unknown product",
            ),
            (self.dead == self.malformed_truth, f"{self.dead} are dead, {self.malformed_truth} are malformed"),
            (
                self.accepted == self.accepted_orders,
                f"{self.accepted} rows in Parquet are {self.accepted_orders} different orders",
            ),
            (self.done == self.accepted, f"{self.done} are done, {self.accepted} are in Parquet"),
            (self.is_accepted_right, f"the orders in Parquet are not the {self.accepted_truth} that were made"),
            (
                self.accepted == self.by_spark + self.by_workers,
                f"{self.accepted} accepted is not {self.by_spark} by Spark + {self.by_workers} by workers",
            ),
            (
                self.is_revenue_right and self.revenue == self.revenue_truth,
                f"revenue is {self.revenue} cents, and should be {self.revenue_truth}, hour by hour",
            ),
        ]
        return [text for holds, text in checks if not holds]
