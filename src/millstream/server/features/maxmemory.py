"""`maxmemory`: the memory of the keys, and the gate that refuses commands that need more.

    a command that changed something ──▶ account ──▶ the sizes of its keys ──▶ total
    a command that may take memory ──▶ gate ──▶ OOM while the total is above the limit

The total is what `value_sizes` estimates for keys and values, plus subscriptions. The memory of the process would not
do: it does not shrink when keys are deleted, and then writers must be let in again. A value is measured as a whole only
when an eighth of it may have changed since the last time; in between its size follows its length. So `account` takes a
microsecond or two for a value of any size, and the total is a few per cent off (docs/memory.md). Without a limit
nothing is counted.

Nothing is evicted, whatever `maxmemory-policy` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

from millstream.engine.keys.keyspace import CommandContext, Database, Keyspace
from millstream.engine.streams.stream import Stream
from millstream.engine.table import Command
from millstream.errors import CommandError
from millstream.server.features import value_sizes

if TYPE_CHECKING:
    from millstream.server.core.blocking import Place
    from millstream.server.core.interfaces import Client, Server

OUT_OF_MEMORY: Final = "OOM command not allowed when used memory > 'maxmemory'."
STARTUP: Final = 1 << 20  # bytes counted for the server itself

_ENTRY: Final = 100  # bytes of the record of a counted key
_SMALL: Final = 16  # a value with at most so many parts is measured each time
_PART: Final = 8  # larger ones are measured when more than an eighth may have changed
_MOST_BLOCKS: Final = 2048  # blocks of a stream that are measured, evenly spread: two milliseconds
_MOST_PARTS: Final = 100_000  # parts of another value that are measured, from the first on
_SURVEYED: Final = 1000  # keys of a database that are measured without a limit
_SAMPLES: Final = 5  # parts of each of their values
_RECOUNT_MS: Final = 1000
_WHOLE_DATABASES: Final = frozenset({"flushall", "flushdb", "swapdb"})


class _Weighed:
    """A collection as it was at its last measurement, and its changes since then."""

    __slots__ = ("_changes", "_incoming", "_length", "_whole", "size", "value")

    def __init__(self, value: Sized) -> None:
        self.value = value
        self.size = 0  # with its key
        self._look()

    def _look(self) -> None:
        most = _MOST_BLOCKS if type(self.value) is Stream else _MOST_PARTS
        self._whole = value_sizes.of_value(self.value, most)
        self._length = len(self.value)
        self._incoming = 0  # bytes that commands have brought since the last measurement
        self._changes = 0  # number of these commands

    def follow(self, own: int, incoming: int) -> None:
        """Follow a command that has changed the collection and brought some bytes. `own` is the size of the key."""
        length = len(self.value)
        slack = self._length // _PART
        self._changes += 1
        self._incoming += incoming
        if (
            length <= _SMALL
            or self._changes > slack
            or abs(length - self._length) > slack
            or self._incoming > self._whole // _PART
        ):
            self._look()
            self.size = own + self._whole
        else:
            self.size = own + self._whole * length // self._length


class Memory:
    """The memory of a hub's keys. Every method is called under its lock."""

    def __init__(self, hub: Server) -> None:
        self._hub = hub
        self._keyspace: Keyspace | None = None  # the keyspace that is counted
        self._counted: list[dict[bytes, int | _Weighed]] = []  # by database
        self._recounted_ms = 0
        self._peak = 0
        self.limit = 0  # 0: none
        self.total = 0  # bytes of all keys, while there is a limit

    # The limit

    def set_limit(self, limit: int) -> None:
        """Apply the setting `maxmemory`. The first limit measures all keys, which takes seconds per million."""
        was_counting = self._hub.counts_memory
        self.limit = limit
        self._hub.counts_memory = limit > 0
        self._hub.observe()
        gates = self._hub.gates
        if limit and not was_counting:
            self.recount()
            gates.insert(int(self._hub.access.gate in gates), self.gate)
        elif was_counting and not limit:
            self._counted.clear()
            gates.remove(self.gate)

    @property
    def is_over(self) -> bool:
        """Return whether more memory is used than allowed."""
        return 0 < self.limit < STARTUP + self.total + self._hub.pubsub.size

    def gate(self, session: Client, row: Command, argv: list[bytes]) -> CommandError | None:
        """Return the reason to refuse a command, or None. EXEC is refused for the commands in its queue."""
        if row.group == "pubsub" and "denyoom" in row.flags:  # only names are added, whose size is known
            needed = STARTUP + self.total + self._hub.pubsub.size + sum(map(len, argv))
            return CommandError(OUT_OF_MEMORY) if needed > self.limit else None
        if not self.is_over:
            return None
        rows = [queued for queued, _ in session.queue or ()] if row.name == "exec" else [row]
        return CommandError(OUT_OF_MEMORY) if any("denyoom" in row.flags for row in rows) else None

    # Counting

    def account(self, row: Command, argv: list[bytes], call: CommandContext) -> None:
        """Measure the keys that a command has changed."""
        if row.name in _WHOLE_DATABASES or self._hub.keyspace is not self._keyspace:
            self.recount()
            return
        index = call.db.index
        places = {(index, argv[at]) for at in row.key_positions(argv)}
        places.update(call.touches)
        self.weigh(places, sum(map(len, argv)))
        if len(self._counted[index]) != len(call.db.values):
            self._find_lost()

    def weigh(self, places: Iterable[Place], incoming: int = 0) -> None:
        """Measure these keys. `incoming` bytes came with the command that changed them."""
        databases = self._hub.keyspace.databases
        for index, key in places:
            self.total += self._difference(databases[index], key, incoming)
        self._peak = max(self._peak, STARTUP + self.total)

    def _difference(self, database: Database, key: bytes, incoming: int) -> int:
        """Measure a key. Returns the difference to its last size."""
        counted = self._counted[database.index]
        known = counted.get(key)
        old = known.size if type(known) is _Weighed else cast(int, known or 0)
        value = database.values.get(key)
        if value is None:
            counted.pop(key, None)
            return -old
        own = value_sizes.of_key(key, expires=key in database.expires) + _ENTRY
        if type(value) is bytes:
            counted[key] = own + value_sizes.of_value(value)
            return own + value_sizes.of_value(value) - old
        if type(known) is not _Weighed or known.value is not value:
            known = counted[key] = _Weighed(cast(Sized, value))
        known.follow(own, incoming)
        return known.size - old

    def recount(self) -> None:
        """Measure all keys again."""
        self._keyspace = self._hub.keyspace
        self._recounted_ms = self._hub.now_ms()
        self._counted = [{} for _ in self._keyspace.databases]
        self.total = 0
        for database in self._keyspace:
            self.weigh([(database.index, key) for key in database.values])

    def _find_lost(self) -> None:
        """Measure all keys again, at most so often, if keys have changed without a command (a file was loaded)."""
        if not 0 <= self._hub.now_ms() - self._recounted_ms < _RECOUNT_MS:
            self.recount()

    # For INFO

    @property
    def used(self) -> int:
        """Return the used bytes: the total, or without a limit an estimate from some of the keys."""
        keyspace = self._hub.keyspace
        if self.limit and any(
            len(counted) != len(database.values) for counted, database in zip(self._counted, keyspace, strict=False)
        ):
            self._find_lost()
        used = STARTUP + (self.total if self.limit else sum(map(_survey, keyspace))) + self._hub.pubsub.size
        self._peak = max(self._peak, used)
        return used

    @property
    def peak(self) -> int:
        """Return the highest known value of `used`."""
        return self._peak


def of_key(database: Database, key: bytes, samples: int) -> int:
    """Return the bytes of a key and its value. `samples` parts of the value are measured, 0: all."""
    return value_sizes.of_key(key, expires=key in database.expires) + value_sizes.of_value(
        database.values[key], samples
    )


def _survey(database: Database) -> int:
    """Return the bytes of a database, extrapolated from its first keys."""
    known = [of_key(database, key, _SAMPLES) for key in islice(database.values, _SURVEYED)]
    return sum(known) * len(database.values) // len(known) if known else 0
