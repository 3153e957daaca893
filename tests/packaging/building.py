"""Wheels and source packages of this tree, and fresh environments to install them into."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WAIT_S = 2400  # the compiler takes a minute on a quiet machine, and many on a busy one

# Nobody asks for a newer pip, and of all that is installed Python compiles only what is imported.
QUICKLY = ("--disable-pip-version-check", "--no-compile")


def environment(place: Path, *packages: str) -> Path:
    """The Python of a new virtual environment with these packages; pip itself stays outside, which saves seconds."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True, timeout=WAIT_S)
    python = place / "bin" / "python"
    if packages:
        words = ("-m", "pip", "--python", str(python), "install", "-q", *QUICKLY, *packages)
        _run(sys.executable, *words, cwd=place)
    return python


def build(place: Path, *targets: str, is_compiled: bool = False, source: Path = ROOT) -> dict[str, Path]:
    """Build these targets (wheel, sdist) of a tree; the file of each."""
    tools = ["hatchling", *(["mypy>=1.15", "setuptools>=75"] if is_compiled else [])]
    python = environment(place / "tools", *tools)
    words = [word for target in targets for word in ("-t", target)]
    dist = place / "dist"
    variables = {"MILLSTREAM_COMPILE": "1"} if is_compiled else {}
    _run(str(python), "-m", "hatchling", "build", *words, "-d", str(dist), cwd=source, **variables)
    endings = {"wheel": "*.whl", "sdist": "*.tar.gz"}
    return {target: next(dist.glob(endings[target])) for target in targets}


def run_in(python: Path, *words: str, cwd: Path, **variables: str) -> str:
    """The output of an environment's Python, which sees nothing of this tree."""
    return _run(str(python), *words, cwd=cwd, **variables)


def _run(*words: str, cwd: Path, **variables: str) -> str:
    outside = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "MILLSTREAM_COMPILE", "MILLSTREAM_URL")
    }
    done = subprocess.run(words, cwd=cwd, env=outside | variables, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout
