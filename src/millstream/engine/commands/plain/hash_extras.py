"""HINCRBYFLOAT, and HRANDFIELD: random fields of a hash."""

from __future__ import annotations

from itertools import islice

from millstream.engine import faults
from millstream.engine.commands.plain.common import changed
from millstream.engine.commands.plain.draws import draw, parse_draw
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.keys.values import Hash
from millstream.engine.outcome import Reply, Scored
from millstream.engine.table import Registry
from millstream.engine.text.floats import add_extended, extended_text, parse_extended

REGISTRY = Registry("hash")


@REGISTRY.command(
    "hincrbyfloat",
    4,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW access update",
    since="2.6.0",
    summary="Adds a fraction to the number in a field; a missing field counts as 0.",
)
def hincrbyfloat(call: CommandContext, argv: list[bytes]) -> Reply:
    """HINCRBYFLOAT key field increment"""
    key, field = argv[1], argv[2]
    increment = parse_extended(argv[3])
    if increment is None:
        raise fault(faults.NOT_A_FLOAT)
    if isinstance(increment, float):
        raise fault(faults.INCREMENT_NOT_FINITE)
    found = call.typed(key, Hash)
    base = parse_extended((found or Hash()).get(field, b"0"))
    if base is None:
        raise fault(faults.HASH_NOT_FLOAT)
    total = add_extended(base, increment)
    if total is None:
        raise fault(faults.NOT_FINITE)
    value = extended_text(total)
    if found is None:
        found = Hash()
        call.add(key, found)
    found[field] = value
    # The sum can differ on a machine with other floats, so the log holds the result.
    changed(call, key, "h", b"hincrbyfloat", [b"HSET", key, field, value])
    return value


@REGISTRY.command(
    "hrandfield",
    -2,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="6.2.0",
    summary="Answers random fields of a hash: distinct ones for a positive count, any for a negative one.",
)
def hrandfield(call: CommandContext, argv: list[bytes]) -> Reply:
    """HRANDFIELD key [count [WITHVALUES]]"""
    if len(argv) == 2:
        found = call.typed_to_read(argv[1], Hash)
        return None if found is None else next(islice(found, call.keyspace.pick(len(found)), None))
    wanted = parse_draw(argv, b"WITHVALUES")
    found = call.typed_to_read(argv[1], Hash)
    if found is None:
        return []
    fields = draw(call, list(found), wanted.count)
    return Scored(word for name in fields for word in (name, found[name])) if wanted.with_values else [*fields]
