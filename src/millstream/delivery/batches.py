"""Steps for working on a stream in batches, with one consumer per batch (Spark). No decisions, no connections.

A batch's consumer is its manifest: the pending entries of the consumer are those that the batch has not settled. The
batch keeps its entries in the stream until it is over, so that it can be run again from the start.

    read ──▶ hold, renew (while it runs) ──▶ acks, settle ──▶ close: consumer gone, done entries removed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from millstream.client.calls import Call, Word
from millstream.delivery.steps import Steps, parse_pending, script

HOLD_MS = 86_400_000  # how long an abandoned batch keeps its entries: a day
PAGE = 1000  # pending entries per call; more would make other clients wait


@dataclass(frozen=True, slots=True)
class Page:
    """The result of renewing a page of leases."""

    server_ms: int
    after: bytes  # where to go on; b"": all were seen
    renewed: int
    trimmed: int  # their entries are gone, and they are no longer pending


@dataclass(frozen=True, slots=True)
class Acked:
    """The result of acknowledgements."""

    done: int
    before: int  # no longer pending: settled by an earlier attempt
    lost: int  # held by another consumer

    def __add__(self, other: Acked) -> Acked:
        return Acked(self.done + other.done, self.before + other.before, self.lost + other.lost)


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive entries of the stream, each delivered once."""

    first: bytes
    last: bytes
    count: int


@dataclass(frozen=True, slots=True)
class Condemned:
    """A delivery that must not be processed."""

    id: bytes
    number: int
    expired_ms: int | None  # None: it was redriven to another group


@dataclass(frozen=True, slots=True)
class BatchManifest:
    """The pending entries of a consumer, or a page of them."""

    runs: list[Run]
    others: list[tuple[bytes, int]]  # id and deliveries
    condemned: list[Condemned]
    after: bytes  # where to go on; b"": all were seen


@dataclass(frozen=True, slots=True)
class Batches:
    """The steps of batches of one group of one stream."""

    steps: Steps

    @classmethod
    def of(cls, steps: Steps) -> Batches:
        """Return batches for steps. Done entries stay until their batch is over."""
        return cls(replace(steps, keep_done=True))

    @property
    def _holds(self) -> bytes:
        return self.steps.keys.base + b":holds"

    @property
    def _ack_keys(self) -> list[bytes]:
        keys = self.steps.keys
        return [keys.stream, keys.retries(self.steps.group), keys.meta, self._holds, keys.records(self.steps.group)]

    def renew(self, consumer: bytes, after: bytes = b"", count: int = PAGE) -> Call[Page]:
        """Start the leases of a page of the consumer's entries anew."""
        keys = self.steps.keys
        words = (self.steps.group, consumer, after, count)
        return script("renew_consumer").call(
            [keys.stream, keys.meta], words, lambda reply: Page(int(reply[0]), reply[1], reply[2], reply[3])
        )

    def acks(self, consumer: bytes, number: int | None, ids: Sequence[bytes]) -> Call[Acked]:
        """Acknowledge deliveries of one consumer (`spark-*`: of any whose name begins so) that all have this number.

        The ids must rise, each named once.
        """
        words = (self.steps.group, consumer, self.steps.flags, "" if number is None else number, *ids)
        return script("settle_acks").call(self._ack_keys, words, lambda reply: Acked(*reply))

    def ack_span(self, consumer: bytes, first: bytes, last: bytes, count: int = PAGE) -> Call[int]:
        """Acknowledge up to `count` of what the consumer has from `first` to `last`; fewer: these were all."""
        words = (self.steps.group, consumer, self.steps.flags, first, last, count)
        return script("ack_span").call(self._ack_keys, words, int)

    def held(self, consumer: bytes, after: bytes = b"", count: int = PAGE) -> Call[list[tuple[bytes, bytes, int, int]]]:
        """Return the pending entries of a consumer after an id: id, consumer, idle ms, deliveries."""
        stream, start = self.steps.keys.stream, b"(" + after if after else b"-"
        argv: tuple[Word, ...] = ("XPENDING", stream, self.steps.group, start, "+", count, consumer)
        return Call(argv, stream, parse_pending)

    def manifest(self, consumer: bytes, after: bytes = b"", count: int = PAGE) -> Call[BatchManifest]:
        """Return the pending entries of a consumer in a compact form."""
        words = (self.steps.group, consumer, self.steps.prefix, after, count)
        return script("manifest").call([self.steps.keys.stream], words, parse_manifest)

    def hold(self, owner: bytes, first: bytes, consumer: bytes, owed: int, *, trim: bool = True) -> Call[bool]:
        """Keep entries from this id on until the batch is closed. `trim`: whether `close` will remove done entries.

        `owed`: how many entries the batch has, said once, when it was taken. If its consumer has exactly so many
        pending, which is the answer, then `acks` can be quick.
        """
        words = (self.steps.group, owner, first, consumer, owed, "acked" if trim else "all")
        return script("hold_batch").call([self.steps.keys.stream, self._holds], words, bool)

    def close(self, consumer: bytes, owner: bytes, *, trim: bool, hold_ms: int = HOLD_MS) -> Call[tuple[bool, int]]:
        """End a batch: remove its consumer if it has no pending entry, and entries that no group needs.

        Returns whether the consumer was removed, and the number of removed entries.
        """
        words = (self.steps.group, consumer, owner, int(trim), hold_ms)
        return script("close_batch").call(
            [self.steps.keys.stream, self._holds], words, lambda reply: (bool(reply[0]), reply[1])
        )


def parse_manifest(reply: Any) -> BatchManifest:
    runs, others, ended, after = reply
    condemned = [Condemned(entry_id, number, int(at) if at else None) for entry_id, number, at in ended]
    return BatchManifest(
        [Run(*run) for run in runs], [(entry_id, number) for entry_id, number in others], condemned, after
    )
