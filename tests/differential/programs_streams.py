"""Random programs over all stream commands: how they begin and end, what is drawn how often, how it is damaged.

`random_command(rng, state)` makes one command. Two things are kept out because a server does them in the background,
at a moment that cannot be known: ids in idempotency records that are older than the record's lifetime (swept once a
second), and producers left behind empty by an exhausted stream (swept too).
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Final

from tests.differential import stream_commands as made
from tests.differential.words import (
    CONSUMERS,
    GROUPS,
    MISSING,
    SAFE_MS,
    STRATEGIES,
    STREAMS,
    STRING,
    TOP_ID,
    U64_MAX,
    State,
    a_group,
    a_key,
    a_value,
    an_idle,
    next_id,
    pick,
    small_value,
)

JUNK: Final = (
    b"",
    b"COUNT",
    b"BLOCK",
    b"STREAMS",
    b"IDS",
    b"FORCE",
    b"JUSTID",
    b"LIMIT",
    b"~",
    b"=",
    b"MAXLEN",
    b"MINID",
    b"NOACK",
    b"GROUP",
    b"RETRYCOUNT",
    b"IDLE",
    b"TIME",
    b"LASTID",
    b"FULL",
    b"NOMKSTREAM",
    b"MKSTREAM",
    b"ENTRIESREAD",
    b"ENTRIESADDED",
    b"MAXDELETEDID",
    b"SILENT",
    b"FATAL",
    b"nonsense",
    b"a\x00b",
    b"1",
    b"0",
    b"line\r\nbreak",
    b"\xff\xfe",
    b"-1",
    b"2",
    b"5-0",
    b">",
    b"$",
    b"*",
    b"-",
    b"+",
    b"s1",
    b"g1",
    b"c1",
)
NEW_JUNK: Final = (
    b"CLAIM",
    b"MAXCOUNT",
    b"MAXSIZE",
    b"KEEPREF",
    b"DELREF",
    b"ACKED",
    b"IDMP",
    b"IDMPAUTO",
    b"IDMP-DURATION",
    b"IDMP-MAXSIZE",
)


def opening(rng: random.Random, state: State) -> list[list[bytes]]:
    """The first commands of a program: a string to stumble over, streams with entries and groups."""
    commands = [[b"SET", STRING, b"12"]]
    for key in STREAMS[: rng.choice((1, 2, 3, 3, 3))]:
        for group in GROUPS[: rng.choice((0, 1, 2, 3, 3, 3))]:
            commands.append([b"XGROUP", b"CREATE", key, group, b"0", b"MKSTREAM"])
        for _ in range(rng.randint(0, 12)):
            commands.append([b"XADD", key, next_id(rng, state, key), b"f", small_value(rng)])
    return commands + (many(rng, state) if state.large else [])


def many(rng: random.Random, state: State) -> list[list[bytes]]:
    """Hundreds of entries, half of them delivered."""
    key, size = STREAMS[0], rng.randint(150, 900)
    commands = [[b"XGROUP", b"CREATE", key, group, b"0", b"MKSTREAM"] for group in GROUPS]
    commands += [[b"XADD", key, next_id(rng, state, key), b"f", small_value(rng)] for _ in range(size)]
    for _ in range(rng.randint(2, 8)):
        count = b"%d" % rng.randint(1, size // 6)
        group, consumer = pick(rng, GROUPS), pick(rng, CONSUMERS)
        commands.append([b"XREADGROUP", b"GROUP", group, consumer, b"COUNT", count, b"STREAMS", key, b">"])
    return commands


def probes(keys: tuple[bytes, ...] = STREAMS) -> list[list[bytes]]:
    """Commands that show the whole state and change nothing."""
    commands = []
    for key in keys:
        commands.append([b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"])
        commands.append([b"XINFO", b"GROUPS", key])
        commands.append([b"PTTL", key])
    return commands


def closing(keys: tuple[bytes, ...] = STREAMS, *, new_words: bool = True) -> list[list[bytes]]:
    """The last commands: all there is, then each group's claims, which show the order of its pending list."""
    commands = probes((*keys, MISSING))
    for key, group in itertools.product(keys, GROUPS):
        commands.append([b"XPENDING", key, group])
        commands.append([b"XPENDING", key, group, b"-", b"+", b"1000"])
        commands.append([b"XINFO", b"CONSUMERS", key, group])
    for key, group in itertools.product(keys, GROUPS):
        claim = [b"CLAIM", b"0"] if new_words else []
        commands.append([b"XREADGROUP", b"GROUP", group, b"last", *claim, b"STREAMS", key, b">"])
    return commands + probes(keys)


