"""The interface that persistence needs from the runner of commands: a lock, the state, settings, and hooks.

The server's hub implements it; this layer does not import the hub.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from millstream.engine.keys.keyspace import Keyspace
from millstream.errors import CommandError


class PersistenceSettings(Protocol):
    """The settings of CONFIG."""

    def __getitem__(self, name: str) -> bytes: ...

    def number(self, name: str) -> int: ...

    def is_on(self, name: str) -> bool: ...

    def put(self, name: str, value: bytes) -> None: ...


class Host(Protocol):
    """The runner of the commands that are logged here."""

    lock: Any  # an RLock that guards everything below
    keyspace: Keyspace
    dirty: int  # changes since the last snapshot
    gates: list[Any]  # (session, row, argv) -> CommandError or None: reasons to refuse a command
    encoded_journal: Callable[[int, list[bytes]], None] | None  # like `journal`: a database, encoded lines
    setting_hooks: list[Callable[[str], None]]  # called with the name of a setting that has changed
    before_replies: Callable[[], CommandError | None] | None  # called before replies go out

    @property
    def config(self) -> Any: ...  # Settings

    @property
    def journal(self) -> Any: ...  # called with the log lines of each command or transaction

    @journal.setter
    def journal(self, journal: Any) -> None: ...

    def now_ms(self) -> int: ...

    def keep_swept(self) -> None: ...  # its timer does not know of loaded keys that expire
