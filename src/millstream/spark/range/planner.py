"""Plans the batches of a streaming query in range mode. Knows offsets as Spark's JSON, but nothing of Spark.

    latest(start) ── states ──▶ after_loss ──▶ shares ──▶ drained, or walked ──▶ the next offset
                                                             └─ and in a thread: the one after that

A limited batch has to be counted out, which costs a pass over its entries. So while Spark runs it, the next one is
counted in the background, if more is waiting than one batch may have. Such a plan is used only if it was full: another
one lacks what was added since.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millstream.printable import safe_logger
from millstream.spark.ids import text_of
from millstream.spark.options import EARLIEST, Read
from millstream.spark.range.offsets import Offset, Position, from_json, spans_between, to_json
from millstream.spark.range.reader import Span
from millstream.spark.range.splits import (
    Missed,
    after_loss,
    available,
    drained,
    first_position,
    lag_of,
    missing,
    parts_for,
    parts_of,
    shares,
)
from millstream.spark.runtime.pace import Pace
from millstream.spark.wire.metadata import StreamMetadata, StreamState

log = safe_logger(logging.getLogger(__name__))

States = Mapping[str, StreamState | None]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one batch may have at most."""

    rows: int | None = None
    size: int | None = None  # bytes


class _Ahead:
    """A plan that is being made; `result` waits for it."""

    def __init__(self, planner: RangePlanner, start: dict[str, Any], limits: Limits) -> None:
        self.key = (json.dumps(start), limits)
        self._error: Exception | None = None
        self._found: dict[str, Any] | None = None
        self._thread = threading.Thread(target=self._run, args=(planner, start, limits), daemon=True)
        self._thread.start()

    def _run(self, planner: RangePlanner, start: dict[str, Any], limits: Limits) -> None:
        try:
            self._found = planner.plan(start, limits)
        except Exception as error:  # raised where the plan is asked for
            self._error = error

    def result(self) -> dict[str, Any] | None:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found


def _is_full(end: Mapping[str, Any]) -> bool:
    """Whether a batch ends where its limit ends, not where the streams ended when it was planned."""
    return bool(end["lag"])


