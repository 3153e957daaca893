"""A query's share in the group of one stream: taking a batch, keeping it, ending it. Knows nothing of Spark.

    take ──▶ what others left, then what is new ──▶ Held          everything under the batch's own consumer
    adopt ─▶ what that consumer has pending already ──▶ Held      after a crash, or a reply that was lost
    keep ──▶ leases anew, done entries kept                       while the batch runs
    finish ▶ what is unsettled ends as the options say, the consumer goes, done entries are removed

Every method can be called again after it failed, and after the process died in the middle of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from millstream.client.calls import Call
from millstream.delivery.batches import PAGE, Batches, BatchManifest
from millstream.delivery.delivery import Delivery
from millstream.delivery.policy import expired
from millstream.delivery.server_clock import ServerWatch
from millstream.delivery.settlement import Ack, Release, Settlement
from millstream.delivery.steps import Settle
from millstream.errors import BackendError, ServerReplied
from millstream.printable import safe_logger
from millstream.spark.group.offsets import HeldBatch, Picked, Range
from millstream.spark.group.options import BATCH, GroupRead
from millstream.spark.group.reader import DeliveryWire, open_delivery
from millstream.spark.group.terms import batches_of, end_of, item, pages, unsettled, verdict
from millstream.spark.ids import parse_id, text_of
from millstream.spark.range.reader import FIRST_FETCH, REPLY_BYTES
from millstream.spark.wire.metadata import StreamMetadata
from millstream.spark.wire.resp_arrow import Entries
from millstream.spark.wire.socket import packed

T = TypeVar("T")
log = safe_logger(logging.getLogger(__name__))

MOST_PICKED = 10_000  # entries a batch that are named one by one: they stand in the offset
PICK_EVERY_S = 0.5  # how often to look for what others left, where a read does not bring it along
SWEEP_EVERY_S = 60.0
PROMOTE_EVERY_S = 1.0
SETTLE_AT_ONCE = 500


@dataclass(slots=True)
class Room:
    """How much a batch may still have of a stream."""

    rows: int
    new: int | None = None  # of entries never delivered; None: as many
    cut_every: int = 1 << 62  # a range has no more entries than this
    with_picks: bool = True
    ranges: list[Range] = field(default_factory=list)
    picked: list[Picked] = field(default_factory=list)

    @property
    def left(self) -> int:
        return self.rows - sum(each.count for each in self.ranges) - len(self.picked)

    @property
    def left_new(self) -> int:
        taken = sum(each.count for each in self.ranges)
        return self.left if self.new is None else min(self.left, self.new - taken)

    @property
    def held(self) -> HeldBatch:
        return HeldBatch(tuple(sorted(self.ranges, key=lambda each: each.first)), tuple(self.picked))


class Member:
    """A query's side of one stream."""

    def __init__(
        self, stream: str, options: GroupRead, server: StreamMetadata, watch_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.stream = stream
        self._options = options
        self._terms = options.terms
        self._server = server
        self._batches_: Batches | None = None
        self._wire: DeliveryWire | None = None
        self._asked = FIRST_FETCH
        self._watch_s = watch_s
        self._clock = ServerWatch.for_leases(self._terms.lease_ms, self._terms.lease_ms)
        self._is_unsure = True  # the batch's consumer may have entries that we know nothing of
        self._cursor = b"0-0"
        self._next_pick_s = self._next_promote_s = 0.0
        self._next_sweep_s = watch_s() + SWEEP_EVERY_S
        self._ghost_cursor = b"0-0"

    @property
    def batches(self) -> Batches:
        if self._batches_ is None:
            backend = self._server.backend
            self._batches_ = batches_of(self.stream, self._terms, backend.capabilities)
            if backend.is_cluster:
                self._batches_.steps.keys.require_one_slot()
        return self._batches_

    def _run(self, call: Call[T]) -> T:
        asked_ms = self._now_ms()
        reply = self._server.backend.run(call)
        if self._now_ms() - asked_ms > self._clock.tolerance_ms:  # the living could not renew their leases either
            self._clock.stalled(self._now_ms())
        return reply

    def open(self) -> None:
        """Make stream and group unless they are there."""
        self._run(self.batches.steps.create_group(self._options.start))

    # Taking

    def take(self, consumer: bytes, room: Room) -> HeldBatch:
        """Entries for a batch: those that its consumer has already, or else what was left behind, then what is new."""
        try:
            if self._is_unsure:
                self._look_at_clock(self._run(self.batches.steps.server_time()))  # another server may answer now
                if (held := self.adopt(consumer)).rows:
                    return held
            self._is_unsure = True  # until all replies have come
            if room.with_picks:
                self._pick(consumer, room)
            self._read_new(consumer, room)
        except ServerReplied as error:
            if error.code != "NOGROUP":
                raise
            self._make_again()
            return HeldBatch()
        self._is_unsure = False
        return room.held

    def _make_again(self) -> None:
        log.warning("group %r of stream %r is gone and is made anew", self._terms.group, self.stream)
        self.open()

    def adopt(self, consumer: bytes) -> HeldBatch:
        """Return the pending entries of a consumer as a batch."""
        ranges: list[Range] = []
        picked: list[Picked] = []
        ended: list[Settle] = []
        for page in self._manifest(consumer):
            ranges += [Range(parse_id(run.first), parse_id(run.last), run.count) for run in page.runs]
            for entry_id, number in page.others:
                settlement = verdict({}, number, self._terms, None)
                if settlement is None and len(picked) < MOST_PICKED:
                    picked.append(Picked(parse_id(entry_id), number))
                else:
                    ended.append(item(entry_id, number, settlement or Release(), self.stream, self._terms))
            ended += [item(each.id, each.number, end_of(each), self.stream, self._terms) for each in page.condemned]
        self._settle(consumer, ended)
        self._is_unsure = False
        if ranges or picked:
            log.info("a batch that was taken before is taken up: %d ranges, %d entries", len(ranges), len(picked))
        return HeldBatch(tuple(sorted(ranges, key=lambda each: each.first)), tuple(picked))

    def _manifest(self, consumer: bytes) -> Iterator[BatchManifest]:
        after = b""
        while True:
            page = self._run(self.batches.manifest(consumer, after))
            yield page
            if not page.after:
                return
            after = page.after

    def _pick(self, consumer: bytes, room: Room) -> None:
        """Take entries that were delivered before and are released, or belong to a silent consumer."""
        if not self._clock.may_take_over(self._now_ms()):
            return
        if self._watch_s() < self._next_pick_s:
            return
        self._next_pick_s = self._watch_s() + PICK_EVERY_S
        while (credit := min(room.left, PAGE, MOST_PICKED - len(room.picked))) > 0:
            found = self._run(
                self.batches.steps.recover(
                    consumer,
                    credit,
                    min_idle_ms=self._terms.lease_ms,
                    cursor=self._cursor,
                    expected_ms=self._clock.expected_ms(self._now_ms()),
                    tolerance_ms=self._clock.tolerance_ms,
                )
            )
            self._look_at_clock(found.server_ms)
            self._cursor = found.cursor
            room.picked += self._fit(consumer, found.deliveries)
            if len(found.deliveries) < credit:
                if found.next_due_ms is not None:
                    self._next_pick_s = min(self._next_pick_s, self._watch_s() + found.next_due_ms / 1000)
                return
        self._next_pick_s = 0.0  # there may be more

    def _fit(self, consumer: bytes, deliveries: list[Delivery]) -> list[Picked]:
        """Those that may be worked on; the others are settled."""
        now_ms = self._clock.expected_ms(self._now_ms())
        verdicts = [verdict(each.by_name, each.number, self._terms, now_ms) for each in deliveries]
        self._end(consumer, [(each, end) for each, end in zip(deliveries, verdicts, strict=True) if end is not None])
        return [
            Picked(parse_id(each.id), each.number, max(0, each.idle_ms))
            for each, end in zip(deliveries, verdicts, strict=True)
            if end is None
        ]

    def _read_new(self, consumer: bytes, room: Room) -> None:
        while (asked := min(room.left_new, self._asked, room.cut_every)) > 0:
            entries = self._delivered(consumer, asked)
            if entries.count:
                room.ranges += self._ranges(consumer, entries)
            if entries.count < asked:
                return

    def _delivered(self, consumer: bytes, count: int) -> Entries:
        """Read new entries over a connection made for large replies."""
        try:
            if self._wire is None:
                place = self._server.address(self.stream)
                self._wire = open_delivery(self._options.read.connection, self.stream, place)
            head = ("XREADGROUP", "GROUP", self._terms.group, consumer, "COUNT", count)
            self._wire.send(packed((*head, "STREAMS", self.stream, ">")))
            entries = self._wire.entries()
        except BackendError:
            self.disconnect()
            raise
        if entries.count:
            mean = max(1, entries.size // entries.count)
            self._asked = max(10, min(self._options.read.fetch, REPLY_BYTES // mean))
        return entries

    def _ranges(self, consumer: bytes, entries: Entries) -> list[Range]:
        """Return the entries as ranges. Entries that must not be processed are settled and left out."""
        ends = self._condemned(entries)
        items = [item(entries.id_at(at), 1, end, self.stream, self._terms) for at, end in ends.items()]
        self._settle(consumer, items)
        return cut(
            parse_id(entries.id_at(0)),
            parse_id(entries.last_id()),
            entries.count,
            sorted(ends),
            lambda at: parse_id(entries.id_at(at)),
        )

    def _condemned(self, entries: Entries) -> dict[int, Settlement]:
        prefix = self._terms.field_prefix.encode()
        found: dict[int, Settlement] = {}
        expiries = entries.field(prefix + b"expires_at")
        if expiries.null_count < entries.count:
            now_ms = self._clock.expected_ms(self._now_ms()) or self._run(self.batches.steps.server_time())
            for at, value in enumerate(expiries.to_pylist()):
                if value is not None and value.isdigit() and now_ms >= int(value):
                    found[at] = expired(int(value))
        groups = entries.field(prefix + b"redrive_group")
        if groups.null_count < entries.count:
            own = self._terms.group.encode()
            found |= {at: Ack() for at, value in enumerate(groups.to_pylist()) if value is not None and value != own}
        return found

    def _end(self, consumer: bytes, ends: list[tuple[Delivery, Settlement]]) -> None:
        self._settle(consumer, [item(each.id, each.number, end, self.stream, self._terms) for each, end in ends])

    def _settle(self, consumer: bytes, items: list[Settle]) -> None:
        for page in pages(items, SETTLE_AT_ONCE):
            codes = self._run(self.batches.steps.settle(consumer, page))
            for each, code in zip(page, codes, strict=True):
                if isinstance(code, str):
                    log.error("%s of %r stays pending: %s", each.id.decode(), self.stream, code)

    # Keeping

    def hold(self, consumer: bytes, owner: bytes, held: HeldBatch) -> None:
        """Keep the entries of a batch until it is over."""
        trim = self._options.retain != "all"
        try:
            self._run(self.batches.hold(owner, text_of(held.first).encode(), consumer, held.rows, trim=trim))
        except ServerReplied as error:
            if error.code != "NOGROUP" and "no such key" not in str(error):
                raise
            log.warning("stream %r or its group is gone: there is nothing left of the batch", self.stream)

    def keep(self, consumer: bytes) -> None:
        """Start the batch's leases anew. Its hold is left alone: said again too late, it would outlive the batch."""
        after = b""
        while True:
            page = self._run(self.batches.renew(consumer, after))
            after = page.after
            if page.trimmed:
                log.error("%d pending entries of %r were trimmed away", page.trimmed, self.stream)
            if not after:
                break

    def give_back(self, consumer: bytes, held: HeldBatch) -> None:
        """Release entries that were taken and are not worked on."""
        items = [Settle(text_of(each.id).encode(), each.deliveries, "release") for each in held.picked]
        self._settle(consumer, items)

    # Ending

    def finish(self, consumer: bytes, owner: bytes, held: HeldBatch) -> None:
        """Close a batch: settle its remaining entries, remove its consumer and entries that no group needs."""
        try:
            self._finish(consumer, owner, held)
        except ServerReplied as error:
            if error.code != "NOGROUP":
                raise
            self._make_again()

    def _finish(self, consumer: bytes, owner: bytes, held: HeldBatch) -> None:
        if self._options.settle == BATCH:
            self._acknowledge(consumer, held)
        after = b""
        while page := self._run(self.batches.held(consumer, after)):
            self._settle(consumer, [self._left(entry_id, number, held) for entry_id, _, _, number in page])
            after = page[-1][0]
        self._run(self.batches.close(consumer, owner, trim=self._options.retain != "all"))

    def _acknowledge(self, consumer: bytes, held: HeldBatch) -> None:
        for each in held.ranges:
            first, last = text_of(each.first).encode(), text_of(each.last).encode()
            while self._run(self.batches.ack_span(consumer, first, last)) == PAGE:
                pass
        ordered = sorted(held.picked, key=lambda each: each.id)
        self._settle(consumer, [Settle(text_of(each.id).encode(), each.deliveries) for each in ordered])

    def _left(self, entry_id: bytes, number: int, held: HeldBatch) -> Settle:
        """Decide about an entry that is still pending when its batch is over."""
        if held.holds(parse_id(entry_id)):
            return item(entry_id, number, unsettled(number, self._terms), self.stream, self._terms)
        # It was never in the batch: the reply that told of it was lost.
        return item(entry_id, number, Release(), self.stream, self._terms)

    # Keeping house

    def maintain(self, consumer: bytes) -> None:
        """Do what is due: delayed entries, parked retries, ghosts."""
        now = self._watch_s()
        if now >= self._next_promote_s:
            done = self._run(self.batches.steps.promote())
            self._look_at_clock(done.server_ms)
            due_s = PROMOTE_EVERY_S if done.next_due_ms is None else min(PROMOTE_EVERY_S, done.next_due_ms / 1000)
            self._next_promote_s = now + due_s
        if now >= self._next_sweep_s:
            steps = self.batches.steps
            found = self._run(steps.recover(consumer, 0, min_idle_ms=self._terms.lease_ms, cursor=self._ghost_cursor))
            self._ghost_cursor = found.cursor
            self._next_sweep_s = now + (SWEEP_EVERY_S if found.cursor == b"0-0" else 0.1)

    def lag(self) -> tuple[int | None, int, int]:
        """Entries never delivered (None: the server cannot say), the last id delivered, the last id there was."""
        state = self._server.state(self.stream)
        if state is None:
            return 0, 0, 0
        rows = self._run(Call(("XINFO", "GROUPS", self.stream), self.batches.steps.keys.stream, list))
        for row in rows:
            found = dict(zip(row[::2], row[1::2], strict=True))
            if found[b"name"] == self._terms.group.encode():
                return found.get(b"lag"), parse_id(found[b"last-delivered-id"]), state.generated
        return state.length, 0, state.generated

    def disconnect(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _now_ms(self) -> int:
        return round(self._watch_s() * 1000)

    def _look_at_clock(self, server_ms: int) -> None:
        if self._clock.look(server_ms, self._now_ms()):
            log.warning("the server's clock has jumped: nothing is taken over for %d ms", self._clock.pause_ms)


def cut(first: int, last: int, count: int, without: list[int], id_at: Callable[[int], int]) -> list[Range]:
    """Return a range of `count` entries without those at some positions. `id_at` returns the id at a position."""
    found, start = [], 0
    for place in [*without, count]:
        if place > start:
            found.append(
                Range(
                    first if start == 0 else id_at(start), last if place == count else id_at(place - 1), place - start
                )
            )
        start = place + 1
    return found
