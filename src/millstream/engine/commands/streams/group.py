"""Consumer groups: XGROUP, and XREADGROUP, which hands out entries and claims those that others left."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from millstream.engine import faults
from millstream.engine.commands.streams.read import Budget, ReadWords, find_stream_keys, parse_read
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.outcome import NIL_ARRAY, OK, ByKey, Encoded, Reply, Simple, Wait
from millstream.engine.streams import ids
from millstream.engine.streams.entries import Block
from millstream.engine.streams.entry_replies import append_claimed, append_entries, encode_entry
from millstream.engine.streams.groups import Group
from millstream.engine.streams.ids import MAX_KEY, order
from millstream.engine.streams.pending import AnyHold, GroupConsumer
from millstream.engine.streams.stream import Stream
from millstream.engine.table import Registry
from millstream.engine.text.args import I64_MAX, integer

REGISTRY = Registry("stream")

_MOST_IN_LINE: Final = 1000  # ids
_SMALLEST: Final = 20  # bytes that no entry in a reply is shorter than


def obtain_consumer(call: CommandContext, key: bytes, group: Group, name: bytes) -> tuple[GroupConsumer, bool]:
    """Return the consumer of this name, marked as just seen, and whether it had to be made."""
    consumer = group.consumers.get(name)
    if consumer is not None:
        consumer.seen_ms = call.now_ms
        return consumer, False
    consumer = group.consumers[name] = GroupConsumer(name, call.now_ms)
    call.event("t", b"xgroup-createconsumer", key)
    call.dirty += 1
    return consumer, True


def log_delivery(
    call: CommandContext,
    key: bytes,
    group: bytes,
    consumer: bytes,
    entry_id: bytes,
    time_ms: int,
    count: int,
    last: bytes,
) -> None:
    """Log a delivery or claim as the forced claim that replays it."""
    call.log(
        b"XCLAIM",
        key,
        group,
        consumer,
        b"0",
        entry_id,
        b"TIME",
        b"%d" % time_ms,
        b"RETRYCOUNT",
        b"%d" % count,
        b"FORCE",
        b"JUSTID",
        b"LASTID",
        last,
    )


def log_deliveries(
    call: CommandContext, key: bytes, group: bytes, consumer: bytes, entry_ids: list[bytes], count: int, last: bytes
) -> None:
    """As `log_delivery`, of several entries now. Redis writes a line each, which says the same in more words."""
    for first in range(0, len(entry_ids), _MOST_IN_LINE):
        call.log(
            b"XCLAIM",
            key,
            group,
            consumer,
            b"0",
            *entry_ids[first : first + _MOST_IN_LINE],
            b"TIME",
            b"%d" % call.now_ms,
            b"RETRYCOUNT",
            b"%d" % count,
            b"FORCE",
            b"JUSTID",
            b"LASTID",
            last,
        )


def log_position(call: CommandContext, key: bytes, group: Group) -> None:
    """How far a group has read."""
    read = -1 if group.entries_read is None else group.entries_read
    call.log(b"XGROUP", b"SETID", key, group.name, ids.text_of(group.last), b"ENTRIESREAD", b"%d" % read)


# XREADGROUP


@dataclass(slots=True)
class DeliverySource:
    """One stream of an XREADGROUP, checked: what to read of it."""

    key: bytes
    stream: Stream
    group: Group
    after: int | None  # history after this key; None: new entries


@REGISTRY.command(
    "xreadgroup",
    -7,
    "write blocking movablekeys",
    access="RO access",
    find_keys=find_stream_keys,
    since="5.0.0",
    summary="Reads new entries for a consumer of a group, its own history, or what others left pending.",
)
def xreadgroup(call: CommandContext, argv: list[bytes]) -> Reply | Wait:
    """XREADGROUP GROUP group consumer [COUNT n] [BLOCK ms] [CLAIM min-idle-ms] [NOACK] [MAXCOUNT n] [MAXSIZE bytes]
    STREAMS key [key ...] id [id ...]
    """
    words = parse_read(call, argv, in_group=True)
    sources = [_source(call, words, key, word) for key, word in zip(words.keys, words.ids, strict=True)]
    budget = Budget(words, call.protocol)
    reader = _GroupReader(call, words, budget)
    reply = ByKey()
    for source in sources:
        if budget.is_spent():
            break
        served = reader.serve(source)
        if served is not None:
            reply += [source.key, served]
    if reply:
        return reply
    if words.block_ms is None or not call.may_block:
        return NIL_ARRAY
    wake_at = None
    if words.claim_ms is not None:
        oldest = call.now_ms if reader.oldest_ms is None else reader.oldest_ms
        wake_at = oldest + words.claim_ms
    return Wait(tuple(dict.fromkeys(words.keys)), words.block_ms, list(argv), wake_at, group=True)


def _source(call: CommandContext, words: ReadWords, key: bytes, word: bytes) -> DeliverySource:
    group_name = words.group or b""
    stream = call.typed_to_read(key, Stream)
    group = None if stream is None else stream.groups.get(group_name)
    if stream is None or group is None:
        raise faults.no_group_to_read(key, group_name)
    if word in (b"$", b"+"):
        raise faults.meaningless_id(word.decode())
    if word == b">":
        return DeliverySource(key, stream, group, None)
    after = ids.strict(word)
    # Redis marks `>` by the highest id inside, so that this id means the same
    return DeliverySource(key, stream, group, None if after == MAX_KEY else after)


@dataclass(slots=True)
class Due:
    """Entries of one hold that a read may claim: ids, where they are (as far as known), their encoded fields."""

    hold: AnyHold
    ids: list[bytes]
    blocks: list[Block | None]
    places: list[int]
    fragments: list[bytes]


class _GroupReader:
    """Serves the streams of one XREADGROUP in turn."""

    def __init__(self, call: CommandContext, words: ReadWords, budget: Budget) -> None:
        self.call = call
        self.words = words
        self.budget = budget
        self.claim_ms = words.claim_ms  # switched off for the rest once a history id is served
        self.oldest_ms: int | None = None  # delivery time of the first entry that will become due

    def serve(self, source: DeliverySource) -> Reply | None:
        """Return this stream's part of the reply, None if it has no entries for the consumer."""
        call, group = self.call, source.group
        claimable = self.claim_ms is not None and self._is_claimable(source, self.claim_ms)
        has_new = source.after is None and has_new_entries(source.stream, group)
        consumer, is_new = obtain_consumer(call, source.key, group, self.words.consumer)
        dirty = call.dirty
        reply: Reply | None = None
        if source.after is not None:
            self.claim_ms = None
            reply = self._history(source, consumer, source.after)
        elif has_new or claimable:
            reply = self._deliver(source, consumer, claimable=claimable, has_new=has_new)
        if is_new and (self.words.no_ack or call.dirty == dirty):
            call.log(b"XGROUP", b"CREATECONSUMER", source.key, group.name, consumer.name)
        return reply

    # History

    def _history(self, source: DeliverySource, consumer: GroupConsumer, after: int) -> Reply:
        """Return the consumer's own pending entries, each counted as delivered once more; deleted ones as null."""
        call, pending, budget = self.call, source.group.pending, self.budget
        limit = budget.begin(source.key)
        parts: list[Reply] = []
        own = pending.of_consumer(consumer, after + 1) if after < MAX_KEY else iter(())
        for entry_id in [entry_id for entry_id, _ in zip(own, range(limit), strict=False)] if limit else list(own):
            if budget.is_full():
                break
            found = source.stream.entries.find(entry_id)
            if found is None:
                parts.append([entry_id, NIL_ARRAY])
                null = b"*-1\r\n" if call.protocol == 2 else b"_\r\n"
                budget.fit([entry_id], [null])
                continue
            block, at = found
            fragment = block.fragment(at)
            parts.append(Encoded(encode_entry(entry_id, fragment)))
            budget.fit([entry_id], [fragment])
            hold = pending.by_id[entry_id]
            pending.give(entry_id, consumer, call.now_ms, count_again(hold.count), block, at)
        budget.end(len(parts))
        return parts

    # New entries and claims

    def _deliver(self, source: DeliverySource, consumer: GroupConsumer, *, claimable: bool, has_new: bool) -> Reply:
        call, group = self.call, source.group
        limit = self.budget.begin(source.key)
        last_before = ids.text_of(group.last)
        out = [b""]
        count = 0
        if claimable and self.claim_ms is not None:
            for due in self._due(source, self.claim_ms, limit):
                self._claim(source, consumer, due, last_before, out)
                count += len(due.ids)
            group.pending.keep_small(consumer)
        if has_new and (limit is None or count < limit):
            left = None if limit is None else limit - count
            count += self._new(source, consumer, left, last_before, out)
        if count:
            call.dirty += 1
        self.budget.end(count)
        out[0] = b"*%d\r\n" % count
        return Encoded(b"".join(out))

    def _new(
        self, source: DeliverySource, consumer: GroupConsumer, limit: int | None, last_before: bytes, out: list[bytes]
    ) -> int:
        """Deliver entries that the group has not had yet, and append them to the reply; how many."""
        call, stream, group = self.call, source.stream, source.group
        entry_ids, fragments, blocks = next_entries(stream, group, limit)
        overhead = 8 if self.claim_ms is not None else 0  # ":0\r\n" twice
        fitting = self.budget.fit(entry_ids, fragments, overhead)
        if not fitting:
            return 0
        del entry_ids[fitting:], fragments[fitting:], blocks[fitting:]
        deliver(stream, group, consumer, call.now_ms, entry_ids, blocks, no_ack=self.words.no_ack)
        if call.keep_log:
            if not self.words.no_ack:
                log_deliveries(call, source.key, group.name, consumer.name, entry_ids, 1, last_before)
            log_position(call, source.key, group)
        if self.claim_ms is None:
            append_entries(out, entry_ids, fragments)
        else:
            append_claimed(out, entry_ids, fragments, 0, 0)
        return fitting

    def _is_claimable(self, source: DeliverySource, min_idle_ms: int) -> bool:
        """Whether the first entry in claim order that is still in the stream has been idle long enough."""
        pending, entries = source.group.pending, source.stream.entries
        for hold in pending.claim_order():
            for entry_id, block in pending.live_items(hold):
                if entries.find(entry_id, block) is not None:
                    if self.oldest_ms is None or hold.time_ms < self.oldest_ms:
                        self.oldest_ms = hold.time_ms
                    return pending.is_due(hold, self.call.now_ms, min_idle_ms)
        return False

    def _due(self, source: DeliverySource, min_idle_ms: int, limit: int | None) -> list[Due]:
        """Return the pending entries that may be claimed, in claim order; skips those gone from the stream."""
        pending, budget, now_ms = source.group.pending, self.budget, self.call.now_ms
        most = I64_MAX if limit is None else limit
        if budget.max_size is not None:
            most = min(most, budget.max_size // _SMALLEST + 1)  # those behind could not be written anyway
        found: list[Due] = []
        for hold in pending.claim_order():
            if most <= 0 or budget.is_full() or not pending.is_due(hold, now_ms, min_idle_ms):
                break
            due = Due(hold, *pending.live_fragments(hold, source.stream.entries, most))
            overhead = len(b":%d\r\n:%d\r\n" % (now_ms - hold.time_ms, hold.count))
            fitting = budget.fit(due.ids, due.fragments, overhead)
            del due.ids[fitting:], due.blocks[fitting:], due.places[fitting:], due.fragments[fitting:]
            most -= fitting
            if due.ids:
                found.append(due)
        return found

    def _claim(
        self, source: DeliverySource, consumer: GroupConsumer, due: Due, last_before: bytes, out: list[bytes]
    ) -> None:
        """Make due entries the consumer's, and append them to the reply."""
        call, group, hold = self.call, source.group, due.hold
        idle_ms, count_before = call.now_ms - hold.time_ms, hold.count
        count = group.pending.give_all(hold, due.ids[:], due.blocks, consumer, call.now_ms, due.places)
        consumer.active_ms = call.now_ms
        if call.keep_log:
            log_deliveries(call, source.key, group.name, consumer.name, due.ids, count, last_before)
        append_claimed(out, due.ids, due.fragments, idle_ms, count_before)


def question_of(argv: list[bytes]) -> tuple[bytes, ...] | None:
    """Return what readers have in common that find the same: the words without the consumer. None: not comparable."""
    if argv[1].upper() != b"GROUP" or argv[-3].upper() != b"STREAMS":
        return None
    return (*argv[:3], *argv[4:])


def ask_again(stream: object, argv: list[bytes], now_ms: int) -> bool:
    """Do for a waiting reader all that XREADGROUP does when there is nothing to read; return whether it was possible.

    The caller knows that the same question has found nothing in this millisecond.
    """
    group = stream.groups.get(argv[2]) if type(stream) is Stream else None
    consumer = None if group is None else group.consumers.get(argv[3])
    if consumer is None:
        return False
    consumer.seen_ms = now_ms
    return True


def count_again(count: int) -> int:
    """Return a delivery count plus one; the highest possible count stays."""
    return min(count + 1, I64_MAX)


def has_new_entries(stream: Stream, group: Group) -> bool:
    """Whether a live entry lies beyond what the group has been given."""
    blocks = stream.entries.blocks
    if not blocks:
        return False
    block = group.block
    if block is not None and is_at(group, block):
        if group.at < len(block.ids):
            return True
        if block is blocks[-1]:
            return False
    return blocks[-1].last > group.last and stream.entries.last_key() > group.last


def is_at(group: Group, block: Block) -> bool:
    """Whether the group's remembered place in the block still is right behind its last id."""
    at = group.at
    return 0 < at <= len(block.ids) and block.ids[at - 1] is group.mark


def next_entries(
    stream: Stream, group: Group, limit: int | None
) -> tuple[list[bytes], list[bytes], list[Block | None]]:
    """Entries beyond what the group has been given: ids, encoded fields, blocks. Nothing is changed."""
    entries = stream.entries
    block = group.block
    if block is not None and is_at(group, block):
        at = group.at
        if limit is not None and at + limit <= len(block.ids):
            return block.ids[at : at + limit], block.slice(at, at + limit), [block] * limit
    elif group.last == MAX_KEY:
        return [], [], []
    entry_ids: list[bytes] = []
    fragments: list[bytes] = []
    blocks: list[Block | None] = []
    for run, low, high in entries.spans(group.last + 1, MAX_KEY):
        if limit is not None and high - low > limit - len(entry_ids):
            high = low + limit - len(entry_ids)
        entry_ids += run.ids[low:high]
        fragments += run.slice(low, high)
        blocks += [run] * (high - low)
        if len(entry_ids) == limit:
            break
    return entry_ids, fragments, blocks


def deliver(
    stream: Stream,
    group: Group,
    consumer: GroupConsumer,
    now_ms: int,
    entry_ids: list[bytes],
    blocks: list[Block | None],
    *,
    no_ack: bool,
) -> None:
    """Hand entries that the group has not had to a consumer: pending unless NOACK, and the group moves on."""
    pending = group.pending
    last = order(entry_ids[-1])
    if not no_ack:
        if pending.order.last <= group.last:
            pending.deliver(consumer, now_ms, list(entry_ids), blocks, last)
        else:
            # after XGROUP SETID back or XNACK FORCE some may be pending already: these start again at 1
            for entry_id, block in zip(entry_ids, blocks, strict=True):
                if entry_id in pending.by_id:
                    pending.give(entry_id, consumer, now_ms, 1, block)
                else:
                    pending.create(consumer, now_ms, 1, entry_id, block, is_delivery=True)
        consumer.active_ms = now_ms
    _remember_place(group, entry_ids[-1], blocks[-1])
    stream.advance(group, entry_ids, last)


def deliver_run(
    stream: Stream, group: Group, consumer: GroupConsumer, now_ms: int, most: int
) -> tuple[list[bytes], list[bytes]] | None:
    """Deliver up to `most` next entries of one block without a search. Returns their ids and encoded fields.

    Returns None, and changes nothing, unless the group goes on where it last read, counts exactly and has nothing
    pending ahead. Fast path; twin: `next_entries` and `deliver`. Test: tests/server/batching/test_hot_commands.py.
    """
    block = group.block
    if block is None:
        return None
    ids_, at, mark = block.ids, group.at, group.mark
    if not 0 < at <= len(ids_) or ids_[at - 1] is not mark or group.pending.order.newest is not mark:
        return None
    read = group.entries_read
    if read is None or stream.max_deleted or read >= I64_MAX - most:
        return None
    if at == len(ids_):
        block = _block_behind(stream, block)
        if block is None or not block.ids:
            return None
        group.block, ids_, at = block, block.ids, 0
    if most == 1:
        group.pending.deliver_one(consumer, now_ms, ids_[at], block)
        end = at + 1
    else:
        end = min(at + most, len(ids_))
        group.pending.deliver_above(consumer, now_ms, ids_[at:end], block)
    consumer.active_ms = now_ms
    group.entries_read = read + end - at
    group.step_to(ids_[end - 1], end)
    return ids_[at:end], block.slice(at, end)


def _block_behind(stream: Stream, block: Block) -> Block | None:
    """Return the block that follows one of the stream's, or None."""
    entries = stream.entries
    index = bisect_right(entries.firsts, block.first)
    if block.dropped or index == len(entries.blocks):
        return None
    return entries.blocks[index]


def _remember_place(group: Group, last_id: bytes, block: Block | None) -> None:
    if block is None:
        group.block = None
        return
    if group.block is block and is_at(group, block):
        # read on in the same block: no search, unless it was read by other means in between
        at = group.at
        ids_ = block.ids
        while at < len(ids_) and ids_[at] is not last_id:
            at += 1
        at += 1
    else:
        at = block.place(last_id) + 1
    group.block, group.at, group.mark = block, at, last_id


# XGROUP


REGISTRY.add("xgroup", -2, syntax="XGROUP subcommand ...", since="5.0.0", summary="Manages consumer groups.")

_HELP = """XGROUP <subcommand> [<arg> [value] [opt] ...]. Subcommands are:
CREATE <key> <groupname> <id|$> [option]
    Create a new consumer group. Options are:
    * MKSTREAM
      Create the empty stream if it does not exist.
    * ENTRIESREAD entries_read
      Set the group's entries_read counter (internal use).
CREATECONSUMER <key> <groupname> <consumer>
    Create a new consumer in the specified group.
DELCONSUMER <key> <groupname> <consumer>
    Remove the specified consumer.
DESTROY <key> <groupname>
    Remove the specified group.
SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]
    Set the current group ID and entries_read counter.
HELP
    Print this help."""


@REGISTRY.command("xgroup|help", 2, "loading stale", since="5.0.0", summary="Describes the subcommands.")
def xgroup_help(call: CommandContext, argv: list[bytes]) -> Reply:
    """XGROUP HELP"""
    return [Simple(line.encode()) for line in _HELP.splitlines()]


def _stream_of(call: CommandContext, key: bytes) -> Stream:
    stream = call.typed(key, Stream)
    if stream is None:
        raise fault(faults.GROUP_NEEDS_KEY)
    return stream


def _group_of(call: CommandContext, key: bytes, name: bytes) -> Group:
    group = _stream_of(call, key).groups.get(name)
    if group is None:
        raise faults.no_group_of_key(key, name)
    return group


def _parse_group_options(argv: list[bytes], *, may_make: bool) -> tuple[bool, int | None]:
    """MKSTREAM and ENTRIESREAD of CREATE and SETID."""
    make_stream = False
    entries_read: int | None = None
    at = 5
    while at < len(argv):
        word = argv[at].upper()
        if word == b"MKSTREAM" and may_make:
            make_stream = True
            at += 1
        elif word == b"ENTRIESREAD" and at + 1 < len(argv):
            value = integer(argv[at + 1])
            if value < -1:
                raise fault(faults.BAD_ENTRIESREAD)
            entries_read = None if value == -1 else value
            at += 2
        else:
            raise faults.bad_subcommand_use("xgroup", argv[1])
    return make_stream, entries_read


@REGISTRY.command(
    "xgroup|create",
    -5,
    "write denyoom",
    keys=(2, 2, 1),
    access="RW insert",
    since="5.0.0",
    summary="Makes a consumer group that starts after an id.",
)
def xgroup_create(call: CommandContext, argv: list[bytes]) -> Reply:
    """XGROUP CREATE key group <id|$> [MKSTREAM] [ENTRIESREAD n]"""
    make_stream, entries_read = _parse_group_options(argv, may_make=True)
    key, name, word = argv[2:5]
    stream = call.typed(key, Stream)
    if stream is None and not make_stream:
        raise fault(faults.GROUP_NEEDS_KEY)
    if len(argv) > 8:
        raise faults.bad_subcommand_use("xgroup", argv[1])
    if word == b"$":
        last = 0 if stream is None else stream.last
    else:
        last = ids.strict(word)
    if stream is None:
        stream = Stream(call.settings)
        call.add(key, stream)
        call.touch(key)
    if name in stream.groups:
        raise fault(faults.BUSY_GROUP)
    stream.groups[name] = Group(name, last, _clamp_read(entries_read, stream))
    call.event("t", b"xgroup-create", key)
    call.dirty += 1
    call.log(*argv)
    return OK


def _clamp_read(entries_read: int | None, stream: Stream) -> int | None:
    return None if entries_read is None else min(entries_read, stream.entries_added)


@REGISTRY.command(
    "xgroup|setid",
    -5,
    "write",
    keys=(2, 2, 1),
    access="RW update",
    since="5.0.0",
    summary="Sets the id after which a group reads on.",
)
def xgroup_setid(call: CommandContext, argv: list[bytes]) -> Reply:
    """XGROUP SETID key group <id|$> [ENTRIESREAD n]"""
    _, entries_read = _parse_group_options(argv, may_make=False)
    key, name, word = argv[2:5]
    group = _group_of(call, key, name)
    stream = _stream_of(call, key)
    if len(argv) not in (5, 7):
        raise faults.bad_subcommand_use("xgroup", argv[1])
    if word == b"$":
        last = stream.last
    elif word in (b"-", b"+"):
        last = ids.bound(word, is_start=True)
    else:
        last = ids.strict(word)
    group.move_to(last, _clamp_read(entries_read, stream))
    call.event("t", b"xgroup-setid", key)
    call.dirty += 1
    call.log(*argv)
    return OK


@REGISTRY.command(
    "xgroup|createconsumer",
    5,
    "write denyoom",
    keys=(2, 2, 1),
    access="RW insert",
    since="6.2.0",
    summary="Makes a consumer of a group.",
)
def xgroup_createconsumer(call: CommandContext, argv: list[bytes]) -> Reply:
    """XGROUP CREATECONSUMER key group consumer"""
    group = _group_of(call, argv[2], argv[3])
    if argv[4] in group.consumers:
        return 0
    obtain_consumer(call, argv[2], group, argv[4])
    call.log(*argv)
    return 1


@REGISTRY.command(
    "xgroup|destroy",
    4,
    "write",
    keys=(2, 2, 1),
    access="RW delete",
    since="5.0.0",
    summary="Removes a group with all that is pending in it.",
)
def xgroup_destroy(call: CommandContext, argv: list[bytes]) -> Reply:
    """XGROUP DESTROY key group"""
    stream = _stream_of(call, argv[2])
    if stream.groups.pop(argv[3], None) is None:
        return 0
    call.event("t", b"xgroup-destroy", argv[2])
    call.ready(argv[2])
    call.dirty += 1
    call.log(*argv)
    return 1


@REGISTRY.command(
    "xgroup|delconsumer",
    5,
    "write",
    keys=(2, 2, 1),
    access="RW delete",
    since="5.0.0",
    summary="Removes a consumer with all that is pending for it.",
)
def xgroup_delconsumer(call: CommandContext, argv: list[bytes]) -> Reply:
    """XGROUP DELCONSUMER key group consumer"""
    group = _group_of(call, argv[2], argv[3])
    consumer = group.consumers.pop(argv[4], None)
    if consumer is None:
        return 0
    pending = consumer.pending
    group.pending.drop_consumer(consumer)
    call.event("t", b"xgroup-delconsumer", argv[2])
    call.dirty += 1
    call.log(*argv)
    return pending
