"""Whether entries that look forgotten may be taken over: not after a jump of the server's clock, and not after a stall.

A jump: after a failover the new server's clock decides, and a jump forward makes every lease look over at once.
A stall: while the server or our process stands still, no renewals get through, and afterwards the living look dead.
In both cases the living get time to renew their leases first.

Compares the server's time with a watch of ours that cannot jump, and notes when the server last answered. Times in
milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ServerWatch:
    """What we know of the server's clock, and of how regularly the server answers us."""

    tolerance_ms: int  # how far the clock may stray between two looks and still be the same clock
    pause_ms: int  # how long nothing is taken over after a jump: one lease
    silence_ms: int | None = None  # a longer time without any answer is a stall; None: nobody asks regularly
    respite_ms: int = 0  # how long nothing is taken over after a stall: more than one heartbeat
    _offset_ms: int | None = None
    _paused_until_ms: int = 0
    _answered_ms: int | None = None
    _stalled_until_ms: int = 0

    @classmethod
    def for_leases(cls, lease_ms: int, pause_ms: int) -> ServerWatch:
        """A watch for leases of this length, which are renewed at least three times each.

        A heartbeat and a jump or delay within the tolerance are together shorter than a lease.
        """
        tolerance_ms = max(250, min(max(1000, lease_ms // 4), lease_ms // 2))
        return cls(tolerance_ms, pause_ms, respite_ms=lease_ms // 2)

    def expected_ms(self, watch_ms: int) -> int | None:
        """The server's time now, by our watch; None before the first look."""
        return None if self._offset_ms is None else watch_ms + self._offset_ms

    def look(self, server_ms: int, watch_ms: int) -> bool:
        """Take the server's time; whether it has jumped."""
        offset = server_ms - watch_ms
        jumped = self._offset_ms is not None and abs(offset - self._offset_ms) > self.tolerance_ms
        if jumped:
            self._paused_until_ms = watch_ms + self.pause_ms
        self._offset_ms = offset
        return jumped

    def answered(self, watch_ms: int) -> bool:
        """Note that the server has answered; whether a stall has ended with that."""
        has_ended = self._is_silent(watch_ms)
        if has_ended:
            self.stalled(watch_ms)
        self._answered_ms = watch_ms
        return has_ended

    def stalled(self, watch_ms: int) -> None:
        """Note that a stall has ended now."""
        self._stalled_until_ms = watch_ms + self.respite_ms

    def is_paused(self, watch_ms: int) -> bool:
        """Whether the clock has jumped a short time ago: no time that it tells can be relied on."""
        return watch_ms < self._paused_until_ms

    def may_take_over(self, watch_ms: int) -> bool:
        """Whether an entry that has been idle for a lease is a dead consumer's."""
        return not (self.is_paused(watch_ms) or watch_ms < self._stalled_until_ms or self._is_silent(watch_ms))

    def _is_silent(self, watch_ms: int) -> bool:
        last_ms = self._answered_ms
        return self.silence_ms is not None and last_ms is not None and watch_ms - last_ms > self.silence_ms
