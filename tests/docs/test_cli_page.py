"""The page of the command line names every command, and the options that it shows exist; links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from millstream.cli.main import COMMANDS, load

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def commands() -> dict[str, set[str]]:
    """All commands with their options."""
    found: dict[str, Any] = {}
    for name in COMMANDS:
        command = load(name)
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {word}": each for word, each in inner.items()}
    return {name: {word for each in command.params for word in each.opts} for name, command in found.items()}


def test_every_command_is_on_the_page() -> None:
    assert [name for name in commands() if f"`millstream {name}" not in PAGE] == []


def test_every_option_on_the_page_is_one() -> None:
    known = {option for options in commands().values() for option in options} | {
        "--NAME",
        "--version",
        "--help",
        "--install-completion",
        "--show-completion",
    }
    assert set(re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", PAGE)) - known == set()


def test_links_of_pages_lead_somewhere() -> None:
    root = Path(__file__).parents[2]
    for page in (root / "README.md", root / "CHANGELOG.md", *(root / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([\w./-]+\.md)[^)]*\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
