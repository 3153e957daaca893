"""Commands that look at pending entries and take them over: XPENDING XCLAIM XAUTOCLAIM."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.engine import faults
from millstream.engine.commands.streams.group import count_again, log_delivery, log_position, obtain_consumer
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.outcome import NIL_ARRAY, Encoded, Reply
from millstream.engine.streams import ids
from millstream.engine.streams.entries import Block
from millstream.engine.streams.entry_replies import encode_entry
from millstream.engine.streams.groups import Group
from millstream.engine.streams.ids import MAX_KEY
from millstream.engine.streams.pending import AnyHold, GroupConsumer
from millstream.engine.streams.stream import Stream
from millstream.engine.table import Registry
from millstream.engine.text.args import I64_MAX, as_integer, integer

REGISTRY = Registry("stream")


def _group(call: CommandContext, key: bytes, name: bytes) -> tuple[Stream, Group]:
    return _group_in(call.lookup_to_read(key), key, name)


def _group_in(value: object | None, key: bytes, name: bytes) -> tuple[Stream, Group]:
    """Return the stream that was found at the key, and its group."""
    if value is not None and type(value) is not Stream:
        raise fault(faults.WRONG_TYPE)
    stream = value
    group = None if stream is None else stream.groups.get(name)
    if stream is None or group is None:
        raise faults.no_group(key, name)
    return stream, group


# XPENDING


@REGISTRY.command(
    "xpending",
    -3,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="5.0.0",
    summary="Shows what is pending in a group: a summary, or the entries.",
)
def xpending(call: CommandContext, argv: list[bytes]) -> Reply:
    """XPENDING key group [[IDLE min-idle-ms] start end count [consumer]]"""
    if len(argv) == 3:
        _, group = _group(call, argv[1], argv[2])
        return _summary(group)
    if not 6 <= len(argv) <= 9:
        raise fault(faults.SYNTAX)
    at = 3
    min_idle_ms = 0
    if argv[3].upper() == b"IDLE":
        min_idle_ms = integer(argv[4])
        if len(argv) < 8:
            raise fault(faults.SYNTAX)
        at = 5
    count = integer(argv[at + 2])
    start = ids.bound(argv[at], is_start=True)
    end = ids.bound(argv[at + 1], is_start=False)
    _, group = _group(call, argv[1], argv[2])
    name = argv[at + 3] if len(argv) > at + 3 else None
    return _pending_range(group, call.now_ms, min_idle_ms, start, end, max(count, 0), name)


def _summary(group: Group) -> Reply:
    pending = group.pending
    if not len(pending):
        return [0, None, None, NIL_ARRAY]
    low, high = pending.lowest_and_highest()
    consumers: list[Reply] = [
        [consumer.name, b"%d" % consumer.pending] for consumer in group.sorted_consumers() if consumer.pending
    ]
    return [len(pending), low, high, consumers]


def _pending_range(
    group: Group, now_ms: int, min_idle_ms: int, start: int, end: int, count: int, name: bytes | None
) -> Reply:
    pending = group.pending
    rows: list[Reply] = []
    if count == 0 or start > end:
        return rows
    if name is None:
        items = pending.in_order(start, end)
    else:
        consumer = group.consumers.get(name)
        if consumer is None:
            return rows
        items = (
            (entry_id, pending.by_id[entry_id])
            for entry_id in pending.of_consumer(consumer, start)
            if end == MAX_KEY or ids.order(entry_id) <= end
        )
    for entry_id, hold in items:
        owner = hold.consumer
        idle_ms = max(now_ms - hold.time_ms, 0)
        if owner is not None and min_idle_ms > 0 and idle_ms < min_idle_ms:
            continue
        # on the wire a released entry belongs to the empty name and has been idle for -1
        rows.append([entry_id, b"", -1, hold.count] if owner is None else [entry_id, owner.name, idle_ms, hold.count])
        if len(rows) == count:
            break
    return rows


# XCLAIM


@dataclass(slots=True)
class ClaimWords:
    """What an XCLAIM asks for."""

    min_idle_ms: int
    words: list[bytes]  # the ids as the client wrote them: they are logged in this form
    keys: list[int]
    time_ms: int | None = None
    retry_count: int | None = None
    force: bool = False
    just_id: bool = False
    last: int = 0


@REGISTRY.command(
    "xclaim",
    -6,
    "write fast",
    keys=(1, 1, 1),
    access="RW update",
    since="5.0.0",
    summary="Takes over pending entries by id.",
)
def xclaim(call: CommandContext, argv: list[bytes]) -> Reply:
    """XCLAIM key group consumer min-idle-ms id [id ...] [IDLE ms] [TIME unix-ms] [RETRYCOUNT n] [FORCE] [JUSTID]
    [LASTID id]

    The claimed entries, or their ids with JUSTID. One whose entry is gone from the stream is no longer pending.
    """
    key, group_name = argv[1], argv[2]
    stream, group = _group(call, key, group_name)
    words = _parse_claim(call, argv)
    moved_last = words.last > group.last
    if moved_last:
        group.move_to(words.last, group.entries_read)
    consumer, _ = obtain_consumer(call, key, group, argv[3])
    claim = _Claim(call, key, stream, group, consumer, words)
    rows: list[Reply] = []
    for word, id_key in zip(words.words, words.keys, strict=True):
        row = claim.one(word, ids.text_of(id_key))
        if row is not None:
            rows.append(row)
    if moved_last and not claim.has_logged_last:
        log_position(call, key, group)
        call.dirty += 1
    return rows


def _parse_claim(call: CommandContext, argv: list[bytes]) -> ClaimWords:
    min_idle = as_integer(argv[4])
    if min_idle is None:
        raise faults.bad_claim_argument("min-idle-time argument", "XCLAIM")
    at = 5
    keys: list[int] = []
    while at < len(argv):
        key = ids.parse(argv[at])
        if key is None:
            break
        keys.append(key)
        at += 1
    words = ClaimWords(max(min_idle, 0), argv[5:at], keys)
    while at < len(argv):
        at = _take_claim_option(call, words, argv, at)
    if words.time_ms is not None and not 0 <= words.time_ms <= call.now_ms:
        words.time_ms = call.now_ms
    return words


def _take_claim_option(call: CommandContext, words: ClaimWords, argv: list[bytes], at: int) -> int:
    word = argv[at].upper()
    if word == b"FORCE":
        words.force = True
        return at + 1
    if word == b"JUSTID":
        words.just_id = True
        return at + 1
    if at + 1 == len(argv) or word not in (b"IDLE", b"TIME", b"RETRYCOUNT", b"LASTID"):
        raise faults.unrecognized_option("XCLAIM", argv[at])
    if word == b"LASTID":
        words.last = ids.strict(argv[at + 1])
        return at + 2
    value = as_integer(argv[at + 1])
    if value is None:
        raise faults.bad_claim_argument(f"{word.decode()} option argument", "XCLAIM")
    if word == b"RETRYCOUNT":
        words.retry_count = value if value >= 0 else None
    else:
        time_ms = value if word == b"TIME" else call.now_ms - value
        words.time_ms = None if time_ms == -1 else time_ms
    return at + 2


class _Claim:
    """Takes over entries one by one for XCLAIM."""

    def __init__(
        self, call: CommandContext, key: bytes, stream: Stream, group: Group, consumer: GroupConsumer, words: ClaimWords
    ) -> None:
        self.call = call
        self.key = key
        self.stream = stream
        self.group = group
        self.consumer = consumer
        self.words = words
        self.has_logged_last = False

    def one(self, word: bytes, entry_id: bytes) -> Reply | None:
        """Claim one entry; its part of the reply, or None."""
        call, words, pending = self.call, self.words, self.group.pending
        hold = pending.by_id.get(entry_id)
        found = self.stream.entries.find(entry_id)
        if found is None:
            if hold is not None:
                self.has_logged_last |= drop_ghost(call, self.key, self.group, word, entry_id, hold)
            return None
        block, at = found
        entry_id = block.ids[at]  # the one object that all lists share
        time_ms = call.now_ms if words.time_ms is None else words.time_ms
        if hold is None:
            if not words.force:
                return None
            count = self._count_after(1)
            pending.create(self.consumer, time_ms, count, entry_id, block)
        else:
            if hold.consumer is not None and 0 < words.min_idle_ms > call.now_ms - hold.time_ms:
                return None
            count = self._count_after(hold.count)
            pending.give(entry_id, self.consumer, time_ms, count, block, at)
        self.consumer.active_ms = call.now_ms
        call.dirty += 1
        log_delivery(
            call, self.key, self.group.name, self.consumer.name, word, time_ms, count, ids.text_of(self.group.last)
        )
        self.has_logged_last = True
        return entry_id if words.just_id else Encoded(encode_entry(entry_id, block.fragment(at)))

    def _count_after(self, count: int) -> int:
        if self.words.retry_count is not None:
            return self.words.retry_count
        return count if self.words.just_id else count_again(count)


def drop_ghost(call: CommandContext, key: bytes, group: Group, word: bytes, entry_id: bytes, hold: AnyHold) -> bool:
    """Forget a pending entry whose stream entry is gone; whether the group's last id was logged with it."""
    owner = hold.consumer
    call.dirty += 1
    if owner is None:
        call.log(b"XACK", key, group.name, word)
    else:
        log_delivery(call, key, group.name, owner.name, word, hold.time_ms, hold.count, ids.text_of(group.last))
    group.pending.remove(entry_id)
    return owner is not None


