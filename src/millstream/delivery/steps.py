"""Every step of a delivery's life as a call: what goes over the wire, what comes back. No decisions, no connections.

Each is one command or one script, safe to send twice and fenced by owner and delivery number where it settles. The
scripts are in `lua/`, with their arguments and answers at the head of each; this module is their Python side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from millstream.client.calls import Call, Inside, Script, Word, load_script
from millstream.client.capabilities import Capabilities
from millstream.delivery.delivery import Delivery, Known, pairs
from millstream.delivery.keys import Keys
from millstream.delivery.recorder import NullRecorder, Recorder

# A CLAIM read takes entries that have been idle for so long: retries that are due, whose time is set accordingly. What
# the dead left is taken by a step instead, which looks at the clock: a read that waits while the server stands still
# would take over what the living have.
CLAIM_IDLE_MS = 86_400_000
RELEASED = b"~released"  # consumers that are nobody; see lua/shared.lua
DELAYED = b"~delayed"


def script(name: str) -> Script:
    return load_script("millstream.delivery", name)


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry to publish."""

    fields: Sequence[tuple[bytes, bytes]]
    delay_ms: int = 0
    dedupe: bytes | None = None


@dataclass(frozen=True, slots=True)
class Publication:
    """An entry for a stream that is appended in the step which acknowledges another one."""

    keys: Keys  # of the stream it goes to
    entry: NewEntry
    maxlen: int | None = None
    dedupe_ms: int = 3_600_000
    recorder: Recorder = field(default_factory=NullRecorder, compare=False)  # of that stream

    def words(self, place: Callable[[bytes], int]) -> list[Word]:
        """As settle.lua reads it; `place` gives a key's place in KEYS."""
        entry = self.entry
        token = 0 if entry.dedupe is None else place(self.keys.dedupe(entry.dedupe))
        return [
            place(self.keys.stream),
            place(self.keys.delayed),
            place(self.keys.wake),
            token,
            self.dedupe_ms,
            entry.delay_ms,
            "" if self.maxlen is None else self.maxlen,
            2 * len(entry.fields),
            *(word for pair in entry.fields for word in pair),
        ]


@dataclass(frozen=True, slots=True)
class Settle:
    """What is to become of one delivery: a verb of settle.lua and its arguments."""

    id: bytes
    number: int | None  # the delivery number it must still have; None: any
    verb: str = "ack"
    words: tuple[Word, ...] = ()
    publish: tuple[Publication, ...] = ()  # of the verb `publish`

    def argv(self, place: Callable[[bytes], int]) -> tuple[Word, ...]:
        """Return the item in the form of settle.lua."""
        if self.verb == "ack":
            return (self.id, "" if self.number is None else self.number, self.verb)
        words = [*self.words, *(word for each in self.publish for word in each.words(place))]
        counted = (len(words),) if self.verb in ("reject", "publish") else ()
        return (self.id, "" if self.number is None else self.number, self.verb, *counted, *words)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a recovery found."""

    deliveries: list[Delivery]
    cursor: bytes  # where to look on; b"0-0": all was looked at
    next_due_ms: int | None  # until another one is due, as far as is known
    trimmed: list[bytes]  # were pending, and their entries are gone
    server_ms: int  # the server's time
    is_busy: bool = False  # others who live have entries, any of which may become a retry


@dataclass(frozen=True, slots=True)
class Promoted:
    """What went on, and when the next one does."""

    appended: int
    next_due_ms: int | None
    next_rank: int
    server_ms: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """What is left of the leases."""

    server_ms: int
    lost: list[bytes]


@dataclass(frozen=True, slots=True)
class Requeued:
    """What became of entries that may be a dead consumer's."""

    server_ms: int
    codes: list[int | str]  # see lua/requeue.lua; none if the server's clock was not the expected one


@dataclass(frozen=True, slots=True)
class Published:
    """What became of it."""

    id: bytes  # b"" while it waits for its time
    is_new: bool  # False: the entry with the same dedupe token, published before


