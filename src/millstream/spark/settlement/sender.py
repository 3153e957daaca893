"""Carries settlements out: pages of them to the server, fenced, sent again after a lost reply. Knows nothing of Spark.

    rows ── buffered, checked ──▶ acks by the thousand, two pages in flight ──▶ the others, 500 at a time ──▶ Tally

A task's rows are all looked at before the first is settled, and in the order of the stream: the step that acknowledges
is quicker then, and an outcome that does not exist is found before anything was changed. What the server refuses to
write, as when its memory is full, is sent again for a while; the entries stay pending meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import hiredis
import pyarrow as pa

from millstream.client.calls import Call, Word
from millstream.client.capabilities import Capabilities, detect
from millstream.client.urls import parse_url
from millstream.delivery.batches import Acked, Batches
from millstream.delivery.settlement import Ack, DeadLetter, Later, Release
from millstream.delivery.steps import Settle, parse_pending, script
from millstream.errors import BackendError, NotSettled, ServerReplied
from millstream.printable import safe_logger
from millstream.spark.group.options import Settling, Terms
from millstream.spark.group.terms import batches_of, item, keys_of, pages
from millstream.spark.runtime.errors import Patience
from millstream.spark.settlement.rows import Acks, Other, acks_of, by_stream, check_outcomes, others_of, settlement_of
from millstream.spark.wire.socket import Wire, open_for, packed

T = TypeVar("T")
log = safe_logger(logging.getLogger(__name__))

ACKS_AT_ONCE = 1000
OTHERS_AT_ONCE = 500
IN_FLIGHT = 2
MOST_BUFFERED = 1_000_000  # rows
REFUSED_S = 30.0  # for how long what the server refuses is sent again
_KINDS = {Ack: "ack", Later: "retry", Release: "release", DeadLetter: "dead"}


@dataclass
class Tally:
    """What became of settlements."""

    settled: dict[str, int] = field(default_factory=dict)  # by outcome; a last retry counts as dead
    before: int = 0  # were no longer pending: settled by an earlier run of the batch
    lost: int = 0  # were somebody else's by then

    def count(self, outcome: str, by: int) -> None:
        if by:
            self.settled[outcome] = self.settled.get(outcome, 0) + by

    def add(self, other: Tally) -> None:
        for outcome, by in other.settled.items():
            self.count(outcome, by)
        self.before += other.before
        self.lost += other.lost


class Settler:
    """Settles the rows of one task."""

    def __init__(self, options: Settling, refused_s: float = REFUSED_S) -> None:
        self._options = options
        self._refused_s = refused_s
        self._rows: list[pa.RecordBatch] = []
        self._buffered = 0
        self.tally = Tally()

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows; what is wrong with them is raised before any of them is settled."""
        check_outcomes(rows)
        if rows.num_rows:
            self._rows.append(rows)
            self._buffered += rows.num_rows
        if self._buffered >= MOST_BUFFERED:
            self.finish()

    def finish(self) -> Tally:
        """Settle all of them."""
        if self._rows:
            table = pa.Table.from_batches(self._rows)
            self._rows, self._buffered = [], 0
            for stream, rows in by_stream(table, self._options.stream):
                acks, others = acks_of(rows), others_of(rows)
                with _Line(self._options, stream, self._refused_s) as line:
                    line.acknowledge(acks, self.tally)
                    line.settle(others, self.tally)
        if self.tally.lost:
            log.warning("%d settlements came too late: somebody else has the entries", self.tally.lost)
        return self.tally


