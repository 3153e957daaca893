"""Recovery as the RFC has it, for fleets that share a group with its library: lock keys, scan, requeue by copy.

    scan:     XPENDING of what is idle ──▶ requeue step: lock there? owner lives. Gone? copy, acknowledge, delete
    listener: a lock expired           ──▶ the same step for that one id, which looks at the lock again

The step is atomic and adds before it acknowledges, so the RFC's loss window does not exist. A scan walks the whole
list, page by page: living entries at its head cannot hide dead ones behind them. `scan` walks it at once, before the
first read; `walk` takes one page a call, so that whoever also renews leases can do so between two pages.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Protocol

from millstream.delivery.config.settings import Settings
from millstream.delivery.recorder import Recorder
from millstream.delivery.server_clock import ServerWatch
from millstream.delivery.settlement import Discard, Reason
from millstream.delivery.steps import Steps
from millstream.errors import BackendError
from millstream.printable import safe_logger

logger = safe_logger(logging.getLogger(__name__))

MOST_PAGES: Final = 100_000  # a list that grows as fast as it is walked must not keep a scan going for ever
# A consumer writes its lock a moment after it was given the entry. A late event about the lock of the one before must
# not take the entry away in that moment; whoever is dead has been idle for as long as its lock lasted.
EVENT_MIN_IDLE_MS: Final = 250
JITTER: Final = 0.1


class Code(IntEnum):
    """What the requeue step says of an entry."""

    NOT_PENDING = 0  # somebody else has recovered or settled it
    REQUEUED = 1
    ALIVE = 2  # its lock is there
    YOUNG = 3  # delivered anew since it was seen
    DEAD = 4
    TRIMMED = 5
    DROPPED = 6


class RunsRecoveryCalls(Protocol):
    def run(self, call: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Scan:
    """What a walk over the pending list found."""

    seen: int  # idle long enough to be looked at
    recovered: int  # requeued, dead-lettered or dropped
    is_whole: bool  # False: an error ended it early


@dataclass(slots=True)
class _KeyWalk:
    """A scan that is under way."""

    started: float
    after: bytes = b"0-0"
    pages: int = 0
    seen: int = 0
    recovered: int = 0


@dataclass(slots=True)
class RfcRecovery:
    """Requeues what the dead left, by scan and by event."""

    steps: Steps
    settings: Settings
    recorder: Recorder
    watch: ServerWatch  # whether the server's clock can be believed
    watch_ms: Callable[[], int]
    luck: random.Random = field(default_factory=random.Random)
    _walk: _KeyWalk | None = None

    def next_interval_ms(self) -> int:
        """Until the next scan, with jitter: a fleet started together must not scan together."""
        return round(self.settings.reconcile_every * 1000 * self.luck.uniform(1 - JITTER, 1 + JITTER))

    def scan(self, backend: RunsRecoveryCalls) -> Scan:
        """Walk the pending list once. An error ends the walk, not the caller."""
        walk = _KeyWalk(time.perf_counter())
        is_whole = True
        try:
            while self._page(backend, walk, self.settings.startup_batch):
                pass
        except BackendError as error:
            is_whole = False
            self._note_error(error)
        self.recorder.scan_duration(time.perf_counter() - walk.started)
        return Scan(walk.seen, walk.recovered, is_whole)

    def walk(self, backend: RunsRecoveryCalls) -> bool:
        """One page of a scan, begun if none is under way; whether there is more to walk."""
        walk = self._walk = self._walk or _KeyWalk(time.perf_counter())
        try:
            if self._page(backend, walk, self.settings.batch):
                return True
        except BackendError as error:
            self._note_error(error)
        self._walk = None
        self.recorder.scan_duration(time.perf_counter() - walk.started)
        return False

    def on_expired(self, backend: RunsRecoveryCalls, ids: Sequence[bytes]) -> int | None:
        """Locks are gone: requeue their entries, unless a lock is there again or the entry is settled.

        How many were; None when the server's clock cannot be believed now, and the scan has to find them.
        """
        return self._requeue(backend, ids, min(EVENT_MIN_IDLE_MS, round(self.settings.lease * 500)), by_scan=False)

    def _page(self, backend: RunsRecoveryCalls, walk: _KeyWalk, size: int) -> bool:
        """Look at so many entries; whether there may be more."""
        min_idle_ms = round(self.settings.min_idle_s * 1000)
        page = backend.run(self.steps.pending_page(walk.after, size, min_idle_ms))
        if page:
            recovered = self._requeue(backend, [row[0] for row in page], min_idle_ms, by_scan=True)
            if recovered is None:
                return False
            walk.seen += len(page)
            walk.recovered += recovered
            walk.after = page[-1][0]
        walk.pages += 1
        return len(page) == size and walk.pages < MOST_PAGES

    def _requeue(
        self, backend: RunsRecoveryCalls, ids: Sequence[bytes], min_idle_ms: int, *, by_scan: bool
    ) -> int | None:
        if not self.watch.may_take_over(
            self.watch_ms()
        ):  # asked here: the server may have stood still since the ids came
            return None
        settings = self.settings
        call = self.steps.requeue(
            ids,
            min_idle_ms=min_idle_ms,
            max_retries=settings.max_retries,
            drop=settings.dead_letter is Discard,
            expected_ms=self.watch.expected_ms(self.watch_ms()),
            tolerance_ms=self.watch.tolerance_ms,
        )
        done = backend.run(call)
        if self.watch.look(done.server_ms, self.watch_ms()):
            logger.warning("the server's clock has jumped: nothing is requeued for %d ms", self.watch.pause_ms)
        if not done.codes:
            return None
        for entry_id, code in zip(ids, done.codes, strict=True):
            self._record(entry_id, code, by_scan)
        return sum(code in (Code.REQUEUED, Code.DEAD, Code.DROPPED) for code in done.codes)

    def _note_error(self, error: BackendError) -> None:
        logger.error("the scan of %r ended early: %s", self.steps.keys.stream, error)

    def _record(self, entry_id: bytes, code: int | str, by_scan: bool) -> None:
        recorder = self.recorder
        stream = self.steps.keys.stream
        match code:
            case str():
                logger.error("%s of %r could not be requeued and stays pending: %s", entry_id.decode(), stream, code)
            case Code.REQUEUED:
                recorder.scan_requeued() if by_scan else recorder.keyspace_requeued()
            case Code.NOT_PENDING:
                recorder.duplicate_ack()
            case Code.ALIVE:
                if by_scan:
                    recorder.scan_skipped_alive()
            case Code.DEAD:
                recorder.dlq()
                recorder.dead(Reason.RETRIES)
            case Code.TRIMMED:
                recorder.trimmed(1)
                logger.error("%s of %r was trimmed away while it was pending", entry_id.decode(), stream)
            case Code.DROPPED:
                recorder.dlq()
                recorder.discarded(Reason.RETRIES)
                logger.error(
                    "%s of %r is dropped: too many retries, and dead letters are discarded here",
                    entry_id.decode(),
                    stream,
                )
