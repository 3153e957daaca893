"""What a step may do on a broker in this process, instead of a script: `client.calls.Inside`.

Nothing comes between the parts of such a step, because the broker's lock is held. What it logs is one unit, as what a
script does. Fast path for the scripts and commands of `delivery.steps`. Test: `tests/delivery/test_inside.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.engine.streams.stream import Stream

if TYPE_CHECKING:
    from millstream.broker import Broker

Row = tuple[bytes, list[bytes], int, int]  # id, names and values, idle ms, deliveries before


class BrokerInside:
    """Implements `Inside` by direct calls."""

    __slots__ = ("_broker", "_db", "_hub", "append")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._hub = broker._hub
        self._db = broker._db
        self.append = broker.append_words

    def read(self, key: bytes, group: bytes, consumer: bytes, count: int, claim_ms: int | None) -> list[Row] | None:
        """Deliver entries to a consumer; None if there is none, or if the command must do it."""
        found = self._broker._read_one(group, consumer, {key: b">"}, count, claim_ms)
        if found is None:
            return None
        return [(each.id, each._flat(), each.idle_ms or 0, each.delivery_count or 0) for each in found[key]]

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

    def has(self, key: bytes) -> bool:
        """Whether there is such a key."""
        database = self._hub.keyspace.databases[self._db]
        return key in database.values and (key not in database.expires or bool(self.run(b"EXISTS", key)))

    def run(self, *argv: bytes) -> Any:
        """Run a command. Returns its reply; an error is a reply too."""
        return self._hub.run_one(list(argv), self._db)
