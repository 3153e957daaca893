"""Run one move in its four phases.

    look      which keys, how many entries
    copy      every key once
    catch up  what has changed on the source meanwhile; groups are made anew where they differ
    verify    both ends compared

Entries may be appended to the source all the while, until the last part. Groups must be quiet by then: nothing tells
us of an acknowledgement, so whoever reads in groups is to be stopped before the catching up.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from millstream.clock import Clock, SystemClock
from millstream.migration import values, verify
from millstream.migration.copying import OnPage, last_id, name_of, rebuild
from millstream.migration.place import Endpoint
from millstream.migration.progress import Silent, Watcher
from millstream.migration.resume import Notes

logger = logging.getLogger(__name__)

_SMALLEST_BATCH: Final = 100
_GROWTH: Final = 10  # a batch is a part of what is done, so that writing it down stays a part of the work
_LONG: Final = 1000  # entries; a shorter stream is begun again instead of gone on with
_LOOK_BATCH: Final = 500
_TOGETHER: Final = 50  # short keys in one go


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to move and how."""

    match: str | None = None
    replace: bool = False
    by_entries: bool = False  # streams by commands only


@dataclass(slots=True)
class Found:
    """What is on the source."""

    kinds: dict[bytes, str] = field(default_factory=dict)  # key to type
    lengths: dict[bytes, int] = field(default_factory=dict)  # stream to number of entries

    @property
    def entries(self) -> int:
        return sum(self.lengths.values())

    @property
    def by_kind(self) -> dict[str, int]:
        return dict(sorted(Counter(self.kinds.values()).items()))


@dataclass(slots=True)
class Report:
    """The result of a move."""

    found: Found = field(default_factory=Found)
    existing: list[bytes] = field(default_factory=list)  # on the target, left alone
    copied: int = 0  # keys, those of earlier runs included
    whole: int = 0  # of them, as a payload
    resumed: int = 0  # keys that an earlier run had copied
    resumed_at: str | None = None  # the stream and the id at which this run went on
    caught_up: int = 0  # keys that had changed meanwhile
    ghosts: int = 0
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.problems


def in_the_way(key: bytes) -> str:
    """Return the problem of a key that exists on the target and may not be replaced."""
    return f"{name_of(key)}: exists on the target (--replace overwrites it)"


