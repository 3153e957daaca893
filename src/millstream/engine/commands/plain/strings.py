"""Strings: SET and GET in their many forms, counters, and parts of a value.

A string is a `bytes` object. A change in place (INCR, APPEND) keeps the key's expiry; SET and its like drop it.
The log gets outcomes: an expiry as an absolute time, a computed float as the resulting text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from xxhash import xxh3_64_hexdigest

from millstream.engine import faults
from millstream.engine.commands.plain.common import changed, deadline, delete, expire_at, persist_key, time_given
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.outcome import OK, Reply
from millstream.engine.table import Registry
from millstream.engine.text.args import I64_MAX, I64_MIN, integer
from millstream.engine.text.floats import add_extended, extended_text, parse_extended

REGISTRY = Registry("string")

MAX_SIZE: Final = 512 * 1024 * 1024  # bytes of one string, Redis's proto-max-bulk-len

_CONDITIONS: Final = frozenset({b"NX", b"XX", b"IFEQ", b"IFNE", b"IFDEQ", b"IFDNE"})
_COMPARISONS: Final = frozenset({b"IFEQ", b"IFNE", b"IFDEQ", b"IFDNE"})
_TIMES: Final = frozenset({b"EX", b"PX", b"EXAT", b"PXAT"})


@dataclass(slots=True)
class SetOptions:
    """The options after the value in SET, or after the key in GETEX."""

    condition: bytes | None = None  # NX XX IFEQ IFNE IFDEQ IFDNE
    operand: bytes = b""  # what a comparison compares with
    get: bool = False
    expiry: bytes | None = None  # EX PX EXAT PXAT, KEEPTTL, PERSIST
    amount: bytes = b""  # the time of EX PX EXAT PXAT
    logged: list[bytes] = field(default_factory=list)  # the words as sent, but GET


def parse_options(words: list[bytes], allowed: frozenset[bytes]) -> SetOptions:
    """Read options in any order. The same option may come twice, two different options of one sort may not."""
    options, at = SetOptions(), 0
    while at < len(words):
        word = words[at].upper()
        if word not in allowed:
            raise fault(faults.SYNTAX)
        takes_value = word in _COMPARISONS or word in _TIMES
        if takes_value and at + 1 == len(words):
            raise fault(faults.SYNTAX)
        size = 2 if takes_value else 1
        _set_option(options, word, words[at + size - 1])
        if word != b"GET":
            options.logged += words[at : at + size]
        at += size
    return options


def _set_option(options: SetOptions, word: bytes, value: bytes) -> None:
    if word == b"GET":
        options.get = True
    elif word in _CONDITIONS:
        if options.condition not in (None, word):
            raise fault(faults.SYNTAX)
        options.condition, options.operand = word, value
    else:
        if options.expiry not in (None, word):
            raise fault(faults.SYNTAX)
        options.expiry, options.amount = word, value


def digest_of(value: bytes) -> bytes:
    """Return the 64-bit XXH3 of a value as 16 hex digits, for DIGEST and IFDEQ."""
    return xxh3_64_hexdigest(value).encode()


def compares(condition: bytes, operand: bytes, value: bytes) -> bool:
    """Return whether a value satisfies IFEQ, IFNE, IFDEQ or IFDNE."""
    if condition in (b"IFEQ", b"IFNE"):
        return (value == operand) == (condition == b"IFEQ")
    if len(operand) != 16:  # Redis checks the length only; other letters are unequal
        raise fault(faults.BAD_DIGEST)
    return (digest_of(value) == operand.lower()) == (condition == b"IFDEQ")


def may_set(options: SetOptions, old: object | None) -> bool:
    """Return whether SET may change a key with this value."""
    match options.condition:
        case None:
            return True
        case b"NX":
            return old is None
        case b"XX":
            return old is not None
    if old is None:
        return options.condition in (b"IFNE", b"IFDNE")
    if not isinstance(old, bytes):
        raise fault(faults.WRONG_TYPE)
    return compares(options.condition, options.operand, old)


_SET_WORDS: Final = _CONDITIONS | _TIMES | {b"GET", b"KEEPTTL"}


def store(
    call: CommandContext,
    key: bytes,
    value: bytes,
    argv: list[bytes],
    *,
    at_ms: int | None = None,
    keep_ttl: bool = False,
) -> None:
    """Set a key as SET does, logged as given. An expiry in the past deletes the key instead."""
    if at_ms is not None and at_ms <= call.now_ms and not call.trusted:
        if call.lookup(key) is not None:
            delete(call, key, (b"DEL", key))
        return
    call.overwrite(key, value, keep_ttl=keep_ttl)
    changed(call, key, "$", b"set", argv)
    if at_ms is not None:
        call.db.expires[key] = at_ms
        call.event("g", b"expire", key)


def modify(call: CommandContext, key: bytes, value: bytes, *, existed: bool) -> None:
    """Change a string in place: the expiry stays, and the key does not count as overwritten."""
    if existed:
        call.db.values[key] = value
    else:
        call.add(key, value)


def _deadline(call: CommandContext, options: SetOptions, command: str) -> int | None:
    """Return the expiry time that the options give, or None."""
    if options.expiry not in _TIMES:
        return None
    return deadline(call, options.expiry, time_given(options.amount, command), command)


@REGISTRY.command(
    "set",
    -3,
    "write denyoom",
    keys=(1, 1, 1),
    access="RW access update variable_flags",
    since="1.0.0",
    summary="Stores a string whatever the key held before; options make it conditional or let it expire.",
)
def set_(call: CommandContext, argv: list[bytes]) -> Reply:
    """SET key value [NX | XX | IFEQ value | IFNE value | IFDEQ digest | IFDNE digest] [GET] [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]

    OK, or nil if the condition did not hold; with GET the old value or nil in either case.
    """  # noqa: E501
    key, value = argv[1], argv[2]
    options = parse_options(argv[3:], _SET_WORDS)
    at_ms = _deadline(call, options, "set")
    text = call.typed_to_read(key, bytes) if options.get else None
    old = text if options.get else call.lookup(key)
    if not may_set(options, old):
        return text
    logged = [*argv[:3], *options.logged]
    if at_ms is not None:
        logged = argv if options.expiry == b"PXAT" else [b"SET", key, value, b"PXAT", b"%d" % at_ms]
    store(call, key, value, logged, at_ms=at_ms, keep_ttl=options.expiry == b"KEEPTTL")
    return text if options.get else OK


@REGISTRY.command(
    "get",
    2,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO access",
    since="1.0.0",
    summary="Answers the string a key holds.",
)
def get(call: CommandContext, argv: list[bytes]) -> Reply:
    """GET key"""
    return call.typed_to_read(argv[1], bytes)


@REGISTRY.command(
    "getdel",
    2,
    "write fast",
    keys=(1, 1, 1),
    access="RW access delete",
    since="6.2.0",
    summary="Answers the string a key holds and deletes the key.",
)
def getdel(call: CommandContext, argv: list[bytes]) -> Reply:
    """GETDEL key"""
    key = argv[1]
    value = call.typed_to_read(key, bytes)
    if value is not None:
        delete(call, key, (b"DEL", key))
    return value


_GETEX_WORDS: Final = _TIMES | {b"PERSIST"}


@REGISTRY.command(
    "getex",
    -2,
    "write fast",
    keys=(1, 1, 1),
    access="RW access update",
    since="6.2.0",
    summary="Answers the string a key holds and sets or removes the key's expiry.",
)
def getex(call: CommandContext, argv: list[bytes]) -> Reply:
    """GETEX key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST]"""
    key = argv[1]
    options = parse_options(argv[2:], _GETEX_WORDS)
    value = call.typed_to_read(key, bytes)
    if value is None:
        return None
    at_ms = _deadline(call, options, "getex")
    if at_ms is not None:
        expire_at(call, key, at_ms)
    elif options.expiry == b"PERSIST":
        persist_key(call, key)
    return value


@REGISTRY.command(
    "getset",
    3,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW access update",
    since="1.0.0",
    summary="Stores a string and answers the one that was there before.",
)
def getset(call: CommandContext, argv: list[bytes]) -> Reply:
    """GETSET key value"""
    old = call.typed_to_read(argv[1], bytes)
    store(call, argv[1], argv[2], [b"SET", argv[1], argv[2]])
    return old


@REGISTRY.command(
    "setnx",
    3,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="OW insert",
    since="1.0.0",
    summary="Stores a string if the key does not exist.",
)
def setnx(call: CommandContext, argv: list[bytes]) -> Reply:
    """SETNX key value"""
    if call.lookup(argv[1]) is not None:
        return 0
    store(call, argv[1], argv[2], argv)
    return 1


@REGISTRY.command(
    "setex",
    4,
    "write denyoom",
    keys=(1, 1, 1),
    access="OW update",
    since="2.0.0",
    summary="Stores a string that expires after some seconds.",
)
def setex(call: CommandContext, argv: list[bytes]) -> Reply:
    """SETEX key seconds value"""
    return _set_to_expire(call, argv, b"EX", "setex")


@REGISTRY.command(
    "psetex",
    4,
    "write denyoom",
    keys=(1, 1, 1),
    access="OW update",
    since="2.6.0",
    summary="Stores a string that expires after some milliseconds.",
)
def psetex(call: CommandContext, argv: list[bytes]) -> Reply:
    """PSETEX key milliseconds value"""
    return _set_to_expire(call, argv, b"PX", "psetex")


def _set_to_expire(call: CommandContext, argv: list[bytes], unit: bytes, command: str) -> Reply:
    key, value = argv[1], argv[3]
    at_ms = deadline(call, unit, time_given(argv[2], command), command)
    store(call, key, value, [b"SET", key, value, b"PXAT", b"%d" % at_ms], at_ms=at_ms)
    return OK


@REGISTRY.command(
    "mget",
    -2,
    "readonly fast",
    keys=(1, -1, 1),
    access="RO access",
    since="1.0.0",
    summary="Answers the strings of several keys, nil for those that hold none.",
)
def mget(call: CommandContext, argv: list[bytes]) -> Reply:
    """MGET key [key ...]"""
    values = [call.lookup_to_read(key) for key in argv[1:]]
    return [value if isinstance(value, bytes) else None for value in values]


@REGISTRY.command(
    "mset",
    -3,
    "write denyoom",
    keys=(1, -1, 2),
    access="OW update",
    since="1.0.1",
    summary="Stores several strings at once.",
)
def mset(call: CommandContext, argv: list[bytes]) -> Reply:
    """MSET key value [key value ...]"""
    _store_pairs(call, _pairs(argv, "mset"), argv)
    return OK


@REGISTRY.command(
    "msetnx",
    -3,
    "write denyoom",
    keys=(1, -1, 2),
    access="OW insert",
    since="1.0.1",
    summary="Stores several strings at once, or none if one of the keys exists.",
)
def msetnx(call: CommandContext, argv: list[bytes]) -> Reply:
    """MSETNX key value [key value ...]"""
    pairs = _pairs(argv, "msetnx")
    if any(call.lookup(key) is not None for key, _ in pairs):
        return 0
    _store_pairs(call, pairs, argv)
    return 1


def _pairs(argv: list[bytes], name: str) -> list[tuple[bytes, bytes]]:
    if len(argv) % 2 == 0:
        raise faults.wrong_arity(name)
    return list(zip(argv[1::2], argv[2::2], strict=True))


def _store_pairs(call: CommandContext, pairs: list[tuple[bytes, bytes]], argv: list[bytes]) -> None:
    for key, value in pairs:
        call.overwrite(key, value)
        call.touch(key)
        call.event("$", b"set", key)
        call.dirty += 1
    call.log(*argv)


@REGISTRY.command(
    "incr",
    2,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW access update",
    since="1.0.0",
    summary="Adds one to the integer a key holds; a missing key counts as 0.",
)
def incr(call: CommandContext, argv: list[bytes]) -> Reply:
    """INCR key"""
    return _increment(call, argv, 1)


@REGISTRY.command(
    "decr",
    2,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW access update",
    since="1.0.0",
    summary="Subtracts one from the integer a key holds; a missing key counts as 0.",
)
def decr(call: CommandContext, argv: list[bytes]) -> Reply:
    """DECR key"""
    return _increment(call, argv, -1)


@REGISTRY.command(
    "incrby",
    3,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW access update",
    since="1.0.0",
    summary="Adds a number to the integer a key holds; a missing key counts as 0.",
)
def incrby(call: CommandContext, argv: list[bytes]) -> Reply:
    """INCRBY key increment"""
    return _increment(call, argv, integer(argv[2]))


@REGISTRY.command(
    "decrby",
    3,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW access update",
    since="1.0.0",
    summary="Subtracts a number from the integer a key holds; a missing key counts as 0.",
)
def decrby(call: CommandContext, argv: list[bytes]) -> Reply:
    """DECRBY key decrement"""
    decrement = integer(argv[2])
    if decrement == I64_MIN:  # its negative does not fit into 64 bits
        raise fault(faults.DECREMENT_OVERFLOW)
    return _increment(call, argv, -decrement)


def _increment(call: CommandContext, argv: list[bytes], by: int) -> int:
    key = argv[1]
    old = call.typed(key, bytes)
    value = (integer(old) if old is not None else 0) + by
    if not I64_MIN <= value <= I64_MAX:
        raise fault(faults.OVERFLOW)
    modify(call, key, b"%d" % value, existed=old is not None)
    changed(call, key, "$", b"incrby", argv)
    return value


@REGISTRY.command(
    "incrbyfloat",
    3,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW access update",
    since="2.6.0",
    summary="Adds a fraction to the number a key holds; a missing key counts as 0.",
)
def incrbyfloat(call: CommandContext, argv: list[bytes]) -> Reply:
    """INCRBYFLOAT key increment"""
    key = argv[1]
    old = call.typed(key, bytes)
    base, increment = parse_extended(b"0" if old is None else old), parse_extended(argv[2])
    if base is None or increment is None:
        raise fault(faults.NOT_A_FLOAT)
    total = add_extended(base, increment)
    if total is None:
        raise fault(faults.NOT_FINITE)
    value = extended_text(total)
    modify(call, key, value, existed=old is not None)
    # The sum can differ on a machine with other floats, so the log has the result.
    changed(call, key, "$", b"incrbyfloat", [b"SET", key, value, b"KEEPTTL"])
    return value


@REGISTRY.command(
    "append",
    3,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW insert",
    since="2.0.0",
    summary="Adds bytes to the end of a string, which starts empty; answers its length.",
)
def append(call: CommandContext, argv: list[bytes]) -> Reply:
    """APPEND key value"""
    key = argv[1]
    old = call.typed(key, bytes)
    value = (old or b"") + argv[2]
    _check_size(len(value))
    modify(call, key, value, existed=old is not None)
    changed(call, key, "$", b"append", argv)
    return len(value)


@REGISTRY.command(
    "strlen",
    2,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO",
    since="2.2.0",
    summary="Counts the bytes of a string; 0 for a missing key.",
)
def strlen(call: CommandContext, argv: list[bytes]) -> Reply:
    """STRLEN key"""
    return len(call.typed_to_read(argv[1], bytes) or b"")


@REGISTRY.command(
    "getrange",
    4,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="2.4.0",
    summary="Answers a part of a string, both ends included, negative positions counted from its end.",
)
def getrange(call: CommandContext, argv: list[bytes]) -> Reply:
    """GETRANGE key start end"""
    start, end = integer(argv[2]), integer(argv[3])
    value = call.typed_to_read(argv[1], bytes) or b""
    if start < 0 and end < start:
        return b""
    # Unlike in lists, an end before the beginning means the first byte.
    first = max(start + len(value), 0) if start < 0 else start
    last = max(end + len(value), 0) if end < 0 else end
    return value[first : last + 1]


@REGISTRY.command(
    "setrange",
    4,
    "write denyoom",
    keys=(1, 1, 1),
    access="RW update",
    since="2.2.0",
    summary="Overwrites a string from an offset on, filling a gap with zero bytes; answers its length.",
)
def setrange(call: CommandContext, argv: list[bytes]) -> Reply:
    """SETRANGE key offset value"""
    key, offset, part = argv[1], integer(argv[2]), argv[3]
    if offset < 0:
        raise fault(faults.NEGATIVE_OFFSET)
    old = call.typed(key, bytes)
    if not part:
        return len(old or b"")
    _check_size(offset + len(part))
    value = (old or b"").ljust(offset, b"\0")
    value = value[:offset] + part + value[offset + len(part) :]
    modify(call, key, value, existed=old is not None)
    changed(call, key, "$", b"setrange", argv)
    return len(value)


def _check_size(size: int) -> None:
    if size > MAX_SIZE:
        raise fault(faults.STRING_TOO_LONG)


@REGISTRY.command(
    "digest",
    2,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO access",
    since="8.4.0",
    summary="Answers the 64-bit XXH3 hash of a string as 16 hex digits.",
)
def digest(call: CommandContext, argv: list[bytes]) -> Reply:
    """DIGEST key"""
    value = call.typed_to_read(argv[1], bytes)
    return None if value is None else digest_of(value)


@REGISTRY.command(
    "delex",
    -2,
    "write fast",
    keys=(1, 1, 1),
    access="RW delete variable_flags",
    since="8.4.0",
    summary="Deletes a key; with a condition, only if its string or the string's digest compares as told.",
)
def delex(call: CommandContext, argv: list[bytes]) -> Reply:
    """DELEX key [IFEQ value | IFNE value | IFDEQ digest | IFDNE digest]"""
    key = argv[1]
    if len(argv) not in (2, 4):
        raise faults.wrong_arity("delex")
    value = call.lookup(key) if len(argv) == 2 else call.lookup_to_read(key)
    if value is None or (len(argv) == 4 and not _delex_goes_on(value, argv[2].upper(), argv[3])):
        return 0
    delete(call, key, (argv[0], key) if len(argv) == 2 else (b"DEL", key))
    return 1


def _delex_goes_on(value: object, condition: bytes, operand: bytes) -> bool:
    if not isinstance(value, bytes):
        raise fault(faults.CONDITION_NEEDS_STRING)
    if condition not in _COMPARISONS:
        raise fault(faults.BAD_CONDITION)
    return compares(condition, operand, value)
