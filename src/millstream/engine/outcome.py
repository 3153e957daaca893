"""What a command answers and what it did, as values; nothing here knows a wire.

A reply is one of

    int         integer                     Simple(b"OK")   simple string
    bytes       bulk string                 Pairs([k, v …]) flat array in RESP2, map in RESP3
    None        null bulk                   Members([…])    array in RESP2, set in RESP3
    NIL_ARRAY   null array                  Verbatim(b"…")  bulk in RESP2, verbatim text in RESP3
    list        array                       float           bulk in RESP2, double in RESP3
    ByKey([k, v …])  array of [k, v] arrays in RESP2, map in RESP3
    Scored([m, s …]) flat array in RESP2, array of [m, s] arrays in RESP3
    Encoded     RESP bytes that are the same in both protocols (entries are kept in this form)
    CommandError  an error inside an array (EXEC)

`Wait` is no reply: the command found nothing and asked to be run again when one of its keys is ready.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from millstream.errors import CommandError


class Simple(bytes):
    """A simple string: `+OK`."""


class Encoded(bytes):
    """A part of a reply that is already RESP, the same bytes in both protocols."""


class Verbatim(bytes):
    """Text for people: a bulk string in RESP2, a verbatim string in RESP3."""


class Pairs(list["Reply"]):
    """Keys and values in turn: a flat array in RESP2, a map in RESP3."""


class ByKey(list["Reply"]):
    """Keys and values in turn: an array of two-element arrays in RESP2, a map in RESP3 (XREAD)."""


class Scored(list["Reply"]):
    """Members and scores in turn: a flat array in RESP2, an array of two-element arrays in RESP3 (ZRANGE)."""


class Members(list["Reply"]):
    """An array in RESP2, a set in RESP3."""


class Push(list["Reply"]):
    """An array in RESP2, a push message in RESP3."""


class NilArray:
    """The null array, `*-1` in RESP2."""

    def __repr__(self) -> str:
        return "NIL_ARRAY"


NIL_ARRAY: Final = NilArray()
OK: Final = Simple(b"OK")

Reply: TypeAlias = (
    int | float | bytes | NilArray | CommandError | list["Reply"] | Pairs | ByKey | Scored | Members | Push | None
)


@dataclass(slots=True)
class Wait:
    """A read that found nothing: which keys to wait for, how long, and what to run then."""

    keys: tuple[bytes, ...]
    timeout_ms: int  # 0 waits for ever
    argv: list[bytes]  # the command to run again; `$` is already replaced by the id it stood for
    wake_at_ms: int | None = None  # when a pending entry becomes due for a CLAIM read
    group: bool = False  # XREADGROUP: also woken when a key is deleted or replaced


@dataclass(slots=True)
class Event:
    """A keyspace event: its class letter as in notify-keyspace-events, its name, the key."""

    kind: str
    name: bytes
    key: bytes
    db: int


@dataclass(slots=True)
class Outcome:
    """A command's reply and what it did: outcomes, not requests, in the order they happened."""

    reply: Reply | Wait
    log: list[tuple[int, tuple[bytes, ...]]] = field(default_factory=list)  # (database, argv) to replay
    touched: list[tuple[int, bytes]] = field(default_factory=list)  # (database, key): what WATCH must see
    events: list[Event] = field(default_factory=list)  # keyspace events to publish
    ready: list[tuple[int, bytes]] = field(default_factory=list)  # (database, key): run waiters again
    dirty: int = 0  # how many changes, as INFO counts them
