"""Does the server's clock run as it did? After a failover the new server's clock decides, and a jump forward makes
every lease look over at once. Then nothing may be taken over until the living have had time to renew theirs.

Compares the server's time with a watch of ours that cannot jump. Times in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ServerWatch:
    """What we know of the server's clock."""

    tolerance_ms: int  # how far it may stray between two looks and still be the same clock
    pause_ms: int  # how long nothing is taken over after a jump: one lease
    _offset_ms: int | None = None
    _paused_until_ms: int = 0

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

    def is_paused(self, watch_ms: int) -> bool:
        """Whether taking over must wait."""
        return watch_ms < self._paused_until_ms
