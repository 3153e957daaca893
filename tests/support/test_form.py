"""Which form of the package the tests are about: plain Python, or the compiled core where MILLSTREAM_BUILD names one.

Everything else passes in either form, so only this notices when the compiled tests quietly run on the source.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hatch_build import MODULES
from millstream.engine.streams import entries
from tests.support.ours import ROOT, SOURCE, Process, environment

BUILD = os.environ.get("MILLSTREAM_BUILD")
WANTED = Path(BUILD) if BUILD else ROOT / "src"
NAMES = [f"millstream.{package.replace('/', '.')}.{name}" for package, names in MODULES.items() for name in names]
TELL = "import importlib, json, sys; print(json.dumps([importlib.import_module(n).__file__ for n in sys.argv[1:]]))"


def test_this_process_runs_the_form_that_was_asked_for() -> None:
    assert WANTED.samefile(SOURCE)
    _expect_form([str(importlib.import_module(name).__file__) for name in NAMES])


def test_programs_that_tests_start_run_the_same_form() -> None:
    command = [sys.executable, "-c", TELL, *NAMES]
    said = subprocess.run(command, env=environment(), check=True, capture_output=True, text=True, timeout=60).stdout
    _expect_form(json.loads(said))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="this system does not tell what a process has loaded")
def test_a_started_server_has_loaded_what_this_process_has(tmp_path: Path) -> None:
    process = Process("--bind", "127.0.0.1", "--appendonly", "no", directory=tmp_path)
    try:
        process.await_start()
        maps = Path(f"/proc/{process.process.pid}/maps").read_text()
    finally:
        process.close()
    loaded = f"{SOURCE}/" in maps  # source is only read; compiled modules stay mapped
    assert loaded is not entries.__file__.endswith(".py")


def _expect_form(files: list[str]) -> None:
    assert [file for file in files if not Path(file).is_relative_to(SOURCE)] == []
    if BUILD:
        assert [file for file in files if file.endswith(".py")] == []
