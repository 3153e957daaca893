"""What users call inside one program: `python -m bench.worker_inprocess`; not zero if a figure is below its goal.

    Stream.publish on memory://                     at most 25 µs
    Stream.consume and message.ack on memory://     at least 15,000/s
    a worker with a handler that does nothing       shown

One thread calls, with default settings and a dict of four fields. Rounds alternate with a redis-py XADD on a real
Valkey, in a process of its own; the best round of each counts, because other programs can only make a round slower.
Prints rows for docs/performance.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.elsewhere import Elsewhere
from bench.engine import Theirs
from millstream import Stream
from tests.support import servers

MESSAGES = 3000
PAYLOAD = {"id": 7, "name": "anna", "total": 9.5, "paid": True}
PUBLISH_US, CONSUMED_PER_S = 25.0, 15_000.0


class Ours:
    """A stream in this process, and what is done with it."""

    def __init__(self) -> None:
        self.stream = Stream[dict[str, Any]]("bench", "memory://bench-inprocess", type=dict[str, Any])

    def publish(self) -> None:
        for _ in range(MESSAGES):
            self.stream.publish(PAYLOAD)

    def consume(self) -> None:
        messages = self.stream.consume(signals=False)
        for _ in range(MESSAGES):
            next(messages).ack()
        messages.close()  # type: ignore[attr-defined]

    def work(self) -> None:
        worker = Stream[dict[str, Any]]("bench", "memory://bench-inprocess", type=dict[str, Any])
        handled = 0

        @worker.handler
        def handle(_: dict[str, Any]) -> None:
            nonlocal handled
            handled += 1
            if handled == MESSAGES:
                worker.stop()

        worker.run(signals=False)


def seconds_each(job: Callable[[], None]) -> float:
    """Return how long a job takes for each message."""
    started = time.perf_counter()
    job()
    return (time.perf_counter() - started) / MESSAGES


def main() -> int:
    """Measure, print rows, say whether the goals are reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    ours, best = Ours(), dict.fromkeys(("publish", "consume", "work", "redis-py"), float("inf"))
    with servers.running(servers.require(servers.valkey_binary(), "Valkey"), "--save", "") as valkey:
        peer = Elsewhere(Theirs, valkey.port, False)
        for _ in range(rounds):
            for name, job in (("publish", ours.publish), ("consume", ours.consume)):
                best[name] = min(best[name], seconds_each(job))
            best["redis-py"] = min(best["redis-py"], peer.round()["XADD"])
            ours.publish()
            best["work"] = min(best["work"], seconds_each(ours.work))
        peer.close()
    print("| in one program | time a message | rate |\n|---|---|---|")
    for name, text in (
        ("publish", "`Stream.publish` on `memory://`"),
        ("consume", "`Stream.consume` and `ack` on `memory://`"),
        ("work", "a worker with a handler that does nothing, `memory://`"),
        ("redis-py", "XADD by redis-py + hiredis on Valkey, for comparison"),
    ):
        print(f"| {text} | {best[name] * 1e6:.1f} µs | {1 / best[name]:,.0f}/s |")
    is_kept = best["publish"] * 1e6 <= PUBLISH_US and 1 / best["consume"] >= CONSUMED_PER_S
    print("goals reached" if is_kept else f"BELOW the goals of {PUBLISH_US:g} µs and {CONSUMED_PER_S:,.0f}/s")
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
