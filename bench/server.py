"""How fast our server is, against Valkey and Redis 8.10 under the same load in the same run.

    python -m bench.server [--quick] [--only PART …]

All servers log with `appendfsync everysec`. One generator loads them in turn and checks every reply; rounds in
which others used the machine are left out; what counts is the median of the rounds' ratios. Ends with status 1 if
a ratio is below what the project promises for the form that runs here: plain Python, or the compiled core.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import TimeoutExpired

from bench import replay
from bench.claim_socket import DUE, PAUSE_S, PENDING, Claims, WrongClaim
from bench.load import LoadFailed, NoCompiler, Run, generator, load, prepare
from bench.peers import (
    OURS,
    REDIS,
    VALKEY,
    Binaries,
    Missing,
    binaries,
    is_compiled,
    log_options,
    log_size,
    serving,
    versions,
)
from bench.replay import Replay, ReplayFailed
from bench.rounds import Comparison, compare
from tests.support.servers import RealServer
from tests.support.wire import Closed

VALUE_SIZE = 100  # of each entry
WORKLOADS = ("ping", "xadd", "xreadgroup", "xack")
TAIL = "its own median"
MOST_TAIL = 10.0  # a p99 may be so many times the median


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way of loading the servers, and what is promised of Valkey's speed: plain, compiled."""

    name: str
    connections: int
    depth: int
    requests: int  # of each workload, a round
    rounds: int
    promised: dict[str, tuple[float, float]]
    peers: tuple[str, ...] = (VALKEY, REDIS)
    tails: bool = False  # whether latencies are looked at as well


SETTINGS = (
    Setting(
        name="pipeline", connections=50, depth=16, requests=40_000, rounds=15,
        promised={"xadd": (0.6, 1.0), "xreadgroup": (1.4, 2.5), "xack": (0.65, 1.1)},
    ),
    Setting(
        name="single", connections=50, depth=1, requests=20_000, rounds=15,
        promised={"xadd": (0.7, 0.8), "xreadgroup": (0.7, 0.8), "xack": (0.7, 0.8)},
    ),
    # Enough requests that one pause, which holds up each connection once, is less than a hundredth of them.
    Setting(name="many", connections=500, depth=1, requests=60_000, rounds=5, promised={}, peers=(VALKEY,), tails=True),
)  # fmt: skip
CLAIM_PROMISED = (1.5, 2.0)
REPLAY_PROMISED = 1.0
# What a server can do to us: answer wrongly, not start, go away.
FAILURES = (Closed, LoadFailed, OSError, ReplayFailed, RuntimeError, TimeoutExpired, WrongClaim)
CLAIM_ROUNDS, REPLAY_ROUNDS = 25, 5
PARTS = (*(setting.name for setting in SETTINGS), "claim", "replay")


class Rate(Comparison):
    """Seconds a request (or a whole job) of ours and of a peer; nothing is promised where `at_least` is 0."""

    def row(self) -> str:
        ours, theirs = (_rate(1 / statistics.median(times)) for times in (self.ours, self.theirs))
        low, high = min(self.ratios), max(self.ratios)
        wanted = f"{self.at_least:>6.2f}  {'ok' if self.holds else 'BELOW'}" if self.at_least else ""
        return f"{self.name:<44} {self.peer:<11} {ours} {theirs} {self.median:>8.2f} {low:>6.2f} {high:>6.2f} {wanted}"


def _rate(per_second: float) -> str:
    return f"{per_second:>9,.0f}" if per_second >= 100 else f"{per_second:>9.3f}"


class Tail(Comparison):
    """Our p99 (in `ours`) against our own median (in `theirs`), round by round."""

    @property
    def worst(self) -> float:
        return 1 / min(self.ratios)

    @property
    def holds(self) -> bool:
        return self.worst <= MOST_TAIL

    def row(self) -> str:
        median, p99 = (statistics.median(times) * 1e3 for times in (self.theirs, self.ours))
        verdict = "ok" if self.holds else "ABOVE"
        return f"{self.name:<44} {median:>9.2f} {p99:>9.2f} {self.worst:>8.1f} {MOST_TAIL:>8.1f}  {verdict}"


