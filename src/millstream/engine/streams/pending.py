"""The pending entries of a group: by id, in claim order, in id order.

    by_id   {id: hold}            what an acknowledgement needs: one look-up
    zone    [hold, hold, …]       released entries, first released first
    owned   [hold, hold, …]       entries with an owner, oldest delivery first

A hold is shared by neighbours in claim order that have the same owner, time and delivery count, as the entries of
one delivery do. It is never searched: an id is in a hold if `by_id` says so, so that an entry leaves its hold by
`by_id` pointing elsewhere. What it leaves behind is skipped on the way, counted by `Hold.live`, and swept out when a
list has doubled; every operation is O(1) an id but for those that need id order.

Two rules keep Redis's order among equal times. An entry joins a hold only as its neighbour: behind the last one, and
only while nothing has left the hold, or an id that left and came back would be seen at its old place.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final, TypeAlias, cast

from millstream.engine.streams.entries import Block, EntryLog, Sealed
from millstream.engine.streams.ids import order
from millstream.engine.text.args import I64_MAX, U64_MAX

Content: TypeAlias = bytes | Sealed  # the encoded fields of an entry, or the packed entries it is among

_SLACK: Final = 64  # a list may hold this many leftovers, and as many again as it has live items


class GroupConsumer:
    """A member of a group."""

    __slots__ = ("active_ms", "name", "order", "pending", "seen_ms")

    def __init__(self, name: bytes, now_ms: int) -> None:
        self.name = name
        self.seen_ms = now_ms  # when it last asked for anything
        self.active_ms: int | None = None  # when it last got an entry
        self.pending = 0  # entries it holds
        self.order = IdOrder()  # what it holds, and leftovers


class Hold:
    """Who has some entries, since when, delivered how often. An owner of None: released."""

    __slots__ = ("consumer", "count", "live", "time_ms")

    def __init__(self, consumer: GroupConsumer | None, time_ms: int, count: int, live: int) -> None:
        self.consumer = consumer
        self.time_ms = time_ms  # of the delivery; 0 when released
        self.count = count  # deliveries so far
        self.live = live  # how many of its ids are still held this way


class DeliveryBatch(Hold):
    """A hold on several entries: ids in claim order, and the block each was in."""

    __slots__ = ("blocks", "ids", "places")

    def __init__(
        self,
        consumer: GroupConsumer | None,
        time_ms: int,
        count: int,
        ids: list[bytes],
        blocks: list[Block | None],
        places: list[int] | None = None,
    ) -> None:
        self.consumer = consumer
        self.time_ms = time_ms
        self.count = count
        self.live = len(ids)
        self.ids = ids
        self.blocks = blocks
        # Of the first few ids, or of all, where in its block each was when it came here, -1 if that was not known.
        self.places: list[int] = [] if places is None else places


class Single(Hold):
    """A hold on one entry: a batch would take three times the memory."""

    __slots__ = ("block", "id")

    def __init__(
        self, consumer: GroupConsumer | None, time_ms: int, count: int, entry_id: bytes, block: Block | None
    ) -> None:
        self.consumer = consumer
        self.time_ms = time_ms
        self.count = count
        self.live = 1
        self.id = entry_id
        self.block = block

    @property
    def ids(self) -> list[bytes]:
        return [self.id]

    @property
    def blocks(self) -> list[Block | None]:
        return [self.block]


AnyHold = DeliveryBatch | Single


class IdOrder:
    """Ids in id order, with leftovers: ids that are gone stay until the list is swept.

    A consumer's order takes ids from the group's: `ids` what is delivered, since that is above all before it, and
    `extra` what is claimed. Only the group's keeps track of the newest.
    """

    __slots__ = ("_last", "extra", "ids", "newest")

    def __init__(self) -> None:
        self.ids: list[bytes] = []  # ascending
        self.extra: list[bytes] = []  # added out of order, not merged yet
        self.newest: bytes = b""  # no id ever added is above this one
        self._last = -1  # the key of `newest`, made when asked for

    @property
    def last(self) -> int:
        """The highest key ever added, -1 if none was."""
        if self._last < 0 and self.newest:
            self._last = order(self.newest)
        return self._last

    def append(self, ids: list[bytes], last: int) -> None:
        """Add ids that are ascending and above all others; `last` is the key of the last one."""
        self.ids += ids
        self.newest = ids[-1]
        self._last = last

    def add(self, entry_id: bytes) -> None:
        """Add an id wherever it belongs."""
        key = order(entry_id)
        if key > self.last:
            self.append([entry_id], key)
        else:
            self.extra.append(entry_id)

    def is_bloated(self, live: int) -> bool:
        """Whether leftovers outnumber the live ids, so that a sweep is paid for by what has left."""
        return len(self.ids) + len(self.extra) > 2 * live + _SLACK

    def sweep(self, is_live: Callable[[bytes], bool]) -> None:
        """Drop the leftovers."""
        self.ids = list(filter(is_live, self.ids))
        self.extra = list(filter(is_live, self.extra))

    def merged(self, live: int, is_live: Callable[[bytes], bool]) -> list[bytes]:
        """All ids ascending, each once, few leftovers among them; `live` is how many are no leftovers."""
        if len(self.ids) + len(self.extra) > live + live // 8 + _SLACK:
            self.sweep(is_live)
        if self.extra:
            if len(self.extra) <= 64:
                for entry_id in self.extra:
                    self._insert(entry_id)
            else:
                self.ids = sorted(dict.fromkeys(chain(self.ids, self.extra)), key=order)
            self.extra = []
        return self.ids

    def _insert(self, entry_id: bytes) -> None:
        at = bisect_left(self.ids, order(entry_id), key=order)
        if at == len(self.ids) or self.ids[at] != entry_id:
            self.ids.insert(at, entry_id)

    def forget(self) -> None:
        """Nothing is live: drop the leftovers, if they take any room worth having."""
        if len(self.ids) + len(self.extra) > _SLACK:
            self.ids, self.extra = [], []

    def copy(self) -> IdOrder:
        twin = IdOrder()
        twin.ids, twin.extra = self.ids[:], self.extra[:]
        twin.newest, twin._last = self.newest, self._last
        return twin


class HoldQueue:
    """Holds in claim order."""

    __slots__ = ("head", "holds", "is_sorted", "limit")

    def __init__(self) -> None:
        self.holds: list[AnyHold] = []
        self.head = 0  # holds before this one are empty
        self.is_sorted = True  # times do not fall from head to tail; a clock that steps back breaks that
        self.limit = _SLACK

    def append(self, hold: AnyHold) -> None:
        """Put a hold at the tail without looking at times."""
        holds = self.holds
        if holds and holds[-1].time_ms > hold.time_ms:
            self.is_sorted = False
        holds.append(hold)

    def is_bloated(self, live: int) -> bool:
        """Whether empty holds outnumber the others; `live` is how many entries there are."""
        size = len(self.holds)
        return size > self.limit or size > 2 * live + _SLACK

    def sweep(self) -> None:
        """Drop the empty holds."""
        self.holds = [hold for hold in self.holds if hold.live]
        self.head = 0
        self.limit = 2 * len(self.holds) + _SLACK
        if not self.is_sorted:
            times = [hold.time_ms for hold in self.holds]
            self.is_sorted = times == sorted(times)

    def walk(self) -> Iterator[AnyHold]:
        """Yield the holds that are not empty, from the head to the current tail."""
        holds = self.holds
        at, end = self.head, len(holds)
        while at < end and not holds[at].live:
            at += 1
        self.head = at
        if 2 * at > end and at > _SLACK:
            del holds[:at]
            self.head = 0
            at, end = 0, end - at
        for index in range(at, end):
            hold = holds[index]
            if hold.live:
                yield hold

    def place(self, time_ms: int) -> int:
        """Where an entry of this time belongs: behind the last one that is not newer."""
        holds = self.holds
        at = len(holds)
        if self.is_sorted:
            if at == 0 or holds[-1].time_ms <= time_ms:
                return at
            return bisect_right(holds, time_ms, key=_time_of)
        while at > 0 and (holds[at - 1].time_ms > time_ms or not holds[at - 1].live):
            at -= 1
        return at


def _contents(ids: list[bytes], blocks: list[Block | None]) -> list[Content] | None:
    """Where the fields of these entries are; None if one has left its block, or its block is not known."""
    if None in blocks:
        return None
    # an entry of a sealed block from which none was ever deleted is there: no need to look
    contents: list[Content | None] = [
        None if block.dead else block.sealed  # type: ignore[union-attr]
        for block in blocks
    ]
    if None not in contents:
        return cast("list[Content]", contents)
    for index, block in enumerate(blocks):
        if contents[index] is None and block is not None:
            at = block.place(ids[index])
            if at < 0:
                return None
            contents[index] = block.fragment(at)
    return cast("list[Content]", contents)


def _time_of(hold: AnyHold) -> int:
    return hold.time_ms


class PendingList:
    """Entries delivered to a group and not settled yet."""

    __slots__ = ("by_id", "order", "owned", "released", "zone")

    def __init__(self) -> None:
        self.by_id: dict[bytes, AnyHold] = {}
        self.zone = HoldQueue()
        self.owned = HoldQueue()
        self.order = IdOrder()
        self.released = 0  # entries without an owner

    def __len__(self) -> int:
        return len(self.by_id)

    # Changing

    def deliver(
        self, consumer: GroupConsumer, now_ms: int, ids: list[bytes], blocks: list[Block | None], last: int
    ) -> None:
        """First delivery of ids that are ascending and above all that ever were pending; `last` is the last key."""
        queue = self.owned
        holds = queue.holds
        tail = holds[-1] if holds else None
        hold: AnyHold
        if (
            tail is not None
            and tail.consumer is consumer
            and tail.count == 1
            and tail.time_ms == now_ms
            and ((batch := self._joinable(queue, len(holds))) is not None)
        ):
            batch.ids += ids
            batch.blocks += blocks
            batch.live += len(ids)
            hold = batch
        else:
            if len(ids) == 1:
                hold = Single(consumer, now_ms, 1, ids[0], blocks[0])
            else:
                hold = DeliveryBatch(consumer, now_ms, 1, ids, blocks)
            queue.append(hold)
        if len(ids) == 1:
            self.by_id[ids[0]] = hold
        else:
            self.by_id.update(dict.fromkeys(ids, hold))
        consumer.pending += len(ids)
        # no consumer has ever held an id above the group's newest, so these are above all of its own too
        self.order.append(ids, last)
        consumer.order.ids += ids
        self.keep_small(consumer)

    def deliver_one(self, consumer: GroupConsumer, now_ms: int, entry_id: bytes, block: Block) -> None:
        """Deliver one entry. Fast path; twin: `deliver`. Test: tests/server/batching/test_hot_commands.py."""
        holds = self.owned.holds
        tail = holds[-1] if holds else None
        if (
            type(tail) is DeliveryBatch
            and tail.consumer is consumer
            and tail.time_ms == now_ms
            and tail.count == 1
            and tail.live == len(tail.ids)
        ):
            tail.ids.append(entry_id)
            tail.blocks.append(block)
            tail.live += 1
            self.by_id[entry_id] = tail
        elif tail is not None and tail.time_ms == now_ms and tail.consumer is consumer:
            self._put(self.owned, len(holds), consumer, now_ms, 1, entry_id, block)
        else:
            if tail is not None:
                if tail.time_ms == now_ms:
                    now_ms = tail.time_ms  # the same int object, for less memory
                elif tail.time_ms > now_ms:
                    self.owned.is_sorted = False
            single = Single(consumer, now_ms, 1, entry_id, block)
            holds.append(single)
            self.by_id[entry_id] = single
        consumer.pending += 1
        everyone = self.order
        everyone.ids.append(entry_id)
        everyone.newest = entry_id
        everyone._last = -1
        mine = consumer.order.ids
        mine.append(entry_id)
        # each list grows by one a call, so that none can pass its turn
        if not len(mine) & 63 or not len(everyone.ids) & 63:
            self.keep_small(consumer)

    def deliver_above(self, consumer: GroupConsumer, now_ms: int, ids: list[bytes], block: Block) -> None:
        """As deliver, for entries of one block whose last key is not known."""
        self.deliver(consumer, now_ms, ids, [block] * len(ids), -1)

    def create(
        self,
        consumer: GroupConsumer | None,
        time_ms: int,
        count: int,
        entry_id: bytes,
        block: Block | None,
        *,
        is_delivery: bool = False,
    ) -> None:
        """Add a pending entry: at the end of the zone, at the tail if it is delivered, else where its time puts it."""
        queue = self.zone if consumer is None else self.owned
        place = len(queue.holds) if consumer is None or is_delivery else queue.place(time_ms)
        self._put(queue, place, consumer, time_ms, count, entry_id, block)
        self.order.add(entry_id)
        self._gain(consumer, entry_id)

    def remove(self, entry_id: bytes) -> bool:
        """Forget a pending entry, held or released; whether there was one."""
        hold = self.by_id.pop(entry_id, None)
        if hold is None:
            return False
        hold.live -= 1
        consumer = hold.consumer
        if consumer is None:
            self.released -= 1
        else:
            consumer.pending -= 1
            if not consumer.pending:
                consumer.order.forget()
        if not self.by_id:
            self._clear()
        return True

    def release(self, entry_id: bytes, count: int) -> None:
        """Make a pending entry nobody's, with this delivery count, last in the zone."""
        hold = self.by_id[entry_id]
        block = self.block_of(entry_id, hold)
        self._lose(hold)
        self._put(self.zone, len(self.zone.holds), None, 0, count, entry_id, block)
        self.released += 1
        if self.zone.is_bloated(len(self.by_id)):
            self.zone.sweep()

    def release_run(self, ids: list[bytes], adjust: Callable[[int], int]) -> int:
        """Release ids up to the first one that is not pending. Returns how many were released.

        `adjust` maps a delivery count to the one after the release. Fast path: a worker that stops releases many.
        Twin: `release`, id by id. Test: tests/engine/streams/test_release.py.
        """
        by_id, zone = self.by_id, self.zone
        done = 0
        before = count = -1  # the last delivery count and what became of it
        for entry_id in ids:
            hold = by_id.get(entry_id)
            if hold is None:
                break
            hold.live -= 1
            consumer = hold.consumer
            if consumer is None:
                self.released -= 1
            else:
                consumer.pending -= 1
                if not consumer.pending:
                    consumer.order.forget()
            if hold.count != before:
                before, count = hold.count, adjust(hold.count)
            self._put_last(entry_id, count, hold.block if type(hold) is Single else None)
            done += 1
        self.released += done
        if zone.is_bloated(len(by_id)):
            zone.sweep()
        return done

    def _put_last(self, entry_id: bytes, count: int, block: Block | None) -> None:
        """Put an entry at the end of the zone. Twin: `_put`."""
        holds = self.zone.holds
        tail = holds[-1] if holds else None
        if type(tail) is DeliveryBatch and tail.count == count and tail.live == len(tail.ids):
            if len(tail.places) == tail.live:
                tail.places.append(-1)
            tail.ids.append(entry_id)
            tail.blocks.append(block)
            tail.live += 1
            self.by_id[entry_id] = tail
        else:
            self._put(self.zone, len(holds), None, 0, count, entry_id, block)

    def give(
        self, entry_id: bytes, consumer: GroupConsumer, time_ms: int, count: int, block: Block | None, at: int = -1
    ) -> None:
        """Make a pending entry this consumer's as of this time, behind all that are not newer.

        `at` is its place in the block, if that is known.
        """
        hold = self.by_id[entry_id]
        had_it = hold.consumer is consumer
        if had_it:
            hold.live -= 1
        else:
            self._lose(hold)
        self._put(self.owned, self.owned.place(time_ms), consumer, time_ms, count, entry_id, block, at)
        if had_it:
            self.keep_small(consumer)
        else:
            self._gain(consumer, entry_id)

    def give_all(
        self,
        hold: AnyHold,
        ids: list[bytes],
        blocks: list[Block | None],
        consumer: GroupConsumer,
        now_ms: int,
        places: list[int] | None = None,
    ) -> int:
        """Make these ids of one hold the consumer's now, counted once more; their new delivery count.

        Call `keep_small` when the last hold is done.
        """
        if type(hold) is Single:
            hold = self.by_id[ids[0]]  # a neighbour may have joined it since: then it is a batch now
        count = hold.count if hold.count == I64_MAX else hold.count + 1
        size = len(ids)
        hold.live -= size
        if hold.consumer is not consumer:
            self._pass_on(hold.consumer, ids, consumer)
        place = self.owned.place(now_ms)
        if size == 1:
            self._put(self.owned, place, consumer, now_ms, count, ids[0], blocks[0])
        else:
            batch = DeliveryBatch(consumer, now_ms, count, ids, blocks, places)
            self._insert(self.owned, place, batch)
            self.by_id.update(dict.fromkeys(ids, batch))
        return count

    def drop_consumer(self, consumer: GroupConsumer) -> None:
        """Forget all that a consumer holds."""
        for entry_id in list(self.of_consumer(consumer, 0)):
            self.remove(entry_id)

    def _pass_on(self, owner: GroupConsumer | None, ids: list[bytes], consumer: GroupConsumer) -> None:
        """Count entries that go from one owner, or none, to another."""
        if owner is None:
            self.released -= len(ids)
        else:
            owner.pending -= len(ids)
            if not owner.pending:
                owner.order.forget()
        consumer.pending += len(ids)
        consumer.order.extra += ids

    def _lose(self, hold: AnyHold) -> None:
        hold.live -= 1
        consumer = hold.consumer
        if consumer is None:
            self.released -= 1
        else:
            consumer.pending -= 1
            if not consumer.pending:
                consumer.order.forget()

    def _gain(self, consumer: GroupConsumer | None, entry_id: bytes) -> None:
        if consumer is None:
            self.released += 1
        else:
            consumer.pending += 1
            consumer.order.extra.append(entry_id)
            self.keep_small(consumer)

    def _put(
        self,
        queue: HoldQueue,
        place: int,
        consumer: GroupConsumer | None,
        time_ms: int,
        count: int,
        entry_id: bytes,
        block: Block | None,
        at: int = -1,
    ) -> None:
        """Put one entry at a place of a queue: into the hold before it if that is just the same."""
        holds = queue.holds
        before = holds[place - 1] if place else None
        if before is not None and before.consumer is consumer and before.count == count and before.time_ms == time_ms:
            batch = self._joinable(queue, place)
            if batch is not None:
                if len(batch.places) == len(batch.ids):
                    batch.places.append(at)
                batch.ids.append(entry_id)
                batch.blocks.append(block)
                batch.live += 1
                self.by_id[entry_id] = batch
                return
        single = Single(consumer, time_ms, count, entry_id, block)
        self.by_id[entry_id] = single
        self._insert(queue, place, single)

    def _insert(self, queue: HoldQueue, place: int, hold: AnyHold) -> None:
        if place == len(queue.holds):
            queue.append(hold)
            return
        queue.holds.insert(place, hold)
        if place < queue.head:
            queue.head = place

    def _joinable(self, queue: HoldQueue, place: int) -> DeliveryBatch | None:
        """Return the hold before this index as a batch that takes more ids, or None if an id has left it."""
        before = queue.holds[place - 1]
        if type(before) is DeliveryBatch:
            return before if before.live == len(before.ids) else None
        assert type(before) is Single
        if not before.live:
            return None
        batch = DeliveryBatch(before.consumer, before.time_ms, before.count, [before.id], [before.block], [-1])
        self.by_id[before.id] = batch
        queue.holds[place - 1] = batch
        return batch

    def keep_small(self, consumer: GroupConsumer | None) -> None:
        """Sweep out leftovers where they outnumber what is live; each is paid for by what has left."""
        live = len(self.by_id)
        if self.owned.is_bloated(live):
            self.owned.sweep()
        if self.zone.is_bloated(live):
            self.zone.sweep()
        if self.order.is_bloated(live):
            self.order.sweep(self.by_id.__contains__)
        if consumer is not None and consumer.order.is_bloated(consumer.pending):
            consumer.order.sweep(self._held_by(consumer))

    def _held_by(self, consumer: GroupConsumer) -> Callable[[bytes], bool]:
        get = self.by_id.get

        def is_held(entry_id: bytes) -> bool:
            hold = get(entry_id)
            return hold is not None and hold.consumer is consumer

        return is_held

    def _clear(self) -> None:
        """Nothing is pending: drop the leftovers if they take any room worth having."""
        if len(self.order.ids) > _SLACK:
            self.keep_small(None)

    # Asking

    def block_of(self, entry_id: bytes, hold: AnyHold) -> Block | None:
        """Return the block an entry was in when last seen, if the hold knows it without a search."""
        if type(hold) is Single:
            return hold.block
        # A search would cost more than asking the stream. Blocks of a batch are used where it is walked.
        return None

    def claim_order(self) -> Iterator[AnyHold]:
        """Yield holds in claim order: the released zone, then the longest held first."""
        yield from self.zone.walk()
        yield from self.owned.walk()

    def live_items(self, hold: AnyHold) -> Iterator[tuple[bytes, Block | None]]:
        """Yield the ids a hold still has, and their blocks; drops ids that left from its front on the way.

        Nothing may change hands before the last one is taken.
        """
        if type(hold) is Single:
            yield hold.id, hold.block
            return
        assert type(hold) is DeliveryBatch
        ids, blocks = hold.ids, hold.blocks
        get = self.by_id.get
        if hold.live != len(ids):
            gone = 0
            while get(ids[gone]) is not hold:
                gone += 1
            if gone:
                del ids[:gone]
                del blocks[:gone]
                del hold.places[:gone]
        for entry_id, block in zip(ids, blocks, strict=True):
            if get(entry_id) is hold:
                yield entry_id, block

    def live_entries(
        self, hold: AnyHold, entries: EntryLog, limit: int | None
    ) -> tuple[list[bytes], list[Block | None], list[Content]]:
        """Collect a hold's pending entries that are still in the stream: ids, blocks, positions of the fields."""
        if type(hold) is DeliveryBatch and hold.live == len(hold.ids):
            ids, blocks = hold.ids[:limit], hold.blocks[:limit]
            found = _contents(ids, blocks)
            if found is not None:
                return ids, blocks, found
        ids, blocks, _, fragments = self._looked_up(hold, entries, limit)
        return ids, blocks, [*fragments]

    def live_fragments(
        self, hold: AnyHold, entries: EntryLog, limit: int
    ) -> tuple[list[bytes], list[Block | None], list[int], list[bytes]]:
        """As `live_entries`, with the encoded fields themselves: ids, blocks, places as far as known, fields."""
        if type(hold) is DeliveryBatch and hold.live == len(hold.ids):
            ids, blocks, places = hold.ids[:limit], hold.blocks[:limit], hold.places[:limit]
            fragments = entries.fragments_of(ids, blocks, places)
            if fragments is not None:
                return ids, blocks, places, fragments
        return self._looked_up(hold, entries, limit)

    def _looked_up(
        self, hold: AnyHold, entries: EntryLog, limit: int | None
    ) -> tuple[list[bytes], list[Block | None], list[int], list[bytes]]:
        """As `live_fragments`, entry by entry: some may be gone, and blocks not be known."""
        ids: list[bytes] = []
        blocks: list[Block | None] = []
        places: list[int] = []
        fragments: list[bytes] = []
        for entry_id, hint in self.live_items(hold):
            place = entries.find(entry_id, hint)
            if place is None:
                continue
            block, at = place
            ids.append(entry_id)
            blocks.append(block)
            places.append(at)
            fragments.append(block.fragment(at))
            if len(ids) == limit:
                break
        return ids, blocks, places, fragments

    def in_order(self, start: int, end: int) -> Iterator[tuple[bytes, AnyHold]]:
        """Pending entries by id, from the key start to the key end."""
        by_id = self.by_id
        ids = self.order.merged(len(by_id), by_id.__contains__)
        stop = len(ids) if end >= self.order.last else bisect_right(ids, end, key=order)
        for index in range(bisect_left(ids, start, key=order) if start else 0, stop):
            hold = by_id.get(ids[index])
            if hold is not None:
                yield ids[index], hold

    def of_consumer(self, consumer: GroupConsumer, start: int) -> Iterator[bytes]:
        """Yield the ids a consumer holds, in id order, from the key `start`."""
        is_held = self._held_by(consumer)
        ids = consumer.order.merged(consumer.pending, is_held)
        for index in range(bisect_left(ids, start, key=order) if start else 0, len(ids)):
            if is_held(ids[index]):
                yield ids[index]

    def lowest_and_highest(self) -> tuple[bytes, bytes]:
        """Return the lowest and the highest pending id; there must be one."""
        by_id = self.by_id
        ids = self.order.merged(len(by_id), by_id.__contains__)
        low = next(entry_id for entry_id in ids if entry_id in by_id)
        high = next(entry_id for entry_id in reversed(ids) if entry_id in by_id)
        return low, high

    def is_due(self, hold: AnyHold, now_ms: int, min_idle_ms: int) -> bool:
        """Whether a CLAIM read may take it; unsigned, so that a time in the future counts as long ago."""
        return (now_ms - hold.time_ms) & U64_MAX >= min_idle_ms

    def copy(self, consumers: dict[bytes, GroupConsumer], blocks: dict[int, Block]) -> PendingList:
        """Return an independent copy for these consumers; `blocks` maps id() of the old blocks to the new ones."""
        twin = PendingList()
        for queue, new_queue in ((self.zone, twin.zone), (self.owned, twin.owned)):
            for hold in queue.walk():
                owner = None if hold.consumer is None else consumers[hold.consumer.name]
                items = list(self.live_items(hold))
                new = DeliveryBatch(
                    owner,
                    hold.time_ms,
                    hold.count,
                    [entry_id for entry_id, _ in items],
                    [blocks.get(id(block)) for _, block in items],
                )
                new_queue.holds.append(new)
                twin.by_id.update(dict.fromkeys(new.ids, new))
            new_queue.is_sorted = queue.is_sorted
            new_queue.limit = 2 * len(new_queue.holds) + _SLACK
        twin.order = self.order.copy()
        twin.released = self.released
        return twin