class RangePlanner:
    """The batches of one query."""

    def __init__(self, options: Read) -> None:
        self._options = options
        self._server = StreamMetadata(options.connection)
        self._names: list[str] = []
        self._looked_at: float | None = None
        self._target: dict[str, Position] | None = None  # of Trigger.AvailableNow
        self._waiting_since: float | None = None  # for enough rows
        self._ahead: _Ahead | None = None
        self._pace = Pace()
        self._states: States = {}
        self._reached = Offset({})

    def initial(self) -> dict[str, Any]:
        """Where a new query begins."""
        positions = {}
        for stream in self._streams():
            state = self._state(stream)
            positions[stream] = first_position(self._options.starting.of(stream), state)
        return to_json(Offset(positions))

    def latest(self, start: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """Return the end of the next batch, or `start` itself if there is nothing new."""
        self._pace.wait()
        ahead, self._ahead = self._ahead, None
        end = ahead.result() if ahead is not None and ahead.key == (json.dumps(start), limits) else None
        if end is None or not _is_full(end):
            end = self.plan(start, limits)
        self._pace.note(is_empty=end is None)
        self._reached = from_json(start if end is None else end)
        if end is None:
            return start
        if _is_full(end):
            self._ahead = _Ahead(self, end, limits)
        return end

    def report(self) -> dict[str, Any] | None:
        """Return the last known ends of the streams, and the lag of the query."""
        if not self._states:
            return None
        streams = {
            name: {"id": text_of(state.generated), "added": state.added}
            for name, state in sorted(self._states.items())
            if state is not None
        }
        return {"streams": streams, **lag_of(self._reached, self._states)}

    def aim(self) -> None:
        """Take nothing that is added from now on (Trigger.AvailableNow)."""
        states = {stream: self._state(stream) for stream in self._streams()}
        self._target = {stream: first_position("latest", state) for stream, state in states.items()}

    def spans(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Span]:
        """Return what a batch reads."""
        found = spans_between(from_json(start), from_json(end))
        return [self._server.placed(span) for span in found]

    def close(self) -> None:
        self._pace.close()
        self._server.close()

    def plan(self, start_json: Mapping[str, Any], limits: Limits) -> dict[str, Any] | None:
        """Return the end of the batch that begins there, or None if it would be empty."""
        start = from_json(start_json)
        states = {stream: self._state(stream) for stream in {**dict.fromkeys(self._streams()), **start.streams}}
        self._states = states
        missed = {stream: self._missed(stream, start, state) for stream, state in states.items()}
        waiting = {stream: self._waiting(stream, missed[stream].position, state) for stream, state in states.items()}
        if not any(waiting.values()) or self._is_too_little(sum(waiting.values())):
            return None
        positions = self._positions(missed, states, waiting, limits)
        return to_json(Offset(positions, self._figures(start, missed, positions, states)))

    def _positions(
        self, missed: Mapping[str, Missed], states: States, waiting: Mapping[str, int], limits: Limits
    ) -> dict[str, Position]:
        """How far each stream is read, cut into spans."""
        found = {
            stream: Position(each.position.id, each.position.added, is_reset=each.is_reset)
            for stream, each in missed.items()
        }
        chosen = shares(limits.rows, waiting)
        everything = min(sum(waiting.values()), limits.rows or sum(waiting.values()))
        parts = parts_for(everything, self._options.min_partitions)
        for stream, share in chosen.items():
            state = states[stream]
            assert state is not None
            size = None if limits.size is None else max(1, limits.size // len(chosen))
            rows = waiting[stream] if share is None else share
            own = parts_of(rows, everything, parts)
            found[stream] = self._position(stream, found[stream], state, share, size, max(1, -(-rows // own)), own)
        return found

    def _position(
        self,
        stream: str,
        start: Position,
        state: StreamState,
        share: int | None,
        size: int | None,
        every: int,
        parts: int,
    ) -> Position:
        upto = self._end(stream, state)
        if share is None and size is None:
            end = drained(start, state, upto, parts)
            return Position(end.id, end.added, end.cuts, end.floor, start.is_reset)
        walk = self._server.walk(Span(stream, start.id, upto.id), self._options.fetch, every, share, size)
        if not walk.rows:
            return Position(upto.id, upto.added, is_reset=start.is_reset)  # trimmed meanwhile
        added = None if start.added is None else start.added + walk.rows
        last = walk.cuts[-1].upto
        floor = max(start.id, state.first or 0)
        return Position(last, upto.added if last == upto.id else added, walk.cuts, floor, start.is_reset)

    def _figures(
        self, start: Offset, missed: Mapping[str, Missed], positions: Mapping[str, Position], states: States
    ) -> dict[str, float]:
        lost = sum(each.lost for each in missed.values())
        if lost:
            log.warning("entries were trimmed before they were read: %d", lost)
        rows = sum(cut.count or 0 for position in positions.values() for cut in position.cuts)
        total = int(start.figures.get("lost", 0)) + lost
        return {"rows": rows, **lag_of(Offset(positions), states), "lost": total}

    def _missed(self, stream: str, start: Offset, state: StreamState | None) -> Missed:
        position = start.streams.get(stream)
        if position is None:  # a stream of the pattern that is new
            return Missed(first_position(EARLIEST, state))
        return after_loss(stream, position, state, fail=self._options.fail_on_loss)

    def _waiting(self, stream: str, position: Position, state: StreamState | None) -> int:
        """Entries that the next batch could have of a stream."""
        rows = available(position, state)
        if self._target is None or not rows:
            return rows
        target = self._target.get(stream)
        if target is None or target.id <= position.id:
            return 0
        if target.added is None or position.added is None:
            return rows
        return min(rows, max(1, target.added - position.added))

    def _end(self, stream: str, state: StreamState) -> Position:
        if self._target is not None and self._target[stream].id < state.generated:
            return self._target[stream]
        return Position(state.generated, state.added)

    def _is_too_little(self, rows: int) -> bool:
        """Whether to wait for more rows, and not for too long already."""
        least = self._options.min_rows
        if least is None or rows >= least or self._target is not None:
            self._waiting_since = None
            return False
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since < self._options.max_delay_s:
            return True
        self._waiting_since = None
        return False

    def _state(self, stream: str) -> StreamState | None:
        state = self._server.state(stream)
        if state is None and self._options.fail_on_missing and stream in self._options.choice.names:
            reached = self._reached.streams.get(stream)
            if reached is None or not reached.id:  # else it was there, and its entries are lost
                raise missing(stream)
        return state

    def _streams(self) -> list[str]:
        """Return the streams of the query. A pattern is resolved again from time to time."""
        now = time.monotonic()
        is_due = self._looked_at is None or now - self._looked_at >= self._options.discovery_s
        if is_due and (self._options.choice.pattern is not None or not self._names):
            self._names = self._server.find(self._options.choice)
            self._looked_at = now
        return self._names
