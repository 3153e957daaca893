"""Commands that end a delivery: XACK XACKDEL XNACK."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from millstream.engine import faults
from millstream.engine.commands.streams.append import IdBlock, parse_id_block
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.outcome import Reply
from millstream.engine.streams import ids
from millstream.engine.streams.groups import Group
from millstream.engine.streams.stream import References, Stream
from millstream.engine.table import Registry
from millstream.engine.text.args import I64_MAX, as_integer, integer

REGISTRY = Registry("stream")


class ReleaseMode(Enum):
    """What releasing an entry does to its delivery count."""

    SILENT = b"SILENT"  # this delivery did not count
    FAIL = b"FAIL"  # it did
    FATAL = b"FATAL"  # no further one is worth it: the highest count there is

    def adjust(self, count: int) -> int:
        """Return the delivery count after a release."""
        if self is ReleaseMode.SILENT:
            return max(count - 1, 0)
        return count if self is ReleaseMode.FAIL else I64_MAX


RELEASE_MODES: Final = {mode.value: mode for mode in ReleaseMode}


@REGISTRY.command(
    "xack",
    -4,
    "write fast",
    keys=(1, 1, 1),
    access="RW update",
    since="5.0.0",
    summary="Acknowledges pending entries of a group: they are done.",
)
def xack(call: CommandContext, argv: list[bytes]) -> Reply:
    """XACK key group id [id ...]

    How many of the ids were pending.
    """
    stream = call.typed_to_read(argv[1], Stream)
    group = None if stream is None else stream.groups.get(argv[2])
    if group is None:
        return 0
    keys = ids.strict_all(argv[3:])
    remove = group.pending.remove
    acked = sum(remove(ids.text_of(key)) for key in keys)
    if acked:
        call.dirty += acked
        call.log(*argv)
    return acked


@REGISTRY.command(
    "xackdel",
    -6,
    "write fast",
    keys=(1, 1, 1),
    access="RW update delete",
    since="8.2.0",
    summary="Acknowledges pending entries of a group and deletes them from the stream.",
)
def xackdel(call: CommandContext, argv: list[bytes]) -> Reply:
    """XACKDEL key group [KEEPREF|DELREF|ACKED] IDS numids id [id ...]

    One number an id: 1 acknowledged and deleted, 2 acknowledged and kept because it is referenced, -1 not pending.
    """
    name = argv[1]
    stream = call.typed_to_read(name, Stream)
    block = parse_id_block(argv, 3)
    group = None if stream is None else stream.groups.get(argv[2])
    if stream is None or group is None:
        return [-1] * len(block.words)
    keys = ids.strict_all(block.words)
    before = len(stream)
    results = [_ack_and_delete(stream, group, key, block) for key in keys]
    acked = len(results) - results.count(-1)
    if len(stream) < before:
        call.event("t", b"xdel", name)
        call.touch(name)
    if acked:
        call.dirty += acked
        call.log(*argv)
    return list(results)


def _ack_and_delete(stream: Stream, group: Group, key: int, block: IdBlock) -> int:
    entry_id = ids.text_of(key)
    if not group.pending.remove(entry_id):
        return -1
    if block.references is References.ACKED and stream.is_referenced(entry_id, key):
        return 2
    if block.references is References.DELETE:
        stream.forget_references(entry_id)
    stream.delete(entry_id, key)
    return 1


@dataclass(frozen=True, slots=True)
class NackWords:
    """What an XNACK asks for."""

    mode: ReleaseMode
    ids: list[bytes]
    retry_count: int | None
    force: bool

    def count_after(self, count: int) -> int:
        return self.mode.adjust(count) if self.retry_count is None else self.retry_count


@REGISTRY.command(
    "xnack",
    -7,
    "write fast",
    keys=(1, 1, 1),
    access="RW update",
    since="8.8.0",
    summary="Releases pending entries: they are nobody's, and the next to be claimed.",
)
def xnack(call: CommandContext, argv: list[bytes]) -> Reply:
    """XNACK key group <SILENT|FAIL|FATAL> IDS numids id [id ...] [RETRYCOUNT count] [FORCE]

    How many ids were released; one that is not pending is skipped, or made pending by FORCE if its entry is there.
    """
    name, group_name = argv[1], argv[2]
    stream = call.typed(name, Stream)
    group = None if stream is None else stream.groups.get(group_name)
    if stream is None or group is None:
        raise faults.no_group(name, group_name)
    words = _parse_nack(argv)
    entry_ids = [ids.text_of(key) for key in ids.strict_all(words.ids)]
    pending = group.pending
    released = 0
    for entry_id in entry_ids:
        hold = pending.by_id.get(entry_id)
        if hold is not None:
            pending.release(entry_id, words.count_after(hold.count))
        else:
            found = stream.entries.find(entry_id) if words.force else None
            if found is None:
                continue
            pending.create(None, 0, words.count_after(0), entry_id, found[0])
        released += 1
    if released:
        call.dirty += released
        call.ready(name)
        call.log(*argv)
    return released


def _parse_nack(argv: list[bytes]) -> NackWords:
    mode = RELEASE_MODES.get(argv[3].upper())
    if mode is None:
        raise fault(faults.XNACK_MODE)
    found: list[bytes] | None = None
    retry_count: int | None = None
    force = False
    at = 4
    while at < len(argv):
        word = argv[at].upper()
        has_value = at + 1 < len(argv)
        if word == b"IDS" and has_value:
            count = as_integer(argv[at + 1])
            if count is None or not 1 <= count <= 2147483647:
                raise fault(faults.XNACK_NUMIDS)
            if count > len(argv) - at - 2:
                raise fault(faults.XNACK_NUMIDS_MISMATCH)
            found = argv[at + 2 : at + 2 + count]
            at += 2 + count
        elif word == b"FORCE":
            force = True
            at += 1
        elif word == b"RETRYCOUNT" and has_value:
            retry_count = integer(argv[at + 1])
            if retry_count < 0:
                raise fault(faults.XNACK_RETRYCOUNT)
            at += 2
        else:
            raise faults.unrecognized_option("XNACK", argv[at])
    if found is None:
        raise fault(faults.XNACK_NO_IDS)
    return NackWords(mode, found, retry_count, force)
