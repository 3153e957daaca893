"""What a handler is given: the payload, what is known about its delivery, and the words to end it with.

A message is settled once. `ack`, `retry`, `release` and `reject` go through the function that its maker gave it, which
raises LeaseLost when the entry is somebody else's by then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from millstream.clock import elapsed_ms
from millstream.delivery import settlement as ends
from millstream.delivery.delivery import Delivery
from millstream.delivery.policy import Failure, RetryPolicy, decide
from millstream.delivery.settlement import DeadLetter, Reason, Settlement
from millstream.delivery.steps import Publication
from millstream.errors import DeliveryError
from millstream.printable import safe_logger

if TYPE_CHECKING:
    from millstream.worker.base import StreamBase

logger = safe_logger(logging.getLogger(__name__))
T = TypeVar("T")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Context:
    """What all messages of one consumer share."""

    stream: str
    group: str
    prefix: bytes
    policy: RetryPolicy
    now_ms: Callable[[], int]
    extend: Callable[[Delivery, float], None]
    attempt: Callable[[Delivery], int]
    retry_count: Callable[[Delivery], int]
    original_id: Callable[[Delivery], bytes]
    urls: tuple[str, ...] = ()  # where the stream is, and where it was said to be
    is_cluster: bool = False


@dataclass(slots=True)
class Lease:
    """Whether the delivery is still ours."""

    is_lost: bool = False  # a renewal or a settlement has found the entry with somebody else
    until_ms: int | None = None  # by the watch: it may be somebody else's from then on; None: not known
    watch_ms: Callable[[], int] = elapsed_ms

    @property
    def valid(self) -> bool:
        """Whether nobody else can have the entry now, by our own clock: no thread has to run for it to become False.

        The next renewal makes it True again if it finds that the entry is still ours.
        """
        return not self.is_lost and (self.until_ms is None or self.watch_ms() < self.until_ms)


@dataclass(slots=True, eq=False)
class Message(Generic[T]):
    """One delivery with its payload."""

    data: T
    delivery: Delivery
    context: Context
    lease: Lease = field(default_factory=Lease)
    _settle: Callable[[Message[T], Settlement], None] | None = None
    _is_settled: bool = False
    _once: threading.Lock = field(default_factory=threading.Lock)
    _published: list[Publication] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.delivery.id.decode()

    @property
    def stream(self) -> str:
        return self.context.stream

    @property
    def attempt(self) -> int:
        """Which try this is, from 1: failures count; releases and deaths of the process do not."""
        return self.context.attempt(self.delivery)

    @property
    def retry_count(self) -> int:
        return self.context.retry_count(self.delivery)

    @property
    def original_id(self) -> str:
        """The id that it had first: redriven entries and copies have others."""
        return self.context.original_id(self.delivery).decode()

    @property
    def age(self) -> float:
        """Seconds since it was appended."""
        return max(0.0, (self.context.now_ms() - self.delivery.created_ms) / 1000)

    @property
    def fence(self) -> str:
        """A token for writes of your own: a later delivery of the same entry has a greater one, compared as text.

        It is the id and, after the colon, ten digits that grow with every delivery. Compare tokens of one entry only.
        """
        return f"{self.id}:{self.delivery.fence:010d}"

    @property
    def headers(self) -> Mapping[str, str]:
        """What the producer put beside the payload."""
        mark = self.context.prefix + b"h."
        return {
            name[len(mark) :].decode("utf-8", "replace"): value.decode("utf-8", "replace")
            for name, value in self.delivery.fields
            if name.startswith(mark)
        }

    @property
    def is_settled(self) -> bool:
        return self._is_settled

    def publish(
        self,
        stream: StreamBase[V],
        value: V,
        *,
        delay: float = 0.0,
        dedupe: str | None = None,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Append a value to a stream in the step that acknowledges this message: both happen, or neither.

        Nothing is sent before. If the message ends in another way (retried, rejected, released, its lease lost), it is
        not published. The stream must be at the same place, and on a cluster in the same slot.
        """
        if self._is_settled:
            raise DeliveryError(f"{self.id} of {self.stream!r} is settled already: nothing can be published with it")
        definition, context = stream._definition, self.context
        definition.require_beside(context.stream, context.urls, is_cluster=context.is_cluster)
        self._published.append(definition.publication(value, delay, dedupe, ttl, headers, context.now_ms))

    def ack(self) -> None:
        """Acknowledge the message: its work is done."""
        self.settle(ends.Ack())

    def retry(self, delay: float = 0.0) -> None:
        """Deliver it again, after a while; counts, and at the limit it becomes a dead letter."""
        failure = Failure("retry", f"retry asked for after {self.attempt} deliveries", delay_s=delay)
        self.settle(decide(self.context.policy, self.attempt, failure))

    def release(self) -> None:
        """Give it back, uncounted."""
        self.settle(ends.Release())

    def reject(self, reason: str = "") -> None:
        """Make it a dead letter."""
        self.settle(DeadLetter(Reason.REJECTED, reason))

    def extend(self, seconds: float) -> None:
        """Keep the lease at least this long from now, even beyond the handler's time limit."""
        self.context.extend(self.delivery, seconds)

    def whole(self, settlement: Settlement) -> Settlement:
        """Return a settlement with its publications: an acknowledgement appends them in the same step."""
        return ends.Ack(tuple(self._published)) if isinstance(settlement, ends.Ack) else settlement

    def settle(self, settlement: Settlement) -> None:
        """End the delivery."""
        with self._once:
            if self._is_settled:
                raise DeliveryError(f"{self.id} of {self.stream!r} is settled already")
            self._is_settled = True
        if self._settle is not None:
            try:
                self._settle(self, self.whole(settlement))
            except DeliveryError:
                raise
            except Exception:
                self._is_settled = False  # the server may not have it: the caller can try again
                raise

    def __enter__(self) -> Message[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Acknowledge; after an exception log it, do what the retry policy says, and go on.

        The exception does not pass: the loop goes on with the next message. SystemExit, KeyboardInterrupt and
        cancellations do pass, and the message is released.
        """
        if self._is_settled:
            if isinstance(error, Exception):
                logger.error("%s of %r failed after it had been settled", self.id, self.stream, exc_info=error)
            return isinstance(error, Exception)
        if error is not None and not isinstance(error, Exception):
            self.settle(ends.Release())  # interrupted, not failed
            return False
        self.settle(self.context.policy.settle(self.attempt, error))
        return error is not None


def as_failure(error: BaseException) -> Exception:
    """Make a failure of what a handler must not raise: SystemExit, KeyboardInterrupt, a cancellation of its own."""
    failure = RuntimeError(f"the handler raised {error!r}")
    failure.__cause__ = error
    return failure
