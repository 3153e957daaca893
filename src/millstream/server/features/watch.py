"""WATCH: the sessions whose EXEC must fail if a key changes before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from millstream.engine.keys.keyspace import Keyspace

Place: TypeAlias = tuple[int, bytes]  # a database and a key in it


class KeyWatcher(Protocol):
    """The part of a session that this module uses."""

    watched: dict[Place, bool]  # whether the key was missing or had expired when the watch began
    watch_failed: bool


class Watches:
    """Watched keys and the sessions that watch them."""

    __slots__ = ("_keyspace", "_now_ms", "_watchers")

    def __init__(self, keyspace: Keyspace, now_ms: Callable[[], int]) -> None:
        self._keyspace = keyspace
        self._now_ms = now_ms
        self._watchers: dict[Place, dict[KeyWatcher, None]] = {}

    def __len__(self) -> int:
        return len(self._watchers)

    def add(self, watcher: KeyWatcher, place: Place, now_ms: int) -> None:
        """Watch a key. A key that has already expired counts as missing: its removal is not a change."""
        if place not in watcher.watched:
            watcher.watched[place] = self._is_gone(place, now_ms)
            self._watchers.setdefault(place, {})[watcher] = None

    def drop(self, watcher: KeyWatcher) -> None:
        """Remove all watches of a session."""
        for place in watcher.watched:
            others = self._watchers[place]
            del others[watcher]
            if not others:
                del self._watchers[place]
        watcher.watched.clear()
        watcher.watch_failed = False

    def touch(self, place: Place) -> None:
        """Mark the watchers of a modified key."""
        watchers = self._watchers.get(place)
        if not watchers:
            return
        is_gone = self._is_gone(place, self._now_ms())
        for watcher in watchers:
            if not (is_gone and watcher.watched[place]):  # SWAPDB can replace a missing key by an expired one
                watcher.watch_failed = True

    def failed(self, watcher: KeyWatcher, now_ms: int) -> bool:
        """Return whether a watched key has changed. An expiry counts, even if nothing has noticed it yet."""
        return watcher.watch_failed or any(
            not was_gone and self._has_run_out(place, now_ms) for place, was_gone in watcher.watched.items()
        )

    def _is_gone(self, place: Place, now_ms: int) -> bool:
        return place[1] not in self._keyspace.databases[place[0]].values or self._has_run_out(place, now_ms)

    def _has_run_out(self, place: Place, now_ms: int) -> bool:
        expires = self._keyspace.databases[place[0]].expires
        return place[1] in expires and expires[place[1]] < now_ms
