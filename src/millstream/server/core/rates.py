"""How many commands and bytes a second: totals that are noted again and again, and what was added since."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, NamedTuple

SAMPLE_S: Final = 0.25
_SAMPLES: Final = 8


class Totals(NamedTuple):
    """What has been counted up to a time."""

    at_s: float
    commands: int
    bytes_in: int
    bytes_out: int


class Rates:
    """The rates of a hub over the last two seconds. Everything is called under its lock."""

    __slots__ = ("_counted", "_samples")

    def __init__(self, counted: Callable[[], tuple[int, int, int]]) -> None:
        """Use `counted`, which returns commands, bytes in and bytes out since the start."""
        self._counted = counted
        self._samples: deque[Totals] = deque(maxlen=_SAMPLES)

    def totals(self) -> Totals:
        """Return what has been counted up to now."""
        return Totals(monotonic(), *self._counted())

    def sample(self) -> None:
        """Note the totals; called every SAMPLE_S."""
        self._samples.append(self.totals())

    def forget(self) -> None:
        """Follow totals that start again at zero."""
        self._samples.clear()

    def per_second(self) -> tuple[float, float, float]:
        """Return commands, bytes in and bytes out a second."""
        now = self.totals()
        if not self._samples:
            return 0.0, 0.0, 0.0
        first = self._samples[0]
        passed_s = max(now.at_s - first.at_s, SAMPLE_S)
        commands, bytes_in, bytes_out = (
            max(0, new - old) / passed_s for new, old in zip(now[1:], first[1:], strict=True)
        )
        return commands, bytes_in, bytes_out
