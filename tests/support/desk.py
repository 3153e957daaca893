"""A stream, a group and the steps on them, for tests that expect the same everywhere.

What differs between servers by design is evened out here and nowhere else: who has a released entry (nobody, or our
consumer that stands for nobody), and how a worker takes over (a CLAIM read, or the recover step and a read).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from millstream.client import Backend, Capabilities
from millstream.client.calls import Word
from millstream.delivery.delivery import Delivery
from millstream.delivery.keys import Keys
from millstream.delivery.steps import DELAYED, RELEASED, Account, NewEntry, Published, Publishing, Settle, Steps
from tests.support.places import Site

NOBODY: Final = "nobody"
LATER: Final = "later"


def act(delivery: Delivery, verb: str = "ack", *words: Word) -> Settle:
    """What is to become of a delivery."""
    return Settle(delivery.id, delivery.number, verb, words)


class Desk:
    """One group of one stream at a place."""

    def __init__(
        self,
        site: Site,
        stream: bytes = b"orders",
        group: bytes = b"g",
        *,
        dead_letter: bytes = b"",
        capabilities: Capabilities | None = None,
        **options: Any,
    ) -> None:
        self.site = site
        self.backend: Backend = site.connect()
        self.capabilities = capabilities or self.backend.capabilities  # less than the server has: the older ways
        self.keys = Keys(stream, dead_letter)
        self.steps = Steps(self.keys, group, self.capabilities, **{"lease_ms": 30_000, **options})
        self.publishing = Publishing(self.keys, self.capabilities, self.steps.prefix)
        self.calls = 0
        self.backend.run(self.steps.create_group("0"))

    def append(self, *entries: NewEntry, producer: bytes = b"p", **options: Any) -> list[Published]:
        self.calls += 1
        return self.backend.run(self.publishing.append(producer, self.calls, entries, **options))

    def publish(self, count: int) -> list[bytes]:
        """Entries n=0, n=1, …; their ids."""
        return [made.id for made in self.append(*(NewEntry([(b"n", b"%d" % n)]) for n in range(count)))]

    def read(self, consumer: bytes = b"c1", count: int = 1000) -> list[Delivery]:
        """New entries."""
        return self.backend.run(self.steps.read(consumer, count, None))

    def deliver(self, count: int, consumer: bytes = b"c1") -> list[Delivery]:
        """Publish and read."""
        self.publish(count)
        return self.read(consumer)

    def take(self, consumer: bytes, credit: int = 1000, min_idle_ms: int | None = None) -> list[Delivery]:
        """As a worker takes: what nobody works on, then what is new."""
        idle_ms = self.steps.lease_ms if min_idle_ms is None else min_idle_ms
        if self.capabilities.claim_read:
            return self.backend.run(self.steps.read(consumer, credit, None, idle_ms))
        found = self.backend.run(self.steps.recover(consumer, credit, min_idle_ms=idle_ms)).deliveries
        return found + (self.read(consumer, credit - len(found)) if len(found) < credit else [])

    def settle(self, consumer: bytes, *items: Settle, has_locks: bool = False) -> list[int | str]:
        return self.backend.run(self.steps.settle(consumer, items, has_locks=has_locks))

    def pending(self) -> list[tuple[bytes, str, int]]:
        """Id, who has it, deliveries."""
        rows = self.backend.run(self.steps.pending_page(b"0-0", 100_000))
        nobody = {b"": NOBODY, RELEASED: NOBODY, DELAYED: LATER}
        return [(row[0], nobody.get(row[1]) or row[1].decode(), row[3]) for row in rows]

    def audit(self) -> Account:
        return self.backend.run(self.steps.audit())

    def ids(self, key: bytes | None = None) -> list[bytes]:
        return [row[0] for row in self.range(key)]

    def range(self, key: bytes | None = None) -> list[Any]:
        return self.backend.execute("XRANGE", key or self.keys.stream, "-", "+")

    def execute(self, *words: Word, key: bytes | None = None) -> Any:
        return self.backend.execute(*words, key=key or self.keys.stream)

    def everything(self) -> list[object]:
        """All that a step can change, to see that it did not."""
        page = self.backend.run(self.steps.pending_page(b"0-0", 100_000))
        kept = [row[:2] + row[3:] for row in page]
        sets = [
            self.execute("ZRANGE", key, 0, -1, "WITHSCORES", key=key)
            for key in (self.keys.delayed, self.keys.retries(self.steps.group))
        ]
        return [kept, self.range(), self.range(self.keys.dead), sets, self.audit()]


def numbers(deliveries: Sequence[Delivery]) -> list[int]:
    """The n of each."""
    return [int(delivery.by_name[b"n"]) for delivery in deliveries]
