"""Replies of commands as Lua values, and numbers as the words of a command, both as Redis makes them.

reply            RESP2                      after redis.setresp(3)
int, bytes       number, string             the same
Simple, error    {ok = …}, {err = …}        the same
null             false                      nil
list             table                      table
Pairs            table, flat                {map = {key = value}}
Members          table                      {set = {member = true}}
float            string                     {double = number}
Verbatim         string                     {verbatim_string = {string = …, format = …}}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import hiredis

from millstream.engine.outcome import ByKey, Encoded, Members, NilArray, Pairs, Push, Reply, Scored, Simple, Verbatim
from millstream.engine.text.floats import double_text
from millstream.errors import CommandError

MakeTable = Callable[[Any], Any]  # a Lua table of a list or a dict


def argument_text(number: float) -> bytes:
    """Format a number that a script passes to a command."""
    if number != number:
        return b"-nan" if math.copysign(1.0, number) < 0 else b"nan"
    return double_text(float(number)) if number else b"0"


def unpacked(packed: bytes) -> list[bytes]:
    """Words that were sent as one: their lengths in a line, then all of them."""
    line, _, rest = packed.partition(b"\n")
    words = []
    at = 0
    for size in map(int, line.split()):
        words.append(rest[at : at + size])
        at += size
    return words


def to_lua(reply: Reply, version: int, table: MakeTable) -> Any:
    """Convert a reply to what lupa makes the Lua value of; None is nil."""
    kind = type(reply)
    if kind is bytes or kind is int:
        return reply
    return _CONVERT[kind](reply, version, table)


def _items(items: Iterable[Reply], version: int, table: MakeTable) -> Any:
    return table([to_lua(item, version, table) for item in items])


def _null(reply: Reply, version: int, table: MakeTable) -> Any:
    return None if version == 3 else False


def _encoded(reply: Encoded, version: int, table: MakeTable) -> Any:
    """Decode a reply that was encoded before: entries hold only arrays, text, integers and nulls."""
    reader = hiredis.Reader()
    reader.feed(reply)
    return to_lua(reader.gets(), version, table)


def _map(pairs: list[Reply], version: int, table: MakeTable) -> Any:
    entries = {}
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        entries[to_lua(key, version, table)] = to_lua(value, version, table)
    return table({b"map": table(entries)})


def _pairs(reply: Pairs, version: int, table: MakeTable) -> Any:
    return _map(reply, version, table) if version == 3 else _items(reply, version, table)


def _by_key(reply: ByKey, version: int, table: MakeTable) -> Any:
    return _map(reply, version, table) if version == 3 else _tuples(reply, version, table)


def _scored(reply: Scored, version: int, table: MakeTable) -> Any:
    return _tuples(reply, version, table) if version == 3 else _items(reply, version, table)


def _tuples(reply: list[Reply], version: int, table: MakeTable) -> Any:
    rows = zip(reply[::2], reply[1::2], strict=True)
    return table([_items(row, version, table) for row in rows])


def _members(reply: Members, version: int, table: MakeTable) -> Any:
    if version == 2:
        return _items(reply, version, table)
    return table({b"set": table({to_lua(member, version, table): True for member in reply})})


def _double(reply: float, version: int, table: MakeTable) -> Any:
    return table({b"double": reply}) if version == 3 else double_text(reply)


def _verbatim(reply: Verbatim, version: int, table: MakeTable) -> Any:
    if version == 2:
        return bytes(reply)
    return table({b"verbatim_string": table({b"string": bytes(reply), b"format": b"txt"})})


_CONVERT: Final[dict[type, Callable[[Any, int, MakeTable], Any]]] = {
    type(None): _null,
    NilArray: _null,
    bool: lambda reply, version, table: int(reply),
    float: _double,
    Simple: lambda reply, version, table: table({b"ok": bytes(reply)}),
    CommandError: lambda reply, version, table: table({b"err": reply.wire}),
    Encoded: _encoded,
    Verbatim: _verbatim,
    list: _items,
    Push: _items,
    Pairs: _pairs,
    ByKey: _by_key,
    Scored: _scored,
    Members: _members,
}
