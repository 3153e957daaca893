"""A consumer group: how far it has read, who its consumers are, what is pending."""

from __future__ import annotations

from millstream.engine.streams.entries import Block
from millstream.engine.streams.ids import order
from millstream.engine.streams.pending import GroupConsumer, PendingList


class Group:
    """Readers that share a stream."""

    __slots__ = ("_last", "at", "block", "consumers", "entries_read", "mark", "name", "pending")

    def __init__(self, name: bytes, last: int, entries_read: int | None) -> None:
        self.name = name
        self._last: int | None = last  # None: the key of `mark`, made when asked for
        self.entries_read = entries_read  # how many entries that was in all, None if it cannot be known
        self.pending = PendingList()
        self.consumers: dict[bytes, GroupConsumer] = {}
        # Where reading goes on, so that it need not be searched: the block of `last`, and the place after it.
        # Only a hint: it counts if the id before that place still is `mark`, the id object of `last`.
        self.block: Block | None = None
        self.at = 0
        self.mark = b""

    @property
    def last(self) -> int:
        """The key of the last entry delivered as new."""
        last = self._last
        if last is None:
            last = self._last = order(self.mark)
        return last

    @last.setter
    def last(self, last: int) -> None:
        self._last = last

    def step_to(self, entry_id: bytes, at: int) -> None:
        """Read on by one entry in the same block: `at` is the place after it."""
        self.mark = entry_id
        self._last = None
        self.at = at

    def move_to(self, last: int, entries_read: int | None) -> None:
        """XGROUP SETID: go on reading after another id."""
        self.last = last
        self.entries_read = entries_read
        self.block = None

    def sorted_consumers(self) -> list[GroupConsumer]:
        """Consumers in byte order of their names, as every reply lists them."""
        return [consumer for _, consumer in sorted(self.consumers.items())]

    def copy(self, blocks: dict[int, Block]) -> Group:
        """Return an independent copy; `blocks` maps id() of the stream's old blocks to the new ones."""
        twin = Group(self.name, self.last, self.entries_read)
        for name, consumer in self.consumers.items():
            new = GroupConsumer(name, consumer.seen_ms)
            new.active_ms = consumer.active_ms
            new.pending = consumer.pending
            new.order = consumer.order.copy()
            twin.consumers[name] = new
        twin.pending = self.pending.copy(twin.consumers, blocks)
        return twin
