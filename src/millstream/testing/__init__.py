"""Test workers without a server and without waiting: see `Sim` and docs/testing-workers.md."""

from millstream.testing.faults import Chances, Fault, Seen
from millstream.testing.fibers import Stuck
from millstream.testing.sim import Happened, Sim

__all__ = ["Chances", "Fault", "Happened", "Seen", "Sim", "Stuck"]
