"""SLOWLOG and LATENCY."""

from __future__ import annotations

import pytest

from millstream.server.config.settings import Config
from millstream.server.features.slowlog import Peaks, Watchman
from tests.server.support import Peer, World


@pytest.fixture
def peer(world: World) -> Peer:
    peer = world.peer()
    peer("CONFIG SET slowlog-log-slower-than 0")
    peer("SLOWLOG RESET")
    return peer


def logged(world: World) -> list[list[bytes]]:
    return [entry.argv for entry in world.hub.watchman.entries]


def test_a_quick_command_is_not_noted(world: World) -> None:
    peer = world.peer()
    peer("CONFIG SET slowlog-log-slower-than 60000000")
    peer("SET k v")
    assert peer("SLOWLOG LEN") == b":0\r\n"


def test_a_slow_command_is_noted_with_who_sent_it(world: World, peer: Peer) -> None:
    peer("CLIENT SETNAME me")
    peer("SET k v")
    entry = world.hub.watchman.entries[0]
    assert (entry.argv, entry.name, entry.address) == ([b"SET", b"k", b"v"], b"me", peer.session.address)
    assert (entry.at_s, entry.words) == (world.clock.now_ms() // 1000, 3)
    assert peer("SLOWLOG GET 1").startswith(b"*1\r\n*7\r\n:%d\r\n" % entry.number)


def test_the_commands_of_workers_are_noted_one_by_one(world: World, peer: Peer) -> None:
    peer("XADD s 1-1 f v")
    peer("SLOWLOG RESET")
    for _ in range(3):
        peer("XADD s * f v")
    assert [argv[0] for argv in logged(world)] == [b"XADD"] * 3 + [b"SLOWLOG"]


def test_long_commands_are_cut(world: World, peer: Peer) -> None:
    peer(["RPUSH", "l", *map(str, range(40))])
    peer(["SET", "k", "A" * 130])
    long, many = logged(world)[:2]
    assert long == [b"SET", b"k", b"A" * 128 + b"... (2 more bytes)"]
    assert (len(many), many[-2:]) == (32, [b"28", b"... (11 more arguments)"])


@pytest.mark.parametrize(
    ("request_", "shown"),
    [
        ("AUTH default secret", [b"AUTH", b"(redacted)", b"(redacted)"]),
        ("CONFIG SET requirepass secret", [b"CONFIG", b"SET", b"requirepass", b"(redacted)"]),
        ("ACL SETUSER u >secret", [b"ACL", b"SETUSER", b"(redacted)", b"(redacted)"]),
        ("HELLO 2 AUTH default secret", [b"HELLO", b"2", b"AUTH", b"(redacted)", b"(redacted)"]),
    ],
)
def test_secrets_are_hidden(world: World, peer: Peer, request_: str, shown: list[bytes]) -> None:
    peer(request_)
    assert logged(world)[0] == shown


def test_a_transaction_is_noted_by_its_commands(world: World, peer: Peer) -> None:
    for request in ("MULTI", "SET k v", "EXEC"):
        peer(request)
    assert logged(world)[0] == [b"SET", b"k", b"v"]
    assert [b"EXEC"] not in logged(world)


def test_a_command_that_waits_is_noted_when_it_ends(world: World, peer: Peer) -> None:
    waiting = world.peer()
    waiting("BLPOP l 0")
    assert [b"BLPOP", b"l", b"0"] not in logged(world)
    peer("LPUSH l x")
    assert [b"BLPOP", b"l", b"0"] in logged(world)


def test_the_log_keeps_only_the_latest(world: World, peer: Peer) -> None:
    peer("CONFIG SET slowlog-max-len 2")
    for number in range(5):
        peer(f"SET k {number}")
    assert logged(world) == [[b"SET", b"k", b"4"], [b"SET", b"k", b"3"]]
    numbers = [entry.number for entry in world.hub.watchman.entries]
    assert numbers[0] == numbers[1] + 1


def test_what_was_slow_is_counted(world: World, peer: Peer) -> None:
    peer("CONFIG RESETSTAT")
    peer("SET k v")
    peer("CONFIG SET slowlog-log-slower-than -1")
    peer("SET k v")
    stats = peer("INFO stats commandstats")
    assert b"slowlog_commands_count:2\r\n" in stats  # with CONFIG RESETSTAT, which counts behind itself
    (line,) = [line for line in stats.split(b"\r\n") if line.startswith(b"cmdstat_set:")]
    assert b"calls=2," in line
    assert b",slowlog_count=1,slowlog_time_ms_sum=" in line


def test_nothing_is_timed_one_by_one_for_a_threshold_that_few_reach(world: World) -> None:
    assert not world.hub.is_told
    world.peer()("CONFIG SET slowlog-log-slower-than 5")
    assert world.hub.is_told
    world.peer()("CONFIG SET slowlog-log-slower-than 10000")
    assert not world.hub.is_told


def test_the_worst_of_each_second_is_kept() -> None:
    peaks = Peaks()
    for at_s, ms in ((1, 5), (1, 9), (1, 7), (2, 3)):
        peaks.add(at_s, ms)
    assert (list(peaks.samples), peaks.highest) == ([(1, 9), (2, 3)], 9)


def test_peaks_are_kept_by_kind_and_can_be_forgotten(world: World) -> None:
    peer = world.peer()
    watchman = world.hub.watchman
    peer("CONFIG SET latency-monitor-threshold 5")
    from millstream.server.commands import find

    for request, ms in ((["GET", "k"], 7), (["KEYS", "*"], 20), (["KEYS", "*"], 4)):
        argv = [word.encode() for word in request]
        watchman.note(peer.session, find(argv), argv, ms * 10**6, world.clock.now_ms(), world.hub.stats)
    seconds = world.clock.now_ms() // 1000
    assert peer("LATENCY LATEST") == (
        b"*2\r\n*4\r\n$12\r\nfast-command\r\n:%d\r\n:7\r\n:7\r\n*4\r\n$7\r\ncommand\r\n:%d\r\n:20\r\n:20\r\n"
        % (seconds, seconds)
    )
    assert peer("LATENCY HISTORY command") == b"*1\r\n*2\r\n:%d\r\n:20\r\n" % seconds
    assert b"command - high 20 ms, low 20 ms (all time high 20 ms)" in peer("LATENCY GRAPH command")
    assert b"command: 1 latency spikes" in peer("LATENCY DOCTOR")
    assert peer("LATENCY RESET command nope") == b":1\r\n"
    assert peer("LATENCY RESET") == b":1\r\n"
    assert peer("LATENCY LATEST") == b"*0\r\n"


def test_a_histogram_counts_every_call(world: World) -> None:
    peer = world.peer()
    for _ in range(3):
        peer("SET k v")
    peer("XADD s 1-1 f v")
    peer("XADD s * f v")  # by the short way, whose commands are timed together
    reply = peer("LATENCY HISTOGRAM set xadd nope")
    assert reply.startswith(b"*4\r\n$3\r\nset\r\n*4\r\n$5\r\ncalls\r\n:3\r\n$14\r\nhistogram_usec\r\n")
    assert b"$4\r\nxadd\r\n*4\r\n$5\r\ncalls\r\n:2\r\n" in reply
    assert reply.endswith(b":2\r\n")
    assert b"latency_percentiles_usec_set:p50=" in peer("INFO latencystats")


def test_the_threshold_is_one_number() -> None:
    watchman = Watchman(Config({"slowlog-log-slower-than": "-1"}))
    assert watchman.from_ns == float("inf")
    watchman = Watchman(Config({"slowlog-log-slower-than": "2000", "latency-monitor-threshold": "1"}))
    assert watchman.from_ns == 1_000_000
