"""What a step may do on a broker in this process, instead of a script: `client.calls.Inside`.

Nothing comes between the parts of such a step, because the broker's lock is held. What it logs is one unit, as what a
script does. Fast path for the scripts and commands of `delivery.steps`. Test: `tests/delivery/test_inside.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.engine.commands.streams.group import deliver, next_entries
from millstream.engine.keys.values import Hash
from millstream.engine.streams.entries import decode_fields
from millstream.engine.streams.ids import order
from millstream.engine.streams.stream import Stream

if TYPE_CHECKING:
    from millstream.broker import Broker

_SMALL = 18  # digits of a counter that stays far below 64 bits
Row = tuple[bytes, list[bytes]]  # id, names and values


class BrokerInside:
    """Implements `Inside` by direct calls."""

    __slots__ = ("_broker", "_db", "_hub", "append")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._hub = broker._hub
        self._db = broker._db
        self.append = broker.append_words

    def read(self, key: bytes, group: bytes, consumer: bytes, count: int, claim_ms: int | None) -> list[Row] | None:
        """Deliver new entries to a consumer; None if there is none, or if the command must do it."""
        hub = self._hub
        stream = self._unobserved(key)
        if type(stream) is not Stream:
            return None
        found = stream.groups.get(group)
        member = None if found is None else found.consumers.get(consumer)
        if found is None or member is None:
            return None
        now_ms = hub.now_ms()
        if claim_ms is not None:
            first = next(found.pending.claim_order(), None)
            if claim_ms < 0 or (first is not None and found.pending.is_due(first, now_ms, claim_ms)):
                return None
        ids, contents, blocks = next_entries(stream, found, count)
        if not ids:
            return None
        deliver(stream, found, member, now_ms, ids, blocks, no_ack=False)
        member.seen_ms = now_ms
        hub.dirty += 1
        return [(entry_id, decode_fields(fields)) for entry_id, fields in zip(ids, contents, strict=True)]

    def held(self, key: bytes, group: bytes, entry_id: bytes) -> tuple[bytes, int] | None:
        """Return the owner of a pending entry, b"" if it has none, and its deliveries; None if it is not pending."""
        database = self._hub.keyspace.databases[self._db]
        stream = database.values.get(key)
        found = stream.groups.get(group) if type(stream) is Stream and key not in database.expires else None
        hold = None if found is None else found.pending.by_id.get(entry_id)
        if hold is not None:
            return b"" if hold.consumer is None else hold.consumer.name, hold.count
        rows = self.run(b"XPENDING", key, group, entry_id, entry_id, b"1")
        if isinstance(rows, Exception):
            raise rows
        return (rows[0][1] or b"", rows[0][3]) if rows else None

    def acknowledge(self, key: bytes, group: bytes, ids: list[bytes], *, keep_done: bool) -> None:
        """Do what XACK does, or without `keep_done` XACKDEL ACKED, to entries that are pending."""
        stream = self._unobserved(key)
        found = stream.groups.get(group) if type(stream) is Stream else None
        if type(stream) is not Stream or found is None:
            what = (b"XACK", key, group) if keep_done else (b"XACKDEL", key, group, b"ACKED", b"IDS", b"%d" % len(ids))
            reply = self.run(*what, *ids)
            if isinstance(reply, Exception):
                raise reply
            return
        for entry_id in ids:
            found.pending.remove(entry_id)
            if not keep_done and not stream.is_referenced(entry_id, at := order(entry_id)):
                stream.delete(entry_id, at)
        self._hub.dirty += len(ids)

    def count(self, key: bytes, field: bytes, by: int) -> None:
        """Do what HINCRBY does; what it refuses is not counted."""
        counters = self._unobserved(key)
        old = counters.get(field, b"") if type(counters) is Hash else b""
        if type(counters) is Hash and old.isdigit() and len(old) < _SMALL:
            counters[field] = b"%d" % (int(old) + by)
            self._hub.dirty += 1
        else:
            self.run(b"HINCRBY", key, field, b"%d" % by)

    def _unobserved(self, key: bytes) -> object:
        """Return a value whose changes nobody is told of, None where a command must change it."""
        hub, db = self._hub, self._db
        database = hub.keyspace.databases[db]
        if hub.observed and (hub.keeps_log or hub.is_told or (db, key) in hub.waiters):
            return None
        return None if key in database.expires else database.values.get(key)

    def has(self, key: bytes) -> bool:
        """Whether there is such a key."""
        database = self._hub.keyspace.databases[self._db]
        return key in database.values and (key not in database.expires or bool(self.run(b"EXISTS", key)))

    def run(self, *argv: bytes) -> Any:
        """Run a command. Returns its reply; an error is a reply too."""
        return self._hub.run_one(list(argv), self._db)