class _Line:
    """A connection to the server of one stream, for settling."""

    def __init__(self, options: Settling, stream: str, refused_s: float) -> None:
        self._options = options
        self._terms: Terms = options.terms
        self._stream = stream
        self._refused_s = refused_s
        self._wire: Wire | None = None
        self._batches: Batches | None = None
        self._patience = Patience(options.connection.retry_s)
        if parse_url(options.connection.url).is_cluster:
            keys_of(stream, options.terms).require_one_slot()

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    @property
    def batches(self) -> Batches:
        if self._batches is None:
            self._batches = self._patiently(lambda: batches_of(self._stream, self._terms, self._capabilities()))
        return self._batches

    def acknowledge(self, acks: Sequence[Acks], tally: Tally) -> None:
        """End deliveries that are done."""
        calls = (
            self.batches.acks(self._owner(each.consumer), each.number, each.ids[start : start + ACKS_AT_ONCE])
            for each in acks
            for start in range(0, len(each.ids), ACKS_AT_ONCE)
        )
        total = sum(self._all(calls), Acked(0, 0, 0))
        tally.count("ack", total.done)
        tally.before += total.before
        tally.lost += total.lost

    def settle(self, rows: Sequence[Other], tally: Tally) -> None:
        """End deliveries in other ways."""
        waiting = [(self._owner(row.consumer), kind, settle) for row, kind, settle in self._decided(rows)]
        until = time.monotonic() + self._refused_s
        while waiting:
            refused = list(self._settle_once(waiting, tally))
            if not refused:
                return
            if time.monotonic() >= until:
                settle, words = refused[0][2], refused[0][3]
                raise NotSettled(self._stream, settle.id.decode(), words)
            log.warning("%d settlements of %r are tried again: %s", len(refused), self._stream, refused[0][3])
            waiting = [each[:3] for each in refused]
            time.sleep(min(0.5, self._refused_s))

    def _settle_once(
        self, waiting: Sequence[tuple[bytes, str, Settle]], tally: Tally
    ) -> Iterator[tuple[bytes, str, Settle, str]]:
        """Send them; those that the server refused, with its words."""
        for owner in dict.fromkeys(each[0] for each in waiting):
            mine = [each for each in waiting if each[0] == owner]
            parts = pages([each[2] for each in mine], OTHERS_AT_ONCE)
            calls = (self.batches.steps.settle(owner, part) for part in parts)
            codes = [code for page in self._all(calls) for code in page]
            for (_, kind, settle), code in zip(mine, codes, strict=True):
                if isinstance(code, str):
                    yield owner, kind, settle, code
                elif code == 1:
                    tally.count(kind, 1)
                elif code == 0:
                    tally.before += 1
                else:
                    tally.lost += 1

    def _decided(self, rows: Sequence[Other]) -> Iterator[tuple[Other, str, Settle]]:
        """Each row with what becomes of it; deliveries that rows do not tell are asked for."""
        numbers = self._numbers([row.id for row in rows if row.number is None and row.outcome == "retry"])
        for row in rows:
            number = row.number if row.number is not None else numbers.get(row.id)
            settlement = settlement_of(row, number or 1, self._terms)
            yield row, _KINDS[type(settlement)], item(row.id, number, settlement, self._stream, self._terms)

    def _numbers(self, ids: Sequence[bytes]) -> dict[bytes, int]:
        key, group = self.batches.steps.keys.stream, self._terms.group
        calls = [Call(("XPENDING", key, group, each, each, 1), key, parse_pending) for each in ids]
        return {row[0]: row[3] for rows in self._all(calls) for row in rows}

    def _owner(self, consumer: str | None) -> bytes:
        return f"{self._terms.prefix}-*".encode() if consumer is None else consumer.encode()

    # Sending

    def _all(self, calls: Iterable[Call[T]]) -> Iterator[T]:
        """Yield the replies to calls that can be sent twice. A few are in flight at a time."""
        flying: deque[tuple[Call[T], bytes]] = deque()
        for call in calls:
            flying.append((call, _packed(call.argv)))
            self._patiently(lambda: self._send(flying))
            if len(flying) >= IN_FLIGHT:
                yield self._next(flying)
        while flying:
            yield self._next(flying)

    def _next(self, flying: deque[tuple[Call[T], bytes]]) -> T:
        def receive() -> Any:
            if self._wire is None:
                self._send_all(flying)
            assert self._wire is not None
            return self._wire.reply()

        reply = self._patiently(receive)
        call, _ = flying.popleft()
        return call.parse(reply)

    def _send(self, flying: deque[tuple[Call[T], bytes]]) -> None:
        if self._wire is None:
            self._send_all(flying)
        else:
            self._wire.send(flying[-1][1])

    def _send_all(self, flying: Iterable[tuple[Call[T], bytes]]) -> None:
        self._wire = self._open()
        for _, data in flying:
            self._wire.send(data)

    def _patiently(self, act: Callable[[], T]) -> T:
        """Do it; after a lost connection, or while the server cannot, again: what is unanswered is then sent again."""
        while True:
            try:
                found = act()
                self._patience.renew()
                return found
            except BackendError as error:
                self.close()
                if isinstance(error, ServerReplied) and error.code == "NOSCRIPT":
                    error.is_retryable = True  # the server was restarted: the scripts are loaded when we connect
                self._patience.bear(error)

    def _open(self) -> Wire:
        wire = open_for(self._options.connection, self._stream)
        for name in ("settle_acks", "settle"):
            wire.ask("SCRIPT", "LOAD", script(name).source)
        return wire

    def _capabilities(self) -> Capabilities:
        if self._wire is None:
            self._wire = self._open()
        wire = self._wire

        def ask(words: Sequence[Word]) -> Any:
            wire.send(_packed(words))
            (reply,) = wire.replies(1)
            return ServerReplied(str(reply)) if isinstance(reply, hiredis.ReplyError) else reply

        return detect(ask, keys_of(self._stream, self._terms).base + b":no-such-key")


def _packed(words: Sequence[Word]) -> bytes:
    return packed(cast("Sequence[bytes | str | int]", words))  # none of our calls has a float