def keys_as_a_whole(rng: random.Random, state: State) -> list[bytes]:
    """Commands on keys of any type that take streams away, move them, copy them or let them expire."""
    key, other = pick(rng, STREAMS), pick(rng, STREAMS)
    draw = rng.random()
    if draw < 0.3:
        replace = [b"REPLACE"] if rng.random() < 0.7 else []
        state.top[other] = state.top.get(key, (state.base, 0))
        state.ids[other] = deque(state.ids.get(key, ()), maxlen=800 if state.large else 24)
        return [b"COPY", key, other, *replace]
    if draw < 0.4:
        state.top[other] = state.top.pop(key, (state.base, 0))
        state.ids[other] = state.ids.pop(key, deque(maxlen=800 if state.large else 24))
        return [pick(rng, (b"RENAME", b"RENAME", b"RENAMENX")), key, other]
    if draw < 0.47:
        state.top.pop(key, None)
        return [pick(rng, (b"DEL", b"UNLINK")), key, *([other] if rng.random() < 0.1 else [])]
    if draw < 0.5:
        return [b"DEL", MISSING, STRING]
    if draw < 0.53:
        return [b"SET", STRING, b"12"]
    if draw < 0.56:
        state.top.pop(MISSING, None)
        return [b"DEL", MISSING]
    if draw < 0.85:
        return an_expiry(rng, state, key)
    return [pick(rng, (b"TYPE", b"EXISTS", b"PTTL", b"PERSIST", b"PEXPIRETIME", b"TTL", b"GET")), a_key(rng)]


def an_expiry(rng: random.Random, state: State, key: bytes) -> list[bytes]:
    if state.expiry and rng.random() < 0.3:
        state.top.pop(key, None)
        return [b"PEXPIRE", key, b"%d" % pick(rng, (0, 1, 2, 5, 10))]
    return pick(
        rng,
        (
            [b"EXPIRE", key, b"1000"],
            [b"PEXPIRE", key, b"900000"],
            [b"PERSIST", key],
            [b"EXPIRE", key, b"2000", b"GT"],
            [b"PEXPIRE", key, b"500000", b"LT"],
        ),
    )


def nonsense(rng: random.Random, state: State) -> list[bytes]:
    """No command at all, a container without its subcommand, or far too few words."""
    return pick(
        rng,
        (
            [b"XNOPE"],
            [b"XNOPE", b"a", b"b" * 200],
            [b"XGROUP"],
            [b"XINFO"],
            [b"XGROUP", b"NOPE"],
            [b"XADD"],
            [b"XINFO", b"NOPE", b"s1"],
            [b"XREADGROUP", b"GROUP", b"g1"],
            [b"XGROUP", b"CREATE", b"s1"],
            [b"XGROUP", b"HELP", b"x"],
            [b"XINFO", b"HELP", b"x"],
            [b"XNOPE", *[b"w" * 20] * 9],
            [b"X" * 300],
            [b"XACK", b"s1"],
            [b"XGROUP", b"HELP"],
            [b"XINFO", b"help"],
            [b"XADD", b"s1", b"*"],
            [b"XLEN"],
            [b"XLEN", b"a", b"b"],
            [b"xinfo", b"stream"],
            [b"", b"a"],
        ),
    )


