"""Keeps what is held: a thread with a connection of its own renews all leases of a consumer in a few calls.

    held: id ──▶ Held(delivery number, lease, deadline)
    every heartbeat: renew what has no deadline behind it ──▶ lost ones are told to their holder
    in between: maintain() when the consumer wants it

Of its own because the handler may block its thread, and the event loop with it, for as long as it likes. What is past
its deadline is renewed no longer and handed to `on_timeout`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from millstream.delivery.consumer import Consumer
from millstream.delivery.delivery import Delivery
from millstream.errors import BackendError
from millstream.printable import safe_logger
from millstream.worker.message import Lease
from millstream.worker.runtime.due_watch import DueWatch
from millstream.worker.runtime.lease_process import Heart
from millstream.worker.runtime.threads import SYSTEM, Supervisor, ThreadLike, Threads

logger = safe_logger(logging.getLogger(__name__))
RENEWING = "renewing leases"


@dataclass(slots=True, eq=False)
class HeldDelivery:
    """A delivery in our hands."""

    delivery: Delivery
    lease: Lease = field(default_factory=Lease)
    deadline_ms: int | None = None  # by the watch; None: no limit (not started yet, or none was set)
    is_sent: bool = False  # a settlement of it was sent, and may have reached the server


class LeaseKeeper:
    """Renews in the background; `start`, then `stop`."""

    def __init__(
        self,
        consumer: Consumer,
        *,
        on_lost: Callable[[HeldDelivery], None] | None = None,
        on_timeout: Callable[[HeldDelivery], None] | None = None,
        maintains: bool = True,
        heart: Heart | None = None,
        threads: Threads = SYSTEM,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._consumer = consumer  # one that nobody else uses: its backend is this thread's
        self._on_lost = on_lost
        self._on_timeout = on_timeout
        self._maintains = maintains
        self._heart = heart  # a process that renews too
        self._held: dict[
            tuple[bytes, int], HeldDelivery
        ] = {}  # by id and number: after a loss we may get the same entry again
        self._lock = threading.Lock()
        self._threads = threads
        self._supervisor = supervisor or Supervisor(lambda: None)
        self._wake = threads.Event()
        self._is_stopping = False
        self._thread: ThreadLike | None = None
        self._next_renew_ms = 0
        self._due_watch = DueWatch(consumer, self._on_sooner, threads, self._supervisor) if maintains else None

    # Who holds what

    def hold(self, delivery: Delivery, asked_ms: int) -> HeldDelivery:
        """Keep a delivery ours from now on; `asked_ms` is when, by the watch, the server was asked for it."""
        until_ms = asked_ms + self._consumer.validity_ms
        held = HeldDelivery(delivery, Lease(until_ms=until_ms, watch_ms=self._consumer.watch_ms))
        with self._lock:
            self._held[delivery.id, delivery.number] = held
        if self._heart is not None:
            self._heart.hold(delivery, None)
        return held

    def let_go(self, held: HeldDelivery) -> None:
        """Stop renewing a settled delivery."""
        with self._lock:
            if self._held.get((held.delivery.id, held.delivery.number)) is held:
                del self._held[held.delivery.id, held.delivery.number]
        if self._heart is not None:
            self._heart.drop(held.delivery)

    def set_deadline(self, held: HeldDelivery, seconds: float | None) -> None:
        """Its handler must answer within this time."""
        held.deadline_ms = None if seconds is None else self._consumer.watch_ms() + round(seconds * 1000)
        if seconds is not None:
            self._wake.set()
            if self._heart is not None:
                self._heart.hold(held.delivery, seconds)

    def extend(self, delivery: Delivery, seconds: float) -> None:
        """Move a deadline to at least this long from now."""
        with self._lock:
            held = self._held.get((delivery.id, delivery.number))
        if held is not None and held.deadline_ms is not None:
            held.deadline_ms = max(held.deadline_ms, self._consumer.watch_ms() + round(seconds * 1000))
            if self._heart is not None:
                self._heart.hold(delivery, (held.deadline_ms - self._consumer.watch_ms()) / 1000)

    def is_ours(self, held: HeldDelivery) -> bool:
        """Whether its handler may begin: by the watch, or else by the server, which renews the lease if it is ours."""
        if held.lease.valid:
            return True
        if held.lease.is_lost:
            return False
        try:
            self._renew([held])
        except BackendError as error:
            logger.warning("the lease on %s could not be renewed now: %s", held.delivery.id.decode(), error)
        return held.lease.valid

    def snapshot(self) -> list[HeldDelivery]:
        with self._lock:
            return list(self._held.values())

    # The thread

    def start(self) -> None:
        if self._heart is not None:
            self._heart.start()
        work = self._supervisor.guard("the thread that renews leases", self._run)
        self._thread = self._threads.Thread(target=work, name="millstream-leases", daemon=True)
        self._thread.start()
        if self._due_watch is not None:
            self._due_watch.start()

    def stop(self, within_s: float = 10.0) -> None:
        """End the thread; leases run out by themselves from then on."""
        self._is_stopping = True
        self._wake.set()
        if self._due_watch is not None:
            self._due_watch.stop()
        if self._thread is not None:
            self._thread.join(timeout=within_s)
        if self._heart is not None:
            self._heart.stop()

    def _on_sooner(self) -> None:
        self._consumer.promote_now()
        self._wake.set()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._is_stopping:
            self._wake.wait(wait_s)
            self._wake.clear()
            try:
                wait_s = self.turn()
            except BackendError as error:
                # leases run on at the server; the next turn comes well before they are over
                doing = RENEWING if self._is_renewing else self._consumer.doing
                logger.warning("%s of %r failed, trying again: %s", doing, self._consumer.stream, error)
                wait_s = min(1.0, self._consumer.settings.heartbeat_s / 2)

    def turn(self) -> float:
        """Return the due renewals, and the seconds until the next one."""
        now = self._consumer.watch_ms()
        self._time_out(now)
        self._is_renewing = True
        if now >= self._next_renew_ms:
            self._revive_heart()
            self._renew(self.snapshot())
            self._next_renew_ms = now + round(self._consumer.settings.heartbeat_s * 1000)
        wait_s = (self._next_renew_ms - now) / 1000
        self._is_renewing = False
        if self._maintains:
            wait_s = min(wait_s, self._consumer.maintain())
        deadlines = [held.deadline_ms for held in self.snapshot() if held.deadline_ms is not None]
        if deadlines:
            wait_s = min(wait_s, (min(deadlines) - self._consumer.watch_ms()) / 1000)
        return max(0.005, wait_s)

    _is_renewing = True  # for the log: what the turn was at when the server refused

    def _revive_heart(self) -> None:
        """Start the lease-keeping process again if it has ended."""
        if self._heart is None or not self._heart.has_ended:
            return
        self._heart.start()
        now = self._consumer.watch_ms()
        for held in self.snapshot():
            self._heart.hold(held.delivery, None if held.deadline_ms is None else (held.deadline_ms - now) / 1000)

    def _time_out(self, now: int) -> None:
        for held in self.snapshot():
            if held.deadline_ms is not None and now >= held.deadline_ms:
                self.let_go(held)
                if self._on_timeout is not None:
                    self._on_timeout(held)

    def _renew(self, held: list[HeldDelivery]) -> None:
        if not held:
            return
        until_ms = self._consumer.watch_ms() + self._consumer.validity_ms
        newest = {each.delivery.id: each for each in sorted(held, key=lambda each: each.delivery.number)}
        lost = self._consumer.renew((each.delivery.id, each.delivery.number) for each in newest.values())
        for each in held:
            is_lost = each.delivery.id in lost or newest[each.delivery.id] is not each
            if not is_lost:
                each.lease.until_ms = until_ms
            # settled while the call was under way: not lost
            if is_lost and self._held.get((each.delivery.id, each.delivery.number)) is each:
                each.lease.is_lost = True
                self.let_go(each)
                self._consumer.recorder.lease_lost()
                logger.warning("the lease on %s of %r was lost", each.delivery.id.decode(), self._consumer.stream)
                if self._on_lost is not None:
                    self._on_lost(each)
