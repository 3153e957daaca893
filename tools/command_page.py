#!/usr/bin/env python3
"""Writes docs/commands.md from the command table; a test holds the page against the table.

python tools/command_page.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from millstream.engine.table import Command
from millstream.server.commands import TABLE

PAGE = Path(__file__).parent.parent / "docs" / "commands.md"
TITLES = {
    "stream": "Streams",
    "string": "Strings",
    "bitmap": "Bits",
    "generic": "Keys",
    "hash": "Hashes",
    "list": "Lists",
    "set": "Sets",
    "sorted_set": "Sorted sets",
    "transactions": "Transactions",
    "pubsub": "Pub/sub",
    "connection": "Connections",
    "server": "Server",
    "scripting": "Scripts",
    "cluster": "Cluster",
}
HEAD = """# Commands

What the broker answers, made from its command table by `tools/command_page.py`. Replies, error texts and side effects
are those of Redis 8.10. *Since* is the Redis release that brought a command.
"""


def rows(table: dict[bytes, Command]) -> list[Command]:
    """All commands, subcommands in place of their containers."""
    found: list[Command] = []
    for _, row in sorted(table.items()):
        found += [sub for _, sub in sorted(row.subcommands.items())] or [row]
    return found


def page() -> str:
    """The whole page."""
    groups: dict[str, list[Command]] = {}
    for row in rows(TABLE):
        groups.setdefault(row.group, []).append(row)
    parts = [HEAD]
    for group in [*TITLES, *sorted(groups.keys() - TITLES.keys())]:
        if group not in groups:
            continue
        parts.append(f"## {TITLES.get(group, group.capitalize())}\n")
        parts.append("| command | what it does | since |\n|---|---|---|")
        for row in groups[group]:
            syntax = row.syntax.replace("|", "\\|")
            parts.append(f"| `{syntax}` | {row.summary} | {row.since} |")
        parts.append("")
    return "\n".join(parts)


def main() -> int:
    if "--check" in sys.argv:
        return 0 if PAGE.read_text() == page() else 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
