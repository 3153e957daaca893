"""Makes a failing program short: runs it again with parts left out, and keeps what fails in the same way.

Time does not stand still between two runs. Commands that ran in one millisecond are therefore put into one
transaction, the others as many milliseconds apart as they were; ids that the clock made are replaced by those
which the new run made, and absolute times are moved along. What fails does so nearly always again; if not, the
program stays as long as it was.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import replace

from tests.differential.duel import Duel, EngineSide, Mismatch
from tests.differential.program import Settings, Step
from tests.support.wire import Wire

BUDGET_S = 20.0
TRIES = 3
LONGEST_WAIT_MS = 50
MOMENT = re.compile(rb"1\d{12}")  # a Unix time in milliseconds


def shortest(duel: Duel, settings: Settings, steps: list[Step], seen: Mismatch) -> tuple[list[Step], Mismatch]:
    """The shortest program found that fails as `seen` does, and how it fails."""
    deadline = time.monotonic() + BUDGET_S
    best, failure = steps, seen
    for _ in range(TRIES):
        found = again(duel, settings, steps, seen)
        if found is not None:
            best, failure = steps[: found.at + 1], found
            break
    else:
        return steps, seen
    size = max(1, len(best) // 2)
    while size:
        at = 0
        while at < len(best) and time.monotonic() < deadline:
            candidate = best[:at] + best[at + size :]
            found = again(duel, settings, candidate, seen) if candidate else None
            if found is None:
                at += size
            else:
                best, failure = candidate[: found.at + 1], found
        size //= 2
    return at_their_moments(best), failure


def again(duel: Duel, settings: Settings, steps: list[Step], seen: Mismatch) -> Mismatch | None:
    """Run steps once more; how they fail, if they do so in the same command."""
    try:
        replay(duel, settings, at_their_moments(steps))
    except Mismatch as mismatch:
        same = mismatch.argv[0].upper() == seen.argv[0].upper() and mismatch.why[:9] == seen.why[:9]
        return mismatch if same else None
    return None


def at_their_moments(steps: list[Step]) -> list[Step]:
    """The steps, those of one millisecond joined, the others apart."""
    timed: list[Step] = []
    last_ms = 0
    for step in steps:
        now_ms = step.now_ms or last_ms  # a refused command saw no time
        gap_ms = min(now_ms - last_ms, LONGEST_WAIT_MS) if last_ms else 0
        timed.append(replace(step, joined=bool(last_ms) and gap_ms <= 0, pause_ms=max(0, gap_ms)))
        last_ms = now_ms
    return timed


def replay(duel: Duel, settings: Settings, steps: list[Step]) -> None:
    """Run steps one moment after the other, with the ids and times of this run."""
    wire, side = duel.prepare(settings)
    with contextlib.closing(side):
        _replay(duel, wire, side, steps)


def _replay(duel: Duel, wire: Wire, side: EngineSide, steps: list[Step]) -> None:
    renamed: dict[bytes, bytes] = {}
    now_ms = done = 0
    for group in (group.steps for group in duel.batch(steps).groups):
        _wait_until(now_ms + max(step.pause_ms for step in group))
        moved = [replace(step, argv=_moved(step, renamed, now_ms), made=None) for step in group]
        batch = duel.batch(moved)
        try:
            now_ms = duel.check(batch, wire.exchange(batch.packet), side, None) or now_ms
        except Mismatch as mismatch:
            mismatch.at += done
            raise
        for old, new in zip(group, moved, strict=True):
            if old.made and new.made:
                renamed[old.made] = new.made
        done += len(group)
    duel.check_invariants(side, now_ms, done)


def _wait_until(moment_ms: int) -> None:
    """Wait for a moment of the wall clock, which is the server's too."""
    while (left := moment_ms / 1000 - time.time()) > 0:
        time.sleep(min(left, LONGEST_WAIT_MS / 1000))


def _moved(step: Step, renamed: dict[bytes, bytes], now_ms: int) -> list[bytes]:
    """A command with this run's ids and times."""
    words = [renamed.get(word, word) for word in step.argv]
    words = [b"(" + renamed[word[1:]] if word[1:] in renamed and word[:1] == b"(" else word for word in words]
    if step.argv[0].upper() == b"XCLAIM" and now_ms and step.now_ms:
        words = [b"%d" % (int(w) + now_ms - step.now_ms) if MOMENT.fullmatch(w) else w for w in words]
    return words
