"""Commands that add entries, take them away, or set what a stream remembers: XADD XTRIM XDEL XDELEX XSETID
XCFGSET XIDMPRECORD."""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

from millstream.engine import faults
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.outcome import OK, Reply
from millstream.engine.streams import ids
from millstream.engine.streams.entries import LARGEST_NODE
from millstream.engine.streams.ids import MAX_KEY
from millstream.engine.streams.stream import References, Stream
from millstream.engine.table import Registry
from millstream.engine.text.args import U64_MAX, integer

REGISTRY = Registry("stream")

_REFERENCES = {references.value: references for references in References}
_MOST_TRIMMED = 1_000_000  # what an approximate trim without LIMIT takes at most


@dataclass(slots=True)
class TrimWords:
    """The trimming words of XADD and XTRIM, and where in the argv they stand."""

    maxlen: int | None = None
    minid: int | None = None
    strategy_at: int = 0  # where MAXLEN or MINID stands
    approximate_at: int | None = None  # where `~` stands
    threshold_at: int = 0
    limit: int | None = None
    references: References | None = None

    @property
    def is_given(self) -> bool:
        return self.maxlen is not None or self.minid is not None

    def take(self, argv: list[bytes], at: int) -> int | None:
        """Read the option at this place; the place after it, or None if it is none of ours."""
        word = argv[at].upper()
        left = len(argv) - 1 - at
        if word in (b"MAXLEN", b"MINID") and left:
            return self._take_threshold(argv, at, word)
        if word == b"LIMIT" and left:
            self.limit = integer(argv[at + 1])
            if self.limit < 0:
                raise fault(faults.NEGATIVE_LIMIT)
            return at + 2
        if word in _REFERENCES and self.references is None:
            self.references = _REFERENCES[word]
            return at + 1
        return None

    def _take_threshold(self, argv: list[bytes], at: int, word: bytes) -> int:
        if self.is_given:
            raise fault(faults.TWO_TRIMS)
        self.strategy_at = at
        at += 1
        if argv[at] in (b"~", b"=") and at + 1 < len(argv):
            if argv[at] == b"~":
                self.approximate_at = at
            at += 1
        if word == b"MAXLEN":
            self.maxlen = integer(argv[at])
            if self.maxlen < 0:
                raise fault(faults.NEGATIVE_MAXLEN)
        else:
            self.minid = ids.strict(argv[at])
        self.threshold_at = at
        return at + 1

    def check(self, call: CommandContext, *, must_be_given: bool) -> None:
        """Check the rules about which words go together."""
        if self.limit and not self.is_given:
            raise fault(faults.LIMIT_WITHOUT_TRIM)
        if must_be_given and not self.is_given:
            raise fault(faults.XTRIM_WITHOUT_TRIM)
        if self.limit is not None and self.approximate_at is None and not call.trusted:
            raise fault(faults.LIMIT_WITHOUT_APPROX)

    def apply(self, call: CommandContext, stream: Stream) -> tuple[int, int | None]:
        """Trim the stream: how many entries went, and the id at which LIMIT ended the walk."""
        return stream.trim(
            maxlen=self.maxlen,
            minid=self.minid,
            approximate=self.approximate_at is not None,
            limit=self._effective_limit(call),
            references=self.references or References.KEEP,
        )

    def _effective_limit(self, call: CommandContext) -> int:
        if call.trusted or self.approximate_at is None:
            return 0
        if self.limit is not None:
            return self.limit
        limit = 100 * call.settings.stream_node_max_entries
        return min(limit if limit > 0 else 10000, _MOST_TRIMMED)

    def as_done(self, argv: list[bytes], stream: Stream, stopped_at: int | None) -> None:
        """Rewrite an approximate trim in a logged argv to the exact one that does the same.

        Redis logs the resulting length, or the first stored id. With ACKED the first, and with ACKED and DELREF the
        second may remove less on replay than was removed, so for these we log the threshold itself, or, if LIMIT
        ended the walk, the id where it did.
        """
        if self.approximate_at is None:
            return
        argv[self.approximate_at] = b"="
        if self.maxlen is not None and self.references is not References.ACKED:
            argv[self.threshold_at] = b"%d" % len(stream)
        elif self.references in (None, References.KEEP):
            argv[self.threshold_at] = stream.first_stored()
        elif stopped_at is not None:
            argv[self.strategy_at] = b"MINID"
            argv[self.threshold_at] = ids.text_of(stopped_at)


