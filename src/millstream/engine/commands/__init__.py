"""The table of all commands the engine runs, and the one way to run one."""

from __future__ import annotations

from millstream.engine import faults
from millstream.engine.commands.derived import bitfields, bits, ranges, sorting
from millstream.engine.commands.derived import sets as set_algebra
from millstream.engine.commands.derived import sorted_sets as sorted_set_algebra
from millstream.engine.commands.plain import (
    generic,
    hash_extras,
    hashes,
    list_moves,
    list_positions,
    lists,
    scans,
    sets,
    sorted_set_pops,
    sorted_sets,
    string_extras,
    strings,
)
from millstream.engine.commands.streams import append, claim, group, inspect, read, settle
from millstream.engine.keys.keyspace import CommandContext, Keyspace
from millstream.engine.outcome import Outcome
from millstream.engine.table import Command
from millstream.errors import CommandError

TABLE: dict[bytes, Command] = {}
for _module in (
    append,
    bitfields,
    bits,
    claim,
    generic,
    group,
    hash_extras,
    hashes,
    inspect,
    list_moves,
    list_positions,
    lists,
    ranges,
    read,
    scans,
    set_algebra,
    sets,
    settle,
    sorted_set_algebra,
    sorted_set_pops,
    sorted_sets,
    sorting,
    string_extras,
    strings,
):
    TABLE.update(_module.REGISTRY.commands)


def find(argv: list[bytes]) -> Command:
    """Return the row that runs this call, its subcommand resolved and its arity checked, or raise the error."""
    name = argv[0].lower()
    row = TABLE.get(name)
    if row is None:
        raise faults.unknown_command(argv[0], argv[1:])
    if row.subcommands:
        if len(argv) < 2:
            raise faults.wrong_arity(row.name)
        sub = row.subcommands.get(argv[1].lower())
        if sub is None:
            raise faults.unknown_subcommand(row.name, argv[1])
        row = sub
    if not row.fits(len(argv)):
        raise faults.wrong_arity(row.name)
    return row


def execute(
    keyspace: Keyspace,
    db: int,
    argv: list[bytes],
    now_ms: int,
    *,
    may_block: bool = False,
    trusted: bool = False,
    protocol: int = 2,
    keep_log: bool = True,
) -> Outcome:
    """Run one command; an error is a reply too, and has changed nothing but keys that had expired."""
    call = CommandContext(
        keyspace, db, now_ms, may_block=may_block, trusted=trusted, protocol=protocol, keep_log=keep_log
    )
    try:
        row = find(argv)
        if row.run is None:
            raise faults.unknown_command(argv[0], argv[1:])
        return call.outcome(row.run(call, argv))
    except CommandError as error:
        return call.outcome(error)
