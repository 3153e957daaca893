"""The harness itself: a wrong engine must be found, and the program that shows it made short."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from millstream.engine.outcome import Outcome
from tests.differential import differences, duel
from tests.differential.program import random_program
from tests.differential.run import Result, campaign, one
from tests.differential.shrink import replay
from tests.support.servers import RealServer
from tests.support.wire import end_of, pack, parse, split

pytestmark = pytest.mark.differential


class Forgetful(duel.EngineSide):
    """An engine that does not count what XACK removes."""

    def outcome(self, argv: list[bytes], now_ms: int) -> Outcome:
        made = super().outcome(argv, now_ms)
        if argv[0].upper() == b"XACK" and isinstance(made.reply, int):
            made.reply = 0
        return made


class Slow(duel.EngineSide):
    """An engine whose clock is a millisecond behind."""

    def outcome(self, argv: list[bytes], now_ms: int) -> Outcome:
        return super().outcome(argv, now_ms - 1)


class Broken(duel.EngineSide):
    """An engine that raises."""

    def outcome(self, argv: list[bytes], now_ms: int) -> Outcome:
        if argv[0].upper() == b"XNACK":
            raise duel.Mismatch(argv, b"", b"", "Traceback: it raised", now_ms)
        return super().outcome(argv, now_ms)


@contextlib.contextmanager
def against(server: RealServer, side: type[duel.EngineSide]) -> Iterator[duel.Duel]:
    with contextlib.closing(duel.Duel(server, differences.REDIS, side)) as made:
        yield made


@pytest.mark.parametrize(("side", "longest"), [(Forgetful, 6), (Slow, 6), (Broken, 1)])
def test_a_wrong_engine_is_found_and_the_program_made_short(
    redis_server: RealServer, side: type[duel.EngineSide], longest: int
) -> None:
    with against(redis_server, side) as wrong:
        result = Result()
        for seed in range(1, 40):
            one(wrong, random_program(seed), result)
            if result.failures:
                break
    (report,) = list(result.failures.values())[:1]
    commands = [line for line in report.splitlines() if line.startswith(("    ", "  +"))]
    assert 1 <= len(commands) <= longest, report


def test_a_program_runs_the_same_way_again(redis_server: RealServer) -> None:
    with contextlib.closing(duel.Duel(redis_server, differences.REDIS)) as fair:
        program = random_program(7)
        fair.run(program)
        replay(fair, program.settings, program.sent)


def test_a_campaign_goes_on_until_it_has_compared_enough(redis_server: RealServer) -> None:
    result = campaign(redis_server, 300, seed=11)
    assert result.commands >= 300
    assert result.compared > result.commands


def test_the_servers_own_table_says_what_it_refuses_to_queue(redis_server: RealServer) -> None:
    with redis_server.connect(2) as wire:
        table = duel.Commands(wire)
    for refused in ([b"XNOPE"], [b"xlen"], [b"XLEN", b"a", b"b"], [b"XGROUP"], [b"XGROUP", b"NOPE"]):
        assert table.refuses(refused)
    for queued in ([b"xlen", b"s"], [b"XGROUP", b"destroy", b"s", b"g"], [b"XADD", b"s", b"*", b"a", b"b"]):
        assert not table.refuses(queued)


REPLIES = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":-5\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"$4\r\na\r\nb\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n",
    b"%1\r\n$1\r\nk\r\n*2\r\n:1\r\n_\r\n",
    b"~1\r\n:1\r\n",
    b"_\r\n",
    b",1.5\r\n",
    b"=7\r\ntxt:abc\r\n",
    b">2\r\n+a\r\n:1\r\n",
]


@pytest.mark.parametrize("reply", REPLIES)
def test_a_reply_ends_where_it_ends(reply: bytes) -> None:
    assert end_of(reply + b":9\r\n") == len(reply)
    parse(reply)
    for cut in range(len(reply)):
        with pytest.raises(ValueError, match=r".+"):
            end_of(reply[:cut])


def test_replies_are_split_one_by_one() -> None:
    assert split(b"".join(REPLIES)) == REPLIES
    assert pack([b"GET", b""]) == b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n"
