"""Commands on keys of any type: delete, expire, rename, list, copy, and whole databases.

SCAN lists keys in an order that survives inserts and deletes (`scan_order.ScanOrder`). A key that RENAME, COPY or
RESTORE replaces keeps its position there, because a scan in progress must still return it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Protocol, cast

from millstream.engine import faults
from millstream.engine.commands.plain.common import expire_at, integer_between, persist_key
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext, Database
from millstream.engine.keys.scan_order import ScanOrder
from millstream.engine.keys.values import Hash, List, SetOf, SortedSet
from millstream.engine.outcome import OK, Reply, Simple
from millstream.engine.table import Registry
from millstream.engine.text import glob
from millstream.engine.text.args import I64_MAX, I64_MIN, U64_MAX, as_integer, integer

REGISTRY = Registry("generic")

_INT: Final = (-(2**31), 2**31 - 1)  # the range of a database number

_TYPES: Final[dict[type, bytes]] = {bytes: b"string", Hash: b"hash", List: b"list", SetOf: b"set", SortedSet: b"zset"}


def type_of(value: object) -> bytes:
    """Return the name of a value's type, as TYPE answers it."""
    return _TYPES.get(type(value), b"stream")


# Existence


def _delete_all(call: CommandContext, argv: list[bytes]) -> int:
    """Delete the keys that exist. Returns their number."""
    removed = 0
    for key in argv[1:]:
        if call.peek(key) is None:
            continue
        call.remove(key)
        call.touch(key)
        call.event("g", b"del", key)
        removed += 1
    if removed:
        call.log(*argv)
        call.dirty += removed
    return removed


@REGISTRY.command(
    "del",
    -2,
    "write",
    keys=(1, -1, 1),
    access="RM delete",
    since="1.0.0",
    summary="Deletes keys; answers how many of them there were.",
)
def del_(call: CommandContext, argv: list[bytes]) -> Reply:
    """DEL key [key ...]"""
    return _delete_all(call, argv)


@REGISTRY.command(
    "unlink",
    -2,
    "write fast",
    keys=(1, -1, 1),
    access="RM delete",
    since="4.0.0",
    summary="Deletes keys as DEL does; Redis frees their memory later, here nothing is left to free.",
)
def unlink(call: CommandContext, argv: list[bytes]) -> Reply:
    """UNLINK key [key ...]"""
    return _delete_all(call, argv)


@REGISTRY.command(
    "exists",
    -2,
    "readonly fast",
    keys=(1, -1, 1),
    access="RO",
    since="1.0.0",
    summary="Counts which of the keys exist, a key named twice twice.",
)
def exists(call: CommandContext, argv: list[bytes]) -> Reply:
    """EXISTS key [key ...]"""
    return sum(_peek_to_read(call, key) is not None for key in argv[1:])


@REGISTRY.command(
    "touch",
    -2,
    "readonly fast",
    keys=(1, -1, 1),
    access="RO",
    since="3.2.1",
    summary="Counts which of the keys exist and notes that they were used.",
)
def touch(call: CommandContext, argv: list[bytes]) -> Reply:
    """TOUCH key [key ...]"""
    return sum(call.lookup_to_read(key) is not None for key in argv[1:])


@REGISTRY.command(
    "type",
    2,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO",
    since="1.0.0",
    summary="Names the type of the value a key holds.",
)
def type_(call: CommandContext, argv: list[bytes]) -> Reply:
    """TYPE key"""
    value = _peek_to_read(call, argv[1])
    return Simple(b"none" if value is None else type_of(value))


def _peek_to_read(call: CommandContext, key: bytes) -> object | None:
    """Read a value without counting as an access. A miss is an event."""
    value = call.peek(key)
    if value is None:
        call.event("m", b"keymiss", key)
    return value


# Expiring

_EXPIRE_WORDS: Final = frozenset({b"NX", b"XX", b"GT", b"LT"})


def _expire_options(words: list[bytes]) -> frozenset[bytes]:
    options = set()
    for word in words:
        if word.upper() not in _EXPIRE_WORDS:
            raise faults.unsupported_option(word)
        options.add(word.upper())
    if b"NX" in options and len(options) > 1:
        raise fault(faults.EXPIRE_NX_WITH_OTHERS)
    if {b"GT", b"LT"} <= options:
        raise fault(faults.EXPIRE_GT_WITH_LT)
    return frozenset(options)


