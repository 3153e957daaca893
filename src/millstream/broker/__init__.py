"""The broker inside a Python program: streams by direct calls, and redis-py clients that need no server.

    Broker ── xadd, xreadgroup, xack, … ──▶ engine          direct calls, typed, bytes in and out
       ├───── client()  ──▶ redis.Redis          ─┐
       └───── aclient() ──▶ redis.asyncio.Redis  ─┴▶ Session ──▶ engine

All of them see the same keys, from any thread. A direct call goes through the same commands as a client's, but for
the few that a worker calls for every entry (append, read one's share, acknowledge, release): these have a second,
shorter way for the case that nobody has to be told but the log (no watcher, no waiting reader), and tests that hold
both ways against each other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast

import hiredis

from millstream.broker import durable
from millstream.clock import Clock, SystemClock
from millstream.engine.commands.streams.group import deliver, deliver_run, has_new_entries, next_entries
from millstream.engine.outcome import Reply
from millstream.engine.streams.entries import Sealed, decode_fields
from millstream.engine.streams.groups import Group
from millstream.engine.streams.ids import MAX_KEY, text_of
from millstream.engine.streams.pending import GroupConsumer, PendingList
from millstream.engine.streams.stream import Stream
from millstream.server.core.hub import Hub, LogLine
from millstream.server.protocol.resp import encode

if TYPE_CHECKING:
    import redis
    import redis.asyncio

    from millstream.persistence.files import Files
    from millstream.server.net.listener import Endpoints
    from millstream.server.net.serve import BackgroundServer

Text = str | bytes
Value = str | bytes | int | float
Fsync = Literal["always", "everysec", "no"]
References = Literal["KEEPREF", "DELREF", "ACKED"]
ReleaseMode = Literal["SILENT", "FAIL", "FATAL"]

_SEQUENCES = 1 << 64  # in one millisecond


class Entry:
    """An entry as it was read. Its fields are decoded when they are asked for: keep them if used twice."""

    __slots__ = ("_fields", "delivery_count", "id", "idle_ms")

    def __init__(
        self,
        entry_id: bytes,
        fields: bytes | Sealed | list[bytes],
        idle_ms: int | None = None,
        count: int | None = None,
    ) -> None:
        self.id = entry_id
        self._fields = fields
        self.idle_ms = idle_ms  # a CLAIM read: how long it had been pending; else None
        self.delivery_count = count  # a CLAIM read: deliveries before this one, 0 for a new entry; else None

    @property
    def items(self) -> list[tuple[bytes, bytes]]:
        """Names and values in order; a name may come twice."""
        flat = self._flat()
        return list(zip(flat[::2], flat[1::2], strict=True))

    @property
    def fields(self) -> dict[bytes, bytes]:
        """Names to values."""
        flat = self._flat()
        if len(flat) == 2:
            return {flat[0]: flat[1]}
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def _flat(self) -> list[bytes]:
        raw = self._fields
        if type(raw) is Sealed:
            raw = raw.fragment(raw.place(self.id))
        return decode_fields(raw) if type(raw) is bytes else cast("list[bytes]", raw)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self.id == other.id and self._flat() == other._flat()

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Entry(id={self.id!r}, fields={self.fields!r})"


@dataclass(frozen=True, slots=True)
class PendingSummary:
    """What is pending in a group."""

    count: int
    lowest: bytes | None
    highest: bytes | None
    consumers: dict[bytes, int]  # only those that hold something; released entries are nobody's


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """One pending entry."""

    id: bytes
    consumer: bytes | None  # None: released
    idle_ms: int | None  # None: released
    delivery_count: int


@dataclass(frozen=True, slots=True)
class AutoClaimed:
    """What an XAUTOCLAIM found."""

    cursor: bytes  # where to go on; b"0-0" when all was seen
    entries: list[Entry]  # with JUSTID: without fields
    deleted: list[bytes]  # were pending without an entry; no longer pending


class Broker:
    """A stream broker in this process: in memory, gone when it is closed or dropped, or kept in a directory."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        appendfsync: Fsync = "everysec",
        clock: Clock | None = None,
        db: int = 0,
        files: Files | None = None,
    ) -> None:
        """With a path everything is kept there, and what is there already is loaded.

        `appendfsync` says when a change is safe from a power cut: before the call that made it returns (always),
        within a second (everysec), when the system sees fit (no). A directory is one process's at a time:
        PersistenceError names the other one. CorruptFile says where a damaged log is damaged. `files` are for tests.
        """
        directory = None if path is None else Path(path).absolute()
        settings = None if directory is None else durable.settings(directory, appendfsync)
        self._hub = Hub(clock=clock or SystemClock(), settings=settings)
        self._is_kept = directory is not None
        if directory is not None:
            durable.open_in(self._hub, directory, files)
        self._db = db
        self._databases = self._hub.keyspace.databases
        self._settings = self._hub.keyspace.settings
        # as a pair, and not as a context manager, in the hot calls: CPython takes twice as long for `with`
        self._acquire, self._release = self._hub.lock.acquire, self._hub.lock.release
        self._now_ms = self._hub.clock.now_ms

    def close(self) -> None:
        """End what runs in the background; blocked readers are let go.

        With a path: everything is on the disk then, or WriteFailed says why not; every later call is refused.
        """
        if self._is_kept:
            durable.close(self._hub)
        else:
            self._hub.close()

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def client(self, **options: Any) -> redis.Redis:
        """Return a redis-py client of this broker: no socket, no server. `options` are redis-py's own."""
        from millstream.broker.redis_clients import make_client

        return make_client(self._hub, **{"db": self._db, **options})

    def aclient(self, **options: Any) -> redis.asyncio.Redis:
        """Return an asyncio client of this broker."""
        from millstream.broker.redis_clients import make_async_client

        return make_async_client(self._hub, **{"db": self._db, **options})

    def serve(
        self, host: str = "127.0.0.1", port: int = 6379, *, unix_socket: str | None = None, password: str | None = None
    ) -> None:
        """Serve these streams to any Redis client, until SIGINT or SIGTERM; for the main thread.

        An address that other machines can reach needs a password. Port 0 is any free one.
        """
        from millstream.server.net.serve import Server

        Server(self._hub, self._endpoints(host, port, unix_socket, password)).run(signals=True)

    def serve_in_background(
        self, host: str = "127.0.0.1", port: int = 0, *, unix_socket: str | None = None, password: str | None = None
    ) -> BackgroundServer:
        """As `serve`, in a thread: what comes back has `host`, `port` and `stop()`, and can be used with `with`."""
        from millstream.server.net.serve import BackgroundServer

        return BackgroundServer(self._hub, self._endpoints(host, port, unix_socket, password))

    def _endpoints(self, host: str, port: int, unix_socket: str | None, password: str | None) -> Endpoints:
        from millstream.server.net.listener import Endpoints

        if password is not None:
            self._hub.run([b"CONFIG", b"SET", b"requirepass", password.encode()])
        return Endpoints((host,), port, unix_socket=unix_socket)

    def execute(self, *words: Value) -> Any:
        """Run any command; its reply as redis-py would show it before its own conversions (RESP3 shapes)."""
        return self._parse(self._run([_raw(word) for word in words]))

    def _run(self, argv: list[bytes]) -> Reply:
        return self._hub.run(argv, db=self._db)

    def _parse(self, reply: Reply) -> Any:
        reader = hiredis.Reader()
        reader.feed(encode(reply, 3))
        return reader.gets()

    # Appending

    # The methods that workers call for every entry take their options by position too: CPython fills in the
    # defaults of keyword-only ones a look-up each, which was a tenth of such a call.

    def xadd(
        self,
        key: Text,
        fields: Mapping[Any, Any],
        entry_id: Text | None = None,
        nomkstream: bool = False,
        maxlen: int | None = None,
        minid: Text | None = None,
        approximate: bool = False,
        limit: int | None = None,
        references: References | None = None,
        producer: Text | None = None,
        idempotent_id: Text | None = None,
    ) -> bytes | None:
        """Append an entry; its id, or None with `nomkstream` and no such stream.

        `producer` makes the append idempotent: with `idempotent_id`, or else by the fields, a repeated call answers
        with the id of the first.
        """
        if type(key) is not bytes:
            key = _raw(key)
        if entry_id is None and maxlen is None and minid is None and producer is None and not nomkstream:
            made = self._append(key, fields)
            if made is not None:
                return made
        argv = [b"XADD", key]
        if nomkstream:
            argv.append(b"NOMKSTREAM")
        if references is not None:
            argv.append(references.encode())
        if producer is not None:
            argv += (
                [b"IDMPAUTO", _raw(producer)]
                if idempotent_id is None
                else [b"IDMP", _raw(producer), _raw(idempotent_id)]
            )
        argv += _trim_words(maxlen, minid, approximate, limit)
        argv.append(b"*" if entry_id is None else _raw(entry_id))
        for name, value in fields.items():
            argv += (_raw(name), _raw(value))
        return cast("bytes | None", self._run(argv))

    def _append(self, key: bytes, fields: Mapping[Any, Any]) -> bytes | None:
        """Fast path for an append with a new id. Returns None when the general path must run."""
        flat: list[bytes] = []
        for name, value in fields.items():
            flat.append(name if type(name) is bytes else _raw(name))
            flat.append(value if type(value) is bytes else _raw(value))
        return self.append_words(key, flat) if flat else None

    def append_words(self, key: bytes, words: list[bytes]) -> bytes | None:
        """Do the same with names and values in turn."""
        hub = self._hub
        self._acquire()
        try:
            database = self._databases[self._db]
            stream = database.values.get(key)
            if type(stream) is not Stream or (hub.observed and self._must_tell(key)) or key in database.expires:
                return None
            now_ms = self._now_ms()
            start = new = now_ms << 64
            last = stream.last
            if new > last:
                made = b"%d-0" % now_ms
            else:
                new = last + 1
                # in the same millisecond the distance from its start is the sequence number
                made = b"%d-%d" % (now_ms, new - start) if new - start < _SEQUENCES else text_of(new)
            if new > MAX_KEY:
                return None
            if len(words) > 2:
                stream.append(made, new, words, self._settings)
            else:
                stream.append_field(made, new, words[0], words[1], self._settings)
            hub.dirty += 1
            if hub.keeps_log:
                self._log((self._db, (b"XADD", key, made, *words)))
            return made
        finally:
            self._release()

    def _must_tell(self, key: bytes) -> bool:
        """Whether a change of a key is somebody's business besides the log's, or may be refused; under the lock."""
        hub = self._hub
        return bool(hub.is_told or hub.monitors or hub.gates or (hub.has_waiters and (self._db, key) in hub.waiters))

    def _log(self, *lines: LogLine) -> None:
        """Log what a short way has done, as the long way would; back when that is as safe as was asked for."""
        hub = self._hub
        try:
            if hub.encoded:
                hub.hand_in()  # what others did before
            if hub.journal is not None:
                hub.journal(list(lines))
        except MemoryError:
            hub.log_later(list(lines))
        refusal = hub.send_output()
        if refusal is not None:
            raise refusal

    def xtrim(
        self,
        key: Text,
        *,
        maxlen: int | None = None,
        minid: Text | None = None,
        approximate: bool = False,
        limit: int | None = None,
        references: References | None = None,
    ) -> int:
        """Remove the oldest entries, by length or by id; how many went."""
        argv = [b"XTRIM", _raw(key), *_trim_words(maxlen, minid, approximate, limit)]
        if references is not None:
            argv.append(references.encode())
        return cast(int, self._run(argv))

    def xdel(self, key: Text, *ids: Text) -> int:
        """Delete entries; how many there were."""
        return cast(int, self._run([b"XDEL", _raw(key), *map(_raw, ids)]))

    def xdelex(self, key: Text, *ids: Text, references: References = "KEEPREF") -> list[int]:
        """Delete entries: for each id 1 deleted, -1 not there, 2 kept because it is referenced."""
        return cast("list[int]", self._run([b"XDELEX", _raw(key), references.encode(), *_id_block(ids)]))

    def xsetid(
        self, key: Text, entry_id: Text, *, entries_added: int | None = None, max_deleted: Text | None = None
    ) -> None:
        """Set the last id of a stream and the counters that outlive entries."""
        argv = [b"XSETID", _raw(key), _raw(entry_id)]
        if entries_added is not None:
            argv += [b"ENTRIESADDED", b"%d" % entries_added]
        if max_deleted is not None:
            argv += [b"MAXDELETEDID", _raw(max_deleted)]
        self._run(argv)

    def xcfgset(self, key: Text, *, duration_s: int | None = None, maxsize: int | None = None) -> None:
        """Set how long, and how many a producer, idempotency records are kept."""
        argv = [b"XCFGSET", _raw(key)]
        if duration_s is not None:
            argv += [b"IDMP-DURATION", b"%d" % duration_s]
        if maxsize is not None:
            argv += [b"IDMP-MAXSIZE", b"%d" % maxsize]
        self._run(argv)

    # Reading

    def xlen(self, key: Text) -> int:
        """How many entries a stream has; 0 if it is missing."""
        return cast(int, self._run([b"XLEN", _raw(key)]))

    def xrange(self, key: Text, start: Text = b"-", end: Text = b"+", count: int | None = None) -> list[Entry]:
        """Entries between two ids, oldest first."""
        return self._range(b"XRANGE", key, start, end, count)

    def xrevrange(self, key: Text, end: Text = b"+", start: Text = b"-", count: int | None = None) -> list[Entry]:
        """Entries between two ids, newest first."""
        return self._range(b"XREVRANGE", key, end, start, count)

    def _range(self, command: bytes, key: Text, first: Text, second: Text, count: int | None) -> list[Entry]:
        argv = [command, _raw(key), _raw(first), _raw(second)]
        if count is not None:
            argv += [b"COUNT", b"%d" % count]
        return _entries(self._parse(self._run(argv)))

    def xread(
        self,
        streams: Mapping[Any, Text],
        *,
        count: int | None = None,
        block_ms: int | None = None,
        max_count: int | None = None,
        max_size: int | None = None,
    ) -> dict[bytes, list[Entry]]:
        """Entries after the given ids, by stream; with `block_ms` wait for some (0: for ever)."""
        argv = [b"XREAD", *_read_words(count, block_ms, max_count, max_size), *_streams_words(streams)]
        return self._read(argv, block_ms)

    def _read(self, argv: list[bytes], block_ms: int | None) -> dict[bytes, list[Entry]]:
        if block_ms is None:
            reply = self._run(argv)
        else:
            reply = self._hub.run_blocking(argv, db=self._db)
        found = self._parse(reply)
        return {key: _entries(rows) for key, rows in found.items()} if found else {}

    # Groups

    def xgroup_create(
        self, key: Text, group: Text, entry_id: Text = b"$", *, mkstream: bool = False, entries_read: int | None = None
    ) -> None:
        """Make a group that starts after an id: `$` the end, `0` the beginning."""
        argv = [b"XGROUP", b"CREATE", _raw(key), _raw(group), _raw(entry_id)]
        if mkstream:
            argv.append(b"MKSTREAM")
        if entries_read is not None:
            argv += [b"ENTRIESREAD", b"%d" % entries_read]
        self._run(argv)

    def xgroup_setid(self, key: Text, group: Text, entry_id: Text, *, entries_read: int | None = None) -> None:
        """Set the id after which a group reads on."""
        argv = [b"XGROUP", b"SETID", _raw(key), _raw(group), _raw(entry_id)]
        if entries_read is not None:
            argv += [b"ENTRIESREAD", b"%d" % entries_read]
        self._run(argv)

    def xgroup_destroy(self, key: Text, group: Text) -> bool:
        """Remove a group; whether there was one."""
        return self._run([b"XGROUP", b"DESTROY", _raw(key), _raw(group)]) == 1

    def xgroup_createconsumer(self, key: Text, group: Text, consumer: Text) -> bool:
        """Make a consumer; whether it is new."""
        return self._run([b"XGROUP", b"CREATECONSUMER", _raw(key), _raw(group), _raw(consumer)]) == 1

    def xgroup_delconsumer(self, key: Text, group: Text, consumer: Text) -> int:
        """Remove a consumer; how many entries were pending for it and are no longer."""
        return cast(int, self._run([b"XGROUP", b"DELCONSUMER", _raw(key), _raw(group), _raw(consumer)]))

    def xreadgroup(
        self,
        group: Text,
        consumer: Text,
        streams: Mapping[Any, Text],
        count: int | None = None,
        block_ms: int | None = None,
        claim_ms: int | None = None,
        noack: bool = False,
        max_count: int | None = None,
        max_size: int | None = None,
    ) -> dict[bytes, list[Entry]]:
        """Entries for a consumer, by stream: new ones for the id `>`, its own pending ones after any other id.

        `claim_ms` first takes over what has been pending that long, released entries before all others.
        """
        if type(group) is not bytes:
            group = _raw(group)
        if type(consumer) is not bytes:
            consumer = _raw(consumer)
        if not noack and max_count is None and max_size is None and len(streams) == 1 and (count is None or count > 0):
            found = self._read_one(group, consumer, streams, count, claim_ms)
            if found is not None:
                return found
        argv = [b"XREADGROUP", b"GROUP", group, consumer, *_read_words(count, block_ms, max_count, max_size)]
        if claim_ms is not None:
            argv += [b"CLAIM", b"%d" % claim_ms]
        if noack:
            argv.append(b"NOACK")
        return self._read(argv + _streams_words(streams), block_ms)

    def _read_one(
        self, group_name: bytes, name: bytes, streams: Mapping[Any, Text], count: int | None, claim_ms: int | None
    ) -> dict[bytes, list[Entry]] | None:
        """Fast path for one stream and new or due entries. Returns None when the general path must run."""
        ((key, after),) = streams.items()
        if after != b">" and after != ">":
            return None
        if type(key) is not bytes:
            key = _raw(key)
        self._acquire()
        try:
            database = self._databases[self._db]
            stream = database.values.get(key)
            is_logged = self._hub.keeps_log
            if type(stream) is not Stream or (self._hub.observed and self._must_tell(key)) or key in database.expires:
                return None
            group = stream.groups.get(group_name)
            if group is None:
                return None
            consumer = group.consumers.get(name)
            if consumer is None:
                return None
            now_ms = self._now_ms()
            if count == 1 and claim_ms is None:
                before = group.mark
                run = deliver_run(stream, group, consumer, now_ms, 1)
                if run is not None:
                    consumer.seen_ms = now_ms
                    self._hub.dirty += 1
                    if is_logged:
                        self._log(*self._delivery(key, group, name, now_ms, before))
                    return {key: [Entry(run[0][0], run[1][0])]}
            if is_logged:
                return None  # how to log more than that is known to the long way
            entries = self._take(stream, group, consumer, now_ms, claim_ms, count)
            if not entries:
                return None  # to wait, or to answer as the long way does
            consumer.seen_ms = now_ms
            self._hub.dirty += 1
            return {key: entries}
        finally:
            self._release()

    def _delivery(
        self, key: bytes, group: Group, name: bytes, now_ms: int, before: bytes
    ) -> tuple[LogLine, LogLine, LogLine, LogLine]:
        """How the delivery of one new entry is logged."""
        db, last = self._db, group.mark
        read = -1 if group.entries_read is None else group.entries_read
        claim = (
            b"XCLAIM",
            key,
            group.name,
            name,
            b"0",
            last,
            b"TIME",
            b"%d" % now_ms,
            b"RETRYCOUNT",
            b"1",
            b"FORCE",
            b"JUSTID",
            b"LASTID",
            before,
        )
        moved = (b"XGROUP", b"SETID", key, group.name, last, b"ENTRIESREAD", b"%d" % read)
        return (db, (b"MULTI",)), (db, claim), (db, moved), (db, (b"EXEC",))

    def _take(
        self,
        stream: Stream,
        group: Group,
        consumer: GroupConsumer,
        now_ms: int,
        claim_ms: int | None,
        limit: int | None,
    ) -> list[Entry]:
        """Due entries if asked for, then new ones."""
        entries: list[Entry] = []
        if claim_ms is not None:
            if claim_ms < 0 or now_ms < claim_ms:
                return entries  # an error, or released entries that are not due yet: the long way knows
            entries = self._claim_due(stream, group, consumer, now_ms, claim_ms, limit)
            if len(entries) == limit:
                return entries
        if has_new_entries(stream, group):
            left = None if limit is None else limit - len(entries)
            ids, fragments, blocks = next_entries(stream, group, left)
            deliver(stream, group, consumer, now_ms, ids, blocks, no_ack=False)
            if claim_ms is None:
                entries += map(Entry, ids, fragments)
            else:
                entries += map(Entry, ids, fragments, repeat(0), repeat(0))
        return entries

    def _claim_due(
        self, stream: Stream, group: Group, consumer: GroupConsumer, now_ms: int, min_idle_ms: int, limit: int | None
    ) -> list[Entry]:
        """Take over due entries in claim order; written for many at once."""
        pending = group.pending
        entries: list[Entry] = []
        taken = []
        for hold in pending.claim_order():
            if not pending.is_due(hold, now_ms, min_idle_ms):
                break
            left = None if limit is None else limit - len(entries)
            ids, blocks, contents = pending.live_entries(hold, stream.entries, left)
            if ids:
                taken.append((hold, ids, blocks))
                entries += map(Entry, ids, contents, repeat(now_ms - hold.time_ms), repeat(hold.count))
                if len(entries) == limit:
                    break
        for hold, ids, blocks in taken:
            pending.give_all(hold, ids, blocks, consumer, now_ms)
        if taken:
            pending.keep_small(consumer)
            consumer.active_ms = now_ms
        return entries

    # Settling

    def xack(self, key: Text, group: Text, *ids: Text) -> int:
        """Acknowledge entries; how many of them were pending."""
        if len(ids) == 1:
            self._acquire()
            try:
                entry_id = ids[0] if type(ids[0]) is bytes else _raw(ids[0])
                pending = self._pending_to_settle(key, group)
                # an id that is not in canonical form is not found here, and takes the long way
                if pending is not None and pending.remove(entry_id):
                    self._hub.dirty += 1
                    if self._hub.keeps_log:
                        self._log((self._db, (b"XACK", _raw(key), _raw(group), entry_id)))
                    return 1
            finally:
                self._release()
        return cast(int, self._run([b"XACK", _raw(key), _raw(group), *map(_raw, ids)]))

    def _pending_to_settle(self, key: Text, group: Text) -> PendingList | None:
        """Return a group's pending list if no one observes its changes, else None. Call this under the lock."""
        if type(key) is not bytes:
            key = _raw(key)
        database = self._databases[self._db]
        stream = database.values.get(key)
        if type(stream) is not Stream or (self._hub.observed and self._must_tell(key)) or key in database.expires:
            return None
        found = stream.groups.get(group if type(group) is bytes else _raw(group))
        return None if found is None else found.pending

    def xackdel(self, key: Text, group: Text, *ids: Text, references: References = "KEEPREF") -> list[int]:
        """Acknowledge and delete: for each id 1 done, 2 acknowledged and kept as referenced, -1 not pending."""
        argv = [b"XACKDEL", _raw(key), _raw(group), references.encode(), *_id_block(ids)]
        return cast("list[int]", self._run(argv))

    def xnack(
        self,
        key: Text,
        group: Text,
        *ids: Text,
        mode: ReleaseMode = "FAIL",
        retry_count: int | None = None,
        force: bool = False,
    ) -> int:
        """Release entries: nobody's, and the first to be claimed. How many were released."""
        if len(ids) == 1 and mode == "FAIL" and retry_count is None:
            entry_id = ids[0] if type(ids[0]) is bytes else _raw(ids[0])
            self._acquire()
            try:
                pending = None if self._hub.keeps_log else self._pending_to_settle(key, group)
                hold = None if pending is None else pending.by_id.get(entry_id)
                if pending is not None and hold is not None:
                    pending.release(entry_id, hold.count)
                    self._hub.dirty += 1
                    return 1
            finally:
                self._release()
        argv = [b"XNACK", _raw(key), _raw(group), mode.encode(), *_id_block(ids)]
        if retry_count is not None:
            argv += [b"RETRYCOUNT", b"%d" % retry_count]
        if force:
            argv.append(b"FORCE")
        return cast(int, self._run(argv))

    # Pending entries

    def xpending(self, key: Text, group: Text) -> PendingSummary:
        """Return a summary of what is pending in a group."""
        count, lowest, highest, rows = self._parse(self._run([b"XPENDING", _raw(key), _raw(group)]))
        return PendingSummary(count, lowest, highest, {name: int(held) for name, held in rows or ()})

    def xpending_range(
        self,
        key: Text,
        group: Text,
        start: Text = b"-",
        end: Text = b"+",
        count: int = 100,
        *,
        consumer: Text | None = None,
        idle_ms: int | None = None,
    ) -> list[PendingEntry]:
        """Pending entries by id."""
        argv = [b"XPENDING", _raw(key), _raw(group)]
        if idle_ms is not None:
            argv += [b"IDLE", b"%d" % idle_ms]
        argv += [_raw(start), _raw(end), b"%d" % count]
        if consumer is not None:
            argv.append(_raw(consumer))
        rows = self._parse(self._run(argv))
        return [
            PendingEntry(entry_id, None if idle == -1 else owner, None if idle == -1 else idle, delivered)
            for entry_id, owner, idle, delivered in rows
        ]

    def xclaim(
        self,
        key: Text,
        group: Text,
        consumer: Text,
        min_idle_ms: int,
        ids: Sequence[Text],
        *,
        idle_ms: int | None = None,
        time_ms: int | None = None,
        retry_count: int | None = None,
        force: bool = False,
        justid: bool = False,
        last_id: Text | None = None,
    ) -> list[Entry]:
        """Take over pending entries by id; those that were taken (without fields if `justid`)."""
        argv = [b"XCLAIM", _raw(key), _raw(group), _raw(consumer), b"%d" % min_idle_ms, *map(_raw, ids)]
        for word, number in ((b"IDLE", idle_ms), (b"TIME", time_ms), (b"RETRYCOUNT", retry_count)):
            if number is not None:
                argv += [word, b"%d" % number]
        if last_id is not None:
            argv += [b"LASTID", _raw(last_id)]
        argv += [b"FORCE"] * force + [b"JUSTID"] * justid
        return _entries(self._parse(self._run(argv)))

    def xautoclaim(
        self,
        key: Text,
        group: Text,
        consumer: Text,
        min_idle_ms: int,
        start: Text = b"0-0",
        *,
        count: int | None = None,
        justid: bool = False,
    ) -> AutoClaimed:
        """Take over pending entries that have been idle for long, in id order from `start`."""
        argv = [b"XAUTOCLAIM", _raw(key), _raw(group), _raw(consumer), b"%d" % min_idle_ms, _raw(start)]
        if count is not None:
            argv += [b"COUNT", b"%d" % count]
        argv += [b"JUSTID"] * justid
        cursor, rows, deleted = self._parse(self._run(argv))
        return AutoClaimed(cursor, _entries(rows), deleted)

    # Looking

    def xinfo_stream(self, key: Text, *, full: bool = False, count: int | None = None) -> dict[bytes, Any]:
        """Return a stream's counters; with `full` its entries, groups and pending entries too (`count` 0: all)."""
        argv = [b"XINFO", b"STREAM", _raw(key)]
        if full or count is not None:
            argv.append(b"FULL")
        if count is not None:
            argv += [b"COUNT", b"%d" % count]
        return cast("dict[bytes, Any]", self._parse(self._run(argv)))

    def xinfo_groups(self, key: Text) -> list[dict[bytes, Any]]:
        """Return the groups of a stream."""
        return cast("list[dict[bytes, Any]]", self._parse(self._run([b"XINFO", b"GROUPS", _raw(key)])))

    def xinfo_consumers(self, key: Text, group: Text) -> list[dict[bytes, Any]]:
        """Return the consumers of a group."""
        argv = [b"XINFO", b"CONSUMERS", _raw(key), _raw(group)]
        return cast("list[dict[bytes, Any]]", self._parse(self._run(argv)))


