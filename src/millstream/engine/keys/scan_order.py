"""The order in which SCAN, HSCAN, SSCAN and ZSCAN walk names while names are added and removed.

A dict keeps its names in the order in which they were added, but cannot be entered at a position. `ScanOrder` is the
list of its names that can, made when a scan begins. A scan walks positions downwards, and its cursor is the position
it has reached. The guarantee follows from one invariant: a name that stays only ever moves to a lower position.

    a name is added       it is appended: a scan in progress does not need it
    a name is removed     its position stays behind, stale, and is skipped
    the list is tidied    it becomes the dict's own order again: every name moves down or keeps its position

So a name that is there from the start to the end of a scan is below the cursor until the scan has returned it. The
cursor needs no memory: the list may be dropped between two calls and made again, which is the same as tidying it. Every
scan ends, since each call lowers the cursor. A name that was added again, or moved below the cursor, may be returned
twice, which SCAN allows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

_SPARE = 64  # fewer stale positions than this are not worth tidying


class ScanOrder:
    """Names by position, some of them stale; `names` is always the dict that it was made from."""

    __slots__ = ("_positions",)

    def __init__(self, names: Collection[bytes]) -> None:
        self._positions = list(names)

    def add(self, name: bytes, names: Collection[bytes]) -> None:
        """Append a name that was added to the dict. Amortized O(1)."""
        self._positions.append(name)
        self._tidy(names)

    def page(self, cursor: int, count: int, names: Collection[bytes]) -> tuple[int, list[bytes]]:
        """Return the next cursor, 0 at the end, and the names at the `count` positions below a cursor (0: the end).

        Looks at `count` positions; tidying costs what was removed before, so the page is amortized O(count).
        """
        self._tidy(names)
        size = len(self._positions)
        end = min(cursor, size) if cursor else size
        start = max(end - count, 0)
        found = dict.fromkeys(name for name in self._positions[start:end] if name in names)
        return start, list(found)

    def pick(self, names: Collection[bytes], below: Callable[[int], int]) -> bytes:
        """Return one of the names, of which there must be one; `below(n)` draws a number."""
        if len(self._positions) > 2 * len(names):
            self._positions = list(names)
        while (name := self._positions[below(len(self._positions))]) not in names:
            pass  # at most half of the positions are stale, so this ends soon
        return name

    def _tidy(self, names: Collection[bytes]) -> None:
        """Drop stale positions when they outnumber the names."""
        if len(self._positions) > 2 * len(names) + _SPARE:
            self._positions = list(names)
