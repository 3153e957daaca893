"""The hub as commands see it, with all its features."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from millstream.server.core.interfaces import Server

if TYPE_CHECKING:
    from millstream.clock import Clock
    from millstream.persistence.store import Store
    from millstream.server.access.auth import AccessControl
    from millstream.server.core.blocking import Waiters
    from millstream.server.core.rates import Rates
    from millstream.server.features.client_memory import ClientMemory
    from millstream.server.features.maxmemory import Memory
    from millstream.server.features.pause import Pause
    from millstream.server.features.slowlog import Watchman
    from millstream.server.features.tracking import Tracking
    from millstream.server.features.watch import Watches
    from millstream.server.scripting.cache import Scripts
    from millstream.server.scripting.functions import Libraries
    from millstream.server.scripting.runner import Runner


class Services(Server, Protocol):
    """The shared state and its features: `Hub`. The attributes are explained there."""

    active_expiry: bool
    client_memory: ClientMemory
    clock: Clock
    config_file: Path | None
    dirty: int
    is_ending: bool
    keeps_log: bool
    letters: frozenset[str]
    libraries: Libraries
    memory: Memory
    on_shutdown: Callable[[], None] | None
    pause: Pause
    rates: Rates
    runner: Runner
    scripts: Scripts
    started_ms: int
    tracking: Tracking
    tracks_latency: bool
    waiters: Waiters
    watches: Watches
    watchman: Watchman

    @property
    def access(self) -> AccessControl:
        """Return the access control."""

    @property
    def store(self) -> Store | None:
        """Return the persistent state, if there is one."""

    def apply_setting(self, name: str) -> None:
        """Act on a setting that has changed."""

    def count_anew(self) -> None:
        """Measure the memory of all keys again."""
