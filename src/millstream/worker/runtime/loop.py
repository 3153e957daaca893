"""The worker: reads as much as it has room for, has handlers run, settles what they answer.

    reader (this thread)   fetch(credit) ──▶ hold ──▶ threads or tasks run the handler
    settler (a thread)     answers, many a call ◀────────────┘
    leases  (a thread)     renews all that is held, with a connection of its own

All are supervised: whatever ends one unexpectedly is logged, and `run` raises WorkerFailed. The three meet only
through queues and the lease keeper. An answer that the server cannot take now is kept and sent again while the lease
is renewed; so a short outage costs nothing, and finished work is not done twice.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from millstream.client.backend import Backend
from millstream.client.payload import Codec
from millstream.client.urls import hide_password
from millstream.delivery.config.settings import Settings
from millstream.delivery.consumer import Consumer
from millstream.delivery.delivery import Delivery
from millstream.delivery.failure_log import describe
from millstream.delivery.policy import RetryPolicy
from millstream.delivery.settlement import DeadLetter, Later, Reason, Release, Settlement
from millstream.delivery.signals import Interrupted
from millstream.errors import BackendError, ConfigError, LeaseLost, MalformedPayload, ServerReplied
from millstream.printable import safe_logger
from millstream.worker.banner import announce
from millstream.worker.handlers import Middleware, Registered
from millstream.worker.message import Context, Message, as_failure
from millstream.worker.runtime.breaker import FloodBreaker
from millstream.worker.runtime.connect_retry import ConnectPatience
from millstream.worker.runtime.lease_process import Heart
from millstream.worker.runtime.leases import HeldDelivery, LeaseKeeper
from millstream.worker.runtime.listener import ExpiryListener
from millstream.worker.runtime.pool import ThreadPool
from millstream.worker.runtime.stop_signals import StopSignals
from millstream.worker.runtime.threads import SYSTEM, Supervisor, ThreadKilled, ThreadLike, Threads

logger = safe_logger(logging.getLogger(__name__))
MOST_AT_ONCE = 500  # settlements a call
HURRY_S = 2.0  # for the last answers, where nothing else is waited for
STOP_WITHIN_S = 1.0  # no read waits longer, so that stop() is heard
AGAIN_FIRST_S, AGAIN_CAP_S = 0.2, 10.0  # for settlements that the server refused
PUT_OFF_AFTER, PUT_OFF_S = 3, 300.0  # a dead letter that cannot be written: tries, and then how long the entry waits


@dataclass(slots=True, eq=False)
class RunningHandler:
    """A delivery and its handler."""

    held: HeldDelivery
    message: Message[Any]
    started: float = 0.0
    thread: int | None = None  # of a blocking handler
    task: Future[Any] | None = None  # of a coroutine
    is_over: bool = False  # answered, timed out or lost: whatever comes later is passed over
    is_dropped: bool = False  # settled or lost, and no longer counted as in hand
    lock: threading.Lock = field(default_factory=threading.Lock)

    def finish(self, *, unless_started: bool = False) -> bool:
        """Claim the right to answer; False for the second one who tries, or if asked for when the handler has begun."""
        with self.lock:
            if unless_started and self.started:
                return False
            was_over, self.is_over = self.is_over, True
            return not was_over


@dataclass(slots=True)
class _Answer:
    running: RunningHandler
    settlement: Settlement
    tries: int = 0
    due: float = 0.0  # not before


class HandlerTimeout(Exception):
    """A handler took longer than its time limit."""


class Worker:
    """Runs one handler on one stream until it is stopped."""

    def __init__(
        self,
        handler: Registered,
        codec: Codec[Any],
        policy: RetryPolicy,
        open_backend: Callable[[], Backend],
        make_consumer: Callable[[Backend], Consumer],
        *,
        middlewares: Sequence[Middleware] = (),
        loop: asyncio.AbstractEventLoop | None = None,
        make_heart: Callable[[Consumer], Heart | None] = lambda _: None,
        threads: Threads = SYSTEM,
        settings: Settings | None = None,
        urls: tuple[str, ...] = ("memory://",),
    ) -> None:
        self._handler = handler
        self._codec = codec
        self._policy = policy
        self._call = handler.wrapped(middlewares)
        self._open_backend = open_backend
        self._make_consumer = make_consumer
        self._loop = loop
        self._own_loop = False
        self._urls = urls
        self._settings = settings or Settings()  # for the first connection; then it is the consumer's
        self._backends: list[Backend] = []
        self._make_heart = make_heart
        self._supervisor = Supervisor(self.stop)
        self.longest_read_s = STOP_WITHIN_S
        self._ended_by: BackendError | None = None  # the server refuses settlements for good
        self._threads = threads
        self._stop = threads.Event()
        self._room = threads.Condition()
        self._in_progress = 0  # handlers that run
        self._progress_lock = threading.Lock()
        self._is_flooded = False  # the breaker is open
        self._in_hand = 0  # read and not yet answered
        self._is_alone = False  # a suspect is handled, or about to be, and nothing else may begin
        self._has_suspects = False  # the last read brought one: there may be more
        self._answers: queue.SimpleQueue[_Answer | None] = threads.SimpleQueue()
        self._due: list[float] = []  # when retries of ours are, a heap; the settler's
        self._running: dict[tuple[bytes, int], RunningHandler] = {}  # by id and delivery number

    # For the outside

    def run(self, *, signals: bool | None = None) -> None:
        """Work until `stop()`, SIGTERM or SIGINT; then drain, and release what is left, uncounted.

        A server that is not there yet is waited for, as long as the setting `connect_wait` says. `signals`: see
        `stop_signals`.
        """
        with StopSignals(lambda at_once: self.stop(at_once=at_once), signals):
            try:
                if self._open():
                    self._announce()
                    self._work()
                    self._supervisor.require_alive()
                    if self._ended_by is not None:
                        raise self._ended_by
            finally:
                for backend in self._backends:
                    backend.close()

    def _open(self) -> bool:
        """Connect, twice, and put together what works with it; False if we were stopped before that."""
        patience = ConnectPatience(
            self._settings, self._urls[0], self._stop, self._settings.connect_wait, self._threads
        )
        while len(self._backends) < 2:
            backend = patience.open(self._open_backend)
            if backend is None:
                return False
            self._backends.append(backend)
        self.consumer, keeper_consumer = (self._make_consumer(backend) for backend in self._backends)
        keeper_consumer.name = self.consumer.name
        keeper_consumer.share_watch(self.consumer)
        self._keeper = LeaseKeeper(
            keeper_consumer,
            on_lost=self._on_lost,
            on_timeout=self._on_timeout,
            heart=self._make_heart(self.consumer),
            threads=self._threads,
            supervisor=self._supervisor,
        )
        self._breaker = FloodBreaker(self.consumer.settings.breaker)
        self._context = self._make_context()
        return True

    def _announce(self) -> None:
        consumer = self.consumer
        announce(
            stream=consumer.stream,
            group=consumer.group,
            url=hide_password(self._urls[0]),
            concurrency=self._handler.concurrency,
            dead=consumer.keys.dead,
        )

    def stop(self, *, at_once: bool = False) -> None:
        """Stop reading; `run` returns when what is in hand is done or released; `at_once`: released."""
        if at_once:
            self._is_hurried = True
            self._give_up_at = min(self._give_up_at, self._threads.monotonic() + HURRY_S)
        self._stop.set()
        with self._room:
            self._room.notify_all()

    def reset_topology(self) -> None:
        """Learn a cluster's shape anew; never needed, as its answers tell."""
        for backend in self._backends:
            backend.reset_topology()

    @property
    def id(self) -> str:
        """The consumer's name."""
        return self.consumer.name.decode("utf-8", "replace")

    # The reader

    def _work(self) -> None:
        consumer = self.consumer
        self._until_it_works(consumer.open)
        size = self._handler.concurrency
        name = f"millstream-{consumer.stream.decode(errors='replace')}"
        self._pool = None if self._handler.is_async else ThreadPool(size, name, self._threads, self._supervisor)
        if self._handler.is_async and self._loop is None:
            self._start_loop()
        settling = self._supervisor.guard("the thread that settles", self._settle_all)
        settler = self._threads.Thread(target=settling, name="millstream-settle", daemon=True)
        settler.start()
        self._keeper.start()
        listener = ExpiryListener.start_for(consumer, self._open_backend)
        try:
            failures = 0
            while not self._stop.is_set():
                failures = self._read_once(failures)
        finally:
            if listener is not None:
                listener.stop()
            self._drain(settler)

    def _read_once(self, failures: int) -> int:
        """One read; how many have failed in a row."""
        consumer, settings = self.consumer, self.consumer.settings
        credit = self._wait_for_room()
        if credit == 0:
            return failures
        asked_ms = consumer.watch_ms()
        try:
            found = consumer.fetch(1 if self._has_suspects else credit, min(settings.block, self.longest_read_s))
        except BackendError as error:
            if _is_over(error, failures, settings):
                raise
            wait_s = settings.reconnect.delay(failures + 1)
            logger.warning("reading %r failed, again in %.1f s: %s", consumer.stream, wait_s, error)
            self._stop.wait(wait_s)
            return failures + 1
        suspects = [delivery for delivery in found if delivery.is_suspect]
        for delivery in found:
            if not delivery.is_suspect:
                self._take(delivery, asked_ms)
        self._has_suspects = bool(suspects)
        if suspects:
            self._pass_on(suspects[1:])
            self._run_alone(suspects[0], asked_ms)
        return 0

    def _wait_for_room(self) -> int:
        """How many may be read: twice what can run, so that no handler waits for the network."""
        most = self._most
        with self._room:
            while self._in_hand >= most and not self._stop.is_set():
                # never for ever: a signal that comes just before a thread begins to wait does not wake it, and Python's
                # own handler runs only when this, the main thread, does
                self._room.wait(STOP_WITHIN_S)
            if self._stop.is_set():
                return 0
            pause_ms = self._breaker.wait_ms(self.consumer.watch_ms())
            credit = most - self._in_hand
        if self._is_flooded and not pause_ms:
            self._is_flooded = False
            self.consumer.recorder.breaker(False)
        if pause_ms:
            self._stop.wait(min(pause_ms / 1000, 1.0))
            return 0
        return credit

    @property
    def _most(self) -> int:
        """How many may be in hand."""
        return min(2 * self._handler.concurrency, max(self.consumer.settings.batch, self._handler.concurrency))

    def _until_it_works(self, action: Callable[[], None]) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                action()
                return
            except BackendError as error:
                settings = self.consumer.settings
                if not error.is_retryable or failures == settings.reconnect_tries:
                    raise
                failures += 1
                logger.warning("starting on %r failed, trying again: %s", self.consumer.stream, error)
                self._stop.wait(settings.reconnect.delay(failures))

    def _take(self, delivery: Delivery, asked_ms: int) -> None:
        """Hold a delivery and have its handler run."""
        self._submit(self._hold(delivery, asked_ms))

    def _hold(self, delivery: Delivery, asked_ms: int) -> RunningHandler:
        held = self._keeper.hold(delivery, asked_ms)
        running = RunningHandler(held, Message(None, delivery, self._context, held.lease))
        running.message._settle = lambda _, settlement: self._answer_early(running, settlement)
        with self._room:
            self._in_hand += 1
            self._running[delivery.id, delivery.number] = running
        return running

    def _submit(self, running: RunningHandler) -> None:
        """Decode the payload and have the handler run."""
        try:
            running.message.data = self._codec.decode(self.consumer.payload(running.held.delivery))
        except MalformedPayload as error:
            running.finish()
            self._answers.put(_Answer(running, DeadLetter.of(Reason.MALFORMED, error, str(error))))
            return
        if self._pool is not None:
            self._pool.submit(lambda: self._run_blocking(running))
        else:
            assert self._loop is not None
            running.task = asyncio.run_coroutine_threadsafe(self._run_coroutine(running), self._loop)

    # Suspects: entries whose last delivery ended without an answer, and which may have killed their process

    def _pass_on(self, deliveries: list[Delivery]) -> None:
        """Give deliveries back that nobody began on, for whoever has room for them."""
        if not deliveries:
            return
        try:
            self.consumer.settle([(delivery, Release(has_begun=False)) for delivery in deliveries])
        except BackendError as error:
            logger.warning("%d entries could not be given back and wait for a lease: %s", len(deliveries), error)
            for delivery in deliveries:
                self.consumer.let_go(delivery)

    def _run_alone(self, delivery: Delivery, asked_ms: int) -> None:
        """Handle a suspect while nothing else is in hand: if the process dies, it is known of what."""
        running = self._hold(delivery, asked_ms)
        logger.info(
            "%s of %r may have ended its process and is handled alone", running.message.id, self.consumer.stream
        )
        try:
            with self._room:
                self._is_alone = True
                self._await(lambda: self._in_hand <= 1 or running.is_dropped)
            if not self._stop.is_set() and self._may_begin_alone(running):
                self._submit(running)
                with self._room:
                    self._await(lambda: running.is_dropped)
        finally:
            self._is_alone = False

    def _await(self, condition: Callable[[], bool]) -> None:
        """Wait, holding `_room`, until the condition holds or the worker is stopped."""
        while not condition() and not self._stop.is_set():
            self._room.wait(STOP_WITHIN_S)

    def _may_begin_alone(self, running: RunningHandler) -> bool:
        """Write down that a suspect's handler begins; False if the entry is not ours or the server cannot be asked."""
        asked_ms = self.consumer.watch_ms()
        try:
            if self.consumer.begin_alone(running.held.delivery):
                running.held.lease.until_ms = asked_ms + self.consumer.validity_ms
                return True
        except BackendError as error:
            logger.warning("%s is not begun now: %s", running.message.id, error)
        if running.finish():
            self._answers.put(_Answer(running, Release(has_begun=False)))
        return False

    # Handlers; whatever they raise is their failure, and never ours

    def _begin(self, running: RunningHandler) -> bool:
        """Whether the handler may start: not if the delivery was released or lost while it waited for a thread."""
        if not self._keeper.is_ours(running.held):
            if running.finish():
                self._answers.put(_Answer(running, Release(has_begun=False)))
            return False
        with running.lock:
            if running.is_over:
                return False
            running.started = self._threads.monotonic()
        running.thread = threading.get_ident()
        self.consumer.recorder.processing_start(running.message.id)
        self._count_progress(1)
        self._keeper.set_deadline(running.held, self._handler.timeout_s)
        return True

    def _run_blocking(self, running: RunningHandler) -> None:
        if not self._begin(running):
            return
        failure: BaseException | None = None
        try:
            self._call(running.message)
        except Exception as error:
            failure = error
        except ThreadKilled:
            raise
        except BaseException as error:  # a handler's sys.exit() must not take a thread of ours with it
            failure = as_failure(error)
        self._answer(running, failure)

    async def _run_coroutine(self, running: RunningHandler) -> None:
        if self._semaphore is None:
            self._semaphore = asyncio.Semaphore(self._handler.concurrency)
        try:
            async with self._semaphore:
                if self._begin(running):
                    self._answer(running, await self._outcome(running))
        except (asyncio.CancelledError, GeneratorExit, ThreadKilled):  # GeneratorExit: the loop is gone, and we with it
            raise
        except BaseException as error:
            self._supervisor.report("the task of a handler", error)

    async def _outcome(self, running: RunningHandler) -> BaseException | None:
        """Await the handler; what it raised."""
        try:
            await self._call(running.message)
        except asyncio.CancelledError as error:
            return Interrupted() if await self._is_stopped_by_us(running) else as_failure(error)
        except Exception as error:
            return error
        except (GeneratorExit, ThreadKilled):
            raise
        except BaseException as error:  # a handler's sys.exit() would end the event loop
            if isinstance(error, KeyboardInterrupt) and not self._own_loop:
                self._answer(running, Interrupted())
                raise  # Ctrl-C of a loop that belongs to the program
            return as_failure(error)
        return None

    def _count_progress(self, change: int) -> None:
        with self._progress_lock:
            self._in_progress += change
            self.consumer.recorder.in_progress(self._in_progress)

    async def _is_stopped_by_us(self, running: RunningHandler) -> bool:
        """Whether a cancellation means that the worker ends, and not that the handler awaited a cancelled task."""
        task = asyncio.current_task()
        if running.is_over or task is None or task.cancelling() == 0:
            return running.is_over
        for _ in range(3):  # if a program's loop ends, all its tasks are cancelled at once, `run` among them
            if self._stop.is_set():
                break
            await asyncio.sleep(0)
        return self._stop.is_set()

    _semaphore: asyncio.Semaphore | None = None

    def _answer(self, running: RunningHandler, failure: BaseException | None) -> None:
        recorder = self.consumer.recorder
        recorder.processing_end(running.message.id)
        self._count_progress(-1)
        recorder.handled("failed" if failure else "done", self._threads.monotonic() - running.started)
        if running.message.is_settled or not running.finish():  # it said so itself, or it is too late
            if failure is not None and not isinstance(failure, Interrupted):
                logger.error("%s, which had been settled or lost", _failed(running), exc_info=failure)
            return
        settlement = running.message.whole(self._policy.settle(running.message.attempt, failure))
        self._answers.put(_Answer(running, settlement))

    def _answer_early(self, running: RunningHandler, settlement: Settlement) -> None:
        """Settle a message at the request of its handler. Raises LeaseLost if the lease is known to be lost."""
        if running.held.lease.is_lost:
            raise LeaseLost(running.message.stream, running.message.id)
        if running.finish():
            self._answers.put(_Answer(running, settlement))

    def _on_timeout(self, held: HeldDelivery) -> None:
        """Give a late handler up: its delivery counts as failed, and its thread is abandoned."""
        running = self._running.get((held.delivery.id, held.delivery.number))
        if running is None or not running.finish():
            return
        limit = self._handler.timeout_s
        failure = HandlerTimeout(f"no answer within {limit:g} s")
        logger.warning("the handler of %s has not answered within %g s", running.message.id, limit)
        held.lease.is_lost = True
        if running.task is not None:
            running.task.cancel()
        elif running.thread is not None and self._pool is not None:
            self._pool.replace(running.thread)
        self._answers.put(_Answer(running, self._policy.settle(running.message.attempt, failure)))

    def _on_lost(self, held: HeldDelivery) -> None:
        """Somebody else has it: the handler's answer will not count."""
        running = self._running.get((held.delivery.id, held.delivery.number))
        if running is None or not running.finish():
            return
        if running.task is not None:
            running.task.cancel()
        self._drop(running)

    def _drop(self, running: RunningHandler) -> None:
        """Forget a delivery; the second time does nothing."""
        self._keeper.let_go(running.held)
        delivery = running.held.delivery
        self.consumer.let_go(delivery)
        with self._room:
            if running.is_dropped:
                return
            running.is_dropped = True
            # A released entry keeps its number: it may be here again before we know that its release was heard.
            if self._running.get((delivery.id, delivery.number)) is running:
                del self._running[delivery.id, delivery.number]
            self._in_hand -= 1
            self._room.notify_all()

    # The settler

    def _settle_all(self) -> None:
        kept: list[_Answer] = []  # refused, to be sent again
        is_last = False
        while not (is_last and not kept):
            batch, is_last_now = self._next_answers(kept, wait=not is_last)
            is_last = is_last or is_last_now
            if is_last and kept and self._threads.monotonic() > self._give_up_at:
                self._log_unsent(kept)
                return
            if batch:
                self._send(batch, kept)
            if self._due and self._due[0] <= self._threads.monotonic():
                self._take_due()

    _give_up_at = float("inf")
    _is_hurried = False  # stop at once

    def _log_unsent(self, kept: list[_Answer]) -> None:
        logger.error("%d settlements could not be sent before the end: their leases run out", len(kept))
        for answer in kept:
            failure = getattr(answer.settlement, "failure", None)
            if failure is not None:
                logger.error("%s: %s", _failed(answer.running), describe(failure), exc_info=failure)

    def _next_answers(self, kept: list[_Answer], *, wait: bool) -> tuple[list[_Answer], bool]:
        """Answers that are due: refused ones whose pause is over, and what has come."""
        now = self._threads.monotonic()
        batch = [answer for answer in kept if answer.due <= now][:MOST_AT_ONCE]
        for answer in batch:
            kept.remove(answer)
        timeout = 0.0 if batch else 0.05 if kept or not wait else None
        if timeout is None and self._due:
            timeout = max(0.001, self._due[0] - now)
        try:
            while len(batch) < MOST_AT_ONCE:
                found = self._answers.get(timeout=timeout) if timeout != 0.0 else self._answers.get_nowait()
                if found is None:
                    return batch, True
                batch.append(found)
                timeout = 0.0
        except queue.Empty:
            pass
        return batch, False

    def _send(self, batch: list[_Answer], kept: list[_Answer]) -> None:
        pairs = [(answer.running.held.delivery, answer.settlement) for answer in batch]
        try:
            results = self.consumer.settle(pairs, is_repeat=any(answer.tries for answer in batch))
        except BackendError as error:
            self._end_if_hopeless(error, max(answer.tries for answer in batch))
            logger.warning("%d settlements could not be sent, trying again: %s", len(batch), error)
            for answer in batch:
                self._keep(answer, kept)
            return
        now = self.consumer.watch_ms()
        for answer, result in zip(batch, results, strict=True):
            if result.error is not None:
                self._refused(answer, ServerReplied(result.error))
                self._keep(answer, kept)
                continue
            if self._breaker.record(isinstance(answer.settlement, DeadLetter), now):
                logger.error(
                    "too many dead letters of %r: reading pauses for %g s",
                    self.consumer.stream,
                    self._breaker.wait_ms(now) / 1000,
                )
                self._is_flooded = True
                self.consumer.recorder.breaker(True)
            if isinstance(answer.settlement, Later):
                heapq.heappush(self._due, self._threads.monotonic() + answer.settlement.delay_s)
            self._drop(answer.running)

    def _refused(self, answer: _Answer, error: ServerReplied) -> None:
        """Decide about one settlement that the server refused: it is sent again, unless that cannot help.

        A right that is missing ends the worker. An entry that cannot become a dead letter (it has too many fields for a
        script) is put off, so that it does not hold a place that others need.
        """
        if error.is_denied and not getattr(answer.settlement, "publish", ()):
            self._end_if_hopeless(error, answer.tries)
        is_lasting = error.code == "ERR" and answer.tries + 1 >= PUT_OFF_AFTER
        if is_lasting and isinstance(answer.settlement, DeadLetter) and not self.consumer.makes_copies:
            logger.error("%s cannot become a dead letter and is put off for %g s", answer.running.message.id, PUT_OFF_S)
            answer.settlement = Later(PUT_OFF_S)

    def _end_if_hopeless(self, error: BackendError, tries: int) -> None:
        """Stop the worker when the server refuses settlements for good; `run` raises the error."""
        hopeless = isinstance(error, ServerReplied) and error.is_hopeless
        if hopeless and _is_over(error, tries, self.consumer.settings):
            self._ended_by, self._give_up_at = error, 0.0
            self.stop()

    def _take_due(self) -> None:
        """Take retries of our own whose time has come: a blocked read knows of them late, or not at all."""
        while self._due and self._due[0] <= self._threads.monotonic():
            heapq.heappop(self._due)
        with self._room:
            credit = 0 if self._is_alone else self._most - self._in_hand
        if credit <= 0 or self._stop.is_set():
            return  # the reader finds them when there is room
        asked_ms = self.consumer.watch_ms()
        try:
            found = self.consumer.take_due(credit)
        except BackendError as error:
            logger.warning("retries of %r could not be looked for now: %s", self.consumer.stream, error)
            return
        with self._room:
            begun = [] if self._is_alone else [delivery for delivery in found if not delivery.is_suspect]
            running = [self._hold(delivery, asked_ms) for delivery in begun]
        for each in running:
            self._submit(each)
        self._pass_on([delivery for delivery in found if delivery not in begun])

    def _keep(self, answer: _Answer, kept: list[_Answer]) -> None:
        answer.tries += 1
        answer.due = self._threads.monotonic() + min(AGAIN_CAP_S, AGAIN_FIRST_S * 2 ** (answer.tries - 1))
        kept.append(answer)

    # The end

    def _drain(self, settler: ThreadLike) -> None:
        """Give handlers their time, release the others, send the last answers."""
        # Without a settler no handler's answer is heard: what they do is not waited for.
        grace = 0.0 if self._is_broken or self._is_hurried else self.consumer.settings.shutdown_grace
        end = self._threads.monotonic() + grace
        self._release(unless_started=True)  # read ahead, and nobody has begun on them
        with self._room:
            self._room.wait_for(lambda: self._in_hand == 0 or self._is_hurried or self._is_broken, timeout=grace)
        self._release()
        if self._is_hurried:
            end = 0.0
        if self._ended_by is None:
            self._give_up_at = max(end, self._threads.monotonic() + HURRY_S)
        self._answers.put(None)
        settler.join(timeout=max(3.0, self._give_up_at - self._threads.monotonic() + 1))
        self._keeper.stop(HURRY_S if self._is_hurried else 10.0)
        if not self._is_broken:
            self.consumer.leave()
        self.consumer.recorder.breaker(False)
        if self._pool is not None:
            self._pool.close()
        if self._own_loop and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    @property
    def _is_broken(self) -> bool:
        """Whether a part has ended, or the server refuses settlements for good."""
        return self._supervisor.failure is not None or self._ended_by is not None

    def _release(self, *, unless_started: bool = False) -> None:
        with self._room:
            chosen = list(self._running.values())
        for running in chosen:
            if running.finish(unless_started=unless_started):
                if running.task is not None:
                    running.task.cancel()
                self._answers.put(_Answer(running, Release(has_begun=not unless_started)))

    def _start_loop(self) -> None:
        self._loop = self._threads.new_event_loop()
        self._own_loop = True
        work = self._supervisor.guard("the event loop of the handlers", self._run_loop)
        self._threads.Thread(target=work, name="millstream-handlers", daemon=True).start()

    def _run_loop(self) -> None:
        assert self._loop is not None
        self._loop.run_forever()
        if not self._stop.is_set():
            raise RuntimeError("a handler stopped the event loop")

    def _make_context(self) -> Context:
        consumer = self.consumer
        return make_context(consumer, self._policy, self._keeper.extend, self._urls)


