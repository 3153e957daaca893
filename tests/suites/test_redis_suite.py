"""Redis's own tests against this server: none fails here that passes on a real Redis of the same release."""

from __future__ import annotations

import os

import pytest

from tests.suites import chosen, fetching, run, tcl
from tests.support import servers

EVERYTHING = os.environ.get("MILLSTREAM_SUITES") == "all"  # else the files that take a few seconds each

pytestmark = [pytest.mark.differential, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def missing() -> frozenset[str]:
    """The commands that only the real server has."""
    servers.require(servers.redis_binary(), "Redis 8.10")
    fetching.required(fetching.redis_suite)
    return run.missing_commands()


UNITS = [
    pytest.param(unit, marks=() if unit in chosen.CORE_UNITS else pytest.mark.long)
    for unit in (chosen.UNITS if EVERYTHING else chosen.QUICK_UNITS)
]


@pytest.mark.parametrize("unit", UNITS)
def test_no_test_fails_here_that_passes_there(unit: str, missing: frozenset[str]) -> None:
    results, failed = run.compare(unit, missing, quickly=not EVERYTHING)
    assert results.passed, results.output[-3000:]
    assert not failed, "\n\n".join(f"{name}:\n{why}" for name, why in failed.items())


def test_what_is_left_out_is_there(missing: frozenset[str]) -> None:
    """A name that matches nothing any more would hide that the test is run after all, or was renamed."""
    suite = fetching.redis_suite()
    for unit, names in (chosen.LEFT_OUT | chosen.SLOW).items():
        text = (suite / "tests" / f"{unit}.tcl").read_text(errors="replace")
        for name in names:
            if not name.startswith("/"):
                assert name in text, (unit, name)


OUTPUT = """Testing unit/x
[ok]: one (3 ms)
\x1b[0;31;49m[err]\x1b[0m: two in tests/unit/x.tcl
Expected 'a' to be equal to 'b'
[ok]: three
[TIMEOUT]: clients state report follows.
sock1 => (IN PROGRESS) four
"""


def test_the_output_of_the_suite_is_understood() -> None:
    results = tcl.parsed(OUTPUT)
    assert results.passed == ["one", "three"]
    assert results.failed == {"two": results.failed["two"], "four": "it did not end"}
    assert results.failed["two"].startswith("Expected 'a'")


def test_tests_with_commands_that_are_not_here_are_found(tmp_path: object) -> None:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "x.tcl").write_text(
        'test {plain one} {\n  r set a {b}\n}\ntest "with $kind" {\n  $rd SORT l\n}\n'
        "test {in a script} {\n  r eval {return redis.call('geoadd', 1)} 0\n}\n"
    )
    found = tcl.foreign_tests(tmp_path, "x", frozenset({"sort", "geoadd"}))
    assert found == {"/^with .*$": "sort", "in a script": "geoadd"}