@dataclass(slots=True)
class AddWords:
    """What an XADD asks for, before its fields."""

    trim: TrimWords
    no_mkstream: bool = False
    producer: bytes | None = None
    idempotent_id: bytes | None = None  # None with a producer: made from the fields (IDMPAUTO)
    id_at: int = 0
    key: int | None = None  # None: `*`
    any_seq: bool = False  # `ms-*`


@REGISTRY.command(
    "xadd",
    -5,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW update",
    since="5.0.0",
    summary="Appends an entry to a stream and answers with its id.",
)
def xadd(call: CommandContext, argv: list[bytes]) -> Reply:
    """XADD key [NOMKSTREAM] [KEEPREF|DELREF|ACKED] [IDMPAUTO pid | IDMP pid iid]
    [MAXLEN|MINID [=|~] threshold [LIMIT n]] <*|id> field value [field value ...]

    The id. Null if the key is missing and NOMKSTREAM was given. An idempotent duplicate answers with the id of the
    entry it repeats and changes nothing.
    """
    words = _parse_add(call, argv)
    fields = argv[words.id_at + 1 :]
    if not fields or len(fields) % 2:
        raise faults.wrong_arity("xadd")
    if words.key == 0 and not words.any_seq:
        raise fault(faults.ID_ZERO)
    name = argv[1]
    stream = call.typed(name, Stream)
    if stream is None and words.no_mkstream:
        return None
    is_new = stream is None
    if stream is None:
        stream = Stream(call.settings)
    idempotent_id = b""
    if words.producer is not None:
        idempotent_id = words.idempotent_id or automatic_id(fields)
        # Redis makes the producer before it knows that the entry can be added; XINFO shows it
        records = stream.producers.setdefault(words.producer, {})
        known = records.get(idempotent_id)
        if call.trusted:
            known = _known_in_log(words, stream, records, idempotent_id)
        if known is not None:
            stream.iids_duplicates += 1
            call.dirty += 1
            call.log(*argv)
            return ids.text_of(known)
    key = _next_key(words, stream.last, call.now_ms)
    if sum(map(len, fields)) > LARGEST_NODE:
        raise fault(faults.ENTRY_TOO_LARGE)
    if is_new:
        call.add(name, stream)
    entry_id = ids.text_of(key)
    stream.append(entry_id, key, fields, call.settings)
    if words.producer is not None:
        stream.record(words.producer, idempotent_id, key)
        call.db.idempotent.add(name)
    call.event("t", b"xadd", name)
    stopped_at = None
    if words.trim.is_given:
        removed, stopped_at = words.trim.apply(call, stream)
        if removed:
            call.event("t", b"xtrim", name)
    call.touch(name)
    call.ready(name)
    call.dirty += 1
    if call.keep_log:
        logged = list(argv)
        if words.key is None or words.any_seq:
            logged[words.id_at] = entry_id
        words.trim.as_done(logged, stream, stopped_at)
        call.log(*logged)
    return entry_id


def _known_in_log(words: AddWords, stream: Stream, records: dict[bytes, int], idempotent_id: bytes) -> int | None:
    """Return the id that a replayed duplicate repeats, None for an append. Records expire unlogged: the log decides.

    An append was logged with the id it got, whatever is remembered under its idempotent id. A duplicate was logged
    with `*`, although its record may be gone from a base that was written later.
    """
    if words.key is None:
        return records.get(idempotent_id, stream.last)
    records.pop(idempotent_id, None)
    return None


