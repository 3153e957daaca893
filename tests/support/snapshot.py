"""All that a client could find out about a keyspace, in plain values that compare."""

from __future__ import annotations

from millstream.engine.keys.keyspace import Keyspace
from millstream.engine.streams.stream import Stream


def snapshot(keyspace: Keyspace) -> list[object]:
    """Every key of every database with its value; claim order and counters included."""
    return [
        (database.index, key, database.expires.get(key), _value(value))
        for database in keyspace
        for key, value in database.values.items()
    ]


def _value(value: object) -> object:
    if not isinstance(value, Stream):
        return repr(value) if not hasattr(value, "ordered") else repr(value.ordered)
    groups = []
    for name, group in value.groups.items():
        pending = group.pending
        rows = [(i, h.consumer and h.consumer.name, h.time_ms, h.count) for i, h in pending.in_order(0, 2**128)]
        order = [i for hold in pending.claim_order() for i, _ in pending.live_items(hold)]
        consumers = [(c.name, c.seen_ms, c.active_ms, c.pending) for c in group.consumers.values()]
        groups.append((name, group.last, group.entries_read, rows, order, consumers))
    records = {producer: dict(known) for producer, known in value.producers.items() if known}
    return (
        value.entries.read(0, 2**128),
        value.last,
        value.max_deleted,
        value.entries_added,
        value.idmp_duration,
        value.idmp_maxsize,
        records,
        value.iids_added,
        groups,
    )
