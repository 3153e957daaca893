"""What random stream commands are made of: names, ids, numbers and values, likely and unlikely ones.

`State` is what the generator knows of the program it is making: its flavour, and what the server has answered so
far (the time, ids made by `*`, what was delivered), fed back by `State.learn`. Hardly any draw depends on what was
learned, only words do, so a seed gives nearly the same program on every run.
"""

from __future__ import annotations

import random
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Final

I64_MAX: Final = 2**63 - 1
U64_MAX: Final = 2**64 - 1
TOP_ID: Final = b"%d-%d" % (U64_MAX, U64_MAX)
FAR_FUTURE: Final = 4_102_444_800_000  # 2100: `*` then continues the last id instead of taking the clock
SAFE_MS: Final = 10**12  # ids from the clock or later are never swept within a run
SAFE_DURATION: Final = 1000  # seconds

ORDERLY: Final = 0.15  # how many programs are mostly what workers do
LARGE: Final = 0.04  # how many programs have hundreds of entries

STREAMS: Final = (b"s1", b"s2", b"s3")
STRING: Final = b"str"
MISSING: Final = b"none"
GROUPS: Final = (b"g1", b"g2", b"g3")
CONSUMERS: Final = (b"c1", b"c2", b"c3", b"c4")
PRODUCERS: Final = (b"p1", b"p2", b"p3")
STRATEGIES: Final = (b"KEEPREF", b"DELREF", b"ACKED")

BAD_INTEGERS: Final = (
    b"",
    b"abc",
    b"+1",
    b"01",
    b"-0",
    b" 1",
    b"1 ",
    b"1.0",
    b"1e3",
    b"0x1",
    b"9223372036854775808",
    b"-9223372036854775809",
    b"18446744073709551615",
    b"99999999999999999999999",
    b"1\x00",
    b"\xff",
)
EDGE_INTEGERS: Final = (b"0", b"-1", b"-5", b"9223372036854775807", b"-9223372036854775808", b"1", b"2")
BAD_IDS: Final = (
    b"",
    b"-",
    b"+",
    b"*",
    b"$",
    b">",
    b"abc",
    b"1-",
    b"-1",
    b"1-1-1",
    b"1-x",
    b"x-1",
    b"0x1-0",
    b"1.5",
    b"(1",
    b"(",
    b"(-",
    b"(+",
    b"18446744073709551616-0",
    b"1-18446744073709551616",
    b"1-1 ",
    b"--",
    b"1--1",
    b"5-*",
    b"*-1",
    b"0" * 128,
    b"-1-1",
    b"1-*-*",
)
ODD_IDS: Final = (b"01-01", b"+3-0", b" 2-1", b"3-+1", b"002", b"0" * 120 + b"4", b"1- 0")
DELIVERED: Final = re.compile(rb"\$\d+\r\n(\d+-\d+)\r\n\*")
NO_GROUP: Final = re.compile(rb"-NOGROUP No such key '(s\d)' or consumer group '(g\d)'")


@dataclass
class State:
    """What the generator knows of the program it is making."""

    base: int = 0  # ids are base + a small number
    edges: bool = False  # ids at the end of the 64-bit range are used, idempotent adds are not
    automatic: float = 0.1  # how often an id is left to the server
    mangled: float = 0.05  # how often a command is damaged
    big: float = 0.003  # how often a value is longer than a node
    orderly: bool = False  # what workers do all day: add, read one, settle it
    large: bool = False  # hundreds of entries, read and settled by the dozen
    tight: bool = False  # few different ids: the same ones are settled again and again
    new_words: bool = True  # what Redis has and Valkey has not
    expiry: bool = True  # keys may expire while the program runs
    now_ms: int = 0  # the server's time, as far as it is known
    ids: dict[bytes, deque[bytes]] = field(default_factory=dict)  # what was added to a key lately
    pending: dict[bytes, deque[tuple[bytes, bytes]]] = field(default_factory=dict)  # groups and ids delivered
    wanted: tuple[bytes, bytes] | None = None  # a key and a group that commands asked for in vain
    top: dict[bytes, tuple[int, int] | None] = field(default_factory=dict)  # None: the clock set it

    def learn(self, argv: list[bytes], reply: bytes) -> None:
        """Take in an id that the server made, ids that were delivered, or that a group is missing."""
        if reply[:1] in b"*%":
            self.note_delivered(argv, DELIVERED.findall(reply))
            return
        missing = NO_GROUP.match(reply)
        if missing and missing[1] in STREAMS and missing[2] in GROUPS:
            self.wanted = (missing[1], missing[2])
        if argv[0].upper() != b"XADD" or not reply.startswith(b"$") or reply.startswith(b"$-"):
            return
        made = reply.split(b"\r\n", 2)[1]
        self.note(argv[1], made)
        ms, _, seq = made.partition(b"-")
        if int(ms) < U64_MAX:
            self.top[argv[1]] = (int(ms), int(seq))

    def note_delivered(self, argv: list[bytes], ids: list[bytes]) -> None:
        """Remember ids as ones that a group may have pending; only reads of one stream are looked at."""
        words = [word.upper() for word in argv]
        if ids and b"GROUP" in words and words[-3:-2] == [b"STREAMS"]:
            group = argv[words.index(b"GROUP") + 1]
            found = self.pending.setdefault(argv[-2], deque(maxlen=600 if self.large else 12))
            found.extend((group, entry_id) for entry_id in ids)

    def note(self, key: bytes, made: bytes) -> None:
        """Remember an id as one that a key may hold."""
        ids = self.ids.setdefault(key, deque(maxlen=800 if self.large else 24))
        if not ids or ids[-1] != made:
            ids.append(made)


