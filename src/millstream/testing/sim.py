"""Simulated workers, server and clock: the user's own handlers under every fault, without waiting.

    with Sim(orders, workers=2) as sim:
        sim.publish(orders, Order(7))
        sim.run_until("handler-entered")
        sim.freeze("w1", 20)
        sim.advance(90)
        assert sim.completions(orders) == 1 and sim.audit(orders).balanced

The workers are real ones (`worker.loop.Worker`), on fibers instead of threads and with a broker in this process as
their server. Time stands still while anything can be done, and jumps to the next moment at which something can. The
stream's own URL is never used. With `engine="redis://…"` the server is a real one and time is real, the faults stay.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, cast

from millstream.broker import Broker
from millstream.client.backend import Backend, connect
from millstream.client.capabilities import Capabilities
from millstream.client.local_brokers import share_broker
from millstream.delivery.consumer import Consumer, Runs
from millstream.delivery.deadletters import DeadLetters
from millstream.delivery.policy import LUCK
from millstream.errors import ConfigError
from millstream.testing.backend import Blocked, SimBackend
from millstream.testing.faults import Chances, Fault, Seen
from millstream.testing.fibers import BEGIN_MS, Fibers, Killed, Owner, RealTime, Stuck, VirtualTime
from millstream.worker.audit import Audit, audit_of
from millstream.worker.definition import Definition
from millstream.worker.handlers import Registered
from millstream.worker.message import Message
from millstream.worker.runtime.loop import Worker, require_handler

START_MS = 1_767_225_600_000  # the server's time when a simulation begins: 2026-01-01
PATIENCE_S = 3600.0  # of simulated time, before a wait fails
Server = Literal["newest", "older"]
OLDER = Capabilities(scripts=True)  # a server without the newer commands: our scripts do their work
Rule = Callable[[Seen], Fault | None]


@dataclass(frozen=True, slots=True)
class Happened:
    """Something in the simulation's log."""

    at_s: float
    kind: str  # handler-entered, -returned, -raised; started, stopped, killed, frozen; failed-over, jumped
    worker: str = ""
    stream: str = ""
    entry_id: str = ""
    attempt: int = 0
    data: Any = None


@dataclass(eq=False)
class Life:
    """One life of a worker."""

    owner: Owner
    number: int
    serves: list[Definition] | None = None  # None: all streams, also those that come later
    workers: list[Worker] = field(default_factory=list)


