"""Messages for those who loop themselves: fetched, held, settled one by one."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from millstream.client.backend import Backend
from millstream.delivery.consumer import Settled
from millstream.delivery.delivery import Delivery
from millstream.delivery.settlement import DeadLetter, Reason, Release, Settlement
from millstream.errors import BackendError, LeaseLost, MalformedPayload, NotSettled, ServerReplied
from millstream.printable import safe_logger
from millstream.worker.message import Message
from millstream.worker.runtime.connect_retry import ConnectPatience, can_mend
from millstream.worker.runtime.leases import HeldDelivery, LeaseKeeper
from millstream.worker.runtime.listener import ExpiryListener
from millstream.worker.runtime.loop import AGAIN_CAP_S, AGAIN_FIRST_S, STOP_WITHIN_S, make_context
from millstream.worker.runtime.threads import Supervisor

if TYPE_CHECKING:
    from millstream.worker.definition import Definition


logger = safe_logger(logging.getLogger(__name__))


@dataclass(slots=True)
class _Refused:
    """A settlement that the server did not take, to be sent again."""

    held: HeldDelivery
    settlement: Settlement
    tries: int = 0
    due_s: float = 0.0


class Consuming:
    """A consumer at work; `next` until it is closed."""

    def __init__(
        self,
        definition: Definition,
        open_backend: Callable[[], Backend],
        backends: tuple[Backend, Backend],
        ahead: int,
        stop: threading.Event,
    ) -> None:
        self._definition = definition
        self._open_backend = open_backend
        self._backends = backends
        self._ahead = max(1, ahead)
        self._stop = stop
        self.consumer, keeper_consumer = (definition.make_consumer(backend) for backend in backends)
        keeper_consumer.name = self.consumer.name
        keeper_consumer.share_watch(self.consumer)
        self._supervisor = Supervisor(lambda: None)  # the next call of `next` raises what has failed
        self._keeper = LeaseKeeper(
            keeper_consumer, heart=definition.make_heart(self.consumer), supervisor=self._supervisor
        )
        self._context = make_context(self.consumer, definition.policy, self._keeper.extend, definition.urls)
        self._ready: deque[Message[Any]] = deque()
        self._held: dict[bytes, HeldDelivery] = {}
        self._refused: dict[bytes, _Refused] = {}
        self._settling = threading.RLock()  # asyncio settles in another thread than it reads
        self._patience = ConnectPatience(definition.settings, definition.url, stop)
        self._listener: ExpiryListener | None = None
        self.failure: BackendError | None = None  # why the last read came to nothing
        self._failures = 0  # in a row

    @classmethod
    def opened(
        cls,
        definition: Definition,
        open_backend: Callable[[], Backend],
        ahead: int,
        wait_s: float | None,
        stop: threading.Event,
    ) -> Consuming | None:
        """One that is connected, as soon as its server is there; None if `stop` was set before.

        `wait_s`: how long the caller waits for a message, and so for a server; the settings may say less.
        """
        limits = [limit for limit in (wait_s, definition.settings.connect_wait) if limit is not None]
        patience = ConnectPatience(definition.settings, definition.url, stop, min(limits, default=None))
        one = patience.open(open_backend)
        other = None if one is None else patience.open(open_backend)
        if one is None or other is None:
            if one is not None:
                one.close()
            return None
        try:
            made = cls(definition, open_backend, (one, other), ahead, stop)
            made._patience = patience
            return made
        except BaseException:
            one.close()
            other.close()
            raise

    def __enter__(self) -> Consuming:
        try:
            self._patience.until_it_works(self.consumer.open)
            self._keeper.start()
            self._listener = ExpiryListener.start_for(self.consumer, self._open_backend)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Settle what the server refused before, release what nobody settled, and end."""
        try:
            self._settle_rest()
        finally:
            self._close()

    def _settle_rest(self) -> None:
        with self._settling:
            for refused in list(self._refused.values()):
                self._send_again(refused)
            unread = {message.delivery.id for message in self._ready}
            rest = [
                (held.delivery, Release(has_begun=held.delivery.id not in unread))
                for held in self._held.values()
                if not held.lease.is_lost and held.delivery.id not in self._refused
            ]
            if rest:
                self.consumer.settle(rest)
            self.consumer.leave()

    def _close(self) -> None:
        self._stop.set()
        self._keeper.stop()
        if self._listener is not None:
            self._listener.stop()
        for backend in self._backends:
            backend.close()

    def next(self, wait_s: float | None) -> Message[Any] | None:
        """Return a message, or None after `wait_s` or the time of one read without one.

        A server that has gone away is asked again the next time, and `failure` says so meanwhile. Raises WorkerFailed
        if the thread that renews leases has failed.
        """
        self._supervisor.require_alive()
        self._settle_refused()
        if not self._ready:
            block = min(self.consumer.settings.block, STOP_WITHIN_S)
            if self._refused:
                block = min(block, AGAIN_FIRST_S)
            asked_ms = self.consumer.watch_ms()
            try:
                found = self.consumer.fetch(self._ahead, max(block if wait_s is None else min(wait_s, block), 0.001))
            except BackendError as error:
                self._pause(error, wait_s)
                return None
            self.failure, self._failures = None, 0
            suspects = [delivery for delivery in found if delivery.is_suspect]
            for delivery in [*(each for each in found if not each.is_suspect), *suspects[:1]]:
                self._take(delivery, asked_ms)
            if suspects[1:]:  # one at a time: the others are for whoever has room for them
                self.consumer.settle([(delivery, Release(has_begun=False)) for delivery in suspects[1:]])
        while self._ready:
            message = self._ready.popleft()
            if self._may_begin(message):
                return message
        return None

    def _may_begin(self, message: Message[Any]) -> bool:
        """Whether a message may be handed out: its lease is ours now, and its payload is what the type says.

        A suspect is marked as begun if the caller has no other message open, before anything of it is looked at.
        """
        held = self._held[message.delivery.id]
        if not self._keeper.is_ours(held):
            self._forget(held)
            return False
        try:
            is_alone = len(self._held) - len(self._ready) == 1
            if message.delivery.is_suspect and is_alone and not self.consumer.begin_alone(message.delivery):
                self._forget(held)
                return False
            message.data = self._definition.codec.decode(self.consumer.payload(message.delivery))
        except MalformedPayload as error:
            self._end(held, DeadLetter.of(Reason.MALFORMED, error, str(error)))
            return False
        return True

    def _forget(self, held: HeldDelivery) -> None:
        """Let go of a delivery that is somebody else's, or is going to be."""
        self._keeper.let_go(held)
        self.consumer.let_go(held.delivery)
        del self._held[held.delivery.id]

    def _pause(self, error: BackendError, wait_s: float | None) -> None:
        """Wait before the next read; raises what no waiting mends, and what has failed often enough."""
        settings = self.consumer.settings
        if not can_mend(error) or (settings.reconnect_tries is not None and self._failures >= settings.reconnect_tries):
            raise error
        self.failure = error
        self._failures += 1
        pause_s = settings.reconnect.delay(self._failures)
        logger.warning("reading %r failed, again in %.1f s: %s", self.consumer.stream, pause_s, error)
        self._stop.wait(pause_s if wait_s is None else min(pause_s, wait_s))

    def _take(self, delivery: Delivery, asked_ms: int) -> None:
        held = self._keeper.hold(delivery, asked_ms)
        self._held[delivery.id] = held
        self._ready.append(Message(None, delivery, self._context, held.lease, self._settle))

    def _settle(self, message: Message[Any], settlement: Settlement) -> None:
        held = self._held.get(message.delivery.id)
        if held is None or held.lease is not message.lease:
            raise LeaseLost(message.stream, message.id)
        try:
            result = self._end(held, settlement)
        except BackendError:
            self._keep(held, settlement)
            raise
        if result.error is not None:
            self._keep(held, settlement)
            message._is_settled = False
            raise NotSettled(message.stream, message.id, result.error)
        if result.is_lost:
            raise LeaseLost(message.stream, message.id)

    # What the server refused: its lease is renewed, so it is sent again until it is taken, unless the caller does

    def _keep(self, held: HeldDelivery, settlement: Settlement) -> None:
        self._refused[held.delivery.id] = _Refused(held, settlement, 1, time.monotonic() + AGAIN_FIRST_S)

    def _settle_refused(self) -> None:
        if not self._refused:
            return
        with self._settling:
            for refused in [each for each in self._refused.values() if each.due_s <= time.monotonic()]:
                self._send_again(refused)

    def _send_again(self, refused: _Refused) -> None:
        entry_id = refused.held.delivery.id
        if self._held.get(entry_id) is not refused.held or refused.held.lease.is_lost:
            self._refused.pop(entry_id, None)
            return
        refused.due_s = time.monotonic() + min(AGAIN_CAP_S, AGAIN_FIRST_S * 2**refused.tries)
        refused.tries += 1
        try:
            self._end(refused.held, refused.settlement)
        except BackendError as error:
            if isinstance(error, ServerReplied) and error.is_hopeless:
                raise
            logger.warning("%s of %r is not settled yet: %s", entry_id.decode(), self.consumer.stream, error)

    def _end(self, held: HeldDelivery, settlement: Settlement) -> Settled:
        with self._settling:
            is_repeat, held.is_sent = held.is_sent, True  # an earlier try may have reached the server
            result = self.consumer.settle([(held.delivery, settlement)], is_repeat=is_repeat)[0]
        if result.error is None:
            self._keeper.let_go(held)
            self._held.pop(held.delivery.id, None)
            self._refused.pop(held.delivery.id, None)
            held.lease.is_lost = held.lease.is_lost or result.is_lost
        return result
