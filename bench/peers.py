"""The servers of a measurement: ours in its forms, Valkey and Redis 8.10, told the same about their log.

Ours is started through a script of one line, so that whatever starts a real server starts ours too. Its compiled form
is built where there is none: a copy of the package in a directory that is gone afterwards.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import millstream
from tests.support.servers import RealServer, redis_binary, running, valkey_binary

OURS, VALKEY, REDIS = "ours", "Valkey", "Redis 8.10"
PLAIN, COMPILED = "plain", "compiled"  # forms of ours
BUILD_LIMIT_S = 600
ROOT = Path(__file__).parents[1]


class Missing(Exception):
    """A server that is needed is not at hand; the message says how to get it."""


@dataclass(frozen=True)
class Binaries:
    """What to start each server with."""

    ours: dict[str, Path]  # by form
    valkey: Path
    redis: Path

    def of(self, name: str) -> Path:
        """What to start for a form of ours, or for a peer."""
        return {**self.ours, VALKEY: self.valkey, REDIS: self.redis}[name]


@contextlib.contextmanager
def binaries(forms: tuple[str, ...] = (PLAIN,), built: Path | None = None) -> Iterator[Binaries]:
    """All of them; the compiled form of ours is found in the directory `built`, or is built."""
    valkey, redis = valkey_binary(), redis_binary()
    if valkey is None or redis is None:
        raise Missing("a real Redis 8.10 and a Valkey are needed: `make bench-server` sets them up")
    with tempfile.TemporaryDirectory(prefix="millstream-peers-") as directory:
        place = Path(directory)
        ours = {form: our_script(place, form, _package(form, place, built)) for form in forms}
        yield Binaries(ours, valkey, redis)


def _package(form: str, place: Path, built: Path | None) -> Path:
    """Where the package of a form is to be imported from."""
    if form == PLAIN:
        return Path(millstream.__file__).parents[1]
    if built is None:
        built = place / "built"
        command = [sys.executable, str(ROOT / "hatch_build.py"), str(built)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_LIMIT_S)
        if done.returncode:
            raise Missing(f"the compiled form cannot be built (mypy and setuptools are needed):\n{done.stderr[-2000:]}")
    if not any(built.glob("millstream/engine/stream.*.so")):
        raise Missing(f"there is no compiled package in {built}")
    return built.resolve()  # the server is started in a directory of its own


def our_script(directory: Path, form: str, package: Path) -> Path:
    """A script that becomes our server, with the Python that is used here."""
    script = directory / f"millstream-{form}"
    places = os.pathsep.join([str(package), *filter(None, sys.path)])
    python = f"PYTHONPATH={shlex.quote(places)} exec {shlex.quote(sys.executable)}"
    script.write_text(f'#!/bin/sh\n{python} -m millstream serve "$@"\n')
    script.chmod(0o755)
    return script


def log_options(appendonly: str = "yes", appendfsync: str = "everysec") -> tuple[str, ...]:
    """What all servers are told. No rewriting: it would hit one of them in the middle of a round."""
    return "--appendonly", appendonly, "--appendfsync", appendfsync, "--auto-aof-rewrite-percentage", "0"


def log_size(directory: Path) -> int:
    """Bytes of the log that a server keeps in its directory."""
    return sum(path.stat().st_size for path in directory.rglob("*.aof"))


@contextlib.contextmanager
def serving(found: Binaries, options: tuple[str, ...], *names: str) -> Iterator[dict[str, RealServer]]:
    """These servers, running, by name."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(running(found.of(name), *options)) for name in names}


def versions(servers: dict[str, RealServer]) -> str:
    """What each server says it is."""
    found = []
    for name, server in servers.items():
        with server.connect() as wire:
            lines = wire.ask(b"INFO", b"server").decode(errors="replace").split("\r\n")
        told = dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
        keys = ("millstream_version", "valkey_version", "redis_version")
        version = next((told[key] for key in keys if key in told), "of unknown version")
        found.append(f"{name.split()[0]} {version}")
    return ", ".join(found)
