"""Who waits for which key, until when, and which keys are due for a look.

XREAD BLOCK, nothing there ──▶ Waiter ── queues by key, oldest first ──▶ run again when a key is ready
                                  └───── Alarms: the waiter's deadline, and for CLAIM the time when a pending
                                         entry of a key becomes due
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from millstream.engine.commands.streams.group import question_of
from millstream.engine.keys.values import List, SortedSet
from millstream.engine.outcome import Reply
from millstream.engine.streams.stream import Stream
from millstream.engine.table import Command

Place: TypeAlias = tuple[int, bytes]  # a database and a key in it

# What a key must hold for its waiters to be run again, by the group of their command.
_KINDS: Final[dict[str, type]] = {"stream": Stream, "list": List, "sorted_set": SortedSet}


class WaitOwner(Protocol):
    """Who is told when the wait is over: a session, or a thread that called the hub."""

    def resume(self, reply: Reply) -> None: ...


@dataclass(slots=True, eq=False)
class Waiter:
    """A command that found nothing and waits for one of its keys."""

    owner: WaitOwner
    row: Command
    argv: list[bytes]  # what to run when a key is ready
    db: int
    keys: tuple[bytes, ...]
    deadline_ms: int | None  # None waits for ever
    group: bool  # also run again when a key is deleted or replaced
    timeout_reply: Reply
    protocol: int = 2  # the reply is for; MAXSIZE counts its bytes
    places: tuple[Place, ...] = field(init=False)
    is_waiting: bool = field(default=False, init=False)  # in the queues of its keys
    is_over: bool = field(default=False, init=False)  # answered, timed out or given up
    question: tuple[bytes, ...] | None = field(init=False)  # equal questions of one group find the same

    def __post_init__(self) -> None:
        self.places = tuple(dict.fromkeys((self.db, key) for key in self.keys))  # a key counts once
        self.question = question_of(self.argv) if self.group and len(self.keys) == 1 else None

    def wants(self, value: object | None) -> bool:
        """Whether to run the command again now that its key holds this (None: nothing)."""
        return self.group or (value is not None and type(value) is _KINDS.get(self.row.group, type(value)))


class Waiters:
    """The queues of waiters by key."""

    __slots__ = ("_queues", "_waiting")

    def __init__(self) -> None:
        self._queues: dict[Place, dict[Waiter, None]] = {}
        self._waiting: dict[Waiter, None] = {}  # all of them; some wait for no key

    def __len__(self) -> int:
        return len(self._waiting)

    def everyone(self) -> list[Waiter]:
        """All waiters, the longest waiting first."""
        return list(self._waiting)

    def add(self, waiter: Waiter) -> None:
        """Put a waiter at the end of the queue of each of its keys."""
        waiter.is_waiting = True
        self._waiting[waiter] = None
        for place in waiter.places:
            self._queues.setdefault(place, {})[waiter] = None

    def move_to_end(self, waiter: Waiter) -> None:
        """Let a waiter be the last one of its keys, as if it had just begun to wait."""
        for queue in (self._waiting, *map(self._queues.__getitem__, waiter.places)):
            del queue[waiter]
            queue[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        """Take a waiter out of all queues, if it is in them."""
        if not waiter.is_waiting:
            return
        waiter.is_waiting = False
        del self._waiting[waiter]
        for place in waiter.places:
            queue = self._queues[place]
            del queue[waiter]
            if not queue:
                del self._queues[place]

    def __contains__(self, place: Place) -> bool:
        return place in self._queues

    def at(self, place: Place) -> list[Waiter]:
        """Who waits for a key now, the longest waiting first."""
        return list(self._queues.get(place, ()))

    def keys(self) -> int:
        """How many keys are waited for."""
        return len(self._queues)

    def group_keys(self) -> int:
        """How many keys are waited for by readers of a group."""
        return sum(any(waiter.group for waiter in queue) for queue in self._queues.values())


Item = TypeVar("Item")


class _Heap(Generic[Item]):
    """Items by time, those that no longer count included until they come up or grow too many."""

    __slots__ = ("_entries", "_serial")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, Item]] = []
        self._serial = count()

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, at_ms: int, item: Item) -> None:
        heappush(self._entries, (at_ms, next(self._serial), item))

    def first(self) -> tuple[int, Item] | None:
        return (self._entries[0][0], self._entries[0][2]) if self._entries else None

    def pop(self) -> None:
        heappop(self._entries)

    def keep(self, entries: list[tuple[int, Item]]) -> None:
        """Throw everything else away."""
        self._entries = [(at_ms, next(self._serial), item) for at_ms, item in entries]
        heapify(self._entries)

    def __iter__(self) -> Iterator[tuple[int, Item]]:
        return ((at_ms, item) for at_ms, _, item in self._entries)


class Alarms:
    """Deadlines of waiters, and the earliest time at which each key may have a pending entry to claim."""

    __slots__ = ("_claims", "_deadlines", "_due_by_place", "_tidy_above")

    def __init__(self) -> None:
        self._deadlines: _Heap[Waiter] = _Heap()
        self._claims: _Heap[Place] = _Heap()
        self._due_by_place: dict[Place, int] = {}
        self._tidy_above = 64

    def at_deadline(self, waiter: Waiter) -> None:
        """Give a waiter up at its deadline, if it has one."""
        if waiter.deadline_ms is None:
            return
        self._deadlines.push(waiter.deadline_ms, waiter)
        if len(self._deadlines) > self._tidy_above:
            self._forget_the_served()

    def at_claim(self, place: Place, wake_at_ms: int) -> None:
        """Look at a key again just after this time; of several times for a key the earliest counts."""
        due_ms = wake_at_ms + 1  # strictly after it, as in Redis
        known_ms = self._due_by_place.get(place)
        if known_ms is None or due_ms < known_ms:
            self._due_by_place[place] = due_ms
            self._claims.push(due_ms, place)

    def next_ms(self) -> int | None:
        """When something is due, or None."""
        times = [first[0] for first in (self._first_deadline(), self._first_claim()) if first is not None]
        return min(times, default=None)

    def pop_expired(self, now_ms: int) -> Waiter | None:
        """Remove and return a waiter whose deadline has passed, or None."""
        first = self._first_deadline()
        if first is None or first[0] > now_ms:
            return None
        self._deadlines.pop()
        return first[1]

    def pop_claimable(self, now_ms: int) -> Place | None:
        """Remove and return a key that is due for a check, or None."""
        first = self._first_claim()
        if first is None or first[0] > now_ms:
            return None
        self._claims.pop()
        del self._due_by_place[first[1]]
        return first[1]

    def _first_deadline(self) -> tuple[int, Waiter] | None:
        while (first := self._deadlines.first()) is not None and first[1].is_over:
            self._deadlines.pop()
        return first

    def _first_claim(self) -> tuple[int, Place] | None:
        while (first := self._claims.first()) is not None and self._due_by_place.get(first[1]) != first[0]:
            self._claims.pop()
        return first

    def _forget_the_served(self) -> None:
        """Most readers are served long before their deadline: do not keep them until then."""
        self._deadlines.keep([(at_ms, waiter) for at_ms, waiter in self._deadlines if not waiter.is_over])
        self._tidy_above = 2 * len(self._deadlines) + 64
