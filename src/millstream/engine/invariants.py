"""What must always hold of a keyspace; tests call `check` after every step."""

from __future__ import annotations

from itertools import pairwise

from millstream.engine.keys.keyspace import Keyspace
from millstream.engine.streams.entries import decode_fields
from millstream.engine.streams.groups import Group
from millstream.engine.streams.ids import order
from millstream.engine.streams.pending import DeliveryBatch
from millstream.engine.streams.stream import Stream


class InvariantError(AssertionError):
    """A promise of the engine does not hold; the message says which and where."""


def check(keyspace: Keyspace) -> None:
    """Raise InvariantError if anything is out of order anywhere."""
    for database in keyspace:
        _need(database.expires.keys() <= database.values.keys(), "a time to live without its key", database.index)
        for key, value in database.values.items():
            if isinstance(value, Stream):
                check_stream(value, key)


def check_stream(stream: Stream, name: bytes = b"") -> None:
    """Entries ascending and counted, groups sound."""
    entries = stream.entries
    keys: list[int] = []
    for block, first in zip(entries.blocks, entries.firsts, strict=True):
        _need(block.first == first and not block.dropped, "a block and its index", name)
        _need(bool(block.ids) or block.dead > 0, "a block that never had an entry", name)
        block_keys = [order(entry_id) for entry_id in block.ids]
        _need(all(block.first <= key <= block.last for key in block_keys), "a block's bounds", name)
        for at in range(len(block.ids)):
            _need(len(decode_fields(block.fragment(at))) % 2 == 0, "an entry's fields", name)
        keys += block_keys
    _need(all(low < high for low, high in pairwise(keys)), "entries in id order", name)
    _need(len(keys) == entries.length, "the length", name)
    _need(stream.first == (keys[0] if keys else 0), "the first id", name)
    _need(not keys or keys[-1] <= stream.last, "the last id", name)
    for records in stream.producers.values():
        _need(len(records) <= stream.idmp_maxsize, "idempotency records of a producer", name)
    for group_name, group in stream.groups.items():
        _need(group.name == group_name, "a group's name", name)
        check_group(group, name)


def check_group(group: Group, name: bytes = b"") -> None:
    """Check the pending list: every entry once in claim order, counters that add up, id order complete."""
    pending = group.pending
    where = name + b" " + group.name
    seen: list[bytes] = []
    for queue, is_zone in ((pending.zone, True), (pending.owned, False)):
        times: list[int] = []
        for index, hold in enumerate(queue.holds):
            live = [entry_id for entry_id in hold.ids if pending.by_id.get(entry_id) is hold]
            _need(len(set(live)) == len(live), "an id twice in a hold", where)
            _need(hold.live == len(live), "a hold's live count", where)
            _need(not live or index >= queue.head, "a live hold before the head", where)
            _need(not live or (hold.consumer is None) == is_zone, "released entries and only they in the zone", where)
            _need(not is_zone or hold.time_ms == 0, "a released entry's time", where)
            _need(len(hold.blocks) == len(hold.ids), "a hold's blocks", where)
            _need(type(hold) is not DeliveryBatch or _knows_places(hold), "places in blocks", where)
            if live:
                times.append(hold.time_ms)
            seen += live
        _need(not queue.is_sorted or times == sorted(times), "claim order by time", where)
    _need(len(seen) == len(pending.by_id) and set(seen) == set(pending.by_id), "claim order is complete", where)
    _need(
        len(pending) == sum(consumer.pending for consumer in group.consumers.values()) + pending.released,
        "pending = held + released",
        where,
    )
    by_id = [entry_id for entry_id, _ in pending.in_order(0, 2**128 - 1)]
    _need(by_id == sorted(pending.by_id, key=order), "id order is complete", where)
    for consumer_name, consumer in group.consumers.items():
        own = sorted((entry_id for entry_id, hold in pending.by_id.items() if hold.consumer is consumer), key=order)
        _need(consumer.name == consumer_name, "a consumer's name", where)
        _need(consumer.pending == len(own), "a consumer's count", where)
        _need(list(pending.of_consumer(consumer, 0)) == own, "a consumer's entries", where)
    owners = {id(consumer) for consumer in group.consumers.values()}
    for hold in pending.by_id.values():
        _need(hold.consumer is None or id(hold.consumer) in owners, "an owner that is no consumer", where)


def _knows_places(hold: DeliveryBatch) -> bool:
    """Whether each place that a hold remembers is right, unless something was deleted from the block since."""
    known = zip(hold.ids, hold.blocks, hold.places, strict=False)
    return len(hold.places) <= len(hold.ids) and all(
        at < 0 or block is None or block.dropped or block.dead > 0 or block.ids[at] == entry_id
        for entry_id, block, at in known
    )


def _need(holds: bool, what: str, where: object) -> None:
    if not holds:
        raise InvariantError(f"{what} at {where!r}")
