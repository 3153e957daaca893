"""What is counted and measured, behind one protocol; counting nothing is the default.

A recorder is bound to a stream and a group before it is used, so that the calls say only what happened. The first
nine words are the hooks of the RFC's library, the next seven the RFC's metrics, the rest is ours. Recorders are
called from several threads at once. Whoever wants a few of them derives from NullRecorder and overrides those.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol, Self, cast

from millstream.printable import safe_logger

logger = safe_logger(logging.getLogger(__name__))


class Recorder(Protocol):
    """Notified of everything that happens to one stream and group. Must not block; what it raises is logged."""

    def bind(self, stream: str, group: str) -> Recorder:
        """The recorder for a stream and a group."""

    # The nine hooks of the RFC's library

    def startup_recovery(self, ok: bool, recovered: int, seconds: float) -> None:
        """The scan before the first read is over."""

    def claim_attempt(self, ok: bool, seconds: float) -> None:
        """An entry that somebody else held was claimed, or was not to be had."""

    def lock_acquisition(self, ok: bool, seconds: float) -> None:
        """A lease or lock was taken, or somebody else has it."""

    def lock_extension(self, ok: bool, count: int = 1) -> None:
        """Leases were renewed, or found lost."""

    def lock_release(self, ok: bool, count: int = 1) -> None:
        """Leases were given up, or were not ours any more."""

    def processing_start(self, entry_id: str) -> None:
        """A handler begins; also for entries that were recovered."""

    def processing_end(self, entry_id: str) -> None:
        """It has ended, however."""

    def keyspace_notification(self) -> None:
        """The server told of an expired lock key."""

    def keyspace_notification_dropped(self) -> None:
        """It told of one and nobody had room for it."""

    # The RFC's seven metrics

    def keyspace_requeued(self, count: int = 1) -> None:
        """Entries were recovered because of a notification."""

    def scan_requeued(self, count: int = 1) -> None:
        """Entries were recovered by the scan."""

    def scan_skipped_alive(self, count: int = 1) -> None:
        """The scan left entries alone whose owner is alive."""

    def duplicate_ack(self, count: int = 1) -> None:
        """Somebody else had recovered them first."""

    def dlq(self, count: int = 1) -> None:
        """Recovery gave entries up."""

    def scan_duration(self, seconds: float) -> None:
        """A scan is over."""

    def pel_depth(self, count: int) -> None:
        """So many entries are pending in the group."""

    # What workers need besides

    def published(self, count: int = 1) -> None:
        """Entries were appended."""

    def delivered(self, count: int = 1) -> None:
        """Entries were handed to us."""

    def settled(self, outcome: str, count: int = 1) -> None:
        """Deliveries have ended: ack, release, later, deadletter."""

    def handled(self, outcome: str, seconds: float) -> None:
        """A handler took so long, to this outcome."""

    def lease_lost(self, count: int = 1) -> None:
        """Deliveries turned out to be somebody else's by now."""

    def recovered(self, count: int = 1) -> None:
        """Deliveries that others left behind are ours."""

    def dead(self, reason: str, count: int = 1) -> None:
        """Entries became dead letters."""

    def discarded(self, reason: str, count: int = 1) -> None:
        """Entries were given up and dropped, as the settings ask."""

    def trimmed(self, count: int = 1) -> None:
        """Pending entries were found to have been trimmed away."""

    def delayed_depth(self, count: int) -> None:
        """So many entries wait for their time."""

    def lag(self, count: int) -> None:
        """So many entries have never been delivered to the group."""

    def in_progress(self, count: int) -> None:
        """So many handlers run."""

    def breaker(self, is_open: bool) -> None:
        """Reading was paused for a flood of dead letters, or goes on."""


class NullRecorder:
    """Counts nothing."""

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
