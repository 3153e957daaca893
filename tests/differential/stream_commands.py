"""One maker for each stream command: its options in any order and case, now and then wrong ones."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.differential.words import (
    PRODUCERS,
    SAFE_DURATION,
    STRATEGIES,
    STREAMS,
    TOP_ID,
    U64_MAX,
    State,
    a_bound,
    a_consumer,
    a_group,
    a_key,
    an_id,
    an_idle,
    an_integer,
    cased,
    new_id,
    next_id,
    pick,
    shuffled,
    some_fields,
    some_ids,
    some_pending,
)


def a_trim(rng: random.Random, state: State, key: bytes) -> list[list[bytes]]:
    """A trimming strategy, its LIMIT and its reference word, as chunks."""
    approximate = rng.random() < 0.5
    sign = [b"~"] if approximate else pick(rng, ([], [b"="]))
    if rng.random() < 0.55:
        most = 12 if rng.random() < 0.8 else 400 if state.large else 40
        threshold = [cased(rng, b"MAXLEN"), *sign, an_integer(rng, 0, most)]
    else:
        threshold = [cased(rng, b"MINID"), *sign, an_id(rng, state, key)]
    chunks = [threshold]
    if rng.random() < (0.35 if approximate else 0.03):
        chunks.append([cased(rng, b"LIMIT"), an_integer(rng, 0, 12)])
    if rng.random() < 0.03:
        chunks.append([cased(rng, pick(rng, (b"MAXLEN", b"MINID"))), b"3"])
    return chunks


def a_strategy(rng: random.Random, state: State) -> list[list[bytes]]:
    """KEEPREF, DELREF or ACKED, or nothing; seldom two."""
    draw = rng.random()
    if not state.new_words or draw < 0.45:
        return []
    chunks = [[cased(rng, pick(rng, STRATEGIES))]]
    return [*chunks, [pick(rng, STRATEGIES)]] if draw > 0.97 else chunks


def xadd(rng: random.Random, state: State) -> list[bytes]:
    key = a_key(rng)
    chunks: list[list[bytes]] = []
    if rng.random() < 0.08:
        chunks.append([cased(rng, b"NOMKSTREAM")])
    if rng.random() < 0.25:
        chunks += a_trim(rng, state, key)
    if rng.random() < 0.2:
        chunks += a_strategy(rng, state)
    entry_id = new_id(rng, state, key)
    if state.new_words and not state.edges and rng.random() < 0.15:
        chunks += idempotence(rng)
        if rng.random() < 0.9:
            entry_id = b"*"
            if not state.base:
                state.top[key] = None
    return [b"XADD", key, *shuffled(rng, chunks), entry_id, *some_fields(rng, state)]


def idempotence(rng: random.Random) -> list[list[bytes]]:
    """IDMP or IDMPAUTO; seldom both, seldom with empty words."""
    producer = pick(rng, PRODUCERS) if rng.random() < 0.95 else b""
    record = b"i%d" % rng.randint(1, 7) if rng.random() < 0.95 else b""
    explicit = [cased(rng, b"IDMP"), producer, record]
    automatic = [cased(rng, b"IDMPAUTO"), producer]
    draw = rng.random()
    if draw < 0.03:
        return [explicit, automatic]
    return [explicit] if draw < 0.6 else [automatic]


def xtrim(rng: random.Random, state: State) -> list[bytes]:
    key = a_key(rng)
    return [b"XTRIM", key, *shuffled(rng, a_trim(rng, state, key) + a_strategy(rng, state))]


def xlen(rng: random.Random, state: State) -> list[bytes]:
    return [b"XLEN", a_key(rng)]


def a_count(rng: random.Random, state: State, *, rate: float = 0.5) -> list[list[bytes]]:
    most = 150 if state.large else 6
    if rng.random() >= rate:
        return []
    chunks = [[cased(rng, b"COUNT"), an_integer(rng, 1, most)]]
    return chunks if rng.random() < 0.95 else [*chunks, [b"COUNT", an_integer(rng, 0, most)]]


def xrange_(rng: random.Random, state: State) -> list[bytes]:
    key = a_key(rng)
    bounds = [a_bound(rng, state, key, b"-"), a_bound(rng, state, key, b"+")]
    return [b"XRANGE", key, *bounds, *shuffled(rng, a_count(rng, state, rate=0.4))]


def xrevrange(rng: random.Random, state: State) -> list[bytes]:
    key = a_key(rng)
    bounds = [a_bound(rng, state, key, b"+"), a_bound(rng, state, key, b"-")]
    return [b"XREVRANGE", key, *bounds, *shuffled(rng, a_count(rng, state, rate=0.4))]


def xdel(rng: random.Random, state: State) -> list[bytes]:
    key = a_key(rng)
    return [b"XDEL", key, *some_ids(rng, state, key)]


def an_ids_block(rng: random.Random, ids: list[bytes]) -> list[bytes]:
    """IDS numids id …, seldom with a wrong number."""
    draw = rng.random()
    size = b"%d" % len(ids)
    if draw > 0.95:
        size = pick(rng, (b"%d" % (len(ids) + 1), b"%d" % (len(ids) - 1), b"2147483647", b"2147483648"))
    elif draw > 0.93:
        size = an_integer(rng, 0, 3, odd=0.8)
    return [cased(rng, b"IDS"), size, *ids]


def xdelex(rng: random.Random, state: State) -> list[bytes]:
    key = a_key(rng)
    _, ids = some_pending(rng, state, key, 6)
    return [b"XDELEX", key, *shuffled(rng, [*a_strategy(rng, state), an_ids_block(rng, ids)])]


def xackdel(rng: random.Random, state: State) -> list[bytes]:
    key = a_key(rng)
    group, ids = some_pending(rng, state, key, 6)
    chunks = [*a_strategy(rng, state), an_ids_block(rng, ids)]
    return [b"XACKDEL", key, group, *shuffled(rng, chunks)]


def xack(rng: random.Random, state: State) -> list[bytes]:
    key = a_key(rng)
    group, ids = some_pending(rng, state, key)
    return [b"XACK", key, group, *ids]


def xnack(rng: random.Random, state: State) -> list[bytes]:
    key = a_key(rng)
    group, ids = some_pending(rng, state, key, 6)
    chunks = [an_ids_block(rng, ids)]
    if rng.random() < 0.25:
        chunks.append([cased(rng, b"RETRYCOUNT"), an_integer(rng, 0, 9, odd=0.15)])
    if rng.random() < 0.3:
        chunks.append([cased(rng, b"FORCE")])
    if rng.random() < 0.03:
        chunks.append(an_ids_block(rng, some_ids(rng, state, key)))
    mode = cased(rng, pick(rng, (b"SILENT", b"FAIL", b"FAIL", b"FATAL")))
    if rng.random() < 0.02:
        mode = pick(rng, (b"", b"MAYBE", b"FORCE", b"IDS"))
    return [b"XNACK", key, group, mode, *shuffled(rng, chunks)]


def budgets(rng: random.Random, state: State) -> list[list[bytes]]:
    """MAXCOUNT and MAXSIZE."""
    chunks: list[list[bytes]] = []
    if state.new_words and rng.random() < 0.12:
        chunks.append([cased(rng, b"MAXCOUNT"), an_integer(rng, 1, 9, odd=0.1)])
    if state.new_words and rng.random() < 0.12:
        chunks.append([cased(rng, b"MAXSIZE"), an_integer(rng, 1, 400, odd=0.1)])
    return chunks


def a_block(rng: random.Random) -> list[list[bytes]]:
    return [[cased(rng, b"BLOCK"), an_integer(rng, 0, 20, odd=0.15)]] if rng.random() < 0.1 else []


def streams_and_ids(rng: random.Random, special: Callable[[bytes], bytes]) -> list[bytes]:
    """STREAMS key … id …, keys sometimes repeated, the two halves seldom of different length."""
    size = 1 if rng.random() < 0.65 else rng.randint(2, 4)
    keys = [a_key(rng) if rng.random() < 0.3 else pick(rng, STREAMS) for _ in range(size)]
    ids = [special(key) for key in keys]
    if rng.random() < 0.02:
        ids.pop()
    return [cased(rng, b"STREAMS"), *keys, *ids]


def xread(rng: random.Random, state: State) -> list[bytes]:
    def after(key: bytes) -> bytes:
        draw = rng.random()
        if draw < 0.4:
            return b"0"
        if draw < 0.75:
            return an_id(rng, state, key)
        # Valkey means another entry by `+`
        return b"$" if draw < 0.85 or not state.new_words else b"+" if draw < 0.97 else b">"

    chunks = a_count(rng, state) + a_block(rng) + budgets(rng, state)
    if rng.random() < 0.02:
        misplaced = ([b"NOACK"], [b"GROUP", b"g1", b"c1"], [b"CLAIM", b"0"], [b"CLAIM", b"x"])
        chunks.append(pick(rng, misplaced if state.new_words else misplaced[:2]))
    return [b"XREAD", *shuffled(rng, chunks), *streams_and_ids(rng, after)]


def xreadgroup(rng: random.Random, state: State) -> list[bytes]:
    def after(key: bytes) -> bytes:
        draw = rng.random()
        if draw < 0.75:
            return b">"
        if draw < 0.87:
            return b"0"
        return an_id(rng, state, key) if draw < 0.98 else b"$" if draw < 0.99 else b"+"

    chunks = [[cased(rng, b"GROUP"), a_group(rng), a_consumer(rng)]]
    chunks += a_count(rng, state, rate=0.6) + a_block(rng) + budgets(rng, state)
    if rng.random() < 0.12:
        chunks.append([cased(rng, b"NOACK")])
    if state.new_words and rng.random() < 0.35:
        chunks.append([cased(rng, b"CLAIM"), an_idle(rng)])
    if rng.random() < 0.02:
        chunks.append(pick(rng, ([b"GROUP", b"g2", b"c2"], [b"NOACK"], [b"BLOCK", b"1"], [b"COUNT", b"1"])))
    return [b"XREADGROUP", *shuffled(rng, chunks), *streams_and_ids(rng, after)]


def xpending(rng: random.Random, state: State) -> list[bytes]:
    key = a_key(rng)
    start = [b"XPENDING", key, a_group(rng)]
    if rng.random() < 0.3:
        return start
    if rng.random() < 0.3:
        start += [cased(rng, b"IDLE"), an_idle(rng)]
    start += [a_bound(rng, state, key, b"-"), a_bound(rng, state, key, b"+"), an_integer(rng, 0, 10)]
    if rng.random() < 0.35:
        start.append(a_consumer(rng))
    return start if rng.random() < 0.97 else [*start, b"surplus"]


def xclaim(rng: random.Random, state: State) -> list[bytes]:
    key = a_key(rng)
    chunks: list[list[bytes]] = []
    if rng.random() < 0.2:
        chunks.append([cased(rng, b"IDLE"), an_integer(rng, 0, 2000, odd=0.15)])
    if rng.random() < 0.2:
        moment = state.now_ms + pick(rng, (-100000, -1000, -5, -1, 0, 1, 100000))
        chunks.append([cased(rng, b"TIME"), b"%d" % moment if rng.random() < 0.8 else an_integer(rng, 0, 9)])
    if rng.random() < 0.2:
        count = an_integer(rng, 0, 9, odd=0.2)
        # Valkey lets the counter wrap around
        chunks.append([cased(rng, b"RETRYCOUNT"), count if state.new_words else count[:9]])
    if rng.random() < 0.25:
        chunks.append([cased(rng, b"FORCE")])
    if rng.random() < 0.25:
        chunks.append([cased(rng, b"JUSTID")])
    if rng.random() < 0.1:
        chunks.append([cased(rng, b"LASTID"), an_id(rng, state, key)])
    group, ids = some_pending(rng, state, key)
    if rng.random() < 0.02:
        ids = []
    start = [b"XCLAIM", key, group, a_consumer(rng), an_idle(rng)]
    return [*start, *ids, *shuffled(rng, chunks)]


def xautoclaim(rng: random.Random, state: State) -> list[bytes]:
    key = a_key(rng)
    chunks: list[list[bytes]] = []
    if rng.random() < 0.6:
        chunks.append([cased(rng, b"COUNT"), an_integer(rng, 1, 80 if state.large else 5, odd=0.1)])
    if rng.random() < 0.3:
        chunks.append([cased(rng, b"JUSTID")])
    start = [b"XAUTOCLAIM", key, a_group(rng), a_consumer(rng), an_idle(rng)]
    return [*start, a_bound(rng, state, key, b"0"), *shuffled(rng, chunks)]


def xsetid(rng: random.Random, state: State) -> list[bytes]:
    key = a_key(rng)
    chunks: list[list[bytes]] = []
    if rng.random() < 0.5:
        chunks.append([cased(rng, b"ENTRIESADDED"), an_integer(rng, 0, 60)])
    if rng.random() < 0.4:
        chunks.append([cased(rng, b"MAXDELETEDID"), without_top(an_id(rng, state, key), state)])
    draw = rng.random()
    if draw < 0.6:
        entry_id = next_id(rng, state, key)
    elif state.edges and draw < 0.7:
        entry_id = pick(rng, (TOP_ID, b"%d" % U64_MAX, b"%d-%d" % (U64_MAX, U64_MAX - 2)))
    else:
        entry_id = without_top(an_id(rng, state, key), state)
    return [b"XSETID", key, entry_id, *shuffled(rng, chunks)]


def without_top(entry_id: bytes, state: State) -> bytes:
    """The id, unless it would exhaust a stream that idempotent adds may go to."""
    return entry_id if state.edges or not entry_id.startswith(b"1844674407370955161") else b"3-3"


def xgroup_create(rng: random.Random, state: State) -> list[bytes]:
    key = a_key(rng)
    draw = rng.random()
    position = b"0" if draw < 0.4 else b"$" if draw < 0.6 else an_id(rng, state, key)
    chunks = [[cased(rng, b"MKSTREAM")]] if rng.random() < 0.6 else []
    return [b"XGROUP", cased(rng, b"CREATE"), key, a_group(rng), position, *entries_read(rng, chunks)]


def xgroup_setid(rng: random.Random, state: State) -> list[bytes]:
    key = a_key(rng)
    draw = rng.random()
    position = b"0" if draw < 0.25 else b"$" if draw < 0.45 else pick(rng, (b"-", b"+"))
    if draw > 0.5:
        position = an_id(rng, state, key)
    return [b"XGROUP", cased(rng, b"SETID"), key, a_group(rng), position, *entries_read(rng, [])]


def entries_read(rng: random.Random, chunks: list[list[bytes]]) -> list[bytes]:
    if rng.random() < 0.3:
        chunks.append([cased(rng, b"ENTRIESREAD"), an_integer(rng, -1, 30, odd=0.1)])
    return shuffled(rng, chunks)


def xgroup_destroy(rng: random.Random, state: State) -> list[bytes]:
    return [b"XGROUP", cased(rng, b"DESTROY"), a_key(rng), a_group(rng)]


def xgroup_createconsumer(rng: random.Random, state: State) -> list[bytes]:
    return [b"XGROUP", cased(rng, b"CREATECONSUMER"), a_key(rng), a_group(rng), a_consumer(rng)]


def xgroup_delconsumer(rng: random.Random, state: State) -> list[bytes]:
    return [b"XGROUP", cased(rng, b"DELCONSUMER"), a_key(rng), a_group(rng), a_consumer(rng)]


def xinfo(rng: random.Random, state: State) -> list[bytes]:
    draw = rng.random()
    if draw < 0.3:
        return [b"XINFO", cased(rng, b"STREAM"), a_key(rng)]
    if draw < 0.65:
        full = [b"XINFO", cased(rng, b"STREAM"), a_key(rng), cased(rng, b"FULL")]
        return full if rng.random() < 0.4 else [*full, cased(rng, b"COUNT"), an_integer(rng, 0, 6)]
    if draw < 0.8:
        return [b"XINFO", cased(rng, b"GROUPS"), a_key(rng)]
    return [b"XINFO", cased(rng, b"CONSUMERS"), a_key(rng), a_group(rng)]


def xcfgset(rng: random.Random, state: State) -> list[bytes]:
    chunks: list[list[bytes]] = []
    if rng.random() < 0.5:
        seconds = an_integer(rng, SAFE_DURATION, SAFE_DURATION + 2, odd=0.15)
        chunks.append([cased(rng, b"IDMP-DURATION"), seconds])
    if rng.random() < 0.7:
        chunks.append([cased(rng, b"IDMP-MAXSIZE"), an_integer(rng, 1, 5, odd=0.15)])
    return [b"XCFGSET", a_key(rng), *shuffled(rng, chunks)]


def xidmprecord(rng: random.Random, state: State) -> list[bytes]:
    producer = pick(rng, PRODUCERS) if rng.random() < 0.95 else b""
    record = b"i%d" % rng.randint(1, 9) if rng.random() < 0.95 else b""
    key = a_key(rng)
    return [b"XIDMPRECORD", key, producer, record, an_id(rng, state, key)]
