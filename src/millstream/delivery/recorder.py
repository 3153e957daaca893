"""The interface for counters and measurements. The default records nothing.

A recorder is bound to a stream and a group before use, so the calls only name the event. The first nine methods are the
hooks of the RFC's library, the next seven the RFC's metrics, the rest is ours. Several threads call a recorder at once.
To implement some methods only, derive from NullRecorder.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol, Self, cast

from millstream.printable import safe_logger

logger = safe_logger(logging.getLogger(__name__))


class Recorder(Protocol):
    """Notified of everything that happens to one stream and group. Must not block; what it raises is logged."""

    def bind(self, stream: str, group: str) -> Recorder:
        """Return the recorder for a stream and a group."""

    # The nine hooks of the RFC's library

    def startup_recovery(self, ok: bool, recovered: int, seconds: float) -> None:
        """Record the end of the scan before the first read."""

    def claim_attempt(self, ok: bool, seconds: float) -> None:
        """Record an attempt to claim an entry of another consumer."""

    def lock_acquisition(self, ok: bool, seconds: float) -> None:
        """Record an attempt to take a lease or lock."""

    def lock_extension(self, ok: bool, count: int = 1) -> None:
        """Record renewals of leases, or leases found lost."""

    def lock_release(self, ok: bool, count: int = 1) -> None:
        """Record leases that were given up or already lost."""

    def processing_start(self, entry_id: str) -> None:
        """Record the begin of a handler, also for recovered entries."""

    def processing_end(self, entry_id: str) -> None:
        """Record the end of a handler, with any outcome."""

    def keyspace_notification(self) -> None:
        """Record a notification of an expired lock key."""

    def keyspace_notification_dropped(self) -> None:
        """Record a notification that was dropped because the queue was full."""

    # The RFC's seven metrics

    def keyspace_requeued(self, count: int = 1) -> None:
        """Record entries that were recovered after a notification."""

    def scan_requeued(self, count: int = 1) -> None:
        """Record entries that the scan has recovered."""

    def scan_skipped_alive(self, count: int = 1) -> None:
        """Record entries that the scan has left to living owners."""

    def duplicate_ack(self, count: int = 1) -> None:
        """Record entries that another worker has recovered first."""

    def dlq(self, count: int = 1) -> None:
        """Record entries that recovery has given up."""

    def scan_duration(self, seconds: float) -> None:
        """Record the duration of a scan."""

    def pel_depth(self, count: int) -> None:
        """Record the number of pending entries of the group."""

    # What workers need besides

    def published(self, count: int = 1) -> None:
        """Record appended entries."""

    def delivered(self, count: int = 1) -> None:
        """Record delivered entries."""

    def settled(self, outcome: str, count: int = 1) -> None:
        """Record ended deliveries: ack, release, later, deadletter."""

    def handled(self, outcome: str, seconds: float) -> None:
        """Record the duration and the outcome of a handler."""

    def lease_lost(self, count: int = 1) -> None:
        """Record deliveries whose lease was lost."""

    def recovered(self, count: int = 1) -> None:
        """Record deliveries taken over from other consumers."""

    def dead(self, reason: str, count: int = 1) -> None:
        """Record new dead letters."""

    def discarded(self, reason: str, count: int = 1) -> None:
        """Record entries that were given up and dropped, as configured."""

    def trimmed(self, count: int = 1) -> None:
        """Pending entries were found to have been trimmed away."""

    def delayed_depth(self, count: int) -> None:
        """So many entries wait for their time."""

    def lag(self, count: int) -> None:
        """So many entries have never been delivered to the group."""

    def in_progress(self, count: int) -> None:
        """So many handlers run."""

    def breaker(self, is_open: bool) -> None:
        """Record that reading was paused because of many dead letters, or goes on."""


class NullRecorder:
    """Records nothing."""

    def bind(self, stream: str, group: str) -> Self:
        return self

    def startup_recovery(self, ok: bool, recovered: int, seconds: float) -> None: ...
    def claim_attempt(self, ok: bool, seconds: float) -> None: ...
    def lock_acquisition(self, ok: bool, seconds: float) -> None: ...
    def lock_extension(self, ok: bool, count: int = 1) -> None: ...
    def lock_release(self, ok: bool, count: int = 1) -> None: ...
    def processing_start(self, entry_id: str) -> None: ...
    def processing_end(self, entry_id: str) -> None: ...
    def keyspace_notification(self) -> None: ...
    def keyspace_notification_dropped(self) -> None: ...
    def keyspace_requeued(self, count: int = 1) -> None: ...
    def scan_requeued(self, count: int = 1) -> None: ...
    def scan_skipped_alive(self, count: int = 1) -> None: ...
    def duplicate_ack(self, count: int = 1) -> None: ...
    def dlq(self, count: int = 1) -> None: ...
    def scan_duration(self, seconds: float) -> None: ...
    def pel_depth(self, count: int) -> None: ...
    def published(self, count: int = 1) -> None: ...
    def delivered(self, count: int = 1) -> None: ...
    def settled(self, outcome: str, count: int = 1) -> None: ...
    def handled(self, outcome: str, seconds: float) -> None: ...
    def lease_lost(self, count: int = 1) -> None: ...
    def recovered(self, count: int = 1) -> None: ...
    def dead(self, reason: str, count: int = 1) -> None: ...
    def discarded(self, reason: str, count: int = 1) -> None: ...
    def trimmed(self, count: int = 1) -> None: ...
    def delayed_depth(self, count: int) -> None: ...
    def lag(self, count: int) -> None: ...
    def in_progress(self, count: int) -> None: ...
    def breaker(self, is_open: bool) -> None: ...


class GuardedRecorder:
    """Calls another recorder and logs what its hooks raise: a broken metric must not stop work.

    The first error of each hook is logged with its traceback, later ones at DEBUG.
    """

    def __init__(self, inner: Recorder) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        hook, is_reported = getattr(self._inner, name), False
        if not callable(hook):
            return hook

        def call(*args: Any, **named: Any) -> None:
            nonlocal is_reported
            try:
                hook(*args, **named)
            except Exception:
                level, is_reported = logging.DEBUG if is_reported else logging.ERROR, True
                logger.log(level, "the recorder's hook %s failed; what it counts is wrong", name, exc_info=True)

        setattr(self, name, call)
        return call


def bound(recorder: Recorder, stream: str, group: str) -> Recorder:
    """Bind a recorder to a stream and a group, so that nothing it raises later reaches the caller."""
    chosen = recorder.bind(stream, group)
    return chosen if type(chosen) in (NullRecorder, GuardedRecorder) else cast(Recorder, GuardedRecorder(chosen))
