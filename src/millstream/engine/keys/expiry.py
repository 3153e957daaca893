"""Active expiry: remove keys whose time is over even if no command asks for them.

A swept key is treated like one that expires on access (`CommandContext.expire_now`): a DEL for the log, an `expired`
event, a touch for WATCH, a wake-up for waiters. The deadlines know the next key, so a sweep only pays for removals.
"""

from __future__ import annotations

from millstream.engine.keys.keyspace import CommandContext, Keyspace
from millstream.engine.outcome import Outcome


def sweep(keyspace: Keyspace, now_ms: int, limit: int) -> Outcome:
    """Remove up to `limit` keys that are due. The reply is the number of removed keys."""
    call = CommandContext(keyspace, 0, now_ms)
    removed = 0
    for db in keyspace:
        while removed < limit and (key := db.expires.due(now_ms)) is not None:
            call.expire_now(key, db)
            removed += 1
    return call.outcome(removed)


def next_due_ms(keyspace: Keyspace) -> int | None:
    """Return a time before which a sweep finds nothing, or None if no key expires."""
    times = [at_ms for db in keyspace if (at_ms := db.expires.next_ms()) is not None]
    return min(times, default=None)
