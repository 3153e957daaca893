"""Whatever is sent, a connection answers or closes; nothing goes wrong inside."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.server.commands import TABLE
from tests.server.support import World

NAMES = sorted(TABLE)
WORDS = st.one_of(
    st.sampled_from(
        [
            b"a",
            b"b",
            b"s",
            b"g",
            b"0",
            b"1",
            b"-1",
            b"",
            b"*",
            b"$",
            b"+",
            b"-",
            b">",
            b"5-5",
            b"GET",
            b"NX",
            b"BLOCK",
            b"STREAMS",
            b"COUNT",
            b"GROUP",
            b"ON",
            b"OFF",
            b"YES",
            b"x" * 70,
            b"9223372036854775807",
            b"1.5",
            b"KEA",
            b"AUTH",
            b"SETNAME",
            b"FILTERBY",
            b"PATTERN",
            b"TYPE",
            b"ID",
            b"HELP",
            b"\r\n",
            b"\xff\x00",
        ]
    ),
    st.sampled_from(sorted({sub for row in TABLE.values() for sub in row.subcommands})),
    st.binary(max_size=6),
)
REQUESTS = st.tuples(st.sampled_from(NAMES), st.lists(WORDS, max_size=6)).map(lambda pair: [pair[0], *pair[1]])
LEFT_OUT = {b"quit", b"monitor", b"debug"}  # the end; endless; waits


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), REQUESTS), max_size=40))
def test_any_words_are_answered(steps: list[tuple[int, list[bytes]]]) -> None:
    world = World()
    peers = [world.peer(2), world.peer(3), world.peer(2)]
    for who, request in steps:
        if request[0] in LEFT_OUT:
            continue
        peer = peers[who]
        peer(list(request))
        if peer.is_cut_off:
            peers[who] = world.peer()
    world.pass_ms(10_000)
    assert all(b"internal error" not in peer.read() for peer in peers)
    counted = world.hub.stats.by_command.values()
    assert sum(one.failed for one in counted) <= world.hub.stats.errors


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=20))
def test_any_bytes_are_answered_or_end_the_connection(chunks: list[bytes]) -> None:
    peer = World().peer()
    for chunk in chunks:
        assert b"internal error" not in peer.raw(chunk)
