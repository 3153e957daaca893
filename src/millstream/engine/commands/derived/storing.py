"""Storing a computed value under a destination key, for SINTERSTORE, ZUNIONSTORE, BITOP, SORT and their like."""

from __future__ import annotations

from collections.abc import Sized

from millstream.engine.commands.plain.common import changed, delete
from millstream.engine.keys.keyspace import CommandContext


def store(call: CommandContext, key: bytes, value: Sized, kind: str, event: bytes, argv: list[bytes]) -> int:
    """Set the destination to the value, or remove it if the value is empty. Returns the size of the value.

    The log gets the command itself: it reads keys that the log has brought to the same state.
    """
    if len(value):
        call.overwrite(key, value)
        changed(call, key, kind, event, argv)
    elif call.lookup(key) is not None:
        delete(call, key, tuple(argv))
    return len(value)