def make_context(
    consumer: Consumer, policy: RetryPolicy, extend: Callable[[Delivery, float], None], urls: tuple[str, ...]
) -> Context:
    """Return the values that all messages of a consumer share."""
    return Context(
        consumer.stream.decode("utf-8", "replace"),
        consumer.group.decode("utf-8", "replace"),
        consumer.steps.prefix,
        policy,
        lambda: consumer.watch.expected_ms(consumer.watch_ms()) or time.time_ns() // 1_000_000,
        extend,
        consumer.attempt,
        consumer.retry_count,
        consumer.original_id,
        urls,
        consumer.backend.is_cluster,
    )


def _failed(running: RunningHandler) -> str:
    message = running.message
    return f"the handler of {message.id} of {message.stream!r} failed (attempt {message.attempt})"


def _is_over(error: BackendError, failures: int, settings: Settings) -> bool:
    """Whether to give up after this error: as often as the settings say, else at once if it is hopeless."""
    if settings.reconnect_tries is not None:
        return failures >= settings.reconnect_tries
    return isinstance(error, ServerReplied) and error.is_hopeless


def require_handler(handler: Registered | None, stream: str) -> Registered:
    """Return the handler. Raises an error that says how to register one."""
    if handler is None:
        raise ConfigError(f"stream {stream!r} has no handler: put @stream.handler() on a function, or use consume()")
    return handler
