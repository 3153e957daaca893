"""Random commands on plain keys: mostly sensible ones, some at the edge, some broken.

    random_command(rng)     one command, as words; reads no clock and keeps no state
    UNORDERED               commands whose array may come in any order: compare it as a multiset
    SKIPPED                 commands whose reply cannot be equal on two servers, and why; their effects are

A few keys are used by every sort of command, streams included, so that wrong types are met both ways. Nothing random
changes a key (SPOP is only asked for more than there is), so two servers stay in the same state.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

UNORDERED = frozenset(
    {
        *{b"keys", b"smembers", b"hgetall", b"hkeys", b"hvals", b"spop", b"srandmember"},
        *{b"sinter", b"sunion", b"sdiff"},
    }
)

# By command, or `command|subcommand`.
SKIPPED = {
    b"randomkey": "any key is right",
    b"scan": "the cursor is each server's own, and so is the size of a page",
    b"srandmember": "any member is right",
    b"hrandfield": "any field is right",
    b"zrandmember": "any member is right",
    b"object|idletime": "Redis counts idle time with a clock of its own",
    b"object|encoding": "depends on how the value came to be, which the engine does not remember",
}

PLAIN_KEYS = [b"p%d" % number for number in range(8)]
STREAM_KEYS = [b"s0", b"s1", b"s2"]

_WORDS = [b"a", b"b", b"c", b"d", b"e", b"", b"hello", b"A", b"\x00\xff", b"x" * 70]
_INTEGERS = [b"0", b"1", b"-1", b"2", b"5", b"10", b"-3", b"100", b"9223372036854775807", b"-9223372036854775808"]
_FLOATS = [b"0", b"1", b"-1", b"1.5", b"0.1", b"3.0e3", b"-2.5", b"1e-7", b"inf", b"-inf", b"+5", b"17e16"]
_JUNK = [
    b"",
    b"x",
    b"-",
    b"1.5",
    b"+1",
    b"01",
    b" 1",
    b"nan",
    b"1e400",
    b"9223372036854775808",
    b"NX",
    b"GET",
    b"(1",
    b"[a",
    b"LIMIT",
    b"EX",
    b"\xff\x00",
    b"-0",
    b"99999999999999999999",
    b"WITHSCORES",
]
_PATTERNS = [b"*", b"p*", b"?1", b"[ps]?", b"p[^0-3]", b"s\\0", b"nothing", b"*[", b"", b"[a-", b"**1*"]


def random_command(rng: Random) -> list[bytes]:
    """One command; about one in twelve is damaged on purpose."""
    name = rng.choice(_NAMES)
    argv = [name, *_BUILDERS[name](rng)]
    if name != b"SPOP" and rng.random() < 0.08:  # SPOP without its count would pop at random
        argv = _damaged(rng, argv)
    argv = _harmless(argv)
    if rng.random() < 0.1:
        argv[0] = bytes(rng.choice((byte, byte ^ 0x20)) if 65 <= byte & 0xDF <= 90 else byte for byte in argv[0])
    return argv


def _damaged(rng: Random, argv: list[bytes]) -> list[bytes]:
    """A word dropped, doubled, replaced, or added; the name stays."""
    at = rng.randrange(1, len(argv)) if len(argv) > 1 else 1
    match rng.randrange(4):
        case 0:
            return argv[:at] + argv[at + 1 :]
        case 1:
            return argv[:at] + argv[at : at + 1] + argv[at:]
        case 2:
            return [*argv[:at], rng.choice(_JUNK), *argv[at + 1 :]]
        case _:
            return [*argv, rng.choice(_JUNK)]


def _harmless(argv: list[bytes]) -> list[bytes]:
    """Without what makes Redis 8.10 answer twice: SET with GET and a digest that has not 16 letters."""
    words = [word.upper() for word in argv]
    if words[0] == b"SET" and b"GET" in words[3:] and {b"IFDEQ", b"IFDNE"} & set(words):
        return argv[:3]
    return argv


# Words


def _key(rng: Random) -> bytes:
    return rng.choice(STREAM_KEYS) if rng.random() < 0.06 else rng.choice(PLAIN_KEYS)


def _word(rng: Random) -> bytes:
    return rng.choice(_WORDS) if rng.random() < 0.8 else b"%d" % rng.randrange(20)


def _integer(rng: Random) -> bytes:
    return b"%d" % rng.randrange(-6, 7) if rng.random() < 0.7 else rng.choice(_INTEGERS)


def _float(rng: Random) -> bytes:
    return rng.choice(_FLOATS) if rng.random() < 0.7 else b"%g" % (rng.random() * 10 ** rng.randrange(-3, 6))


def _words(rng: Random, most: int = 4) -> list[bytes]:
    return [_word(rng) for _ in range(rng.randrange(1, most + 1))]


def _pairs(rng: Random, first: Callable[[Random], bytes], second: Callable[[Random], bytes]) -> list[bytes]:
    return [word for _ in range(rng.randrange(1, 4)) for word in (first(rng), second(rng))]


def _some(rng: Random, *options: list[bytes], chance: float = 0.35) -> list[bytes]:
    """Some of the options, in any order."""
    chosen = [option for option in options if rng.random() < chance]
    rng.shuffle(chosen)
    return [word for option in chosen for word in option]


def _seconds(rng: Random) -> bytes:
    return rng.choice([b"1", b"10", b"100", b"5000", b"0", b"-1", b"9223372036854775807", b"9223372036854775"])


def _milliseconds(rng: Random) -> bytes:
    return rng.choice([b"1", b"2", b"5", b"20", b"50", b"100000", b"123456", b"0", b"-5", b"9223372036854775807"])


def _expiry(rng: Random) -> list[bytes]:
    return rng.choice(
        [
            [b"EX", _seconds(rng)],
            [b"PX", _milliseconds(rng)],
            [b"PX", _milliseconds(rng)],
            [b"EXAT", rng.choice([b"1", b"4102444800", b"0"])],
            [b"PXAT", rng.choice([b"1", b"4102444800123"])],
        ]
    )


def _digest(rng: Random) -> bytes:
    return rng.choice([b"f7042be43fb80714", b"E6C632B61E964E1F", b"e6c632b61e964e1f", b"0123", b"g" * 16])


def _comparison(rng: Random) -> list[bytes]:
    name = rng.choice([b"IFEQ", b"IFNE", b"IFDEQ", b"ifdne"])
    return [name, _digest(rng) if name.upper().startswith(b"IFD") else _word(rng)]


# Arguments


def _set(rng: Random) -> list[bytes]:
    condition = rng.choice([[b"NX"], [b"XX"], _comparison(rng)])
    time = _expiry(rng) if rng.random() < 0.8 else [b"KEEPTTL"]
    value = rng.choice([_word, _integer, _float])(rng)
    return [_key(rng), value, *_some(rng, condition, time, [b"get"], [rng.choice([b"NX", b"KEEPTTL"])], chance=0.25)]


def _expire(units: Callable[[Random], bytes]) -> Callable[[Random], list[bytes]]:
    def build(rng: Random) -> list[bytes]:
        return [_key(rng), units(rng), *_some(rng, [b"NX"], [b"xx"], [b"GT"], [b"lt"], chance=0.15)]

    return build


def _copy(rng: Random) -> list[bytes]:
    db = [b"DB", rng.choice([b"0", b"0", b"0", b"1", b"16", b"-1", b"x"])]
    return [_key(rng), _key(rng), *_some(rng, db, [b"REPLACE"], chance=0.3)]


def _zadd(rng: Random) -> list[bytes]:
    flags = _some(rng, [b"NX"], [b"xx"], [b"GT"], [b"LT"], [b"CH"], chance=0.15)
    if rng.random() < 0.2:
        return [_key(rng), *flags, b"INCR", _float(rng), _word(rng)]
    return [_key(rng), *flags, *_pairs(rng, _float, _word)]


def _score_bound(rng: Random) -> bytes:
    return rng.choice([b"", b"", b"("]) + (rng.choice([b"-inf", b"+inf"]) if rng.random() < 0.4 else _float(rng))


def _lex_bound(rng: Random) -> bytes:
    return rng.choice([b"-", b"+", b"[" + _word(rng), b"(" + _word(rng), b"[", b"x"])


def _limit(rng: Random) -> list[bytes]:
    return [b"LIMIT", _integer(rng), _integer(rng)]


def _zrange(rng: Random) -> list[bytes]:
    bound, by = rng.choice([(_integer, []), (_score_bound, [b"BYSCORE"]), (_lex_bound, [b"bylex"])])
    options = _some(rng, [b"REV"], [b"WITHSCORES"], _limit(rng) if by or rng.random() < 0.1 else [])
    tail = [*by, *options] if rng.random() < 0.5 else [*options, *by]
    return [_key(rng), bound(rng), bound(rng), *tail]


def _range_by_score(rng: Random) -> list[bytes]:
    return [_key(rng), _score_bound(rng), _score_bound(rng), *_some(rng, [b"WITHSCORES"], _limit(rng))]


def _scan(rng: Random) -> list[bytes]:
    kind = rng.choice([b"string", b"STREAM", b"zset", b"list", b"set", b"hash", b"other"])
    options = _some(rng, [b"MATCH", rng.choice(_PATTERNS)], [b"COUNT", rng.choice([b"1", b"5", b"0"])], [b"TYPE", kind])
    return [rng.choice([b"0", b"0", b"0", b"x", b"-1"]), *options]


def _object(rng: Random) -> list[bytes]:
    sub = rng.choice([b"REFCOUNT", b"freq", b"ENCODING", b"IDLETIME", b"HELP", b"other"])
    return [sub] if sub == b"HELP" else [sub, _key(rng)]


def _keys_of(most: int) -> Callable[[Random], list[bytes]]:
    return lambda rng: [_key(rng) for _ in range(rng.randrange(1, most + 1))]


def _key_and(*parts: Callable[[Random], bytes]) -> Callable[[Random], list[bytes]]:
    return lambda rng: [_key(rng), *(part(rng) for part in parts)]


def _key_and_words(rng: Random) -> list[bytes]:
    return [_key(rng), *_words(rng)]


def _key_and_count(rng: Random) -> list[bytes]:
    return [_key(rng), *_some(rng, [rng.choice([b"0", b"1", b"2", b"3", b"100", b"-1"])], chance=0.6)]


def _spop(rng: Random) -> list[bytes]:
    return [_key(rng), rng.choice([b"1000", b"0", b"-1", b"1000"])]


def _unix_seconds(rng: Random) -> bytes:
    return rng.choice([b"1", b"4102444800", b"4102444801", b"-5", b"9223372036854775807"])


def _unix_milliseconds(rng: Random) -> bytes:
    return rng.choice([b"1", b"4102444800123", b"4102444800500", b"-5", b"9223372036854775807"])


def _database(rng: Random) -> bytes:
    return rng.choice([b"0", b"0", b"16", b"-1", b"x", b"99999999999999999999"])


def _lpos(rng: Random) -> list[bytes]:
    rank, count, most = ([name, _integer(rng)] for name in (b"RANK", b"count", b"MAXLEN"))
    return [_key(rng), _word(rng), *_some(rng, rank, count, most)]


def _numbered(rng: Random) -> list[bytes]:
    """A number of keys, mostly the right one, and keys."""
    keys = [_key(rng) for _ in range(rng.randrange(1, 4))]
    number = len(keys) if rng.random() < 0.95 else rng.choice([0, -1, len(keys) + 1])
    return [b"%d" % number, *keys]


def _aggregate(rng: Random) -> list[bytes]:
    """Keys of sorted sets, weights and how to combine scores; decimals would add up differently in another order."""
    numbered = _numbered(rng)
    weights = [b"WEIGHTS", *(rng.choice([b"1", b"2", b"-1", b"0", b"inf", b"0.5", b"x"]) for _ in numbered[1:])]
    how = [b"AGGREGATE", rng.choice([b"MIN", b"max", b"COUNT", b"MIN", b"avg"])]
    return [*numbered, *(weights if rng.random() < 0.4 else []), *(how if rng.random() < 0.9 else [])]


def _card(rng: Random) -> list[bytes]:
    return [*_numbered(rng), *_some(rng, [b"LIMIT", _integer(rng)])]


def _with_scores(build: Callable[[Random], list[bytes]]) -> Callable[[Random], list[bytes]]:
    return lambda rng: [*build(rng), *_some(rng, [b"WITHSCORES"])]


def _to(build: Callable[[Random], list[bytes]]) -> Callable[[Random], list[bytes]]:
    return lambda rng: [_key(rng), *build(rng)]


def _draw(option: bytes) -> Callable[[Random], list[bytes]]:
    return lambda rng: [_key(rng), *_some(rng, [rng.choice([b"0", b"3", b"-2", b"x"]), *_some(rng, [option])])]


def _bit_position(rng: Random) -> bytes:
    return rng.choice([b"0", b"1", b"7", b"8", b"9", b"33", b"100", b"-1", b"4294967296", b"x"])


def _bit_range(rng: Random) -> list[bytes]:
    return [_integer(rng), _integer(rng), *_some(rng, [rng.choice([b"BIT", b"byte", b"other"])])]


def _bitpos(rng: Random) -> list[bytes]:
    return [_key(rng), rng.choice([b"0", b"1", b"0", b"1", b"2"]), *_bit_range(rng)[: rng.randrange(4)]]


def _bitop(rng: Random) -> list[bytes]:
    operation = rng.choice([b"AND", b"or", b"XOR", b"NOT", b"DIFF", b"DIFF1", b"ANDOR", b"ONE", b"other"])
    return [operation, *(_key(rng) for _ in range(2 if operation == b"NOT" else rng.randrange(2, 5)))]


def _bitfield(rng: Random, *, reads: bool = False) -> list[bytes]:
    words = [_key(rng)]
    for _ in range(rng.randrange(1, 4)):
        kind = rng.choice([b"u1", b"u8", b"i8", b"u5", b"i64", b"u63", b"i3", b"u64", b"i65", b"x"])
        place = rng.choice([b"0", b"3", b"#1", b"#2", b"100", b"-1", b"#x"])
        value = rng.choice([b"0", b"1", b"-1", b"255", b"100", b"9223372036854775807", b"-9223372036854775808", b"y"])
        overflow = [b"OVERFLOW", rng.choice([b"WRAP", b"sat", b"FAIL", b"other"])]
        step = rng.choice([[b"GET", kind, place], [b"SET", kind, place, value], [b"INCRBY", kind, place, value]])
        words += [b"GET", kind, place] if reads else [*(overflow if rng.random() < 0.3 else []), *step]
    return words


def _sort(rng: Random) -> list[bytes]:
    by = [b"BY", rng.choice([b"p*", b"p*->a", b"*"])]  # without a star the order inside a set would show
    get = [b"GET", rng.choice([b"#", b"p*", b"p*->a", b"nothing"])]
    order = [rng.choice([b"ASC", b"desc"])]
    if rng.random() < 0.3:  # ALPHA alone compares by locale and up to a NUL; with BY the order of equal weights is open
        return [_key(rng), *_some(rng, get, _limit(rng), order), b"ALPHA", b"STORE", _key(rng)]
    return [_key(rng), *_some(rng, by, get, get, _limit(rng), order)]


# name: how often it is drawn, how its arguments are made
_COMMANDS: dict[bytes, tuple[int, Callable[[Random], list[bytes]]]] = {
    b"SET": (14, _set),
    b"GET": (4, _key_and()),
    b"GETDEL": (2, _key_and()),
    b"GETEX": (4, lambda rng: [_key(rng), *_some(rng, _expiry(rng), [b"PERSIST"], chance=0.5)]),
    b"GETSET": (2, _key_and(_word)),
    b"SETNX": (2, _key_and(_word)),
    b"SETEX": (2, _key_and(_seconds, _word)),
    b"PSETEX": (2, _key_and(_milliseconds, _word)),
    b"MGET": (2, _keys_of(4)),
    b"MSET": (2, lambda rng: _pairs(rng, _key, _word)),
    b"MSETNX": (2, lambda rng: _pairs(rng, _key, _word)),
    b"INCR": (3, _key_and()),
    b"DECR": (2, _key_and()),
    b"INCRBY": (3, _key_and(_integer)),
    b"DECRBY": (2, _key_and(_integer)),
    b"INCRBYFLOAT": (4, _key_and(_float)),
    b"APPEND": (3, _key_and(_word)),
    b"STRLEN": (1, _key_and()),
    b"GETRANGE": (2, _key_and(_integer, _integer)),
    b"SETRANGE": (2, _key_and(lambda rng: rng.choice([b"0", b"1", b"3", b"80", b"-1", b"536870912"]), _word)),
    b"DIGEST": (1, _key_and()),
    b"DELEX": (3, lambda rng: [_key(rng), *_some(rng, _comparison(rng), chance=0.8)]),
    b"DEL": (3, _keys_of(2)),
    b"UNLINK": (2, _keys_of(2)),
    b"EXISTS": (2, _keys_of(4)),
    b"TYPE": (2, _key_and()),
    b"TOUCH": (1, _keys_of(3)),
    b"EXPIRE": (4, _expire(_seconds)),
    b"PEXPIRE": (6, _expire(_milliseconds)),
    b"EXPIREAT": (2, _expire(_unix_seconds)),
    b"PEXPIREAT": (3, _expire(_unix_milliseconds)),
    b"TTL": (3, _key_and()),
    b"PTTL": (4, _key_and()),
    b"EXPIRETIME": (2, _key_and()),
    b"PEXPIRETIME": (2, _key_and()),
    b"PERSIST": (2, _key_and()),
    b"KEYS": (1, lambda rng: [rng.choice(_PATTERNS)]),
    b"SCAN": (1, _scan),
    b"RANDOMKEY": (1, lambda rng: []),
    b"RENAME": (4, _key_and(_key)),
    b"RENAMENX": (3, _key_and(_key)),
    b"COPY": (5, _copy),
    b"MOVE": (1, _key_and(_database)),
    b"DBSIZE": (1, lambda rng: []),
    b"SWAPDB": (1, lambda rng: [_database(rng), _database(rng)]),
    b"OBJECT": (2, _object),
    b"HSET": (6, lambda rng: [_key(rng), *_pairs(rng, _word, rng.choice([_word, _integer]))]),
    b"HSETNX": (2, _key_and(_word, _integer)),
    b"HMSET": (2, lambda rng: [_key(rng), *_pairs(rng, _word, _word)]),
    b"HGET": (2, _key_and(_word)),
    b"HMGET": (2, _key_and_words),
    b"HGETALL": (2, _key_and()),
    b"HDEL": (3, _key_and_words),
    b"HINCRBY": (3, _key_and(_word, _integer)),
    b"HLEN": (1, _key_and()),
    b"HEXISTS": (1, _key_and(_word)),
    b"HKEYS": (1, _key_and()),
    b"HVALS": (1, _key_and()),
    b"HSTRLEN": (1, _key_and(_word)),
    b"SADD": (6, _key_and_words),
    b"SREM": (3, _key_and_words),
    b"SMEMBERS": (2, _key_and()),
    b"SISMEMBER": (1, _key_and(_word)),
    b"SMISMEMBER": (1, _key_and_words),
    b"SCARD": (1, _key_and()),
    b"SPOP": (1, _spop),
    b"SRANDMEMBER": (1, _key_and_count),
    b"LPUSH": (5, _key_and_words),
    b"RPUSH": (5, _key_and_words),
    b"LPUSHX": (2, _key_and_words),
    b"RPUSHX": (2, _key_and_words),
    b"LPOP": (3, _key_and_count),
    b"RPOP": (3, _key_and_count),
    b"LLEN": (1, _key_and()),
    b"LRANGE": (2, _key_and(_integer, _integer)),
    b"LINDEX": (1, _key_and(_integer)),
    b"LTRIM": (2, _key_and(_integer, _integer)),
    b"LREM": (2, _key_and(_integer, _word)),
    b"ZADD": (8, _zadd),
    b"ZREM": (2, _key_and_words),
    b"ZRANGE": (5, _zrange),
    b"ZRANGEBYSCORE": (2, _range_by_score),
    b"ZREVRANGEBYSCORE": (2, _range_by_score),
    b"ZREVRANGE": (1, lambda rng: [_key(rng), _integer(rng), _integer(rng), *_some(rng, [b"withscores"], _limit(rng))]),
    b"ZSCORE": (1, _key_and(_word)),
    b"ZMSCORE": (1, _key_and_words),
    b"ZCARD": (1, _key_and()),
    b"ZCOUNT": (2, _key_and(_score_bound, _score_bound)),
    b"ZINCRBY": (3, _key_and(_float, _word)),
    b"ZRANK": (2, lambda rng: [_key(rng), _word(rng), *_some(rng, [b"WITHSCORE"])]),
    b"ZREVRANK": (2, lambda rng: [_key(rng), _word(rng), *_some(rng, [b"withscore"])]),
    b"ZPOPMIN": (2, _key_and_count),
    b"ZPOPMAX": (2, _key_and_count),
    b"ZREMRANGEBYSCORE": (1, _key_and(_score_bound, _score_bound)),
    b"LPOS": (3, _lpos),
    b"LSET": (3, _key_and(_integer, _word)),
    b"LINSERT": (3, lambda rng: [_key(rng), rng.choice([b"BEFORE", b"after", b"at"]), _word(rng), _word(rng)]),
    b"HINCRBYFLOAT": (3, _key_and(_word, _float)),
    b"HRANDFIELD": (1, _draw(b"WITHVALUES")),
    b"ZRANDMEMBER": (1, _draw(b"WITHSCORES")),
    b"SINTER": (2, _keys_of(3)),
    b"SUNION": (2, _keys_of(3)),
    b"SDIFF": (2, _keys_of(3)),
    b"SINTERSTORE": (2, _to(_keys_of(3))),
    b"SUNIONSTORE": (2, _to(_keys_of(3))),
    b"SDIFFSTORE": (2, _to(_keys_of(3))),
    b"SINTERCARD": (2, _card),
    b"SDIFFCARD": (2, _card),
    b"SUNIONCARD": (2, _card),
    b"SMOVE": (2, _key_and(_key, _word)),
    b"ZUNION": (2, _with_scores(_aggregate)),
    b"ZINTER": (2, _with_scores(_aggregate)),
    b"ZDIFF": (2, _with_scores(_numbered)),
    b"ZUNIONSTORE": (2, _to(_aggregate)),
    b"ZINTERSTORE": (2, _to(_aggregate)),
    b"ZDIFFSTORE": (2, _to(_numbered)),
    b"ZINTERCARD": (2, _card),
    b"ZRANGESTORE": (2, _to(_zrange)),
    b"ZRANGEBYLEX": (1, lambda rng: [_key(rng), _lex_bound(rng), _lex_bound(rng), *_some(rng, _limit(rng))]),
    b"ZREVRANGEBYLEX": (1, lambda rng: [_key(rng), _lex_bound(rng), _lex_bound(rng), *_some(rng, _limit(rng))]),
    b"ZLEXCOUNT": (1, _key_and(_lex_bound, _lex_bound)),
    b"ZREMRANGEBYLEX": (1, _key_and(_lex_bound, _lex_bound)),
    b"SETBIT": (3, lambda rng: [_key(rng), _bit_position(rng), rng.choice([b"0", b"1", b"1", b"2"])]),
    b"GETBIT": (1, _key_and(_bit_position)),
    b"BITCOUNT": (2, lambda rng: [_key(rng), *_some(rng, _bit_range(rng), chance=0.7)]),
    b"BITPOS": (2, _bitpos),
    b"BITOP": (2, _bitop),
    b"BITFIELD": (3, _bitfield),
    b"BITFIELD_RO": (1, lambda rng: _bitfield(rng, reads=True)),
    b"SORT": (3, _sort),
    b"SORT_RO": (1, _sort),
    b"ZREMRANGEBYRANK": (1, _key_and(_integer, _integer)),
}
_BUILDERS = {name: build for name, (_, build) in _COMMANDS.items()}
_NAMES = [name for name, (weight, _) in _COMMANDS.items() for _ in range(weight)]
