"""Minutes at full rate, and memory stays flat: `python -m tests.long.soak --minutes 10`.

Two loads at once: the generator of the benchmarks (append, deliver, acknowledge as fast as the server can, on a stream
that begins anew every round, every reply checked), and clients that do all that leaks where something leaks: come and
go, release, claim, wait, watch, subscribe, trim, expire, run scripts. The log is on, and is rewritten as it grows.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import threading
import time

import redis

from bench.load import generator, load, prepare
from tests.long.rig import MB, Failed, Samples, check, conclude, connect, directory, serving

CONNECTIONS, DEPTH, ROUND = 50, 16, 60_000
FLAT = 0.10  # more of the level than this is no drift but growth
FLAT_BYTES = 12 * MB  # and less than this is noise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--fsync", default="everysec", choices=["always", "everysec", "no"])
    options = parser.parse_args()
    conclude(lambda: soak(options.minutes, options.fsync))


def soak(minutes: float, fsync: str) -> None:
    """Load a server for so long; Failed if its memory grows or a reply is wrong."""
    grown = ("--auto-aof-rewrite-min-size", "16mb", "--auto-aof-rewrite-percentage", "50")
    with directory() as place, serving(place, "--appendfsync", fsync, *grown) as server, generator() as binary:
        mixed = [Mixed(server.port, seed) for seed in range(2)]
        done, rounds, deadline_s = 0, 0, time.monotonic() + minutes * 60
        for each in mixed:
            each.start()
        with Samples(server.process.pid) as samples:
            while time.monotonic() < deadline_s:
                prepare(server.port, CONNECTIONS)
                requests = {"xadd": ROUND, "xreadgroup": ROUND, "xack": ROUND}
                load(binary, server.port, requests, connections=CONNECTIONS, depth=DEPTH)
                done, rounds = done + 3 * ROUND, rounds + 1
                check(all(each.is_alive() for each in mixed), f"a client ended: {[each.error for each in mixed]}")
        for each in mixed:
            each.stop()
        with connect(server) as wire:
            info = wire.ask(b"INFO").decode()
        print(
            f"{rounds} rounds, {done:,} requests at full rate, {sum(each.steps for each in mixed):,} mixed steps, "
            f"{_field(info, 'aof_rewrites')} rewrites of the log"
        )
        judge(samples)
        check(int(_field(info, "connected_clients")) == 1, f"connections are left: {_field(info, 'connected_clients')}")
        check(int(_field(info, "blocked_clients")) == 0, "a wait is left")


def judge(samples: Samples) -> None:
    """Report what memory did; Failed if it grew."""
    for name, pick in (("lowest", min), ("highest", max)):
        trend = samples.trend(pick)
        print(f"  {name:<8} {trend}")
        check(trend.drift < max(FLAT * trend.level, FLAT_BYTES), f"memory grows: {trend}")


def _field(info: str, name: str) -> str:
    for line in info.splitlines():
        if line.startswith(f"{name}:"):
            return line.partition(":")[2]
    raise Failed(f"INFO does not tell {name}")


class Mixed(threading.Thread):
    """A client that does everything but the same thing for long, on keys of its own that stay small."""

    def __init__(self, port: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._rng = random.Random(seed)
        self._key = f"mixed-{seed}"
        self._is_stopped = False
        self.steps = 0
        self.error: Exception | None = None

    def stop(self) -> None:
        self._is_stopped = True
        self.join(30)
        check(self.error is None and not self.is_alive(), f"a client did not end well: {self.error!r}")

    def run(self) -> None:
        try:
            while not self._is_stopped:
                with contextlib.closing(redis.Redis(port=self._port, protocol=self._rng.choice([2, 3]))) as client:
                    self._session(client)
        except Exception as error:  # told to the main thread, which ends the proof
            self.error = error

    def _session(self, client: redis.Redis) -> None:
        with contextlib.suppress(redis.ResponseError):  # it is there already
            client.xgroup_create(self._key, "g", "0", mkstream=True)
        for _ in range(200):
            if self._is_stopped:
                return
            self._rng.choice([self._work, self._work, self._claim, self._transact, self._listen, self._expire])(client)
            self.steps += 1

    def _work(self, client: redis.Redis) -> None:
        pipe = client.pipeline(transaction=False)
        for size in range(16):
            pipe.xadd(self._key, {"field": "v" * size, "n": size}, maxlen=1000, approximate=True)
        pipe.execute()
        name = f"c{self._rng.randrange(40)}"
        command = ["XREADGROUP", "GROUP", "g", name, "COUNT", 16, "STREAMS", self._key, ">"]
        rows = client.execute_command(*command)
        ids = _ids(rows)
        for entry_id in ids[::2]:
            client.xack(self._key, "g", entry_id)
        if ids[1::2]:
            client.execute_command("XNACK", self._key, "g", "FAIL", "IDS", len(ids[1::2]), *ids[1::2])

    def _claim(self, client: redis.Redis) -> None:
        command = ["XREADGROUP", "GROUP", "g", "claimer", "COUNT", 64, "CLAIM", 0, "STREAMS", self._key, ">"]
        ids = _ids(client.execute_command(*command))
        if ids:
            client.execute_command("XACKDEL", self._key, "g", "DELREF", "IDS", len(ids), *ids)
        if self._rng.random() < 0.1:
            client.xgroup_delconsumer(self._key, "g", f"c{self._rng.randrange(40)}")

    def _transact(self, client: redis.Redis) -> None:
        with client.pipeline(transaction=True) as pipe:
            pipe.watch(f"{self._key}-n")
            pipe.multi()
            pipe.incr(f"{self._key}-n")
            pipe.hset(f"{self._key}-h", str(self._rng.randrange(100)), "v")
            pipe.execute(raise_on_error=False)
        script = f"return redis.call('incrby', KEYS[1], {self._rng.randrange(50)})"
        client.eval(script, 1, f"{self._key}-n")

    def _listen(self, client: redis.Redis) -> None:
        with client.pubsub() as listener:
            listener.subscribe(f"{self._key}-channel")
            listener.psubscribe(f"{self._key}-*")
            client.publish(f"{self._key}-channel", "x")
            listener.get_message(timeout=1)
        client.xread({f"{self._key}-none": "$"}, block=1)

    def _expire(self, client: redis.Redis) -> None:
        pipe = client.pipeline(transaction=False)
        for _ in range(20):
            pipe.set(f"{self._key}-{self._rng.randrange(10**9)}", "v" * 100, px=self._rng.randrange(1, 500))
        pipe.execute()
        producer = f"p{self._rng.randrange(20)}"
        client.execute_command("XADD", f"{self._key}-i", "IDMPAUTO", producer, "MAXLEN", "100", "*", "f", self.steps)


def _ids(rows: object) -> list[bytes]:
    """The ids in a reply of XREADGROUP for one key, of either protocol and either form that redis-py gives it."""
    if not rows:
        return []
    if isinstance(rows, dict):
        entries = next(iter(rows.values()))
        entries = entries[0] if entries and isinstance(entries[0], list) and not _is_entry(entries[0]) else entries
    else:
        entries = rows[0][1]  # type: ignore[index]
    return [entry[0] for entry in entries]


def _is_entry(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], bytes)


if __name__ == "__main__":
    main()