def _parse_add(call: CommandContext, argv: list[bytes]) -> AddWords:
    words = AddWords(TrimWords())
    at = 2
    while at < len(argv):
        if argv[at] == b"*":
            break
        after = _take_add_option(words, argv, at)
        if after is None:
            words.key, words.any_seq = _parse_new_id(argv[at])
            break
        at = after
    words.id_at = at
    if words.producer is not None and words.key is not None and not call.trusted:
        raise fault(faults.IDMP_EXPLICIT_ID)
    words.trim.check(call, must_be_given=False)
    return words


def _take_add_option(words: AddWords, argv: list[bytes], at: int) -> int | None:
    """Read the option at this place; the place after it, or None if the id must stand there."""
    word = argv[at].upper()
    left = len(argv) - 1 - at
    if word == b"NOMKSTREAM":
        words.no_mkstream = True
        return at + 1
    if (word == b"IDMP" and left >= 2) or (word == b"IDMPAUTO" and left >= 1):
        if words.producer is not None:
            raise fault(faults.IDMP_TWICE)
        words.producer = argv[at + 1]
        if word == b"IDMPAUTO":
            if not words.producer:
                raise fault(faults.IDMPAUTO_EMPTY_PID)
            return at + 2
        if not words.producer:
            raise fault(faults.IDMP_EMPTY_PID)
        words.idempotent_id = argv[at + 2]
        if not words.idempotent_id:
            raise fault(faults.IDMP_EMPTY_IID)
        return at + 3
    return words.trim.take(argv, at)


def _parse_new_id(word: bytes) -> tuple[int, bool]:
    """Parse an explicit id, or `ms-*`: its lowest sequence and True."""
    if word.endswith(b"-*") and len(word) <= ids.LONGEST:
        return ids.strict(word[:-1] + b"0"), True
    return ids.strict(word), False


def _next_key(words: AddWords, last: int, now_ms: int) -> int:
    """Return the key of the entry to add; raises an error that says why none can be added."""
    if last == MAX_KEY:
        raise fault(faults.ID_EXHAUSTED)
    key = words.key
    if key is None:
        return now_ms << 64 if now_ms > last >> 64 else last + 1
    if words.any_seq and key >> 64 == last >> 64:
        if last & U64_MAX == U64_MAX:
            raise fault(faults.ID_TOO_SMALL)
        return last + 1
    if key <= last:
        raise fault(faults.ID_TOO_SMALL)
    return key


def automatic_id(fields: list[bytes]) -> bytes:
    """Return the idempotent id that IDMPAUTO gives these fields; their order does not matter."""
    sum_low = sum_high = xor_low = xor_high = 0
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        digest = xxhash.xxh3_128_intdigest(name + len(name).to_bytes(8, "little") + value)
        low, high = digest & U64_MAX, digest >> 64
        sum_low, sum_high = (sum_low + low) & U64_MAX, (sum_high + high) & U64_MAX
        xor_low, xor_high = xor_low ^ low, xor_high ^ high
    low = sum_low ^ _rotate_left(xor_high)
    high = sum_high ^ _rotate_left(xor_low)
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


def _rotate_left(value: int) -> int:
    return (value << 1 | value >> 63) & U64_MAX


@REGISTRY.command(
    "xtrim",
    -4,
    "write",
    keys=(1, 1, 1),
    access="RW delete",
    since="5.0.0",
    summary="Removes the oldest entries of a stream, by length or by id.",
)
def xtrim(call: CommandContext, argv: list[bytes]) -> Reply:
    """XTRIM key <MAXLEN|MINID> [=|~] threshold [LIMIT n] [KEEPREF|DELREF|ACKED]

    How many entries were removed.
    """
    words = TrimWords()
    at = 2
    while at < len(argv):
        after = words.take(argv, at)
        if after is None:
            raise fault(faults.SYNTAX)
        at = after
    words.check(call, must_be_given=True)
    name = argv[1]
    stream = call.typed(name, Stream)
    if stream is None:
        return 0
    removed, stopped_at = words.apply(call, stream)
    if removed:
        call.event("t", b"xtrim", name)
        call.touch(name)
        call.dirty += removed
        logged = list(argv)
        words.as_done(logged, stream, stopped_at)
        call.log(*logged)
    return removed


