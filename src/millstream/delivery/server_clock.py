"""Decide whether idle entries may be taken over: not after a jump of the server's clock, and not after a stall.

A jump: after a failover the new server's clock decides, and a jump forward makes every lease look over at once.
A stall: while the server or our process stands still, no renewals get through, and afterwards the living look dead.
In both cases the living get time to renew their leases first.

The server's time is compared with a local monotonic clock, and the time of the last answer is noted. All times are
milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ServerWatch:
    """Observations of the server's clock and of how regularly the server answers."""

    tolerance_ms: int  # the largest deviation between two looks that does not count as a jump
    pause_ms: int  # the time without takeovers after a jump: one lease
    silence_ms: int | None = None  # a longer time without an answer is a stall; None: there are no regular requests
    respite_ms: int = 0  # the time without takeovers after a stall: more than one heartbeat
    _offset_ms: int | None = None
    _paused_until_ms: int = 0
    _answered_ms: int | None = None
    _stalled_until_ms: int = 0

    @classmethod
    def for_leases(cls, lease_ms: int, pause_ms: int) -> ServerWatch:
        """Return a watch for leases of this length, each of which is renewed at least three times.

        A heartbeat and a jump or delay within the tolerance are together shorter than a lease.
        """
        tolerance_ms = max(250, min(max(1000, lease_ms // 4), lease_ms // 2))
        return cls(tolerance_ms, pause_ms, respite_ms=lease_ms // 2)

    def expected_ms(self, watch_ms: int) -> int | None:
        """Return the expected server time, or None before the first look."""
        return None if self._offset_ms is None else watch_ms + self._offset_ms

    def look(self, server_ms: int, watch_ms: int) -> bool:
        """Note the server's time. Returns whether it has jumped."""
        offset = server_ms - watch_ms
        jumped = self._offset_ms is not None and abs(offset - self._offset_ms) > self.tolerance_ms
        if jumped:
            self._paused_until_ms = watch_ms + self.pause_ms
        self._offset_ms = offset
        return jumped

    def answered(self, watch_ms: int) -> bool:
        """Note an answer of the server. Returns whether it ends a stall."""
        has_ended = self._is_silent(watch_ms)
        if has_ended:
            self.stalled(watch_ms)
        self._answered_ms = watch_ms
        return has_ended

    def stalled(self, watch_ms: int) -> None:
        """Note that a stall has ended now."""
        self._stalled_until_ms = watch_ms + self.respite_ms

    def is_paused(self, watch_ms: int) -> bool:
        """Return whether the clock has jumped recently, so that its times are unreliable."""
        return watch_ms < self._paused_until_ms

    def may_take_over(self, watch_ms: int) -> bool:
        """Return whether an entry that has been idle for a lease belongs to a dead consumer."""
        return not (self.is_paused(watch_ms) or watch_ms < self._stalled_until_ms or self._is_silent(watch_ms))

    def _is_silent(self, watch_ms: int) -> bool:
        last_ms = self._answered_ms
        return self.silence_ms is not None and last_ms is not None and watch_ms - last_ms > self.silence_ms
