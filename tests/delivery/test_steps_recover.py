"""Keeping what is ours, taking over what is nobody's, and letting go on what waits."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from millstream.delivery.delivery import Delivery
from millstream.delivery.steps import NewEntry, Settle
from tests.support import servers
from tests.support.desk import LATER, NOBODY, Desk, act, numbers
from tests.support.places import Site, visit

SOON_MS = 250  # a lease that can run out in a test, and is not over after a hiccup
KEPT_MS = 600  # one that a slow machine can keep, renewed after a third of it


def pause(ms: int = SOON_MS + 10) -> None:
    """Let leases run out; there is no clock of ours on a real server."""
    time.sleep(ms / 1000)


# Renewing


def test_a_renewed_lease_starts_again_and_does_not_count(place: Site) -> None:
    desk = Desk(place, lease_ms=KEPT_MS)
    (given,) = desk.deliver(1)
    for _ in range(3):
        pause(KEPT_MS * 35 // 100)
        assert desk.backend.run(desk.steps.renew(b"c1", [(given.id, given.number)])).lost == []
        assert desk.take(b"c2") == []
    assert desk.pending() == [(given.id, "c1", 1)]


def test_what_is_no_longer_ours_is_named_and_not_brought_back(place: Site) -> None:
    desk = Desk(place)
    given = desk.deliver(7)
    ids = [delivery.id for delivery in given]
    desk.settle(
        b"c1",
        act(given[0]),
        act(given[1], "release"),
        act(given[2], "retry", 60_000),
        act(given[3], "reject", "reason", "x"),
    )
    (retaken,) = desk.take(b"c2")
    assert retaken.id == ids[1]
    assert desk.settle(b"c2", act(retaken, "retry", 0)) == [1]
    (again,) = desk.take(b"c1")  # the same consumer has it again, but it is another delivery
    assert (again.id, again.number) == (ids[1], 2)
    desk.execute("XDEL", desk.keys.stream, ids[6])
    before = desk.pending()
    renewed = desk.backend.run(desk.steps.renew(b"c1", [(each.id, each.number) for each in given]))
    assert set(renewed.lost) == {*ids[:4], ids[6]}  # the last was trimmed away
    assert desk.pending() == [row for row in before if row[0] != ids[6]]
    assert desk.audit().counters["trimmed:g"] == 1
    assert abs(renewed.server_ms - time.time() * 1000) < 60_000


def test_a_zombie_renews_nothing(place: Site) -> None:
    desk = Desk(place)
    (given,) = desk.deliver(1)
    (taken,) = desk.take(b"c2", min_idle_ms=0)
    assert desk.backend.run(desk.steps.renew(b"c1", [(given.id, given.number)])).lost == [given.id]
    assert desk.pending() == [(taken.id, "c2", 2)]


@pytest.mark.parametrize("name", ["memory", "valkey", "redis", "cluster"])
def test_five_thousand_leases_are_renewed_in_twenty_calls(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with contextlib.contextmanager(visit)(name, request, tmp_path) as site:
        desk = Desk(site)
        for _ in range(5):
            desk.publish(1000)
        held = [(delivery.id, delivery.number) for delivery in desk.read(count=5000)]
        assert len(held) == 5000
        desk.settle(b"c1", *(act(Delivery(entry_id, (), number)) for entry_id, number in held[::1000]))
        lost: list[bytes] = []
        for first in range(0, 5000, 250):
            lost += desk.backend.run(desk.steps.renew(b"c1", held[first : first + 250])).lost
        assert lost == [entry_id for entry_id, _ in held[::1000]]
        assert {row[1:] for row in desk.pending()} == {("c1", 1)}


def test_locks_are_renewed_with_the_leases_also_when_memory_is_full(place: Site) -> None:
    desk = Desk(place)
    (given,) = desk.deliver(1)
    place.fill_memory()
    assert desk.backend.run(desk.steps.renew(b"c1", [(given.id, 1)], lock_ms=50_000)).lost == []
    place.free_memory()
    lock = desk.keys.lock(given.id)
    assert desk.execute("GET", lock, key=lock) == b"c1"
    assert 0 < desk.execute("PTTL", lock, key=lock) <= 50_000


# Recovering


def test_a_dead_consumers_entries_are_taken_over_oldest_first_within_the_credit(place: Site) -> None:
    desk = Desk(place, lease_ms=SOON_MS)
    desk.deliver(5)
    assert desk.take(b"c2") == []
    pause()
    first = desk.take(b"c2", 2)
    assert [(d.number, n) for d, n in zip(first, numbers(first), strict=True)] == [(2, 0), (2, 1)]
    assert all(delivery.idle_ms >= SOON_MS for delivery in first)
    assert numbers(desk.take(b"c3", 10)) == [2, 3, 4]


def test_the_living_are_left_alone_however_many_stand_in_front(place: Site) -> None:
    desk = Desk(place, lease_ms=SOON_MS)
    desk.publish(60)
    alive = desk.read(b"alive", 50)
    desk.read(b"dead", 10)
    pause()
    assert desk.backend.run(desk.steps.renew(b"alive", [(each.id, 1) for each in alive])).lost == []
    found = desk.take(b"c2", 10)
    assert numbers(found) == list(range(50, 60))
    assert {row[1] for row in desk.pending()[:50]} == {"alive"}


def test_recovery_looks_at_no_more_than_it_is_told_and_goes_on_from_there(place: Site) -> None:
    """An entry that a living consumer forgot is found by the slow walk."""
    desk = Desk(place)
    given = desk.deliver(25)
    forgotten = given[17].id
    desk.execute("XCLAIM", desk.keys.stream, "g", "c1", 0, forgotten, "IDLE", 100_000, "JUSTID")
    cursor, looked = b"0-0", 0
    found: list[Delivery] = []
    while not found and looked < 10:
        step = desk.steps.recover(b"c2", 5, min_idle_ms=30_000, cursor=cursor, look=10)
        recovered = desk.backend.run(step)
        found, cursor, looked = recovered.deliveries, recovered.cursor, looked + 1
    assert [delivery.id for delivery in found] == [forgotten]
    assert looked == 2
    assert cursor == given[19].id
    last = desk.backend.run(desk.steps.recover(b"c2", 5, min_idle_ms=30_000, cursor=cursor, look=10))
    assert (last.deliveries, last.cursor) == ([], b"0-0")


@pytest.mark.parametrize(("name", "thousands"), [("memory", 10), ("valkey", 100)])
def test_the_dead_are_found_among_a_hundred_thousand(
    name: str, thousands: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    many = "for i = 1, 1000 do redis.call('XADD', KEYS[1], '*', 'n', i) end"
    with contextlib.contextmanager(visit)(name, request, tmp_path) as site:
        desk = Desk(site)
        for _ in range(thousands):
            desk.execute("EVAL", many, 1, desk.keys.stream)
            desk.execute("XREADGROUP", "GROUP", "g", "alive", "COUNT", 1000, "STREAMS", desk.keys.stream, ">")
        desk.publish(1)
        (lost,) = desk.read(b"dead")
        pause(150)
        desk.read(b"alive")  # a sign of life; renewing all of them would take longer than the lease of this test
        found = desk.backend.run(desk.steps.recover(b"c2", 10, min_idle_ms=140, cursor=lost.id))
        assert [(each.id, each.number) for each in found.deliveries] == [(lost.id, 2)]


def test_recovery_says_when_the_next_one_is_due(place: Site) -> None:
    desk = Desk(place, lease_ms=30_000)
    given = desk.deliver(2)

    def next_due_ms() -> int | None:
        return desk.backend.run(desk.steps.recover(b"c2", 5, min_idle_ms=30_000)).next_due_ms

    assert 25_000 < (next_due_ms() or 0) <= 30_000
    assert desk.settle(b"c1", act(given[0], "retry", 5_000)) == [1]
    assert 3_000 < (next_due_ms() or 0) <= 5_000
    assert desk.settle(b"c1", act(given[1])) == [1]
    desk.execute("XACK", desk.keys.stream, "g", given[0].id)
    assert desk.settle(b"c1", act(given[0])) == [0]
    desk.execute("DEL", desk.keys.retries(b"g"), key=desk.keys.stream)
    assert next_due_ms() is None


def test_a_jump_of_the_clock_takes_nothing(place: Site) -> None:
    desk = Desk(place)
    desk.deliver(3)
    now = int(time.time() * 1000)
    step = desk.steps.recover(b"c2", 5, min_idle_ms=0, expected_ms=now - 60_000, tolerance_ms=10_000)
    assert desk.backend.run(step).deliveries == []
    step = desk.steps.recover(b"c2", 5, min_idle_ms=0, expected_ms=now, tolerance_ms=10_000)
    assert len(desk.backend.run(step).deliveries) == 3


def test_ghosts_are_cleared_counted_and_marked(place: Site) -> None:
    desk = Desk(place, lease_ms=0)
    given = desk.deliver(4)
    ids = [delivery.id for delivery in given]
    desk.settle(b"c1", act(given[1], "release"))
    desk.execute("XDEL", desk.keys.stream, *ids[:3])
    found = desk.backend.run(desk.steps.recover(b"c2", 0, min_idle_ms=0))
    assert sorted(found.trimmed) == ids[:3]
    assert desk.pending() == [(ids[3], "c1", 1)]
    tombs = [dict(zip(row[1][::2], row[1][1::2], strict=True)) for row in desk.range(desk.keys.dead)]
    assert sorted(tomb[b"_id"] for tomb in tombs) == ids[:3]
    assert {tomb[b"_reason"] for tomb in tombs} == {b"trimmed"}
    assert desk.audit().counters["trimmed:g"] == 3


def test_ghosts_among_what_is_taken_are_cleared_too(place: Site) -> None:
    desk = Desk(place, lease_ms=0)
    given = desk.deliver(4)
    desk.execute("XDEL", desk.keys.stream, given[1].id, given[3].id)
    found = desk.backend.run(desk.steps.recover(b"c2", 10, min_idle_ms=0, tombstones=False))
    assert numbers(found.deliveries) == [0, 2]
    assert sorted(found.trimmed) == [given[1].id, given[3].id]
    assert [row[1:] for row in desk.pending()] == [("c2", 2), ("c2", 2)]
    assert desk.range(desk.keys.dead) == []


@pytest.mark.parametrize("credit", [0, 10])
def test_ghosts_balance_also_without_a_place_for_tombstones(place: Site, credit: int) -> None:
    desk = Desk(place, lease_ms=0)
    given = desk.deliver(2)
    desk.execute("SET", desk.keys.dead, "text", key=desk.keys.dead)
    desk.execute("XDEL", desk.keys.stream, given[0].id)
    desk.backend.run(desk.steps.recover(b"c2", credit, min_idle_ms=0))
    desk.execute("DEL", desk.keys.dead, key=desk.keys.dead)
    now = desk.audit()
    assert now.pending + now.counters.get("trimmed:g", 0) == 2


def test_full_memory_does_not_stop_recovery(place: Site) -> None:
    desk = Desk(place, lease_ms=0)
    given = desk.deliver(2)
    desk.execute("XDEL", desk.keys.stream, given[0].id)
    place.fill_memory()
    assert numbers(desk.take(b"c2", 1)) == [1]
    assert desk.backend.run(desk.steps.recover(b"c3", 0, min_idle_ms=0)).deliveries == []
    place.free_memory()
    desk.backend.run(desk.steps.recover(b"c3", 0, min_idle_ms=0))
    assert desk.audit().counters == {"trimmed:g": 1, "tombstones:g": 1}
    assert desk.pending() == [(given[1].id, "c2", 2)]


def test_sent_twice_recovery_takes_nothing_more(place: Site) -> None:
    desk = Desk(place, lease_ms=SOON_MS)
    desk.deliver(3)
    pause()
    assert len(desk.take(b"c2", 2)) == 2
    assert len(desk.take(b"c2", 2)) == 1
    assert desk.take(b"c2", 2) == []
    pause()
    assert len(desk.take(b"c2", 9)) == 3  # what a lost reply delivered comes back when its lease is over


# Retries and delays


def test_retries_are_due_on_time(place: Site) -> None:
    lease_ms = 200
    desk = Desk(place, lease_ms=lease_ms)
    delays = {0: 100, 1: lease_ms, 2: 450}
    given = desk.deliver(3)
    started = time.monotonic()
    items = [act(delivery, "retry", delays[n]) for n, delivery in enumerate(given)]
    assert desk.settle(b"c1", *items) == [1, 1, 1]
    came, gap_ms = poll(desk, 3, started)
    assert {number for number, _ in came.values()} == {2}
    late = {n: round(came[n][1] - delay) for n, delay in delays.items()}
    assert all(-20 <= ms <= 1000 + gap_ms for ms in late.values()), (late, gap_ms)
    assert desk.execute("ZCARD", desk.keys.retries(b"g"), key=desk.keys.stream) == 0


def poll(desk: Desk, count: int, started: float) -> tuple[dict[int, tuple[int, float]], float]:
    """Take and acknowledge until so many came: the number and the time of each, and how long we once did not look."""
    came: dict[int, tuple[int, float]] = {}
    gap_ms, before = 0.0, time.monotonic()
    while len(came) < count and time.monotonic() - started < 60:
        desk.backend.run(desk.steps.promote())
        for delivery in desk.take(b"c2"):
            came[numbers([delivery])[0]] = (delivery.number, (time.monotonic() - started) * 1000)
            desk.settle(b"c2", act(delivery))
        time.sleep(0.005)
        now = time.monotonic()
        gap_ms, before = max(gap_ms, (now - before) * 1000), now
    return came, gap_ms


def test_a_second_retry_counts_from_itself(place: Site) -> None:
    desk = Desk(place, lease_ms=SOON_MS)
    (given,) = desk.deliver(1)
    assert desk.settle(b"c1", act(given, "retry", 10)) == [1]
    assert _taken(desk)[0].number == 2
    assert desk.settle(b"c2", Settle(given.id, 2, "retry", (60_000,))) == [1]
    pause()
    desk.backend.run(desk.steps.promote())
    assert desk.take(b"c3") == []


def _taken(desk: Desk) -> list[Delivery]:
    deadline = time.monotonic() + 60
    while not (found := desk.take(b"c2")) and time.monotonic() < deadline:
        time.sleep(0.005)
    return found


def test_a_retry_survives_a_restart_of_our_own(tmp_path: Path) -> None:
    site = Site("file", f"file://{tmp_path}/kept?appendfsync=always")
    desk = Desk(site, lease_ms=300)
    (given,) = desk.deliver(1)
    started = time.monotonic()
    assert desk.settle(b"c1", act(given, "retry", 250)) == [1]
    desk.append(NewEntry([(b"n", b"9")], delay_ms=250))
    site.leave()
    _comes_back(Desk(Site("file", site.url), lease_ms=300), started)


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_a_retry_survives_a_restart_of_a_durable_server(kind: str) -> None:
    binary = servers.valkey_binary() if kind == "valkey" else servers.redis_binary()
    with servers.running(servers.require(binary, kind), "--appendonly", "yes", "--appendfsync", "always") as server:
        site = Site(kind, f"redis://127.0.0.1:{server.port}")
        desk = Desk(site, lease_ms=300)
        (given,) = desk.deliver(1)
        started = time.monotonic()
        assert desk.settle(b"c1", act(given, "retry", 250)) == [1]
        desk.append(NewEntry([(b"n", b"9")], delay_ms=250))
        desk.execute("DEBUG", "LOADAOF")  # empties the server and reads its log, as a start does
        _comes_back(desk, started)
        site.leave()


def _comes_back(desk: Desk, started: float) -> None:
    reopened_ms = (time.monotonic() - started) * 1000  # a slow start is no late retry
    came, gap_ms = poll(desk, 2, started)
    desk.site.leave()
    assert {n: number for n, (number, _) in came.items()} == {0: 2, 9: 1}
    latest_ms = max(250, reopened_ms) + 5000 + gap_ms  # a busy machine: what it must not be is early
    assert all(230 <= at_ms <= latest_ms for _, at_ms in came.values()), (came, latest_ms)


def test_a_long_retry_stays_parked_while_it_is_promoted(place: Site) -> None:
    desk = Desk(place, lease_ms=KEPT_MS)
    given = desk.deliver(2)
    assert desk.settle(b"c1", act(given[0], "retry", 60_000), act(given[1])) == [1, 1]
    for _ in range(3):
        pause(KEPT_MS * 35 // 100)
        desk.backend.run(desk.steps.promote())
        assert desk.take(b"c2") == []
    assert desk.pending() == [(given[0].id, LATER, 1)]
    assert desk.audit().parked == 1


def test_delayed_entries_are_promoted_when_due_and_in_order(place: Site) -> None:
    desk = Desk(place)
    started_ms = desk.backend.run(desk.steps.promote()).server_ms
    later = [NewEntry([(b"n", b"%d" % n)], delay_ms=800) for n in range(12)]
    assert [(made.id, made.is_new) for made in desk.append(*later)] == [(b"", True)] * 12
    assert desk.append(NewEntry([(b"n", b"12")], delay_ms=60_000))[0].is_new
    early = desk.backend.run(desk.steps.promote())
    if early.server_ms < started_ms + 800:  # else the machine has stood still for so long
        assert early.appended == 0
        assert 0 < (early.next_due_ms or 0) <= 800
    pause(810)
    first = desk.backend.run(desk.steps.promote(limit=5))
    assert first.appended == min(5, 12 - early.appended)
    rest = desk.backend.run(desk.steps.promote())
    assert early.appended + first.appended + rest.appended == 12
    assert 50_000 < (rest.next_due_ms or 0) <= 60_000
    assert numbers(desk.read()) == list(range(12))
    assert desk.audit().delayed == 1


def test_full_memory_holds_delayed_entries_back_and_retries_in_their_place(place: Site) -> None:
    desk = Desk(place, lease_ms=KEPT_MS)
    (given,) = desk.deliver(1)
    desk.append(NewEntry([(b"n", b"7")], delay_ms=1))
    desk.settle(b"c1", act(given, "retry", 60_000))
    place.fill_memory()
    for _ in range(3):
        pause(KEPT_MS * 35 // 100)
        with pytest.raises(Exception, match="OOM"):
            desk.backend.run(desk.steps.promote())
        assert desk.take(b"c2") == []  # the retry was kept from looking forgotten all the same
    place.free_memory()
    assert desk.backend.run(desk.steps.promote()).appended == 1
    assert numbers(desk.take(b"c2")) == [7]


# Reaping


def test_only_silent_consumers_without_entries_are_reaped(place: Site) -> None:
    desk = Desk(place)
    (given,) = desk.deliver(1, b"busy")
    assert desk.settle(b"idle", *map(act, desk.deliver(1, b"idle"))) == [1]
    assert desk.backend.run(desk.steps.reap(60_000)) == []
    pause(20)
    assert desk.backend.run(desk.steps.reap(10)) == [b"idle"]
    assert desk.backend.run(desk.steps.reap(10)) == []
    assert desk.settle(b"busy", act(given, "release")) == [1]
    pause(20)
    assert desk.backend.run(desk.steps.reap(10)) == [b"busy"]
    assert desk.pending() == [(given.id, NOBODY, 0)]