TAIL_HEADER = f"{'our latency':<44} {'median ms':>9} {'p99 ms':>9} {'worst x':>8} {'at most':>8}"
HEADER = (
    f"{'what':<44} {'against':<11} {'ours/s':>9} {'theirs/s':>9} {'median x':>8} {'min':>6} {'max':>6} {'wanted':>6}"
)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all parts of a run share."""

    found: Binaries
    generator: Path
    options: tuple[str, ...]
    is_logged: bool
    compiled: bool
    is_quick: bool  # a fifth of the rounds

    def parts(self) -> Iterator[tuple[str, Callable[[], list[Comparison]]]]:
        """Everything that can be measured, by name."""
        for setting in SETTINGS:
            yield setting.name, partial(self.loaded, setting)
        yield "claim", self.claimed
        yield "replay", self.replayed

    def loaded(self, setting: Setting) -> list[Comparison]:
        """All workloads on all servers, in turn."""
        found: list[Comparison] = [
            Rate(_title(workload, setting), peer, self._promised(setting, workload, peer))
            for workload in WORKLOADS
            for peer in setting.peers
        ]
        found += [Tail(_title(workload, setting), TAIL, 0) for workload in WORKLOADS if setting.tails]
        with serving(self.found, self.options, OURS, *setting.peers) as servers:
            orders = _orders(servers)

            def measure() -> dict[str, tuple[float, float]]:
                runs = {name: self._load(servers[name], setting) for name in next(orders)}
                self._expect_logs(servers, setting)
                return _paired(runs, setting)

            pids = [server.pid for server in servers.values()]
            _say(compare(self._rounds(setting.rounds), measure, found, pids))
        return found

    def _expect_logs(self, servers: dict[str, RealServer], setting: Setting) -> None:
        """A server that does not keep what the others keep is not measured against them."""
        for name, server in servers.items():
            if self.is_logged and log_size(server.directory) < setting.requests * VALUE_SIZE:
                raise LoadFailed(f"{name} was told to log and has hardly anything in its log")

    def _rounds(self, full: int) -> int:
        return full // 5 if self.is_quick else full

    def _load(self, server: RealServer, setting: Setting) -> dict[str, Run]:
        prepare(server.port, setting.connections)
        requests = dict.fromkeys(WORKLOADS, setting.requests)
        try:
            return load(self.generator, server.port, requests, connections=setting.connections, depth=setting.depth)
        except LoadFailed as error:
            raise LoadFailed(f"{server.name}, {setting.connections} connections: {error}") from error

    def _promised(self, setting: Setting, workload: str, peer: str) -> float:
        return setting.promised.get(workload, (0, 0))[self.compiled] if peer == VALKEY else 0

    def claimed(self) -> list[Comparison]:
        """The claim workload, on those that know it, with and without a log.

        Redis logs a claim entry by entry, which costs it more than claiming: a lead with a log alone would be cheap.
        """
        return [self._claimed(self.options, ""), self._claimed(log_options("no"), ", no log")]

    def _claimed(self, options: tuple[str, ...], title: str) -> Comparison:
        name = f"claim {DUE:,} of {PENDING:,} pending{title}"
        comparison = Rate(name, REDIS, CLAIM_PROMISED[self.compiled])
        with serving(self.found, options, OURS, REDIS) as servers:
            claims = {name: Claims(server) for name, server in servers.items()}
            orders = _orders(servers)

            def measure() -> dict[str, tuple[float, float]]:
                time.sleep(PAUSE_S)
                took = {name: claims[name].round() for name in next(orders)}
                return {f"{comparison.name}/{REDIS}": (took[OURS], took[REDIS])}

            pids = [server.pid for server in servers.values()]
            _say(compare(self._rounds(CLAIM_ROUNDS), measure, [comparison], pids))
        return comparison

    def replayed(self) -> list[Comparison]:
        """Starting with a long log."""
        comparison = Rate(f"start with {replay.COMMANDS:,} commands logged", VALKEY, REPLAY_PROMISED)
        with tempfile.TemporaryDirectory(prefix="millstream-replay-") as directory:
            logs = {name: self._log(name, Path(directory) / name) for name in (OURS, VALKEY)}
            print("  MB of log:", ", ".join(f"{name} {log.size / 1e6:.0f}" for name, log in logs.items()))
            orders = _orders(logs)

            def measure() -> dict[str, tuple[float, float]]:
                took = {name: logs[name].round() for name in next(orders)}
                return {f"{comparison.name}/{VALKEY}": (took[OURS], took[VALKEY])}

            _say(compare(self._rounds(REPLAY_ROUNDS), measure, [comparison], []))
        return [comparison]

    def _log(self, name: str, directory: Path) -> Replay:
        directory.mkdir()
        return Replay(self.generator, self.found.of(name), log_options(), directory)


def _title(workload: str, setting: Setting) -> str:
    return f"{workload.upper()}, {setting.connections} connections, pipeline {setting.depth}"


def _orders(names: Iterable[str]) -> Iterator[list[str]]:
    """The peers, each round another one first: what one leaves behind must not always meet the same one."""
    every = list(names)
    for turn in itertools.count():
        yield every[turn % len(every) :] + every[: turn % len(every)]


def _paired(runs: dict[str, dict[str, Run]], setting: Setting) -> dict[str, tuple[float, float]]:
    """Seconds a request by comparison, and our p99 and median in seconds."""
    found = {}
    for workload in WORKLOADS:
        ours, title = runs[OURS][workload], _title(workload, setting)
        for peer in setting.peers:
            found[f"{title}/{peer}"] = (1 / ours.per_second, 1 / runs[peer][workload].per_second)
        found[f"{title}/{TAIL}"] = (ours.p99_us / 1e6, ours.p50_us / 1e6)
    return found


def _say(counted: tuple[int, int]) -> None:
    print(f"  rounds counted {counted[0]}, left out {counted[1]}", flush=True)


def _run(bench: Bench, wanted: list[str]) -> int:
    """All wanted parts; one that fails is told of, and the others are still measured."""
    found: list[Comparison] = []
    failures: list[str] = []
    for name, measure in bench.parts():
        if name not in wanted:
            continue
        print(name, flush=True)
        try:
            found += measure()
        except FAILURES as error:
            failures.append(f"{name}: {error}")
    _print_tables(found)
    failures += [f"{comparison.name} ({comparison.peer})" for comparison in found if not comparison.holds]
    if failures:
        print("not as promised:", *failures, sep="\n  ")
    return 1 if failures else 0


def _print_tables(found: list[Comparison]) -> None:
    for kind, header in ((Rate, HEADER), (Tail, TAIL_HEADER)):
        rows = [comparison.row() for comparison in found if isinstance(comparison, kind)]
        if rows:
            print(header, *rows, sep="\n")


def _introduce(bench: Bench) -> None:
    form = "compiled core" if bench.compiled else "plain Python"
    with serving(bench.found, bench.options, OURS, VALKEY, REDIS) as servers:
        print(f"{versions(servers)}; {form}, CPython {platform.python_version()}, {os.cpu_count()} cores", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--appendonly", choices=("yes", "no"), default="yes", help="but for the replay, which needs it")
    parser.add_argument("--appendfsync", choices=("always", "everysec", "no"), default="everysec")
    parser.add_argument("--stand-in", type=Path, help="a server binary to measure in place of ours")
    options = parser.parse_args()
    try:
        with generator() as built, binaries(options.stand_in) as found:
            bench = Bench(
                found=found, generator=built, options=log_options(options.appendonly, options.appendfsync),
                is_logged=options.appendonly == "yes", compiled=is_compiled(), is_quick=options.quick,
            )  # fmt: skip
            _introduce(bench)
            return _run(bench, list(options.only))
    except (Missing, NoCompiler, *FAILURES) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
