"""Spark's offsets: how far a query has read, stream by stream, as the JSON that Spark keeps. Pure.

    {"v": 1, "streams": {"orders": {"id": "…", "added": 900, "cuts": [["…", 500], ["…", 400]]}},
     "rows": 900, "lag": 100, "lagSeconds": 2.5, "lost": 0}

`cuts` are where the batch that ends here is split, so that a replay splits it in the same places; with each goes the
number of entries up to it, if they were counted. `added` is how many entries the stream had ever had up to here:
with it, entries that were trimmed unseen can be counted. What stands behind `streams` is for people, in
`query.lastProgress`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.errors import ConfigError
from millstream.spark.ids import parse_id, text_of
from millstream.spark.range.reader import Span

VERSION = 1


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a span of a batch ends."""

    upto: int
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """How far one stream has been read."""

    id: int
    added: int | None = None  # entries ever added up to here; None: not known
    cuts: tuple[Cut, ...] = ()  # of the batch that ends here
    floor: int | None = None  # see Span
    is_reset: bool = False  # the batch that ends here began at the stream's start: it is another one of the same name


@dataclass(frozen=True, slots=True)
class Offset:
    """How far all streams have been read."""

    streams: Mapping[str, Position]
    figures: Mapping[str, float] = field(default_factory=dict)


def to_json(offset: Offset) -> dict[str, Any]:
    """As Spark keeps it; the same offset always gives the same text."""
    streams = {name: _position(position) for name, position in sorted(offset.streams.items())}
    return {"v": VERSION, "streams": streams, **offset.figures}


def _position(position: Position) -> dict[str, Any]:
    found: dict[str, Any] = {"id": text_of(position.id), "added": position.added}
    if position.cuts:
        found["cuts"] = [[text_of(cut.upto), cut.count] for cut in position.cuts]
    if position.floor is not None:
        found["floor"] = text_of(position.floor)
    if position.is_reset:
        found["reset"] = True
    return found


def from_json(found: Mapping[str, Any]) -> Offset:
    """Read the offset of a checkpoint. Raises ConfigError if it is not one of ours."""
    if found.get("v") != VERSION or not isinstance(found.get("streams"), dict):
        raise ConfigError(
            "the checkpoint has no offsets of this source: use another checkpointLocation for another source or version"
        )
    streams = {name: _from_position(position) for name, position in found["streams"].items()}
    return Offset(streams, {name: value for name, value in found.items() if name not in ("v", "streams")})


def _from_position(found: Mapping[str, Any]) -> Position:
    cuts = tuple(Cut(parse_id(upto), count) for upto, count in found.get("cuts", ()))
    floor = found.get("floor")
    lowest = None if floor is None else parse_id(floor)
    return Position(parse_id(found["id"]), found["added"], cuts, lowest, found.get("reset", False))


def spans_between(start: Offset, end: Offset) -> list[Span]:
    """Return what a batch reads. The result depends on its two offsets only."""
    found: list[Span] = []
    for stream, position in end.streams.items():
        before = start.streams.get(stream)
        after = 0 if before is None or position.is_reset else before.id
        for cut in position.cuts or (Cut(position.id),):
            if cut.upto > after:
                found.append(Span(stream, after, cut.upto, cut.count, _floor(position.floor, after)))
            after = max(after, cut.upto)
    return found


def _floor(floor: int | None, after: int) -> int | None:
    return None if floor is None else max(floor, after)
