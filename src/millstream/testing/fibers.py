"""Threads of which one runs at a time, and a clock that moves only when none of them can go on.

    scheduler (the test's thread) ── baton ──▶ fiber ── waits, sleeps or ends ──▶ baton back

A fiber is a real thread, so that blocking code runs in it unchanged, but it has the baton or it stands still: what
happens is the same in every run. `Fibers` has the names that `worker.threads` has, and a worker made with it waits in
virtual time. A fiber belongs to an owner, which can be killed (its fibers end where they stand) or frozen (they stay
there for a while and know nothing of it).
"""

from __future__ import annotations

import random
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from millstream.testing.loop import VirtualLoop
from millstream.worker.runtime.threads import ThreadKilled

T = TypeVar("T")
BEGIN_MS: Final = 1_000_000  # not 0, which means "not yet" in some places
LOOK_EVERY_S: Final = 1.0  # how often the scheduler asks whether a fiber has come back
HANG_LOOKS: Final = 120  # how many times it asks before the test fails


def taken() -> threading.Lock:
    """Return a lock that is held: a baton that its next owner waits for."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class Killed(ThreadKilled):
    """The worker that this code belonged to is dead: nothing of it may run on."""


class Stuck(AssertionError):
    """The simulation cannot go on, or did not reach what it was asked to reach."""


class VirtualTime:
    """Milliseconds since the start; moved by the scheduler."""

    is_virtual = True

    def __init__(self) -> None:
        self._now_ms = BEGIN_MS

    def now_ms(self) -> int:
        return self._now_ms

    def move_to(self, at_ms: int) -> None:
        self._now_ms = max(self._now_ms, at_ms)


class RealTime:
    """The same for a real server: no one moves its clock, so `move_to` sleeps."""

    is_virtual = False

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def move_to(self, at_ms: int) -> None:
        time.sleep(max(0.0, (at_ms - self.now_ms()) / 1000))


@dataclass(eq=False)
class Owner:
    """The owner of some fibers: one life of a simulated worker."""

    name: str
    is_dead: bool = False
    frozen_until_ms: int = 0


@dataclass(eq=False)
class Fiber:
    """A thread and what it waits for."""

    name: str
    number: int
    owner: Owner | None
    baton: threading.Lock = field(default_factory=lambda: taken())
    wake_at_ms: int | None = 0  # None: time alone does not wake it
    is_ready: Callable[[], bool] | None = None
    is_over: bool = False
    thread: threading.Thread | None = None

    def stack(self) -> str:
        """Return the frames in which its thread is now, for an error message."""
        frame = sys._current_frames().get(self.thread.ident or 0) if self.thread is not None else None
        return "".join(traceback.format_stack(frame)) if frame is not None else "its thread has ended"

    def can_run(self, now_ms: int) -> bool:
        owner = self.owner
        if owner is not None and owner.is_dead:
            return True  # it runs once more, to end
        if owner is not None and now_ms < owner.frozen_until_ms:
            return False
        return (self.wake_at_ms is not None and self.wake_at_ms <= now_ms) or (
            self.is_ready is not None and self.is_ready()
        )

    def next_ms(self) -> int | None:
        """Return when the fiber can run if nothing happens before; None if time alone does not wake it."""
        if self.owner is not None and self.owner.frozen_until_ms:
            if self.wake_at_ms is None:
                return self.owner.frozen_until_ms if self.is_ready is not None and self.is_ready() else None
            return max(self.wake_at_ms, self.owner.frozen_until_ms)
        return self.wake_at_ms


class Fibers:
    """The scheduler, and the names with which a worker makes its threads."""

    def __init__(self, clock: VirtualTime | RealTime, luck: random.Random | None = None) -> None:
        self.clock = clock
        self.luck = luck  # None: the fiber that has waited longest runs first
        self.failures: list[tuple[str, BaseException]] = []
        self._fibers: list[Fiber] = []
        self._made = 0
        self._main = taken()
        self.is_abandoned = False  # True once a fiber did not come back: the others end where they wait
        self._here = threading.local()

    # For code inside fibers

    @property
    def current(self) -> Fiber | None:
        found: Fiber | None = getattr(self._here, "fiber", None)
        return found

    def park(self, timeout_s: float | None, is_ready: Callable[[], bool] | None = None) -> bool:
        """Wait until the condition holds or the time is over. Returns whether the condition holds."""
        fiber = self.current
        if fiber is None:
            raise Stuck("only handlers and workers inside the simulation can wait in its time")
        self._require_alive(fiber)
        fiber.is_ready = is_ready
        fiber.wake_at_ms = None if timeout_s is None else self.clock.now_ms() + max(0, round(timeout_s * 1000))
        if self.is_abandoned:
            raise Killed(fiber.name)
        self._main.release()
        fiber.baton.acquire()
        self._require_alive(fiber)
        return is_ready is not None and is_ready()

    def _require_alive(self, fiber: Fiber) -> None:
        if fiber.owner is not None and fiber.owner.is_dead:
            raise Killed(fiber.owner.name)

    # For the scheduler's thread

    def spawn(self, name: str, target: Callable[[], None], owner: Owner | None) -> Fiber:
        """Make a fiber that begins when the scheduler comes to it."""
        self._made += 1
        fiber = Fiber(name, self._made, owner, wake_at_ms=self.clock.now_ms())
        self._fibers.append(fiber)
        fiber.thread = threading.Thread(target=self._body, args=(fiber, target), name=name, daemon=True)
        fiber.thread.start()
        return fiber

    def run(self, until_ms: int, is_enough: Callable[[], bool] | None = None) -> bool:
        """Run fibers up to a time. Returns whether the condition has come true."""
        while True:
            if is_enough is not None and is_enough():
                return True
            self._raise_failure()
            now = self.clock.now_ms()
            fiber = self._choose(now)
            if fiber is not None:
                self._let_run(fiber)
                continue
            if now >= until_ms:
                return False
            times = [at for each in self._fibers if (at := each.next_ms()) is not None and at > now]
            self.clock.move_to(min([until_ms, *times]))

    def kill(self, owner: Owner) -> None:
        """End all fibers of an owner where they wait."""
        owner.is_dead = True
        if self.current is None:
            for fiber in [each for each in self._fibers if each.owner is owner]:
                self._let_run(fiber)

    def alive(self, owner: Owner) -> bool:
        return any(fiber.owner is owner for fiber in self._fibers)

    def is_running(self, prefix: str, owner: Owner) -> bool:
        """Return whether a fiber of this owner, with a name that begins like this, is not over."""
        return any(fiber.owner is owner and fiber.name.startswith(prefix) for fiber in self._fibers)

    def _choose(self, now_ms: int) -> Fiber | None:
        can_run = [fiber for fiber in self._fibers if fiber.can_run(now_ms)]
        if not can_run:
            return None
        return self.luck.choice(can_run) if self.luck is not None else can_run[0]

    def _let_run(self, fiber: Fiber) -> None:
        if self.is_abandoned:
            self._let_end(fiber)
            return
        # Move it to the end of the list, so that no fiber keeps the others from their turn.
        self._fibers.remove(fiber)
        self._fibers.append(fiber)
        fiber.baton.release()
        if not self._is_back():
            self.is_abandoned = True
            raise Stuck(
                f"{fiber.name} has been running for {HANG_LOOKS * LOOK_EVERY_S:g} s: "
                f"does a handler wait for something real?\n{fiber.stack()}"
            )
        if fiber.is_over:
            self._fibers.remove(fiber)

    def _is_back(self) -> bool:
        """Wait for the baton; False if the fiber keeps it for too long.

        The limit is a number of short waits, not one long one: a machine that stops this whole process for minutes
        uses up one of them, and the fiber goes on with the rest.
        """
        return any(self._main.acquire(timeout=LOOK_EVERY_S) for _ in range(HANG_LOOKS))

    def _let_end(self, fiber: Fiber) -> None:
        """Let the thread of a fiber end without waiting for it; the one that is stuck holds its baton already."""
        self._fibers.remove(fiber)
        if fiber.baton.locked():
            fiber.baton.release()

    def _raise_failure(self) -> None:
        if self.failures:
            name, error = self.failures.pop(0)
            raise Stuck(f"{name} ended: {error!r}") from error

    def _body(self, fiber: Fiber, target: Callable[[], None]) -> None:
        fiber.baton.acquire()
        self._here.fiber = fiber
        try:
            self._require_alive(fiber)
            target()
        except Killed:
            pass
        except BaseException as error:
            self.failures.append((fiber.name, error))
        finally:
            fiber.is_over = True
            if not self.is_abandoned:
                self._main.release()

    # The names of worker.threads

    def monotonic(self) -> float:
        return self.clock.now_ms() / 1000

    def Event(self) -> FiberEvent:
        return FiberEvent(self)

    def Condition(self) -> FiberCondition:
        return FiberCondition(self)

    def SimpleQueue(self) -> FiberQueue[Any]:
        return FiberQueue(self)

    def Thread(self, target: Callable[[], None], name: str, daemon: bool = True) -> FiberThread:
        return FiberThread(self, target, name)

    def new_event_loop(self) -> VirtualLoop:
        return VirtualLoop(self.monotonic, self.park)


class FiberEvent:
    """threading.Event in the simulation's time."""

    def __init__(self, fibers: Fibers) -> None:
        self._fibers = fibers
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._is_set or self._fibers.park(timeout, self.is_set)


