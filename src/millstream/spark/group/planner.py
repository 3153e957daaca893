"""Plans the batches of a query in group mode. Knows offsets as Spark's JSON, but nothing of Spark.

    latest(start) ── finish what `start` ended ──▶ take the next batch ──▶ its offset
    parts(end) ── hold the batch ──▶ what its tasks read            └─ a thread renews its leases

Spark asks for the latest offset only when the batch that ended at `start` is in its commit log: that is when the batch
is over, and not before. A batch that was taken and is not in Spark's log yet is found again by the name of its
consumer.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from millstream.errors import BackendError
from millstream.printable import safe_logger
from millstream.spark.group.member import Member, Room
from millstream.spark.group.offsets import GroupOffset, HeldBatch, OffsetPart, consumer_of, from_json, parts_of, to_json
from millstream.spark.group.options import GroupRead
from millstream.spark.ids import ms_of
from millstream.spark.range.splits import parts_for, shares
from millstream.spark.runtime.errors import patiently
from millstream.spark.runtime.pace import Pace
from millstream.spark.wire.metadata import StreamMetadata

T = TypeVar("T")
log = safe_logger(logging.getLogger(__name__))


@dataclass(slots=True)
class Aim:
    """What Trigger.AvailableNow may still take of a stream."""

    target: int  # the last id there was when the query began
    new: int  # entries never delivered then, and not taken since
    delivered: int = 0  # the last id that the group had been given when the last batch was begun
    seen: HeldBatch = field(default_factory=HeldBatch)  # what this run has had: nothing is given twice


class LeaseKeeper:
    """A thread that keeps the leases of running batches."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._lock = threading.Lock()
        self._kept: dict[bytes, list[Callable[[], None]]] = {}
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, consumer: bytes, keep: list[Callable[[], None]]) -> None:
        """Keep a batch from now on."""
        with self._lock:
            self._kept[consumer] = keep
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="millstream-leases", daemon=True)
                self._thread.start()

    def drop(self, consumer: bytes) -> None:
        with self._lock:
            self._kept.pop(consumer, None)

    def beat(self) -> None:
        """Keep all of them, once."""
        with self._lock:
            kept = [keep for each in self._kept.values() for keep in each]
        for keep in kept:
            try:
                keep()
            except BackendError as error:  # the next beat is early enough, if the server comes back
                log.warning("leases could not be renewed: %s", error)
            except BaseException:  # without this thread every batch would lose its leases, and nobody would know why
                log.exception("renewing the leases of a batch failed unexpectedly; the next beat tries again")

    def _run(self) -> None:
        while not self._wake.wait(self._every_s):
            self.beat()

    def close(self) -> None:
        """End it; a beat that has begun goes on."""
        self._wake.set()

    def join(self) -> None:
        """Wait until it has ended."""
        if self._thread is not None:
            self._thread.join()


