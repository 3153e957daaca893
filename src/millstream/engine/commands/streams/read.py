"""Commands that read a stream without a group: XLEN XRANGE XREVRANGE XREAD. XREADGROUP shares its words."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.engine import faults
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.outcome import NIL_ARRAY, ByKey, Encoded, Reply, Wait
from millstream.engine.streams import ids
from millstream.engine.streams.entry_replies import encode_entry, entries_reply
from millstream.engine.streams.ids import MAX_KEY
from millstream.engine.streams.stream import Stream
from millstream.engine.table import Registry
from millstream.engine.text.args import I64_MAX, integer

REGISTRY = Registry("stream")


@REGISTRY.command(
    "xlen",
    2,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO",
    since="5.0.0",
    summary="Answers how many entries a stream has.",
)
def xlen(call: CommandContext, argv: list[bytes]) -> Reply:
    """XLEN key"""
    stream = call.typed_to_read(argv[1], Stream)
    return 0 if stream is None else len(stream)


@REGISTRY.command(
    "xrange",
    -4,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="5.0.0",
    summary="Reads entries between two ids, oldest first.",
)
def xrange(call: CommandContext, argv: list[bytes]) -> Reply:
    """XRANGE key start end [COUNT n]"""
    return _range(call, argv, argv[2], argv[3], backwards=False)


@REGISTRY.command(
    "xrevrange",
    -4,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="5.0.0",
    summary="Reads entries between two ids, newest first.",
)
def xrevrange(call: CommandContext, argv: list[bytes]) -> Reply:
    """XREVRANGE key end start [COUNT n]"""
    return _range(call, argv, argv[3], argv[2], backwards=True)


def _range(call: CommandContext, argv: list[bytes], start_word: bytes, end_word: bytes, *, backwards: bool) -> Reply:
    start = ids.bound(start_word, is_start=True)
    end = ids.bound(end_word, is_start=False)
    count: int | None = None
    for at in range(4, len(argv), 2):
        if argv[at].upper() != b"COUNT" or at + 1 == len(argv):
            raise fault(faults.SYNTAX)
        count = max(integer(argv[at + 1]), 0)
    stream = call.typed_to_read(argv[1], Stream)
    if stream is None:
        return []
    if count == 0:
        return NIL_ARRAY
    if start > end:
        return []
    read = stream.entries.read_back if backwards else stream.entries.read
    return entries_reply(*read(start, end, count))


@dataclass(slots=True)
class ReadWords:
    """What an XREAD or XREADGROUP asks for."""

    keys: list[bytes] = field(default_factory=list)
    ids: list[bytes] = field(default_factory=list)
    ids_at: int = 0  # where in the argv the ids stand
    count: int | None = None  # per stream; None: no limit
    block_ms: int | None = None
    max_count: int | None = None  # over all streams
    max_size: int | None = None  # bytes of the reply
    group: bytes | None = None
    consumer: bytes = b""
    no_ack: bool = False
    claim_ms: int | None = None


def parse_read(call: CommandContext, argv: list[bytes], *, in_group: bool) -> ReadWords:
    """Parse the words of XREAD or XREADGROUP; raises errors in the order Redis finds them."""
    words = ReadWords()
    at = 1
    while at < len(argv):
        word = argv[at].upper()
        left = len(argv) - at - 1
        if word == b"STREAMS" and left:
            _take_streams(words, argv, at + 1, in_group=in_group)
            break
        at = _take_read_option(call, words, argv, at, word, left, in_group=in_group)
    if not words.keys:
        raise fault(faults.SYNTAX)
    if in_group and words.group is None:
        raise fault(faults.MISSING_GROUP_OPTION)
    if words.max_count is not None and words.count is not None and words.max_count < words.count:
        raise fault(faults.MAXCOUNT_BELOW_COUNT)
    return words


def _take_streams(words: ReadWords, argv: list[bytes], at: int, *, in_group: bool) -> None:
    size = len(argv) - at
    if size % 2:
        if in_group:
            raise faults.unbalanced("xreadgroup", "an ID or '>'")
        raise faults.unbalanced("xread", "an ID, '+', or '$'")
    words.ids_at = at + size // 2
    words.keys = argv[at : words.ids_at]
    words.ids = argv[words.ids_at :]


def _take_read_option(
    call: CommandContext, words: ReadWords, argv: list[bytes], at: int, word: bytes, left: int, *, in_group: bool
) -> int:
    """Read the option at this place; the place after it."""
    if word == b"NOACK":
        if not in_group:
            raise faults.only_for_xreadgroup("NOACK")
        words.no_ack = True
        return at + 1
    if word == b"GROUP" and left >= 2:
        if not in_group:
            raise faults.only_for_xreadgroup("GROUP")
        words.group, words.consumer = argv[at + 1], argv[at + 2]
        return at + 3
    if not left:
        raise fault(faults.SYNTAX)
    value = argv[at + 1]
    if word == b"COUNT":
        count = integer(value)
        words.count = count if count > 0 else None
    elif word == b"BLOCK":
        words.block_ms = _timeout(call, value)
    elif word == b"CLAIM":
        if not in_group:
            raise faults.only_for_xreadgroup("CLAIM")
        words.claim_ms = integer(value, faults.CLAIM_NOT_INTEGER)
        if words.claim_ms < 0:
            raise fault(faults.CLAIM_NEGATIVE)
    elif word == b"MAXCOUNT":
        words.max_count = _positive(value, "MAXCOUNT")
    elif word == b"MAXSIZE":
        words.max_size = _positive(value, "MAXSIZE")
    else:
        raise fault(faults.SYNTAX)
    return at + 2


def _positive(word: bytes, option: str) -> int:
    value = integer(word)
    if value <= 0:
        raise faults.not_positive(option)
    return value


def _timeout(call: CommandContext, word: bytes) -> int:
    timeout = integer(word, faults.BLOCK_NOT_INTEGER)
    if timeout < 0:
        raise fault(faults.BLOCK_NEGATIVE)
    if timeout > I64_MAX - call.now_ms:
        raise fault(faults.BLOCK_OUT_OF_RANGE)
    return timeout


class Budget:
    """How much of COUNT, MAXCOUNT and MAXSIZE is left while a read goes from stream to stream."""

    __slots__ = ("_count", "_header", "_max_count", "bytes", "emitted", "max_size")

    def __init__(self, words: ReadWords, protocol: int) -> None:
        self._count = words.count
        self._max_count = words.max_count
        self.max_size = words.max_size
        self.emitted = 0
        self.bytes = 0
        self._header = 4 if protocol == 2 else 0  # RESP2 wraps each stream in an array of two

    def is_spent(self) -> bool:
        """Whether no further stream may be looked at."""
        if self._max_count is not None and self.emitted >= self._max_count:
            return True
        return self.is_full()

    def is_full(self) -> bool:
        """Whether no further entry may be written."""
        return self.max_size is not None and self.emitted > 0 and self.bytes >= self.max_size

    def begin(self, key: bytes) -> int | None:
        """Count a stream's header; how many entries it may have at most."""
        if self.max_size is not None:
            self.bytes += self._header + len(b"$%d\r\n\r\n" % len(key)) + len(key)
        if self._max_count is None:
            return self._count
        left = self._max_count - self.emitted
        return left if self._count is None else min(left, self._count)

    def end(self, entries: int) -> None:
        """Count the header of a finished stream's array."""
        if self.max_size is not None:
            self.bytes += len(b"*%d\r\n" % entries)

    def fit(self, entry_ids: list[bytes], fragments: list[bytes], overhead: int = 0) -> int:
        """How many of these entries may still be written, and count them; `overhead` is what each adds."""
        if self.max_size is None:
            self.emitted += len(entry_ids)
            return len(entry_ids)
        for index, entry_id in enumerate(entry_ids):
            if self.is_full():
                return index
            self.bytes += len(encode_entry(entry_id, fragments[index])) + overhead
            self.emitted += 1
        return len(entry_ids)


