"""How late delayed messages and retries come: `python -m bench.lateness`; not zero if the p99 is above 100 ms anywhere.

At a light load, with default settings, on every kind of server: in this process, in a directory, our broker, Valkey,
Redis 7, Redis 8.10 and a Valkey cluster. A message is late by the time from when it was due to when its handler begins,
on this machine's clock.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from millstream import Broker, Message, Retry, Stream
from tests.support import redis7, servers
from tests.support.cluster import Cluster

MESSAGES = 100
DELAYS_S = (0.05, 0.2, 0.2, 0.5, 1.3)
LIMIT_S = 0.1


@dataclass
class Lateness:
    """What came of one place."""

    place: str
    kind: str  # delayed, retried
    late_s: list[float] = field(default_factory=list)

    @property
    def p99_s(self) -> float:
        return sorted(self.late_s)[int(len(self.late_s) * 0.99)] if self.late_s else float("inf")

    @property
    def is_kept(self) -> bool:
        return len(self.late_s) == MESSAGES and min(self.late_s) > -0.02 and self.p99_s <= LIMIT_S

    def __str__(self) -> str:
        median = statistics.median(self.late_s or [float("inf")])
        mark = "ok" if self.is_kept else "TOO LATE"
        return (
            f"{self.place:8s} {self.kind:8s} median {median * 1000:7.1f} ms   p99 {self.p99_s * 1000:7.1f} ms  {mark}"
        )


def measure(place: str, url: str, kind: str) -> Lateness:
    """Publish at a light load to a worker with default settings."""
    found, luck, all_done = Lateness(place, kind), random.Random(5), threading.Event()
    due: dict[int, float] = {}
    stream = Stream[dict[str, float]](f"lateness-{kind}", url, type=dict[str, float])

    @stream.handler
    def handle(data: dict[str, float], message: Message[dict[str, float]]) -> None:
        number = int(data["n"])
        if kind == "retried" and message.attempt == 1:
            due[number] = time.monotonic() + data["delay"]
            raise Retry(data["delay"])
        found.late_s.append(time.monotonic() - due[number])
        if len(found.late_s) == MESSAGES:
            all_done.set()

    with stream:
        worker = threading.Thread(target=lambda: stream.run(signals=False))
        worker.start()
        time.sleep(1)
        for number in range(MESSAGES):
            delay_s = luck.choice(DELAYS_S)
            if kind == "delayed":
                due[number] = time.monotonic() + delay_s
            stream.publish({"n": number, "delay": delay_s}, delay=delay_s if kind == "delayed" else 0.0)
            time.sleep(luck.uniform(0.03, 0.12))
        all_done.wait(30)
        stream.stop()
        worker.join()
    return found


def places(stack: ExitStack) -> Iterator[tuple[str, str]]:
    """Each kind of server with its URL."""
    yield "memory", "memory://lateness"
    yield "file", f"file://{stack.enter_context(tempfile.TemporaryDirectory())}/kept"
    broker = stack.enter_context(Broker())
    yield "broker", f"redis://127.0.0.1:{stack.enter_context(broker.serve_in_background()).port}"
    for name, binary in (("Valkey", servers.valkey_binary()), ("Redis", servers.redis_binary())):
        server = stack.enter_context(servers.running(servers.require(binary, name)))
        yield name.lower(), f"redis://127.0.0.1:{server.port}"
    yield "redis7", f"redis://127.0.0.1:{stack.enter_context(servers.running(redis7.require())).port}"
    valkey = servers.require(servers.valkey_binary(), "Valkey")
    yield "cluster", stack.enter_context(Cluster.running(valkey)).url


def main() -> int:
    """Measure, print, say whether the promise is kept."""
    results = []
    with ExitStack() as stack:
        for place, url in places(stack):
            for kind in ("delayed", "retried"):
                results.append(measure(place, url, kind))
                print(results[-1], flush=True)
    return 0 if all(result.is_kept for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
