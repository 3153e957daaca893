"""What several command modules need: HELP texts, checks of names."""

from __future__ import annotations

from millstream.engine.outcome import Reply, Simple
from millstream.errors import CommandError
from millstream.server.core.call import ServerCall, ServerRegistry


def add_help(registry: ServerRegistry, container: str, *, since: str = "5.0.0", group: str | None = None) -> None:
    """Register `container HELP`, which lists the other subcommands by their syntax and summary."""

    @registry.serves(f"{container}|help", 2, "loading stale", since=since, group=group, summary="Print this help.")
    def show_help(call: ServerCall, argv: list[bytes]) -> Reply:
        """HELP"""
        title = f"{container.upper()} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
        lines = [title]
        for sub, row in registry.commands[container.encode()].subcommands.items():
            if sub != b"help":
                lines += [row.syntax.removeprefix(f"{container.upper()} "), f"    {row.summary}"]
        return [Simple(line.encode()) for line in (*lines, "HELP", "    Print this help.")]


def is_plain(name: bytes) -> bool:
    """Whether a name has no blanks and only printable ASCII: it will stand in CLIENT LIST."""
    return all(33 <= byte <= 126 for byte in name)


def bad_name(what: bytes) -> CommandError:
    return CommandError(b"ERR " + what + b" cannot contain spaces, newlines or special characters.")
