"""D8, D14 to D24 and D27 at real places and in real time, with short leases: what the simulation shows in its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream.client import Backend, connect
from millstream.client.calls import Call
from millstream.delivery.config.settings import Breaker, Settings
from millstream.delivery.policy import Backoff
from millstream.delivery.settlement import Ack, Later
from millstream.delivery.signals import Reject, Retry
from millstream.errors import Unavailable
from millstream.testing import Fault
from millstream.worker.message import Message
from millstream.worker.stream import Stream
from tests.scenarios.breaking import Breaking
from tests.scenarios.fleet import Tally, at, matrix, running, until
from tests.scenarios.simulated import Order, make_consumer
from tests.support import redis7, servers
from tests.support.ours import SOURCE
from tests.support.places import Site

ROOT = Path(__file__).parent.parent.parent
LEASE_S = 0.4


class Gated:
    """A backend that stands still while its gate is closed: so does a worker that the machine has stopped."""

    def __init__(self, backend: Backend, gate: threading.Event) -> None:
        self._backend, self._gate = backend, gate

    def run(self, call: Call[Any]) -> Any:
        self._gate.wait(30)
        reply = self._backend.run(call)
        self._gate.wait(30)  # what has come meanwhile is not looked at either
        return reply

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


@contextmanager
def frozen_at_will(orders: Stream[Order], url: str) -> Iterator[threading.Event]:
    """A worker of the stream in a thread, and the gate behind which all its calls are made."""
    gate = threading.Event()
    gate.set()
    worker = orders._definition.make_worker(lambda: Gated(connect(url), gate))  # type: ignore[arg-type, return-value]
    thread = threading.Thread(target=worker.run, kwargs={"signals": False}, daemon=True)
    thread.start()
    try:
        yield gate
    finally:
        gate.set()
        worker.stop()
        thread.join(60)
        assert not thread.is_alive()


@matrix
def test_a_worker_that_wakes_from_a_freeze_acknowledges_nothing_at_any_place(place: Site) -> None:
    """Scenario D8."""
    tally, entered, go_on = Tally(), threading.Event(), threading.Event()
    orders = Stream[Order]("orders", place.url, group="g", lease=LEASE_S, recorder=tally)

    @orders.handler
    def charge(order: Order) -> None:
        entered.set()
        go_on.wait(20)

    with orders, frozen_at_will(orders, place.url) as gate:
        orders.publish(Order(1))
        assert entered.wait(60)
        gate.clear()
        heir = make_consumer(place.connect(), "heir", Settings(lease=LEASE_S))
        taken: list[Any] = []
        until(lambda: taken.extend(heir.fetch(1, 0.1)) or taken)
        go_on.set()
        gate.set()
        until(lambda: tally["lease_lost"] >= 1)
        account = orders.audit()
        assert (account.done, account.pending) == (0, 1)  # the one who woke has changed nothing
        assert [result.code for result in heir.settle([(taken[0], Ack())])] == [1]
        account = orders.audit()
        assert (account.done, account.pending, account.balanced) == (1, 0, True)


@matrix
def test_a_retry_of_a_worker_that_has_ended_is_taken_on_time_by_another(place: Site) -> None:
    """D14. Well before a lease is over; how close it comes is measured by the benchmark."""
    settings = Settings(lease=5.0)
    one, other = (make_consumer(place.connect(), name, settings) for name in ("one", "other"))
    one.open()
    late = []
    for _ in range(3):
        one.backend.execute("XADD", "orders", "*", "n", "1")  # type: ignore[attr-defined]
        (delivery,) = one.fetch(1, 1)
        assert other.fetch(1, 0.001) == []  # has looked just now: the retry is made behind its back
        begun = time.monotonic()
        one.settle([(delivery, Later(0.3))])
        found: list[Any] = []
        until(lambda seen=found: seen.extend(other.fetch(1, 1.0)) or seen)  # type: ignore[misc]
        late.append(time.monotonic() - begun - 0.3)
        assert found[0].number == 2
        other.settle([(found[0], Ack())])
    assert min(late) >= -0.02
    assert min(late) <= 2.0, late


@matrix
def test_a_retry_and_a_delayed_publication_are_on_time(place: Site) -> None:
    """Scenario D14."""
    orders = Stream[Order]("orders", place.url)  # with default settings
    due: dict[int, float] = {}
    late: dict[str, list[float]] = {"delayed": [], "retried": []}
    delay_s, count = 0.2, 15

    @orders.handler
    def charge(order: Order, message: Message[Order]) -> None:
        if order.n % 2 == 0:
            late["delayed"].append(time.monotonic() - due[order.n])
        elif message.attempt == 2:
            late["retried"].append(time.monotonic() - due[order.n])
        else:
            due[order.n] = time.monotonic() + delay_s
            raise Retry(delay_s)

    with orders, running(orders):
        until(lambda: orders.backend.execute("EXISTS", "orders"))
        for n in range(0, 2 * count, 2):
            due[n] = time.monotonic() + delay_s
            orders.publish(Order(n), delay=delay_s)
            time.sleep(0.04)
            orders.publish(Order(n + 1))
            time.sleep(0.04)
        until(lambda: len(late["delayed"]) == len(late["retried"]) == count)
    for found in late.values():
        found.sort()
        assert found[0] >= -0.02
        assert found[count // 2] <= 0.1, late
        assert found[-2] <= 1.0, late  # some milliseconds on a quiet machine: bench/lateness.py measures the p99


@matrix
@pytest.mark.parametrize("delay_s", [0.0, 60.0])
def test_a_producer_whose_replies_are_lost_publishes_once(place: Site, delay_s: float) -> None:
    """Scenario D15."""
    breaking = Breaking(place)
    orders = Stream[Order]("orders", place.url, group="g")
    orders._backend = breaking.backend
    one = orders.publish(Order(0), delay=delay_s)
    for count in (1, 3):
        breaking.calls = 0
        breaking.rule = lambda number: Fault.DROP_REPLY if number < 4 else None
        assert len(orders.publish_many([Order(n) for n in range(count)], delay=delay_s)) == count
        assert breaking.calls >= 4
    account = orders.audit()
    assert account.published == 5
    assert (account.delayed == 5) == (one == "") == (delay_s > 0)


@matrix
def test_a_slow_handler_keeps_its_lease_at_any_place(place: Site) -> None:
    """D16. One that lets others run; what holds the interpreter itself is in test_lease_process."""
    orders = Stream[Order]("orders", place.url, group="g", lease=1.0)
    entered: list[int] = []

    @orders.handler
    def charge(order: Order, message: Message[Order]) -> None:
        entered.append(message.attempt)
        time.sleep(2.5)

    with orders, running(orders):
        thief = make_consumer(place.connect(), "thief", Settings(lease=1.0))
        orders.publish(Order(1))
        until(lambda: entered)
        end, stolen = time.monotonic() + 2.0, []
        while time.monotonic() < end:
            stolen += thief.fetch(10, 0.1)
        until(lambda: orders.audit().done == 1)
    assert (stolen, entered) == ([], [1])


@at("memory", "file")
def test_where_the_broker_is_inside_the_process_too_a_held_interpreter_settles_once(place: Site) -> None:
    """D16. While it is held, nobody can renew or take over; afterwards either may come first, and one counts."""
    orders = Stream[Order]("orders", place.url, group="g", lease=0.3)
    entered: list[int] = []

    @orders.handler(concurrency=2)
    def charge(order: Order, message: Message[Order]) -> None:
        entered.append(message.attempt)
        if len(entered) == 1:
            sum(range(30_000_000))  # one call in C: no other thread runs

    with orders, running(orders):
        orders.publish(Order(1))
        until(lambda: orders.audit().done == 1)
        account = orders.audit()
    assert (account.done, account.pending, account.dead, account.balanced) == (1, 0, 0, True)
    assert len(entered) <= 2


@matrix
def test_a_handler_stuck_beyond_its_timeout_loses_the_entry_at_any_place(place: Site) -> None:
    """Scenario D17."""
    orders = Stream[Order]("orders", place.url, group="g", lease=LEASE_S, max_retries=0, breaker=None)
    free = threading.Event()

    @orders.handler(timeout=0.8)
    def charge(order: Order) -> None:
        if order.n == 1:
            free.wait(20)

    with orders, running(orders):
        orders.publish_many([Order(1), Order(2)])
        until(lambda: (orders.audit().done, orders.audit().dead) == (1, 1))
        (letter,) = orders.dead.list()
        assert (letter.reason, letter.error.split(":")[0].rpartition(".")[2]) == ("retries", "HandlerTimeout")
        free.set()


@matrix
def test_what_stopped_workers_had_is_available_at_once_and_never_dead(place: Site) -> None:
    """D18, D19. Three workers in turn are stopped in the middle; only one retry is allowed, and none of them counts."""
    busy: Counter[int] = Counter()
    free = threading.Event()

    def charge(order: Order) -> None:
        busy[order.n] += 1
        free.wait(20)

    for _ in range(3):
        orders = Stream[Order]("orders", place.url, group="g", max_retries=1, shutdown_grace=0.1)
        orders.handler(concurrency=4)(charge)
        with orders:
            if not busy:
                orders.publish_many([Order(n) for n in range(8)])
            before = busy.total()
            with running(orders):
                until(lambda so_far=before: busy.total() == so_far + 4)  # type: ignore[misc]
            account = orders.audit()
            assert (account.done, account.dead, account.pending) == (0, 0, account.released)
            assert account.released + account.undelivered == 8
    free.set()
    heir = make_consumer(place.connect(), "heir", Settings(lease=30.0))
    found: list[Any] = []
    until(lambda: len(found) == 8 or found.extend(heir.fetch(10, 0.05)))
    assert [delivery.number for delivery in found] == [1] * 8
    heir.settle([(delivery, Ack()) for delivery in found])


@matrix
def test_a_stopped_worker_finishes_what_it_can_at_any_place(place: Site) -> None:
    """Scenario D18."""
    orders = Stream[Order]("orders", place.url, group="g", shutdown_grace=10)
    entered: list[int] = []

    @orders.handler(concurrency=4)
    def charge(order: Order) -> None:
        entered.append(order.n)
        time.sleep(0.2)

    with orders:
        orders.publish_many([Order(n) for n in range(4)])
        with running(orders):
            until(lambda: len(entered) == 4)
        assert (orders.audit().done, orders.audit().pending) == (4, 0)


@matrix
def test_an_entry_that_ends_its_consumers_is_set_aside_and_its_neighbours_are_not(place: Site) -> None:
    """D20. Here a consumer is never heard of again; in test_dead_letters its process is killed."""
    settings = Settings(lease=0.2)
    orders = Stream[Order]("orders", place.url, group="g", settings=settings)
    with orders:
        orders.publish_many([Order(n) for n in range(4)])
        done: list[int] = []
        for life in range(5):
            consumer = make_consumer(place.connect(), f"life-{life}", settings)
            consumer.open()
            end = time.monotonic() + 60
            while time.monotonic() < end and not (orders.audit().dead and len(done) == 3):
                (delivery,) = consumer.fetch(1, 0.05) or [None]
                if delivery is not None and delivery.is_suspect:
                    assert consumer.begin_alone(delivery)
                if delivery is not None and delivery.by_name[b"data"] == b'{"n":2}':
                    break  # and with it the consumer
                if delivery is not None:
                    done.append(delivery.number)
                    consumer.settle([(delivery, Ack())])
        (letter,) = orders.dead.list()
        assert (letter.reason, letter.attempts, letter.by_name[b"data"]) == ("crashed", 4, b'{"n":2}')
        account = orders.audit()
        assert (account.done, account.dead, account.balanced, done) == (3, 1, True, [1, 1, 1])


@matrix
def test_bytes_that_cannot_be_read_are_dead_lettered_at_any_place(place: Site) -> None:
    """Scenario D21."""
    orders = Stream[Order]("orders", place.url, group="g", breaker=None)
    orders.handler(lambda order: None)
    broken = [("data", b"{"), ("data", b'{"n": "x"}'), ("data", b"\xff\xfe"), ("other", b"1"), ("data", b"[1, 2]")]
    with orders, running(orders):
        for name, value in broken:
            orders.backend.execute("XADD", "orders", "*", name, value)
        orders.publish(Order(1))
        until(lambda: (orders.audit().done, orders.audit().dead) == (1, 5))
        assert [(letter.reason, letter.fields) for letter in orders.dead.list()] == [
            ("malformed", ((name.encode(), value),)) for name, value in broken
        ]


@matrix
def test_a_flood_of_dead_letters_pauses_reading_at_any_place(place: Site) -> None:
    """Scenario D22."""
    tally, is_well = Tally(), threading.Event()
    orders = Stream[Order]("orders", place.url, group="g", breaker=Breaker(least=10, pause=2.0), recorder=tally)

    @orders.handler
    def charge(order: Order) -> None:
        if not is_well.is_set():
            raise Reject("everything fails today")

    with orders:
        orders.publish_many([Order(n) for n in range(100)])
        with running(orders):
            until(lambda: tally["breaker"] == 1)
            time.sleep(0.3)
            dead = orders.audit().dead
            assert 10 <= dead <= 15  # those in hand when it opened are settled too
            is_well.set()
            until(lambda: orders.audit().done + orders.audit().dead == 100)
        assert (orders.audit().dead, orders.audit().balanced) == (dead, True)


@matrix
@pytest.mark.parametrize("fault", [Fault.CUT, Fault.DROP_REPLY], ids=["cut", "dropped"])
def test_a_redrive_that_was_interrupted_goes_on_at_any_place(
    place: Site, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario D23."""
    monkeypatch.setattr("millstream.client.backend.FIRST_PAUSE_S", 0.001)
    breaking = Breaking(place)
    orders = Stream[Order]("orders", place.url, group="g", breaker=None)
    orders._backend = breaking.backend
    consumer = make_consumer(place.connect(), "c", orders.settings)
    consumer.open()
    orders.publish_many([Order(n) for n in range(120)])
    for message in orders.consume(ahead=120, wait=5):
        message.reject("not today")
        if orders.dead.count() == 120:
            break
    orders.dead.redrive()  # all back, to see how many calls it is
    for message in orders.consume(ahead=120, wait=5):
        message.reject("nor now")
        if orders.dead.count() == 120:
            break
    calls = breaking.calls
    breaking.rule = lambda number: fault if calls + 2 < number <= calls + 6 else None  # one step, all its tries
    with pytest.raises(Unavailable):
        orders.dead.redrive()
    breaking.rule = lambda _: None
    orders.dead.redrive()
    seen: Counter[int] = Counter()
    for message in orders.consume(ahead=120, wait=5):
        seen[message.data.n] += 1
        message.ack()
        if seen.total() == 120:
            break
    account = orders.audit()
    assert (account.done, account.dead, account.redriven, account.balanced) == (120, 0, 240, True)
    assert seen == Counter(range(120))


