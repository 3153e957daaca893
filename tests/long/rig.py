"""What the long proofs share: our server as a process in a directory, its memory over time, and how they end."""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.ours import Process
from tests.support.wire import Wire, pack, parse

MB = 1 << 20
PATIENCE_S = 120.0  # for one answer of a server that has very much to do


class Failed(Exception):
    """The proof has failed; the message says how."""


def check(holds: bool, otherwise: str) -> None:
    """Fail unless something holds; `assert` is for tests, and these are programs."""
    if not holds:
        raise Failed(otherwise)


def conclude(prove: Callable[[], None]) -> None:
    """Run a proof; the end of the process, with 1 if it failed."""
    started_s = time.monotonic()
    try:
        prove()
    except Failed as failure:
        raise SystemExit(f"FAILED: {failure}") from None
    print(f"proved in {time.monotonic() - started_s:.0f} s", flush=True)


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """A directory for a server, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="millstream-long-") as path:
        yield Path(path)


@contextlib.contextmanager
def serving(place: Path, *options: str) -> Iterator[Process]:
    """`millstream serve` on a directory, killed at the end; SIGKILL is what it must be able to take."""
    process = Process("--bind", "127.0.0.1", "--dir", str(place / "data"), *options, directory=place)
    try:
        yield _awaited(process)
    finally:
        process.close()


def _awaited(process: Process) -> Process:
    """Loading a large log takes longer than a test would wait."""
    deadline_s = time.monotonic() + PATIENCE_S
    while "stop " not in process.out:
        check(process.process.poll() is None, f"the server did not start:\n{process.err}")
        check(time.monotonic() < deadline_s, "the server does not come up")
        time.sleep(0.01)
    return process


def connect(process: Process) -> Wire:
    return Wire(process.port, timeout_s=PATIENCE_S)


def ask(wire: Wire, *words: str | bytes | int) -> object:
    """A reply as a value; an error fails the proof."""
    argv = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    reply = wire.ask(*argv)
    check(not reply.startswith(b"-"), f"{b' '.join(argv)[:80]!r} was answered with {reply[:200]!r}")
    return parse(reply)


def batch(commands: Sequence[Sequence[bytes]]) -> bytes:
    """Commands to be sent in one go."""
    return b"".join(map(pack, commands))


def allow_files(count: int) -> None:
    """Let this process, and those it starts, open so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        check(hard == resource.RLIM_INFINITY or hard >= count, f"the system allows {hard} open files, {count} needed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


# Time and memory


def cpu_s(pid: int) -> float:
    """The processor time a process has used: what it takes, whoever else is busy."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    """What a process has in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise Failed(f"process {pid} has no memory: it is gone")


@dataclass
class Samples:
    """The memory of a process, looked at again and again by a thread of its own while this is entered."""

    pid: int
    period_s: float = 0.25
    seconds: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Samples:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        assert self._thread is not None
        self._thread.join()

    def _look(self) -> None:
        while not self._stopped.wait(self.period_s):
            with contextlib.suppress(OSError, Failed):  # it has ended: whoever watches it will notice
                self.sizes.append(rss_bytes(self.pid))
                self.seconds.append(time.monotonic())

    def trend(self, pick: Callable[[Sequence[int]], int], windows: int = 10, skip: float = 0.2) -> Trend:
        """How one figure of each window of time moves, after the beginning in which caches and pools fill."""
        first, last = self.seconds[0], self.seconds[-1]
        start = first + skip * (last - first)
        width = (last - start) / windows
        groups: list[list[int]] = [[] for _ in range(windows)]
        for at, size in zip(self.seconds, self.sizes, strict=True):
            if at >= start:
                groups[min(windows - 1, int((at - start) / width))].append(size)
        points = [(start + width * (at + 0.5), pick(group)) for at, group in enumerate(groups) if group]
        check(len(points) >= 3, "too few samples: run it for longer")
        slope, _ = statistics.linear_regression([at for at, _ in points], [size for _, size in points])
        sizes = tuple(size for _, size in points)
        return Trend(slope, slope * (last - start), statistics.median(sizes), sizes)


@dataclass(frozen=True)
class Trend:
    """A line through samples of memory."""

    slope: float  # bytes a second
    drift: float  # bytes from the first to the last
    level: float  # bytes, the median
    points: tuple[int, ...]  # bytes, window by window

    def __str__(self) -> str:
        per_minute = self.slope * 60 / MB
        share = self.drift / self.level
        points = " ".join(f"{size / MB:.0f}" for size in self.points)
        return f"{self.level / MB:.1f} MB, {per_minute:+.2f} MB a minute, {share:+.1%} over the run ({points})"
