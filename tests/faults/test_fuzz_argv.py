"""Any argv gets a Redis-style error or a reply, never an exception, and an error has changed nothing.

MILLSTREAM_FUZZ sets how many argv are tried (50,000 here; `make fuzz` tries a million).
"""

from __future__ import annotations

import os
import random

from millstream.engine import invariants
from millstream.engine.commands import TABLE, execute
from millstream.engine.keys.keyspace import Keyspace
from millstream.engine.outcome import Wait
from millstream.errors import CommandError
from millstream.server.protocol.resp import encode
from tests.support.snapshot import snapshot

COUNT = int(os.environ.get("MILLSTREAM_FUZZ", "50000"))
KEYS = [b"a", b"b", b"c", b"str", b"", b"\xff\x00"]
TOP = b"18446744073709551615-18446744073709551615"
IDS = [b"1-0", b"2-1", b"3", b"*", b"5-*", b"-", b"+", b"$", b">", b"(1", b"0", TOP]
NUMBERS = [b"0", b"1", b"-1", b"7", b"%d" % (2**63 - 1), b"%d" % 2**63, b"%d" % -(2**63), b"1.5", b"nan"]
WORDS = sorted({word.encode() for row in TABLE.values() for word in row.syntax.upper().replace("|", " ").split()})
WORDS += [w.strip(b"[]<>().") for w in WORDS] + [b"IDS", b"STREAMS", b"GROUP", b"~", b"=", b"g", b"h", b"c1", b"c2"]
NAMES = [*TABLE, *(b"%b %b" % (name, sub) for name, row in TABLE.items() for sub in row.subcommands)]
STREAM_NAMES = [name for name in NAMES if name.startswith(b"x")]


def random_word(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.25:
        return rng.choice(KEYS)
    if kind < 0.45:
        return rng.choice(IDS)
    if kind < 0.6:
        return rng.choice(NUMBERS)
    if kind < 0.9:
        return rng.choice(WORDS)
    return rng.randbytes(rng.choice([0, 1, 3, 20, 200]))


def random_argv(rng: random.Random, recent: list[list[bytes]]) -> list[bytes]:
    """A call of a known command with random words, a call that worked with one word changed, or plain noise."""
    kind = rng.random()
    if kind < 0.05 or (kind < 0.45 and not recent):
        return [rng.randbytes(rng.randrange(12)) for _ in range(rng.randrange(1, 8))]
    if kind < 0.45:
        argv = list(rng.choice(recent))
        at = rng.randrange(len(argv))
        change = rng.randrange(3)
        if change == 0 and at:
            argv[at] = random_word(rng)
        elif change == 1:
            argv.insert(at + 1, random_word(rng))
        elif len(argv) > 1:
            del argv[max(at, 1)]
        return argv
    name = rng.choice(STREAM_NAMES if rng.random() < 0.7 else NAMES)
    return [*name.split(b" "), *(random_word(rng) for _ in range(rng.randrange(9)))]


def test_no_argv_raises_and_an_error_changes_nothing() -> None:
    seed = int(os.environ.get("MILLSTREAM_SEED", str(random.randrange(2**32))))
    print(f"MILLSTREAM_SEED={seed}")
    rng = random.Random(seed)
    keyspace, now_ms = Keyspace(), 1_767_225_600_000
    recent: list[list[bytes]] = []
    errors = 0
    for index in range(COUNT):
        now_ms += rng.randrange(3)
        if index % 2000 == 0:
            keyspace = Keyspace()
            for argv in SEEDS:
                assert not isinstance(execute(keyspace, 0, argv, now_ms).reply, CommandError), argv
            recent = list(SEEDS)
        argv = random_argv(rng, recent)
        before = snapshot(keyspace) if index % 3 == 0 else None
        try:
            outcome = execute(keyspace, 0, list(argv), now_ms, may_block=rng.random() < 0.5)
            if not isinstance(outcome.reply, Wait):
                encode(outcome.reply, rng.choice([2, 3]))
        except Exception as error:
            raise AssertionError(f"seed {seed}, argv {argv}") from error
        if isinstance(outcome.reply, CommandError):
            errors += 1
            assert outcome.reply.wire
            assert b"\n" not in outcome.reply.wire
            expired = any(event.name == b"expired" for event in outcome.events)
            assert before is None or expired or snapshot(keyspace) == before, f"seed {seed}: {argv} changed something"
            assert expired or (outcome.log, outcome.touched, outcome.ready, outcome.dirty) == ([], [], [], 0), argv
        elif rng.random() < 0.2:
            recent.append(argv)
        if index % 50 == 0:
            invariants.check(keyspace)
    assert COUNT * 0.2 < errors < COUNT * 0.99


SEEDS = [
    [b"XADD", b"a", b"1-0", b"f", b"v"],
    [b"XADD", b"a", b"2-1", b"f", b"v", b"g", b"7"],
    [b"XADD", b"a", b"MAXLEN", b"~", b"100", b"LIMIT", b"10", b"*", b"f", b"v"],
    [b"XADD", b"b", b"IDMP", b"p", b"i", b"*", b"f", b"v"],
    [b"XGROUP", b"CREATE", b"a", b"g", b"0"],
    [b"XGROUP", b"CREATE", b"b", b"g", b"0", b"MKSTREAM", b"ENTRIESREAD", b"1"],
    [b"XREADGROUP", b"GROUP", b"g", b"c1", b"COUNT", b"1", b"STREAMS", b"a", b"b", b">", b">"],
    [b"XREADGROUP", b"GROUP", b"g", b"c2", b"CLAIM", b"0", b"MAXSIZE", b"90", b"STREAMS", b"a", b">"],
    [b"XNACK", b"a", b"g", b"FAIL", b"IDS", b"1", b"1-0", b"RETRYCOUNT", b"3", b"FORCE"],
    [b"XCLAIM", b"a", b"g", b"c1", b"0", b"1-0", b"IDLE", b"5", b"FORCE", b"JUSTID", b"LASTID", b"1-0"],
    [b"XAUTOCLAIM", b"a", b"g", b"c1", b"0", b"0", b"COUNT", b"3"],
    [b"XPENDING", b"a", b"g", b"IDLE", b"1", b"-", b"+", b"10", b"c1"],
    [b"XDELEX", b"a", b"ACKED", b"IDS", b"1", b"1-0"],
    [b"XACKDEL", b"a", b"g", b"DELREF", b"IDS", b"1", b"9-9"],
    [b"XTRIM", b"a", b"MINID", b"~", b"1-0", b"LIMIT", b"10", b"ACKED"],
    [b"XCFGSET", b"a", b"IDMP-DURATION", b"100", b"IDMP-MAXSIZE", b"5"],
    [b"XSETID", b"b", b"18446744073709551615-1", b"ENTRIESADDED", b"9", b"MAXDELETEDID", b"0-0"],
    [b"XREAD", b"COUNT", b"2", b"BLOCK", b"5", b"STREAMS", b"a", b"0"],
    [b"SET", b"str", b"v", b"PX", b"5000", b"GET"],
    [b"XINFO", b"STREAM", b"a", b"FULL", b"COUNT", b"2"],
]