def _raw(value: Value) -> bytes:
    """Return a value as the engine's bytes."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value).encode()
    raise TypeError(f"bytes, str, int or float wanted, not {type(value).__name__}: {value!r}")


def _trim_words(maxlen: int | None, minid: Text | None, approximate: bool, limit: int | None) -> list[bytes]:
    words: list[bytes] = []
    for word, threshold in ((b"MAXLEN", maxlen), (b"MINID", minid)):
        if threshold is not None:
            words += [word, b"~" if approximate else b"=", _raw(threshold)]
    if limit is not None:
        words += [b"LIMIT", b"%d" % limit]
    return words


def _id_block(ids: Sequence[Text]) -> list[bytes]:
    return [b"IDS", b"%d" % len(ids), *map(_raw, ids)]


def _read_words(count: int | None, block_ms: int | None, max_count: int | None, max_size: int | None) -> list[bytes]:
    words: list[bytes] = []
    for word, number in ((b"COUNT", count), (b"BLOCK", block_ms), (b"MAXCOUNT", max_count), (b"MAXSIZE", max_size)):
        if number is not None:
            words += [word, b"%d" % number]
    return words


def _streams_words(streams: Mapping[Any, Text]) -> list[bytes]:
    return [b"STREAMS", *map(_raw, streams), *map(_raw, streams.values())]


def _entries(rows: Any) -> list[Entry]:
    """Entries of a decoded reply: `[id, fields]`, `[id, fields, idle, count]`, or plain ids."""
    return [Entry(row, []) if isinstance(row, bytes) else Entry(row[0], row[1] or [], *row[2:]) for row in rows or ()]
