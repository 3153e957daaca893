"""The small commands: version, check, and how wrong use ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import millstream
from millstream.cli.main import main
from tests.support.wire import pack


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_version_says_what_this_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "version")
    assert code == 0
    assert out.startswith(f"millstream {millstream.__version__} (speaks as Redis 8.10.0)\n")
    code, out, _ = run(capsys, "version", "--json")
    assert code == 0
    assert json.loads(out)["redis_version"] == "8.10.0"


def test_wrong_use_is_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "nope")[0] == 2
    assert run(capsys, "version", "--nope")[0] == 2
    assert run(capsys, "check")[0] == 2


@pytest.mark.parametrize("words", [["--help"], ["serve", "--help"], ["check", "--help"], []])
def test_help_is_there(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    code, out, err = run(capsys, *words)
    assert "Usage: millstream" in out + err
    assert code == (0 if words else 2)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log file whose second command is damaged."""
    path = tmp_path / "appendonly.aof"
    path.write_bytes(pack([b"SET", b"a", b"1"]) + b"oops\r\n" + pack([b"SET", b"b", b"2"]))
    return path


def test_a_damaged_log_is_found_and_cut_behind_its_last_whole_command(
    capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    whole = len(pack([b"SET", b"a", b"1"]))
    code, out, _ = run(capsys, "check", str(log))
    assert code == 3
    assert f"damaged at offset {whole}" in out
    code, out, _ = run(capsys, "check", "--json", str(log))
    assert code == 3
    assert json.loads(out)["damage"]["at"] == whole
    code, out, _ = run(capsys, "check", str(log), "--fix", "--yes")
    assert code == 0
    assert log.stat().st_size == whole
    code, out, _ = run(capsys, "check", "--json", str(log))
    assert code == 0
    assert json.loads(out)["commands"] == 1


def test_a_file_that_is_not_there_is_no_damage(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "check", "/no/such.aof")
    assert code == 2
    assert err == "millstream: there is no file '/no/such.aof'\n"
