"""How much CPU time a request costs our server and Valkey: what a busy machine hardly changes, unlike a rate.

    python -m bench.cpu_server [--depth 16] [--rounds 5] [--requests 40000] [--form plain compiled] [--built DIRECTORY]

Only the thread that serves is looked at (/proc/PID/task/PID/schedstat). While a server is the bottleneck, the ratio of
these times is the ratio of the rates that `bench.server` measures on a quiet machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from bench.load import generator, load, prepare
from bench.peers import COMPILED, PLAIN, VALKEY, binaries, log_options, serving
from tests.support.servers import RealServer

WORKLOADS = ("ping", "xadd", "xreadgroup", "xack")


def cpu_s(pid: int) -> float:
    """CPU seconds that the main thread of a process has had."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


class Meter:
    """CPU time by workload of one server, round by round."""

    def __init__(self, server: RealServer) -> None:
        self._server = server
        self.us: dict[str, list[float]] = defaultdict(list)

    def round(self, binary: Path, options: argparse.Namespace) -> None:
        """Load the server once, and note what each workload took."""
        marks: list[float] = []
        prepare(self._server.port, options.connections)
        requests = dict.fromkeys(WORKLOADS, options.requests)
        load(
            binary,
            self._server.port,
            requests,
            connections=options.connections,
            depth=options.depth,
            before=lambda _: marks.append(cpu_s(self._server.pid)),
        )
        marks.append(cpu_s(self._server.pid))
        for at, workload in enumerate(WORKLOADS):
            self.us[workload].append((marks[at + 1] - marks[at]) / options.requests * 1e6)


def _print_table(meters: dict[str, Meter]) -> None:
    theirs = meters[VALKEY]
    for workload in WORKLOADS:
        line = f"{workload:<12}"
        for name, meter in meters.items():
            ratios = [b / a for a, b in zip(meter.us[workload], theirs.us[workload], strict=True)]
            line += f" {name} {statistics.median(meter.us[workload]):7.3f} us"
            line += "" if name == VALKEY else f" x{statistics.median(ratios):5.2f}"
        print(line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--appendonly", choices=("yes", "no"), default="yes")
    parser.add_argument("--form", nargs="+", choices=(PLAIN, COMPILED), default=(PLAIN,))
    parser.add_argument("--built", type=Path, help="where the compiled form is, if it is not to be built")
    options = parser.parse_args()
    log = log_options(options.appendonly)
    with (
        generator() as binary,
        binaries(tuple(options.form), options.built) as found,
        serving(found, log, *options.form, VALKEY) as servers,
    ):
        meters = {name: Meter(server) for name, server in servers.items()}
        for _ in range(options.rounds):
            for meter in meters.values():
                meter.round(binary, options)
        _print_table(meters)
    return 0


if __name__ == "__main__":
    sys.exit(main())
