"""Runs files of Redis's own test suite against a server that is already there.

    tests/test_helper.tcl --host … --port … --single FILE ──▶ `[ok]: name`, `[err]: name in file` … ──▶ Results

Left out are tests with commands that this server does not have: a test names its commands (`r sort …`), and the real
server says which words are commands. What else is left out is listed in `chosen`, with the reason.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

UNIT_TIMEOUT_S = 170
TEST_TIMEOUT_S = 60  # without progress
# What needs a replica, a cluster, or a gigabyte is not for an external server of one node.
_TAGS = "-needs:repl -cluster -large-memory"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RESULT = re.compile(r"^\[(ok|err|exception)\]: (.*?)(?: in tests/unit\S*)?(?: \(\d+ ms\))?$", re.MULTILINE)
_STUCK = re.compile(r"\(IN PROGRESS\) (.*)$", re.MULTILINE)
_TEST = re.compile(r'^[ \t]*test[ \t]+(?:\{((?:[^{}]|\{[^{}]*\})*)\}|"([^"]*)")[ \t]+\{', re.MULTILINE)
_CALLS = (
    re.compile(r"""(?:(?:\br|\$\w+|\])[ \t]+|['"])([a-zA-Z_]+)"""),
    re.compile(r"\bcommand (?:info|getkeys|getkeysandflags) ([a-zA-Z_]+)"),
)
# What a helper of the suite needs, and subcommands that are not here.
_HELPERS = {
    "attach_to_replication_stream": "sync",
    "conf_le_test": "sync",
    "createComplexDataset": "sort",
    "debug protocol": "debug protocol",
    "'debug', 'protocol'": "debug protocol",
    "'debug','protocol'": "debug protocol",
    "debug stringmatch-len": "debug stringmatch-len",
    "debug digest-value": "debug digest-value",
    "debug_digest_value": "debug digest-value",
    "debug set-allow-access-expired": "debug set-allow-access-expired",
}


@dataclass(slots=True)
class Results:
    """How the tests of one file ended."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # name to what was said
    output: str = ""

    @property
    def total(self) -> int:
        return len(self.passed) + len(self.failed)


def run_unit(suite: Path, unit: str, port: int, skipped: Iterable[str] = ()) -> Results:
    """Run one file (`unit/type/stream`); a test that is stuck counts as failed."""
    command = [
        "tclsh",
        "tests/test_helper.tcl",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--single",
        unit,
        "--clients",
        "1",
        "--durable",
        "--timeout",
        str(TEST_TIMEOUT_S),
        "--ignore-encoding",
        "--ignore-digest",
        "--dont-clean",
        "--dont-pre-clean",
        "--tags",
        _TAGS,
    ]
    for name in skipped:
        command += ["--skiptest", name]
    try:
        done = subprocess.run(command, cwd=suite, capture_output=True, timeout=UNIT_TIMEOUT_S)
        text = (done.stdout + done.stderr).decode(errors="replace")
    except subprocess.TimeoutExpired as error:
        text = (error.stdout or b"").decode(errors="replace") + "\n[exception]: the file was not done in time\n"
    return parsed(text)


def parsed(text: str) -> Results:
    """The results that the runner has printed."""
    text = _COLOUR.sub("", text)
    results = Results(output=text)
    for match in _RESULT.finditer(text):
        kind, name = match.groups()
        if kind == "ok":
            results.passed.append(name)
        else:
            results.failed[name] = text[match.end() : match.end() + 600].strip()
    for name in _STUCK.findall(text):
        results.failed[name] = "it did not end"
    return results


def foreign_tests(suite: Path, unit: str, missing: frozenset[str]) -> dict[str, str]:
    """The tests of a file that use one of the missing commands, as patterns for the runner, and which command."""
    text = (suite / "tests" / f"{unit}.tcl").read_text(encoding="utf-8", errors="replace")
    found = {}
    for name, body in _tests(text):
        used = {word.lower() for call in _CALLS for word in call.findall(body)} & missing
        used |= {command for helper, command in _HELPERS.items() if helper in body}
        if used:
            found[_pattern(name)] = min(used)
    return found


def _tests(text: str) -> Iterator[tuple[str, str]]:
    """Each test's name and body; the body ends where its braces do."""
    for match in _TEST.finditer(text):
        depth, at = 1, match.end()
        while depth and at < len(text):
            if text[at] == "\\":
                at += 1
            elif text[at] in "{}":
                depth += 1 if text[at] == "{" else -1
            at += 1
        yield match[1] if match[1] is not None else match[2], text[match.end() : at]


def _pattern(name: str) -> str:
    """A name for --skiptest: as it is, or a pattern if parts of it are filled in when it runs."""
    if "$" not in name and "[" not in name:
        return name
    parts = re.split(r"\$\w+(?:\([^)]*\))?|\[[^\]]*\]", name)
    return "/^" + ".*".join(re.sub(r"([.*+?^${}()|\[\]\\/])", r"\\\1", part) for part in parts) + "$"
