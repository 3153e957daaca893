"""Odd names and far ids: every step, everywhere."""

from __future__ import annotations

import time

import pytest

from millstream.delivery.keys import can_share_slot
from millstream.delivery.steps import NewEntry
from tests.support.desk import NOBODY, Desk, act, numbers
from tests.support.places import Site

NAMES = [
    b"plain",
    b"{tag}:jobs",
    b"a:{t}:b{u}",
    b"with space\r\n",
    b"\x00\xff\xfe",
    "größe".encode(),
    b"a}b",
    b"x{}y",
    b"-",
]


def walk_through(desk: Desk) -> None:
    """Every step once."""
    entries = [NewEntry([(b"n", b"%d" % n)], dedupe=b"t\x00" if n == 0 else None) for n in range(3)]
    desk.append(*entries, maxlen=99)
    desk.append(NewEntry([(b"n", b"3")], delay_ms=1))
    time.sleep(0.005)
    assert desk.backend.run(desk.steps.promote()).appended == 1
    given = desk.read(b"c\xff")
    assert numbers(given) == [0, 1, 2, 3]
    held = [(each.id, each.number) for each in given]
    assert desk.backend.run(desk.steps.renew(b"c\xff", held, lock_ms=1000)).lost == []
    assert (
        desk.settle(
            b"c\xff",
            act(given[0]),
            act(given[1], "reject", "reason", "x"),
            act(given[2], "release"),
            act(given[3], "retry", 60_000),
            has_locks=True,
        )
        == [1] * 4
    )
    assert numbers(desk.take(b"c\xfe", 1)) == [2]
    assert desk.backend.run(desk.steps.requeue([given[2].id], min_idle_ms=0, max_retries=3)).codes == [1]
    assert all(desk.backend.run(desk.publishing.redrive(desk.ids(desk.keys.dead))))
    now = desk.audit()
    assert (now.added, now.pending, now.undelivered, now.dead, now.parked) == (6, 1, 2, 0, 1)
    assert desk.backend.run(desk.steps.reap(0)) == [b"c\xfe", b"c\xff"]


@pytest.mark.parametrize("name", NAMES)
def test_every_step_works_with_every_name(place: Site, name: bytes) -> None:
    if place.is_cluster and not can_share_slot(name):
        pytest.skip("refused on a cluster: tests/delivery/test_keys.py")
    walk_through(Desk(place, stream=name, group=name))


def test_every_step_works_on_every_shard(place: Site) -> None:
    for name in (b"a", b"b", b"c"):  # slots 15495, 3300, 7365: a shard each
        walk_through(Desk(place, stream=name))


def test_ids_up_to_the_last_one_are_told_apart(place: Site) -> None:
    """Near 2^64 a Lua number cannot tell neighbours apart."""
    desk, other = Desk(place), Desk(place, group=b"h")
    top = 2**64 - 1
    ids = [
        b"9-1",
        b"%d-%d" % (2**53, 2**53),
        b"%d-%d" % (2**53 + 1, 0),
        b"%d-%d" % (top, top - 3),
        b"%d-%d" % (top, top - 2),
        b"%d-%d" % (top, top - 1),
    ]
    for n, entry_id in enumerate(ids):
        desk.execute("XADD", desk.keys.stream, entry_id, "n", n)
    given = desk.read()
    assert [each.id for each in given] == ids
    assert desk.settle(b"c1", act(given[1]), act(given[4])) == [1, 1]
    theirs = other.read(b"d", 5)  # up to the one before the last
    assert other.settle(b"d", act(theirs[1]), act(theirs[3]), act(theirs[4])) == [1, 1, 1]
    assert desk.ids() == [ids[0], ids[2], ids[3], ids[5]]  # done by both: the second and the fifth
    assert desk.settle(b"c1", act(given[3], "release"), act(given[5], "retry", 0)) == [1, 1]
    assert [row[:2] for row in desk.pending()] == [(ids[0], "c1"), (ids[2], "c1"), (ids[3], NOBODY), (ids[5], NOBODY)]
    assert [each.id for each in desk.take(b"c2", 2)] == [ids[3], ids[5]]
    assert desk.backend.run(desk.steps.renew(b"c1", [(ids[0], 1), (ids[3], 1), (ids[2], 1)])).lost == [ids[3]]
    page = desk.backend.run(desk.steps.recover(b"c3", 0, min_idle_ms=60_000, look=3))
    assert page.cursor == ids[3]
