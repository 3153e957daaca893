"""What a command is to everybody who asks: dispatch, COMMAND, access control, the documents.

Each module under `commands` makes its rows with a `Registry`; `commands/__init__.py` puts them together. The
server adds the commands that need a connection. A row of a container (XGROUP) has rows of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.outcome import Reply, Wait

Run: TypeAlias = Callable[[CommandContext, list[bytes]], "Reply | Wait"]
FindKeys: TypeAlias = Callable[[list[bytes]], list[int]]


@dataclass(frozen=True, slots=True)
class KeySpec:
    """Where keys stand: first and last word (last < 0 counts from the end), every how many words."""

    first: int = 0
    last: int = 0
    step: int = 0
    flags: tuple[str, ...] = ()  # RO RW OW RM, access update insert delete: what is done to them
    rest_flags: tuple[str, ...] = ()  # what is done to the keys after the first, where that is something else


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the command table."""

    name: str  # lower case; `xgroup|create` for a subcommand
    arity: int  # words, the name included; negative: at least that many
    flags: frozenset[str]  # write readonly denyoom fast blocking movablekeys loading stale no_auth …
    categories: frozenset[str]  # @stream @write @slow …, for access control
    syntax: str  # how it is written
    summary: str  # one sentence
    since: str  # the Redis release that brought it
    group: str  # stream, string, generic, hash, list, set, sorted_set, connection, server, pubsub, transactions
    keys: KeySpec = KeySpec()
    find_keys: FindKeys | None = None  # for `movablekeys`: which words of an argv are keys
    reads_unnamed: Callable[[list[bytes]], bool] | None = None  # whether a call reads keys that are none of its words
    run: Run | None = None  # None: a container, or a command that the server runs itself
    subcommands: dict[bytes, Command] = field(default_factory=dict)

    def fits(self, words: int) -> bool:
        """Whether a call of this many words satisfies the arity."""
        return words == self.arity if self.arity > 0 else words >= -self.arity

    def key_positions(self, argv: list[bytes]) -> list[int]:
        """Which words of this call are keys."""
        if self.find_keys is not None:
            return self.find_keys(argv)
        if self.keys.first == 0:
            return []
        last = self.keys.last if self.keys.last >= 0 else len(argv) + self.keys.last
        return list(range(self.keys.first, min(last, len(argv) - 1) + 1, self.keys.step))

    def key_flags(self, argv: list[bytes], at: int) -> tuple[str, ...]:
        """Return what this call does to the key at this index of its words."""
        keys = self.keys
        if keys.rest_flags and at != keys.first:
            return keys.rest_flags
        if "variable_flags" in keys.flags:
            return _flags_by_options(self.name, argv)
        return keys.flags


def _flags_by_options(name: str, argv: list[bytes]) -> tuple[str, ...]:
    """Return what SET, DELEX and BITFIELD do to their key, which depends on the options.

    SET reads the old value with GET or a comparison, DELEX with a comparison; BITFIELD may only read.
    """
    if name == "bitfield":
        writes = not {b"SET", b"INCRBY"}.isdisjoint(map(bytes.upper, argv[2:]))
        return ("RW", "access", "update") if writes else ("RO", "access")
    if name == "delex":
        return ("RW", "delete") if len(argv) > 2 else ("RM", "delete")
    options = frozenset(map(bytes.upper, argv[3:]))
    if b"GET" in options:
        return ("RW", "access", "update")
    return ("OW", "update") if _COMPARISONS.isdisjoint(options) else ("RW", "update")


_COMPARISONS = frozenset({b"IFEQ", b"IFNE", b"IFDEQ", b"IFDNE"})


class Registry:
    """Collects the rows of one module."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.commands: dict[bytes, Command] = {}

    def command(
        self,
        name: str,
        arity: int,
        flags: str = "",
        *,
        keys: tuple[int, int, int] = (0, 0, 0),
        access: str = "",
        rest_access: str = "",
        find_keys: FindKeys | None = None,
        since: str = "1.0.0",
        summary: str = "",
        group: str | None = None,
        extra_categories: str = "",
        categories: str = "",
        reads_unnamed: Callable[[list[bytes]], bool] | None = None,
    ) -> Callable[[Run], Run]:
        """Register the decorated function; its docstring's first paragraph is the command's syntax."""

        def register(run: Run) -> Run:
            title = name.upper().replace("|", " ")
            syntax = " ".join((run.__doc__ or title).strip().split("\n\n", 1)[0].split())
            if not syntax.startswith(title):
                syntax = title  # a function that serves several commands
            self.add(
                name,
                arity,
                flags,
                keys=keys,
                access=access,
                rest_access=rest_access,
                find_keys=find_keys,
                since=since,
                summary=summary,
                group=group,
                syntax=syntax,
                run=run,
                extra_categories=extra_categories,
                categories=categories,
                reads_unnamed=reads_unnamed,
            )
            return run

        return register

    def add(
        self,
        name: str,
        arity: int,
        flags: str = "",
        *,
        keys: tuple[int, int, int] = (0, 0, 0),
        access: str = "",
        rest_access: str = "",
        find_keys: FindKeys | None = None,
        since: str = "1.0.0",
        summary: str = "",
        group: str | None = None,
        syntax: str = "",
        run: Run | None = None,
        extra_categories: str = "",
        categories: str = "",
        reads_unnamed: Callable[[list[bytes]], bool] | None = None,
    ) -> None:
        """Register a row; a name `container|sub` goes below its container, which must exist."""
        words = frozenset(flags.split())
        of_group = group or self.group
        row = Command(
            name=name,
            arity=arity,
            flags=words,
            categories=_categories(words, categories or of_group, is_container=run is None and arity == -2)
            | frozenset(extra_categories.split()),
            syntax=syntax or name.upper().replace("|", " "),
            summary=summary,
            since=since,
            group=of_group,
            keys=KeySpec(*keys, flags=tuple(access.split()), rest_flags=tuple(rest_access.split())),
            find_keys=find_keys,
            reads_unnamed=reads_unnamed,
            run=run,
        )
        container, _, sub = name.partition("|")
        if sub:
            self.commands[container.encode()].subcommands[sub.encode()] = row
        else:
            self.commands[name.encode()] = row


_GROUP_CATEGORY = {
    "stream": "@stream",
    "bitmap": "@bitmap",
    "string": "@string",
    "hash": "@hash",
    "list": "@list",
    "set": "@set",
    "sorted_set": "@sortedset",
    "generic": "@keyspace",
    "connection": "@connection",
    "pubsub": "@pubsub",
    "transactions": "@transaction",
    "scripting": "@scripting",
}


def _categories(flags: frozenset[str], group: str, *, is_container: bool) -> frozenset[str]:
    """Access-control categories as Redis derives them from flags and group; a container is only @slow."""
    found = {"@fast" if "fast" in flags else "@slow"}
    if is_container:
        return frozenset(found)
    if group in _GROUP_CATEGORY:
        found.add(_GROUP_CATEGORY[group])
    for flag, category in (
        ("write", "@write"),
        ("readonly", "@read"),
        ("blocking", "@blocking"),
        ("admin", "@admin"),
        ("admin", "@dangerous"),
        ("dangerous", "@dangerous"),
    ):
        if flag in flags:
            found.add(category)
    if group == "scripting":  # what a read-only script reads is up to its commands
        found.discard("@read")
    if group == "scripting":
        found.discard("@read")  # what a script reads is up to its commands
    return frozenset(found)