@REGISTRY.command(
    "xdel",
    -3,
    "write fast",
    keys=(1, 1, 1),
    access="RW delete",
    since="5.0.0",
    summary="Deletes entries of a stream; pending references to them stay.",
)
def xdel(call: CommandContext, argv: list[bytes]) -> Reply:
    """XDEL key id [id ...]

    How many entries were there and are gone.
    """
    name = argv[1]
    stream = call.typed(name, Stream)
    if stream is None:
        return 0
    keys = ids.strict_all(argv[2:])
    deleted = sum(stream.delete(ids.text_of(key), key) for key in keys)
    _report_deleted(call, argv, name, deleted)
    return deleted


def _report_deleted(call: CommandContext, argv: list[bytes], name: bytes, deleted: int) -> None:
    if deleted:
        call.event("t", b"xdel", name)
        call.touch(name)
        call.dirty += deleted
        call.log(*argv)


@dataclass(frozen=True, slots=True)
class IdBlock:
    """The words `[KEEPREF|DELREF|ACKED] IDS numids id ...`, not parsed as ids yet."""

    references: References
    words: list[bytes]


def parse_id_block(argv: list[bytes], at: int) -> IdBlock:
    """Parse the argument block that XDELEX and XACKDEL share, from this index on."""
    references: References | None = None
    found: list[bytes] | None = None
    while at < len(argv):
        word = argv[at].upper()
        if word in _REFERENCES and references is None:
            references = _REFERENCES[word]
            at += 1
        elif word == b"IDS" and at + 1 < len(argv):
            count = integer(argv[at + 1], faults.NUMIDS)
            if count < 1:
                raise fault(faults.NUMIDS)
            if count > len(argv) - at - 2:
                raise fault(faults.NUMIDS_MISMATCH)
            found = argv[at + 2 : at + 2 + count]
            at += 2 + count
        else:
            raise fault(faults.SYNTAX)
    if found is None:
        raise fault("ERR IDS option is required")
    return IdBlock(references or References.KEEP, found)


@REGISTRY.command(
    "xdelex",
    -5,
    "write fast",
    keys=(1, 1, 1),
    access="RW delete",
    since="8.2.0",
    summary="Deletes entries of a stream, with a say in what becomes of pending references.",
)
def xdelex(call: CommandContext, argv: list[bytes]) -> Reply:
    """XDELEX key [KEEPREF|DELREF|ACKED] IDS numids id [id ...]

    One number an id: 1 deleted, -1 not there, 2 kept because it is referenced.
    """
    name = argv[1]
    stream = call.typed(name, Stream)
    block = parse_id_block(argv, 2)
    if stream is None:
        return [-1] * len(block.words)
    keys = ids.strict_all(block.words)
    results = [_delete_with(stream, key, block.references) for key in keys]
    _report_deleted(call, argv, name, results.count(1))
    return list(results)


def _delete_with(stream: Stream, key: int, references: References) -> int:
    entry_id = ids.text_of(key)
    if references is References.ACKED and stream.is_referenced(entry_id, key):
        return 2
    if references is References.DELETE:
        stream.forget_references(entry_id)
    return 1 if stream.delete(entry_id, key) else -1


@REGISTRY.command(
    "xsetid",
    -3,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW update",
    since="5.0.0",
    summary="Sets the last id of a stream and the counters that outlive entries.",
)
def xsetid(call: CommandContext, argv: list[bytes]) -> Reply:
    """XSETID key id [ENTRIESADDED n] [MAXDELETEDID id]"""
    key = ids.strict(argv[2])
    entries_added, max_deleted = _parse_setid_options(argv, key)
    stream = call.typed(argv[1], Stream)
    if stream is None:
        raise fault(faults.NO_SUCH_KEY)
    if key < stream.max_deleted:
        raise fault(faults.SETID_BELOW_DELETED)
    if len(stream):
        if key < stream.entries.last_key():
            raise fault(faults.SETID_BELOW_TOP)
        if entries_added is not None and entries_added < len(stream):
            raise fault(faults.SETID_BELOW_LENGTH)
    stream.last = key
    if entries_added is not None:
        stream.entries_added = entries_added
    if max_deleted:
        stream.max_deleted = max_deleted
    call.event("t", b"xsetid", argv[1])
    call.dirty += 1
    call.log(*argv)
    return OK


