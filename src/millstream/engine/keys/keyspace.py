"""Databases of keys, and one command's view of them.

A `Keyspace` is the whole state. A `CommandContext` is the view of one running command: a database, the time (frozen
for the command), and a record of its effects. Commands reach keys through the context only, so an expired key is gone
for all of them and every change is reported:

    CommandContext ── lookup, add, overwrite, remove ──▶ Database(values, expires)
          └────────── log, touch, event, ready, dirty ──▶ Outcome
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from millstream.engine.faults import WRONG_TYPE, fault
from millstream.engine.keys.deadlines import Deadlines
from millstream.engine.keys.scan_order import ScanOrder
from millstream.engine.outcome import Event, Outcome, Reply, Wait

Kind = TypeVar("Kind")


@dataclass(slots=True, kw_only=True)
class KeyspaceSettings:
    """What CONFIG SET changes of the engine's behaviour."""

    stream_node_max_entries: int = 100  # 0: no limit
    stream_node_max_bytes: int = 4096  # 0: no limit but 2**30
    stream_idmp_duration: int = 100  # seconds, for streams made from now on
    stream_idmp_maxsize: int = 100  # ids per producer, for streams made from now on
    rdbcompression: bool = True  # of what DUMP answers
    sanitize_dump_payload: bool = False  # RESTORE refuses payloads that no server writes, even if they can be read


@dataclass(slots=True)
class Database:
    """Keys to values, and when the keys that expire do."""

    index: int
    values: dict[bytes, object] = field(default_factory=dict)
    expires: Deadlines = field(default_factory=Deadlines)  # key to Unix ms
    idempotent: set[bytes] = field(default_factory=set)  # streams that may have idempotency records
    accessed: dict[bytes, int] = field(default_factory=dict)  # key to Unix ms, for OBJECT IDLETIME
    order: ScanOrder | None = None  # for SCAN and RANDOMKEY, once one of them was called


class Keyspace:
    """All databases and the settings their commands follow."""

    __slots__ = ("databases", "keeps_expired", "random_state", "settings")

    def __init__(self, databases: int = 16, settings: KeyspaceSettings | None = None) -> None:
        self.databases = [Database(index) for index in range(databases)]
        self.settings = settings or KeyspaceSettings()
        self.random_state = 0x9E3779B97F4A7C15
        self.keeps_expired = False  # an expired key is hidden from commands but not yet removed

    def pick(self, below: int) -> int:
        """Return a number from 0 to below - 1 from a fixed sequence (xorshift), so that runs can be repeated."""
        x = self.random_state
        x ^= (x << 13) & 0xFFFFFFFFFFFFFFFF
        x ^= x >> 7
        x ^= (x << 17) & 0xFFFFFFFFFFFFFFFF
        self.random_state = x
        return x % below

    def __iter__(self) -> Iterator[Database]:
        return iter(self.databases)