def what_workers_do(rng: random.Random, state: State) -> list[bytes]:
    """Add, read a few, settle them; one stream and two groups, so that they meet again and again."""
    key, group, consumer = STREAMS[0], GROUPS[0] if rng.random() < 0.8 else GROUPS[1], pick(rng, CONSUMERS[:2])
    draw = rng.random()
    if draw < 0.3:
        entry_id = b"*" if rng.random() < state.automatic else next_id(rng, state, key)
        return [b"XADD", key, entry_id, b"f", a_value(rng, state)]
    if draw < 0.6:
        count = [] if rng.random() < 0.1 else [b"COUNT", b"%d" % pick(rng, (1, 1, 1, 1, 2, 5, 100))]
        claim = [b"CLAIM", an_idle(rng)] if state.new_words and rng.random() < 0.15 else []
        return [b"XREADGROUP", b"GROUP", group, consumer, *count, *claim, b"STREAMS", key, b">"]
    delivered = state.pending.get(key) or [(group, b"1-0")]
    group, entry_id = pick(rng, delivered)
    ids = [entry_id, *(pick(rng, delivered)[1] for _ in range(int(rng.random() * 2.5)))]
    if draw < 0.8:
        return [b"XACK", key, group, *ids]
    if state.new_words and draw < 0.88:
        mode = pick(rng, (b"SILENT", b"FAIL", b"FATAL"))
        return [b"XNACK", key, group, mode, b"IDS", b"%d" % len(ids), *ids]
    if state.new_words and draw < 0.92:
        return [b"XACKDEL", key, group, pick(rng, STRATEGIES), b"IDS", b"%d" % len(ids), *ids]
    if draw < 0.96:
        return [b"XCLAIM", key, group, consumer, an_idle(rng), *ids]
    return [b"XAUTOCLAIM", key, group, consumer, an_idle(rng), b"0", b"COUNT", b"%d" % rng.randint(1, 20)]


def nearly_right(rng: random.Random, state: State) -> list[bytes]:
    """Commands whose errors hardly come about by chance."""
    key, group = a_key(rng), a_group(rng)
    old = (
        [b"XTRIM", key, b"LIMIT", b"0"],
        [b"XTRIM", key, b"LIMIT", b"5"],
        [b"XADD", key, b"LIMIT", b"0", b"*", b"f", b"v"],
        [b"XREADGROUP", b"COUNT", b"1", b"NOACK", b"STREAMS", key, b">"],
        [b"XREAD", b"COUNT", b"1", b"STREAMS"],
        [b"XPENDING", key, group, b"IDLE", b"1", b"-", b"+"],
        [b"XPENDING", key, group, b"-"],
        [b"XGROUP", b"CREATE", key, group, b"$", b"MKSTREAM", b"MKSTREAM", b"ENTRIESREAD", b"1"],
        [b"XGROUP", b"SETID", key, group, b"$", b"ENTRIESREAD"],
        [b"XGROUP", b"SETID", key, group, b"$", b"OTHER", b"1"],
        [b"XINFO", b"STREAM", key, b"FULL", b"COUNT"],
        [b"XINFO", b"STREAM", key, b"FULL", b"LIMIT", b"1"],
        [b"XRANGE", key, b"(%d-%d" % (U64_MAX, U64_MAX), b"+"],
        [b"XRANGE", key, b"-", b"(0-0"],
        [b"XREVRANGE", key, b"+", b"(%d-%d" % (U64_MAX, U64_MAX)],
        [b"XREVRANGE", key, b"(0", b"-"],
        [b"XSETID", key, b"5-0", b"ENTRIESADDED"],
        [b"XREAD", b"STREAMS", key, TOP_ID],
    )
    new = (
        [b"XTRIM", key, b"KEEPREF", b"LIMIT", b"0"],
        [b"XTRIM", key, b"DELREF", b"MAXLEN", b"~", b"1", b"LIMIT", b"0"],
        [b"XNACK", key, group, b"FAIL", b"FORCE", b"RETRYCOUNT", b"1"],
        [b"XDELEX", key, b"KEEPREF", b"IDS", b"1"],
        [b"XCFGSET", key, b"IDMP-DURATION", b"1000", b"IDMP-DURATION", b"1000"],
        [b"XCFGSET", key],
        [b"XCFGSET", key, b"IDMP-MAXSIZE", b"3", b"IDMP-MAXSIZE", b"3"],
        [b"XCFGSET", key, b"IDMP-MAXSIZE", b"10001"],
        [b"XCFGSET", key, b"IDMP-DURATION", b"86401"],
        [b"XREADGROUP", b"GROUP", group, b"c1", b"STREAMS", key, TOP_ID],
        [b"XADD", key, b"IDMP", b"p1", b"i1", b"5-0", b"f"],
        [b"XADD", key, b"IDMPAUTO", b"p1", b"0-0", b"f", b"v"],
    )
    return list(pick(rng, old + new if state.new_words else old))