def find_stream_keys(argv: list[bytes]) -> list[int]:
    """Which words of an XREAD or XREADGROUP are keys."""
    at = 1
    while at < len(argv):
        word = argv[at].upper()
        if word == b"STREAMS":
            size = len(argv) - at - 1
            return list(range(at + 1, at + 1 + size // 2)) if size and size % 2 == 0 else []
        at += 3 if word == b"GROUP" else 1 if word == b"NOACK" else 2
    return []


@REGISTRY.command(
    "xread",
    -4,
    "readonly blocking movablekeys",
    access="RO access",
    find_keys=find_stream_keys,
    since="5.0.0",
    summary="Reads entries after given ids from one or more streams, waiting for them if asked to.",
)
def xread(call: CommandContext, argv: list[bytes]) -> Reply | Wait:
    """XREAD [COUNT n] [BLOCK ms] [MAXCOUNT n] [MAXSIZE bytes] STREAMS key [key ...] id [id ...]"""
    words = parse_read(call, argv, in_group=False)
    after = [_parse_read_id(call, key, word) for key, word in zip(words.keys, words.ids, strict=True)]
    budget = Budget(words, call.protocol)
    reply = ByKey()
    for key, last_seen in zip(words.keys, after, strict=True):
        if budget.is_spent():
            break
        stream = call.typed_to_read(key, Stream)
        if stream is None or not len(stream):
            continue
        newest = stream.entries.last_key()
        if last_seen is not None and newest <= last_seen:
            continue
        start = newest if last_seen is None else last_seen + 1
        reply += [key, _read_into(budget, key, stream, start)]
    if reply:
        return reply
    if words.block_ms is None or not call.may_block:
        return NIL_ARRAY
    return _wait(argv, words, after)


def _read_into(budget: Budget, key: bytes, stream: Stream, start: int) -> Encoded:
    limit = budget.begin(key)
    entry_ids, fragments = stream.entries.read(start, MAX_KEY, limit)
    fitting = budget.fit(entry_ids, fragments)
    budget.end(fitting)
    return entries_reply(entry_ids[:fitting], fragments[:fitting])


def _parse_read_id(call: CommandContext, key: bytes, word: bytes) -> int | None:
    """After which key to read; None for `+`, the last entry only."""
    stream = call.typed_to_read(key, Stream)
    if word == b"$":
        return 0 if stream is None else stream.last
    if word == b"+":
        return None
    if word == b">":
        raise fault(faults.NEW_ID_IN_XREAD)
    return ids.strict(word)


def _wait(argv: list[bytes], words: ReadWords, after: list[int | None]) -> Wait:
    again = list(argv)
    for index, last_seen in enumerate(after):
        if words.ids[index] == b"$" and last_seen is not None:
            again[words.ids_at + index] = ids.text_of(last_seen)
    return Wait(tuple(dict.fromkeys(words.keys)), words.block_ms or 0, again)