class Move:
    """One move; `run` it, or only `look`."""

    def __init__(
        self,
        source: Endpoint,
        target: Endpoint,
        options: Options | None = None,
        *,
        notes: Notes | None = None,
        watcher: Watcher | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._source, self._target = source, target
        self._options = options or Options()
        self._notes = notes or Notes(None, {})
        self._watcher: Watcher = watcher or Silent()
        self._clock: Clock = clock or SystemClock()
        self._restorer = values.Restorer(target)
        self.report = Report()

    def run(self) -> Report:
        """Run all phases. Returns the report, which lists what could not be moved."""
        report, notes = self.report, self._notes
        report.resumed = len(notes.done)
        if notes.current is not None:
            # what the target has counts: it may be further than the note, or have lost some
            there = last_id(self._target, notes.current)
            report.resumed_at = f"{name_of(notes.current)} after {name_of(there or b'0-0')}"
        report.found = self._look()
        self._copy_all(report.found)
        self._catch_up(report.found)
        self._verify()
        report.copied = len(notes.done)
        report.whole = sum(way == "whole" for way in notes.done.values())
        report.warnings = list(dict.fromkeys(report.warnings))
        if report.is_good:
            notes.remove()
        else:
            notes.save()
        return report

    def look(self) -> Report:
        """Report what would be moved, and what prevents it."""
        self.report.found = self._look()
        keys = list(self.report.found.kinds)
        self.report.existing = [key for key in keys if key not in self._notes.done and self._is_there(key)]
        return self.report

    # Looking

    def _look(self) -> Found:
        found = Found()
        keys = list(self._source.keys(self._options.match))
        for at in range(0, len(keys), _LOOK_BATCH):
            batch = keys[at : at + _LOOK_BATCH]
            for key, kind in zip(batch, self._source.ask_each(batch, "TYPE"), strict=True):
                if kind != b"none":
                    found.kinds[key] = kind.decode()
            streams = [key for key in batch if found.kinds.get(key) == "stream"]
            lengths = self._source.ask_each(streams, "XLEN")
            found.lengths.update((key, n) for key, n in zip(streams, lengths, strict=True) if isinstance(n, int))
        return found

    def _is_there(self, key: bytes) -> bool:
        return bool(self._target.ask(key, "EXISTS", key))

    # Copying

    def _copy_all(self, found: Found) -> None:
        """Copy what is not done yet."""
        self._watcher.begin("copying", len(found.kinds) + found.entries)
        for key in self._notes.done:
            self._watcher.step(1 + found.lengths.get(key, 0))
        todo = [key for key in found.kinds if key not in self._notes.done]
        if self._notes.current in found.kinds:
            todo.sort(key=lambda key: key != self._notes.current)  # go on with it first
        for batch in self._batches(todo):
            for key in self._copy_short(self._begin(batch), found):
                self._copy(key, found)
        self._notes.save()

    def _batches(self, keys: list[bytes]) -> Iterator[list[bytes]]:
        at = 0
        while at < len(keys):
            size = max(_SMALLEST_BATCH, len(self._notes.done) // _GROWTH)
            yield keys[at : at + size]
            at += size

    def _begin(self, batch: list[bytes]) -> list[bytes]:
        """Return the keys of a batch that may be copied, after noting that they are begun."""
        if not self._options.replace:
            strangers = [key for key in batch if key not in self._notes.begun]
            answers = self._target.ask_each(strangers, "EXISTS")
            taken = {key for key, answer in zip(strangers, answers, strict=True) if answer}
            for key in taken:
                self.report.existing.append(key)
                self.report.problems.append(in_the_way(key))
            batch = [key for key in batch if key not in taken]
        self._notes.begin(batch)
        return batch

    def _copy_short(self, keys: list[bytes], found: Found) -> list[bytes]:
        """Copy short keys in batches, as payloads. Returns the keys that must be copied alone."""
        left = []
        for at in range(0, len(keys), _TOGETHER):
            some = keys[at : at + _TOGETHER]
            fit = [key for key in some if key != self._notes.current and self._may_be_whole(found.kinds[key])]
            taken = self._restorer.restore_each(values.dump_short(self._source, fit), self._clock.now_ms())
            for key, warnings in taken.items():
                self.report.warnings += warnings
                self._watcher.step(1 + found.lengths.get(key, 0))
                self._notes.finish(key, "whole")
            left += [key for key in some if key not in taken]
        return left

    def _may_be_whole(self, kind: str) -> bool:
        return kind != "stream" or not self._options.by_entries

    def _copy(self, key: bytes, found: Found) -> None:
        """Copy one key, or continue with it."""
        length = found.lengths.get(key, 0)
        goes_on = key == self._notes.current
        way = None if goes_on else self._copy_whole(key, found.kinds[key])
        if way is None:
            way = self._copy_by_commands(key, found, goes_on=goes_on)
        else:
            self._watcher.step(length)
        self._watcher.step()
        if way:
            self._notes.finish(key, way)

    def _copy_whole(self, key: bytes, kind: str) -> str | None:
        """Copy a key as a payload; None if that does not work."""
        if not self._may_be_whole(kind):
            return None
        payload = values.dump(self._source, key)
        end = self._source.ask(key, "PTTL", key)
        if payload is None or end == -2:
            return None
        dumped = values.Dumped(key, payload, values.ttl_of(end))
        warnings = self._restorer.restore(dumped, self._clock.now_ms())
        if warnings is None:
            return None
        self.report.warnings += warnings
        return "whole"

    def _copy_by_commands(self, key: bytes, found: Found, *, goes_on: bool) -> str:
        kind = found.kinds[key]
        if kind == "stream":
            if not goes_on:
                self._target.ask(key, "DEL", key)
            if found.lengths.get(key, 0) > _LONG and not goes_on:
                self._notes.begin_stream(key)
            way = self._rebuild(key, self._note_page)
        elif kind in values.PLAIN:
            values.copy_plain(self._source, self._target, key, kind)
            self.report.warnings += values.lost_ends(self._source, key, kind)
            way = "plain"
        else:
            self.report.problems.append(f"{name_of(key)}: a value of type {kind} is not understood by the target")
            return ""
        ttl_ms = self._source.ask(key, "PTTL", key)
        if ttl_ms >= 0:
            self._target.ask(key, "PEXPIRE", key, ttl_ms)
        return way

    def _rebuild(self, key: bytes, on_page: OnPage) -> str:
        """Rebuild a stream. Returns "entries", or "" if the stream has gone."""
        if not self._source.ask(key, "EXISTS", key):
            return ""
        # a source that cannot release and keeps no records hides nothing
        payload = values.dump(self._source, key) if self._source.knows("xcfgset") else None
        hidden = values.hidden_of(payload, self._clock.now_ms())
        done = rebuild(self._source, self._target, key, hidden=hidden, on_page=on_page)
        self.report.warnings += done.warnings
        return "entries"

    def _note_page(self, count: int, last: bytes) -> None:
        self._watcher.step(count)
        if self._notes.current is not None:
            self._notes.at(last)

    # Catching up

    def _catch_up(self, before: Found) -> None:
        """Copy the keys that are new or have changed since."""
        self._watcher.begin("catching up", len(self._notes.done))
        now = self._look()
        new = [key for key in now.kinds if key not in before.kinds]
        done = dict(self._notes.done)
        for key, result in verify.compare_all(self._source, self._target, list(done), deep=False):
            if key not in now.kinds:
                self._drop(key)
            elif result.problems:
                self._copy_again(key, done[key], now)
            self._watcher.step()
        for key in self._begin(new):
            self._copy(key, now)
        self.report.found = now

    def _drop(self, key: bytes) -> None:
        """Delete the copy of a key that has gone from the source."""
        if not self._source.ask(key, "EXISTS", key):
            self._target.ask(key, "DEL", key)
            self._notes.forget(key)

    def _copy_again(self, key: bytes, way: str, now: Found) -> None:
        self.report.caught_up += 1
        logger.info("Has changed on the source: %s", name_of(key))
        if way == "entries" and self._target.ask(key, "TYPE", key) == b"stream" == now.kinds[key].encode():
            self._rebuild(key, lambda count, last: None)
            return
        way = self._copy_whole(key, now.kinds[key]) or self._copy_by_commands(key, now, goes_on=False)
        self._notes.finish(key, way)

    # Verifying

    def _verify(self) -> None:
        self._watcher.begin("verifying", len(self._notes.done))
        for _, result in verify.compare_all(self._source, self._target, list(self._notes.done)):
            self.report.problems += result.problems
            self.report.ghosts += result.ghosts
            self._watcher.step()
