"""The plain values that live beside streams: hashes, lists, sets, sorted sets. A string is plain bytes.

Hash        a dict: field to value, in the order the fields were first set
List        a deque: both ends are cheap, the middle is not
SetOf       a list of members and each member's position in it, so that a random member is found in one step
SortedSet   short sorted blocks of (score, member), bisected; each member's score beside them
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from millstream.engine.keys.scan_order import ScanOrder

_BLOCK: Final = 512  # A block is split at twice this size; moving that much memory costs less than a lookup.


class Hash(dict[bytes, bytes]):
    """Field to value, in the order the fields were first set.

    Everything that can add a field goes through `__setitem__` while a scan is in progress, see `ScanOrder`.
    """

    _order: ScanOrder | None = None  # while it is scanned

    def copy(self) -> Hash:
        """Return an independent copy."""
        return Hash(self)

    def __setitem__(self, field: bytes, value: bytes) -> None:
        is_new = self._order is not None and field not in self
        super().__setitem__(field, value)
        if is_new and self._order is not None:
            self._order.add(field, self)

    def update(self, *others: Any, **named: Any) -> None:
        """Set many fields."""
        if self._order is None:
            super().update(*others, **named)
            return
        for field, value in dict(*others, **named).items():
            self[field] = value

    def setdefault(self, field: bytes, value: bytes = b"") -> bytes:
        """Return the value of a field, which is set if it is missing."""
        if field not in self:
            self[field] = value
        return self[field]

    def __ior__(self, other: Any) -> Hash:  # type: ignore[override, misc]
        self.update(other)
        return self

    def page(self, cursor: int, count: int) -> tuple[int, list[bytes]]:
        """Return the next cursor, 0 at the end, and about `count` fields below a cursor (0: the start)."""
        self._order, after, page = _page(self._order, self, cursor, count)
        return after, page


def _page(
    order: ScanOrder | None, names: dict[bytes, Any], cursor: int, count: int
) -> tuple[ScanOrder | None, int, list[bytes]]:
    """Return the order to keep, the next cursor and a page; at the end of a scan the order is dropped."""
    if not cursor and count >= len(names):
        return order, 0, list(names)
    order = order or ScanOrder(names)
    after, page = order.page(cursor, count, names)
    return (order if after else None), after, page


class List(deque[bytes]):
    """Elements from left to right."""


class SetOf:
    """Members in an order that depends on the commands so far and nothing else."""

    __slots__ = ("_at", "_members")

    def __init__(self, members: Iterable[bytes] = ()) -> None:
        self._members = list(dict.fromkeys(members))
        self._at = {member: place for place, member in enumerate(self._members)}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._members)

    def __contains__(self, member: bytes) -> bool:
        return member in self._at

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SetOf) and self._at.keys() == other._at.keys()

    def __repr__(self) -> str:
        return f"SetOf({self._members!r})"

    def __getitem__(self, place: int) -> bytes:
        """Return the member at a position from 0 to len - 1. Positions change when members are removed."""
        return self._members[place]

    def add(self, member: bytes) -> bool:
        """Add a member. Returns whether it is new."""
        if member in self._at:
            return False
        self._at[member] = len(self._members)
        self._members.append(member)
        return True

    def discard(self, member: bytes) -> bool:
        """Remove a member; the last member takes its position. Returns whether it was there."""
        place = self._at.pop(member, None)
        if place is None:
            return False
        last = self._members.pop()
        if place < len(self._members):
            self._members[place] = last
            self._at[last] = place
        return True

    def page(self, cursor: int, count: int) -> tuple[int, list[bytes]]:
        """Return the next cursor, 0 at the end, and `count` members below a cursor (0: the start).

        The list of members is a scan order by itself: places are walked downwards, and a member that stays only ever
        moves to a lower place (see `ScanOrder`).
        """
        size = len(self._members)
        end = min(cursor, size) if cursor else size
        start = max(end - count, 0)
        return start, self._members[start:end]

    def copy(self) -> SetOf:
        """Return an independent copy in the same order."""
        return SetOf(self._members)


class SortedSet:
    """Members with scores, ordered by score, then by bytes. No score is nan."""

    __slots__ = ("_blocks", "_lasts", "_order", "scores")

    def __init__(self) -> None:
        self._order: ScanOrder | None = None  # while it is scanned
        self.scores: dict[bytes, float] = {}
        self._blocks: list[list[tuple[float, bytes]]] = []  # none is empty
        self._lasts: list[tuple[float, bytes]] = []  # the last pair of each block, to bisect

    def __len__(self) -> int:
        return len(self.scores)

    def __iter__(self) -> Iterator[tuple[float, bytes]]:
        for block in self._blocks:
            yield from block

    def __reversed__(self) -> Iterator[tuple[float, bytes]]:
        for block in reversed(self._blocks):
            yield from reversed(block)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SortedSet) and self.scores == other.scores

    def __repr__(self) -> str:
        return f"SortedSet({list(self)!r})"

    def put(self, member: bytes, score: float) -> bool:
        """Set a member's score. Returns whether the member is new."""
        score += 0.0  # -0 becomes 0, as in Redis's compact form
        old = self.scores.get(member)
        if old is not None:
            if old != score:
                self._take((old, member))
                self._insert((score, member))
                self.scores[member] = score
            return False
        self.scores[member] = score
        self._insert((score, member))
        if self._order is not None:
            self._order.add(member, self.scores)
        return True

    def discard(self, member: bytes) -> bool:
        """Remove a member. Returns whether it was there."""
        score = self.scores.pop(member, None)
        if score is None:
            return False
        self._take((score, member))
        return True

    def rank(self, member: bytes) -> int:
        """Return the number of members before this one, which must be there."""
        return self._place((self.scores[member], member))

    def from_score(self, score: float, *, beyond: bool = False) -> int:
        """Return the number of members with a smaller score, or with `beyond` a smaller or equal one."""
        if not beyond:
            return self._place((score,))
        # the next double up is the first score that counts as greater
        return len(self) if score == math.inf else self._place((math.nextafter(score, math.inf),))

    def from_member(self, score: float, member: bytes) -> int:
        """Return the number of members before this pair, which need not be there."""
        return self._place((score, member))

    def between(self, start: int, stop: int) -> Iterator[tuple[float, bytes]]:
        """Yield the pairs with rank start to stop - 1, in order."""
        for block in self._blocks:
            if start < len(block):
                yield from islice(block, max(start, 0), max(stop, 0))
            start -= len(block)
            stop -= len(block)
            if stop <= 0:
                return

    def between_reversed(self, start: int, stop: int) -> Iterator[tuple[float, bytes]]:
        """Yield the pairs with rank start to stop - 1 counted from the end, the last one first."""
        for block in reversed(self._blocks):
            size = len(block)
            if start < size:
                yield from reversed(block[max(size - stop, 0) : size - max(start, 0)])
            start -= size
            stop -= size
            if stop <= 0:
                return

    def page(self, cursor: int, count: int) -> tuple[int, list[bytes]]:
        """Return the next cursor, 0 at the end, and about `count` members below a cursor (0: the start)."""
        self._order, after, page = _page(self._order, self.scores, cursor, count)
        return after, page

    def copy(self) -> SortedSet:
        """Return an independent copy."""
        twin = SortedSet()
        twin.scores = dict(self.scores)
        twin._blocks = [block.copy() for block in self._blocks]
        twin._lasts = list(self._lasts)
        return twin

    def _place(self, pair: tuple[float] | tuple[float, bytes]) -> int:
        """Return the number of pairs below this one. A score alone is below each pair with that score."""
        at = bisect_left(self._lasts, pair)
        before = sum(map(len, self._blocks[:at]))
        return before if at == len(self._blocks) else before + bisect_left(self._blocks[at], pair)

    def _insert(self, pair: tuple[float, bytes]) -> None:
        if not self._blocks:
            self._blocks.append([pair])
            self._lasts.append(pair)
            return
        at = min(bisect_left(self._lasts, pair), len(self._blocks) - 1)
        block = self._blocks[at]
        block.insert(bisect_left(block, pair), pair)
        if len(block) >= 2 * _BLOCK:
            self._blocks.insert(at + 1, block[_BLOCK:])
            self._lasts.insert(at + 1, block[-1])
            del block[_BLOCK:]
        self._lasts[at] = block[-1]

    def _take(self, pair: tuple[float, bytes]) -> None:
        at = bisect_left(self._lasts, pair)
        block = self._blocks[at]
        del block[bisect_left(block, pair)]
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._blocks[at], self._lasts[at]
