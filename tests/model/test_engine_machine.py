"""The engine against the naive model: hypothesis draws commands, and seeded programs run many of them fast.

Both run every command on both sides, compare the replies as bytes and check the engine's invariants after each
step. The machine shrinks what fails by itself; a seeded program is shortened by `duel.shortest`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.model import programs
from tests.model.duel import START_MS, SWEEP, Duel, Setup, random_program, report, shortest
from tests.model.programs import Argv, Scene

T = TypeVar("T")

# A part; tests/long/test_examples.py runs 400 and 300.
EXAMPLES = int(os.environ.get("MILLSTREAM_EXAMPLES", "100"))
STEPS = 50
PROGRAMS = int(os.environ.get("MILLSTREAM_PROGRAMS", "150"))


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    return Setup(
        draw(st.sampled_from([100, 3, 2, 1, 5, 0])),
        draw(st.sampled_from([4096, 120, 300])),
        draw(st.sampled_from([2, 3])),
    )


@st.composite
def commands(draw: st.DrawFn, make: Callable[[Scene], Argv]) -> Argv:
    """A command for the state the machine is in."""

    def choose(options: Sequence[T]) -> T:
        return draw(st.sampled_from(options))

    machine: EngineMachine = draw(st.runner())
    return make(Scene(choose, machine.duel.world, machine.now_ms))


class EngineMachine(RuleBasedStateMachine):
    """Runs what it is given on the engine and on the model; each command of `programs` is a rule (see below)."""

    def __init__(self) -> None:
        super().__init__()
        self.duel = Duel(Setup())
        self.now_ms = START_MS

    @initialize(setup=setups(), entries=st.integers(0, 8), read=st.integers(0, 8))
    def begin(self, setup: Setup, entries: int, read: int) -> None:
        """Two groups, some entries, some of them read: without these most commands have nothing to do."""
        self.duel = Duel(setup)
        lines = [b"XGROUP CREATE s g 0 MKSTREAM", b"XGROUP CREATE s h $"]
        lines += [b"XADD s * f v"] * entries
        lines += [b"XREADGROUP GROUP g a COUNT 1 STREAMS s >"] * min(read, entries)
        for line in lines:
            self.duel.run(line.split(), self.now_ms)

    @rule(ms=st.sampled_from([1, 2, 5, 20, 1500, 120_000]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @precondition(lambda self: any(stream.producers for stream in self.duel.world.streams()))
    @rule()
    def sweep(self) -> None:
        self.duel.run(SWEEP, self.now_ms)

    @rule(ms=st.sampled_from([0, 0, 0, 1, 7]))
    def clock_steps_back(self, ms: int) -> None:
        self.now_ms -= ms


def add_rules(machine: type[EngineMachine], make: Callable[[Scene], Argv], weight: int) -> None:
    """Make rules of a command; hypothesis picks among rules alike, so a frequent command becomes several."""

    for number in range(1 + weight // 8):

        def step(self: EngineMachine, argv: Argv) -> None:
            self.duel.run(argv, self.now_ms)

        step.__name__ = make.__name__ + "_again" * number
        setattr(machine, step.__name__, rule(argv=commands(make))(step))


for _make, _weight in programs.WEIGHTS.items():
    add_rules(EngineMachine, _make, _weight)

TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_a_random_program_answers_as_the_model_does(seed: int) -> None:
    setup, steps, mismatch = random_program(seed, 150)
    if mismatch is not None:
        pytest.fail(report(setup, *shortest(setup, steps, mismatch)), pytrace=False)
