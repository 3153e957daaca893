"""D30: after any number of operations under random faults the account balances.

`MILLSTREAM_CHAOS=1000000` for the long run.
"""

from __future__ import annotations

import os
import random

import pytest

from millstream.delivery.policy import Backoff
from millstream.delivery.signals import Reject, Release
from millstream.testing import Chances, Sim
from millstream.worker.message import Message
from millstream.worker.stream import Stream
from tests.scenarios.simulated import SERVERS, Order

STEPS = int(os.environ.get("MILLSTREAM_CHAOS", "4000"))
RUNS = 4  # seeds a server


def run(server: str, seed: int, steps: int, redeliver: str = "in_place") -> Sim:
    """A fleet with everything going wrong, then calm until all is done."""
    orders = Stream[Order](
        "orders", group="g", breaker=None, lease=10.0, backoff=Backoff(1.0, cap=60.0), redeliver=redeliver
    )
    luck = random.Random(seed)

    @orders.handler(concurrency=4, timeout=25)
    def charge(order: Order, message: Message[Order]) -> None:
        chance = luck.random()
        if chance < 0.2:
            sim.sleep(luck.uniform(0, 40))
        elif chance < 0.3:
            raise ValueError("no")
        elif chance < 0.32:
            raise Reject("never")
        elif chance < 0.35:
            raise Release

    with Sim(orders, workers=3, server=server, seed=seed) as sim:  # type: ignore[arg-type]
        while len(sim.calls) < steps:
            sim.publish_many(orders, [Order(n) for n in range(10)], delay=luck.choice((0.0, 0.0, 0.5, 20.0)))
            sim.chaos(luck.randrange(1 << 30), 200, Chances(kill=0.03, drop_reply=0.02, cut=0.02, freeze=0.005))
            account = sim.audit(orders)
            assert account.balanced, f"seed {seed}: {account}"
        sim.run_until_done(10_000)
        account = sim.audit(orders)
        assert account.balanced, f"seed {seed}: {account}"
        assert account.published == account.done + account.dead, f"seed {seed}: {account}"
        # redriven ones that were dead are done, or dead again
        sim.dead(orders).redrive(limit=5)
        assert sim.audit(orders).balanced
    return sim


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("seed", range(RUNS))
def test_the_account_balances_under_random_faults(server: str, seed: int) -> None:
    """Scenario D30."""
    sim = run(server, seed, STEPS // (2 * RUNS))
    assert sim.happened("killed")


@pytest.mark.parametrize("server", SERVERS)
def test_the_account_balances_where_retries_are_copies(server: str) -> None:
    """Scenario D30."""
    run(server, 77, STEPS // (2 * RUNS), redeliver="copy")


def test_the_same_seed_gives_the_same_run() -> None:
    """Scenario D30."""
    one, other = run("newest", 5, 400), run("newest", 5, 400)
    assert one.calls == other.calls
    assert one.log == other.log
