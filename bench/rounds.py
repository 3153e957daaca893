"""Measuring two things against each other on a machine that others use too.

Peers take turns in short rounds, so that both meet the same weather; a round in which other processes took
noticeable CPU time is left out; what counts is the median of the rounds' ratios. Nothing here knows what is measured.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

FOREIGN_LIMIT = 0.06  # share of the machine that others may take in a round
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Comparison:
    """Seconds per operation of ours and of a peer, round by round, and the ratio that is promised."""

    name: str
    peer: str
    at_least: float
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [theirs / ours for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def holds(self) -> bool:
        return self.median >= self.at_least

    def row(self) -> str:
        low, high = min(self.ratios), max(self.ratios)
        verdict = "ok" if self.holds else "BELOW"
        return (
            f"{self.name:<34} {self.peer:<32} {statistics.median(self.ours) * 1e6:>10.2f} "
            f"{statistics.median(self.theirs) * 1e6:>10.2f} {self.median:>8.1f} {low:>7.1f} {high:>7.1f} "
            f"{self.at_least:>7.1f}  {verdict}"
        )


HEADER = (
    f"{'what':<34} {'against':<32} {'ours us':>10} {'theirs us':>10} {'median x':>8} {'min':>7} {'max':>7} "
    f"{'wanted':>7}"
)


def timed(operations: int, run: Callable[[], None]) -> float:
    """Return seconds per operation; the garbage collector runs as it does for a user."""
    gc.collect()
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) / operations


class Weather:
    """How much CPU time others take between two looks."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._before = self._read()

    def _read(self) -> tuple[float, float, float]:
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        total = sum(fields)
        idle = fields[3] + fields[4]
        own = sum(os.times()[:4]) * _TICKS
        for pid in self._pids:
            words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            own += int(words[11]) + int(words[12])
        return total, idle, own

    def foreign(self) -> float:
        """The share of the machine that others had since the last look."""
        before, self._before = self._before, self._read()
        total, idle, own = (now - then for now, then in zip(self._before, before, strict=True))
        return max(0.0, (total - idle - own) / total) if total else 0.0


def compare(
    rounds: int,
    measure: Callable[[], dict[str, tuple[float, float]]],
    comparisons: list[Comparison],
    pids: list[int],
    *,
    deadline_s: float = math.inf,
) -> tuple[int, int]:
    """Run `measure` until enough quiet rounds are in (or thrice as many in all); how many counted, how many not.

    Past the deadline (of time.monotonic) it is run once and no more.
    `measure` gives seconds of ours and theirs by the comparison's name and peer.
    """
    weather = Weather(pids)
    kept = dropped = 0
    spare: list[dict[str, tuple[float, float]]] = []
    while kept < rounds and kept + dropped < 3 * rounds:
        if kept + dropped and time.monotonic() > deadline_s:
            break
        found = measure()
        if weather.foreign() > FOREIGN_LIMIT:
            dropped += 1
            spare.append(found)
            continue
        kept += 1
        _note(found, comparisons)
    if kept == 0:  # never quiet: say so, and use what there is
        print("no quiet round: all rounds counted")
        for found in spare:
            _note(found, comparisons)
    return kept, dropped


def _note(found: dict[str, tuple[float, float]], comparisons: list[Comparison]) -> None:
    for comparison in comparisons:
        ours, theirs = found[f"{comparison.name}/{comparison.peer}"]
        comparison.ours.append(ours)
        comparison.theirs.append(theirs)
