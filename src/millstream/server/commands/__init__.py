"""The table of all commands: the engine's, and those that need a connection or the server."""

from __future__ import annotations

from millstream.engine import faults
from millstream.engine.commands import TABLE as ENGINE_TABLE
from millstream.engine.table import Command
from millstream.server.commands import (
    admin,
    channels,
    client,
    command,
    configuration,
    connection,
    information,
    scripting,
    transactions,
)

TABLE: dict[bytes, Command] = {
    **ENGINE_TABLE,
    **admin.COMMANDS.commands,
    **channels.COMMANDS.commands,
    **client.COMMANDS.commands,
    **command.COMMANDS.commands,
    **configuration.COMMANDS.commands,
    **connection.COMMANDS.commands,
    **information.COMMANDS.commands,
    **scripting.COMMANDS.commands,
    **transactions.COMMANDS.commands,
}
command.publish(TABLE)

# Most clients shout: a name in capitals is found without lowering it first.
_BY_NAME = TABLE | {name.upper(): row for name, row in TABLE.items()}


def lookup(argv: list[bytes]) -> Command:
    """The row of a request, its subcommand resolved, or the error; the arity is not looked at."""
    row = _BY_NAME.get(argv[0]) or TABLE.get(argv[0].lower())
    if row is None:
        raise faults.unknown_command(argv[0], argv[1:])
    if not row.subcommands or (len(argv) == 1 and row.run is not None):
        return row
    if len(argv) < 2:
        raise faults.wrong_arity(row.name)
    sub = row.subcommands.get(argv[1].lower())
    if sub is None:
        raise faults.unknown_subcommand(row.name, argv[1])
    return sub


def find(argv: list[bytes]) -> Command:
    """The row of a request whose number of words is right, or the error."""
    row = lookup(argv)
    if not row.fits(len(argv)):
        raise faults.wrong_arity(row.name)
    return row
