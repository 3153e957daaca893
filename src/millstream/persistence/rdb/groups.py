"""A stream's groups in RDB: read positions, pending entries and consumers.

    group      name, last id, [entries read], pending entries, consumers, [released entries]
    pending    id, time, count, in id order       all of them, held or released
    consumer   name, seen, [active], ids          the entries it holds
    released   id, in the order of release

The parts in brackets are not in all stream types: see `stream`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import groupby
from struct import Struct
from typing import Final

from millstream.engine.streams.entries import Block, EntryLog
from millstream.engine.streams.groups import Group
from millstream.engine.streams.ids import MAX_KEY, order
from millstream.engine.streams.pending import AnyHold, DeliveryBatch, GroupConsumer, HoldQueue, PendingList, Single
from millstream.engine.streams.stream import Stream
from millstream.persistence.rdb.codec import Reader, Writer, as_signed, length_bytes
from millstream.persistence.rdb.versions import ReadOptions, WriteOptions

_RAW_ID: Final = Struct(">QQ")
_RAW_TIME: Final = Struct("<q")
_PENDING_SIZE: Final = 24  # id and time; the count follows

Rows = dict[bytes, tuple[int, int]]  # id to delivery time and count, in id order


# Writing


def write_group(out: Writer, stream: Stream, group: Group, options: WriteOptions) -> None:
    """Write one group of a stream."""
    kind, pending = options.stream_type, group.pending
    out.string(group.name)
    out.id(group.last)
    if kind >= 19:
        out.length(_entries_read(group, stream))
    out.length(len(pending))
    for entry_id, hold in pending.in_order(0, MAX_KEY):
        out.put(_raw_id(entry_id) + _RAW_TIME.pack(hold.time_ms) + length_bytes(hold.count))
    zone = [entry_id for hold in pending.zone.walk() for entry_id, _ in pending.live_items(hold)]
    consumers = [(consumer, list(pending.of_consumer(consumer, 0))) for consumer in group.sorted_consumers()]
    if kind < 27 and zone:
        consumers = _with_released(consumers, zone, options.released_to)
    out.length(len(consumers))
    for consumer, held in consumers:
        _write_consumer(out, consumer, held, kind)
    if kind >= 27:
        _write_ids(out, zone)


def _entries_read(group: Group, stream: Stream) -> int:
    """Return the number of entries a group has read, -1 if unknown; never more than were added.

    XSETID can lower the number of added entries, and then Redis refuses a file that it has written itself.
    """
    return -1 if group.entries_read is None else min(group.entries_read, stream.entries_added)


def _with_released(
    consumers: list[tuple[GroupConsumer, list[bytes]]], zone: list[bytes], name: bytes
) -> list[tuple[GroupConsumer, list[bytes]]]:
    """Return the consumers, with the released entries assigned to one of that name."""
    by_name = {consumer.name: (consumer, held) for consumer, held in consumers}
    consumer, held = by_name.get(name, (GroupConsumer(name, 0), []))
    by_name[name] = consumer, sorted(held + zone, key=order)
    return [pair for _, pair in sorted(by_name.items())]


def _write_consumer(out: Writer, consumer: GroupConsumer, held: list[bytes], kind: int) -> None:
    out.string(consumer.name)
    out.put(_RAW_TIME.pack(consumer.seen_ms))
    if kind >= 21:
        out.put(_RAW_TIME.pack(-1 if consumer.active_ms is None else consumer.active_ms))
    _write_ids(out, held)


def _write_ids(out: Writer, ids: list[bytes]) -> None:
    out.length(len(ids))
    out.put(b"".join(map(_raw_id, ids)))


def _raw_id(entry_id: bytes) -> bytes:
    ms, _, seq = entry_id.partition(b"-")
    return _RAW_ID.pack(int(ms), int(seq))


# Reading


def read_group(reader: Reader, kind: int, stream: Stream, options: ReadOptions) -> Group:
    """Read one group of a stream whose entries and counters have been read."""
    name, last = reader.string(), reader.id()
    if kind >= 19:
        entries_read = as_signed(reader.length())
        if not -1 <= entries_read <= stream.entries_added and not options.lenient:
            raise reader.bad("a group that has read more entries than were ever added")
        group = Group(name, last, None if entries_read == -1 else entries_read)
    else:
        group = Group(name, last, stream.estimate_read(last))
    rows = _read_pending(reader)
    owners: dict[bytes, GroupConsumer] = {}
    for _ in range(reader.length()):
        consumer = _read_consumer(reader, kind, rows, owners)
        if consumer.name in group.consumers:
            raise reader.bad("a group with two consumers of one name")
        group.consumers[consumer.name] = consumer
    zone = dict.fromkeys(_read_ids(reader) if kind >= 27 else ())
    for entry_id in zone:
        if entry_id not in rows or entry_id in owners:
            raise reader.bad("a released entry that has an owner or is not pending")
    if len(owners) + len(zone) < len(rows):
        if options.sanitize:
            raise reader.bad("a pending entry without owner that is not released")
        zone.update(dict.fromkeys(entry_id for entry_id in rows if entry_id not in owners))
    _fill(group.pending, rows, owners, list(zone), stream.entries)
    return group


def _read_pending(reader: Reader) -> Rows:
    """Read delivery times and counts by id, in id order."""
    rows: Rows = {}
    count = reader.length()
    last, is_sorted = -1, True
    for _ in range(count):
        reader.need(_PENDING_SIZE)
        ms, seq = _RAW_ID.unpack_from(reader.data, reader.at)
        (time_ms,) = _RAW_TIME.unpack_from(reader.data, reader.at + 16)
        reader.at += _PENDING_SIZE
        rows[b"%d-%d" % (ms, seq)] = time_ms, as_signed(reader.length())
        key = ms << 64 | seq
        is_sorted = is_sorted and key > last
        last = key
    if len(rows) != count:
        raise reader.bad("a pending entry that is there twice")
    return rows if is_sorted else dict(sorted(rows.items(), key=lambda row: order(row[0])))


def _read_ids(reader: Reader) -> list[bytes]:
    return [b"%d-%d" % pair for pair in _RAW_ID.iter_unpack(reader.take(16 * reader.length()))]


def _read_consumer(reader: Reader, kind: int, rows: Rows, owners: dict[bytes, GroupConsumer]) -> GroupConsumer:
    """Read a consumer. The entries it holds are noted in `owners`."""
    consumer = GroupConsumer(reader.string(), reader.time())
    active_ms = reader.time() if kind >= 21 else consumer.seen_ms
    consumer.active_ms = None if active_ms == -1 else active_ms
    for entry_id in _read_ids(reader):
        if entry_id not in rows or entry_id in owners:
            raise reader.bad("an entry of a consumer that is not pending or has another owner")
        owners[entry_id] = consumer
    return consumer


def _fill(
    pending: PendingList, rows: Rows, owners: dict[bytes, GroupConsumer], zone: list[bytes], log: EntryLog
) -> None:
    """Build a pending list from rows in id order. Owned rows are ordered by time, equal times by id."""
    if not rows:
        return
    places = _places(rows, log)
    owned = sorted((entry_id for entry_id in places if entry_id in owners), key=lambda entry_id: rows[entry_id][0])
    for (time_ms, count, _), run in groupby(owned, lambda i: (*rows[i], id(owners[i]))):
        ids = list(run)
        _hold(pending, pending.owned, owners[ids[0]], time_ms, count, ids, places)
    for count, run in groupby(zone, lambda entry_id: rows[entry_id][1]):
        _hold(pending, pending.zone, None, 0, count, list(run), places)
    pending.owned.sweep()  # sets the limits of later growth
    pending.zone.sweep()
    pending.released = len(zone)
    ids = list(places)
    pending.order.append(ids, order(ids[-1]))
    held: dict[GroupConsumer, list[bytes]] = {}
    for entry_id in ids:
        if (owner := owners.get(entry_id)) is not None:
            held.setdefault(owner, []).append(entry_id)
    for consumer, own in held.items():
        consumer.order.append(own, order(own[-1]))
        consumer.pending = len(own)


def _hold(
    pending: PendingList,
    queue: HoldQueue,
    consumer: GroupConsumer | None,
    time_ms: int,
    count: int,
    ids: list[bytes],
    places: dict[bytes, Block | None],
) -> None:
    """Add neighbours in claim order that share owner, time and count."""
    blocks = [places[entry_id] for entry_id in ids]
    hold: AnyHold
    if len(ids) == 1:
        hold = Single(consumer, time_ms, count, ids[0], blocks[0])
    else:
        hold = DeliveryBatch(consumer, time_ms, count, ids, blocks)
    queue.holds.append(hold)
    pending.by_id.update(dict.fromkeys(ids, hold))


def _places(ids: Iterable[bytes], log: EntryLog) -> dict[bytes, Block | None]:
    """Return the block of each id, or None without a live entry. The ids ascend.

    An id that is also in a block is replaced by the object of the block, to save memory.
    """
    places: dict[bytes, Block | None] = {}
    own: dict[bytes, bytes] = {}
    block: Block | None = None
    until = -1  # the current block takes ids below this key
    for entry_id in ids:
        key = order(entry_id)
        if key >= until:
            index = bisect_right(log.firsts, key)
            block = log.blocks[index - 1] if index else None
            own = {known: known for known in block.ids} if block is not None else {}
            until = log.firsts[index] if index < len(log.firsts) else MAX_KEY + 1
        known = own.get(entry_id)
        places[known or entry_id] = block if known is not None else None
    return places
