"""The steps of batches: a consumer a batch, kept, acknowledged by the page, closed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.delivery.batches import Acked, Batches, Condemned, Run
from millstream.delivery.delivery import Delivery
from millstream.delivery.steps import NewEntry, Settle
from tests.support.desk import LATER, NOBODY, Desk, act
from tests.support.places import Site, visit

PLACES = ("memory", "valkey", "redis", "cluster")


@pytest.fixture(params=PLACES)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    """A group at each of these places."""
    with contextlib.contextmanager(visit)(request.param, request, tmp_path) as site:
        yield Desk(site)


@pytest.fixture(params=["valkey", "redis"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with contextlib.contextmanager(visit)(request.param, request, tmp_path) as site:
        yield site


def batches(desk: Desk) -> Batches:
    return Batches.of(desk.steps)


def ids(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.id for delivery in deliveries]


def hold(desk: Desk, taken: list[Delivery], consumer: bytes = b"spark-t-1", owner: bytes = b"t") -> bool:
    return desk.backend.run(batches(desk).hold(owner, taken[0].id, consumer, len(taken)))


def acks(desk: Desk, page: list[bytes], consumer: bytes = b"spark-t-1", number: int | None = 1) -> Acked:
    return desk.backend.run(batches(desk).acks(consumer, number, page))


def balance(desk: Desk) -> int:
    now = desk.audit()
    ends = ("done", "dead", "discarded", "copied", "trimmed")
    return now.pending + now.undelivered + sum(now.counters.get(f"{end}:g", 0) for end in ends)


def test_renewing_a_consumer_makes_all_that_it_has_young_and_counts_nothing(desk: Desk) -> None:
    mine = desk.deliver(5, b"spark-t-1")
    others = desk.deliver(2, b"w")
    for each in [*mine, *others]:
        owner = b"spark-t-1" if each in mine else b"w"
        desk.execute("XCLAIM", b"orders", b"g", owner, 0, each.id, "IDLE", 60_000, "JUSTID")
    after, renewed = b"", 0
    for _ in range(3):
        page = desk.backend.run(batches(desk).renew(b"spark-t-1", after, 2))
        after, renewed = page.after, renewed + page.renewed
    assert (after, renewed) == (b"", 5)
    rows = desk.backend.run(desk.steps.pending_page(b"0-0", 100))
    found = [(row[1], row[2] >= 60_000, row[3]) for row in rows]
    assert found == [(b"spark-t-1", False, 1)] * 5 + [(b"w", True, 1)] * 2


def test_renewing_finds_what_was_trimmed_away_and_counts_it(desk: Desk) -> None:
    taken = desk.deliver(3, b"spark-t-1")
    desk.execute("XDEL", b"orders", taken[1].id)
    page = desk.backend.run(batches(desk).renew(b"spark-t-1"))
    assert (page.renewed, page.trimmed) == (2, 1)
    assert desk.audit().counters == {"trimmed:g": 1}
    assert balance(desk) == 3


@pytest.mark.parametrize("is_held", [True, False])
def test_a_page_is_acknowledged_and_its_entries_stay(desk: Desk, is_held: bool) -> None:
    taken = desk.deliver(5, b"spark-t-1")
    if is_held:
        assert hold(desk, taken)
    assert acks(desk, ids(taken[:3])) == Acked(3, 0, 0)
    assert [row[0] for row in desk.pending()] == ids(taken[3:])
    assert desk.ids() == ids(taken)
    assert acks(desk, ids(taken[1:4])) == Acked(1, 2, 0)  # sent again, with one more
    assert desk.audit().counters == {"done:g": 4}
    assert balance(desk) == 5


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("verb", ["taken over", "retry", "release", "parked"])
def test_what_is_no_longer_the_batchs_is_not_acknowledged(desk: Desk, is_held: bool, verb: str) -> None:
    taken = desk.deliver(4, b"spark-t-1")
    if is_held:
        hold(desk, taken)
    assert acks(desk, ids(taken[:1])).done == 1
    if verb == "taken over":
        desk.execute("XCLAIM", b"orders", b"g", b"w", 0, taken[1].id)
    else:
        words = {"retry": (0,), "release": (), "parked": (60_000,)}[verb]
        desk.settle(b"spark-t-1", act(taken[1], "retry" if verb == "parked" else verb, *words))
    assert acks(desk, ids(taken)) == Acked(2, 1, 1)
    ((entry_id, owner, _),) = desk.pending()
    assert entry_id == taken[1].id
    assert owner == {"taken over": "w", "parked": LATER}.get(verb, NOBODY)
    assert balance(desk) == 4


def test_a_delivery_of_another_number_is_not_acknowledged(desk: Desk) -> None:
    taken = desk.deliver(2, b"spark-t-1")
    assert acks(desk, ids(taken), number=2) == Acked(0, 0, 2)
    assert acks(desk, ids(taken), number=None) == Acked(2, 0, 0)


def test_a_name_with_a_star_stands_for_all_that_begin_so(desk: Desk) -> None:
    ours = desk.deliver(2, b"spark-t-1") + desk.deliver(1, b"spark-u-9")
    theirs = desk.deliver(1, b"w")
    assert acks(desk, ids(ours[:2] + theirs), b"spark-*") == Acked(2, 0, 1)
    assert acks(desk, ids(ours), b"spark-*") == Acked(1, 2, 0)
    given = desk.deliver(2, b"spark-t-2")
    blank = act(given[0], "reject", "consumer", "", "retry_count", "", "first_at", "", "reason", "rejected")
    assert desk.settle(b"spark-*", blank, act(theirs[0])) == [1, -1]
    record = desk.range(desk.keys.dead)[0][1]
    about = dict(zip(record[2::2], record[3::2], strict=True))
    assert (about[b"_consumer"], about[b"_retry_count"]) == (b"spark-t-2", b"0")
    assert about[b"_first_at"] == given[0].id.split(b"-")[0]


def test_ids_far_apart_are_found_one_by_one(desk: Desk) -> None:
    taken = desk.deliver(200, b"spark-t-1")
    assert acks(desk, ids([taken[0], taken[100], taken[199]])) == Acked(3, 0, 0)
    assert len(desk.pending()) == 197
    assert acks(desk, ids([taken[0], taken[150], taken[199]]), b"spark-*") == Acked(1, 2, 0)


def test_more_ids_than_lua_can_unpack_are_acknowledged(desk: Desk) -> None:
    taken = []
    for _ in range(3):
        taken += desk.deliver(900, b"spark-t-1")
    hold(desk, taken)
    assert acks(desk, ids(taken)) == Acked(2700, 0, 0)


def test_a_hold_says_whether_the_consumer_has_exactly_the_batch(desk: Desk) -> None:
    taken = desk.deliver(3, b"spark-t-1")
    assert not hold(desk, taken[:2])
    assert hold(desk, taken)


def test_a_span_is_acknowledged_by_its_ends(desk: Desk) -> None:
    taken = desk.deliver(6, b"spark-t-1")
    desk.execute("XCLAIM", b"orders", b"g", b"w", 0, taken[2].id)
    step = batches(desk).ack_span(b"spark-t-1", taken[1].id, taken[4].id, 2)
    assert [desk.backend.run(step) for _ in range(3)] == [2, 1, 0]
    assert [row[0] for row in desk.pending()] == [taken[0].id, taken[2].id, taken[5].id]
    assert balance(desk) == 6


def test_a_manifest_has_runs_singles_and_what_must_not_be_worked_on(desk: Desk) -> None:
    first = desk.deliver(3, b"spark-t-1")
    theirs = desk.deliver(1, b"w")
    second = desk.deliver(2, b"spark-t-1")
    desk.append(
        NewEntry([(b"n", b"x"), (b"_redrive_group", b"other")]),
        NewEntry([(b"n", b"y"), (b"_expires_at", b"5")]),
        NewEntry([(b"n", b"z"), (b"_redrive_group", b"g"), (b"_expires_at", b"9999999999999")]),
    )
    special = desk.read(b"spark-t-1")
    desk.execute("XCLAIM", b"orders", b"g", b"spark-t-1", 0, theirs[0].id)
    found = desk.backend.run(batches(desk).manifest(b"spark-t-1"))
    assert found.runs == [
        Run(first[0].id, first[2].id, 3),
        Run(second[0].id, second[1].id, 2),
        Run(special[2].id, special[2].id, 1),
    ]
    assert found.others == [(theirs[0].id, 2)]
    assert found.condemned == [Condemned(special[0].id, 1, None), Condemned(special[1].id, 1, 5)]
    assert found.after == b""


def test_a_manifest_comes_by_the_page(desk: Desk) -> None:
    taken = desk.deliver(5, b"spark-t-1")
    desk.execute("XDEL", b"orders", taken[1].id)
    one = desk.backend.run(batches(desk).manifest(b"spark-t-1", b"", 3))
    two = desk.backend.run(batches(desk).manifest(b"spark-t-1", one.after, 3))
    # What follows a deleted entry in the stream is still a run: reading the range gives the same.
    assert one.runs == [Run(taken[0].id, taken[2].id, 2)]
    assert (two.runs, two.after) == ([Run(taken[3].id, taken[4].id, 2)], b"")


def test_closing_removes_the_consumer_and_what_nobody_needs(desk: Desk) -> None:
    taken = desk.deliver(6, b"spark-t-1")
    hold(desk, taken)
    acks(desk, ids(taken[:3]))
    close = batches(desk).close(b"spark-t-1", b"t", trim=True)
    assert desk.backend.run(close) == (False, 3)  # it has something left
    assert desk.ids() == ids(taken[3:])
    desk.settle(b"spark-t-1", *(Settle(each.id, 1) for each in taken[3:5]))
    acks(desk, ids(taken[3:]))
    later = desk.publish(1)
    assert desk.backend.run(close)[0]
    assert desk.ids() == later
    assert b"spark-t-1" not in str(desk.execute("XINFO", "CONSUMERS", b"orders", b"g")).encode()
    desk.read(b"w")
    desk.execute("XACK", b"orders", b"g", later[0])
    desk.backend.run(close)
    assert desk.ids() == []


def test_entries_that_another_group_or_batch_needs_stay(desk: Desk) -> None:
    taken = desk.deliver(4, b"spark-t-1")
    other = desk.deliver(2, b"spark-u-1")
    hold(desk, other, b"spark-u-1", b"u")
    desk.execute("XGROUP", "CREATE", b"orders", b"slow", taken[1].id)
    acks(desk, ids(taken))
    acks(desk, ids(other), b"spark-u-1")
    run, each = desk.backend.run, batches(desk)
    assert run(each.close(b"spark-t-1", b"t", trim=True)) == (True, 2)
    assert desk.ids() == ids(taken[2:] + other)
    desk.execute("XGROUP", "SETID", b"orders", b"slow", "$")
    assert run(each.close(b"spark-t-1", b"t", trim=False)) == (True, 0)
    assert run(each.close(b"spark-t-1", b"t", trim=True)) == (True, 2)
    assert desk.ids() == ids(other)  # settled, but their batch may be run again
    assert run(each.close(b"spark-u-1", b"u", trim=True)) == (True, 2)
    assert desk.ids() == []


def test_a_hold_that_nobody_renews_ends(desk: Desk) -> None:
    taken = desk.deliver(2, b"spark-u-1")
    hold(desk, taken, b"spark-u-1", b"u")
    acks(desk, ids(taken), b"spark-u-1")
    desk.execute("HSET", desk.keys.base + b":holds", "u", taken[0].id + b" 1")
    assert desk.backend.run(batches(desk).close(b"", b"t", trim=True, hold_ms=60_000)) == (True, 2)


def test_no_step_needs_the_stream_to_be_there(desk: Desk) -> None:
    desk.execute("DEL", b"orders")
    assert desk.backend.run(batches(desk).close(b"spark-t-1", b"t", trim=True)) == (True, 0)


def test_acknowledging_costs_the_server_little_more_than_xack(server: Site) -> None:
    """By calls, not by time: a page is one look at consumers and one XACK, however long it is."""
    desk = Desk(server)
    taken = desk.deliver(500, b"spark-t-1")
    hold(desk, taken)
    acks(desk, ids(taken[:1]))  # the server knows the script now
    desk.execute("CONFIG", "RESETSTAT")
    acks(desk, ids(taken[1:]))
    stats = desk.execute("INFO", "commandstats").decode()
    lines = [line for line in stats.split() if "calls=" in line]
    calls = {line.split(":")[0]: int(line.split("calls=")[1].split(",")[0]) for line in lines}
    assert calls["cmdstat_xack"] == 1
    assert "cmdstat_xpending" not in calls
