"""The naive model's readers: XLEN XRANGE XREVRANGE XREAD XREADGROUP."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.engine.outcome import NIL_ARRAY, ByKey, Reply
from millstream.errors import CommandError

from . import naive_ids as ids
from . import wire
from .naive_ids import I64, SYNTAX, TOP, U64, Id, integer
from .naive_stream import Group, Pending, Slot, Stream

if TYPE_CHECKING:
    from .naive import NaiveRedis


def entry(slot: Slot) -> list[Reply]:
    """An entry as a reply shows it."""
    return [ids.text(slot.id), list(slot.fields)]


def xlen(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    stream = world.stream(argv[1])
    return len(stream.entries()) if stream else 0


def xrange(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    backwards = argv[0].upper() == b"XREVRANGE"
    start, end = (ids.range_start(argv[3]), ids.range_end(argv[2])) if backwards else _bounds(argv)
    count = None
    for at in range(4, len(argv), 2):
        if argv[at].upper() != b"COUNT" or at + 1 == len(argv):
            raise CommandError(SYNTAX)
        count = max(0, integer(argv[at + 1]))
    stream = world.stream(argv[1])
    if stream is None:
        return []
    if count == 0:
        return NIL_ARRAY
    found = [entry(slot) for slot in stream.entries() if start <= slot.id <= end]
    return (found[::-1] if backwards else found)[:count]


def _bounds(argv: list[bytes]) -> tuple[Id, Id]:
    return ids.range_start(argv[2]), ids.range_end(argv[3])


@dataclass
class Read:
    """The words of an XREAD or XREADGROUP."""

    count: int = 0
    maxcount: int | None = None
    maxsize: int | None = None
    claim: int | None = None
    noack: bool = False
    group: bytes | None = None
    consumer: bytes = b""
    keys: list[bytes] = field(default_factory=list)
    id_words: list[bytes] = field(default_factory=list)


def _parse(argv: list[bytes], now: int) -> Read:
    read = Read()
    grouped = argv[0].upper() == b"XREADGROUP"
    at = 1
    while at < len(argv):
        word, left = argv[at].upper(), len(argv) - 1 - at
        if word == b"STREAMS" and left:
            _streams(read, argv, at, grouped=grouped)
            break
        at += _option(read, word, argv[at + 1 :], now, grouped=grouped)
    if not read.keys:
        raise CommandError(SYNTAX)
    if grouped and read.group is None:
        raise CommandError("ERR Missing GROUP option for XREADGROUP")
    if read.maxcount is not None and read.count > 0 and read.maxcount < read.count:
        raise CommandError("ERR MAXCOUNT must be greater than or equal to COUNT")
    return read


def _option(read: Read, word: bytes, rest: list[bytes], now: int, *, grouped: bool) -> int:
    """Read one option; how many words it took."""
    only = "ERR The {} option is only supported by XREADGROUP. You called XREAD instead."
    if word == b"BLOCK" and rest:
        timeout = integer(rest[0], "ERR timeout is not an integer or out of range")
        if timeout < 0:
            raise CommandError("ERR timeout is negative")
        if timeout + now > I64:
            raise CommandError("ERR timeout is out of range")
    elif word == b"COUNT" and rest:
        read.count = max(0, integer(rest[0]))
    elif word in (b"MAXCOUNT", b"MAXSIZE") and rest:
        value = integer(rest[0])
        if value <= 0:
            raise CommandError(f"ERR {word.decode()} must be a positive integer")
        setattr(read, word.decode().lower(), value)
    elif word == b"CLAIM" and rest:
        if not grouped:
            raise CommandError(only.format("CLAIM"))
        read.claim = integer(rest[0], "ERR min-idle-time is not an integer or out of range")
        if read.claim < 0:
            raise CommandError("ERR min-idle-time must be a positive integer")
    elif word == b"GROUP" and len(rest) >= 2:
        if not grouped:
            raise CommandError(only.format("GROUP"))
        read.group, read.consumer = rest[0], rest[1]
        return 3
    elif word == b"NOACK":
        if not grouped:
            raise CommandError(only.format("NOACK"))
        read.noack = True
        return 1
    else:
        raise CommandError(SYNTAX)
    return 2


def _streams(read: Read, argv: list[bytes], at: int, *, grouped: bool) -> None:
    words = argv[at + 1 :]
    if len(words) % 2:
        kinds = "an ID or '>'" if grouped else "an ID, '+', or '$'"
        name = "xreadgroup" if grouped else "xread"
        raise CommandError(f"ERR Unbalanced '{name}' list of streams: for each stream key {kinds} must be specified.")
    half = len(words) // 2
    read.keys, read.id_words = words[:half], words[half:]


@dataclass
class Budget:
    """What one read command has emitted so far, and what it may."""

    read: Read
    protocol: int
    entries: int = 0
    bytes: int = 0
    left: int | None = None  # how many entries the open stream may still give; None: any number
    reply: ByKey = field(default_factory=ByKey)

    def is_spent(self) -> bool:
        """Whether the next stream is not looked at."""
        return (self.read.maxcount is not None and self.entries >= self.read.maxcount) or self.is_full()

    def is_full(self) -> bool:
        """Whether the byte budget is used up; one entry always goes."""
        return self.read.maxsize is not None and self.entries > 0 and self.bytes >= self.read.maxsize

    def open(self, key: bytes) -> list[Reply]:
        """Begin a stream of the reply; its entries go into the list."""
        self.bytes += len(wire.encode(key, 2)) + (len(b"*2\r\n") if self.protocol == 2 else 0)
        entries: list[Reply] = []
        self.reply += [key, entries]
        self.left = self.read.count or None
        if self.read.maxcount is not None:
            rest = self.read.maxcount - self.entries
            self.left = rest if self.left is None else min(self.left, rest)
        return entries

    def takes(self) -> bool:
        """Whether one more entry fits into the stream that is open."""
        return self.left != 0 and not self.is_full()

    def emit(self, entries: list[Reply], item: Reply) -> None:
        entries.append(item)
        self.entries += 1
        self.bytes += len(wire.encode(item, self.protocol))
        self.left = None if self.left is None else self.left - 1

    def close(self, entries: list[Reply]) -> None:
        """The header of a stream's entries counts once the stream is finished."""
        self.bytes += len(b"*%d\r\n" % len(entries))

    def result(self) -> Reply:
        return self.reply or NIL_ARRAY


