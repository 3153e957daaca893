"""A real Redis 7: from the path, else out of Debian's packages, unpacked once into the cache.

    ~/.cache/millstream/redis-7/redis-server     a script that names the libraries beside it and starts
    ~/.cache/millstream/redis-7/root/usr/…       what was in the packages

Nothing is installed, and any user can do it where apt knows its packages; only the superuser can ask for them anew.
On a desk that cannot have one the tests that want it skip and say why; where CI is set they fail.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.support import servers
from tools import oracle

MAJOR = 7
PACKAGES = ("redis-server", "redis-tools")
TIMEOUT_S = 180
STARTER = """#!/bin/sh
root=$(dirname "$0")/root
LD_LIBRARY_PATH=$(echo "$root"/usr/lib/*-linux-gnu*):$(echo "$root"/lib/*-linux-gnu*) \\
exec "$root/usr/bin/redis-server" "$@"
"""


class Missing(Exception):
    """There is none to be had; the message says why."""


def require() -> Path:
    """The server's binary, or the end of the test."""
    found, reason = _found()
    return servers.require(found, f"Redis {MAJOR} ({reason})")


@cache
def _found() -> tuple[Path | None, str]:
    """The binary, or why there is none; looked for once."""
    try:
        return _on_path() or _kept() or _unpack(), ""
    except Missing as missing:
        return None, str(missing)
    except subprocess.CalledProcessError as error:
        words = " ".join(map(str, error.cmd[:2]))
        return None, f"{words}: {error.stderr.decode(errors='replace').strip()[-200:]}"
    except (OSError, subprocess.SubprocessError) as error:
        return None, str(error)


def _on_path() -> Path | None:
    found = shutil.which("redis-server")
    return Path(found) if found and _major(Path(found)) == MAJOR else None


def _major(binary: Path) -> int | None:
    """The first number of a server's version; None if it does not start."""
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=TIMEOUT_S)
    except OSError:
        return None
    version = re.search(r"v=(\d+)\.", said.stdout)
    return int(version[1]) if version else None


def _directory() -> Path:
    return oracle.cache_directory().parent / f"redis-{MAJOR}"


def _kept() -> Path | None:
    binary = _directory() / "redis-server"
    return binary if binary.exists() and _major(binary) == MAJOR else None


def _unpack() -> Path:
    """Get the packages and take them apart beside the place they are kept in."""
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if apt is None or dpkg is None:
        raise Missing("it is not on the path, and this is no Debian to get it from")
    target = _directory()
    scratch = target.with_name(f"redis-{MAJOR}-{os.getpid()}")
    shutil.rmtree(scratch, ignore_errors=True)
    (scratch / "root").mkdir(parents=True)
    try:
        _download(apt, scratch)
        for package in sorted(scratch.glob("*.deb")):
            _run([dpkg, "-x", package, scratch / "root"], scratch)
            package.unlink()
        starter = scratch / "redis-server"
        starter.write_text(STARTER)
        starter.chmod(0o755)
        if _major(starter) != MAJOR:
            raise Missing(f"the packages hold version {_major(starter)}")
        if not _kept():  # another process may have been quicker
            shutil.rmtree(target, ignore_errors=True)
            scratch.rename(target)
        return target / "redis-server"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _download(apt: str, directory: Path) -> None:
    """The packages and the libraries they name; asks for the lists first where that is needed and allowed."""
    try:
        _run([apt, "download", *PACKAGES], directory)
    except subprocess.CalledProcessError:
        if os.geteuid() != 0:
            raise
        _run([apt, "update"], directory)
        _run([apt, "download", *PACKAGES], directory)
    said = _run(["apt-cache", "depends", "--important", *PACKAGES], directory)
    libraries = sorted(set(re.findall(r"^\s*Depends: (lib[\w.+-]+)$", said, re.MULTILINE)) - {"libc6"})
    _run([apt, "download", *libraries], directory)


def _run(command: list[str | Path], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=TIMEOUT_S)
    return done.stdout.decode(errors="replace")
