"""How fast our server is, against Valkey and Redis 8.10 under the same load in the same run.

    python -m bench.server [--quick] [--only PART …] [--form plain compiled] [--built DIRECTORY]

Both forms of ours take part, plain Python and the compiled core, which is built first unless `--built` says where it
is. All servers log with `appendfsync everysec`. One generator loads them in turn and checks every reply; rounds in
which others used the machine are left out; what counts is the median of the rounds' ratios. Ends with status 1 if
a ratio is below what the project promises for its form.
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
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import TimeoutExpired

from bench import replay
from bench.claim_socket import DUE, PAUSE_S, PENDING, Claims, WrongClaim
from bench.load import LoadFailed, NoCompiler, Run, generator, load, prepare
from bench.peers import (
    COMPILED,
    PLAIN,
    REDIS,
    VALKEY,
    Binaries,
    Missing,
    binaries,
    log_options,
    log_size,
    serving,
    versions,
)
from bench.replay import Replay, ReplayFailed
from bench.rounds import Comparison, compare
from bench.waiting import Waiting
from tests.support.servers import RealServer
from tests.support.wire import Closed

VALUE_SIZE = 100  # of each entry
WORKLOADS = ("ping", "xadd", "xreadgroup", "xack")
TAIL = "its own median"
MOST_TAIL = 10.0  # a p99 may be so many times the median
LIMIT_S = 600  # for all rounds: who has had enough time goes on with what was found


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
        name="pipeline",
        connections=50,
        depth=16,
        requests=40_000,
        rounds=11,
        promised={"xadd": (0.6, 1.0), "xreadgroup": (1.4, 2.5), "xack": (0.65, 1.1)},
    ),
    Setting(
        name="single",
        connections=50,
        depth=1,
        requests=20_000,
        rounds=11,
        promised={"xadd": (0.7, 0.8), "xreadgroup": (0.7, 0.8), "xack": (0.7, 0.8)},
    ),
    # Enough requests that one pause, which holds up each connection once, is less than a hundredth of them.
    Setting(name="many", connections=500, depth=1, requests=60_000, rounds=3, promised={}, peers=(VALKEY,), tails=True),
)
CLAIM_PROMISED = (1.5, 2.0)
WAITING_PROMISED = 0.67  # an XADD takes at most 1.5 times as long as on Redis
REPLAY_PROMISED = 1.0
# What a server can do to us: answer wrongly, not start, go away.
FAILURES = (Closed, LoadFailed, OSError, ReplayFailed, RuntimeError, TimeoutExpired, WrongClaim)
CLAIM_ROUNDS, WAITING_ROUNDS, REPLAY_ROUNDS = 15, 9, 3
READERS = (200, 2000)
PARTS = (*(setting.name for setting in SETTINGS), "claim", "waiting", "replay")


Measure = Callable[[], dict[str, tuple[float, float]]]


class Rate(Comparison):
    """Seconds a request (or a whole job) of ours and of a peer; nothing is promised where `at_least` is 0."""

    def row(self) -> str:
        ours, theirs = (_rate(1 / statistics.median(times)) for times in (self.ours, self.theirs))
        low, high = min(self.ratios), max(self.ratios)
        wanted = f"{self.at_least:>6.2f}  {'ok' if self.holds else 'BELOW'}" if self.at_least else ""
        return f"{self.name:<54} {self.peer:<11} {ours} {theirs} {self.median:>8.2f} {low:>6.2f} {high:>6.2f} {wanted}"


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
        return f"{self.name:<54} {median:>9.2f} {p99:>9.2f} {self.worst:>8.1f} {MOST_TAIL:>8.1f}  {verdict}"


TAIL_HEADER = f"{'our latency':<54} {'median ms':>9} {'p99 ms':>9} {'worst x':>8} {'at most':>8}"
HEADER = (
    f"{'what':<54} {'against':<11} {'ours/s':>9} {'theirs/s':>9} {'median x':>8} {'min':>6} {'max':>6} {'wanted':>6}"
)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all parts of a run share."""

    found: Binaries
    generator: Path
    options: tuple[str, ...]
    is_logged: bool
    is_quick: bool  # a third of the rounds
    deadline_s: float

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms of ours that take part."""
        return tuple(self.found.ours)

    def parts(self) -> Iterator[tuple[str, Callable[[], list[Comparison]]]]:
        """Everything that can be measured, by name."""
        for setting in SETTINGS:
            yield setting.name, partial(self.loaded, setting)
        yield "claim", self.claimed
        yield "waiting", self.waited
        yield "replay", self.replayed

    def loaded(self, setting: Setting) -> list[Comparison]:
        """All workloads on all servers, in turn."""
        found: list[Comparison] = [
            Rate(_title(workload, setting, form), peer, _promised(setting, workload, form, peer))
            for form in self.forms
            for workload in WORKLOADS
            for peer in setting.peers
        ]
        if setting.tails:
            found += [Tail(_title(workload, setting, form), TAIL, 0) for form in self.forms for workload in WORKLOADS]
        with serving(self.found, self.options, *self.forms, *setting.peers) as servers:
            orders = _orders(servers)

            def measure() -> dict[str, tuple[float, float]]:
                runs = {name: self._load(servers[name], setting) for name in next(orders)}
                self._expect_logs(servers, setting)
                return _paired(runs, setting, self.forms)

            self._compare(setting.rounds, measure, found, servers)
        return found

    def _expect_logs(self, servers: dict[str, RealServer], setting: Setting) -> None:
        """A server that does not keep what the others keep is not measured against them."""
        for name, server in servers.items():
            if self.is_logged and log_size(server.directory) < setting.requests * VALUE_SIZE:
                raise LoadFailed(f"{name} was told to log and has hardly anything in its log")

    def _compare(
        self, rounds: int, measure: Measure, found: list[Comparison], servers: dict[str, RealServer] | None = None
    ) -> None:
        rounds = max(1, rounds // 3) if self.is_quick else rounds
        pids = [server.pid for server in (servers or {}).values()]
        kept, dropped = compare(rounds, measure, found, pids, deadline_s=self.deadline_s)
        print(f"  rounds counted {kept}, left out {dropped}", flush=True)

    def _load(self, server: RealServer, setting: Setting) -> dict[str, Run]:
        prepare(server.port, setting.connections)
        requests = dict.fromkeys(WORKLOADS, setting.requests)
        try:
            return load(self.generator, server.port, requests, connections=setting.connections, depth=setting.depth)
        except LoadFailed as error:
            raise LoadFailed(f"{server.name}, {setting.connections} connections: {error}") from error

    def claimed(self) -> list[Comparison]:
        """The claim workload, on those that know it, with and without a log.

        What is promised is promised of servers that keep a log. But Redis logs a claim entry by entry, which costs it
        more than claiming: to show the lead with a log alone would be cheap.
        """
        unlogged = self._claimed(log_options("no"), ", no log", (0.0, 0.0))
        return self._claimed(self.options, "", CLAIM_PROMISED) + unlogged

    def _claimed(self, options: tuple[str, ...], title: str, promised: tuple[float, float]) -> list[Comparison]:
        titles = {form: f"claim {DUE:,} of {PENDING:,} pending{title}, {form}" for form in self.forms}
        found: list[Comparison] = [Rate(title, REDIS, promised[form == COMPILED]) for form, title in titles.items()]
        with serving(self.found, options, *self.forms, REDIS) as servers:
            claims = {name: Claims(server) for name, server in servers.items()}
            orders = _orders(servers)

            def measure() -> dict[str, tuple[float, float]]:
                time.sleep(PAUSE_S)
                took = {name: claims[name].round() for name in next(orders)}
                return {f"{title}/{REDIS}": (took[form], took[REDIS]) for form, title in titles.items()}

            self._compare(CLAIM_ROUNDS, measure, found, servers)
        return found

    def waited(self) -> list[Comparison]:
        """XADD while readers of a group wait."""
        return [comparison for readers in READERS for comparison in self._waited(readers)]

    def _waited(self, readers: int) -> list[Comparison]:
        titles = {form: f"XADD, {readers:,} waiting readers, {form}" for form in self.forms}
        found: list[Comparison] = [Rate(title, REDIS, WAITING_PROMISED) for title in titles.values()]
        with serving(self.found, self.options, *self.forms, REDIS) as servers, ExitStack() as stack:
            waiting = {name: Waiting(server, readers, stack) for name, server in servers.items()}
            orders = _orders(servers)

            def measure() -> dict[str, tuple[float, float]]:
                took = {name: waiting[name].round() for name in next(orders)}
                return {f"{title}/{REDIS}": (took[form], took[REDIS]) for form, title in titles.items()}

            self._compare(WAITING_ROUNDS, measure, found, servers)
        return found

    def replayed(self) -> list[Comparison]:
        """Starting with a long log."""
        titles = {form: f"start with {replay.COMMANDS:,} commands logged, {form}" for form in self.forms}
        found: list[Comparison] = [Rate(title, VALKEY, REPLAY_PROMISED) for title in titles.values()]
        with tempfile.TemporaryDirectory(prefix="millstream-replay-") as directory:
            logs = {name: self._log(name, Path(directory) / name) for name in (*self.forms, VALKEY)}
            print("  MB of log:", ", ".join(f"{name} {log.size / 1e6:.0f}" for name, log in logs.items()))
            orders = _orders(logs)

            def measure() -> dict[str, tuple[float, float]]:
                took = {name: logs[name].round() for name in next(orders)}
                return {f"{title}/{VALKEY}": (took[form], took[VALKEY]) for form, title in titles.items()}

            self._compare(REPLAY_ROUNDS, measure, found)
        return found

    def _log(self, name: str, directory: Path) -> Replay:
        directory.mkdir()
        return Replay(self.generator, self.found.of(name), log_options(), directory)


def _title(workload: str, setting: Setting, form: str) -> str:
    return f"{workload.upper()}, {setting.connections} connections, pipeline {setting.depth}, {form}"


def _promised(setting: Setting, workload: str, form: str, peer: str) -> float:
    return setting.promised.get(workload, (0, 0))[form == COMPILED] if peer == VALKEY else 0


def _orders(names: Iterable[str]) -> Iterator[list[str]]:
    """The peers, each round another one first: what one leaves behind must not always meet the same one."""
    every = list(names)
    for turn in itertools.count():
        yield every[turn % len(every) :] + every[: turn % len(every)]


def _paired(
    runs: dict[str, dict[str, Run]], setting: Setting, forms: tuple[str, ...]
) -> dict[str, tuple[float, float]]:
    """Seconds a request by comparison, and our p99 and median in seconds."""
    found = {}
    for form, workload in itertools.product(forms, WORKLOADS):
        ours, title = runs[form][workload], _title(workload, setting, form)
        for peer in setting.peers:
            found[f"{title}/{peer}"] = (1 / ours.per_second, 1 / runs[peer][workload].per_second)
        found[f"{title}/{TAIL}"] = (ours.p99_us / 1e6, ours.p50_us / 1e6)
    return found


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
    with serving(bench.found, bench.options, bench.forms[0], VALKEY, REDIS) as servers:
        forms = " and ".join(bench.forms)
        print(f"{versions(servers)}; {forms}, CPython {platform.python_version()}, {os.cpu_count()} cores", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a third of the rounds")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--appendonly", choices=("yes", "no"), default="yes", help="but for the replay, which needs it")
    parser.add_argument("--appendfsync", choices=("always", "everysec", "no"), default="everysec")
    parser.add_argument("--form", nargs="+", choices=(PLAIN, COMPILED), default=(PLAIN, COMPILED))
    parser.add_argument("--built", type=Path, help="where the compiled package is, if it is not to be built")
    options = parser.parse_args()
    try:
        with generator() as built, binaries(tuple(options.form), options.built) as found:
            bench = Bench(
                found=found,
                generator=built,
                options=log_options(options.appendonly, options.appendfsync),
                is_logged=options.appendonly == "yes",
                is_quick=options.quick,
                deadline_s=time.monotonic() + LIMIT_S,
            )
            _introduce(bench)
            return _run(bench, list(options.only))
    except (Missing, NoCompiler, *FAILURES) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