Make = Callable[[random.Random, State], list[bytes]]
# how often each is drawn
WEIGHTS: Final[dict[Make, float]] = {
    made.xadd: 24,
    made.xreadgroup: 18,
    made.xclaim: 7,
    made.xautoclaim: 5,
    made.xack: 4,
    made.xpending: 4,
    made.xread: 4,
    made.xgroup_create: 4,
    made.xtrim: 3.5,
    made.xinfo: 3,
    made.xdel: 2.5,
    made.xrange_: 2,
    made.xrevrange: 2,
    made.xgroup_setid: 2,
    made.xsetid: 1.5,
    made.xgroup_delconsumer: 1,
    made.xgroup_createconsumer: 0.8,
    made.xlen: 0.7,
    made.xgroup_destroy: 0.4,
    keys_as_a_whole: 2.5,
    nearly_right: 1.5,
    nonsense: 0.7,
}
NEW_WEIGHTS: Final[dict[Make, float]] = {
    made.xnack: 7,
    made.xackdel: 4,
    made.xdelex: 4,
    made.xidmprecord: 1.2,
    made.xcfgset: 0.5,
}


def _cumulated(weights: dict[Make, float]) -> tuple[list[Make], list[float]]:
    return list(weights), list(itertools.accumulate(weights.values()))


_OLD = _cumulated(WEIGHTS)
_ALL = _cumulated(WEIGHTS | NEW_WEIGHTS)


def random_command(rng: random.Random, state: State) -> list[bytes]:
    """The next command of a program."""
    makers, limits = _ALL if state.new_words else _OLD
    if state.orderly and rng.random() < 0.985:
        argv = what_workers_do(rng, state)
    else:
        argv = rng.choices(makers, cum_weights=limits)[0](rng, state)
    if state.wanted is not None:
        # without this, most commands of a long program would only meet groups that are gone
        argv = [b"XGROUP", b"CREATE", *state.wanted, pick(rng, (b"0", b"0", b"$")), b"MKSTREAM"]
        state.wanted = None
    if rng.random() < state.mangled:
        argv = mangle(rng, argv, JUNK + NEW_JUNK if state.new_words else JUNK)
    if rng.random() < 0.1:
        argv[0] = argv[0].lower()
    return make_safe(argv)


def mangle(rng: random.Random, argv: list[bytes], junk: tuple[bytes, ...]) -> list[bytes]:
    """Damage a command: a word lost, doubled, replaced, put in, swapped, or the rest cut off."""
    words = list(argv)
    at = rng.randint(1, max(1, len(words) - 1))
    draw = rng.random()
    if draw < 0.2 and at < len(words):
        del words[at]
    elif draw < 0.35 and at < len(words):
        words.insert(at, words[at])
    elif draw < 0.6 and at < len(words):
        words[at] = pick(rng, junk)
    elif draw < 0.8:
        words.insert(at, pick(rng, junk))
    elif draw < 0.9 and at + 1 < len(words):
        words[at], words[at + 1] = words[at + 1], words[at]
    else:
        del words[max(1, at) :]
    return words


def make_safe(argv: list[bytes]) -> list[bytes]:
    """Put out of reach what the server's once-a-second sweep would meet."""
    name = argv[0].upper()
    if name == b"XCFGSET":
        for at, word in enumerate(argv[:-1]):
            if word.upper() == b"IDMP-DURATION" and argv[at + 1].isdigit() and len(argv[at + 1]) < 4:
                argv[at + 1] = b"1000" if int(argv[at + 1]) else argv[at + 1]
    elif name == b"XIDMPRECORD" and len(argv) == 5:
        ms = argv[4].split(b"-")[0].strip().lstrip(b"+")
        if ms.isdigit() and int(ms) < SAFE_MS:
            argv[4] = b"999-123456"
    return argv