def xread(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    read = _parse(argv, now)
    streams = []
    for key, word in zip(read.keys, read.id_words, strict=True):
        stream = world.stream(key)
        if word == b">":
            raise CommandError(
                "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option."
            )
        start = None if word == b"+" else (stream.last if stream else (0, 0)) if word == b"$" else ids.plain(word)
        streams.append((key, stream, start))
    budget = Budget(read, world.protocol)
    for key, stream, start in streams:
        if budget.is_spent():
            break
        if stream is None:
            continue
        found = stream.entries()[-1:] if start is None else [s for s in stream.entries() if s.id > start]
        if not found:
            continue
        entries = budget.open(key)
        for slot in found:
            if not budget.takes():
                break
            budget.emit(entries, entry(slot))
        budget.close(entries)
    return budget.result()


def xreadgroup(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    read = _parse(argv, now)
    assert read.group is not None
    targets = [_target(world, key, read.group, word) for key, word in zip(read.keys, read.id_words, strict=True)]
    budget = Budget(read, world.protocol)
    claim = read.claim
    for key, (stream, group, start) in zip(read.keys, targets, strict=True):
        if budget.is_spent():
            break
        claims = claim is not None and _is_claimable(stream, group, claim, now)
        consumer = group.see(read.consumer, now)
        if start is not None:
            claim = None  # for this stream and all that follow
            entries = budget.open(key)
            _history(stream, group, read.consumer, start, budget, entries, now)
        elif claims or _has_new(stream, group):
            entries = budget.open(key)
            if claim is not None:
                _claim(stream, group, read.consumer, claim, budget, entries, now)
            got_new = _new(stream, group, read, budget, entries, now, claiming=claim is not None)
            if got_new and not read.noack:
                consumer.active = now
        else:
            continue
        budget.close(entries)
    return budget.result()


def _target(world: NaiveRedis, key: bytes, name: bytes, word: bytes) -> tuple[Stream, Group, Id | None]:
    """The stream, the group and where to read the history from (None: new entries)."""
    stream = world.stream(key)
    group = stream.groups.get(name) if stream else None
    if stream is None or group is None:
        raise CommandError(
            b"NOGROUP No such key '%s' or consumer group '%s' in XREADGROUP with GROUP option" % (key, name)
        )
    if word in (b"$", b"+"):
        sign = word.decode()
        raise CommandError(
            f"ERR The {sign} ID is meaningless in the context of XREADGROUP: you want to read the history of this "
            f"consumer by specifying a proper ID, or use the > ID to get new messages. The {sign} ID would just "
            "return an empty result set."
        )
    start = TOP if word == b">" else ids.plain(word)
    return stream, group, None if start == TOP else start  # the highest id means new entries too


def _idle(p: Pending, now: int) -> int:
    """How long it has been idle, on unsigned 64 bits: a time in the future is enormously idle."""
    return (now - p.time) % (U64 + 1)


def _has_new(stream: Stream, group: Group) -> bool:
    return any(slot.id > group.last for slot in stream.entries())


def _is_claimable(stream: Stream, group: Group, min_idle: int, now: int) -> bool:
    """Whether the first pending entry that is still in the stream is idle enough."""
    live = [p for p in group.pending if stream.find(p.id)]
    return bool(live) and _idle(live[0], now) >= min_idle


def _claim(
    stream: Stream, group: Group, name: bytes, min_idle: int, budget: Budget, entries: list[Reply], now: int
) -> None:
    """Hand idle pending entries to the consumer, the released ones first."""
    for p in list(group.pending):
        if _idle(p, now) < min_idle or not budget.takes():
            break
        slot = stream.find(p.id)
        if slot is None:
            continue
        budget.emit(entries, [*entry(slot), now - p.time, p.count])
        p.count = min(p.count + 1, I64)
        group.hand_over(p, name, now)
        group.consumers[name].active = now


def _new(
    stream: Stream, group: Group, read: Read, budget: Budget, entries: list[Reply], now: int, *, claiming: bool
) -> bool:
    """Deliver entries that the group has not seen; whether there was one."""
    got = False
    for slot in [slot for slot in stream.entries() if slot.id > group.last]:
        if not budget.takes():
            break
        got = True
        budget.emit(entries, [*entry(slot), 0, 0] if claiming else entry(slot))
        stream.advance(group, slot.id)
        if read.noack:
            continue
        p = group.find(slot.id)
        if p is None:
            group.pending.append(Pending(slot.id, read.consumer, now, 1))  # T7: behind all, whatever their times
        else:
            p.count = 1
            group.hand_over(p, read.consumer, now)
    return got


def _history(
    stream: Stream, group: Group, name: bytes, start: Id, budget: Budget, entries: list[Reply], now: int
) -> None:
    """Deliver again what the consumer already has."""
    for p in group.owned_by(name):
        if p.id <= start:
            continue
        if not budget.takes():
            break
        slot = stream.find(p.id)
        if slot is None:
            budget.emit(entries, [ids.text(p.id), NIL_ARRAY])
            continue
        budget.emit(entries, entry(slot))
        p.count = min(p.count + 1, I64)
        group.hand_over(p, name, now)