class SimClock:
    """The server's clock: the simulation's time, and by how much it is wrong."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self.skew_ms = 0

    def now_ms(self) -> int:
        return START_MS + self._time.now_ms() - BEGIN_MS + self.skew_ms


class Sim:
    """A fleet of workers for some streams."""

    def __init__(
        self,
        *streams: Any,
        workers: int | Iterable[str] = 1,
        server: Server = "newest",
        seed: int = 0,
        engine: str | None = None,
    ) -> None:
        self._given = streams
        self._names = [f"w{n}" for n in range(1, workers + 1)] if isinstance(workers, int) else list(workers)
        self._luck = random.Random(seed)
        self._seed = seed
        self._engine = engine
        self._time = VirtualTime() if engine is None else RealTime()
        self._began_ms = self._time.now_ms()
        self.fibers = Fibers(self._time)
        self._server = server
        self._definitions: dict[int, Definition] = {}
        self._lives: dict[str, Life] = {}
        self._numbers = itertools.count(1)
        self._calls: Counter[str] = Counter()
        self._rules: list[Rule] = []
        self._waiting: list[Blocked] = []
        self.log: list[Happened] = []
        self.calls: list[Seen] = []
        self.versions: Counter[bytes] = Counter()  # number of calls done, by stream
        self._looked_at: dict[bytes, tuple[int, bool]] = {}
        self.epoch = 0
        self.is_down = False

    def __enter__(self) -> Sim:
        LUCK.seed(self._seed)  # so that the jitter of retries is the same in every run
        if isinstance(self._time, VirtualTime):
            self.clock = SimClock(self._time)
            name = f"sim-{uuid.uuid4().hex}"
            self._broker = Broker(clock=self.clock)
            self._shared = share_broker(name, self._broker)
            self.backend: Backend = connect(f"memory://{name}")
        else:
            assert self._engine is not None
            self.backend = connect(self._engine)
        self.capabilities = self.backend.capabilities if self._server == "newest" else OLDER
        for stream in self._given:
            self.define(stream)
        for worker in self._names:
            self.start(worker)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for life in self._lives.values():
            self.fibers.kill(life.owner)
        if self.fibers.is_abandoned:
            return  # the stuck fiber may hold the broker's lock: closing could wait for it for ever
        self.backend.close()
        if isinstance(self._time, VirtualTime):
            self._shared.close()

    # Streams and workers

    def define(self, stream: Any) -> Definition:
        """Return the stream of the simulation: same name, type, settings and handler, another URL and clock."""
        known = self._definitions.get(id(stream))
        if known is not None:
            return known
        user: Definition = stream._definition
        # The listener needs a subscription, which works in real time only: here the scan finds expired locks.
        settings = replace(user.settings, listener=False)
        made = replace(
            user, given_settings=settings, overrides={}, watch_ms=self._time.now_ms, producers=type(user.producers)()
        )
        if isinstance(self._time, VirtualTime):
            made.now_ms = self.clock.now_ms
        self._definitions[id(stream)] = made
        for name, life in self._lives.items():
            if not life.owner.is_dead and life.serves is None:
                self._employ(name, life, made)
        return made

    def start(self, worker: str, *streams: Any) -> None:
        """Start a worker for these streams, or for all; or a new life of a dead or stopped one, for what it had."""
        known = self._lives.get(worker)
        if known is not None and not known.owner.is_dead and self.fibers.alive(known.owner):
            raise ConfigError(f"{worker} is alive")
        serves = [self.define(stream) for stream in streams] or (known.serves if known is not None else None)
        life = self._lives[worker] = Life(Owner(worker), next(self._numbers), serves)
        self._note("started", worker)
        for definition in self._definitions.values() if serves is None else serves:
            self._employ(worker, life, definition)

    def kill(self, worker: str) -> None:
        """End a worker where it stands, as SIGKILL does."""
        self.died(self._life(worker).owner)
        self.fibers.kill(self._life(worker).owner)

    def stop(self, worker: str, *, wait: bool = True) -> None:
        """Let a worker end in order, as on SIGTERM."""
        life = self._life(worker)
        self._note("stopped", worker)
        for each in life.workers:
            each.stop()
        if wait:
            self._run(PATIENCE_S, lambda: self._is_all_over(life), "its end")
            self.fibers.kill(life.owner)  # handlers that still run end with the process

    def freeze(self, worker: str, seconds: float) -> None:
        """Stop a worker for a while: it does not even renew, and then goes on without noticing."""
        self._freeze(self._life(worker).owner, seconds)

    def is_alive(self, worker: str) -> bool:
        life = self._lives.get(worker)
        return life is not None and not life.owner.is_dead and self.fibers.alive(life.owner)

    # Producing and looking

    def publish(
        self,
        stream: Any,
        value: Any,
        *,
        delay: float = 0.0,
        dedupe: str | None = None,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Publish as `Stream.publish` does; in rules for faults this caller is called `producer`."""
        return self.publish_many(
            stream, [value], delay=delay, dedupe=None if dedupe is None else [dedupe], ttl=ttl, headers=headers
        )[0]

    def publish_many(
        self,
        stream: Any,
        values: Iterable[Any],
        *,
        delay: float = 0.0,
        dedupe: Iterable[str] | None = None,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> list[str]:
        definition, ids = self.define(stream), list[str]()
        producer = self._connect(None, "producer")
        for call in definition.appends(self.capabilities, values, delay, dedupe, ttl, headers):
            with call as sent:
                ids += [made.id.decode() for made in producer.run(sent)]
        return ids

    def audit(self, stream: Any) -> Audit:
        """Return the account of a stream: where everything is that was published."""
        definition = self.define(stream)
        return audit_of(self.backend.run(definition.steps(self.capabilities).audit()), definition.group)

    def dead(self, stream: Any) -> DeadLetters:
        """Return the dead letters."""
        return self.define(stream).dead_letters(cast(Any, self._connect(None, "producer")))

    def consumer(self, stream: Any, name: str = "by-hand") -> Consumer:
        """Make a consumer that the test drives call by call, without a worker around it."""
        made = self.define(stream).make_consumer(self._connect(None, name))
        made.name = name.encode()
        return made

    def completions(self, stream: Any) -> int:
        """Return how many entries the group has acknowledged."""
        return self.audit(stream).done

    def happened(self, kind: str, *, worker: str | None = None, stream: Any = None) -> list[Happened]:
        """Return the log's events of a kind."""
        return [
            each
            for each in self.log
            if each.kind == kind
            and (worker is None or each.worker == worker)
            and (stream is None or each.stream == stream.name)
        ]

    def call_count(self, name: str | None = None, *, worker: str | None = None) -> int:
        """Return how many calls were made, of a step or command, by a worker."""
        return sum(
            (name is None or seen.name == name) and (worker is None or seen.worker == worker) for seen in self.calls
        )

    # Time

    @property
    def now_s(self) -> float:
        """Seconds since the simulation began, by the monotonic clock."""
        return (self._time.now_ms() - self._began_ms) / 1000

    def advance(self, seconds: float) -> None:
        """Let this much time pass."""
        self.fibers.run(self._time.now_ms() + round(seconds * 1000))

    def run_until(self, what: str | Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Run until something of this kind happens, or the condition holds; Stuck if it does not come."""
        if callable(what):
            self._run(timeout_s, what, "the condition")
        else:
            before = len(self.log)
            self._run(timeout_s, lambda: any(each.kind == what for each in self.log[before:]), what)

    def run_until_done(self, timeout_s: float = PATIENCE_S) -> None:
        """Run until nothing is undelivered, pending or delayed; dead letters may be left."""
        self._run(timeout_s, self.is_done, "all to be done")

    def is_done(self) -> bool:
        """Return whether nothing is undelivered, pending or delayed."""
        return all(self._is_empty(definition) for definition in self._definitions.values())

    def sleep(self, seconds: float) -> None:
        """Take this long, in a handler. Coroutines use asyncio.sleep."""
        self.fibers.park(seconds)

    # Faults

    def on_call(self, rule: Rule) -> None:
        """Ask a function about every call: a Fault, or None. The first rule that answers counts."""
        self._rules.append(rule)

    def plan(self, fault: Fault, *, worker: str | None = None, call: str | None = None, nth: int = 1) -> None:
        """Inject one fault, at the nth matching call from now."""
        left = nth

        def rule(seen: Seen) -> Fault | None:
            nonlocal left
            if (worker is not None and seen.worker != worker) or (call is not None and seen.name != call):
                return None
            left -= 1
            return fault if left == 0 else None

        self._rules.append(rule)

    def calm(self) -> None:
        """Stop injecting faults."""
        self._rules.clear()
        self.fibers.luck = None

    def jump(self, seconds: float) -> None:
        """Set the server's clock forward or back; monotonic clocks are not affected."""
        if not isinstance(self._time, VirtualTime):
            raise ConfigError("the clock of a real server cannot be moved")
        self.clock.skew_ms += round(seconds * 1000)
        self._note("jumped")
        self._all_changed()

    def fail_over(self, skew_s: float = 0.0) -> None:
        """Break all connections and let another server answer: same data, no scripts, perhaps another clock."""
        if skew_s:
            self.jump(skew_s)
        self.backend.execute("SCRIPT", "FLUSH", key=b"")
        self.break_connections()
        self._note("failed-over")

    def outage(self, seconds: float) -> None:
        """Make the server answer no one for a while."""
        self.is_down = True
        self.break_connections()
        self.fibers.run(self._time.now_ms() + round(seconds * 1000))
        self.is_down = False

    def break_connections(self) -> None:
        """Break all connections: waiting reads fail, and the next call of each worker opens a new one."""
        self.epoch += 1
        self._all_changed()

    def chaos(self, seed: int, steps: int, faults: Chances | None = None) -> None:
        """Random faults and a random order of all that can run, for so many calls; the same for the same seed.

        Afterwards all workers are alive and nothing goes wrong any more: `run_until_done` and `audit` are left to do.
        """
        luck, chances, end = random.Random(seed), faults or Chances(), len(self.calls) + steps
        self.fibers.luck = luck

        def rule(seen: Seen) -> Fault | None:
            return self._draw(luck, chances) if seen.worker != "producer" else None

        self._rules.append(rule)
        self._run(1e9, lambda: len(self.calls) >= end, "the last step")
        self.calm()
        for name, life in self._lives.items():
            life.owner.frozen_until_ms = 0
            if not self.is_alive(name):
                self.start(name)

    # What SimBackend asks

    def see(self, worker: str, name: str, is_resend: bool) -> Fault | None:
        self._calls[worker] += 1
        seen = Seen(worker, name, self._calls[worker], self._time.now_ms(), is_resend)
        self.calls.append(seen)
        answers = [rule(seen) for rule in self._rules]  # ask all of them, because rules count the calls that they see
        return next((fault for fault in answers if fault is not None), None)

    def changed(self, key: bytes) -> None:
        self.versions[key] += 1
        for read in self._waiting:
            # The server answers a frozen reader too: the reader then has the entry and does not know it.
            if read.key == key and read.owner is not None and self._time.now_ms() < read.owner.frozen_until_ms:
                read.try_now()

    def died(self, owner: Owner) -> None:
        if not owner.is_dead:
            owner.is_dead = True
            self._note("killed", owner.name)

    def freeze_for_a_while(self, owner: Owner) -> None:
        self._freeze(owner, self._frozen_s)

    _frozen_s = 60.0

    # Inside

    def _employ(self, name: str, life: Life, definition: Definition) -> None:
        """Start a worker for one stream in one life."""
        if definition.registered is None:
            return
        handler = self._watched(name, definition, require_handler(definition.registered, definition.name))

        def make_consumer(backend: Runs) -> Consumer:
            consumer = definition.make_consumer(backend)
            consumer.name = f"{name}-{life.number}".encode()
            consumer.sleep = self.fibers.park
            if consumer.rfc is not None:
                consumer.rfc.luck = self._luck
            return consumer

        worker = Worker(
            handler,
            definition.codec,
            definition.policy,
            lambda: cast(Backend, self._connect(life.owner, name)),
            make_consumer,
            middlewares=definition.middlewares,
            threads=self.fibers,
            settings=definition.settings,
            urls=definition.urls,
        )
        life.workers.append(worker)
        self.fibers.spawn(f"{name}/{definition.name}", lambda: worker.run(signals=False), life.owner)

    def _watched(self, worker: str, definition: Definition, handler: Registered) -> Registered:
        """Wrap the handler so that the log has a note before and after each call; a test can stop there."""

        def note(kind: str, message: Message[Any]) -> None:
            self._note(kind, worker, definition.name, message.id, message.attempt, message.data)
            self.fibers.park(0)

        def call(_: Any, message: Message[Any]) -> None:
            note("handler-entered", message)
            try:
                handler.call(message)
            except Killed:
                raise
            except BaseException:
                note("handler-raised", message)
                raise
            note("handler-returned", message)

        async def acall(_: Any, message: Message[Any]) -> None:
            note("handler-entered", message)
            try:
                await handler.call(message)
            except Killed:
                raise
            except BaseException:
                note("handler-raised", message)
                raise
            note("handler-returned", message)

        return replace(handler, function=acall if handler.is_async else call, wants_message=True)

    def _connect(self, owner: Owner | None, name: str) -> SimBackend:
        return SimBackend(self, owner, name, self._waiting)

    def _life(self, worker: str) -> Life:
        if worker not in self._lives:
            raise ConfigError(f"there is no worker {worker!r}; there are {', '.join(self._lives)}")
        return self._lives[worker]

    def _freeze(self, owner: Owner, seconds: float) -> None:
        owner.frozen_until_ms = max(owner.frozen_until_ms, self._time.now_ms() + round(seconds * 1000))
        self._note("frozen", owner.name)

    def _draw(self, luck: random.Random, chances: Chances) -> Fault | None:
        """Draw a fault, or None, by chance."""
        lease_s = max(definition.settings.lease for definition in self._definitions.values())
        if luck.random() < chances.jump and isinstance(self._time, VirtualTime):
            self.jump(luck.uniform(-chances.jump_s, chances.jump_s))
        if luck.random() < chances.kill:
            self._revive_later(luck.uniform(0, chances.dead_leases * lease_s))
            return luck.choice((Fault.KILL_BEFORE, Fault.KILL_AFTER))
        if luck.random() < chances.drop_reply:
            return Fault.DROP_REPLY
        if luck.random() < chances.cut:
            return Fault.CUT
        if luck.random() < chances.freeze:
            self._frozen_s = luck.uniform(0, chances.frozen_leases * lease_s)
            return Fault.FREEZE
        return None

    def _revive_later(self, seconds: float) -> None:
        def revive() -> None:
            self.fibers.park(seconds)
            for name in self._lives:
                if self._lives[name].owner.is_dead:
                    self.start(name)

        self.fibers.spawn("revive", revive, None)

    def _all_changed(self) -> None:
        for definition in self._definitions.values():
            self.changed(definition.name.encode())

    def _run(self, seconds: float, is_enough: Callable[[], bool], what: str) -> None:
        if not self.fibers.run(self._time.now_ms() + round(seconds * 1000), is_enough):
            raise Stuck(f"waited {seconds:g} s of simulated time for {what}")

    def _is_empty(self, definition: Definition) -> bool:
        """Return whether a stream has nothing left; asks the server only after a call for that stream."""
        key = definition.name.encode()
        version, was_empty = self._looked_at.get(key, (-1, False))
        if version != self.versions[key]:
            account = self.backend.run(definition.steps(self.capabilities).audit())
            was_empty = account.pending == account.undelivered == account.delayed == 0
            self._looked_at[key] = (self.versions[key], was_empty)
        return was_empty

    def _is_all_over(self, life: Life) -> bool:
        return not self.fibers.is_running(f"{life.owner.name}/", life.owner)

    def _note(
        self, kind: str, worker: str = "", stream: str = "", entry_id: str = "", attempt: int = 0, data: Any = None
    ) -> None:
        self.log.append(Happened(self.now_s, kind, worker, stream, entry_id, attempt, data))
