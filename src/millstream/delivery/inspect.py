"""Inspect streams, groups, consumers and pending entries, without changes: for people and for tables.

Works on every backend; on a cluster all primaries are asked for names, and each stream's own server for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from millstream.client.calls import Call, Word
from millstream.delivery.delivery import pairs
from millstream.delivery.keys import Keys
from millstream.delivery.steps import DELAYED, RELEASED
from millstream.errors import ServerReplied

T = TypeVar("T")
PAGE = 1000


class Looks(Protocol):
    """The part of a backend that inspection needs."""

    def run(self, call: Call[T]) -> T: ...

    def scan(self, *words: Word) -> Iterator[bytes]: ...


@dataclass(frozen=True, slots=True)
class StreamState:
    """The state of a stream."""

    name: str
    length: int
    added: int | None  # ever; None on servers that do not count
    last_id: str
    groups: int
    dead: int | None  # None: the key of the dead letters holds something else
    delayed: int | None  # None: the same


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state of a group."""

    stream: str
    name: str
    consumers: int
    pending: int
    released: int  # pending entries without an owner
    waiting: int  # pending entries that wait for their retry
    lag: int | None  # entries not yet delivered to the group; None: unknown to the server
    last_id: str


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """The state of a consumer."""

    stream: str
    group: str
    name: str
    pending: int
    idle_ms: int  # since its last sign of life


@dataclass(frozen=True, slots=True)
class PendingState:
    """The state of a pending entry."""

    stream: str
    group: str
    id: str
    consumer: str  # "": released; "(delayed)": waits for a retry
    idle_ms: int
    deliveries: int


def stream_names(backend: Looks, pattern: str = "*") -> list[str]:
    """Return the streams that match a glob pattern, without dead-letter streams and other keys of ours."""
    found = {_text(name) for name in backend.scan("MATCH", pattern, "TYPE", "stream", "COUNT", PAGE)}
    ours = {_text(Keys(name.encode("utf-8", "surrogateescape")).dead) for name in found}
    return sorted(found - ours)


def stream_state(backend: Looks, name: str) -> StreamState | None:
    """Return the state of a stream, or None if it does not exist."""
    keys = Keys(name.encode("utf-8", "surrogateescape"))
    row = _info(backend, keys.stream, "XINFO", "STREAM", keys.stream)
    if row is None:
        return None
    added = row.get("entries-added")
    return StreamState(
        name,
        int(row["length"]),
        None if added is None else int(added),
        _text(row["last-generated-id"]),
        int(row["groups"]),
        _number(backend, "XLEN", keys.dead),
        _number(backend, "ZCARD", keys.delayed),
    )


def group_states(backend: Looks, name: str) -> list[GroupState]:
    """Return the groups of a stream."""
    keys = Keys(name.encode("utf-8", "surrogateescape"))
    states = []
    for row in _rows(backend, keys.stream, "XINFO", "GROUPS", keys.stream):
        group = row["name"]
        held = consumer_states(backend, name, _text(group))
        somebodys = sum(each.pending for each in held if _bytes(each.name) != RELEASED)
        waiting = sum(each.pending for each in held if _bytes(each.name) == DELAYED)
        lag = row.get("lag")
        people = [each for each in held if _bytes(each.name) not in (RELEASED, DELAYED)]
        states.append(
            GroupState(
                name,
                _text(group),
                len(people),
                int(row["pending"]),
                int(row["pending"]) - somebodys,
                waiting,
                None if lag is None else int(lag),
                _text(row["last-delivered-id"]),
            )
        )
    return states


def consumer_states(backend: Looks, name: str, group: str) -> list[ConsumerState]:
    """Return the consumers of a group, including those that stand for released or delayed entries."""
    key, raw = _bytes(name), _bytes(group)
    return [
        ConsumerState(name, group, _text(row["name"]), int(row["pending"]), int(row["idle"]))
        for row in _rows(backend, key, "XINFO", "CONSUMERS", key, raw)
    ]


def pending_states(
    backend: Looks, name: str, group: str, *, limit: int = 100, min_idle_ms: int = 0, consumer: str | None = None
) -> Iterator[PendingState]:
    """Return pending entries, oldest id first."""
    key, raw = _bytes(name), _bytes(group)
    after, left = b"-", limit
    idle: tuple[Word, ...] = ("IDLE", min_idle_ms) if min_idle_ms else ()
    only: tuple[Word, ...] = (_bytes(consumer),) if consumer is not None else ()
    while left > 0:
        argv: tuple[Word, ...] = ("XPENDING", key, raw, *idle, after, "+", min(PAGE, left), *only)
        page: Sequence[Any] = backend.run(Call(argv, key, list))
        for row in page:
            owner = "" if row[1] in (None, b"", RELEASED) else "(delayed)" if row[1] == DELAYED else _text(row[1])
            yield PendingState(name, group, _text(row[0]), owner, max(0, int(row[2])), int(row[3]))
        left -= len(page)
        if len(page) < PAGE:
            return
        after = b"(" + page[-1][0]


def _info(backend: Looks, key: bytes, *argv: Word) -> dict[str, Any] | None:
    if not backend.run(Call(("EXISTS", key), key, int)):
        return None
    flat: list[Any] = backend.run(Call(argv, key, list))
    return {_text(name): value for name, value in pairs(flat)}


def _rows(backend: Looks, key: bytes, *argv: Word) -> list[dict[str, Any]]:
    if not backend.run(Call(("EXISTS", key), key, int)):
        return []
    rows: list[Any] = backend.run(Call(argv, key, list))
    return [{_text(name): value for name, value in pairs(row)} for row in rows]


def misused_keys(backend: Looks, name: str) -> list[str]:
    """Describe each key of a stream that holds a value of another type than workers need there."""
    keys = Keys(_bytes(name))
    needed = {keys.stream: b"stream", keys.dead: b"stream", keys.delayed: b"zset", keys.meta: b"hash"}
    found = []
    for key, kind in needed.items():
        held = backend.run(Call(("TYPE", key), key, bytes))
        if held not in (kind, b"none"):
            found.append(f"the key {_text(key)!r} holds a {held.decode()}, and workers need a {kind.decode()} there")
    return found


def _number(backend: Looks, command: str, key: bytes) -> int | None:
    """Return the size of a key, or None if it holds a value of another type."""
    try:
        return backend.run(Call((command, key), key, int))
    except ServerReplied as error:
        if error.code != "WRONGTYPE":
            raise
        return None


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")
