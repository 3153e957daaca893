"""A broker's state in a directory, inside a program that does other things too: it ends, it forks, it forgets to close.

    open_in ──▶ Store.open ──▶ everything that changes is logged ── close, or the end of the program ──▶ synced
                                        └── a fork ──▶ the child may not touch it

The log itself is persistence's. Here is what a server need not think of: a call after `close` would be answered and
kept nowhere, and a child of a fork has its parent's open files. Both are refused.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from pathlib import Path
from typing import Any

from millstream.engine.keys.keyspace import Keyspace
from millstream.errors import CommandError, CorruptFile, WriteFailed
from millstream.persistence.files import Files
from millstream.persistence.store import Store
from millstream.server.core.hub import Hub

logger = logging.getLogger(__name__)

_open_hubs: weakref.WeakSet[Hub] = weakref.WeakSet()


def settings(directory: Path, appendfsync: str) -> dict[str, str]:
    """Return the settings of a hub that is kept in a directory, named as in CONFIG."""
    return {"dir": str(directory), "appendonly": "yes", "appendfsync": appendfsync}


def open_in(hub: Hub, directory: Path, files: Files | None = None) -> None:
    """Load what is there and keep what happens from now on.

    PersistenceError if another has the directory, CorruptFile if it cannot be read, WriteFailed if not be written.
    """
    store = Store(hub, directory, files=files)
    hub.libraries.keep_in(store)
    try:
        store.open()
    except CorruptFile as error:
        raise CorruptFile(error.path, error.at, f"{error.reason}; {error.hint}") from error
    hub.store = store
    _open_hubs.add(hub)


def close(hub: Hub) -> None:
    """Let nobody in any more, end what runs, bring everything to the disk; WriteFailed if that does not work."""
    with hub.lock:
        if hub not in _open_hubs:
            return
        _open_hubs.discard(hub)
        _refuse_everything(hub, "ERR The broker is closed")
        hub.close()
        # nothing is left for those who do not ask the gates, such as the short ways of direct calls
        hub.keyspace.databases[:] = Keyspace(len(hub.keyspace.databases)).databases
    # not under the lock: a rewrite that is being given up may want it
    if hub.store is not None:
        hub.store.close()


def _refuse_everything(hub: Hub, text: str) -> None:
    def gate(session: Any, row: Any, argv: list[bytes]) -> CommandError:
        return CommandError(text)

    hub.gates.insert(0, gate)


@atexit.register
def _close_all() -> None:
    """Close what the program has left open at its end."""
    for hub in list(_open_hubs):
        try:
            close(hub)
        except WriteFailed as error:
            logger.error("The log could not be finished at the end of the program: %s", error)


def _forsake_all() -> None:
    """In the child of a fork: these are the parent's. Its log must not get lines of two, nor its lock outlive it."""
    for hub in list(_open_hubs):
        _open_hubs.discard(hub)
        # whoever held it in the parent is no thread of ours; to be refused one must get in
        getattr(hub.lock, "_at_fork_reinit", lambda: None)()
        _refuse_everything(hub, "ERR The broker belongs to the process that opened it, and this is a child of it")
        if hub.store is not None:
            hub.store.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forsake_all)
