"""When keys expire, and which of them is next.

A dict of key to Unix ms that keeps a heap beside it. The heap holds, for every key, at least one time that is not
after the key's own:

    set for the first time, or to an earlier time    one push
    set to a later time (a lease is extended)        nothing: its old heap item comes up first and is corrected then
    removed                                          nothing: its heap item is dropped when it comes up

so extending a lock costs the heap nothing. Stale items are removed when they outnumber the keys.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace


class Deadlines(dict[bytes, int]):
    """Key to Unix ms. Keys are set one by one (`d[key] = ms`); dict.update would bypass the heap."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[int, bytes]] = []

    def __setitem__(self, key: bytes, at_ms: int) -> None:
        old_ms = self.get(key)
        super().__setitem__(key, at_ms)
        if old_ms is None or at_ms < old_ms:
            heappush(self._heap, (at_ms, key))
            if len(self._heap) > 2 * len(self) + 64:
                self._heap = [(when_ms, name) for name, when_ms in self.items()]
                heapify(self._heap)

    def due(self, now_ms: int) -> bytes | None:
        """Return the earliest key whose time is over, or None. The key stays here until it is removed."""
        heap = self._heap
        while heap and heap[0][0] < now_ms:
            at_ms = self.get(heap[0][1])
            if at_ms is None:
                heappop(heap)
            elif at_ms < now_ms:
                return heap[0][1]
            else:
                heapreplace(heap, (at_ms, heap[0][1]))
        return None

    def next_ms(self) -> int | None:
        """Return a time before which no key is due, or None if no key expires at all."""
        return self._heap[0][0] + 1 if self else None

    def clear(self) -> None:
        super().clear()
        self._heap.clear()
