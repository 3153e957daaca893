"""Which entries a batch holds and how it is split: decisions, from what the server said. Asks nothing itself.

    positions, states ── missed ──▶ where to go on ── shares of the limit ──▶ targets ── cuts ──▶ the next offset

Entries that went away unread are counted by what the stream knows of itself: entries ever added, minus those that we
had seen the end of, minus those that are still there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from millstream.errors import ConfigError
from millstream.spark.ids import ms_of, text_of
from millstream.spark.options import EARLIEST, LATEST, Bounds
from millstream.spark.range.offsets import Cut, Offset, Position
from millstream.spark.range.reader import Span
from millstream.spark.runtime.errors import EntriesLost
from millstream.spark.wire.metadata import StreamState

ROWS_A_PARTITION = 40_000  # fewer are not worth another task


@dataclass(frozen=True, slots=True)
class Missed:
    """Where a stream goes on, and what of it is gone."""

    position: Position
    lost: int = 0
    is_reset: bool = False


def first_position(bound: str | int, state: StreamState | None) -> Position:
    """Where to begin, by the option and what the stream holds now."""
    if state is None:
        return Position(0, 0)
    behind = None if state.added is None else state.added - state.length
    if bound == LATEST:
        return Position(state.generated, state.added)
    if bound == EARLIEST or (isinstance(bound, int) and bound <= (state.first or 0)):
        return Position(0, behind)
    assert isinstance(bound, int)
    return Position(bound - 1, state.added if bound > state.generated else None)


def after_loss(stream: str, position: Position, state: StreamState | None, *, fail: bool) -> Missed:
    """Whether entries behind the position are gone. `fail`: then raise EntriesLost, else count them."""
    where = f"behind {text_of(position.id)}"
    if state is None:
        if position.id and fail:
            raise EntriesLost(stream, "all unread", f"{where}: the stream was deleted")
        return Missed(position)
    is_another = state.generated < position.id or (state.added or 0) < (position.added or 0)
    if is_another:
        if fail:
            raise EntriesLost(stream, "all unread", f"{where}: the stream was deleted and made again")
        restart = state.generated < position.id
        return Missed(Position(0 if restart else position.id, 0), is_reset=restart)
    lost = count_lost(position, state)
    if lost and fail:
        note = ", or deleted" if state.deleted > position.id else ""
        raise EntriesLost(stream, lost, where + note)
    added = None if position.added is None else position.added + lost
    return Missed(Position(position.id, added), lost)


def count_lost(position: Position, state: StreamState) -> int:
    """Entries behind the position that are gone."""
    if position.added is None or state.added is None:
        return 0
    if state.first is not None and state.first <= position.id:
        return 0  # what is trimmed is trimmed from the start
    return max(0, state.added - position.added - state.length)


def available(position: Position, state: StreamState | None) -> int:
    """Entries behind a position; more than there are if some in the middle were deleted, or if nobody counts."""
    if state is None or state.last is None or state.last <= position.id:
        return 0
    if position.added is None or state.added is None:
        return state.length
    return max(1, min(state.length, state.added - position.added))


def shares(total: int | None, waiting: Mapping[str, int]) -> dict[str, int | None]:
    """Divide a limit among streams by their waiting entries. Each stream with entries gets at least one."""
    everything = sum(waiting.values())
    if total is None or everything <= total:
        return {stream: None for stream, rows in waiting.items() if rows}
    found: dict[str, int | None] = {}
    left, rest = total, everything
    for stream, rows in sorted(waiting.items()):
        share = min(rows, max(1, left * rows // rest)) if rows and left > 0 else 0
        if share:
            found[stream] = share
        left, rest = left - share, rest - rows
    return found


def parts_for(rows: int, least: int | None, cores: int | None = None) -> int:
    """Into how many spans so many rows are split."""
    if least is not None:
        return max(1, min(least, rows))  # a partition without rows costs a task for nothing
    return max(1, min(rows // ROWS_A_PARTITION, max(2, cores or os.cpu_count() or 2)))


def parts_of(rows: int, everything: int, parts: int) -> int:
    """One stream's part of them."""
    return max(1, round(parts * rows / max(1, everything)))