# XAUTOCLAIM


@REGISTRY.command(
    "xautoclaim",
    -6,
    "write fast",
    keys=(1, 1, 1),
    access="RW delete",
    since="6.2.0",
    summary="Takes over pending entries that have been idle for long, in id order.",
)
def xautoclaim(call: CommandContext, argv: list[bytes]) -> Reply:
    """XAUTOCLAIM key group consumer min-idle-ms start [COUNT n] [JUSTID]

    Where to go on, the claimed entries (ids with JUSTID), and the ids that were pending without an entry.
    """
    value = call.lookup_to_read(argv[1])  # a miss is told even if an argument turns out to be wrong
    min_idle = as_integer(argv[4])
    if min_idle is None:
        raise faults.bad_claim_argument("min-idle-time argument", "XAUTOCLAIM")
    start = ids.bound(argv[5], is_start=True)
    count, just_id = _parse_autoclaim(argv)
    key, group_name = argv[1], argv[2]
    stream, group = _group_in(value, key, group_name)
    consumer, _ = obtain_consumer(call, key, group, argv[3])
    rows: list[Reply] = []
    ghosts: list[Reply] = []
    cursor = b"0-0"
    looks = 10 * count
    for entry_id, hold in _pending_from(group, start, looks + 1):
        if looks == 0 or len(rows) + len(ghosts) == count:
            cursor = entry_id
            break
        looks -= 1
        found = stream.entries.find(entry_id)
        if found is None:
            drop_ghost(call, key, group, entry_id, entry_id, hold)
            ghosts.append(entry_id)
        elif hold.consumer is None or min_idle <= 0 or call.now_ms - hold.time_ms >= min_idle:
            rows.append(_autoclaim_one(call, key, group, consumer, entry_id, hold, found, just_id=just_id))
    return [cursor, rows, ghosts]


