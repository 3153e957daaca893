"""An order of a database's keys that SCAN can walk while keys come and go, and that RANDOMKEY can pick from.

Each key gets a serial number when it is added. A scan walks the numbers downwards and its cursor is the number it
has reached, so

    a key that is there all the time is met: its number lies below the start and does not change
    keys added meanwhile have higher numbers: the scan ends, however many come

Removing a key does nothing here; its place is passed over, and places are tidied away when they outnumber the keys.
A key removed and added again may be met twice, which SCAN allows. The order is made when it is first needed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection


class KeyOrder:
    """Serial numbers and names, ascending; some names are stale."""

    __slots__ = ("_names", "_next", "_serials")

    def __init__(self, keys: Collection[bytes]) -> None:
        self._names = list(keys)
        self._serials = array("Q", range(1, len(self._names) + 1))
        self._next = len(self._names) + 1

    def add(self, key: bytes, keys: Collection[bytes]) -> None:
        """A key was added to the keys there are."""
        self._names.append(key)
        self._serials.append(self._next)
        self._next += 1
        if len(self._names) > 2 * len(keys) + 64:
            self._tidy(keys)

    def page(self, cursor: int, count: int, keys: Collection[bytes]) -> tuple[int, list[bytes]]:
        """Up to `count` keys below the cursor (0: from the start) and the next cursor, 0 at the end."""
        end = bisect_left(self._serials, cursor) if cursor else len(self._names)
        start = max(end - count, 0)
        found = dict.fromkeys(name for name in self._names[start:end] if name in keys)
        return (self._serials[start] if start else 0), list(found)

    def pick(self, keys: Collection[bytes], below: Callable[[int], int]) -> bytes:
        """Any of the keys, of which there must be one; `below(n)` draws a number."""
        if len(self._names) > 2 * len(keys):
            self._tidy(keys)
        while (name := self._names[below(len(self._names))]) not in keys:
            pass  # at most half of the names are stale, so this ends soon
        return name

    def _tidy(self, keys: Collection[bytes]) -> None:
        """Keep one place for each key: its last, where it was added."""
        last = {name: serial for name, serial in zip(self._names, self._serials, strict=True) if name in keys}
        # the dict is in order of first places; what counts is the order of the last
        kept = sorted(last.items(), key=lambda item: item[1])
        self._names = [name for name, _ in kept]
        self._serials = array("Q", [serial for _, serial in kept])
