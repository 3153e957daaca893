"""D1 and D2: every transition, interrupted at its calls, on servers with and without the newer commands."""

from __future__ import annotations

import pytest

from millstream.delivery.policy import Backoff
from millstream.delivery.signals import Reject, Release, Retry
from millstream.testing import Fault
from millstream.worker.message import Message
from tests.scenarios.simulated import SERVERS, Order, Story

_asked: set[tuple[str, int]] = set()


def done(order: Order) -> None:
    """Acknowledges."""


def fails_once(order: Order, message: Message[Order]) -> None:
    if message.attempt == 1:
        raise ValueError("the first time always fails")


def fails_once_at_once(order: Order, message: Message[Order]) -> None:
    if message.attempt == 1:
        raise Retry(0)


def waits_long(order: Order, message: Message[Order]) -> None:
    if message.attempt == 1:
        raise Retry(7)  # more than two leases


def rejects(order: Order) -> None:
    raise Reject("never")


def gives_up(order: Order) -> None:
    raise ValueError("always")


def releases_once(order: Order, message: Message[Order]) -> None:
    if (message.stream, order.n) not in _asked:
        _asked.add((message.stream, order.n))
        raise Release


STORIES = [
    Story("acknowledge", done),
    Story("publish with a delay", done, delay=2.0),
    Story("retry with backoff", fails_once, {"backoff": Backoff(2.0, jitter=False)}),
    Story("retry at once", fails_once_at_once),
    Story("retry after leases", waits_long),
    Story("reject", rejects, done=0, dead=2),
    Story("give up", gives_up, {"max_retries": 1, "backoff": Backoff(1.0, jitter=False)}, done=0, dead=2),
    Story("release", releases_once),
    Story("copy", fails_once, {"redeliver": "copy"}),
    Story("the RFC's recovery", fails_once, {"recovery": "rfc", "redeliver": "copy", "reconcile_every": 4.0}),
]
FAULTS = (Fault.KILL_AFTER, Fault.CUT, Fault.DROP_REPLY)
SIDE_BY_SIDE = 12  # stories in one simulation
NEVER = (Fault.CUT, 1_000_000)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_a_fault_at_any_call_loses_nothing_and_repeats_at_most_once(story: Story, server: str) -> None:
    """Scenarios D1, D2."""
    (calm,) = story.tell(server, {"calm": NEVER})
    assert (calm.account.done, calm.account.dead, calm.account.balanced) == (story.done, story.dead, True)
    faults = {f"{fault.name}-{seen.number}": (fault, seen.number) for seen in calm.calls for fault in FAULTS}
    # a death before a call is one behind the call before it, but for what a handler did in between
    faults |= {
        f"KILL_BEFORE-{seen.number}": (Fault.KILL_BEFORE, seen.number) for seen in calm.calls if seen.name == "settle"
    }
    names = list(faults)
    pages = [names[first : first + SIDE_BY_SIDE] for first in range(0, len(names), SIDE_BY_SIDE)]
    for told in (told for page in pages for told in story.tell(server, {name: faults[name] for name in page})):
        account = told.account
        assert account.balanced, told
        assert account.done + account.dead == story.count, told
        if told.name.startswith(("CUT", "DROP")):  # a broken connection alone is nobody's failure
            assert (account.done, account.dead) == (story.done, story.dead), told
        assert told.most_runs <= 2, told


def test_the_faults_do_happen() -> None:
    """D2. The proof of the test above: a settlement whose reply is lost is sent again, and counts once."""
    (calm,) = STORIES[0].tell("newest", {"calm": NEVER})
    settles = [seen.number for seen in calm.calls if seen.name == "settle"]
    (told,) = STORIES[0].tell("newest", {"one": (Fault.DROP_REPLY, settles[0])})
    assert len([seen for seen in told.calls if seen.name == "settle"]) == len(settles) + 1
    assert (told.account.done, told.most_runs) == (2, 1)
