"""Holds: what batches of queries keep in a stream until they are over. Lists them and lets them go; makes none.

A query that ends inside a batch leaves its hold behind: started again with the same checkpoint it runs that batch again
and needs all of its entries, also those that are settled. One that is never started again keeps them until the hold is
too old to count.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.client.calls import Call
from millstream.delivery.batches import HOLD_MS, Batches
from millstream.delivery.inspect import Looks, consumer_states, group_states
from millstream.delivery.keys import Keys
from millstream.delivery.steps import Steps


@dataclass(frozen=True, slots=True)
class Hold:
    """What one query keeps in a stream."""

    stream: str
    query: str  # the name that it has given itself
    first: str  # the entry from which on it keeps all
    age_s: float
    quiet_s: float | None  # since its consumers have last done anything; None: it has none
    removes: bool  # whether done entries are removed when its batch is over (retain=acked)

    @property
    def idle_s(self) -> float:
        """Seconds since the query's last sign of life."""
        return self.age_s if self.quiet_s is None else min(self.age_s, self.quiet_s)


def holds_key(stream: bytes) -> bytes:
    """Return the key of the hash that has the holds of a stream."""
    return Keys(stream).base + b":holds"


def holds_of(backend: Looks, stream: str, now_ms: int) -> list[Hold]:
    """Return the holds of a stream that still count, the oldest first."""
    key = holds_key(stream.encode("utf-8", "surrogateescape"))
    flat: list[bytes] = backend.run(Call(("HGETALL", key), key, list))
    quiet_ms = _quiet_ms(backend, stream) if flat else {}
    found = []
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        words = value.decode().split(" ")
        if name.startswith(b"owed:") or len(words) < 2 or now_ms - int(words[1]) > HOLD_MS:
            continue
        query = name.decode("utf-8", "surrogateescape")
        quiet = min((idle for consumer, idle in quiet_ms.items() if f"-{query}-" in consumer), default=None)
        age_s = max(0, now_ms - int(words[1])) / 1000
        removes = words[2:] == ["acked"]
        found.append(Hold(stream, query, words[0], age_s, None if quiet is None else quiet / 1000, removes))
    return sorted(found, key=lambda hold: -hold.age_s)


def _quiet_ms(backend: Looks, stream: str) -> dict[str, int]:
    groups = group_states(backend, stream)
    return {each.name: each.idle_ms for group in groups for each in consumer_states(backend, stream, group.name)}


def release_hold(backend: Looks, steps: Steps, hold: Hold) -> int:
    """End a hold. Returns how many entries were removed that only it had kept.

    What the query has pending stays pending: the group takes it over after a lease.
    """
    batches = Batches.of(steps)
    return backend.run(batches.close(b"", hold.query.encode("utf-8", "surrogateescape"), trim=hold.removes))[1]
