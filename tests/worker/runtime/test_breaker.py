"""The breaker opens on a flood of dead letters, and only then."""

from __future__ import annotations

from millstream.delivery.config.settings import Breaker
from millstream.worker.runtime.breaker import FloodBreaker

RULE = Breaker(share=0.5, least=10, window=60, pause=30)


def settle(breaker: FloodBreaker, dead: int, done: int, now_ms: int = 0) -> bool:
    opened = [breaker.record(is_dead, now_ms) for is_dead in [False] * done + [True] * dead]
    return any(opened)


def test_it_opens_when_more_than_the_share_is_dead() -> None:
    breaker = FloodBreaker(RULE)
    assert settle(breaker, dead=6, done=4)
    assert breaker.wait_ms(0) == 30_000
    assert breaker.wait_ms(29_999) == 1
    assert breaker.wait_ms(30_000) == 0


def test_it_stays_shut_at_the_share_and_below_the_least_number() -> None:
    assert not settle(FloodBreaker(RULE), dead=5, done=5)
    assert not settle(FloodBreaker(RULE), dead=9, done=0)


def test_what_left_the_window_no_longer_counts() -> None:
    breaker = FloodBreaker(RULE)
    assert not settle(breaker, dead=9, done=0, now_ms=0)
    assert not settle(breaker, dead=1, done=0, now_ms=60_001)


def test_after_the_pause_it_judges_anew() -> None:
    breaker = FloodBreaker(RULE)
    assert settle(breaker, dead=10, done=0)
    assert not settle(breaker, dead=5, done=5, now_ms=31_000)
    assert breaker.wait_ms(31_000) == 0


def test_without_a_rule_it_never_opens() -> None:
    assert not settle(FloodBreaker(None), dead=1000, done=0)
