"""Where our server spends its time under one workload.

    python -m bench.profile_server xadd [--depth 16] [--sort cumulative] [--out server.prof] [-- --appendonly no]

The server runs here, in the main thread, exactly as `millstream serve` would run it; a second thread has it loaded
from another process. The profiler is on for the asked-for workload only, not for what has to come before it. What is
behind `--` goes to the server. The CPU time a request takes is told too: unlike the rate, it hardly depends on what
else the machine does. Compiled functions do not show up: profile the plain form.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import os
import pstats
import runpy
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.load import LoadFailed, Run, generator, load, prepare
from bench.peers import log_options
from tests.support.servers import free_port
from tests.support.wire import Closed, Wire

BEFORE = {"ping": (), "xadd": (), "xreadgroup": ("xadd",), "xack": ("xadd", "xreadgroup")}
START_LIMIT_S = 30
SETTLE_S = 0.1  # until a signal's handler has run


class Load(threading.Thread):
    """Loads the server in this process, with the profiler on at the right time, then asks it to end."""

    def __init__(self, options: argparse.Namespace, binary: Path, port: int) -> None:
        super().__init__(name="load", daemon=True)
        self._options, self._binary, self._port = options, binary, port
        self.profile = cProfile.Profile()
        self.found: Run | None = None
        self.cpu_s = 0.0  # of the main thread, during the workload
        self.error: Exception | None = None
        # A profiler watches the thread that turns it on, and a signal's handler runs in the main one.
        signal.signal(signal.SIGUSR1, lambda *_: self._turn_on())
        signal.signal(signal.SIGUSR2, lambda *_: self._turn_off())

    def run(self) -> None:
        try:
            self._await_server()
            self._load()
        except (LoadFailed, OSError) as error:
            self.error = error
        os.kill(os.getpid(), signal.SIGTERM)

    def _await_server(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, Closed), Wire(self._port, timeout_s=5) as wire:
                if wire.ask(b"PING") == b"+PONG\r\n":
                    return
            time.sleep(0.05)
        raise TimeoutError(f"the server does not answer within {START_LIMIT_S} s")

    def _load(self) -> None:
        options = self._options
        prepare(self._port, options.connections)
        requests = dict.fromkeys((*BEFORE[options.workload], options.workload), options.requests)
        runs = load(
            self._binary, self._port, requests, connections=options.connections, depth=options.depth, before=self._begin
        )
        self._signal(signal.SIGUSR2)
        self.found = runs[options.workload]

    def _begin(self, workload: str) -> None:
        if workload == self._options.workload:
            self._signal(signal.SIGUSR1)

    def _turn_on(self) -> None:
        self.cpu_s = -time.thread_time()
        if not self._options.bare:
            self.profile.enable()

    def _turn_off(self) -> None:
        self.profile.disable()
        self.cpu_s += time.thread_time()

    def _signal(self, number: signal.Signals) -> None:
        os.kill(os.getpid(), number)
        time.sleep(SETTLE_S)


def serve(arguments: list[str]) -> int:
    """Be `millstream serve` until it ends; its status."""
    sys.argv = ["millstream", "serve", *arguments]
    try:
        runpy.run_module("millstream", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0


def show(profile: cProfile.Profile, options: argparse.Namespace) -> None:
    """The hottest functions, and the whole profile in a file if one is named."""
    stats = pstats.Stats(profile)
    if options.out is not None:
        stats.dump_stats(options.out)
    stats.strip_dirs().sort_stats(options.sort).print_stats(options.limit)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=BEFORE)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--sort", choices=("tottime", "cumulative", "ncalls"), default="tottime")
    parser.add_argument("--limit", type=int, default=40, help="lines to print")
    parser.add_argument("--out", type=Path, help="a file for the whole profile, to look at with pstats")
    parser.add_argument("--bare", action="store_true", help="the rate and the CPU time, without the profiler")
    ours, serve = _split(sys.argv[1:])
    return parser.parse_args(ours, argparse.Namespace(serve=serve))


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """What is ours, and what is behind `--` for the server."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def main() -> int:
    options = parse_arguments()
    with generator() as binary, tempfile.TemporaryDirectory(prefix="millstream-profile-") as directory:
        port = free_port()
        thread = Load(options, binary, port)
        thread.start()
        arguments = ["--bind", "127.0.0.1", "--port", str(port), "--dir", directory, *log_options(), *options.serve]
        status = serve(arguments)
        thread.join(START_LIMIT_S)
    if thread.error is not None or thread.found is None:
        print(thread.error or f"the server ended with status {status} before it was loaded", file=sys.stderr)
        return 1
    cpu_us = thread.cpu_s / thread.found.requests * 1e6
    how = "" if options.bare else ", with the profiler on"
    print(f"{thread.found.per_second:,.0f} {options.workload} a second, {cpu_us:.2f} us of CPU each{how}")
    if not options.bare:
        show(thread.profile, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
