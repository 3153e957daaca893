"""Ending deliveries: every verb, everywhere, fenced, twice, and when things are not as they should be."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from millstream.client import connect
from millstream.delivery.delivery import Delivery
from millstream.delivery.steps import NewEntry, Settle
from millstream.errors import ServerReplied
from tests.support.desk import LATER, NOBODY, Desk, act, numbers
from tests.support.places import PROBES, Site
from tests.support.proxy import FaultProxy

VERBS: list[tuple[str, tuple[object, ...]]] = [
    ("ack", ()),
    ("discard", ()),
    ("release", ()),
    ("retry", (0,)),
    ("retry", (60_000,)),
    ("reject", ("reason", "rejected")),
    ("copy", (1,)),
]


def balance(desk: Desk) -> int:
    """What the account says of an entry that was ever added: where it is now."""
    now = desk.audit()
    ends = ("done", "dead", "discarded", "copied", "trimmed")
    group = desk.steps.group.decode("utf-8", "replace")
    return now.pending + now.undelivered + sum(now.counters.get(f"{end}:{group}", 0) for end in ends)


def test_each_verb_does_its_own(place: Site) -> None:
    desk = Desk(place)
    given = desk.deliver(8)
    items = [act(delivery, verb, *words) for delivery, (verb, words) in zip(given, VERBS, strict=False)]
    assert desk.settle(b"c1", *items) == [1] * 7
    ids = [delivery.id for delivery in given]
    assert desk.pending() == [(ids[2], NOBODY, 0), (ids[3], NOBODY, 1), (ids[4], LATER, 1), (ids[7], "c1", 1)]
    copy = desk.ids()[-1]
    assert desk.ids() == [ids[2], ids[3], ids[4], ids[7], copy]
    assert desk.range()[-1][1] == [b"n", b"6", b"_retry_count", b"1", b"_original_id", ids[6]]
    now = desk.audit()
    assert (now.entries, now.added, now.pending, now.undelivered, now.dead) == (5, 9, 4, 1, 1)
    assert (now.parked, now.released, now.delayed) == (1, 2, 0)
    assert now.counters == {"done:g": 1, "discarded:g": 1, "dead:g": 1, "copied:g": 1, "released:g": 2}
    assert balance(desk) == now.added


def test_a_dead_letter_has_the_entry_and_its_end(place: Site) -> None:
    desk = Desk(place)
    desk.append(NewEntry([(b"a", b"1"), (b"_id", b"mine"), (b"a", b"\x00\xff")]))
    (given,) = desk.read()
    assert desk.settle(b"c1", act(given, "reject", "reason", "rejected", "error", b"\xff")) == [1]
    ((_, record),) = desk.range(desk.keys.dead)
    assert record[:6] == [b"a", b"1", b"_id", b"mine", b"a", b"\x00\xff"]
    about = dict(zip(record[6::2], record[7::2], strict=True))
    assert about.pop(b"_dead_at").isdigit()
    assert about == {
        b"_original_id": given.id,
        b"_id": given.id,
        b"_redriven": b"0",
        b"_attempts": b"1",
        b"_reason": b"rejected",
        b"_error": b"\xff",
        b"_meta": b"8",
    }


@pytest.mark.parametrize(("verb", "words"), VERBS)
def test_a_zombie_is_refused_and_changes_nothing(place: Site, verb: str, words: tuple[object, ...]) -> None:
    desk = Desk(place)
    (late,) = desk.deliver(1)
    (taken,) = desk.take(b"c2", min_idle_ms=0)
    assert (taken.id, taken.number) == (late.id, 2)
    before = desk.everything()
    assert desk.settle(b"c1", act(late, verb, *words)) == [-1]
    assert desk.settle(b"c1", Settle(late.id, None, verb, words)) == [-1]  # by its name alone
    assert desk.settle(b"c2", act(late, verb, *words)) == [-1]  # by its number alone
    assert desk.everything() == before
    assert desk.settle(b"c2", act(taken)) == [1]


@pytest.mark.parametrize(("verb", "words"), VERBS)
def test_sent_twice_it_does_no_more_than_once(place: Site, verb: str, words: tuple[object, ...]) -> None:
    desk = Desk(place)
    (given,) = desk.deliver(1)
    assert desk.settle(b"c1", act(given, verb, *words)) == [1]
    before = desk.everything()
    assert desk.settle(b"c1", act(given, verb, *words)) == [0]
    assert desk.everything() == before
    assert balance(desk) == before[-1].added


def test_named_twice_in_one_call_an_entry_is_settled_once(place: Site) -> None:
    desk = Desk(place)
    one, two, three = desk.deliver(3)
    assert desk.settle(
        b"c1", act(one), act(one), act(two, "reject"), act(two, "reject"), act(three, "release"), act(three)
    ) == [1, 0, 1, 0, 1, -1]
    now = desk.audit()
    assert (now.dead, now.pending) == (1, 1)
    assert now.counters == {"done:g": 1, "dead:g": 1, "released:g": 1}
    assert balance(desk) == 3


@pytest.fixture(params=["broker", "valkey", "redis", "redis7"])
def far(request: pytest.FixtureRequest) -> Iterator[tuple[Site, FaultProxy]]:
    """A server behind a proxy."""
    name = request.param
    port = request.getfixturevalue(PROBES.get(name, "served_broker")).port
    with FaultProxy("127.0.0.1", port) as proxy:
        site = Site(name, proxy.url)
        site.connect().execute("FLUSHALL")
        yield site, proxy
        site.leave()


def test_a_lost_reply_costs_nothing(far: tuple[Site, FaultProxy]) -> None:
    site, proxy = far
    desk = Desk(site)
    given = desk.deliver(7)
    items = [act(delivery, verb, *words) for delivery, (verb, words) in zip(given, VERBS, strict=True)]
    desk.settle(b"nobody", act(given[0]))  # the server knows the script now
    proxy.drop_reply(command="EVALSHA")
    assert desk.settle(b"c1", *items) == [0] * 7  # the first one did it all
    now = desk.audit()
    assert now.counters == {"done:g": 1, "discarded:g": 1, "dead:g": 1, "copied:g": 1, "released:g": 2}
    assert (now.pending, now.dead, now.undelivered) == (3, 1, 1)
    proxy.cut(command="EVALSHA")
    ((fresh),) = desk.read()
    assert desk.settle(b"c1", act(fresh)) == [1]


@pytest.mark.parametrize(("verb", "words"), VERBS)
def test_full_memory_loses_nothing(place: Site, verb: str, words: tuple[object, ...]) -> None:
    desk = Desk(place)
    given, other = desk.deliver(2)
    place.fill_memory()
    (code,) = desk.settle(b"c1", act(given, verb, *words))
    if verb in ("reject", "copy"):
        assert str(code).startswith("OOM")
        assert desk.pending() == [(given.id, "c1", 1), (other.id, "c1", 1)]
    else:
        assert code == 1
        assert (given.id, "c1", 1) not in desk.pending()
    assert desk.settle(b"c1", act(other)) == [1]
    place.free_memory()
    assert balance(desk) == (3 if verb == "copy" and code == 1 else 2)
    assert desk.audit().counters["done:g"] >= 1
    if verb in ("reject", "copy"):
        assert desk.settle(b"c1", act(given, verb, *words)) == [1]


def test_a_retry_that_memory_had_no_room_for_still_comes(place: Site) -> None:
    desk = Desk(place, lease_ms=50)
    (given,) = desk.deliver(1)
    place.fill_memory()
    assert desk.settle(b"c1", act(given, "retry", 40)) == [1]
    place.free_memory()
    deadline = time.monotonic() + 60
    found: list[Delivery] = []
    while not found and time.monotonic() < deadline:
        found = desk.take(b"c2")
        time.sleep(0.01)
    assert [(each.id, each.number) for each in found] == [(given.id, 2)]


@pytest.mark.parametrize("verb", ["reject", "copy"])
def test_an_error_on_one_entry_does_not_stop_its_neighbours(place: Site, verb: str) -> None:
    desk = Desk(place)
    desk.execute("SET", desk.keys.dead, "text", key=desk.keys.dead)
    one, two, three = desk.deliver(3)
    words = ("reason", "rejected") if verb == "reject" else (1,)
    codes = desk.settle(b"c1", act(one), act(two, verb, *words), act(three))
    assert (codes[0], codes[2]) == (1, 1)
    if verb == "reject":
        assert str(codes[1]).startswith("WRONGTYPE")
        assert desk.pending() == [(two.id, "c1", 1)]
    else:
        assert codes[1] == 1


def test_a_meta_key_of_another_type_costs_the_counters_only(place: Site) -> None:
    desk = Desk(place)
    desk.execute("SET", desk.keys.meta, "text", key=desk.keys.meta)
    given = desk.deliver(7)
    items = [act(delivery, verb, *words) for delivery, (verb, words) in zip(given, VERBS, strict=True)]
    assert desk.settle(b"c1", *items) == [1] * 7
    assert [row[1:] for row in desk.pending()] == [(NOBODY, 0), (NOBODY, 1), (LATER, 1)]
    assert numbers(desk.take(b"c2", 2)) == [2, 3]


def test_an_entry_too_wide_for_a_script_does_not_stop_its_neighbours(place: Site) -> None:
    desk = Desk(place)
    words = [word for n in range(4000) for word in (b"f%d" % n, b"v")]
    desk.execute("XADD", desk.keys.stream, "*", *words)
    desk.publish(1)
    wide, plain = desk.read()
    codes = desk.settle(b"c1", act(wide, "reject", "reason", "x"), act(plain, "reject", "reason", "x"))
    assert "fields" in str(codes[0])
    assert codes[1] == 1
    assert desk.pending() == [(wide.id, "c1", 1)]
    assert desk.settle(b"c1", act(wide)) == [1]


def test_a_trimmed_entry_can_be_settled(place: Site) -> None:
    desk = Desk(place)
    given = desk.deliver(4)
    desk.execute("XDEL", desk.keys.stream, *(delivery.id for delivery in given))
    codes = desk.settle(
        b"c1", act(given[0]), act(given[1], "reject", "reason", "x"), act(given[2], "copy", 1), act(given[3], "discard")
    )
    assert codes == [1, 1, 1, 1]
    assert desk.pending() == []
    assert desk.audit().counters == {"done:g": 1, "dead:g": 1, "trimmed:g": 1, "discarded:g": 1}
    assert balance(desk) == 4


def test_without_a_group_there_is_an_error_and_no_change(place: Site) -> None:
    desk = Desk(place)
    (given,) = desk.deliver(1)
    desk.execute("XGROUP", "DESTROY", desk.keys.stream, "g")
    for call in (
        desk.steps.settle(b"c1", [act(given)]),
        desk.steps.renew(b"c1", [(given.id, 1)]),
        desk.steps.recover(b"c1", 1, min_idle_ms=0),
    ):
        with pytest.raises(ServerReplied) as caught:
            desk.backend.run(call)
        assert caught.value.code == "NOGROUP"
    assert desk.ids() == [given.id]


def test_an_entry_leaves_the_stream_when_the_last_group_is_done(place: Site) -> None:
    one, two = Desk(place, group=b"g"), Desk(place, group=b"h")
    given = one.deliver(3)
    ids = [delivery.id for delivery in given]
    assert one.settle(b"c1", *map(act, given[:2])) == [1, 1]
    assert one.ids() == ids  # the other group has not read them
    theirs = two.read(b"d1")
    assert two.ids() == ids
    assert two.settle(b"d1", act(theirs[0]), act(theirs[2])) == [1, 1]
    assert two.ids() == ids[1:]  # the third is still pending in the first group, the second in the second
    assert two.settle(b"d1", act(theirs[1], "reject", "reason", "x")) == [1]
    assert one.settle(b"c1", act(given[2])) == [1]
    assert one.ids() == []
    assert (one.audit().added, balance(one), balance(two)) == (3, 3, 3)


def test_a_group_without_deliveries_keeps_everything(place: Site) -> None:
    desk, other = Desk(place), Desk(place, group=b"later")
    assert desk.settle(b"c1", *map(act, desk.deliver(3))) == [1, 1, 1]
    assert len(other.read()) == 3


def test_done_entries_stay_when_they_are_to_be_kept(place: Site) -> None:
    desk = Desk(place, keep_done=True)
    given = desk.deliver(2)
    assert desk.settle(b"c1", act(given[0]), act(given[1], "reject", "reason", "x")) == [1, 1]
    assert desk.ids() == [delivery.id for delivery in given]
    assert desk.pending() == []
    assert desk.take(b"c2", min_idle_ms=0) == []


def test_what_was_released_comes_first_and_in_the_order_of_release(place: Site) -> None:
    desk = Desk(place, lease_ms=0)
    given = desk.deliver(8)
    assert desk.settle(b"c1", act(given[5], "release"), act(given[2], "retry", 0)) == [1, 1]
    assert desk.settle(b"c1", act(given[7], "release")) == [1]
    assert desk.settle(b"c1", act(given[0], "release")) == [1]
    assert [(numbers([d])[0], d.number) for d in desk.take(b"c2", 3)] == [(5, 1), (2, 2), (7, 1)]
    assert numbers(desk.take(b"c3", 1)) == [0]


def test_a_release_does_not_count_and_a_retry_does(place: Site) -> None:
    desk = Desk(place)
    (given,) = desk.deliver(1)
    for verb, expected in (("release", 1), ("retry", 2), ("release", 2), ("retry", 3)):
        assert desk.settle(b"c1", act(given, verb, *([0] if verb == "retry" else []))) == [1]
        (given,) = desk.take(b"c1")
        assert given.number == expected


def test_the_lock_goes_with_the_settlement_but_not_for_a_zombie(place: Site) -> None:
    desk = Desk(place)
    one, two, three = desk.deliver(3)
    for delivery, owner in ((one, "c1"), (two, "c2"), (three, "c1")):
        desk.execute("SET", desk.keys.lock(delivery.id), owner, key=desk.keys.lock(delivery.id))
    assert desk.settle(b"c1", act(one), act(two), has_locks=True) == [1, 1]
    assert desk.settle(b"c9", act(three), has_locks=True) == [-1]
    left = [desk.execute("GET", desk.keys.lock(each.id), key=desk.keys.lock(each.id)) for each in (one, two, three)]
    assert left == [None, b"c2", b"c1"]  # of the second one somebody else has the lock


def test_an_entry_that_another_program_gave_up_can_be_retried(place: Site) -> None:
    if not place.is_newest:
        pytest.skip("XNACK FATAL")
    desk = Desk(place)
    (given,) = desk.deliver(1)
    desk.execute("XNACK", desk.keys.stream, "g", "FATAL", "IDS", 1, given.id)
    (again,) = desk.take(b"c1")
    assert desk.settle(b"c1", act(again, "retry", 5)) == [1]
    assert desk.pending()[0][1] == LATER


def test_a_closed_embedded_file_keeps_every_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    site = Site("file", f"file://{tmp_path_factory.mktemp('kept')}/d")
    desk = Desk(site)
    given = desk.deliver(7)
    desk.settle(b"c1", *(act(each, verb, *words) for each, (verb, words) in zip(given, VERBS, strict=True)))
    before = desk.everything()
    site.leave()
    again = Site("file", site.url)
    with connect(again.url):
        assert Desk(again).everything() == before
        again.leave()
