"""Random steps by three consumers, many of them sent twice, against a model that only keeps accounts.

    added = done + dead + discarded + copied + trimmed + pending + undelivered

holds after every step, and each of them is what the model says. The model knows who holds what delivery and nothing
of how a server keeps it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream.broker import Broker
from millstream.client import Capabilities
from millstream.client.calls import Call
from millstream.client.local_brokers import share_broker
from millstream.clock import ManualClock
from millstream.delivery.delivery import Delivery
from millstream.delivery.steps import NewEntry, Settle
from tests.support.desk import LATER, NOBODY, Desk
from tests.support.places import Site

T = TypeVar("T")
LEASE_MS = 1000
CONSUMERS = st.sampled_from([b"c1", b"c2", b"c3"])
VERBS = st.sampled_from(["ack", "discard", "release", "retry", "reject", "copy"])
DELAYS = st.sampled_from([0, 1, 500, LEASE_MS, 2500])


@dataclass
class Model:
    """The accounts, and who holds what."""

    added: int = 0
    delayed: int = 0
    undelivered: int = 0
    dead_letters: int = 0
    held: dict[bytes, tuple[str, int]] = field(default_factory=dict)  # id: who, deliveries
    ended: dict[str, int] = field(default_factory=dict)
    gone: set[bytes] = field(default_factory=set)  # pending, and their entries deleted

    def end(self, how: str) -> None:
        self.ended[how] = self.ended.get(how, 0) + 1

    def add(self) -> None:
        self.added += 1
        self.undelivered += 1

    def deliver(self, found: list[Delivery], consumer: bytes) -> None:
        for each in found:
            who, before = self.held.get(each.id, ("", 0))
            if not who:
                self.undelivered -= 1
            assert each.number == before + 1
            self.held[each.id] = (consumer.decode(), each.number)

    def settle(self, consumer: bytes, item: Settle) -> int:
        """The code that is right, and what comes of it."""
        who, number = self.held.get(item.id, ("", 0))
        if not who:
            return 0
        if (who, number) != (consumer.decode(), item.number):
            given_back = who in (NOBODY, LATER) and item.verb != "ack"
            before = number + 1 if item.verb == "release" else number
            return 0 if given_back and item.number == before else -1
        match item.verb:
            case "release" | "retry" if item.id in self.gone:
                del self.held[item.id]
                self.gone.discard(item.id)
                self.end("trimmed")
            case "release":
                self.held[item.id] = (NOBODY, number - 1)
            case "retry":
                self.held[item.id] = (LATER if item.words[0] else NOBODY, number)
            case _:
                self._close(item)
        return 1

    def _close(self, item: Settle) -> None:
        del self.held[item.id]
        is_gone = item.id in self.gone
        self.gone.discard(item.id)
        if item.verb == "copy" and not is_gone:
            self.add()
        if item.verb == "reject":
            self.dead_letters += 1
        ends = {"ack": "done", "discard": "discarded", "reject": "dead", "copy": "trimmed" if is_gone else "copied"}
        self.end(ends[item.verb])


class Steps(RuleBasedStateMachine):
    """Three consumers on one stream."""

    capabilities: Capabilities | None = None  # those of the server

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        name = uuid.uuid4().hex
        self.broker = Broker(clock=self.clock)
        self.shared = share_broker(name, self.broker)
        self.site = Site("memory", f"memory://{name}")
        self.desk = Desk(self.site, lease_ms=LEASE_MS, capabilities=self.capabilities)
        self.model = Model()
        self.known: list[Delivery] = []  # every delivery ever, for zombies

    def teardown(self) -> None:
        self.site.leave()
        self.shared.close()

    def send(self, call: Call[T], twice: bool) -> T:
        first = self.desk.backend.run(call)
        if twice:
            self.desk.backend.run(call)
        return first

    @rule(count=st.integers(1, 4), delay_ms=DELAYS, twice=st.booleans())
    def publish(self, count: int, delay_ms: int, twice: bool) -> None:
        self.desk.calls += 1
        entries = [NewEntry([(b"n", b"1")], delay_ms=delay_ms) for _ in range(count)]
        self.send(self.desk.publishing.append(b"p", self.desk.calls, entries), twice)
        if delay_ms:
            self.model.delayed += count
        else:
            for _ in range(count):
                self.model.add()

    @rule(consumer=CONSUMERS, count=st.integers(1, 3))
    def read(self, consumer: bytes, count: int) -> None:
        found = self.desk.read(consumer, count)
        self.model.deliver(found, consumer)
        self.known += found

    @rule(consumer=CONSUMERS, count=st.integers(1, 5), by_script=st.booleans())
    def take_over(self, consumer: bytes, count: int, by_script: bool) -> None:
        if by_script or not self.desk.capabilities.claim_read:
            recovered = self.desk.backend.run(self.desk.steps.recover(consumer, count, min_idle_ms=LEASE_MS))
            found = recovered.deliveries
            self._bury(recovered.trimmed)
        else:
            found = self.desk.take(consumer, count)
        self.model.deliver(found, consumer)
        self.known += found

    def _bury(self, trimmed: list[bytes]) -> None:
        for entry_id in trimmed:
            assert entry_id in self.model.gone
            self.model.gone.discard(entry_id)
            del self.model.held[entry_id]
            self.model.dead_letters += 1
            self.model.end("trimmed")

    @precondition(lambda self: self.known)
    @rule(data=st.data(), consumer=CONSUMERS, verb=VERBS, delay_ms=DELAYS, twice=st.booleans())
    def settle(self, data: st.DataObject, consumer: bytes, verb: str, delay_ms: int, twice: bool) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.known), min_size=1, max_size=3))
        words = {"retry": (delay_ms,), "copy": (1,), "reject": ("reason", "x")}.get(verb, ())
        items = [Settle(each.id, each.number, verb, words) for each in chosen]
        expected = [self.model.settle(consumer, item) for item in items]
        assert self.send(self.desk.steps.settle(consumer, items), twice) == expected

    @precondition(lambda self: self.known)
    @rule(data=st.data(), consumer=CONSUMERS, twice=st.booleans())
    def renew(self, data: st.DataObject, consumer: bytes, twice: bool) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.known), min_size=1, max_size=5, unique_by=lambda d: d.id))
        ours = [each for each in chosen if self.model.held.get(each.id) == (consumer.decode(), each.number)]
        trimmed = {each.id for each in ours if each.id in self.model.gone}
        renewed = self.send(self.desk.steps.renew(consumer, [(each.id, each.number) for each in chosen]), twice)
        assert set(renewed.lost) == {each.id for each in chosen} - {each.id for each in ours} | trimmed
        for entry_id in trimmed:
            self.model.gone.discard(entry_id)
            del self.model.held[entry_id]
            self.model.end("trimmed")

    @rule(ms=st.sampled_from([1, 400, LEASE_MS, 3000]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(twice=st.booleans())
    def promote(self, twice: bool) -> None:
        appended = self.send(self.desk.steps.promote(), twice).appended
        self.model.delayed -= appended
        for _ in range(appended):
            self.model.add()

    @rule(discard=st.booleans(), twice=st.booleans())
    def redrive(self, discard: bool, twice: bool) -> None:
        letters = self.desk.ids(self.desk.keys.dead)[:2]
        made = self.send(self.desk.publishing.redrive(letters, discard=discard), twice) if letters else []
        self.model.dead_letters -= len(made)
        for _ in made if not discard else ():
            self.model.add()

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def trim_something_pending(self, data: st.DataObject) -> None:
        entry_id = data.draw(st.sampled_from(sorted(self.model.held)))
        if self.desk.execute("XDEL", self.desk.keys.stream, entry_id):
            self.model.gone.add(entry_id)

    @rule()
    def sweep(self) -> None:
        self._bury(self.desk.backend.run(self.desk.steps.recover(b"c1", 0, min_idle_ms=0)).trimmed)

    @rule()
    def reap(self) -> None:
        self.desk.backend.run(self.desk.steps.reap(0))

    @invariant()
    def the_account_balances(self) -> None:
        now, model = self.desk.audit(), self.model
        ended = {name.removesuffix(":g"): count for name, count in now.counters.items()}
        kinds = ("done", "dead", "discarded", "copied", "trimmed")
        assert {kind: ended.get(kind, 0) for kind in kinds} == {kind: model.ended.get(kind, 0) for kind in kinds}
        assert (now.added, now.pending, now.undelivered) == (model.added, len(model.held), model.undelivered)
        assert (now.delayed, now.dead) == (model.delayed, model.dead_letters)
        assert now.added == sum(ended.get(kind, 0) for kind in kinds) + now.pending + now.undelivered
        assert {row[0]: row[1:] for row in self.desk.pending()} == model.held
        owners = [who for who, _ in model.held.values()]
        assert (now.parked, now.released) == (owners.count(LATER), owners.count(NOBODY))


class OlderSteps(Steps):
    """The same on a server that has scripts and nothing new."""

    capabilities = Capabilities(scripts=True)


EXAMPLES = settings(max_examples=15, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
TestSteps, TestOlderSteps = Steps.TestCase, OlderSteps.TestCase
TestSteps.settings = TestOlderSteps.settings = EXAMPLES
