"""Fast paths for the few command forms that make up nearly all of a log.

    XADD key id field value …                                      an entry appended
    XCLAIM key group consumer 0 id TIME t RETRYCOUNT n FORCE JUSTID LASTID id    an entry delivered
    XCLAIM key group consumer 0 id … TIME t RETRYCOUNT n FORCE JUSTID            some entries delivered
    XGROUP SETID key group id ENTRIESREAD n                        how far the group has come with it
    XACK key group id                                              an entry acknowledged

Each function applies its command and returns True, or changes nothing and returns False; then the engine's general
command must run. A test compares both paths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millstream.engine.keys.keyspace import Keyspace
from millstream.engine.streams.entries import Block
from millstream.engine.streams.groups import Group
from millstream.engine.streams.stream import Stream

_FIRST_DELIVERY: Final = [b"RETRYCOUNT", b"1", b"FORCE", b"JUSTID"]

Form = Callable[[list[bytes]], bool]


class HotForms:
    """Applies hot forms to the selected database."""

    def __init__(self, keyspace: Keyspace, now_ms: int) -> None:
        self._keyspace = keyspace
        self._now_ms = now_ms
        self.by_name: dict[bytes, Form] = {
            b"XADD": self.xadd,
            b"XCLAIM": self.xclaim,
            b"XGROUP": self.xgroup,
            b"XACK": self.xack,
        }
        self._ms = b""  # the first half of the last appended id, and its key
        self._first_key = 0
        self.select(0)

    def select(self, db: int) -> None:
        """Select a database."""
        self.db = self._keyspace.databases[db]
        self._values = self.db.values
        self._settings = self._keyspace.settings
        self._group: Group | None = None  # of the last claim
        # The expected position of its next entry: after the last delivered one.
        self._block: Block | None = None
        self._at = 0

    def xadd(self, argv: list[bytes]) -> bool:
        """XADD key id field value [field value ...]"""
        stream = self._values.get(argv[1])
        if type(stream) is not Stream or not len(argv) & 1:
            return False
        ms, _, seq = argv[2].partition(b"-")
        if ms != self._ms:
            first = as_key(ms + b"-0")
            if first is None:
                return False
            self._ms, self._first_key = ms, first
        if seq == b"0":
            key = self._first_key
        elif seq.isdigit() and seq[0] != 48 and len(seq) < 19:
            key = self._first_key | int(seq)
        else:
            return False
        if key <= stream.last or len(argv) < 5:
            return False
        if len(argv) == 5:
            stream.append_field(argv[2], key, argv[3], argv[4], self._settings)
        else:
            stream.append(argv[2], key, argv[3:], self._settings)
        return True

    def xclaim(self, argv: list[bytes]) -> bool:
        """XCLAIM key group consumer 0 id TIME ms RETRYCOUNT 1 FORCE JUSTID LASTID id

        The first delivery of an entry, behind all others of its group: what a read of new entries leaves in the log.
        """
        if len(argv) != 14 or argv[6] != b"TIME":
            return self._claim_some(argv)
        _, key, name, owner, idle, entry_id, time_word, time, count_word, count, force, just_id, last_word, last = argv
        stream = self._values.get(key)
        if (
            type(stream) is not Stream
            or count != b"1"
            or idle != b"0"
            or time_word != b"TIME"
            or count_word != b"RETRYCOUNT"
            or force != b"FORCE"
            or just_id != b"JUSTID"
            or last_word != b"LASTID"
        ):
            return False
        group = stream.groups.get(name)
        if group is None or not time.isdigit():
            return False
        consumer = group.consumers.get(owner)
        pending = group.pending
        holds = pending.owned.holds
        time_ms = int(time)
        if consumer is None or time_ms > self._now_ms or (holds and holds[-1].time_ms > time_ms):
            return False
        block, at, mark = group.block, group.at, group.mark
        if (
            block is not None
            and pending.order.newest is mark
            and last == mark
            and 0 < at < len(block.ids)
            and block.ids[at - 1] is mark
            and block.ids[at] == entry_id
        ):
            self._group, self._block, self._at = group, block, at  # right after the last one, as in most cases
        else:
            block = self._find_new(stream, group, entry_id)
            if block is None or not self._follow_last(group, last):
                return False
        pending.deliver_one(consumer, time_ms, block.ids[self._at], block)
        consumer.seen_ms = consumer.active_ms = self._now_ms
        self._at += 1
        return True

    def _claim_some(self, argv: list[bytes]) -> bool:
        """XCLAIM key group consumer 0 id [id ...] TIME ms RETRYCOUNT 1 FORCE JUSTID"""
        if len(argv) < 12 or argv[4] != b"0":
            return False
        time_word, time, *rest = argv[-6:]
        stream = self._values.get(argv[1])
        if type(stream) is not Stream or time_word != b"TIME" or not time.isdigit() or rest != _FIRST_DELIVERY:
            return False
        group = stream.groups.get(argv[2])
        consumer = None if group is None else group.consumers.get(argv[3])
        if group is None or consumer is None:
            return False
        holds = group.pending.owned.holds
        time_ms = int(time)
        if time_ms > self._now_ms or (holds and holds[-1].time_ms > time_ms):
            return False
        block = self._find_new(stream, group, argv[5])
        if block is None:
            return False
        ids = block.ids[self._at : self._at + len(argv) - 11]
        if ids != argv[5:-6]:
            return False
        group.pending.deliver_above(consumer, time_ms, ids, block)
        consumer.seen_ms = consumer.active_ms = self._now_ms
        self._at += len(ids)
        return True

    def _find_new(self, stream: Stream, group: Group, entry_id: bytes) -> Block | None:
        """Return the block of an entry above all pending ones, else None. Its position is noted."""
        if entry_id in group.pending.by_id or not is_above(entry_id, group.pending.order.newest):
            return None
        if group is not self._group:
            self._group, self._block, self._at = group, group.block, group.at
        block = self._block
        if block is not None and self._at < len(block.ids) and block.ids[self._at] == entry_id:
            return block
        if as_key(entry_id) is None:
            return None
        found = stream.entries.find(entry_id)
        if found is None:
            return None
        self._block, self._at = found
        return found[0]

    def _follow_last(self, group: Group, last: bytes) -> bool:
        """Apply LASTID: advance the group if it is behind. Returns False for an id in another form."""
        if last == group.mark and group.block is not None:
            return True  # `mark` is the last delivered id of the group
        key = as_key(last)
        if key is None:
            return False
        if key > group.last:  # Valkey logs the entry's own id here
            group.move_to(key, group.entries_read)
        return True

    def xgroup(self, argv: list[bytes]) -> bool:
        """XGROUP SETID key group id ENTRIESREAD n"""
        if len(argv) != 7 or argv[1] != b"SETID" or argv[5] != b"ENTRIESREAD":
            return False
        _, _, key, name, entry_id, _, read = argv
        stream = self._values.get(key)
        if type(stream) is not Stream or not ((read.isdigit() and len(read) < 19) or read == b"-1"):
            return False
        group = stream.groups.get(name)
        if group is None:
            return False
        entries_read = None if read == b"-1" else min(int(read), stream.entries_added)
        block, at = self._block, self._at
        if group is self._group and block is not None and 0 < at <= len(block.ids) and block.ids[at - 1] == entry_id:
            group.entries_read = entries_read
            group.block = block
            group.step_to(block.ids[at - 1], at)  # it has just been delivered
            return True
        last = as_key(entry_id)
        if last is None:
            return False
        group.move_to(last, entries_read)
        return True

    def xack(self, argv: list[bytes]) -> bool:
        """XACK key group id"""
        stream = self._values.get(argv[1])
        if len(argv) != 4 or type(stream) is not Stream:
            return False
        group = stream.groups.get(argv[2])
        return group is not None and group.pending.remove(argv[3])


def as_key(entry_id: bytes) -> int | None:
    """Return the key of an id in the form that this server writes, None for other forms."""
    ms, _, seq = entry_id.partition(b"-")
    if not ms.isdigit() or not seq.isdigit() or len(ms) > 18 or len(seq) > 18:
        return None
    if (ms[0] == 48 and len(ms) > 1) or (seq[0] == 48 and len(seq) > 1):
        return None
    return int(ms) << 64 | int(seq)


def is_above(entry_id: bytes, other: bytes) -> bool:
    """Return whether an id is above another, by their texts: more digits mean more. An empty id is below all."""
    dash, other_dash = entry_id.find(b"-"), other.find(b"-")
    if dash != other_dash:
        return dash > other_dash
    if len(entry_id) == len(other):
        return entry_id > other
    ms, other_ms = entry_id[:dash], other[:dash]
    return len(entry_id) > len(other) if ms == other_ms else ms > other_ms