def _parse_setid_options(argv: list[bytes], key: int) -> tuple[int | None, int | None]:
    entries_added = max_deleted = None
    at = 3
    while at < len(argv):
        word = argv[at].upper()
        if word == b"ENTRIESADDED" and at + 1 < len(argv):
            entries_added = integer(argv[at + 1])
            if entries_added < 0:
                raise fault(faults.NEGATIVE_ENTRIES_ADDED)
        elif word == b"MAXDELETEDID" and at + 1 < len(argv):
            max_deleted = ids.strict(argv[at + 1])
            if key < max_deleted:
                raise fault(faults.SETID_BELOW_GIVEN_DELETED)
        else:
            raise fault(faults.SYNTAX)
        at += 2
    return entries_added, max_deleted


@REGISTRY.command(
    "xcfgset",
    -2,
    "write fast",
    keys=(1, 1, 1),
    access="RW update",
    since="8.6.0",
    summary="Sets how long and how many idempotency records a stream keeps.",
)
def xcfgset(call: CommandContext, argv: list[bytes]) -> Reply:
    """XCFGSET key [IDMP-DURATION seconds] [IDMP-MAXSIZE n]

    A value that changes drops all records of the stream.
    """
    stream = call.typed(argv[1], Stream)
    if stream is None:
        raise fault(faults.NO_SUCH_KEY)
    duration, maxsize = _parse_cfgset(argv)
    new = (stream.idmp_duration if duration is None else duration, stream.idmp_maxsize if maxsize is None else maxsize)
    if new != (stream.idmp_duration, stream.idmp_maxsize):
        stream.idmp_duration, stream.idmp_maxsize = new
        stream.producers.clear()
        call.dirty += 1
        call.log(*argv)
    return OK


def _parse_cfgset(argv: list[bytes]) -> tuple[int | None, int | None]:
    duration = maxsize = None
    at = 2
    while at < len(argv):
        word = argv[at].upper()
        if at + 1 == len(argv) or word not in (b"IDMP-DURATION", b"IDMP-MAXSIZE"):
            raise fault(faults.SYNTAX)
        if word == b"IDMP-DURATION":
            if duration is not None:
                raise fault(faults.DURATION_TWICE)
            duration = integer(argv[at + 1])
            if not 1 <= duration <= 86400:
                raise fault(faults.DURATION_RANGE)
        else:
            if maxsize is not None:
                raise fault(faults.MAXSIZE_TWICE)
            maxsize = integer(argv[at + 1])
            if not 1 <= maxsize <= 10000:
                raise fault(faults.MAXSIZE_RANGE)
        at += 2
    if duration is None and maxsize is None:
        raise fault(faults.NO_PARAMETER)
    return duration, maxsize


@REGISTRY.command(
    "xidmprecord",
    5,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW update",
    since="8.6.2",
    summary="Restores an idempotency record; a rewritten log holds these.",
)
def xidmprecord(call: CommandContext, argv: list[bytes]) -> Reply:
    """XIDMPRECORD key pid iid stream-id"""
    _, name, producer, idempotent_id, id_word = argv
    key = ids.strict(id_word)
    if not producer:
        raise fault(faults.RECORD_EMPTY_PID)
    if not idempotent_id:
        raise fault(faults.RECORD_EMPTY_IID)
    stream = call.typed(name, Stream)
    if stream is None:
        raise fault(faults.NO_SUCH_KEY)
    if stream.entries.find(ids.text_of(key)) is None:
        raise fault(faults.RECORD_NO_ENTRY)
    known = stream.producers.setdefault(producer, {}).get(idempotent_id)
    if known == key:
        return OK
    if known is not None:
        raise fault(faults.RECORD_CONFLICT)
    stream.record(producer, idempotent_id, key)
    call.db.idempotent.add(name)
    call.dirty += 1
    call.log(*argv)
    return OK
