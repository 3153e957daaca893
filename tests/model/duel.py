"""The engine and the model side by side: one command on both, replies compared as bytes, invariants checked.

A program that fails is run again with steps left out until no step can go; what is left is printed.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.engine import invariants
from millstream.engine.commands import execute
from millstream.engine.keys.keyspace import Keyspace, KeyspaceSettings
from millstream.engine.streams.stream import sweep_idempotency
from millstream.server.protocol import resp
from tests.model import programs, wire
from tests.model.naive import NaiveRedis
from tests.support.wire import parse

START_MS = 1_767_225_600_000

SWEEP = [b"(sweep)"]  # no command: what a server does once a second

Step = tuple[int, list[bytes]]  # when, what


@dataclass(frozen=True)
class Setup:
    """The settings of both sides."""

    node_max_entries: int = 100
    node_max_bytes: int = 4096
    protocol: int = 2


class Mismatch(AssertionError):
    """The two sides disagree, or the engine broke one of its invariants."""

    def __init__(self, command: bytes, what: str) -> None:
        super().__init__(what)
        self.command = command


@dataclass
class Duel:
    """A keyspace and a model that have run the same commands."""

    setup: Setup

    def __post_init__(self) -> None:
        setup = self.setup
        self.keyspace = new_keyspace(setup)
        self.world = NaiveRedis(setup.node_max_entries, setup.node_max_bytes, setup.protocol)

    def run(self, argv: list[bytes], now_ms: int) -> None:
        """Run a command on both sides; Mismatch if they differ."""
        if argv == SWEEP:
            self.world.sweep(now_ms)
            sweep_idempotency(self.keyspace.databases[0], now_ms)
            return
        expected = wire.encode(self.world.run(argv, now_ms), self.setup.protocol)
        outcome = execute(self.keyspace, 0, list(argv), now_ms, protocol=self.setup.protocol)
        answered = resp.encode(outcome.reply, self.setup.protocol)
        if answered != expected:
            raise Mismatch(argv[0], f"engine: {parse(answered)}\nmodel:  {parse(expected)}")
        try:
            invariants.check(self.keyspace)
        except AssertionError as broken:
            raise Mismatch(argv[0], f"invariant: {broken}") from broken


def new_keyspace(setup: Setup) -> Keyspace:
    return Keyspace(
        settings=KeyspaceSettings(
            stream_node_max_entries=setup.node_max_entries, stream_node_max_bytes=setup.node_max_bytes
        )
    )


def random_program(seed: int, length: int) -> tuple[Setup, list[Step], Mismatch | None]:
    """A program made while it runs on both sides, and how it failed, if it did."""
    choose = programs.RandomChooser(seed)
    setup = Setup(choose([100, 3, 2, 1, 5, 0]), choose([4096, 4096, 120, 300]), choose([2, 3]))
    duel = Duel(setup)
    now_ms, steps = START_MS, []
    for _ in range(length):
        now_ms += choose([0, 0, 0, 1, 1, 2, 5, 20, 1500, -3] if choose([False] * 9 + [True]) else [0, 1, 1, 2])
        scene = programs.Scene(choose, duel.world, now_ms)
        steps.append((now_ms, SWEEP if scene.rarely(40) else programs.command(scene)))
        try:
            duel.run(steps[-1][1], now_ms)
        except Mismatch as mismatch:
            return setup, steps, mismatch
    return setup, steps, None


def failure_of(setup: Setup, steps: list[Step]) -> Mismatch | None:
    """How a program fails at its last step, if it runs that far."""
    duel = Duel(setup)
    for at, (now_ms, argv) in enumerate(steps):
        try:
            duel.run(argv, now_ms)
        except Mismatch as mismatch:
            return mismatch if at == len(steps) - 1 else None
    return None


def shortest(setup: Setup, steps: list[Step], seen: Mismatch) -> tuple[list[Step], Mismatch]:
    """Leave out what the failure does not need: halves, quarters, …, single steps."""
    best, failure = steps, seen
    size = len(best) // 2
    while size:
        at = 0
        while at + size < len(best):
            candidate = best[:at] + best[at + size :]
            found = failure_of(setup, candidate)
            if found is not None and found.command == seen.command:
                best, failure = candidate, found
            else:
                at += size
        size //= 2
    return best, failure


def report(setup: Setup, steps: list[Step], mismatch: Mismatch) -> str:
    """A failing program as somebody wants to read it."""
    lines = [f"{now_ms - START_MS:+d} ms  {b' '.join(argv)!r}" for now_ms, argv in steps]
    return "\n".join([str(setup), *lines, str(mismatch)])
