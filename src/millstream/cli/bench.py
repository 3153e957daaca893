"""`millstream bench`: the speed of a server for a worker: one client, on a stream of its own that it removes.

    round trip ──▶ publish one by one ──▶ publish in batches of 100 ──▶ read and settle ──▶ audit

The figures hold for this server, this client and this moment; `make bench-server` in the repository compares servers.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import typer

from millstream.cli import common, output
from millstream.cli.exits import Failure
from millstream.client import Backend
from millstream.delivery.keys import Keys
from millstream.worker.stream import Stream

ROUND_TRIPS: Final = 500
PAGE: Final = 100
GROUP: Final = "bench"


@dataclass(frozen=True, slots=True)
class BenchLine:
    """One measurement."""

    what: str
    count: int
    per_second: float
    median_ms: float  # of one call
    p99_ms: float


def bench(
    entries: Annotated[
        int, typer.Option("--entries", help="Number of entries in each part.", min=100, max=common.MOST)
    ] = 20_000,
    size: Annotated[int, typer.Option("--size", help="Bytes of each payload.", min=1, max=1 << 29)] = 100,
    url: common.Url = None,
    as_json: common.AsJson = False,
) -> None:
    """Benchmark a server with a worker's operations: round trips, publishing, reading and settling, by one client.

    \b
      millstream bench
      millstream bench --url redis+cluster://node1:6379 --entries 100000 --size 500 --json
      millstream bench --url memory://

    Everything happens on a stream of its own, which is removed at the end. Exit code 1 if an entry is missing then.
    """
    name = f"millstream:bench:{os.getpid()}:{time.time_ns():x}"
    with Stream[dict[str, str]](name, common.address(url), group=GROUP) as stream, _removed(stream.backend, name):
        lines = list(_measured(stream, entries, size))
        audit = stream.audit()
    if as_json:
        output.say_json({"url": stream.backend.url, "size": size, "lines": [asdict(line) for line in lines]})
    else:
        output.show(lines, ("what", "count", "per_second", "median_ms", "p99_ms"), as_json=False, empty="")
    if not audit.balanced or audit.done != audit.published:
        raise Failure(f"{audit.published} were published and {audit.done} are done")


def _measured(stream: Stream[dict[str, str]], entries: int, size: int) -> Iterator[BenchLine]:
    value = {"value": "x" * size}
    singles = max(1, entries // 20)
    yield _timed("round trips (PING)", ROUND_TRIPS, 1, lambda _: stream.backend.execute("PING", key=b""))
    yield _timed("publish, 1 a call", singles, 1, lambda _: stream.publish(value))
    yield _timed(f"publish, {PAGE} a call", entries, PAGE, lambda count: stream.publish_many([value] * count))
    yield _consumed(stream, singles + entries)


def _timed(what: str, total: int, page: int, act: Callable[[int], Any]) -> BenchLine:
    """Repeat an action `total` times, `page` at a time. Returns its rate and the times of its calls."""
    took = []
    for at in range(0, total, page):
        begun = time.perf_counter()
        act(min(page, total - at))
        took.append(time.perf_counter() - begun)
    return _line(what, total, took)


def _consumed(stream: Stream[dict[str, str]], total: int) -> BenchLine:
    """Read as a member of a group, a page ahead, and acknowledge each entry."""
    took, last = [], time.perf_counter()
    for done, message in enumerate(stream.consume(ahead=PAGE, wait=5), 1):
        message.ack()
        now = time.perf_counter()
        took.append(now - last)
        last = now
        if done == total:
            break
    return _line(f"read {PAGE} ahead, acknowledge each", len(took), took)


def _line(what: str, count: int, took: list[float]) -> BenchLine:
    worst = sorted(took)[min(len(took) - 1, len(took) * 99 // 100)]
    return BenchLine(what, count, round(count / sum(took)), _ms(statistics.median(took)), _ms(worst))


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


@contextmanager
def _removed(backend: Backend, name: str) -> Iterator[None]:
    """Remove the stream and all keys that belong to it, whatever happens."""
    keys = Keys(name.encode())
    try:
        yield
    finally:
        for key in {keys.stream, *backend.scan("MATCH", keys.base + b"*", "COUNT", 1000)}:
            backend.execute("DEL", key)