@dataclass(frozen=True, slots=True)
class Account:
    """A stream and one of its groups at one moment."""

    entries: int
    added: int | None  # ever; None on servers that do not count
    pending: int
    undelivered: int
    dead: int
    delayed: int  # published, waiting for their time
    parked: int  # of the pending ones: waiting for their retry
    released: int  # of the pending ones: in nobody's hands
    counters: dict[str, int] = field(default_factory=dict)  # done:<group>, dead:<group>, redriven:<group>, …


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one group of one stream, in the words of the server that has it."""

    keys: Keys
    group: bytes
    capabilities: Capabilities
    prefix: bytes = b"_"
    keep_done: bool = False  # entries stay in the stream when all groups are done with them
    lease_ms: int = 30_000
    claim_ms: int | None = None  # how long an entry is idle that a CLAIM read takes; None: for a lease

    flags: str = field(init=False, compare=False)  # what scripts are told of the server, as letters; see lua/shared.lua
    _settle_keys: tuple[bytes, ...] = field(init=False, compare=False, repr=False)  # of settle.lua
    due_idle_ms: int = field(init=False, compare=False)  # how long a retry that is due has been idle, by its set time

    def __post_init__(self) -> None:
        has = self.capabilities
        letters = (
            ("n", has.nack),
            ("d", has.ackdel),
            ("t", has.acked_trim),
            ("c", has.claim_read),
            ("k", self.keep_done),
        )
        due_ms = self.lease_ms if self.claim_ms is None or not has.claim_read else self.claim_ms
        object.__setattr__(self, "flags", "".join(letter for letter, is_set in letters if is_set) or "-")
        object.__setattr__(self, "due_idle_ms", due_ms)
        keys, group = self.keys, self.group
        object.__setattr__(
            self,
            "_settle_keys",
            (keys.stream, keys.dead, keys.retries(group), keys.meta, keys.delayed, keys.records(group), keys.wake),
        )

    def create_group(self, start: str) -> Call[None]:
        """Make the stream and the group unless they are there."""
        argv = ("EVAL", _CREATE, 1, self.keys.stream, self.group, start)
        return Call(argv, self.keys.stream, lambda _: None)

    def server_time(self) -> Call[int]:
        """Read the server's time in ms."""
        stream = self.keys.stream
        return Call(("EVAL", _TIME, 1, stream), stream, lambda now: int(now[0]) * 1000 + int(now[1]) // 1000)

    def read(
        self, consumer: bytes, count: int, block_ms: int | None, min_idle_ms: int | None = None
    ) -> Call[list[Delivery]]:
        """Read new entries; with `min_idle_ms`, on a server with CLAIM, entries due for recovery come first.

        Not to be sent twice: a lost reply has delivered entries that nobody holds. `reread` finds them.
        """
        argv: list[Word] = ["XREADGROUP", "GROUP", self.group, consumer, "COUNT", count]
        if block_ms is not None:
            argv += ["BLOCK", block_ms]
        if min_idle_ms is not None:
            argv += ["CLAIM", min_idle_ms]
        argv += ["STREAMS", self.keys.stream, ">"]
        inside = partial(read_inside, (self.keys.stream, self.group, consumer, count, min_idle_ms))
        return Call(tuple(argv), self.keys.stream, parse_read, can_resend=False, block_ms=block_ms, inside=inside)

    def reread(self, consumer: bytes, count: int, known: Iterable[tuple[bytes, int]]) -> Call[list[Delivery]]:
        """Read pending entries that the consumer does not know of, because a reply was lost. Counts no delivery."""
        words: list[Word] = [self.group, consumer, count]
        for entry_id, number in known:
            words += (entry_id, number)
        return script("reread").call(
            [self.keys.stream], words, lambda rows: [Delivery(row[0], pairs(row[1]), int(row[2]), -1) for row in rows]
        )

    def redelivered(self, consumer: bytes, deliveries: Sequence[Delivery]) -> Call[list[Known]]:
        """Begin deliveries of entries that were delivered before: a greater fence for each, and what is known of it."""
        words: list[Word] = [self.group, consumer]
        for each in deliveries:
            words += (each.id, each.number, int(each.idle_ms == -1 and each.number == 1 and each.previous is None))
        keys = [self.keys.stream, self.keys.records(self.group)]
        return script("redelivered").call(
            keys, words, lambda rows: [Known(int(row[0]), int(row[1]), int(row[2]), bool(row[3])) for row in rows]
        )

    def begin_alone(self, consumer: bytes, entry_id: bytes, number: int) -> Call[bool]:
        """Note that the entry's handler begins, and that nothing else runs in its process; False if it was lost."""
        keys = [self.keys.stream, self.keys.records(self.group)]
        return script("begin_alone").call(keys, (self.group, consumer, entry_id, number), bool)

    def settle(
        self, consumer: bytes, items: Sequence[Settle], *, has_locks: bool = False, can_resend: bool = True
    ) -> Call[list[int | str]]:
        """End deliveries; a code each: 1 settled, 0 no longer pending, -1 somebody else's, or the server's error."""
        keys = [*self._settle_keys]
        if has_locks:
            keys += [self.keys.lock(item.id) for item in items]
        flags = self.flags + ("l" if has_locks else "")
        words: list[Word] = [self.group, consumer, flags, self.prefix, self.due_idle_ms]
        places: dict[bytes, int] = {}

        def place(key: bytes) -> int:
            if key not in places:
                keys.append(key)
                places[key] = len(keys)
            return places[key]

        for item in items:
            words += item.argv(place)
        is_plain = not has_locks and self.capabilities.ackdel and all(item.verb == "ack" for item in items)
        inside = partial(acknowledge_inside, self, consumer, items) if is_plain else None
        return script("settle").call(keys, words, parse_codes, can_resend=can_resend, inside=inside)

    def renew(self, consumer: bytes, held: Sequence[tuple[bytes, int | None]], lock_ms: int = 0) -> Call[Renewed]:
        """Start the leases of deliveries anew; the ids that are not ours any more."""
        keys = [self.keys.stream, self.keys.meta]
        if lock_ms:
            keys += [self.keys.lock(entry_id) for entry_id, _ in held]
        words: list[Word] = [self.group, consumer, lock_ms]
        for entry_id, number in held:
            words += (entry_id, "" if number is None else number)
        return script("renew").call(keys, words, lambda reply: Renewed(int(reply[0]), list(reply[1])))

    def recover(
        self,
        consumer: bytes,
        credit: int,
        *,
        min_idle_ms: int,
        cursor: bytes = b"0-0",
        look: int = 200,
        tombstones: bool = True,
        expected_ms: int | None = None,
        tolerance_ms: int = 0,
    ) -> Call[Recovered]:
        """Take over up to `credit` entries that nobody works on, and clear away ghosts.

        Sent twice, it takes what the first one took only when that is due again; `reread` finds it before.
        `expected_ms` is the server's time by the caller's watch: if it differs by more than is tolerated, nothing is
        taken.
        """
        keys = [self.keys.stream, self.keys.dead, self.keys.retries(self.group), self.keys.meta]
        keys.append(self.keys.records(self.group))
        expected = "" if expected_ms is None else expected_ms
        words: tuple[Word, ...] = (
            self.group,
            consumer,
            self.flags,
            self.prefix,
            min_idle_ms,
            credit,
            cursor,
            look,
            int(tombstones),
            expected,
            tolerance_ms,
        )
        return script("recover").call(keys, words, parse_recovered)

    def next_retry(self) -> Call[int | None]:
        """When the next retry of the group is due, in the server's ms; None: none waits."""
        argv = ("ZRANGE", self.keys.retries(self.group), 0, 0, "WITHSCORES")
        return Call(argv, self.keys.stream, lambda found: int(float(found[1])) if found else None)

    def promote(self, limit: int = 1000, rank: int = 0, *, with_retries: bool = True) -> Call[Promoted]:
        """Append what was published for now; keep parked retries parked."""
        keys = [self.keys.stream, self.keys.delayed, self.keys.retries(self.group)]
        words = (self.group if with_retries else b"", self.flags, self.due_idle_ms, limit, rank)
        return script("promote").call(keys, words, parse_promoted)

    def await_sooner(self, wait_ms: int) -> Call[bool]:
        """Wait for news of an entry that is due before the others; whether there was any. One waiter gets each."""
        argv = ("BLPOP", self.keys.wake, f"{wait_ms / 1000:g}")
        return Call(argv, self.keys.wake, bool, can_resend=False, block_ms=wait_ms)

    def reap(self, silent_ms: int, only: bytes = b"") -> Call[list[bytes]]:
        """Remove consumers that have nothing and have been silent; return their names. `only`: no other than this."""
        return script("reap").call([self.keys.stream], (self.group, silent_ms, only), list)

    def audit(self, *, is_exact: bool = True) -> Call[Account]:
        """Where everything is. Counting what is undelivered can take long on a server that does not know it (see the
        script): whoever looks often does with the sum of our own counters."""
        keys = [self.keys.stream, self.keys.dead, self.keys.delayed, self.keys.retries(self.group), self.keys.meta]
        return script("audit").call(keys, (self.group, int(is_exact)), parse_account)

    def requeue(
        self,
        ids: Sequence[bytes],
        *,
        min_idle_ms: int,
        max_retries: int,
        drop: bool = False,
        expected_ms: int | None = None,
        tolerance_ms: int = 0,
    ) -> Call[Requeued]:
        """Requeue by copy as in the RFC; `expected_ms` as for `recover`."""
        keys = [self.keys.stream, self.keys.dead, self.keys.meta, *map(self.keys.lock, ids)]
        beyond, expected = "drop" if drop else "dead", "" if expected_ms is None else expected_ms
        words = (self.group, self.flags, self.prefix, min_idle_ms, max_retries, beyond, expected, tolerance_ms, *ids)
        return script("requeue").call(keys, words, lambda reply: Requeued(int(reply[0]), parse_codes(reply[1])))

    def pending_page(self, after: bytes, count: int, min_idle_ms: int = 0) -> Call[list[tuple[bytes, bytes, int, int]]]:
        """Pending entries behind an id: id, consumer, idle ms, deliveries."""
        idle: tuple[Word, ...] = ("IDLE", min_idle_ms) if min_idle_ms else ()
        start = b"-" if after == b"0-0" else b"(" + after
        argv: tuple[Word, ...] = ("XPENDING", self.keys.stream, self.group, *idle, start, "+", count)
        return Call(argv, self.keys.stream, parse_pending)


@dataclass(frozen=True, slots=True)
class Publishing:
    """The steps of producers; a stream needs no group to be published to."""

    keys: Keys
    capabilities: Capabilities
    prefix: bytes = b"_"

    def append(
        self,
        producer: bytes,
        number: int,
        entries: Sequence[NewEntry],
        *,
        maxlen: int | None = None,
        dedupe_ms: int = 3_600_000,
        is_kept: bool = True,
    ) -> Call[list[Published]]:
        """Append entries, all or none, once however often it is sent.

        A producer numbers its calls and has one under way at a time; its name must be nobody else's. One plain entry
        takes the server's own idempotent append where there is one.

        `is_kept`: the caller may run the call again. If not, a broker in this process remembers no token: no reply can
        be lost there, so that the backend does not send the call again either.
        """
        first = entries[0]
        is_plain = len(entries) == 1 and not first.delay_ms and first.dedupe is None and maxlen is None
        if is_plain and self.capabilities.idempotent_add:
            flat = [word for pair in first.fields for word in pair]
            argv: tuple[Word, ...] = ("XADD", self.keys.stream, "IDMP", producer, number, "*", *flat)
            inside = None if is_kept else partial(append_inside, self.keys.stream, flat)
            return Call(argv, self.keys.stream, _published, inside=inside)
        return self._append_script(producer, number, entries, maxlen, dedupe_ms)

    @property
    def _flags(self) -> str:
        found = self.capabilities
        return ("t" if found.acked_trim else "") + ("m" if found.set_many else "")

    def _append_script(
        self, producer: bytes, number: int, entries: Sequence[NewEntry], maxlen: int | None, dedupe_ms: int
    ) -> Call[list[Published]]:
        keys = [self.keys.stream, self.keys.producer(producer), self.keys.delayed, self.keys.wake]
        words: list[Word] = [self._flags, number, "" if maxlen is None else maxlen, dedupe_ms]
        for entry in entries:
            place = 0
            if entry.dedupe is not None:
                keys.append(self.keys.dedupe(entry.dedupe))
                place = len(keys) - 4
            words += (entry.delay_ms, place, 2 * len(entry.fields))
            for pair in entry.fields:
                words += pair
        return script("publish").call(keys, words, lambda rows: [Published(row[0], bool(row[1])) for row in rows])

    def redrive(self, ids: Sequence[bytes], *, group: bytes = b"", discard: bool = False) -> Call[list[bytes | None]]:
        """Dead letters back into the stream, or away; new ids (b"" discarded), None where there was none any more."""
        keys = [self.keys.stream, self.keys.dead, self.keys.meta]
        words = ("discard" if discard else "redrive", self.prefix, group, *ids)
        return script("redrive").call(keys, words, lambda rows: [None if row == 0 else row for row in rows])


def _published(entry_id: bytes) -> list[Published]:
    return [Published(entry_id, True)]


_TIME = "return redis.call('TIME')"  # as a script, so that on a cluster the stream's own server is asked
_CREATE = (
    "local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], ARGV[2], 'MKSTREAM') "
    "if type(made) == 'table' and made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end "
    "return redis.status_reply('OK')"
)


def parse_read(reply: Any) -> list[Delivery]:
    """XREADGROUP's answer for one stream. A CLAIM read says idle time and earlier deliveries of each entry."""
    if not reply:
        return []
    found = []
    for row in reply[0][1]:
        flat = row[1] or []  # deleted since: history reads only
        idle_ms, before = (int(row[2]), int(row[3])) if len(row) > 2 else (0, 0)
        found.append(Delivery(row[0], pairs(flat), before + 1, idle_ms))
    return found


def parse_codes(reply: Any) -> list[int | str]:
    return [code if isinstance(code, int) else code.decode("utf-8", "replace") for code in reply]


def parse_recovered(reply: Any) -> Recovered:
    taken, cursor, due, trimmed, now, is_busy = reply
    return Recovered(
        [Delivery(row[0], pairs(row[1]), int(row[2]), int(row[3]), row[4]) for row in taken],
        cursor,
        None if due < 0 else int(due),
        list(trimmed),
        int(now),
        bool(is_busy),
    )


def parse_promoted(reply: Any) -> Promoted:
    appended, due, rank, now = reply
    return Promoted(appended, None if due < 0 else due, rank, int(now))


def parse_account(reply: Any) -> Account:
    entries, added, pending, undelivered, dead, delayed, parked, released, flat = reply
    counters = {name.decode("utf-8", "replace"): int(value) for name, value in pairs(flat)}
    known = None if added < 0 else added
    return Account(entries, known, pending, undelivered, dead, delayed, parked, released, counters)


def parse_pending(reply: Any) -> list[tuple[bytes, bytes, int, int]]:
    return [(row[0], row[1] or b"", int(row[2]), int(row[3])) for row in reply]


# The same on a broker in this process, under its lock


def append_inside(stream: bytes, words: list[bytes], broker: Inside) -> list[Published] | None:
    """Append one entry; without an idempotency token, since no reply can be lost."""
    made = broker.append(stream, words)
    return None if made is None else [Published(made, True)]


def read_inside(what: tuple[bytes, bytes, bytes, int, int | None], broker: Inside) -> list[Delivery] | None:
    """Read new entries; None where the command must run, which also waits and claims."""
    rows = broker.read(*what)
    return None if rows is None else [Delivery(entry_id, pairs(flat), 1) for entry_id, flat in rows]


def acknowledge_inside(steps: Steps, consumer: bytes, items: Sequence[Settle], broker: Inside) -> list[int | str]:
    """Do what settle.lua does when every verb is `ack`."""
    keys, group = steps.keys, steps.group
    retries, records = steps._settle_keys[2], steps._settle_keys[5]
    was_retried = broker.has(retries)
    codes, acked = list[int | str](), dict[bytes, None]()
    for item in items:
        held = broker.held(keys.stream, group, item.id)
        if held is None or item.id in acked:  # gone, or named twice in this call
            codes.append(0)
        elif held[0] != consumer or (item.number is not None and item.number != held[1]):
            codes.append(-1)
        else:
            codes.append(1)
            acked[item.id] = None
    if acked:
        broker.acknowledge(keys.stream, group, list(acked), keep_done=steps.keep_done)
        if broker.has(records):
            broker.run(b"HDEL", records, *acked)
        if was_retried:
            broker.run(b"ZREM", retries, *acked)
        broker.count(keys.meta, b"done:" + group, len(acked))
    return codes