def random_state(rng: random.Random, *, new_words: bool = True, orderly: bool = False) -> State:
    """The flavour of one program."""
    edges = rng.random() < 0.08
    orderly = rng.random() < ORDERLY or orderly
    return State(
        base=FAR_FUTURE if rng.random() < 0.4 else 0,
        edges=edges,
        automatic=pick(rng, (0.0, 0.03, 0.1, 0.5)),
        mangled=pick(rng, (0.0, 0.03, 0.08, 0.2)) if not orderly else 0.0,
        orderly=orderly,
        big=pick(rng, (0.0, 0.0, 0.005, 0.05)),
        large=rng.random() < LARGE,
        tight=rng.random() < 0.4,
        new_words=new_words,
        expiry=rng.random() < 0.3,
    )


def pick(rng: random.Random, items: tuple | list | deque):  # type: ignore[type-arg,no-untyped-def]
    """One of the items; takes exactly one draw, however many there are."""
    return items[int(rng.random() * len(items))]


def cased(rng: random.Random, word: bytes) -> bytes:
    """A keyword in upper case, sometimes in lower, sometimes mixed."""
    draw = rng.random()
    if draw < 0.8:
        return word
    return word.lower() if draw < 0.95 else word.title()


def a_key(rng: random.Random) -> bytes:
    draw = rng.random()
    if draw < 0.92:
        return STREAMS[0] if draw < 0.5 else STREAMS[1] if draw < 0.75 else STREAMS[2]
    return MISSING if draw < 0.95 else STRING if draw < 0.98 else pick(rng, (b"", b"k\x00\xff", b"nothing"))


def a_group(rng: random.Random) -> bytes:
    draw = rng.random()
    if draw < 0.96:
        return GROUPS[0] if draw < 0.55 else GROUPS[1] if draw < 0.8 else GROUPS[2]
    return pick(rng, (b"nogroup", b"nogroup", b"", b"g\xff"))


def a_consumer(rng: random.Random) -> bytes:
    return pick(rng, CONSUMERS) if rng.random() < 0.93 else pick(rng, (b"", b"stranger", b"C1", b"c\x00"))


def an_integer(rng: random.Random, low: int, high: int, *, odd: float = 0.06) -> bytes:
    """A number from low to high, sometimes an extreme one, sometimes no number at all."""
    draw = rng.random()
    if draw >= odd:
        return b"%d" % rng.randint(low, high)
    return pick(rng, EDGE_INTEGERS) if draw < odd * 0.6 else pick(rng, BAD_INTEGERS)


def an_idle(rng: random.Random) -> bytes:
    """A minimum idle time: the spans that a run of a few milliseconds tells apart."""
    if rng.random() < 0.94:
        return b"%d" % pick(rng, (0, 0, 0, 1, 1, 2, 3, 5, 8, 13, 30, 100, 1000))
    return pick(rng, (*EDGE_INTEGERS, *BAD_INTEGERS))


def near_id(rng: random.Random, state: State) -> bytes:
    """An id that may or may not exist."""
    ms = rng.randint(0, 8 if state.tight else 30)
    return b"%d-%d" % (state.base + ms, int(rng.random() * rng.random() * 5))


def an_id(rng: random.Random, state: State, key: bytes) -> bytes:
    """An id for a command that looks one up: mostly one that was added to the key lately."""
    draw = rng.random()
    if draw < 0.77:
        ids = state.ids.get(key) or (b"%d-0" % (state.base + 1),)
        return ids[-1 - int(rng.random() * min(len(ids), 6))] if state.tight else pick(rng, ids)
    if draw < 0.91:
        return near_id(rng, state)
    if draw < 0.95:
        return near_id(rng, state).split(b"-")[0]
    if draw < 0.97:
        return pick(rng, ODD_IDS)
    return pick(rng, BAD_IDS) if draw < 0.985 else pick(rng, (b"0", b"0-0", TOP_ID, b"0-1", b"%d" % U64_MAX))


def some_ids(rng: random.Random, state: State, key: bytes, most: int = 5) -> list[bytes]:
    most = most * 12 if state.large else most
    return [an_id(rng, state, key) for _ in range(1 + int(rng.random() * rng.random() * most))]