class CommandContext:
    """One command's view of the keyspace, and the effects it has had so far."""

    __slots__ = (
        "db",
        "dirty",
        "events",
        "keep_log",
        "keyspace",
        "logged",
        "may_block",
        "now_ms",
        "protocol",
        "readied",
        "touches",
        "trusted",
    )

    def __init__(
        self,
        keyspace: Keyspace,
        db: int,
        now_ms: int,
        *,
        may_block: bool = False,
        trusted: bool = False,
        protocol: int = 2,
        keep_log: bool = True,
    ) -> None:
        self.keyspace = keyspace
        self.db = keyspace.databases[db]
        self.now_ms = now_ms
        self.may_block = may_block  # False inside MULTI and scripts
        self.trusted = trusted  # replaying a log: LIMIT is ignored, IDMP may carry a concrete id
        self.protocol = protocol  # MAXSIZE counts the bytes of the reply, which differ between RESP2 and RESP3
        self.keep_log = keep_log  # False: there is no log, so long log lines need not be built
        self.logged: list[tuple[int, tuple[bytes, ...]]] = []
        self.touches: list[tuple[int, bytes]] = []
        self.events: list[Event] = []
        self.readied: list[tuple[int, bytes]] = []
        self.dirty = 0

    @property
    def settings(self) -> KeyspaceSettings:
        return self.keyspace.settings

    # Effects

    def log(self, *argv: bytes, db: Database | None = None) -> None:
        """Note a command that replays what happened."""
        self.logged.append(((db or self.db).index, argv))

    def touch(self, key: bytes, db: Database | None = None) -> None:
        """Note that the key was modified in a way that WATCH must see."""
        self.touches.append(((db or self.db).index, key))

    def event(self, kind: str, name: bytes, key: bytes, db: Database | None = None) -> None:
        """Note a keyspace event."""
        self.events.append(Event(kind, name, key, (db or self.db).index))

    def ready(self, key: bytes, db: Database | None = None) -> None:
        """Note that commands which wait for this key should run again."""
        self.readied.append(((db or self.db).index, key))

    def outcome(self, reply: Reply | Wait) -> Outcome:
        """Return the reply together with the effects noted so far."""
        return Outcome(reply, self.logged, self.touches, self.events, self.readied, self.dirty)

    # Keys

    def lookup(self, key: bytes, db: Database | None = None) -> object | None:
        """Return the value of a key, or None. An expired key is removed first."""
        db = db or self.db
        value = db.values.get(key)
        if value is None:
            return None
        if key in db.expires and self.is_due(key, db):
            self.expire_now(key, db)
            return None
        db.accessed[key] = self.now_ms
        return value

    def is_due(self, key: bytes, db: Database) -> bool:
        """Return whether a key has expired. During replay no key expires, because the log has its DEL.

        In the millisecond of its expiry a key is still there (PTTL 0), as in Redis.
        """
        at_ms = db.expires.get(key)
        return at_ms is not None and at_ms < self.now_ms and not self.trusted

    def peek(self, key: bytes, db: Database | None = None) -> object | None:
        """Look a key up for a command that does not count as an access to the value (TYPE, TTL, OBJECT)."""
        db = db or self.db
        if key in db.expires and self.is_due(key, db):
            self.expire_now(key, db)
            return None
        return db.values.get(key)

    def lookup_to_read(self, key: bytes) -> object | None:
        """Look a key up for a command that only reads: a miss is an event of class m."""
        value = self.lookup(key)
        if value is None:
            self.event("m", b"keymiss", key)
        return value

    def typed(self, key: bytes, kind: type[Kind]) -> Kind | None:
        """Return the value of a key, or None. Raises WRONGTYPE if it is not of this kind."""
        value = self.lookup(key)
        if value is None:
            return None
        if type(value) is not kind:
            raise fault(WRONG_TYPE)
        return value

    def typed_to_read(self, key: bytes, kind: type[Kind]) -> Kind | None:
        """Return the value of a key like `typed`, for a command that only reads."""
        value = self.lookup_to_read(key)
        if value is None:
            return None
        if type(value) is not kind:
            raise fault(WRONG_TYPE)
        return value

    def add(self, key: bytes, value: object, db: Database | None = None) -> None:
        """Put a new key in place; it must not exist."""
        db = db or self.db
        db.values[key] = value
        db.accessed[key] = self.now_ms
        if db.order is not None:
            db.order.add(key, db.values)
        self.event("n", b"new", key, db)
        self.ready(key, db)

    def overwrite(self, key: bytes, value: object, *, keep_ttl: bool = False) -> None:
        """Set a key to a value whether or not it was there; the caller reports its own event after this."""
        db = self.db
        old = self.lookup(key)
        if old is None:
            self.add(key, value)
            return
        db.values[key] = value
        if not keep_ttl:
            db.expires.pop(key, None)
        db.idempotent.discard(key)
        self.ready(key, db)
        self.event("o", b"overwritten", key, db)
        if type(old) is not type(value):
            self.event("c", b"type_changed", key, db)

    def remove(self, key: bytes, db: Database | None = None) -> object | None:
        """Take a key away without reporting an event; waiters of a group learn of it."""
        db = db or self.db
        value = db.values.pop(key, None)
        if value is None:
            return None
        db.expires.pop(key, None)
        db.idempotent.discard(key)
        db.accessed.pop(key, None)
        self.ready(key, db)
        return value

    def expire_now(self, key: bytes, db: Database) -> None:
        """Remove an expired key, logged as DEL with the event `expired`. Does nothing while `keeps_expired` is set."""
        if self.keyspace.keeps_expired:
            return
        self.remove(key, db)
        self.log(b"DEL", key, db=db)
        self.event("x", b"expired", key, db)
        self.touch(key, db)  # INFO does not count an expiry as a change
