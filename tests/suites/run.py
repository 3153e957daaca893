"""Run files of Redis's suite against this server and, for what fails, against a real one.

python -m tests.suites.run [unit/type/stream ...]
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.suites import chosen, fetching, tcl
from tests.support import servers
from tests.support.ours import environment
from tests.support.wire import Closed, Wire


@contextlib.contextmanager
def ours() -> Iterator[int]:
    """The port of a server of ours in a process of its own, in a directory that goes with it."""
    with tempfile.TemporaryDirectory(prefix="millstream-suite-") as directory:
        port = servers.free_port()
        command = [
            sys.executable,
            "-m",
            "millstream",
            "serve",
            "--bind",
            "127.0.0.1",
            "--port",
            str(port),
            "--dir",
            directory,
            "--save",
            "",
            "--appendonly",
            "no",
            "--enable-debug-command",
            "yes",
        ]
        with open(Path(directory) / "log", "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory, env=environment())
        try:
            _await(process, port, Path(directory) / "log")
            yield port
        finally:
            process.kill()
            process.wait(60)


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + servers.START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, Closed), Wire(port, timeout_s=2) as wire:
            if wire.ask(b"PING") == b"+PONG\r\n":
                return
        time.sleep(0.05)
    raise RuntimeError(f"the server does not start:\n{log.read_text(errors='replace')[-2000:]}")


def missing_commands() -> frozenset[str]:
    """The commands of the real server that this one does not have."""
    from millstream.server.commands import TABLE

    binary = servers.redis_binary()
    assert binary is not None
    with servers.running(binary) as real, real.connect() as wire:
        words = wire.ask(b"COMMAND", b"LIST").split(b"\r\n")
    real_names = {word.decode() for word in words if word[:1].isalpha()}
    return frozenset(real_names - {name.decode() for name in TABLE})


def skipped(unit: str, missing: frozenset[str], *, quickly: bool = False) -> list[str]:
    """What is left out of a file."""
    foreign = tcl.foreign_tests(fetching.redis_suite(), unit, missing)
    return [*foreign, *chosen.LEFT_OUT.get(unit, ()), *(chosen.SLOW.get(unit, ()) if quickly else ())]


def compare(unit: str, missing: frozenset[str], *, quickly: bool = False) -> tuple[tcl.Results, dict[str, str]]:
    """Run a file here, and on a real server too if something fails; the results, and what fails only here."""
    suite, left_out = fetching.redis_suite(), skipped(unit, missing, quickly=quickly)
    with ours() as port:
        results = tcl.run_unit(suite, unit, port, left_out)
    if not results.failed:
        return results, {}
    binary = servers.redis_binary()
    assert binary is not None
    with servers.running(binary) as real:
        wanted = tcl.run_unit(suite, unit, real.port, left_out)
    passed = set(wanted.passed)
    return results, {name: why for name, why in results.failed.items() if name in passed or name not in wanted.failed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("units", nargs="*", default=chosen.UNITS)
    parser.add_argument("--quick", action="store_true", help="without the tests that take seconds")
    options = parser.parse_args()
    missing, failures = missing_commands(), 0
    for unit in options.units:
        started_s = time.monotonic()
        results, failed = compare(unit, missing, quickly=options.quick)
        failures += len(failed)
        taken_s = time.monotonic() - started_s
        left = len(skipped(unit, missing, quickly=options.quick))
        print(f"{unit}: {len(results.passed)} passed, {len(failed)} fail only here, {left} left out, {taken_s:.1f} s")
        for name, why in failed.items():
            print(f"  {name}\n    {why[:160]!r}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