def some_pending(rng: random.Random, state: State, key: bytes, most: int = 5) -> tuple[bytes, list[bytes]]:
    """A group and ids for a command that settles or claims: many of them are pending in it."""
    group, ids = a_group(rng), some_ids(rng, state, key, most)
    delivered = state.pending.get(key)
    if rng.random() < 0.2 or not delivered:
        return group, ids
    group = pick(rng, delivered)[0]
    own = [entry_id for owner, entry_id in delivered if owner == group]
    return group, [pick(rng, own) if rng.random() < 0.8 else entry_id for entry_id in ids]


def a_bound(rng: random.Random, state: State, key: bytes, whole: bytes) -> bytes:
    """A bound of a range."""
    draw = rng.random()
    if draw < 0.45:
        return whole
    found = an_id(rng, state, key)
    return b"(" + found if draw < 0.6 else found


def next_id(rng: random.Random, state: State, key: bytes) -> bytes:
    """An id above the stream's last one, as far as that is known."""
    draw = rng.random()
    top = state.top.get(key, (state.base, 0))
    if top is None:
        return b"*"
    ms, seq = top
    if draw < 0.5:
        ms, seq = ms + 1, 0
    elif draw < 0.85:
        seq += 1
    else:
        ms, seq = ms + 1 + int(draw * 100) % 4, int(draw * 1000) % 4
    if ms > U64_MAX or seq > U64_MAX:
        return TOP_ID
    state.top[key] = (ms, seq)
    made = b"%d-%d" % (ms, seq)
    state.note(key, made)
    return made


def new_id(rng: random.Random, state: State, key: bytes) -> bytes:
    """The id word of an XADD."""
    draw = rng.random()
    if draw < state.automatic:
        if not state.base:
            state.top[key] = None
        return b"*"
    if draw < 0.85:
        return next_id(rng, state, key)
    if draw < 0.92:
        return partial_id(rng, state, key)
    if state.edges and draw < 0.94:
        return pick(rng, (TOP_ID, b"%d-*" % U64_MAX, b"%d-0" % U64_MAX, b"7-%d" % U64_MAX, b"7-*"))
    if draw < 0.97:
        return near_id(rng, state)
    return pick(rng, (b"0-0", b"0", b"0-1", b"0-*")) if draw < 0.98 else pick(rng, BAD_IDS)


def partial_id(rng: random.Random, state: State, key: bytes) -> bytes:
    """`ms-*` or `ms`, from just below the last id to just above it."""
    top = state.top.get(key) or (state.now_ms, 0)
    ms = max(0, top[0] + rng.randint(-1, 2))
    return b"%d-*" % ms if rng.random() < 0.7 else b"%d" % ms


def small_value(rng: random.Random) -> bytes:
    draw = rng.random()
    if draw < 0.4:
        return b"%d" % rng.randint(-300, 70000)
    if draw < 0.8:
        return b"v" * rng.randint(0, 12)
    return pick(
        rng,
        (
            b"",
            b"01",
            b"-0",
            b"127",
            b"128",
            b"4095",
            b"4096",
            b"-4096",
            b"-4097",
            b"32767",
            b"32768",
            b"8388607",
            b"8388608",
            b"2147483647",
            b"2147483648",
            b"-2147483649",
            b"9223372036854775807",
            b"9223372036854775808",
            b"-9223372036854775808",
            b"x" * 63,
            b"x" * 64,
            b"\x00\r\n\xff",
            b"y" * 300,
        ),
    )


def a_value(rng: random.Random, state: State) -> bytes:
    draw = rng.random()
    if draw < state.big:
        return pick(rng, (b"b" * 5000, b"b" * 4000, b"b" * 4095, b"b" * 4096, b"b" * 2000))
    return small_value(rng)


def some_fields(rng: random.Random, state: State) -> list[bytes]:
    """Fields and values: mostly the ones all entries have, so that idempotent adds meet each other."""
    draw = rng.random()
    if draw < 0.55:
        return [b"f", a_value(rng, state)]
    if draw < 0.7:
        return [b"f", pick(rng, (b"1", b"2", b"3"))]
    if draw < 0.85:
        pairs = [(b"f", b"1"), (b"g", b"2")]
        rng.shuffle(pairs)
        return [word for pair in pairs for word in pair]
    names = (b"f", b"g", b"h", b"f", b"", b"7", b"long-field-name", b"-12")
    return [w for _ in range(1 + int(draw * 1000) % 5) for w in (pick(rng, names), a_value(rng, state))]


def shuffled(rng: random.Random, chunks: list[list[bytes]]) -> list[bytes]:
    """Groups of words that belong together, in any order."""
    if len(chunks) > 1 and rng.random() < 0.6:
        rng.shuffle(chunks)
    return [word for chunk in chunks for word in chunk]
