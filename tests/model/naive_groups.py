"""The naive model's group commands: XGROUP XACK XACKDEL XNACK XPENDING XCLAIM XAUTOCLAIM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.engine.outcome import NIL_ARRAY, OK, Reply
from millstream.errors import CommandError

from . import naive_ids as ids
from .naive_ids import I64, SYNTAX, Id, integer
from .naive_read import entry
from .naive_stream import Group, Pending, Stream
from .naive_write import ids_block

if TYPE_CHECKING:
    from .naive import NaiveRedis

NO_STREAM = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM "
    "option to create an empty stream automatically."
)


def group_of(world: NaiveRedis, key: bytes, name: bytes) -> tuple[Stream, Group]:
    """The stream and the group, or the error of XPENDING, XCLAIM, XAUTOCLAIM and XNACK."""
    stream = world.stream(key)
    if stream is None or name not in stream.groups:
        raise CommandError(b"NOGROUP No such key '%s' or consumer group '%s'" % (key, name))
    return stream, stream.groups[name]


# XGROUP


def xgroup(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    sub = argv[1].upper()
    least, run = {
        b"CREATE": (5, _create),
        b"SETID": (5, _setid),
        b"DESTROY": (4, _destroy),
        b"CREATECONSUMER": (5, _createconsumer),
        b"DELCONSUMER": (5, _delconsumer),
    }[sub]
    exact = sub not in (b"CREATE", b"SETID")
    if len(argv) < least or (exact and len(argv) > least):
        raise CommandError(b"ERR wrong number of arguments for 'xgroup|%s' command" % argv[1].lower())
    return run(world, argv, now)


def _group_options(argv: list[bytes]) -> tuple[bool, int | None]:
    """MKSTREAM and ENTRIESREAD."""
    create = argv[1].upper() == b"CREATE"
    unknown = CommandError(b"ERR unknown subcommand or wrong number of arguments for '%s'. Try XGROUP HELP." % argv[1])
    if len(argv) > (8 if create else 7):
        raise unknown
    mkstream, read, at = False, None, 5
    while at < len(argv):
        word = argv[at].upper()
        if word == b"MKSTREAM" and create:
            mkstream = True
            at += 1
        elif word == b"ENTRIESREAD" and at + 1 < len(argv):
            read = integer(argv[at + 1])
            if read < -1:
                raise CommandError("ERR value for ENTRIESREAD must be positive or -1")
            at += 2
        else:
            raise unknown
    return mkstream, None if read == -1 else read


def _create(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    mkstream, read = _group_options(argv)
    stream = world.stream(argv[2])
    if stream is None and not mkstream:
        raise CommandError(NO_STREAM)
    last = (stream.last if stream else (0, 0)) if argv[4] == b"$" else ids.plain(argv[4])
    stream = stream or world.make_stream(argv[2])
    if argv[3] in stream.groups:
        raise CommandError("BUSYGROUP Consumer Group name already exists")
    stream.groups[argv[3]] = Group(last, None if read is None else min(read, stream.added))
    return OK


def _xgroup_target(world: NaiveRedis, argv: list[bytes]) -> tuple[Stream, Group]:
    stream = world.stream(argv[2])
    if stream is None:
        raise CommandError(NO_STREAM)
    if argv[3] not in stream.groups:
        raise CommandError(b"NOGROUP No such consumer group '%s' for key name '%s'" % (argv[3], argv[2]))
    return stream, stream.groups[argv[3]]


def _setid(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    _, read = _group_options(argv)
    stream, group = _xgroup_target(world, argv)
    group.last = stream.last if argv[4] == b"$" else ids.bound(argv[4], 0)
    group.read = None if read is None else min(read, stream.added)
    return OK


def _destroy(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    stream = world.stream(argv[2])
    if stream is None:
        raise CommandError(NO_STREAM)
    return 1 if stream.groups.pop(argv[3], None) else 0


def _createconsumer(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    _, group = _xgroup_target(world, argv)
    if argv[4] in group.consumers:
        return 0
    group.see(argv[4], now)
    return 1


def _delconsumer(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    _, group = _xgroup_target(world, argv)
    lost = group.owned_by(argv[4])
    for p in lost:
        group.forget(p)
    group.consumers.pop(argv[4], None)
    return len(lost)


# Settling


def xack(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    stream = world.stream(argv[1])
    group = stream.groups.get(argv[2]) if stream else None
    if group is None:
        return 0
    return sum([_acknowledge(group, entry_id) for entry_id in [ids.plain(word) for word in argv[3:]]])


def _acknowledge(group: Group, entry_id: Id) -> bool:
    p = group.find(entry_id)
    if p is not None:
        group.forget(p)
    return p is not None


def xackdel(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    stream = world.stream(argv[1])
    strategy, words = ids_block(argv, 3)
    group = stream.groups.get(argv[2]) if stream else None
    if stream is None or group is None:
        return [-1] * len(words)
    reply: list[Reply] = []
    for entry_id in [ids.plain(word) for word in words]:
        if not _acknowledge(group, entry_id):
            reply.append(-1)
        elif strategy == b"ACKED" and stream.is_referenced(entry_id):
            reply.append(2)
        else:
            if strategy == b"DELREF":
                stream.forget_references(entry_id)
            stream.delete(entry_id)
            reply.append(1)
    return reply


def xnack(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    stream, group = group_of(world, argv[1], argv[2])
    mode = argv[3].upper()
    if mode not in (b"SILENT", b"FAIL", b"FATAL"):
        raise CommandError("ERR mode must be SILENT, FAIL, or FATAL")
    words, force, retrycount = _xnack_options(argv)
    released = 0
    for entry_id in [ids.plain(word) for word in words]:
        p = group.find(entry_id)
        if p is None:
            if not force or stream.find(entry_id) is None:
                continue
            p = Pending(entry_id, None, 0, 0)
        p.count = {b"SILENT": max(p.count - 1, 0), b"FAIL": p.count, b"FATAL": I64}[mode]
        p.count = p.count if retrycount is None else retrycount
        group.release(p)
        released += 1
    return released


def _xnack_options(argv: list[bytes]) -> tuple[list[bytes], bool, int | None]:
    words, force, retrycount, at = None, False, None, 4
    while at < len(argv):
        word, left = argv[at].upper(), len(argv) - 1 - at
        if word == b"IDS" and left:
            count = integer(argv[at + 1], "ERR numids must be a positive integer")
            if not 1 <= count <= 2**31 - 1:
                raise CommandError("ERR numids must be a positive integer")
            words = argv[at + 2 : at + 2 + count]
            if len(words) < count:
                raise CommandError("ERR number of IDs doesn't match numids")
            at += 2 + count
        elif word == b"FORCE":
            force = True
            at += 1
        elif word == b"RETRYCOUNT" and left:
            retrycount = integer(argv[at + 1])
            if retrycount < 0:
                raise CommandError("ERR Invalid RETRYCOUNT value, must be >= 0")
            at += 2
        else:
            raise CommandError(b"ERR Unrecognized XNACK option '%s'" % argv[at])
    if words is None:
        raise CommandError("ERR syntax error, expected IDS keyword")
    return words, force, retrycount


# Looking at and claiming pending entries


def xpending(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    if len(argv) != 3 and not 6 <= len(argv) <= 9:
        raise CommandError(SYNTAX)
    if len(argv) == 3:
        return _pending_summary(group_of(world, argv[1], argv[2])[1])
    min_idle, at = 0, 3
    if argv[3].upper() == b"IDLE":
        min_idle, at = integer(argv[4]), 5
        if len(argv) < 8:
            raise CommandError(SYNTAX)
    count = max(0, integer(argv[at + 2]))
    start, end = ids.range_start(argv[at]), ids.range_end(argv[at + 1])
    _, group = group_of(world, argv[1], argv[2])
    found = group.owned_by(argv[at + 3]) if len(argv) > at + 3 else group.by_id()
    return [
        [ids.text(p.id), p.consumer or b"", -1 if p.consumer is None else max(0, now - p.time), p.count]
        for p in found
        if start <= p.id <= end and (p.consumer is None or now - p.time >= min_idle or min_idle <= 0)
    ][:count]


def _pending_summary(group: Group) -> Reply:
    if not group.pending:
        return [0, None, None, NIL_ARRAY]
    by_id = group.by_id()
    owners: list[Reply] = [
        [name, b"%d" % len(group.owned_by(name))] for name in sorted(group.consumers) if group.owned_by(name)
    ]
    return [len(by_id), ids.text(by_id[0].id), ids.text(by_id[-1].id), owners]


@dataclass
class Claim:
    """The words of an XCLAIM behind the consumer."""

    min_idle: int
    ids: list[Id] = field(default_factory=list)
    time: int = 0
    retrycount: int | None = None
    force: bool = False
    justid: bool = False
    lastid: Id = (0, 0)


def xclaim(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    stream, group = group_of(world, argv[1], argv[2])
    claim = _claim_options(argv, now)
    group.last = max(group.last, claim.lastid)
    consumer = group.see(argv[3], now)
    reply: list[Reply] = []
    for entry_id in claim.ids:
        slot, p = stream.find(entry_id), group.find(entry_id)
        if slot is None:
            _acknowledge(group, entry_id)
            continue
        if p is None:
            if not claim.force:
                continue
            p = Pending(entry_id, None, 0, 1)
        elif p.consumer is not None and claim.min_idle and now - p.time < claim.min_idle:
            continue
        _count(p, claim)
        group.hand_over(p, argv[3], claim.time)
        consumer.active = now
        reply.append(ids.text(entry_id) if claim.justid else entry(slot))
    return reply


def _count(p: Pending, claim: Claim) -> None:
    if claim.retrycount is not None:
        p.count = claim.retrycount
    elif not claim.justid:
        p.count = min(p.count + 1, I64)


def _claim_options(argv: list[bytes], now: int) -> Claim:
    claim = Claim(max(0, integer(argv[4], "ERR Invalid min-idle-time argument for XCLAIM")))
    at = 5
    while at < len(argv):
        try:
            claim.ids.append(ids.plain(argv[at]))
        except CommandError:
            break
        at += 1
    time = -1
    while at < len(argv):
        word, left = argv[at].upper(), len(argv) - 1 - at
        if word == b"FORCE":
            claim.force = True
        elif word == b"JUSTID":
            claim.justid = True
        elif word in (b"IDLE", b"TIME", b"RETRYCOUNT") and left:
            at += 1
            value = integer(argv[at], f"ERR Invalid {word.decode()} option argument for XCLAIM")
            if word == b"RETRYCOUNT":
                claim.retrycount = value if value >= 0 else None
            else:
                time = now - value if word == b"IDLE" else value
        elif word == b"LASTID" and left:
            at += 1
            claim.lastid = ids.plain(argv[at])
        else:
            raise CommandError(b"ERR Unrecognized XCLAIM option '%s'" % argv[at])
        at += 1
    claim.time = time if 0 <= time <= now else now
    return claim


def xautoclaim(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    claim = Claim(max(0, integer(argv[4], "ERR Invalid min-idle-time argument for XAUTOCLAIM")), time=now)
    start = ids.range_start(argv[5])
    count, at = 100, 6
    while at < len(argv):
        word = argv[at].upper()
        if word == b"COUNT" and at + 1 < len(argv):
            at += 1
            count = integer(argv[at], "ERR COUNT must be > 0")
            if not 1 <= count <= I64 // 16:
                raise CommandError("ERR COUNT must be > 0")
        elif word == b"JUSTID":
            claim.justid = True
        else:
            raise CommandError(SYNTAX)
        at += 1
    stream, group = group_of(world, argv[1], argv[2])
    consumer = group.see(argv[3], now)
    looks, claimed, deleted = 10 * count, [], []
    ahead = [p for p in group.by_id() if p.id >= start]
    while ahead and looks and len(claimed) + len(deleted) < count:
        p, looks = ahead.pop(0), looks - 1
        slot = stream.find(p.id)
        if slot is None:
            group.forget(p)
            deleted.append(ids.text(p.id))
        elif p.consumer is None or now - p.time >= claim.min_idle or claim.min_idle == 0:
            _count(p, claim)
            group.hand_over(p, argv[3], now)
            consumer.active = now
            claimed.append(ids.text(p.id) if claim.justid else entry(slot))
    return [ids.text(ahead[0].id) if ahead else b"0-0", claimed, deleted]
