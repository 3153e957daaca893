"""What the D scenarios share: streams to simulate, and a story that can be told with a fault at any call."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.client.backend import Backend
from millstream.delivery.config.settings import Settings
from millstream.delivery.consumer import Consumer
from millstream.testing import Fault, Happened, Seen, Sim
from millstream.worker.audit import Audit
from millstream.worker.stream import Stream

SERVERS = ("newest", "older")


@dataclass
class Order:
    n: int


@dataclass(frozen=True)
class Story:
    """A stream with a handler, what is published to it, and how it must end."""

    name: str
    handler: Callable[..., Any]
    settings: dict[str, Any] = field(default_factory=dict)
    count: int = 2
    delay: float = 0.0
    done: int = 2
    dead: int = 0

    def stream(self, name: str) -> Stream[Order]:
        orders = Stream[Order](name, group="g", **{"breaker": None, "lease": 3.0, **self.settings})
        orders.handler(concurrency=2)(self.handler)
        return orders

    def tell(self, server: Any, faults: Mapping[str, tuple[Fault, int]]) -> list[Told]:
        """Run it once for each fault, side by side; the fault is at the nth call of that one's worker.

        Workers that are killed come back at once.
        """
        streams = {name: self.stream(name) for name in faults}
        with Sim(workers=0, server=server) as sim:
            for name, orders in streams.items():
                sim.plan(faults[name][0], worker=f"w-{name}", nth=faults[name][1])
                sim.start(f"w-{name}", orders)
                sim.publish_many(orders, [Order(n) for n in range(self.count)], delay=self.delay)
            dead = [name for name in streams if not sim.is_alive(f"w-{name}")]
            while dead or not sim.is_done():
                for name in dead:
                    sim.start(f"w-{name}")
                killed = len(sim.happened("killed"))
                sim.run_until(lambda before=killed: sim.is_done() or len(sim.happened("killed")) > before, 600)  # type: ignore[misc]
                dead = [name for name in streams if not sim.is_alive(f"w-{name}")]
            return [
                Told(
                    name,
                    sim.audit(orders),
                    sim.happened("handler-returned", stream=orders),
                    [seen for seen in sim.calls if seen.worker == f"w-{name}"],
                )
                for name, orders in streams.items()
            ]


@dataclass(frozen=True)
class Told:
    """How a story ended."""

    name: str
    account: Audit
    returned: list[Happened]
    calls: list[Seen]

    @property
    def most_runs(self) -> int:
        """How often the handler of one entry returned, at most."""
        return max(Counter(str(each.data) for each in self.returned).values(), default=0)


def make_consumer(backend: Backend, name: str, settings: Settings, stream: str = "orders") -> Consumer:
    """A consumer on a real place, its watch a real one."""
    return Consumer(backend, stream.encode(), b"g", name.encode(), settings, lambda: time.monotonic_ns() // 1_000_000)