@matrix
def test_a_redriven_entry_that_fails_again_carries_its_history_at_any_place(place: Site) -> None:
    """Scenario D24."""
    orders = Stream[Order]("orders", place.url, group="g", max_retries=1, backoff=Backoff(0.02), breaker=None)
    seen: list[tuple[str, int]] = []

    @orders.handler
    def charge(order: Order, message: Message[Order]) -> None:
        seen.append((message.original_id, message.attempt))
        raise ValueError("again")

    with orders, running(orders):
        first = orders.publish(Order(1))
        for times in range(3):
            until(lambda: orders.dead.count() == 1)
            (letter,) = orders.dead.list()
            assert (letter.original_id, letter.redriven, letter.attempts) == (first, times, 2)
            assert (letter.reason, letter.error) == ("retries", "ValueError: again")
            assert "charge" in letter.traceback
            if times < 2:
                assert orders.dead.redrive().done == 1
        assert (set(seen), len(seen)) == ({(first, 1), (first, 2)}, 6)
        assert orders.audit().balanced


@pytest.mark.parametrize("kind", ["valkey", "file"])
def test_a_message_that_kills_its_process_is_set_aside_as_crashed(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """D20. Real processes, really killed; streams inside the process are read from disk by its next life."""
    port = request.getfixturevalue("valkey_server").port if kind == "valkey" else 0
    url = f"redis://127.0.0.1:{port}" if port else f"file://{tmp_path / 'kept'}"
    with Stream[dict[str, int]]("orders", url, group="g") as orders:
        if port:
            orders.backend.execute("FLUSHALL")
        orders.publish_many([{"n": n} for n in range(4)])
    codes = []
    while not codes or (codes[-1] == -signal.SIGKILL and len(codes) < 6):
        child = subprocess.run(
            [sys.executable, "-m", "tests.scenarios.killed_child", url],
            cwd=ROOT,
            timeout=60,
            check=False,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": f"{SOURCE}:{ROOT}"},
        )
        codes.append(child.returncode)
    # The first death makes suspects of what was in hand; in the two others the entry was handled alone.
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, -signal.SIGKILL, 0]
    with Stream[dict[str, int]]("orders", url, group="g") as orders:
        (letter,) = orders.dead.list()
        account = orders.audit()
    assert (letter.reason, letter.by_name[b"data"]) == ("crashed", b'{"n":2}')
    assert (account.done, account.dead, account.balanced) == (3, 1, True)


@pytest.mark.parametrize("kind", ["valkey", "redis", "redis7"])
def test_a_server_that_restarts_redelivers_nothing(kind: str) -> None:
    """D27. It reads its log, all connections break, and what is in hand stays in hand."""
    binary = {"valkey": servers.valkey_binary, "redis": servers.redis_binary, "redis7": redis7.require}[kind]()
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with servers.running(servers.require(binary, kind), *options) as server:
        orders = Stream[Order]("orders", f"redis://127.0.0.1:{server.port}", group="g", lease=2.0)
        seen: Counter[int] = Counter()

        @orders.handler(concurrency=4)
        def charge(order: Order) -> None:
            seen[order.n] += 1
            time.sleep(0.3)

        with orders, running(orders):
            orders.publish_many([Order(n) for n in range(8)])
            until(lambda: seen.total() >= 2)
            orders.backend.execute("DEBUG", "LOADAOF")  # empties the server and reads its log, as a start does
            orders.backend.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            until(lambda: orders.audit().done == 8)
            account = orders.audit()
    assert seen == Counter(range(8))
    assert (account.pending, account.dead, account.balanced) == (0, 0, True)
