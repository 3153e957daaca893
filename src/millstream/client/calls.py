"""An operation as data: what to send, and what its reply means. Knows nothing of connections.

    Call(argv, key, parse)                       one command
    Script("settle").call(keys, argv, parse)     one atomic step: EVALSHA, or EVAL on a server that has not seen it

The blocking and the asyncio backend differ only in how they send, so every operation is written once, here and in
`delivery.steps`. A call says whether it may be sent twice: after a lost reply the backend sends such calls again by
itself, and tells the caller about the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from typing import Any, Generic, Protocol, TypeVar

Word = bytes | str | int | float
T = TypeVar("T")


class Inside(Protocol):
    """A broker in this process, to a step that runs under its lock: nothing comes between, and no reply is lost."""

    @property
    def append(self) -> Callable[[bytes, list[bytes]], bytes | None]:
        """Append an entry (key, names and values in turn). Returns its id; None: the command must do it."""

    def read(
        self, key: bytes, group: bytes, consumer: bytes, count: int, claim_ms: int | None
    ) -> list[tuple[bytes, list[bytes]]] | None:
        """Deliver new entries: id, names and values. None: there are none, or others are due, as the command says."""

    def held(self, key: bytes, group: bytes, entry_id: bytes) -> tuple[bytes, int] | None:
        """Return the owner of a pending entry, b"" if it has none, and its deliveries; None if it is not pending."""

    def acknowledge(self, key: bytes, group: bytes, ids: list[bytes], *, keep_done: bool) -> None:
        """Take pending entries off the list, and unless they are kept out of the stream if no group needs them."""

    def count(self, key: bytes, field: bytes, by: int) -> None:
        """Add to a counter in a hash, unless the server refuses."""

    def has(self, key: bytes) -> bool:
        """Whether there is such a key."""

    def run(self, *argv: bytes) -> Any:
        """Run a command. Returns its reply; an error is a reply too."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One command for the server that has `key`."""

    argv: tuple[Word, ...]
    key: bytes  # decides the shard on a cluster
    parse: Callable[[Any], T]
    can_resend: bool = True  # sent twice it does no more than once
    script: Script | None = None  # argv is then EVALSHA's: the backend falls back to EVAL
    block_ms: int | None = None  # how long the server may hold the reply back; None: it answers at once
    # The same on a broker in this process, its result as `parse` would give it; None: the command must run. What this
    # does need not bear to be done twice.
    inside: Callable[[Inside], T | None] | None = None


@dataclass(frozen=True)
class Script:
    """One step of the Lua library: the shared part, then the step's own."""

    source: str

    @cached_property
    def sha(self) -> str:
        return hashlib.sha1(self.source.encode()).hexdigest()

    def call(
        self,
        keys: Sequence[bytes],
        words: Sequence[Word],
        parse: Callable[[Any], T],
        *,
        can_resend: bool = True,
        inside: Callable[[Inside], T | None] | None = None,
    ) -> Call[T]:
        """Return the step as a call; the first key decides where it runs."""
        return Call(
            ("EVALSHA", self.sha, len(keys), *keys, *words), keys[0], parse, can_resend, script=self, inside=inside
        )


@lru_cache
def load_script(package: str, name: str) -> Script:
    """Load a step from a package's `lua` folder: `shared.lua`, then the step."""
    folder = resources.files(package) / "lua"
    return Script((folder / "shared.lua").read_text() + (folder / f"{name}.lua").read_text())


def as_is(reply: Any) -> Any:
    return reply


def command(*argv: Word, key: bytes, can_resend: bool = False) -> Call[Any]:
    """Any command, its reply as the protocol gave it."""
    return Call(argv, key, as_is, can_resend)
