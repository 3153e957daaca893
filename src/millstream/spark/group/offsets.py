"""What a batch in group mode holds, as the JSON that Spark keeps, and how it is split. Pure.

    {"v": 1, "token": "5f0c…", "batch": 7, "parts": 2, "spans": {"orders": [["1-0", "9-0", 9]]},
     "picked": {"orders": [["3-0", 2, 31000]]}, "rows": 10, "lag": 0, …}

A span is what one read took: entries that follow each other, each delivered for the first time. Picked are those that
were delivered before: retries, released ones, what others left behind, each with its deliveries and how long it had
been idle. The names of the batch's consumer follow from `token` and `batch`. What stands behind `picked` is for people.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from millstream.errors import ConfigError
from millstream.spark.ids import parse_id, text_of
from millstream.spark.range.reader import Span
from millstream.spark.wire.socket import Address

VERSION = 1


@dataclass(frozen=True, slots=True)
class Range:
    """Entries that follow each other, from `first` to `last`."""

    first: int
    last: int
    count: int


@dataclass(frozen=True, slots=True)
class Picked:
    """An entry that was delivered before."""

    id: int
    deliveries: int
    idle_ms: int | None = None  # None: not known any more


@dataclass(frozen=True, slots=True)
class HeldBatch:
    """What a batch has of one stream."""

    ranges: tuple[Range, ...] = ()
    picked: tuple[Picked, ...] = ()

    @property
    def rows(self) -> int:
        return sum(each.count for each in self.ranges) + len(self.picked)

    @property
    def first(self) -> int:
        """The lowest id; there must be one."""
        return min([each.first for each in self.ranges] + [each.id for each in self.picked])

    def holds(self, entry_id: int) -> bool:
        """Whether an id is of this batch."""
        at = bisect_right(self.ranges, entry_id, key=lambda each: each.first) - 1
        return (at >= 0 and entry_id <= self.ranges[at].last) or any(each.id == entry_id for each in self.picked)


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A batch: everything that is needed to run it, again if need be."""

    token: str  # of the query
    batch: int = 0  # 0: before the first
    parts: int = 1
    streams: Mapping[str, HeldBatch] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(held.rows for held in self.streams.values())


def consumer_of(prefix: str, token: str, batch: int) -> bytes:
    """Return the consumer whose pending list is the manifest of a batch."""
    return f"{prefix}-{token}-{batch}".encode()


def to_json(offset: GroupOffset) -> dict[str, Any]:
    """As Spark keeps it; the same offset always gives the same text."""
    streams = sorted((name, held) for name, held in offset.streams.items() if held.rows)
    spans = {
        name: [[text_of(one.first), text_of(one.last), one.count] for one in held.ranges] for name, held in streams
    }
    picked = {name: [[text_of(one.id), one.deliveries, one.idle_ms] for one in held.picked] for name, held in streams}
    return {
        "v": VERSION,
        "token": offset.token,
        "batch": offset.batch,
        "parts": offset.parts,
        "spans": spans,
        "picked": picked,
        **offset.figures,
    }


def from_json(found: Mapping[str, Any]) -> GroupOffset:
    """Read the batch of a checkpoint. Raises ConfigError if it is not one of ours."""
    if found.get("v") != VERSION or "token" not in found or "batch" not in found:
        raise ConfigError(
            "the checkpoint is not one of group mode: use another checkpointLocation when option 'group' is added or "
            "taken away"
        )
    streams = {
        name: HeldBatch(
            tuple(Range(parse_id(first), parse_id(last), count) for first, last, count in ranges),
            tuple(Picked(parse_id(entry_id), deliveries, idle) for entry_id, deliveries, idle in found["picked"][name]),
        )
        for name, ranges in found["spans"].items()
    }
    known = ("v", "token", "batch", "parts", "spans", "picked")
    figures = {name: value for name, value in found.items() if name not in known}
    return GroupOffset(found["token"], found["batch"], found["parts"], streams, figures)


@dataclass(frozen=True, slots=True)
class OffsetPart:
    """What one task reads."""

    stream: str
    consumer: str
    spans: tuple[Span, ...] = ()
    picked: tuple[Picked, ...] = ()
    address: Address | None = None  # where the stream was when the batch was planned

    @property
    def rows(self) -> int:
        return sum(span.count or 0 for span in self.spans) + len(self.picked)


def parts_of(offset: GroupOffset, prefix: str) -> list[OffsetPart]:
    """Split a batch into about as many parts as it names. The result depends on the offset only."""
    most = max(1, -(-offset.rows // max(1, offset.parts)))
    consumer = consumer_of(prefix, offset.token, offset.batch).decode()
    return [
        part for name, held in sorted(offset.streams.items()) for part in _split(OffsetPart(name, consumer), held, most)
    ]


def _split(empty: OffsetPart, held: HeldBatch, most: int) -> Iterator[OffsetPart]:
    part = empty
    for start in range(0, len(held.picked), most):
        if part.rows:
            yield part
        part = replace(empty, picked=held.picked[start : start + most])
    for each in held.ranges:
        if part.rows and part.rows + each.count > most + most // 8:  # a little more is better than a small last part
            yield part
            part = empty
        span = Span(empty.stream, each.first - 1, each.last, each.count)
        part = replace(part, spans=(*part.spans, span))
    if part.rows:
        yield part
