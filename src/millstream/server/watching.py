"""WATCH: which sessions want to know whether a key changed before their EXEC."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from millstream.engine.keyspace import Keyspace

Place: TypeAlias = tuple[int, bytes]  # a database and a key in it


class Watcher(Protocol):
    """A session, as far as this module knows it."""

    watched: dict[Place, bool]  # whether the key had already run out, unnoticed, when it was watched
    watch_failed: bool


class Watches:
    """Watched keys to the sessions that watch them."""

    __slots__ = ("_keyspace", "_watchers")

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace
        self._watchers: dict[Place, dict[Watcher, None]] = {}

    def __len__(self) -> int:
        return len(self._watchers)

    def add(self, watcher: Watcher, place: Place, now_ms: int) -> None:
        """Watch a key. One that has run out already is as good as gone: its removal will be no change."""
        if place not in watcher.watched:
            watcher.watched[place] = self._has_run_out(place, now_ms)
            self._watchers.setdefault(place, {})[watcher] = None

    def drop(self, watcher: Watcher) -> None:
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
        for watcher in self._watchers.get(place, ()):
            if watcher.watched[place] and place[1] not in self._keyspace.databases[place[0]].values:
                watcher.watched[place] = False  # from now on it is a missing key
            else:
                watcher.watch_failed = True

    def failed(self, watcher: Watcher, now_ms: int) -> bool:
        """Whether something this session watches has changed; running out counts, noticed or not."""
        return watcher.watch_failed or any(
            not run_out_before and self._has_run_out(place, now_ms)
            for place, run_out_before in watcher.watched.items()
        )

    def _has_run_out(self, place: Place, now_ms: int) -> bool:
        expires = self._keyspace.databases[place[0]].expires
        return place[1] in expires and expires[place[1]] < now_ms
