"""When entries that look forgotten may be taken over: a table of clock jumps and stalls, in milliseconds."""

from __future__ import annotations

import pytest

from millstream.delivery.config.settings import Settings
from millstream.delivery.server_clock import ServerWatch


def made(lease_ms: int = 30_000) -> ServerWatch:
    watch = ServerWatch.for_leases(lease_ms, lease_ms)
    watch.silence_ms = lease_ms // 3 + watch.tolerance_ms
    watch.look(1_000_000, 0)
    watch.answered(0)
    return watch


def test_a_server_that_answers_regularly_may_be_believed() -> None:
    watch = made()
    for now in range(0, 100_000, 10_000):
        assert watch.may_take_over(now)
        assert not watch.answered(now)


def test_nothing_is_taken_over_in_a_stall_and_for_more_than_a_heartbeat_after_it() -> None:
    watch = made()
    assert not watch.may_take_over(40_000)  # no answer yet
    assert watch.answered(40_000)
    assert not watch.may_take_over(40_000 + 10_000)
    assert not watch.is_paused(40_000)  # the clock itself is right: what is due is due
    watch.answered(50_000)
    assert watch.may_take_over(40_000 + 15_000)


def test_a_jump_of_the_clock_pauses_for_a_lease() -> None:
    watch = made()
    assert watch.look(1_000_000 + 10_000 + 60_000, 10_000)
    assert watch.is_paused(39_999)
    assert not watch.is_paused(40_000)


@pytest.mark.parametrize("lease_s", [2.0, 5.0, 30.0, 300.0])
def test_a_stall_that_goes_unnoticed_cannot_make_a_living_worker_look_dead(lease_s: float) -> None:
    """A renewal is late by the stall: it must come before the lease is over."""
    settings = Settings(lease=lease_s)
    watch = ServerWatch.for_leases(round(lease_s * 1000), round(lease_s * 1000))
    heartbeat_ms = settings.heartbeat_s * 1000
    assert heartbeat_ms + watch.tolerance_ms < lease_s * 1000
    assert watch.respite_ms > heartbeat_ms
