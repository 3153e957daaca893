"""Write the state as the shortest list of commands that rebuilds it, key by key, in Redis's own forms.

    stream        XADD for each entry, XSETID; for each group XGROUP CREATE, for each consumer XCLAIM … JUSTID FORCE
                  for what it holds or XGROUP CREATECONSUMER, XNACK for what is released; XCFGSET, XIDMPRECORD
    plain keys    SET, RPUSH, SADD, ZADD, HMSET
    expiry        PEXPIREAT

This is the form for a base without RDB (`aof-use-rdb-preamble no`). It loses the same state as in Redis: pending
entries whose stream entry is gone, the last activity of consumers, idempotency records of deleted entries and their
number, and the order among pending entries of the same delivery time. An RDB base keeps all but the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Final, TypeVar

from millstream.engine.keys.keyspace import Database, Keyspace, KeyspaceSettings
from millstream.engine.keys.values import Hash, List, SetOf, SortedSet
from millstream.engine.streams.groups import Group
from millstream.engine.streams.ids import MAX_KEY, text_of
from millstream.engine.streams.pending import PendingList
from millstream.engine.streams.stream import Stream
from millstream.engine.text.floats import double_text
from millstream.persistence.aof.writer import encode_line

BATCH: Final = 64  # elements per command, as in Redis

Item = TypeVar("Item")


def rewritten(keyspace: Keyspace) -> Iterator[bytes]:
    """Yield a log that rebuilds the keyspace, in pieces."""
    for db in keyspace:
        if db.values:
            yield encode_line((b"SELECT", b"%d" % db.index))
            yield from _database(db, keyspace.settings)


def _database(db: Database, settings: KeyspaceSettings) -> Iterator[bytes]:
    for key, value in db.values.items():
        yield from key_commands(key, value, settings)
        at_ms = db.expires.get(key)
        if at_ms is not None:
            yield encode_line((b"PEXPIREAT", key, b"%d" % at_ms))


def key_commands(key: bytes, value: object, settings: KeyspaceSettings) -> Iterator[bytes]:
    """Yield the commands that rebuild a key without its expiry, in pieces."""
    match value:
        case bytes():
            yield encode_line((b"SET", key, value))
        case Stream():
            yield from _stream(key, value, settings)
        case List():
            yield from _in_batches(b"RPUSH", key, ((element,) for element in value))
        case SetOf():
            yield from _in_batches(b"SADD", key, ((member,) for member in value))
        case SortedSet():
            yield from _in_batches(b"ZADD", key, ((double_text(score), member) for score, member in value))
        case Hash():
            yield from _in_batches(b"HMSET", key, value.items())
        case _:
            raise TypeError(f"key {key!r} holds a {type(value).__name__}")


def _in_batches(name: bytes, key: bytes, items: Iterable[tuple[bytes, ...]]) -> Iterator[bytes]:
    for batch in _batched(items):
        yield encode_line((name, key, *(word for item in batch for word in item)))


def _batched(items: Iterable[Item]) -> Iterator[list[Item]]:
    rest = iter(items)
    while batch := list(islice(rest, BATCH)):
        yield batch


# Streams


def _stream(key: bytes, stream: Stream, settings: KeyspaceSettings) -> Iterator[bytes]:
    if len(stream):
        yield from _entries(key, stream)
    else:
        yield encode_line((b"XADD", key, b"MAXLEN", b"0", b"0-1", b"x", b"y"))
    added, deleted = b"%d" % stream.entries_added, text_of(stream.max_deleted)
    yield encode_line((b"XSETID", key, text_of(stream.last), b"ENTRIESADDED", added, b"MAXDELETEDID", deleted))
    for group in stream.sorted_groups():
        yield from _group(key, group)
    yield from _records(key, stream, settings)


def _entries(key: bytes, stream: Stream) -> Iterator[bytes]:
    """Yield one XADD per entry from its encoded fields: `*2 …` becomes the rest of `*5 XADD key id …`."""
    head = b"$4\r\nXADD\r\n$%d\r\n%b\r\n" % (len(key), key)
    for block, low, high in stream.entries.spans(0, MAX_KEY):
        parts = []
        for entry_id, fragment in zip(block.ids[low:high], block.slice(low, high), strict=True):
            line_end = fragment.index(b"\r\n") + 2
            words = int(fragment[1 : line_end - 2]) + 3
            parts.append(b"*%d\r\n%b$%d\r\n%b\r\n%b" % (words, head, len(entry_id), entry_id, fragment[line_end:]))
        yield b"".join(parts)


def _group(key: bytes, group: Group) -> Iterator[bytes]:
    name, pending = group.name, group.pending
    read = -1 if group.entries_read is None else group.entries_read
    yield encode_line((b"XGROUP", b"CREATE", key, name, text_of(group.last), b"ENTRIESREAD", b"%d" % read))
    for consumer in group.sorted_consumers():
        if not consumer.pending:
            yield encode_line((b"XGROUP", b"CREATECONSUMER", key, name, consumer.name))
        for ids in _batched(pending.of_consumer(consumer, 0)):
            holds = [pending.by_id[entry_id] for entry_id in ids]
            yield b"".join(
                encode_line(
                    (
                        b"XCLAIM",
                        key,
                        name,
                        consumer.name,
                        b"0",
                        entry_id,
                        b"TIME",
                        b"%d" % hold.time_ms,
                        b"RETRYCOUNT",
                        b"%d" % hold.count,
                        b"JUSTID",
                        b"FORCE",
                    )
                )
                for entry_id, hold in zip(ids, holds, strict=True)
            )
    yield from _released(key, name, pending)


def _released(key: bytes, name: bytes, pending: PendingList) -> Iterator[bytes]:
    """Yield the released zone in its order, with one command for neighbours of equal delivery count."""
    zone = ((entry_id, hold.count) for hold in pending.zone.walk() for entry_id, _ in pending.live_items(hold))
    for count, run in groupby(zone, key=lambda item: item[1]):
        for batch in _batched(entry_id for entry_id, _ in run):
            words: Sequence[bytes] = (b"%d" % len(batch), *batch, b"RETRYCOUNT", b"%d" % count, b"FORCE")
            yield encode_line((b"XNACK", key, name, b"FAIL", b"IDS", *words))


def _records(key: bytes, stream: Stream, settings: KeyspaceSettings) -> Iterator[bytes]:
    """Yield the idempotency records of existing entries."""
    duration, maxsize = stream.idmp_duration, stream.idmp_maxsize
    if (duration, maxsize) != (settings.stream_idmp_duration, settings.stream_idmp_maxsize):
        words = (b"IDMP-DURATION", b"%d" % duration, b"IDMP-MAXSIZE", b"%d" % maxsize)
        yield encode_line((b"XCFGSET", key, *words))
    for producer, records in sorted(stream.producers.items()):
        for idempotent_id, id_key in records.items():
            entry_id = text_of(id_key)
            if stream.entries.find(entry_id) is not None:
                yield encode_line((b"XIDMPRECORD", key, producer, idempotent_id, entry_id))