def _pending_from(group: Group, start: int, most: int) -> list[tuple[bytes, AnyHold]]:
    """Pending entries by id from a key on, taken before anything is changed."""
    items = group.pending.in_order(start, MAX_KEY)
    return [item for item, _ in zip(items, range(min(most, len(group.pending))), strict=False)]


def _autoclaim_one(
    call: CommandContext,
    key: bytes,
    group: Group,
    consumer: GroupConsumer,
    entry_id: bytes,
    hold: AnyHold,
    found: tuple[Block, int],
    *,
    just_id: bool,
) -> Reply:
    block, at = found
    count = hold.count if just_id else count_again(hold.count)
    group.pending.give(entry_id, consumer, call.now_ms, count, block, at)
    consumer.active_ms = call.now_ms
    call.dirty += 1
    log_delivery(call, key, group.name, consumer.name, entry_id, call.now_ms, count, ids.text_of(group.last))
    return entry_id if just_id else Encoded(encode_entry(entry_id, block.fragment(at)))


def _parse_autoclaim(argv: list[bytes]) -> tuple[int, bool]:
    count, just_id = 100, False
    at = 6
    while at < len(argv):
        word = argv[at].upper()
        if word == b"COUNT" and at + 1 < len(argv):
            value = as_integer(argv[at + 1])
            if value is None or not 1 <= value <= I64_MAX // 16:
                raise fault(faults.AUTOCLAIM_COUNT)
            count = value
            at += 2
        elif word == b"JUSTID":
            just_id = True
            at += 1
        else:
            raise fault(faults.SYNTAX)
    return count, just_id
