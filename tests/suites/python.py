"""Runs redis-py's own tests against a server that is already there, with the interpreter that was made for them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

TIMEOUT_S = 280
_KINDS = (
    "not onlycluster and not redismod and not ssl and not replica and not cp_integration and not multidb_integration"
)
_RESULT = re.compile(r"^(PASSED|FAILED|ERROR) (tests/\S+?::.*?)(?: - .*)?$", re.MULTILINE)


def run_files(suite: Path, python: Path, port: int, files: tuple[str, ...], chosen: str = "") -> dict[str, str]:
    """Run these files, of their tests those that a `-k` expression chooses; each test's name to how it ended."""
    command = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "-rA",
        "--tb=line",
        "-p",
        "no:cacheprovider",
        "--timeout",
        "20",
        "--redis-url",
        f"redis://127.0.0.1:{port}/9",
        "-m",
        _KINDS,
        *(["-k", chosen] if chosen else []),
        *files,
    ]
    done = subprocess.run(command, cwd=suite, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S)
    found = {name: kind for kind, name in _RESULT.findall(done.stdout)}
    if not found:
        raise RuntimeError(f"redis-py's tests did not run:\n{(done.stdout + done.stderr)[-3000:]}")
    return found