def interpolated(after: int, upto: int, first: int | None, parts: int) -> tuple[Cut, ...]:
    """Ids at even distances; no one knows how many entries are between them."""
    low = max(after, (first or 1) - 1)
    if upto <= low:
        return (Cut(upto),)
    places = (low + (upto - low) * part // parts for part in range(1, parts + 1))
    return tuple(Cut(place) for place in dict.fromkeys(places))


def drained(start: Position, state: StreamState, upto: Position, parts: int) -> Position:
    """Return the position after everything up to `upto`, without reading entries."""
    floor = max(start.id, state.first or 0)
    if parts > 1:
        return Position(upto.id, upto.added, interpolated(start.id, upto.id, state.first, parts), floor)
    is_counted = start.added is not None and upto.added is not None and state.deleted <= start.id
    count = (upto.added or 0) - (start.added or 0) if is_counted else None
    return Position(upto.id, upto.added, (Cut(upto.id, count),), floor)


def lag_of(offset: Offset, states: Mapping[str, StreamState | None]) -> dict[str, float]:
    """How far behind the streams an offset is: in entries, and in seconds by the times in the ids."""
    entries, seconds = 0, 0.0
    for stream, state in states.items():
        position = offset.streams.get(stream, Position(0, 0))
        waiting = available(position, state)
        if waiting and state is not None:
            entries += waiting
            since = max(position.id, state.first or 0)
            seconds = max(seconds, (ms_of(state.last or 0) - ms_of(since)) / 1000)
    return {"lag": entries, "lagSeconds": seconds}


@dataclass(frozen=True, slots=True)
class Window:
    """What a batch read is narrowed to by filters: streams, and ids from `low` to below `high`."""

    streams: frozenset[str] | None = None
    low: int = 0
    high: int | None = None


def batch_spans(
    states: Mapping[str, StreamState], starting: Bounds, ending: Bounds, window: Window, least: int | None
) -> list[Span]:
    """Plan a batch read of everything between two bounds, both fixed now."""
    ranges = {}
    for stream, state in states.items():
        if window.streams is not None and stream not in window.streams:
            continue
        after, upto = _range(state, starting.of(stream), ending.of(stream), window)
        if upto > after and state.first is not None:
            ranges[stream] = (after, upto, _share(state, after, upto))
    everything = sum(rows for _, _, rows in ranges.values())
    parts = parts_for(everything, least)
    return [
        span
        for stream, (after, upto, rows) in ranges.items()
        for span in _split(stream, states[stream], after, upto, parts_of(rows, everything, parts))
    ]


def _range(state: StreamState, start: str | int, end: str | int, window: Window) -> tuple[int, int]:
    after = {EARLIEST: 0, LATEST: state.generated}[start] if isinstance(start, str) else start - 1
    upto = {EARLIEST: 0, LATEST: state.generated}[end] if isinstance(end, str) else min(end - 1, state.generated)
    high = state.generated if window.high is None else window.high - 1
    return max(after, window.low - 1, 0), min(upto, high)


def _share(state: StreamState, after: int, upto: int) -> int:
    """About how many entries are in a range."""
    first, last = state.first or 0, state.last or 0
    low, high = max(after, first - 1), min(upto, last)
    if high <= low:
        return 0
    return max(1, state.length * (high - low) // max(1, last - first + 1))


def _split(stream: str, state: StreamState, after: int, upto: int, parts: int) -> list[Span]:
    found = []
    floor = max(after, state.first or 0)
    for cut in interpolated(after, min(upto, max(state.last or 0, after)), state.first, parts):
        if cut.upto > after:
            found.append(Span(stream, after, cut.upto, None, max(floor, after)))
        after = max(after, cut.upto)
    return found


def missing(stream: str) -> ConfigError:
    """Return an error for a stream that does not exist."""
    return ConfigError(
        f"stream {stream!r} does not exist: check option 'stream', or set option 'missingStream' to wait to read it as "
        "empty until somebody writes to it"
    )
