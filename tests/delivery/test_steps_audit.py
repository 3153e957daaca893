"""The account of a stream: what is undelivered is right also where the server has lost count of it."""

from __future__ import annotations

import re

from tests.support.desk import Desk, act
from tests.support.places import Site


def lose_count(desk: Desk) -> None:
    """The newest delivery is done and its entry gone while an older one is pending: no lag is known from then on."""
    given = desk.deliver(2)
    assert desk.settle(b"c1", act(given[1], "ack")) == [1]


def walks(desk: Desk) -> int:
    """How often the server was asked for a range of entries."""
    told = desk.execute("INFO", "commandstats")
    text = told.decode() if isinstance(told, bytes) else str(told)
    found = re.search(r"cmdstat_xrange:calls=(\d+)|'cmdstat_xrange': \{'calls': (\d+)", text)
    return int(found[1] or found[2]) if found else 0


def test_whoever_looks_often_does_not_walk_through_the_backlog(place: Site) -> None:
    desk = Desk(place)
    lose_count(desk)
    desk.publish(2_500)
    before = walks(desk)
    assert desk.backend.run(desk.steps.audit(is_exact=False)).undelivered == 2_500
    assert walks(desk) == before
    assert desk.backend.run(desk.steps.audit()).undelivered == 2_500


def test_both_ways_of_counting_what_is_undelivered_say_the_same(place: Site) -> None:
    desk = Desk(place)
    given = desk.deliver(6)
    older, *others, newest = given
    verbs = zip(others, ("ack", "discard", "copy", "reject"), ((), (), (1,), ("reason", "rejected")), strict=True)
    assert desk.settle(b"c1", act(newest, "ack"), *(act(each, verb, *words) for each, verb, words in verbs)) == [1] * 5
    desk.publish(5)
    found = [desk.backend.run(desk.steps.audit(is_exact=is_exact)) for is_exact in (True, False)]
    assert found[0] == found[1]
    assert (found[0].pending, found[0].undelivered) == (1, 6)  # the copy is one of them
    assert desk.settle(b"c1", act(older, "ack")) == [1]
    assert desk.backend.run(desk.steps.audit(is_exact=False)).undelivered == 6
