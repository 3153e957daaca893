"""Connections of real backends that break where a test says so, and one life of a stream told through them.

    Breaking   a backend whose nth call is cut, answered into the void, or the last thing its owner does
    Life       publish, read, settle each way, die, recover, promote, redrive, reap: a step at a time

It works at every place alike, in this process or behind a socket, because it breaks what a backend sends through and
leaves alone what it does about that: which calls are sent again is the backend's own business.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from millstream.client import Backend
from millstream.client.calls import Call
from millstream.delivery.config.settings import Settings
from millstream.delivery.consumer import Consumer
from millstream.delivery.delivery import Delivery
from millstream.delivery.keys import Keys
from millstream.delivery.settlement import Ack, DeadLetter, Later, Reason, Release, Settlement
from millstream.delivery.steps import NewEntry, Publication, Publishing
from millstream.errors import Unavailable
from millstream.testing import Fault
from millstream.worker.audit import Audit, audit_of
from tests.support.places import Site

Rule = Callable[[int], Fault | None]  # of the number of a call, from 1


class Died(BaseException):
    """The process that made a call is no more."""


class Breaking:
    """Counts what a backend sends, and breaks it by a rule. Many can share one backend's connections."""

    def __init__(self, site: Site, rule: Rule = lambda _: None, share: Breaking | None = None) -> None:
        self.backend: Backend = site.connect() if share is None else copy.copy(share.backend)
        self.rule = rule
        self.calls = 0
        self._send: Callable[[Any, Call[Any]], Any] = self.backend._send if share is None else share._send
        self.backend._send = self._broken  # type: ignore[method-assign]

    def _broken(self, client: Any, call: Call[Any]) -> Any:
        self.calls += 1
        fault = self.rule(self.calls)
        if fault is Fault.KILL_BEFORE:
            raise Died
        if fault is Fault.CUT:
            raise Unavailable("cut before the server had it")
        # Where replies are lost, a step must bear to be sent twice; commands without a script have another way inside.
        reply = self._send(client, call if call.script is not None else replace(call, inside=None))
        if fault is Fault.KILL_AFTER:
            raise Died
        if fault is Fault.DROP_REPLY:
            raise Unavailable("cut before the reply came")
        return reply


LEASE_S = 0.25
SETTINGS = Settings(lease=LEASE_S, reap_idle=60, breaker=None)
ENTRIES = 7
RUNS = Counter({0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1})  # how often the work on each is done where nothing breaks


@dataclass
class Life:
    """Seven entries, each with another fate; `steps` tells it, a call or a few at a time."""

    breaking: Breaking
    stream: str
    handled: Counter[int] = field(default_factory=Counter)  # how often each one's work was done to its end
    deaths: int = 0
    _is_released: bool = False
    _is_redriven: bool = False
    _lives: int = 0

    def __post_init__(self) -> None:
        self.backend = self.breaking.backend
        self._new_life()
        self.publishing = Publishing(self.consumer.keys, self.backend.capabilities)
        self.next_keys = Keys(b"{%s}:next" % self.stream.encode())

    def _new_life(self) -> None:
        """A worker with another name and no memory."""
        self._lives += 1
        self.consumer = Consumer(
            self.backend,
            self.stream.encode(),
            b"g",
            b"life-%d" % self._lives,
            SETTINGS,
            lambda: time.monotonic_ns() // 1_000_000,
        )
        self._is_open = False
        self._unsent: list[tuple[Delivery, Settlement]] = []
        self._is_repeat = False

    def steps(self) -> Iterator[None]:
        """Until all is done; a fault costs a try, a death a life."""
        for act in (self._publish, self._work, self._wait, self._work, self._redrive, self._work, self._reap):
            yield from self._tried(act)
        while True:
            yield from self._tried(self._look)
            if self.account.done == ENTRIES and not self.account.pending:
                return
            for act in (self._wait, self._work, self._redrive):
                yield from self._tried(act)

    def _tried(self, act: Callable[[], Iterator[None] | None]) -> Iterator[None]:
        while True:
            try:
                yield from act() or ()
                return
            except Unavailable:
                self._is_repeat = True
            except Died:
                self.deaths += 1
                self._new_life()
            yield

    def _publish(self) -> None:
        """Under the same number however often: a producer does not know what became of a call that broke."""
        entries = [NewEntry([(b"n", b"%d" % n)], delay_ms=30 if n == 6 else 0) for n in range(ENTRIES)]
        self.backend.run(self.publishing.append(b"producer", 1, entries))

    def _wait(self) -> Iterator[None]:
        """Until whatever a worker left behind may be taken."""
        end = time.monotonic() + LEASE_S + 0.05
        while time.monotonic() < end:
            yield

    def _work(self) -> None:
        """One round of a worker, and of the thread that keeps its house."""
        if not self._is_open:
            self.consumer.open()
            self._is_open = True
        self._settle()
        self.consumer.maintain()
        found = self.consumer.fetch(10, 0)
        doomed = [each for each in found if each.by_name[b"n"] == b"4" and each.number == 1]
        self._unsent += [(each, self._handle(each)) for each in found if each not in doomed]
        self._settle()
        if doomed:
            raise Died

    def _handle(self, delivery: Delivery) -> Settlement:
        n, attempt = int(delivery.by_name[b"n"]), self.consumer.attempt(delivery)
        if n == 1 and not self._is_released:
            self._is_released = True
            return Release()
        if n == 2 and attempt == 1:
            return Later(0.02)
        if n == 3 and not self._is_redriven:
            return DeadLetter(Reason.REJECTED, "not yet")
        self.handled[n] += 1
        return Ack((Publication(self.next_keys, NewEntry([(b"n", b"5")])),)) if n == 5 else Ack()

    def _settle(self) -> None:
        if self._unsent:
            self.consumer.settle(self._unsent, is_repeat=self._is_repeat)
            self._unsent, self._is_repeat = [], False

    def _redrive(self) -> None:
        letters = self.backend.execute("XRANGE", self.consumer.keys.dead, "-", "+")
        if letters:
            self._is_redriven = True
            self.backend.run(self.publishing.redrive([letter[0] for letter in letters]))

    def _reap(self) -> None:
        self.backend.run(self.consumer.steps.reap(0))

    def _look(self) -> None:
        self.account = self.audit()

    def audit(self) -> Audit:
        return audit_of(self.backend.run(self.consumer.steps.audit()), "g")


def tell(lives: list[Life], seconds: float = 60.0) -> None:
    """All of them side by side, a step of each in turn."""
    end = time.monotonic() + seconds
    running = [life.steps() for life in lives]
    while running:
        assert time.monotonic() < end, f"{len(running)} lives are not over after {seconds:g} s"
        running = [steps for steps in running if next(steps, running) is not running]
        time.sleep(0.002)
