"""The naive model's writers of entries: XADD XTRIM XDEL XDELEX XSETID XCFGSET XIDMPRECORD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from millstream.engine.outcome import OK, Reply
from millstream.errors import CommandError

from . import naive_ids as ids
from .naive_ids import SYNTAX, TOP, U64, ZERO, Id, integer
from .naive_stream import Stream

if TYPE_CHECKING:
    from .naive import NaiveRedis

STRATEGIES = (b"KEEPREF", b"DELREF", b"ACKED")
NO_KEY = "ERR no such key"


@dataclass
class Options:
    """What stands before the id in XADD, and behind the key in XTRIM."""

    maxlen: int | None = None
    minid: Id | None = None
    approximate: bool = False
    limit: int | None = None
    strategy: bytes | None = None
    nomkstream: bool = False
    pid: bytes | None = None
    iid: bytes | None = None
    id_word: bytes = b""
    id_at: int = 0

    def trims(self) -> bool:
        return self.maxlen is not None or self.minid is not None


def _options(argv: list[bytes], *, xadd: bool) -> Options:
    found = Options()
    at = 2
    while at < len(argv):
        word, left = argv[at].upper(), len(argv) - 1 - at
        if xadd and word == b"*":
            break
        if word in (b"MAXLEN", b"MINID") and left:
            at = _threshold(argv, at, found)
        elif word == b"LIMIT" and left:
            found.limit = integer(argv[at + 1])
            if found.limit < 0:
                raise CommandError("ERR The LIMIT argument must be >= 0.")
            at += 2
        elif word in STRATEGIES and found.strategy is None:
            found.strategy = word
            at += 1
        elif xadd and word == b"NOMKSTREAM":
            found.nomkstream = True
            at += 1
        elif xadd and ((word == b"IDMPAUTO" and left) or (word == b"IDMP" and left >= 2)):
            at = _producer(argv, at, found)
        elif xadd:
            break
        else:
            raise CommandError(SYNTAX)
    if xadd and at < len(argv):
        found.id_word, found.id_at = argv[at], at
        _xadd_id(found.id_word)
        if found.pid is not None and found.id_word != b"*":
            raise CommandError("ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs")
    _check_limit(found, xadd=xadd)
    return found


def _threshold(argv: list[bytes], at: int, found: Options) -> int:
    if found.trims():
        raise CommandError("ERR syntax error, MAXLEN and MINID options at the same time are not compatible")
    word, at = argv[at].upper(), at + 1
    if argv[at] in (b"~", b"=") and at + 1 < len(argv):
        found.approximate = argv[at] == b"~"
        at += 1
    if word == b"MINID":
        found.minid = ids.plain(argv[at])
        return at + 1
    found.maxlen = integer(argv[at])
    if found.maxlen < 0:
        raise CommandError("ERR The MAXLEN argument must be >= 0.")
    return at + 1


def _producer(argv: list[bytes], at: int, found: Options) -> int:
    auto = argv[at].upper() == b"IDMPAUTO"
    if found.pid is not None:
        raise CommandError("ERR syntax error, IDMP/IDMPAUTO specified multiple times")
    if not argv[at + 1]:
        raise CommandError(f"ERR syntax error, {'IDMPAUTO' if auto else 'IDMP'} requires a non-empty producer ID")
    found.pid = argv[at + 1]
    if auto:
        return at + 2
    if not argv[at + 2]:
        raise CommandError("ERR syntax error, IDMP requires a non-empty idempotent ID")
    found.iid = argv[at + 2]
    return at + 3


def _check_limit(found: Options, *, xadd: bool) -> None:
    if found.limit and not found.trims():
        raise CommandError("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy")
    if not xadd and not found.trims():
        raise CommandError("ERR syntax error, XTRIM must be called with a trimming strategy")
    if found.limit is not None and not found.approximate:
        raise CommandError("ERR syntax error, LIMIT cannot be used without the special ~ option")


def _xadd_id(word: bytes) -> tuple[int, int | None] | None:
    """The id of an XADD: None for `*`, no sequence number for `ms-*`."""
    if word == b"*":
        return None
    if word.endswith(b"-*") and len(word) <= 127:
        return ids.half(word[:-2]), None
    return ids.plain(word)


def _next_id(stream: Stream, word: bytes, now: int) -> Id:
    if stream.last == TOP:
        raise CommandError("ERR The stream has exhausted the last possible ID, unable to add more items")
    wanted = _xadd_id(word)
    if wanted is None:
        return (now, 0) if now > stream.last[0] else ids.after(stream.last)
    ms, seq = wanted
    if seq is None:
        seq = 0 if ms > stream.last[0] else stream.last[1] + 1
    if (ms, seq) <= stream.last or seq > U64:
        raise CommandError("ERR The ID specified in XADD is equal or smaller than the target stream top item")
    return ms, seq


def _automatic_iid(fields: list[bytes]) -> bytes:
    """Field order does not count, a repeated pair does (streams-new 8.2)."""
    mask = 2**64 - 1
    sums, xors = [0, 0], [0, 0]
    for name, value in zip(fields[0::2], fields[1::2], strict=True):
        digest = xxhash.xxh3_128_intdigest(name + len(name).to_bytes(8, "little") + value)
        for which, part in enumerate((digest & mask, digest >> 64)):
            sums[which] = (sums[which] + part) & mask
            xors[which] ^= part
    rotated = [((x << 1) | (x >> 63)) & mask for x in xors]
    return (sums[0] ^ rotated[1]).to_bytes(8, "little") + (sums[1] ^ rotated[0]).to_bytes(8, "little")


def xadd(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    options = _options(argv, xadd=True)
    fields = argv[options.id_at + 1 :]
    if not options.id_at or not fields or len(fields) % 2:
        raise CommandError("ERR wrong number of arguments for 'xadd' command")
    if _xadd_id(options.id_word) == ZERO:
        raise CommandError("ERR The ID specified in XADD must be greater than 0-0")
    stream = world.stream(argv[1])
    if stream is None:
        if options.nomkstream:
            return None
        stream = world.make_stream(argv[1])
    iid = options.iid
    if options.pid is not None:
        iid = iid or _automatic_iid(fields)
        stored = stream.producers.setdefault(options.pid, {}).get(iid)
        if stored is not None:
            stream.iids_duplicates += 1
            return ids.text(stored)
    entry_id = _next_id(stream, options.id_word, now)
    stream.append(entry_id, fields, world.node_max_entries, world.node_max_bytes)
    if options.pid is not None and iid is not None:
        stream.record(options.pid, iid, entry_id)
    if options.trims():
        _trim(world, stream, options)
    return ids.text(entry_id)


def _trim(world: NaiveRedis, stream: Stream, options: Options) -> int:
    limit = options.limit
    if limit is None:
        most = 100 * world.node_max_entries
        limit = min(most if most > 0 else 10000, 1000000) if options.approximate else 0
    return stream.trim(
        maxlen=options.maxlen,
        minid=options.minid,
        approximate=options.approximate,
        limit=limit,
        strategy=options.strategy or b"KEEPREF",
    )


def xtrim(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    options = _options(argv, xadd=False)
    stream = world.stream(argv[1])
    return _trim(world, stream, options) if stream else 0


def xdel(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    stream = world.stream(argv[1])
    if stream is None:
        return 0
    return sum([stream.delete(entry_id) for entry_id in [ids.plain(word) for word in argv[2:]]])


def ids_block(argv: list[bytes], at: int) -> tuple[bytes, list[bytes]]:
    """The strategy and the id words of XDELEX and XACKDEL."""
    strategy, words = None, None
    while at < len(argv):
        word = argv[at].upper()
        if word in STRATEGIES and strategy is None:
            strategy = word
            at += 1
        elif word == b"IDS" and at + 1 < len(argv):
            count = integer(argv[at + 1], "ERR Number of IDs must be a positive integer")
            if count < 1:
                raise CommandError("ERR Number of IDs must be a positive integer")
            words = argv[at + 2 : at + 2 + count]
            if len(words) < count:
                raise CommandError("ERR The `numids` parameter must match the number of arguments")
            at += 2 + count
        else:
            raise CommandError(SYNTAX)
    assert words is not None, "an argv long enough for the arity has an IDS block or an unknown word"
    return strategy or b"KEEPREF", words


def xdelex(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    stream = world.stream(argv[1])
    strategy, words = ids_block(argv, 2)
    if stream is None:
        return [-1] * len(words)
    reply: list[Reply] = []
    for entry_id in [ids.plain(word) for word in words]:
        if strategy == b"ACKED" and stream.is_referenced(entry_id):
            reply.append(2)
            continue
        if strategy == b"DELREF":
            stream.forget_references(entry_id)
        reply.append(1 if stream.delete(entry_id) else -1)
    return reply


def xsetid(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    last, added, deleted = ids.plain(argv[2]), None, ZERO
    at = 3
    while at < len(argv):
        word = argv[at].upper()
        if at + 1 == len(argv) or word not in (b"ENTRIESADDED", b"MAXDELETEDID"):
            raise CommandError(SYNTAX)
        if word == b"ENTRIESADDED":
            added = integer(argv[at + 1])
            if added < 0:
                raise CommandError("ERR entries_added must be positive")
        else:
            deleted = ids.plain(argv[at + 1])
            if deleted > last:
                raise CommandError("ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id")
        at += 2
    stream = world.existing(argv[1])
    if last < stream.max_deleted:
        raise CommandError("ERR The ID specified in XSETID is smaller than current max_deleted_entry_id")
    entries = stream.entries()
    if entries and last < entries[-1].id:
        raise CommandError("ERR The ID specified in XSETID is smaller than the target stream top item")
    if entries and added is not None and added < len(entries):
        raise CommandError("ERR The entries_added specified in XSETID is smaller than the target stream length")
    stream.last = last
    stream.added = stream.added if added is None else added
    stream.max_deleted = deleted if deleted != ZERO else stream.max_deleted
    return OK


def xcfgset(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    stream = world.existing(argv[1])
    given: dict[str, int] = {}
    most = {"IDMP-DURATION": (86400, "seconds"), "IDMP-MAXSIZE": (10000, "entries")}
    for at in range(2, len(argv), 2):
        name = argv[at].decode("latin-1").upper()
        if name not in most or at + 1 == len(argv):
            raise CommandError(SYNTAX)
        if name in given:
            raise CommandError(f"ERR {name} specified multiple times")
        given[name] = integer(argv[at + 1])
        highest, unit = most[name]
        if not 1 <= given[name] <= highest:
            raise CommandError(f"ERR {name} must be between 1 and {highest} {unit}")
    if not given:
        raise CommandError("ERR At least one parameter must be specified")
    old = stream.idmp_duration, stream.idmp_maxsize
    new = given.get("IDMP-DURATION", old[0]), given.get("IDMP-MAXSIZE", old[1])
    if new != old:
        stream.idmp_duration, stream.idmp_maxsize = new
        stream.producers = {}
    return OK


def xidmprecord(world: NaiveRedis, argv: list[bytes], now: int) -> Reply:
    key, pid, iid = argv[1:4]
    entry_id = ids.plain(argv[4])
    if not pid:
        raise CommandError("ERR producer ID must be non-empty")
    if not iid:
        raise CommandError("ERR idempotent ID must be non-empty")
    stream = world.existing(key)
    if stream.find(entry_id) is None:
        raise CommandError("ERR No such message in stream")
    stored = stream.producers.setdefault(pid, {}).get(iid)
    if stored is None:
        stream.record(pid, iid, entry_id)
    elif stored != entry_id:
        raise CommandError("ERR IID already exists for this producer with a different stream ID")
    return OK
