"""How deliveries end in a query, in the words that workers use: the same verdicts, the same dead letters. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from millstream.client.calls import Word
from millstream.client.capabilities import Capabilities
from millstream.delivery.batches import Batches, Condemned
from millstream.delivery.keys import Keys
from millstream.delivery.policy import Failure, decide, expired, spent, unfit
from millstream.delivery.settlement import Ack, DeadLetter, Later, Reason, Release, Settlement
from millstream.delivery.steps import CLAIM_IDLE_MS, Settle, Steps
from millstream.spark.group.options import Terms


def keys_of(stream: str, terms: Terms) -> Keys:
    """Return the keys of a stream."""
    return Keys(stream.encode("utf-8", "surrogateescape"), terms.dead_letter.encode())


def batches_of(stream: str, terms: Terms, capabilities: Capabilities) -> Batches:
    """Return the steps of a query on a stream."""
    steps = Steps(
        keys_of(stream, terms),
        terms.group.encode(),
        capabilities,
        terms.field_prefix.encode(),
        lease_ms=terms.lease_ms,
        claim_ms=CLAIM_IDLE_MS,
    )
    return Batches.of(steps)


def verdict(fields: Mapping[bytes, bytes], deliveries: int, terms: Terms, now_ms: int | None) -> Settlement | None:
    """Return how a delivery ends that must not be worked on, decided as for a worker. None: it may begin.

    A query settles its failures itself, so an entry reaches the limit here only if its query died each time.
    """
    found = unfit(fields, terms.field_prefix.encode(), terms.group.encode(), now_ms)
    return found or spent(terms.policy, deliveries, Reason.CRASHED)


def end_of(condemned: Condemned) -> Settlement:
    """How such a delivery ends."""
    return Ack() if condemned.expired_ms is None else expired(condemned.expired_ms)


def unsettled(deliveries: int, terms: Terms) -> Settlement:
    """Return how a row ends that a query has given no outcome: it is tried again, as often as one that failed."""
    failure = Failure("retry", "the query ended its batch without an outcome for this entry")
    return decide(terms.policy, deliveries, failure)


def item(entry_id: bytes, number: int | None, settlement: Settlement, stream: Word, terms: Terms) -> Settle:
    """Return a settlement in the form of the step."""
    match settlement:
        case Ack():
            return Settle(entry_id, number)
        case Release():
            return Settle(entry_id, number, "release")
        case Later(delay_s=delay_s):
            return Settle(entry_id, number, "retry", (round(delay_s * 1000),))
        case DeadLetter():
            return Settle(entry_id, number, "reject", epitaph(settlement, stream, terms))
        case _:
            assert_never(settlement)


def epitaph(dead: DeadLetter, stream: Word, terms: Terms) -> tuple[Word, ...]:
    """Return the texts of a dead letter, in the same order as a worker. The step fills in empty ones."""
    return (
        "stream",
        stream,
        "group",
        terms.group,
        "consumer",
        "",
        "retry_count",
        "",
        "first_at",
        "",
        "reason",
        str(dead.reason),
        "error",
        dead.error,
        "traceback",
        dead.traceback,
    )


def pages(items: Sequence[Settle], size: int) -> list[Sequence[Settle]]:
    """Yield the items in pages."""
    return [items[start : start + size] for start in range(0, len(items), size)]
