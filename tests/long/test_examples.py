"""Tests that make up their examples, with many more of them: `make test` takes a part, so that it ends in minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

TESTS = Path(__file__).parents[1]
MORE = {"MILLSTREAM_EXAMPLES": "400", "MILLSTREAM_PROGRAMS": "300"}
WAIT_S = 1700


def made_up() -> list[str]:
    """The files whose examples hypothesis or a random generator makes up, and whose number the environment sets."""
    words = ("from hypothesis import", "MILLSTREAM_PROGRAMS")
    found = (path for path in sorted(TESTS.rglob("test_*.py")) if path != Path(__file__))
    return [str(path) for path in found if any(word in path.read_text() for word in words)]


@pytest.mark.timeout(WAIT_S + 60)
def test_many_more_examples_hold() -> None:
    files = made_up()
    assert str(TESTS / "model" / "test_engine_machine.py") in files
    words = ["-m", "pytest", "-p", "no:cacheprovider", "--timeout", str(WAIT_S), *files]
    done = subprocess.run(
        [sys.executable, *words],
        env=os.environ | MORE,
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stdout[-5000:]
