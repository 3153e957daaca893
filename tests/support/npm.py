"""Packages from npm, each installed once into the cache, and scripts run with them by node."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.support.servers import require
from tools import oracle

INSTALL_S = 180
RUN_S = 60


def run_with(package: str, script: str, *arguments: str) -> str:
    """Run a script that requires a package; its output. It must end well."""
    modules = require(_installed(package), f"the npm package {package}")
    done = subprocess.run(
        ["node", "-e", script, *arguments],
        cwd=modules.parent,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        env={**os.environ, "NODE_PATH": str(modules)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def _installed(package: str) -> Path | None:
    """The directory `node_modules` with the package in it; None where it cannot be had."""
    directory = oracle.cache_directory().parent / "npm"
    modules = directory / "node_modules"
    if (modules / package / "package.json").exists():
        return modules
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        return None
    directory.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--prefix", str(directory), "--no-audit", "--no-fund", "--ignore-scripts", package]
    try:
        subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=INSTALL_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return modules