class FiberCondition:
    """threading.Condition; needs no lock, as no other fiber runs."""

    def __init__(self, fibers: Fibers) -> None:
        self._fibers = fibers
        self._turn = 0

    def __enter__(self) -> bool:
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def notify_all(self) -> None:
        self._turn += 1

    def wait(self, timeout: float | None = None) -> bool:
        before = self._turn
        return self._fibers.park(timeout, lambda: self._turn != before)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        return predicate() or self._fibers.park(timeout, predicate)


class FiberQueue(Generic[T]):
    """queue.SimpleQueue."""

    def __init__(self, fibers: Fibers) -> None:
        self._fibers = fibers
        self._items: deque[T] = deque()

    def put(self, item: T) -> None:
        self._items.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        if not self._items and not (block and self._fibers.park(timeout, lambda: bool(self._items))):
            raise Empty
        return self._items.popleft()

    def get_nowait(self) -> T:
        return self.get(block=False)


class FiberThread:
    """threading.Thread: a fiber with the same owner as the fiber that starts it."""

    def __init__(self, fibers: Fibers, target: Callable[[], None], name: str) -> None:
        self._fibers, self._target, self._name = fibers, target, name
        self._fiber: Fiber | None = None

    def start(self) -> None:
        starter = self._fibers.current
        self._fiber = self._fibers.spawn(self._name, self._target, starter.owner if starter is not None else None)

    def join(self, timeout: float | None = None) -> None:
        fiber = self._fiber
        if fiber is not None and not fiber.is_over:
            self._fibers.park(timeout, lambda: fiber.is_over)

    def is_alive(self) -> bool:
        return self._fiber is not None and not self._fiber.is_over
