"""The table of all commands: the engine's, and those that need a connection or the server."""

from __future__ import annotations

from millstream.engine import faults
from millstream.engine.commands import TABLE as ENGINE_TABLE
from millstream.engine.table import Command
from millstream.persistence import dump_restore as dumping
from millstream.server.commands import (
    acl,
    admin,
    client,
    client_tracking,
    command,
    config,
    connection,
    info,
    persistence,
    pubsub,
    slowlog,
    transactions,
)
from millstream.server.scripting import commands as scripting

TABLE: dict[bytes, Command] = {
    **ENGINE_TABLE,
    **acl.COMMANDS.commands,
    **admin.COMMANDS.commands,
    **client_tracking.COMMANDS.commands,
    **pubsub.COMMANDS.commands,
    **client.COMMANDS.commands,
    **command.COMMANDS.commands,
    **config.COMMANDS.commands,
    **connection.COMMANDS.commands,
    **dumping.REGISTRY.commands,
    **info.COMMANDS.commands,
    **persistence.COMMANDS.commands,
    **scripting.COMMANDS.commands,
    **slowlog.COMMANDS.commands,
    **transactions.COMMANDS.commands,
}
command.publish(TABLE)

# Most clients shout: a name in capitals is found without lowering it first.
_BY_NAME = TABLE | {name.upper(): row for name, row in TABLE.items()}


# Those that any authenticated connection may run as they are: no subcommands, no settings that forbid them.
PLAIN = {name: row for name, row in _BY_NAME.items() if row.run is not None and not row.subcommands}
del PLAIN[b"debug"], PLAIN[b"DEBUG"]


def lookup(argv: list[bytes]) -> Command:
    """Return the row of a request or of its subcommand; raises the error if there is none. The arity is not checked."""
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
    """Return the row of a request; raises the error if there is none or its number of words is wrong."""
    row = lookup(argv)
    if not row.fits(len(argv)):
        raise faults.wrong_arity(row.name)
    return row
