"""WATCH: which sessions want to know whether a key changed before their EXEC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from millstream.engine.keys.keyspace import Keyspace

Place: TypeAlias = tuple[int, bytes]  # a database and a key in it


class KeyWatcher(Protocol):
    """A session, as far as this module knows it."""

    watched: dict[Place, bool]  # whether the key was not there when it was watched, or had run out unnoticed
    watch_failed: bool


class Watches:
    """Watched keys to the sessions that watch them."""

    __slots__ = ("_keyspace", "_now_ms", "_watchers")

    def __init__(self, keyspace: Keyspace, now_ms: Callable[[], int]) -> None:
        self._keyspace = keyspace
        self._now_ms = now_ms
        self._watchers: dict[Place, dict[KeyWatcher, None]] = {}

    def __len__(self) -> int:
        return len(self._watchers)

    def add(self, watcher: KeyWatcher, place: Place, now_ms: int) -> None:
        """Watch a key. One that has run out already is as good as gone: its removal will be no change."""
        if place not in watcher.watched:
            watcher.watched[place] = self._is_gone(place, now_ms)
            self._watchers.setdefault(place, {})[watcher] = None

    def drop(self, watcher: KeyWatcher) -> None:
        """Watch nothing any more."""
        for place in watcher.watched:
            others = self._watchers[place]
            del others[watcher]
            if not others:
                del self._watchers[place]
        watcher.watched.clear()
        watcher.watch_failed = False

    def touch(self, place: Place) -> None:
        """A key was modified."""
        watchers = self._watchers.get(place)
        if not watchers:
            return
        is_gone = self._is_gone(place, self._now_ms())
        for watcher in watchers:
            if not (is_gone and watcher.watched[place]):  # SWAPDB may bring a key that has run out for none
                watcher.watch_failed = True

    def failed(self, watcher: KeyWatcher, now_ms: int) -> bool:
        """Whether something this session watches has changed; running out counts, noticed or not."""
        return watcher.watch_failed or any(
            not was_gone and self._has_run_out(place, now_ms) for place, was_gone in watcher.watched.items()
        )

    def _is_gone(self, place: Place, now_ms: int) -> bool:
        return place[1] not in self._keyspace.databases[place[0]].values or self._has_run_out(place, now_ms)

    def _has_run_out(self, place: Place, now_ms: int) -> bool:
        expires = self._keyspace.databases[place[0]].expires
        return place[1] in expires and expires[place[1]] < now_ms
