"""Filters of a query that narrow what is read from the server. Pure.

Nothing is taken away from Spark: it applies every filter again to the rows. Here they only may not cut off a row that
Spark would keep. Ids need care, as Spark compares them as text: `9-0` is above `10-0` for it. So bounds on ids are
used only where all of a stream's ids and the bound have 13 digits before the dash, as all times from 2001 to 2286
have, and only to the millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from millstream.errors import ConfigError
from millstream.spark.ids import first_of, ms_of, parse_id
from millstream.spark.range.splits import Window
from millstream.spark.wire.metadata import StreamState

_DIGITS = 13
LOWEST, HIGHEST = first_of(10 ** (_DIGITS - 1)), first_of(10**_DIGITS)


EVERYTHING = Window()


@dataclass(frozen=True, slots=True)
class IdComparison:
    """One filter: a column, one of = > >= < <= in, and what it is compared with."""

    column: str
    operator: str
    value: Any


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Two windows: one that always holds, one for streams whose ids all have 13 digits."""

    always: Window = EVERYTHING
    regular: Window = EVERYTHING

    def of(self, state: StreamState) -> Window:
        is_regular = state.first is not None and state.first >= LOWEST and state.generated < HIGHEST
        return both(self.always, self.regular) if is_regular else self.always


def narrow(comparisons: Iterable[IdComparison]) -> Narrowed:
    """Return the bounds that these filters allow."""
    found = Narrowed()
    for each in comparisons:
        match each.column:
            case "stream":
                found = replace(found, always=both(found.always, _streams(each)))
            case "timestamp":
                found = replace(found, always=both(found.always, _times(each)))
            case "id":
                always, regular = _ids(each)
                found = Narrowed(both(found.always, always), both(found.regular, regular))
    return found


def both(one: Window, other: Window) -> Window:
    """Return the intersection of two bounds."""
    named = [streams for streams in (one.streams, other.streams) if streams is not None]
    streams = frozenset.intersection(*named) if named else None
    highs = [high for high in (one.high, other.high) if high is not None]
    return Window(streams, max(one.low, other.low), min(highs) if highs else None)


def _streams(each: IdComparison) -> Window:
    if each.operator == "=":
        return Window(frozenset([each.value]))
    return Window(frozenset(each.value)) if each.operator == "in" else Window()


def _times(each: IdComparison) -> Window:
    if not isinstance(each.value, datetime):
        return Window()
    moment = each.value if each.value.tzinfo else each.value.replace(tzinfo=UTC)
    ms = int(moment.timestamp() * 1000 // 1)
    return _window(each.operator, ms)


def _window(operator: str, ms: int) -> Window:
    """Ids from or up to a millisecond, that one included: a bound may lie inside of it."""
    low, high = max(0, first_of(ms)), max(0, first_of(ms + 1))
    if operator in (">", ">="):
        return Window(low=low)
    if operator in ("<", "<="):
        return Window(high=high)
    return Window(low=low, high=high) if operator == "=" else Window()


def _ids(each: IdComparison) -> tuple[Window, Window]:
    try:
        ids = [parse_id(text) for text in (each.value if each.operator == "in" else [each.value])]
    except (ConfigError, AttributeError, TypeError):
        return Window(), Window()
    if each.operator in ("=", "in"):
        return (Window(low=min(ids), high=max(ids) + 1) if ids else Window()), Window()
    if not LOWEST <= ids[0] < HIGHEST:
        return Window(), Window()
    return Window(), _window(each.operator, ms_of(ids[0]))
