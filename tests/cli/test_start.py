"""The program starts fast: its help and its version import next to nothing."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "millstream" / "cli"
HEAVY = {"redis", "rich", "asyncio", "hiredis", "lupa", "prometheus_client", "pyspark", "millstream.server"}
LOADED = """
import sys
from millstream.cli.main import main

main(sys.argv[1:])
print("loaded", *sys.modules)
"""


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["nope"]])
def test_help_and_version_load_nothing_heavy(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", LOADED, *words], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rpartition("loaded ")[2].split())
    assert HEAVY & loaded == set()


def test_only_one_module_of_the_cli_prints() -> None:
    """What prints is in `output`, where everything is escaped; `top` and progress bars draw on terminals."""
    printing = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.stdout.write", "typer.echo")
    }
    assert printing == {"output.py"}


@pytest.mark.parametrize(
    ("shell", "environment"),
    [
        ("bash", {"COMP_WORDS": "millstream pe", "COMP_CWORD": "1"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "millstream pe"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "millstream pe", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_shells_complete_commands(shell: str, environment: dict[str, str]) -> None:
    known = os.environ | environment | {"_MILLSTREAM_COMPLETE": f"complete_{shell}"}
    program = "import sys; from millstream.cli.main import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program], env=known, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "pending" in done.stdout
    assert "streams" not in done.stdout
