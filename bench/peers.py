"""The servers of a measurement: ours, Valkey and Redis 8.10, told the same about their log.

Ours is started through a script of one line, so that whatever starts a real server starts ours too.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec
from pathlib import Path

import millstream
from tests.support.servers import RealServer, redis_binary, running, valkey_binary

OURS, VALKEY, REDIS = "ours", "Valkey", "Redis 8.10"


class Missing(Exception):
    """A server that is needed is not at hand; the message says how to get it."""


@dataclass(frozen=True)
class Binaries:
    """What to start each server with."""

    ours: Path
    valkey: Path
    redis: Path

    def of(self, name: str) -> Path:
        return {OURS: self.ours, VALKEY: self.valkey, REDIS: self.redis}[name]


@contextlib.contextmanager
def binaries(stand_in: Path | None = None) -> Iterator[Binaries]:
    """All three; `stand_in` is started in place of ours."""
    valkey, redis = valkey_binary(), redis_binary()
    if valkey is None or redis is None:
        raise Missing("a real Redis 8.10 and a Valkey are needed: `make bench-server` sets them up")
    with tempfile.TemporaryDirectory(prefix="millstream-peers-") as directory:
        yield Binaries(stand_in or our_script(Path(directory)), valkey, redis)


def our_script(directory: Path) -> Path:
    """A script that becomes our server, with the Python and the package that are used here."""
    script = directory / "millstream"
    places = os.pathsep.join([str(Path(millstream.__file__).parents[1]), *filter(None, sys.path)])
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


def is_compiled() -> bool:
    """Whether the engine that runs here is the compiled one."""
    specs = [find_spec(f"millstream.engine.{name}") for name in ("stream", "entries", "pending")]
    return any(spec is not None and isinstance(spec.loader, ExtensionFileLoader) for spec in specs)


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
