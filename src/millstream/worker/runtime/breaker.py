"""Stops reading when dead letters come in a flood: what fails everything is seldom the entries' own fault."""

from __future__ import annotations

from collections import deque

from millstream.delivery.config.settings import Breaker


class FloodBreaker:
    """Counts settlements in a sliding window. Times in milliseconds of a watch."""

    def __init__(self, rule: Breaker | None) -> None:
        self._rule = rule
        self._settled: deque[tuple[int, bool]] = deque()
        self._dead = 0
        self._open_until_ms = 0

    def record(self, is_dead: bool, now_ms: int) -> bool:
        """Count a settlement; whether this one opened the breaker."""
        if self._rule is None:
            return False
        self._settled.append((now_ms, is_dead))
        self._dead += is_dead
        self._forget(now_ms)
        rule = self._rule
        is_flood = len(self._settled) >= rule.least and self._dead > rule.share * len(self._settled)
        if not is_flood or now_ms < self._open_until_ms:
            return False
        self._open_until_ms = now_ms + round(rule.pause * 1000)
        self._settled.clear()  # judged anew after the pause
        self._dead = 0
        return True

    def wait_ms(self, now_ms: int) -> int:
        """How long reading is to pause; 0: not at all."""
        return max(0, self._open_until_ms - now_ms)

    def _forget(self, now_ms: int) -> None:
        assert self._rule is not None
        oldest = now_ms - round(self._rule.window * 1000)
        while self._settled and self._settled[0][0] < oldest:
            self._dead -= self._settled.popleft()[1]
