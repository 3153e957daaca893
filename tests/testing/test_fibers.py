"""Fibers: one at a time, in an order that is the same every time, in a time of their own."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from queue import Empty

import pytest

from millstream.testing import Sim
from millstream.testing import fibers as fibers_module
from millstream.testing.fibers import BEGIN_MS, Fibers, Owner, Stuck, VirtualTime
from millstream.worker.stream import Stream

STOPPED = """
import time
from millstream.testing import fibers as module

module.HANG_LOOKS, module.LOOK_EVERY_S = 15, 0.1
fibers, done = module.Fibers(module.VirtualTime()), []

def work():
    print("running", flush=True)
    while time.process_time() < 0.05 + began:  # until the parent has stopped us and let us go on
        pass
    done.append(True)

began = time.process_time()
fibers.spawn("busy", work, None)
fibers.run(fibers.clock.now_ms() + 1000)
assert done
"""


@pytest.fixture
def fibers() -> Fibers:
    return Fibers(VirtualTime())


def run(fibers: Fibers, seconds: float) -> None:
    fibers.run(fibers.clock.now_ms() + round(seconds * 1000))


def test_time_jumps_to_the_next_moment_at_which_something_can_be_done(fibers: Fibers) -> None:
    seen: list[tuple[str, float]] = []

    def sleeper(name: str, seconds: float) -> None:
        fibers.park(seconds)
        seen.append((name, fibers.monotonic() - BEGIN_MS / 1000))

    for name, seconds in (("late", 3600), ("early", 0.5), ("middle", 60)):
        fibers.spawn(name, lambda name=name, seconds=seconds: sleeper(name, seconds), None)  # type: ignore[misc]
    run(fibers, 10_000)
    assert seen == [("early", 0.5), ("middle", 60.0), ("late", 3600.0)]


def test_an_event_wakes_who_waits_for_it_and_a_timeout_who_waits_too_long(fibers: Fibers) -> None:
    event, answers = fibers.Event(), list[bool]()
    fibers.spawn("one", lambda: answers.append(event.wait(5)), None)
    fibers.spawn("two", lambda: answers.append(event.wait(1)), None)

    def set_later() -> None:
        fibers.park(3)
        event.set()

    fibers.spawn("setter", set_later, None)
    run(fibers, 4)
    assert answers == [False, True]


def test_a_queue_hands_over_and_is_empty_in_time(fibers: Fibers) -> None:
    queue, got = fibers.SimpleQueue(), list[object]()

    def take() -> None:
        for _ in range(2):
            try:
                got.append(queue.get(timeout=2))
            except Empty:
                got.append("empty")

    fibers.spawn("taker", take, None)

    def give() -> None:
        fibers.park(1)
        queue.put("x")

    fibers.spawn("giver", give, None)
    run(fibers, 10)
    assert got == ["x", "empty"]
    with pytest.raises(Empty):
        queue.get_nowait()


def test_a_frozen_owners_fibers_stand_still_and_go_on_later(fibers: Fibers) -> None:
    owner, seen = Owner("w"), list[float]()

    def tick() -> None:
        for _ in range(3):
            fibers.park(1)
            seen.append(fibers.monotonic() - BEGIN_MS / 1000)

    fibers.spawn("ticker", tick, owner)
    run(fibers, 1.5)
    owner.frozen_until_ms = fibers.clock.now_ms() + 10_000
    run(fibers, 20)
    assert seen == [1.0, 11.5, 12.5]


def test_a_killed_owners_fibers_end_where_they_stand(fibers: Fibers) -> None:
    owner, seen = Owner("w"), list[str]()

    def work() -> None:
        fibers.park(1)
        seen.append("before")
        fibers.park(10)
        seen.append("behind")

    fibers.spawn("worker", work, owner)
    run(fibers, 5)
    fibers.kill(owner)
    run(fibers, 100)
    assert seen == ["before"]
    assert not fibers.alive(owner)


def test_an_error_in_a_fiber_is_told_to_the_test(fibers: Fibers) -> None:
    def fail() -> None:
        raise ValueError("a bug")

    fibers.spawn("broken", fail, None)
    with pytest.raises(Stuck, match="broken ended: ValueError"):
        run(fibers, 1)


def test_a_fiber_that_does_not_come_back_is_told_and_the_simulation_can_be_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Leaving handed the baton to the fiber that had it, and "release unlocked lock" hid where the fiber stood."""
    monkeypatch.setattr(fibers_module, "HANG_LOOKS", 3)
    monkeypatch.setattr(fibers_module, "LOOK_EVERY_S", 0.1)
    orders = Stream[dict[str, int]]("orders", group="g")
    real = threading.Event()
    before = threading.active_count()

    @orders.handler(concurrency=3)
    def wait_for_something_real(order: dict[str, int]) -> None:
        real.wait(60)

    def simulate() -> None:
        with Sim(orders, workers=2) as sim:
            sim.publish(orders, {"n": 1})
            sim.advance(10)

    with pytest.raises(Stuck, match=r"(?s)does a handler wait.*real\.wait\(60\)"):
        simulate()
    real.set()
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_a_machine_that_stops_the_whole_process_does_not_make_a_fiber_look_stuck() -> None:
    with subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "running\n"
            child.send_signal(signal.SIGSTOP)
            time.sleep(2)  # longer than all the looks together
            child.send_signal(signal.SIGCONT)
            assert child.wait(60) == 0
        finally:
            child.kill()


def test_waiting_outside_is_refused(fibers: Fibers) -> None:
    with pytest.raises(Stuck):
        fibers.park(1)


def test_the_order_is_by_luck_when_there_is_some_and_the_same_for_the_same_seed() -> None:
    def order(seed: int | None) -> list[int]:
        fibers, seen = Fibers(VirtualTime(), None if seed is None else random.Random(seed)), list[int]()
        for n in range(6):
            fibers.spawn(str(n), lambda n=n: seen.append(n), None)  # type: ignore[misc]
        run(fibers, 1)
        return seen

    assert order(None) == [0, 1, 2, 3, 4, 5]
    assert order(1) == order(1)
    assert order(1) != order(2)


def test_a_coroutine_sleeps_in_virtual_time(fibers: Fibers) -> None:
    import asyncio

    loop, seen = fibers.new_event_loop(), list[float]()

    async def work() -> None:
        await asyncio.gather(asyncio.sleep(100), asyncio.sleep(50))
        seen.append(fibers.monotonic() - BEGIN_MS / 1000)
        loop.call_soon(loop.stop)

    fibers.spawn("loop", loop.run_forever, None)
    asyncio.run_coroutine_threadsafe(work(), loop)
    run(fibers, 1000)
    assert seen == [pytest.approx(100.0, abs=0.01)]
    loop.close()
