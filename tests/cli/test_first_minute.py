"""What somebody sees who tries the README's first lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_code_blocks import ROOT, blocks_of

BANNER = "worker starts: stream orders, group billing, server memory:// (in this process only: nothing is kept), "


def run(cwd: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | environment
    return subprocess.run([sys.executable, *words], cwd=cwd, env=known, text=True, capture_output=True, timeout=120)


def charged(text: str) -> list[str]:
    """The numbers that were charged; two threads that print may mix their lines."""
    assert text.count("charged") == 2
    return sorted(re.findall(r"\d", text))


@pytest.fixture
def ten_lines(tmp_path: Path) -> str:
    """The README's first worker, as a file `app.py`."""
    code = next(block.code for block in blocks_of((ROOT / "README.md").read_text()) if block.language == "python")
    (tmp_path / "app.py").write_text(code)
    return code


def test_the_first_ten_lines_say_what_they_do(tmp_path: Path, ten_lines: str) -> None:
    done = run(tmp_path, "app.py")
    assert done.returncode == 0, done.stderr
    assert charged(done.stdout) == ["2", "3"]
    assert done.stderr.startswith(f"millstream: {BANNER}concurrency 8, dead letters in {{orders}}:dlq\n")
    assert "an amount must be positive" in done.stderr


def test_the_command_runs_them_until_nothing_is_left(tmp_path: Path, ten_lines: str) -> None:
    (tmp_path / "app.py").write_text(ten_lines.replace("orders.run(", "0 and orders.run("))
    done = run(tmp_path, "-m", "millstream", "worker", "app:orders", "--until-idle", MILLSTREAM_URL="")
    assert done.returncode == 0, done.stderr
    assert charged(done.stdout) == ["2", "3"]
    assert BANNER in done.stderr


def test_a_banner_hides_the_password_and_obeys_the_programs_logging(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import logging\n"
        "from millstream.worker.banner import announce\n"
        "from millstream.client.urls import hide_password\n"
        "logging.basicConfig(level=logging.WARNING)\n"
        "announce(stream=b'a\\x1b', group=b'g', url=hide_password('redis://u:secret@h'), concurrency=1, dead=b'd')\n"
        "logging.getLogger().setLevel(logging.INFO)\n"
        "announce(stream=b'b\\x1b', group=b'g', url=hide_password('redis://u:secret@h'), concurrency=1, dead=b'd')\n"
    )
    done = run(tmp_path, "app.py")
    assert "INFO:millstream.worker.banner:worker starts: stream b\\x1b, group g, server redis://u:***@h" in done.stderr
    assert "stream a" not in done.stderr


def test_an_error_of_the_program_is_shown_with_its_own_traceback(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import json\nrate = json.loads('{')\n")
    done = run(tmp_path, "-m", "millstream", "worker", "app:orders")
    assert done.returncode == 1
    assert done.stderr.startswith("millstream: importing 'app' failed\n")
    assert "rate = json.loads('{')" in done.stderr
    assert "importlib" not in done.stderr
