"""The naive model against a real Redis 8.10, byte by byte: what the engine is compared with is itself compared.

Each command runs in a transaction behind an XADD whose id tells the time that is frozen for both:

    MULTI · XADD clock MAXLEN 1 * a b · <command> · EXEC  ──▶  [ "<now>-<seq>", <reply> ]
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

import pytest

from tests.model import programs, wire
from tests.model.naive import NaiveRedis
from tests.support.servers import RealServer
from tests.support.wire import Wire, end_of, pack, parse

COMMANDS_A_PROGRAM = 125
PROGRAMS = int(os.environ.get("MILLSTREAM_PROGRAMS", "16"))

# (entries, bytes) a node: small nodes make approximate trimming and tombstones matter
NODES = [(100, 4096), (3, 4096), (2, 120), (0, 300), (1, 4096), (5, 300)]

# How often the trie behind a stream was cut short depends on its history, not on what it holds.
TREE_NODES = re.compile(rb"(radix-tree-nodes\r\n):\d+")


@pytest.fixture
def server(redis_server: RealServer) -> Iterator[RealServer]:
    """The real server, empty before and with its own settings after."""
    try:
        yield redis_server
    finally:
        with redis_server.connect() as connection:
            configure(connection, 100, 4096)


def configure(connection: Wire, node_max_entries: int, node_max_bytes: int) -> None:
    connection.ask(b"FLUSHALL")
    connection.ask(
        b"CONFIG",
        b"SET",
        b"stream-node-max-entries",
        b"%d" % node_max_entries,
        b"stream-node-max-bytes",
        b"%d" % node_max_bytes,
    )


def ask_frozen(connection: Wire, argv: list[bytes]) -> tuple[int, bytes]:
    """The time at which the server ran a command, and its reply."""
    clock = [b"XADD", b"clock", b"MAXLEN", b"1", b"*", b"a", b"b"]
    raw = connection.exchange(b"".join(pack(words) for words in ([b"MULTI"], clock, argv, [b"EXEC"])))
    queued = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n"
    assert raw.startswith(queued), raw
    at = end_of(raw, len(queued))
    return int(raw[len(queued) : at].split(b"\r\n")[1].split(b"-")[0]), raw[at:]


@pytest.mark.differential
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_the_model_answers_as_redis_does(server: RealServer, seed: int) -> None:
    protocol = 2 + seed % 2
    node_max_entries, node_max_bytes = NODES[seed % len(NODES)]
    world = NaiveRedis(node_max_entries, node_max_bytes, protocol)
    choose = programs.RandomChooser(seed)
    ran: list[bytes] = []
    with server.connect(protocol) as connection:
        configure(connection, node_max_entries, node_max_bytes)
        for _ in range(COMMANDS_A_PROGRAM):
            argv = programs.command(programs.Scene(choose, world, time.time_ns() // 1_000_000, real_clock=True))
            now_ms, answered = ask_frozen(connection, argv)
            expected = wire.encode(world.run(argv, now_ms), protocol)
            ran.append(b"%d %s" % (now_ms, b" ".join(argv)))
            if TREE_NODES.sub(rb"\1", answered) != TREE_NODES.sub(rb"\1", expected):
                steps = "\n".join(repr(line) for line in ran)
                pytest.fail(f"{steps}\nredis: {parse(answered)}\nmodel: {parse(expected)}")
