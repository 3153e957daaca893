"""Tests that make up their examples, with more of them than in `make test`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

TESTS = Path(__file__).parents[1]
MORE = {"MILLSTREAM_EXAMPLES": "200", "MILLSTREAM_PROGRAMS": "100"}
WAIT_S = 1700


def files_with(word: str) -> list[str]:
    """The files of tests that say this."""
    found = (path for path in sorted(TESTS.rglob("test_*.py")) if path != Path(__file__))
    return [str(path) for path in found if word in path.read_text()]


@pytest.mark.timeout(WAIT_S + 60)
@pytest.mark.parametrize(
    ("word", "mark"), [("from hypothesis import", "hypothesis and not long"), ("MILLSTREAM_PROGRAMS", "not long")]
)
def test_many_more_examples_hold(word: str, mark: str) -> None:
    files = files_with(word)
    assert files
    words = ["-m", "pytest", "-m", mark, "-p", "no:cacheprovider", "--timeout", str(WAIT_S), *files]
    done = subprocess.run(
        [sys.executable, *words],
        env=os.environ | MORE,
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stdout[-5000:]
