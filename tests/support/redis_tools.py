"""redis-cli and redis-benchmark: from the path, else out of Debian's packages, unpacked once into the cache.

Nothing is installed; the packages' own libraries are named in the environment of the programs. On a desk without
them the tests that want them skip; where CI is set they fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.support.servers import require
from tools import oracle

PACKAGES = ("redis-tools", "liblzf1", "libjemalloc2")
TIMEOUT_S = 120


def run(name: str, *arguments: str, data: bytes = b"", timeout_s: float = TIMEOUT_S) -> str:
    """Run one of the tools; its output. It must end well."""
    binary, environment = tool(name)
    done = subprocess.run(
        [binary, *arguments], input=data, capture_output=True, timeout=timeout_s, env={**os.environ, **environment}
    )
    text = done.stdout.decode(errors="replace")
    assert done.returncode == 0, f"{name} ended with {done.returncode}: {text}{done.stderr.decode(errors='replace')}"
    return text


def tool(name: str) -> tuple[Path, dict[str, str]]:
    """Where a tool is and what it needs in its environment, or the end of the test."""
    found = shutil.which(name)
    if found:
        return Path(found), {}
    root = _unpacked()
    binary = root / "usr" / "bin" / name if root else None
    if binary is not None and not binary.exists():
        binary = None
    libraries = [str(path.parent) for path in root.glob("usr/lib/*/liblzf.so.1")] if root else []
    return require(binary, f"{name} (Debian's redis-tools)"), {"LD_LIBRARY_PATH": os.pathsep.join(libraries)}


@cache
def _unpacked() -> Path | None:
    """The directory with the packages in it; None where there are none to be had."""
    target = oracle.cache_directory().parent / "redis-tools"
    if (target / "usr" / "bin" / "redis-cli").exists():
        return target
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if apt is None or dpkg is None:
        return None
    scratch = target.with_name(f"redis-tools-{os.getpid()}")
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        _quietly([apt, "download", *PACKAGES], scratch)
        for package in scratch.glob("*.deb"):
            _quietly([dpkg, "-x", str(package), str(scratch)], scratch)
            package.unlink()
        scratch.rename(target)
    except (OSError, subprocess.SubprocessError):
        # another process may have been quicker
        return target if (target / "usr" / "bin" / "redis-cli").exists() else None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _quietly(command: list[str], directory: Path) -> None:
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=TIMEOUT_S)
