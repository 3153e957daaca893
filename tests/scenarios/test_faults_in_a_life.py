"""D1, D2, D30 at real places: a whole life of a stream, with a fault at every call of it, and with many at random."""

from __future__ import annotations

import itertools
import random

import pytest

from millstream.testing import Fault
from tests.scenarios.breaking import ENTRIES, RUNS, Breaking, Life, tell
from tests.scenarios.fleet import everywhere
from tests.support.places import Site

FAULTS = (Fault.KILL_BEFORE, Fault.KILL_AFTER, Fault.CUT, Fault.DROP_REPLY)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between tries of one call: the lives take turns, and a pause of one would be a pause of all."""
    monkeypatch.setattr("millstream.client.backend.FIRST_PAUSE_S", 0.0001)


def begin(place: Site, breaking: Breaking, name: str) -> Life:
    breaking.calls = 0  # not those that looked what the server can do
    return Life(breaking, name)


def check(life: Life, name: str) -> None:
    life.breaking.rule = lambda _: None
    account = life.audit()
    assert account.balanced, (name, account)
    assert (account.published, account.done, account.dead, account.pending) == (ENTRIES, ENTRIES, 0, 0), (name, account)
    assert set(life.handled) == set(RUNS), name
    assert life.backend.execute("XLEN", life.next_keys.stream) == 1, name  # published with its acknowledgement


@everywhere
def test_a_fault_at_every_call_of_a_life_loses_nothing_and_repeats_at_most_once(place: Site) -> None:
    """Scenarios D1, D2."""
    calm = begin(place, Breaking(place), "calm")
    tell([calm])
    calls = calm.breaking.calls
    check(calm, "calm")
    assert calm.handled == RUNS
    lives = {}
    for nth, fault in itertools.product(range(1, calls + 1), FAULTS):
        rule = lambda number, nth=nth, fault=fault: fault if number == nth else None  # noqa: E731
        name = f"{fault.name.lower()}-{nth}"
        lives[name] = begin(place, Breaking(place, rule, share=calm.breaking), name)
    tell(list(lives.values()))
    for name, life in lives.items():
        check(life, name)
        if name.startswith(("cut", "drop")):
            assert life.handled == RUNS, name  # a broken connection alone repeats nothing
            assert life.deaths == 1, name  # the one that is part of the story
        assert max(life.handled.values()) <= 2, name


@everywhere
def test_the_account_balances_under_random_faults_at_real_places(place: Site) -> None:
    """Scenario D30."""
    lives, first = {}, Breaking(place)
    for seed in range(10):
        luck = random.Random(seed)
        made = Breaking(place, share=first)
        lives[f"seed-{seed}"] = begin(place, made, f"seed-{seed}")
        made.rule = lambda _, luck=luck: luck.choice(FAULTS) if luck.random() < 0.1 else None  # type: ignore[misc]
    tell(list(lives.values()))
    for name, life in lives.items():
        check(life, name)
    assert sum(life.deaths for life in lives.values()) > len(lives)  # the faults did happen