class GroupPlanner:
    """The batches of one query."""

    def __init__(
        self, options: GroupRead, server: StreamMetadata | None = None, watch_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._server = server or StreamMetadata(options.read.connection)
        self._watch_s = watch_s
        self._pace = Pace()
        self._members: dict[str, Member] = {}
        self._looked_at: float | None = None
        self._token: str | None = None
        self._finished = -1
        self._planned: tuple[int, dict[str, Any]] | None = None  # the batch that began it, and the offset
        self._aims: dict[str, Aim] | None = None
        self._reported: dict[str, Any] | None = None
        self.keeper = LeaseKeeper(options.terms.lease_ms / 3000)

    # What Spark asks for

    def initial(self) -> dict[str, Any]:
        """Return the offset before the first batch, which names the query."""
        self._token = self._token or secrets.token_hex(6)
        self._open()
        return to_json(GroupOffset(self._token))

    def latest(self, start_json: dict[str, Any]) -> dict[str, Any]:
        """Return the next batch, or `start` if there is nothing to do."""
        start = from_json(start_json)
        if self._planned is not None and self._planned[0] == start.batch:
            return self._planned[1]
        self._pace.wait()
        self._open()
        self._finish(start)
        end = self._take(start)
        self._pace.note(is_empty=end is None)
        if end is None:
            return start_json
        found = to_json(end)
        self._planned = (start.batch, found)
        self._keep(end)
        return found

    def aim(self) -> None:
        """Take nothing that is added from now on, and nothing twice (Trigger.AvailableNow)."""
        self._open()
        self._aims = {}
        for stream, member in self._members.items():
            undelivered, _, generated = self._patiently(member.lag)
            self._aims[stream] = Aim(generated, undelivered if undelivered is not None else 1 << 62)

    def parts(self, end_json: Mapping[str, Any]) -> list[OffsetPart]:
        """Return what the tasks of a batch read. From now on its leases are renewed and its entries kept."""
        end = from_json(end_json)
        self._open(end.streams)
        if end.batch > self._finished:
            self._keep(end)
            consumer = self._consumer(end.token, end.batch)
            for stream, held in end.streams.items():
                self._patiently(partial(self._member(stream).hold, consumer, end.token.encode(), held))
        found = parts_of(end, self._options.terms.prefix)
        return [replace(part, address=self._server.address(part.stream)) for part in found]

    def report(self) -> dict[str, Any] | None:
        """Return the last known number of undelivered entries."""
        return self._reported

    def close(self) -> None:
        """Let go; a batch that is not over stays where it is, for whoever starts the query again."""
        self._pace.close()
        self.keeper.close()
        for member in self._members.values():
            member.disconnect()
        self._server.close()

    # Ending a batch

    def _finish(self, start: GroupOffset) -> None:
        if start.batch <= self._finished:
            return
        consumer = self._consumer(start.token, start.batch)
        if start.batch:
            for stream, held in start.streams.items():
                self._patiently(partial(self._member(stream).finish, consumer, start.token.encode(), held))
        self.keeper.drop(consumer)
        self._finished = start.batch
        self._planned = None

    # Taking a batch

    def _take(self, start: GroupOffset) -> GroupOffset | None:
        batch = start.batch + 1
        consumer = self._consumer(start.token, batch)
        streams: dict[str, HeldBatch] = {}
        left = self._options.max_rows
        for stream, share in self._shares().items():
            member = self._members[stream]
            self._patiently(partial(member.maintain, consumer))
            held = self._take_from(member, consumer, min(left, share))
            if held.rows:
                streams[stream] = held
                left = max(0, left - held.rows)
        if not streams:
            return None
        rows = sum(held.rows for held in streams.values())
        parts = parts_for(rows, self._options.read.min_partitions)
        return GroupOffset(start.token, batch, parts, streams, self._figures(rows))

    def _shares(self) -> dict[str, int]:
        """How much of the batch each stream may have, by what waits in it."""
        most = self._options.max_rows
        if len(self._members) == 1:
            return dict.fromkeys(self._members, most)
        waiting = {stream: self._patiently(member.lag)[0] or 0 for stream, member in self._members.items()}
        chosen = shares(most, waiting)
        few = max(1, most // (10 * len(self._members)))  # where nothing is new something may have come back
        return {stream: max(chosen.get(stream, few) or most, few) for stream in self._members}

    def _take_from(self, member: Member, consumer: bytes, most: int) -> HeldBatch:
        if most <= 0:
            return HeldBatch()
        least = self._options.read.min_partitions
        cut_every = 1 << 62 if least is None else self._cut(member, most, least)
        aim = None if self._aims is None else self._aims.get(member.stream)
        if aim is None:
            return self._patiently(lambda: member.take(consumer, Room(most, cut_every=cut_every)))
        held = self._patiently(lambda: member.take(consumer, self._aimed_room(member, aim, most, cut_every)))
        return self._once(member, consumer, aim, held)

    def _cut(self, member: Member, most: int, least: int) -> int:
        """How many entries a range may have, so that a batch can be split in so many."""
        undelivered = self._patiently(member.lag)[0]
        expected = most if undelivered is None else min(most, undelivered)
        return max(1, -(-expected // least))

    def _aimed_room(self, member: Member, aim: Aim, most: int, cut_every: int) -> Room:
        _, aim.delivered, _ = member.lag()
        new = 0 if aim.delivered >= aim.target else max(0, aim.new)
        return Room(most, new, cut_every)

    def _once(self, member: Member, consumer: bytes, aim: Aim, held: HeldBatch) -> HeldBatch:
        """Leave out rows that this run has already had: a row released or retried at once is for the next run."""
        again = tuple(each for each in held.picked if aim.seen.holds(each.id))
        if again:
            self._patiently(lambda: member.give_back(consumer, HeldBatch(picked=again)))
            held = HeldBatch(held.ranges, tuple(each for each in held.picked if each not in again))
        aim.new -= sum(each.count for each in held.ranges if each.first > aim.delivered)
        ranges = sorted((*aim.seen.ranges, *held.ranges), key=lambda each: each.first)
        aim.seen = HeldBatch(tuple(ranges), (*aim.seen.picked, *held.picked))
        return held

    def _figures(self, rows: int) -> dict[str, float]:
        lags = {stream: self._patiently(member.lag) for stream, member in self._members.items()}
        behind = [(ms_of(last) - ms_of(read)) / 1000 for lag, read, last in lags.values() if lag and read]
        figures = {"lag": sum(lag or 0 for lag, _, _ in lags.values()), "lagSeconds": max(behind, default=0.0)}
        self._reported = {"streams": {stream: {"lag": lag} for stream, (lag, _, _) in sorted(lags.items())}, **figures}
        return {"rows": rows, **figures}

    # Keeping one

    def _keep(self, offset: GroupOffset) -> None:
        consumer = self._consumer(offset.token, offset.batch)
        self.keeper.add(consumer, [partial(self._member(name).keep, consumer) for name in offset.streams])

    # Streams

    def _open(self, others: Mapping[str, object] | None = None) -> None:
        """See that every stream of the query has its group; a pattern is looked up again from time to time."""
        now, read = self._watch_s(), self._options.read
        is_due = self._looked_at is None or (
            read.choice.pattern is not None and now - self._looked_at >= read.discovery_s
        )
        names = self._server.find(read.choice) if is_due else []
        self._looked_at = now if is_due else self._looked_at
        for stream in [*names, *(others or ())]:
            self._member(stream)

    def _member(self, stream: str) -> Member:
        if stream not in self._members:
            member = Member(stream, self._options, self._server, self._watch_s)
            self._patiently(member.open)
            self._members[stream] = member
        return self._members[stream]

    def _consumer(self, token: str, batch: int) -> bytes:
        return consumer_of(self._options.terms.prefix, token, batch)

    def _patiently(self, ask: Callable[[], T]) -> T:
        return patiently(self._options.read.connection.retry_s, ask)