def _may_expire(options: frozenset[bytes], old_ms: int | None, at_ms: int) -> bool:
    """Return whether the options allow setting a key's expiry. No expiry counts as later than every time."""
    if old_ms is None:
        return not options & {b"XX", b"GT"}
    if b"NX" in options:
        return False
    return not ((b"GT" in options and at_ms <= old_ms) or (b"LT" in options and at_ms >= old_ms))


def _expire(call: CommandContext, argv: list[bytes], *, scale: int, base_ms: int) -> int:
    """Set a key's expiry. One unit of the argument is `scale` ms, counted from `base_ms`."""
    name = argv[0].decode().lower()
    options = _expire_options(argv[3:])
    amount = integer(argv[2])
    if not -(-I64_MIN // scale) <= amount <= I64_MAX // scale or amount * scale > I64_MAX - base_ms:
        raise faults.invalid_expire(name)
    at_ms = amount * scale + base_ms
    key = argv[1]
    if call.lookup(key) is None or not _may_expire(options, call.db.expires.get(key), at_ms):
        return 0
    expire_at(call, key, at_ms, *argv[3:])
    return 1


@REGISTRY.command(
    "expire",
    -3,
    "write fast",
    keys=(1, 1, 1),
    access="RW update",
    since="1.0.0",
    summary="Lets a key expire after some seconds.",
)
def expire(call: CommandContext, argv: list[bytes]) -> Reply:
    """EXPIRE key seconds [NX | XX | GT | LT]"""
    return _expire(call, argv, scale=1000, base_ms=call.now_ms)


@REGISTRY.command(
    "pexpire",
    -3,
    "write fast",
    keys=(1, 1, 1),
    access="RW update",
    since="2.6.0",
    summary="Lets a key expire after some milliseconds.",
)
def pexpire(call: CommandContext, argv: list[bytes]) -> Reply:
    """PEXPIRE key milliseconds [NX | XX | GT | LT]"""
    return _expire(call, argv, scale=1, base_ms=call.now_ms)


@REGISTRY.command(
    "expireat",
    -3,
    "write fast",
    keys=(1, 1, 1),
    access="RW update",
    since="1.2.0",
    summary="Lets a key expire at a Unix time in seconds.",
)
def expireat(call: CommandContext, argv: list[bytes]) -> Reply:
    """EXPIREAT key unix-time-seconds [NX | XX | GT | LT]"""
    return _expire(call, argv, scale=1000, base_ms=0)


@REGISTRY.command(
    "pexpireat",
    -3,
    "write fast",
    keys=(1, 1, 1),
    access="RW update",
    since="2.6.0",
    summary="Lets a key expire at a Unix time in milliseconds.",
)
def pexpireat(call: CommandContext, argv: list[bytes]) -> Reply:
    """PEXPIREAT key unix-time-milliseconds [NX | XX | GT | LT]"""
    return _expire(call, argv, scale=1, base_ms=0)


def _deadline_of(call: CommandContext, key: bytes, shown: Callable[[int], int]) -> int:
    """Return a key's expiry as `shown` formats it: -2 if the key is missing, -1 if it does not expire."""
    if _peek_to_read(call, key) is None:
        return -2
    at_ms = call.db.expires.get(key)
    return -1 if at_ms is None else shown(at_ms)


@REGISTRY.command(
    "ttl",
    2,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO access",
    since="1.0.0",
    summary="Answers the seconds until a key expires, -1 if it does not, -2 if there is none.",
)
def ttl(call: CommandContext, argv: list[bytes]) -> Reply:
    """TTL key"""
    return _deadline_of(call, argv[1], lambda at_ms: (at_ms - call.now_ms + 500) // 1000)


@REGISTRY.command(
    "pttl",
    2,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO access",
    since="2.6.0",
    summary="Answers the milliseconds until a key expires, -1 if it does not, -2 if there is none.",
)
def pttl(call: CommandContext, argv: list[bytes]) -> Reply:
    """PTTL key"""
    return _deadline_of(call, argv[1], lambda at_ms: at_ms - call.now_ms)


@REGISTRY.command(
    "expiretime",
    2,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO access",
    since="7.0.0",
    summary="Answers the Unix time in seconds at which a key expires, -1 if it does not, -2 if there is none.",
)
def expiretime(call: CommandContext, argv: list[bytes]) -> Reply:
    """EXPIRETIME key"""
    return _deadline_of(call, argv[1], lambda at_ms: (at_ms + 500) // 1000)


@REGISTRY.command(
    "pexpiretime",
    2,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO access",
    since="7.0.0",
    summary="Answers the Unix time in milliseconds at which a key expires, -1 if it does not, -2 if there is none.",
)
def pexpiretime(call: CommandContext, argv: list[bytes]) -> Reply:
    """PEXPIRETIME key"""
    return _deadline_of(call, argv[1], lambda at_ms: at_ms)


@REGISTRY.command(
    "persist",
    2,
    "write fast",
    keys=(1, 1, 1),
    access="RW update",
    since="2.2.0",
    summary="Removes the expiry of a key.",
)
def persist(call: CommandContext, argv: list[bytes]) -> Reply:
    """PERSIST key"""
    return int(call.lookup(argv[1]) is not None and persist_key(call, argv[1]))


# Listing


@REGISTRY.command(
    "keys",
    2,
    "readonly",
    since="1.0.0",
    extra_categories="@dangerous",
    summary="Answers all keys that fit a glob pattern.",
)
def keys(call: CommandContext, argv: list[bytes]) -> Reply:
    """KEYS pattern"""
    db, fits = call.db, matcher(argv[1])
    return [key for key in db.values if fits(key) and not (key in db.expires and call.is_due(key, db))]


def matcher(pattern: bytes) -> Callable[[bytes], bool]:
    """Return a function that matches keys with a pattern. A single star also matches the empty key."""
    return (lambda key: True) if pattern == b"*" else glob.compiled(pattern)


def _order(db: Database) -> ScanOrder:
    """Return the scan order of a database's keys, which the first caller creates."""
    if db.order is None:
        db.order = ScanOrder(db.values)
    return db.order


_CURSOR: Final = re.compile(rb"[ \t\n\v\f\r]*([+-]?)0*(\d{1,20})(?:\0.*)?", re.DOTALL)


def scan_cursor(word: bytes) -> int:
    """Read an unsigned 64-bit number by C's rules: blanks and a sign may lead, a NUL ends it; -1 is refused."""
    match = _CURSOR.fullmatch(word)
    value = int(match[2]) if match else U64_MAX + 1
    if match is None or value > U64_MAX or (as_integer(word) or 0) < 0:
        raise fault(faults.BAD_CURSOR)
    return -value % (U64_MAX + 1) if match[1] == b"-" else value


def _scan_options(words: list[bytes]) -> tuple[int, bytes, bytes | None]:
    """COUNT, MATCH and TYPE."""
    count, pattern, kind = 10, b"*", None
    for at in range(0, len(words), 2):
        name = words[at].upper()
        if at + 1 == len(words) or name not in (b"COUNT", b"MATCH", b"TYPE"):
            raise fault(faults.SYNTAX)
        if name == b"MATCH":
            pattern = words[at + 1]
        elif name == b"TYPE":
            kind = words[at + 1].lower()
        elif (count := integer(words[at + 1])) < 1:
            raise fault(faults.SYNTAX)
    return count, pattern, kind


@REGISTRY.command(
    "scan",
    -2,
    "readonly",
    since="2.8.0",
    summary="Walks through the keys in steps; a key that is there all the time is answered at least once.",
)
def scan(call: CommandContext, argv: list[bytes]) -> Reply:
    """SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]"""
    cursor = scan_cursor(argv[1])
    count, pattern, kind = _scan_options(argv[2:])
    db, fits = call.db, matcher(pattern)
    cursor, page = _order(db).page(cursor, count, db.values)
    found: list[Reply] = []
    for key in page:
        if fits(key) and (value := call.peek(key)) is not None and kind in (None, type_of(value)):
            found.append(key)
    return [b"%d" % cursor, found]


@REGISTRY.command("randomkey", 1, "readonly", since="1.0.0", summary="Answers one of the keys, any.")
def randomkey(call: CommandContext, argv: list[bytes]) -> Reply:
    """RANDOMKEY"""
    db = call.db
    while db.values:
        key = _order(db).pick(db.values, call.keyspace.pick)
        if call.peek(key) is not None or call.keyspace.keeps_expired:
            return key
    return None


@REGISTRY.command(
    "dbsize",
    1,
    "readonly fast",
    since="1.0.0",
    group="server",
    extra_categories="@keyspace",
    summary="Counts the keys of the database.",
)
def dbsize(call: CommandContext, argv: list[bytes]) -> Reply:
    """DBSIZE"""
    return len(call.db.values)


# Renaming, copying, moving


class _Copyable(Protocol):
    def copy(self) -> object: ...


def _put(call: CommandContext, key: bytes, value: object, db: Database, source: bytes, source_db: Database) -> None:
    """Store a value taken from another key, with that key's expiry and idempotency records."""
    at_ms = source_db.expires.get(source)
    if key in db.values:
        db.values[key] = value  # in its place: a scan under way must still meet this key
        db.expires.pop(key, None)
        db.accessed[key] = call.now_ms
        db.idempotent.discard(key)
        call.event("n", b"new", key, db)
        call.ready(key, db)
    else:
        call.add(key, value, db)
    if at_ms is not None:
        db.expires[key] = at_ms
    if source in source_db.idempotent:
        db.idempotent.add(key)


def _report_overwritten(call: CommandContext, key: bytes, old: object | None, value: object, db: Database) -> None:
    if old is not None:
        call.event("o", b"overwritten", key, db)
        if type_of(old) != type_of(value):
            call.event("c", b"type_changed", key, db)


def _rename(call: CommandContext, argv: list[bytes], *, only_new: bool) -> bool:
    """Give a value another key. Returns whether it was done."""
    source, target = argv[1], argv[2]
    value = call.lookup(source)
    if value is None:
        raise fault(faults.NO_SUCH_KEY)
    if source == target:
        return not only_new
    old = call.lookup(target)
    if old is not None and only_new:
        return False
    _put(call, target, value, call.db, source, call.db)
    call.remove(source)
    call.touch(source)
    call.touch(target)
    call.event("g", b"rename_from", source)
    call.event("g", b"rename_to", target)
    _report_overwritten(call, target, old, value, call.db)
    call.log(*argv)
    call.dirty += 1
    return True


@REGISTRY.command(
    "rename",
    3,
    "write",
    keys=(1, 2, 1),
    access="RW access delete",
    rest_access="OW update",
    since="1.0.0",
    summary="Gives a key another name; what had that name before is gone.",
)
def rename(call: CommandContext, argv: list[bytes]) -> Reply:
    """RENAME key newkey"""
    _rename(call, argv, only_new=False)
    return OK


@REGISTRY.command(
    "renamenx",
    3,
    "write fast",
    keys=(1, 2, 1),
    access="RW access delete",
    rest_access="OW insert",
    since="1.0.0",
    summary="Gives a key another name if no key has it.",
)
def renamenx(call: CommandContext, argv: list[bytes]) -> Reply:
    """RENAMENX key newkey"""
    return int(_rename(call, argv, only_new=True))


def _database(call: CommandContext, index: int) -> Database:
    if not 0 <= index < len(call.keyspace.databases):
        raise fault(faults.BAD_DB_INDEX)
    return call.keyspace.databases[index]


def _copy_options(call: CommandContext, words: list[bytes]) -> tuple[Database, bool]:
    """Read the options DB and REPLACE."""
    db, replace, at = call.db, False, 0
    while at < len(words):
        word = words[at].upper()
        if word == b"REPLACE":
            replace = True
        elif word == b"DB" and at + 1 < len(words):
            at += 1
            db = _database(call, integer_between(words[at], *_INT))
        else:
            raise fault(faults.SYNTAX)
        at += 1
    return db, replace


@REGISTRY.command(
    "copy",
    -3,
    "write denyoom",
    keys=(1, 2, 1),
    access="RO access",
    rest_access="OW update",
    since="6.2.0",
    summary="Copies a value with its expiry to another key, here or in another database.",
)
def copy(call: CommandContext, argv: list[bytes]) -> Reply:
    """COPY source destination [DB destination-db] [REPLACE]"""
    source, target = argv[1], argv[2]
    db, replace = _copy_options(call, argv[3:])
    if db is call.db and source == target:
        raise fault(faults.SAME_OBJECT)
    value = call.lookup_to_read(source)
    if value is None:
        return 0
    old = call.lookup(target, db)
    if old is not None and not replace:
        return 0
    twin = value if isinstance(value, bytes) else cast(_Copyable, value).copy()
    _put(call, target, twin, db, source, call.db)
    call.touch(target, db)
    call.event("g", b"copy_to", target, db)
    _report_overwritten(call, target, old, twin, db)
    call.log(*argv)
    call.dirty += 1
    return 1


@REGISTRY.command(
    "move",
    3,
    "write fast",
    keys=(1, 1, 1),
    access="RW access update",
    since="1.0.0",
    summary="Moves a key to another database unless it has one of that name.",
)
def move(call: CommandContext, argv: list[bytes]) -> Reply:
    """MOVE key db"""
    key = argv[1]
    db = _database(call, integer_between(argv[2], *_INT))
    if db is call.db:
        raise fault(faults.SAME_OBJECT)
    value = call.lookup(key)
    if value is None or call.lookup(key, db) is not None:
        return 0
    _put(call, key, value, db, key, call.db)
    call.remove(key)
    call.touch(key)
    call.touch(key, db)
    call.event("g", b"move_from", key)
    call.event("g", b"move_to", key, db)
    call.log(*argv)
    call.dirty += 1
    return 1


# Whole databases


def _check_flush(argv: list[bytes]) -> None:
    if len(argv) > 2 or (len(argv) == 2 and argv[1].upper() not in (b"SYNC", b"ASYNC")):
        raise fault(faults.SYNTAX)


def _flush(call: CommandContext, db: Database) -> None:
    """Empty a database, and report it to those that watch or wait for one of its keys."""
    for key in db.values:
        call.touch(key, db)
        call.ready(key, db)
    call.dirty += len(db.values)
    db.values.clear()
    db.expires.clear()
    db.idempotent.clear()
    db.accessed.clear()
    db.order = None


@REGISTRY.command(
    "flushall",
    -1,
    "write",
    since="1.0.0",
    group="server",
    extra_categories="@keyspace @dangerous",
    summary="Removes all keys of all databases.",
)
def flushall(call: CommandContext, argv: list[bytes]) -> Reply:
    """FLUSHALL [ASYNC | SYNC]"""
    _check_flush(argv)
    for db in call.keyspace:
        _flush(call, db)
    call.log(*argv)
    return OK


@REGISTRY.command(
    "flushdb",
    -1,
    "write",
    since="1.0.0",
    group="server",
    extra_categories="@keyspace @dangerous",
    summary="Removes all keys of the database.",
)
def flushdb(call: CommandContext, argv: list[bytes]) -> Reply:
    """FLUSHDB [ASYNC | SYNC]"""
    _check_flush(argv)
    _flush(call, call.db)
    call.log(*argv)
    return OK


@REGISTRY.command(
    "swapdb",
    3,
    "write fast",
    since="4.0.0",
    group="server",
    extra_categories="@keyspace @dangerous",
    summary="Exchanges the contents of two databases.",
)
def swapdb(call: CommandContext, argv: list[bytes]) -> Reply:
    """SWAPDB index1 index2"""
    first, second = _index(argv[1], faults.BAD_FIRST_DB), _index(argv[2], faults.BAD_SECOND_DB)
    one, two = _database(call, first), _database(call, second)
    if one is not two:
        _exchange(one, two)
        for db in (one, two):
            for key in (*one.values, *two.values):
                call.touch(key, db)
                call.ready(key, db)
    call.log(*argv)
    call.dirty += 1
    return OK


def _index(word: bytes, text: str) -> int:
    value = integer(word, text)
    if not _INT[0] <= value <= _INT[1]:
        raise fault(text)
    return value


def _exchange(one: Database, two: Database) -> None:
    one.values, two.values = two.values, one.values
    one.expires, two.expires = two.expires, one.expires
    one.idempotent, two.idempotent = two.idempotent, one.idempotent
    one.accessed, two.accessed = two.accessed, one.accessed
    one.order, two.order = two.order, one.order


# OBJECT

REGISTRY.add(
    "object",
    -2,
    since="2.2.3",
    syntax="OBJECT subcommand",
    summary="Holds the commands that look at how a value is kept.",
)

_OBJECT_HELP: Final = (
    b"OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    b"ENCODING <key>",
    b"    Return the kind of internal representation used in order to store the value",
    b"    associated with a <key>.",
    b"FREQ <key>",
    b"    Return the access frequency index of the <key>. The returned integer is",
    b"    proportional to the logarithm of the recent access frequency of the key.",
    b"IDLETIME <key>",
    b"    Return the idle time of the <key>, that is the approximated number of",
    b"    seconds elapsed since the last access to the key.",
    b"REFCOUNT <key>",
    b"    Return the number of references of the value associated with the specified",
    b"    <key>.",
    b"HELP",
    b"    Print this help.",
)


@REGISTRY.command("object|help", 2, "loading stale", since="6.2.0", summary="Lists the subcommands of OBJECT.")
def object_help(call: CommandContext, argv: list[bytes]) -> Reply:
    """OBJECT HELP"""
    return [Simple(line) for line in _OBJECT_HELP]


@REGISTRY.command(
    "object|refcount",
    3,
    "readonly",
    keys=(2, 2, 1),
    access="RO",
    since="2.2.3",
    summary="Answers how many references a value has: always one.",
)
def object_refcount(call: CommandContext, argv: list[bytes]) -> Reply:
    """OBJECT REFCOUNT key"""
    return None if call.peek(argv[2]) is None else 1


@REGISTRY.command(
    "object|idletime",
    3,
    "readonly",
    keys=(2, 2, 1),
    access="RO",
    since="2.2.3",
    summary="Answers how many seconds a key was not used.",
)
def object_idletime(call: CommandContext, argv: list[bytes]) -> Reply:
    """OBJECT IDLETIME key"""
    if call.peek(argv[2]) is None:
        return None
    return max(call.now_ms - call.db.accessed.get(argv[2], call.now_ms), 0) // 1000


@REGISTRY.command(
    "object|freq",
    3,
    "readonly",
    keys=(2, 2, 1),
    access="RO",
    since="4.0.0",
    summary="Would answer how often a key is used, which only an LFU policy counts.",
)
def object_freq(call: CommandContext, argv: list[bytes]) -> Reply:
    """OBJECT FREQ key"""
    if call.peek(argv[2]) is None:
        return None
    raise fault(faults.NO_LFU)


@REGISTRY.command(
    "object|encoding",
    3,
    "readonly",
    keys=(2, 2, 1),
    access="RO",
    since="2.2.3",
    summary="Names the form in which Redis would keep a value that was stored as it is now.",
)
def object_encoding(call: CommandContext, argv: list[bytes]) -> Reply:
    """OBJECT ENCODING key"""
    value = call.peek(argv[2])
    return None if value is None else encoding_of(argv[2], value)


def encoding_of(key: bytes, value: object) -> bytes:
    """Return the encoding that Redis chooses for a new value; the history of the value is unknown here."""
    match value:
        case bytes():
            if as_integer(value) is not None:
                return b"int"
            return b"embstr" if len(key) + len(value) <= 41 else b"raw"
        case Hash():
            words = [*value.keys(), *value.values()]
            return b"listpack" if len(value) <= 512 and _short(words) else b"hashtable"
        case List():
            return b"listpack" if sum(len(element) + 2 for element in value) <= 8185 else b"quicklist"
        case SetOf():
            if len(value) <= 512 and all(as_integer(member) is not None for member in value):
                return b"intset"
            return b"listpack" if len(value) <= 128 and _short([*value]) else b"hashtable"
        case SortedSet():
            return b"listpack" if len(value) <= 128 and _short([*value.scores]) else b"skiplist"
        case _:
            return b"stream"


def _short(words: list[bytes]) -> bool:
    return max(map(len, words), default=0) <= 64
