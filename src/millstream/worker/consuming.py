"""Messages for those who loop themselves: fetched, held, settled one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from millstream.client.backend import Backend
from millstream.delivery.consumer import Settled
from millstream.delivery.settlement import DeadLetter, Reason, Release, Settlement
from millstream.errors import LeaseLost, MalformedPayload, NotSettled
from millstream.worker.leases import Held, LeaseKeeper
from millstream.worker.listener import ExpiryListener
from millstream.worker.loop import make_context
from millstream.worker.message import Message

if TYPE_CHECKING:
    from millstream.worker.definition import Definition


class Consuming:
    """A consumer at work; `next` until it is closed."""

    def __init__(self, definition: Definition, open_backend: Callable[[], Backend], ahead: int) -> None:
        self._definition = definition
        self._ahead = max(1, ahead)
        self._backend, self._lease_backend = open_backend(), open_backend()
        self.consumer = definition.make_consumer(self._backend)
        keeper_consumer = definition.make_consumer(self._lease_backend)
        keeper_consumer.name = self.consumer.name
        keeper_consumer.share_watch(self.consumer)
        self._keeper = LeaseKeeper(keeper_consumer, heart=definition.make_heart(self.consumer))
        self._context = make_context(self.consumer, definition.policy, self._keeper.extend)
        self._ready: deque[Message[Any]] = deque()
        self._held: dict[bytes, Held] = {}
        self._open_backend = open_backend
        self._listener: ExpiryListener | None = None

    def __enter__(self) -> Consuming:
        self.consumer.open()
        self._keeper.start()
        self._listener = ExpiryListener.start_for(self.consumer, self._open_backend)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release what nobody settled, and end."""
        try:
            left = [(held.delivery, Release()) for held in self._held.values() if held.lease.valid]
            if left:
                self.consumer.settle(left)
        finally:
            self._keeper.stop()
            if self._listener is not None:
                self._listener.stop()
            self._backend.close()
            self._lease_backend.close()

    def next(self, wait_s: float | None) -> Message[Any] | None:
        """A message, waiting for one up to `wait_s` and no longer than one read does; None if none came."""
        if not self._ready:
            block = self.consumer.settings.block if wait_s is None else min(wait_s, self.consumer.settings.block)
            for delivery in self.consumer.fetch(self._ahead, max(block, 0.001)):
                held = self._keeper.hold(delivery)
                self._held[delivery.id] = held
                message: Message[Any] = Message(None, delivery, self._context, held.lease, self._settle)
                try:
                    message.data = self._definition.codec.decode(self.consumer.payload(delivery))
                except MalformedPayload as error:
                    self._end(held, DeadLetter.of(Reason.MALFORMED, error, str(error)))
                else:
                    self._ready.append(message)
        return self._ready.popleft() if self._ready else None

    def _settle(self, message: Message[Any], settlement: Settlement) -> None:
        held = self._held.get(message.delivery.id)
        if held is None or held.lease is not message.lease:
            raise LeaseLost(message.stream, message.id)
        result = self._end(held, settlement)
        if result.error is not None:
            message._is_settled = False
            raise NotSettled(message.stream, message.id, result.error)
        if result.is_lost:
            raise LeaseLost(message.stream, message.id)

    def _end(self, held: Held, settlement: Settlement) -> Settled:
        is_repeat, held.is_sent = held.is_sent, True  # the caller tries again: the first time may have been it
        result = self.consumer.settle([(held.delivery, settlement)], is_repeat=is_repeat)[0]
        if result.error is None:
            self._keeper.let_go(held)
            del self._held[held.delivery.id]
            held.lease.is_lost = held.lease.is_lost or result.is_lost
        return result
