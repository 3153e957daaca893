"""The load generator `load.c` from Python: built once, run on a stream of its own, its report read.

    with generator() as binary:
        prepare(port, connections)
        runs = load(binary, port, {"xadd": 1000, "xreadgroup": 1000}, connections=50, depth=16)
        runs["xadd"].per_second

The group and its consumers are made by `prepare`, which empties the stream: every run starts from nothing.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.wire import Wire, pack

SOURCE = Path(__file__).with_name("load.c")
KEY, GROUP = b"s", b"g"
LIMIT_S = 120


class NoCompiler(Exception):
    """There is nothing to build the load generator with."""


class LoadFailed(Exception):
    """A reply was wrong, or the run took too long; the message says which."""


@dataclass(frozen=True)
class Run:
    """What the generator found for one workload."""

    workload: str
    requests: int
    seconds: float
    per_second: float
    p50_us: float
    p99_us: float
    max_us: float


@contextlib.contextmanager
def generator() -> Iterator[Path]:
    """The generator, built in a directory that is gone afterwards."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompiler("the load generator is C: no cc, gcc or clang was found, please install one")
    with tempfile.TemporaryDirectory(prefix="millstream-load-") as directory:
        binary = Path(directory) / "load"
        built = subprocess.run([compiler, "-O2", "-o", binary, SOURCE], capture_output=True, text=True, timeout=120)
        if built.returncode:
            raise NoCompiler(f"{compiler} cannot build {SOURCE.name}:\n{built.stderr}")
        yield binary


def prepare(port: int, consumers: int) -> None:
    """An empty stream with a group and a consumer for each connection."""
    with Wire(port) as wire:
        wire.ask(b"DEL", KEY)
        named = [[b"XGROUP", b"CREATECONSUMER", KEY, GROUP, b"c%d" % index] for index in range(consumers)]
        created = wire.exchange(b"".join(map(pack, [[b"XGROUP", b"CREATE", KEY, GROUP, b"0", b"MKSTREAM"], *named])))
    if created != b"+OK\r\n" + b":1\r\n" * consumers:
        raise LoadFailed(f"the stream cannot be made: {created[:200]!r}")


def load(
    binary: Path,
    port: int,
    requests: Mapping[str, int],
    *,
    connections: int,
    depth: int,
    limit_s: int = LIMIT_S,
    before: Callable[[str], None] = lambda workload: None,
) -> dict[str, Run]:
    """Run these workloads one after the other, each with so many requests; `before` is called ahead of each."""
    fixed = ["-w", "-p", str(port), "-c", str(connections), "-d", str(depth), "-t", str(limit_s)]
    fixed += ["-k", KEY.decode(), "-g", GROUP.decode()]
    words = [f"{name}={count}" for name, count in requests.items()]
    with subprocess.Popen(
        [binary, *fixed, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as process:
        try:
            return {name: _step(process, name, before) for name in requests}
        finally:
            process.kill()  # a run that failed may have workloads left


def _step(process: subprocess.Popen[bytes], name: str, before: Callable[[str], None]) -> Run:
    before(name)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already, and says why
        process.stdin.write(b"\n")
    line = process.stdout.readline()  # the generator keeps its own time limit
    if not line:
        raise LoadFailed(process.stderr.read().decode(errors="replace").strip())
    return Run(**json.loads(line))
