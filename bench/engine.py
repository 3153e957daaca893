"""How fast the engine is inside a Python program, against redis-py on real servers and against fakeredis.

    python -m bench.engine [--rounds N]

Prints a table of ratios, the memory an entry and a pending entry take, and times at n, 2n, 4n; ends with status 1 if
anything is below what the project promises. Replies are checked; clients do not retry. Each peer runs in a process of
its own, and the garbage collector runs as it does for a user.
"""

from __future__ import annotations

import argparse
import gc
import platform
import random
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import fakeredis
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bench.elsewhere import Elsewhere
from bench.rounds import HEADER, Comparison, compare, timed
from millstream import Broker
from millstream.clock import ManualClock
from tests.support.servers import redis_binary, running, valkey_binary

VALUE = b"x" * 100
FIELDS = {b"f": VALUE}
OURS = 3000  # operations a round, ours
THEIRS = 250  # operations a round, over a socket or in fakeredis
PENDING, DUE = 20_000, 1_000

VALKEY = "redis-py on Valkey"
REDIS = "redis-py on Redis 8.10"
FAKE = "fakeredis"


def client(port: int) -> redis.Redis:
    """Return a redis-py client that never tries again on its own."""
    return redis.Redis(port=port, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=60)


# One by one


class Ours:
    """The four operations by direct calls."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.broker.xgroup_create(b"s", b"g", b"0", mkstream=True)
        self.broker.xgroup_createconsumer(b"s", b"g", b"c")

    def round(self) -> dict[str, float]:
        broker, wanted = self.broker, {b"s": b">"}
        found = {"XADD": timed(OURS, lambda: _repeat(OURS, lambda: broker.xadd(b"s", FIELDS)))}
        ids: list[bytes] = []

        def read() -> None:
            for _ in range(OURS):
                ids.append(broker.xreadgroup(b"g", b"c", wanted, 1)[b"s"][0].id)

        found["XREADGROUP 1"] = timed(OURS, read)
        nacked: list[int] = []
        found["XNACK"] = timed(OURS, lambda: nacked.extend(broker.xnack(b"s", b"g", i) for i in ids))
        acked: list[int] = []
        found["XACK"] = timed(OURS, lambda: acked.extend(broker.xack(b"s", b"g", i) for i in ids))
        _check(len(set(ids)) == OURS and sum(acked) == sum(nacked) == OURS)
        broker.xtrim(b"s", maxlen=0)
        return found


class Theirs:
    """The four operations through redis-py; without a port on fakeredis."""

    def __init__(self, port: int | None, knows_xnack: bool) -> None:
        self.client: Any = fakeredis.FakeRedis(version=(8, 8)) if port is None else client(port)
        self.knows_xnack = knows_xnack
        self.client.xgroup_create("s", "g", "0", mkstream=True)

    def round(self) -> dict[str, float]:
        peer = self.client
        found = {"XADD": timed(THEIRS, lambda: _repeat(THEIRS, lambda: peer.xadd("s", FIELDS)))}
        ids: list[bytes] = []

        def read() -> None:
            for _ in range(THEIRS):
                reply = peer.xreadgroup("g", "c", {"s": ">"}, count=1)
                ids.append(reply[0][1][0][0] if isinstance(reply, list) else reply[b"s"][0][0])

        found["XREADGROUP 1"] = timed(THEIRS, read)
        if self.knows_xnack:
            nacked: list[int] = []
            nack = peer.execute_command
            found["XNACK"] = timed(
                THEIRS, lambda: nacked.extend(nack("XNACK", "s", "g", "FAIL", "IDS", "1", i) for i in ids)
            )
            _check(sum(nacked) == THEIRS)
        acked: list[int] = []
        found["XACK"] = timed(THEIRS, lambda: acked.extend(peer.xack("s", "g", i) for i in ids))
        _check(len(set(ids)) == THEIRS and sum(acked) == THEIRS)
        peer.xtrim("s", maxlen=0)
        return found


def _repeat(times: int, call: Callable[[], object]) -> None:
    for _ in range(times):
        call()


def _check(holds: bool) -> None:
    if not holds:
        raise SystemExit("a reply was wrong: nothing measured here counts")


# The claim workload: 20,000 pending, 1,000 random ones idle 1100 ms, the others 50 ms


class ClaimHere:
    """Claiming by a direct call, on a clock that stands still meanwhile."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.broker = Broker(clock=self.clock)
        for index in range(PENDING):
            self.clock.advance(index % 10 == 0)
            self.broker.xadd(b"s", FIELDS)
        self.broker.xgroup_create(b"s", b"g", b"0")
        for name in (b"slow", b"quick"):
            self.broker.xgroup_createconsumer(b"s", b"g", name)
        self.ids = [
            entry.id
            for _ in range(PENDING // 100)
            for entry in self.broker.xreadgroup(b"g", b"slow", {b"s": b">"}, 100)[b"s"]
        ]

    def round(self) -> tuple[float, float]:
        """Seconds for the call, and for the call with all fields of all entries read."""
        self.clock.advance(10_000)
        due = random.sample(self.ids, DUE)
        self.broker.xclaim(b"s", b"g", b"slow", 0, self.ids, idle_ms=50, retry_count=1, justid=True)
        self.broker.xclaim(b"s", b"g", b"slow", 0, due, idle_ms=1100, retry_count=1, justid=True)
        gc.collect()
        start = time.perf_counter()
        entries = self.broker.xreadgroup(b"g", b"quick", {b"s": b">"}, DUE, None, 1000)[b"s"]
        took = time.perf_counter() - start
        values = [entry.fields[b"f"] for entry in entries]
        read = time.perf_counter() - start
        _check([entry.id for entry in entries] == due and all(value == VALUE for value in values))
        return took, read


class ClaimThere:
    """Claiming through redis-py: with CLAIM, or with XAUTOCLAIM until all is seen."""

    def __init__(self, port: int, knows_claim: bool) -> None:
        self.client: Any = client(port)
        self.knows_claim = knows_claim
        pipe = self.client.pipeline(transaction=False)
        for _ in range(PENDING):
            pipe.xadd("claims", FIELDS)
        self.ids = pipe.execute()
        self.client.xgroup_create("claims", "g", "0")
        self.client.xreadgroup("g", "slow", {"claims": ">"})

    def round(self) -> float:
        due = random.sample(self.ids, DUE)
        self.client.xclaim("claims", "g", "slow", 0, self.ids, idle=50, retrycount=1, justid=True)
        self.client.xclaim("claims", "g", "slow", 0, due, idle=1100, retrycount=1, justid=True)
        found: list[bytes] = []
        gc.collect()
        start = time.perf_counter()
        if self.knows_claim:
            reply = self.client.execute_command(
                "XREADGROUP", "GROUP", "g", "quick", "COUNT", DUE, "CLAIM", 1000, "STREAMS", "claims", ">"
            )
            rows = reply[0][1] if isinstance(reply, list) else reply[b"claims"]
            found = [row[0] for row in rows]
        else:
            cursor: Any = "0-0"
            while True:
                cursor, rows, _ = self.client.xautoclaim("claims", "g", "quick", 1000, cursor, count=DUE)
                found += [row[0] for row in rows]
                if cursor == b"0-0":
                    break
        took = time.perf_counter() - start
        _check(sorted(found) == sorted(due))
        return took


def speeds(rounds: int) -> list[Comparison]:
    """All ratios of one run."""
    # against redis-py on a quiet machine, where a round trip takes it 44 to 48 µs; against fakeredis
    wanted = {"XADD": (10, 25), "XREADGROUP 1": (8, 25), "XACK": (20, 25), "XNACK": (7, 25)}
    comparisons = [
        Comparison(name, VALKEY if name != "XNACK" else REDIS, socket) for name, (socket, _) in wanted.items()
    ]
    comparisons += [Comparison(name, FAKE, fake) for name, (_, fake) in wanted.items()]
    claims = [
        Comparison("claim 1,000 of 20,000", f"{REDIS}, CLAIM", 5),
        Comparison("claim 1,000 of 20,000", "redis-py on Valkey, XAUTOCLAIM", 15),
    ]
    with running(_need(valkey_binary()), "--save", "") as valkey, running(_need(redis_binary()), "--save", "") as real:
        ours = Ours()
        on_valkey = Elsewhere(Theirs, valkey.port, False)
        on_redis = Elsewhere(Theirs, real.port, True)
        fake = Elsewhere(Theirs, None, True)
        pids = [valkey.pid, real.pid, on_valkey.pid, on_redis.pid, fake.pid]

        def one_by_one() -> dict[str, tuple[float, float]]:
            mine, valkeys, reds, fakes = ours.round(), on_valkey.round(), on_redis.round(), fake.round()
            found = {f"{name}/{VALKEY}": (mine[name], value) for name, value in valkeys.items()}
            found[f"XNACK/{REDIS}"] = (mine["XNACK"], reds["XNACK"])
            return found | {f"{name}/{FAKE}": (mine[name], value) for name, value in fakes.items()}

        print("rounds counted, left out:", compare(rounds, one_by_one, comparisons, pids))
        here = ClaimHere()
        with_claim = Elsewhere(ClaimThere, real.port, True)
        with_autoclaim = Elsewhere(ClaimThere, valkey.port, False)
        pids += [with_claim.pid, with_autoclaim.pid]
        read_all: list[float] = []

        def claim() -> dict[str, tuple[float, float]]:
            took, read = here.round()
            read_all.append(read)
            return {
                f"{claims[0].name}/{claims[0].peer}": (took, with_claim.round()),
                f"{claims[1].name}/{claims[1].peer}": (took, with_autoclaim.round()),
            }

        print("rounds counted, left out:", compare(rounds, claim, claims, pids))
        for peer in (on_valkey, on_redis, fake, with_claim, with_autoclaim):
            peer.close()
        print(f"claim with every field of every entry decoded: {sorted(read_all)[len(read_all) // 2] * 1e3:.2f} ms")
    return comparisons + claims


def _need(binary: Any) -> Any:
    if binary is None:
        raise SystemExit("a real Redis 8.10 and a Valkey are needed: `make bench-engine` sets them up")
    return binary


# Memory


def memory(count: int, consumers: int, entries: int = 200_000) -> tuple[float, float]:
    """Bytes an entry takes, and bytes a pending entry takes, read by so many consumers in turn."""
    tracemalloc.start()
    broker = Broker()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(entries):
        broker.xadd(b"s", {b"f": bytes(100)})
    if broker.xlen(b"s") != entries:
        raise SystemExit("entries are missing")
    added = tracemalloc.get_traced_memory()[0]
    broker.xgroup_create(b"s", b"g", b"0")
    names = [b"c%d" % index for index in range(consumers)]
    for name in names:
        broker.xgroup_createconsumer(b"s", b"g", name)
    turn = 0
    while broker.xreadgroup(b"g", names[turn % consumers], {b"s": b">"}, count):
        turn += 1
    gc.collect()
    read = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    _check(broker.xpending(b"s", b"g").count == entries)
    return (added - before) / entries, (read - added) / entries


# Growth


def growth(size: int) -> dict[str, float]:
    """CPU seconds that whole jobs over a stream of this size take."""
    broker = Broker()
    found = {}
    found["append"] = _took(lambda: _repeat(size, lambda: broker.xadd(b"s", FIELDS)))
    broker.xgroup_create(b"s", b"g", b"0")
    broker.xgroup_createconsumer(b"s", b"g", b"c")
    found["read as a group, by 100"] = _took(
        lambda: _repeat(size // 100, lambda: broker.xreadgroup(b"g", b"c", {b"s": b">"}, 100))
    )
    found["read history, by 100"] = _took(lambda: _history(broker, size))
    found["page XRANGE by 100"] = _took(lambda: _pages(broker, size))
    found["page XPENDING by 1000"] = _took(lambda: _pending_pages(broker, size))
    found["copy"] = _took(lambda: broker.execute("COPY", "s", "t"))
    ids = [entry.id for entry in broker.xrange(b"s")]
    found["acknowledge all"] = _took(lambda: _repeat_with(broker.xack, ids))
    return found


def _took(job: Callable[[], object]) -> float:
    start = time.process_time()  # CPU time: what others do meanwhile does not count
    job()
    return time.process_time() - start


def _repeat_with(call: Callable[..., object], ids: list[bytes]) -> None:
    for entry_id in ids:
        call(b"s", b"g", entry_id)


def _history(broker: Broker, size: int) -> None:
    last, seen = b"0", 0
    while True:
        entries = broker.xreadgroup(b"g", b"c", {b"s": last}, 100)[b"s"]
        if not entries:
            break
        seen += len(entries)
        last = entries[-1].id
    _check(seen == size)


def _pages(broker: Broker, size: int) -> None:
    start, seen = b"-", 0
    while True:
        entries = broker.xrange(b"s", start, b"+", 100)
        if not entries:
            break
        seen += len(entries)
        start = b"(" + entries[-1].id
    _check(seen == size)


def _pending_pages(broker: Broker, size: int) -> None:
    start, seen = b"-", 0
    while True:
        rows = broker.xpending_range(b"s", b"g", start, b"+", 1000)
        if not rows:
            break
        seen += len(rows)
        start = b"(" + rows[-1].id
    _check(seen == size)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="quiet rounds to collect for each table")
    parser.add_argument("--size", type=int, default=250_000, help="entries of the smallest stream in the growth table")
    options = parser.parse_args()
    print(f"CPython {platform.python_version()}, redis-py {redis.__version__}, fakeredis {fakeredis.__version__}")
    comparisons = speeds(options.rounds)
    print(HEADER)
    for comparison in comparisons:
        print(comparison.row())
    failures = [c.name for c in comparisons if not c.holds]
    failures += _report_memory()
    failures += _report_growth(options.size)
    if failures:
        print("below what is promised:", ", ".join(failures))
    return 1 if failures else 0


def _report_memory() -> list[str]:
    entry, batches = memory(100, 1)
    _, singles = memory(1, 10)
    rows = [
        ("bytes an entry of one 100-byte value", entry, 200),
        ("bytes a pending entry, read by 100", batches, 100),
        ("bytes a pending entry, read one by one", singles, 200),
    ]
    for name, value, most in rows:
        print(f"{name:<44} {value:>8.1f}  at most {most}  {'ok' if value <= most else 'ABOVE'}")
    return [name for name, value, most in rows if value > most]


def _report_growth(size: int) -> list[str]:
    """Time at n, 2n, 4n: four times the entries may take six times as long, not sixteen."""
    tables = [growth(size), growth(2 * size), growth(4 * size)]
    failures = []
    print(f"seconds at {size:,}, {2 * size:,}, {4 * size:,} entries")
    for name in tables[0]:
        times = [table[name] for table in tables]
        factor = times[2] / times[0]
        print(f"{name:<30} {times[0]:>8.2f} {times[1]:>8.2f} {times[2]:>8.2f}   x{factor:.1f}")
        if factor > 8 and times[2] > 0.5:
            failures.append(f"growth of {name}")
    return failures


if __name__ == "__main__":
    sys.exit(main())
