"""Dead letters: list, show, redrive, discard. All calls block; the asyncio API runs them in a thread.

A dead letter is an entry of the stream `{stream}:dlq`: the entry's own fields, then ours (see lua/shared.lua, bury).
A redrive appends the entry to its stream again and removes the dead letter in one step, so an interrupted redrive can
be started again without doubling anything.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from millstream.client.calls import Call
from millstream.delivery.delivery import pairs
from millstream.delivery.keys import Keys
from millstream.delivery.steps import Publishing
from millstream.errors import ConfigError

T = TypeVar("T")
Rows = list  # alias, because `list` is also the name of a method
PAGE = 500
AT_ONCE = 100  # dead letters per redrive step


class RunsCalls(Protocol):
    def run(self, call: Call[T]) -> T: ...


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter."""

    id: str  # its own, in the dead-letter stream
    fields: tuple[tuple[bytes, bytes], ...]  # the entry's
    original_id: str
    reason: str
    error: str
    traceback: str
    attempts: int
    retry_count: int
    consumer: str
    group: str
    dead_at_ms: int
    redriven: int  # the number of earlier redrives

    @property
    def by_name(self) -> dict[bytes, bytes]:
        return dict(self.fields)


@dataclass(frozen=True, slots=True)
class Filter:
    """A choice of dead letters: all given conditions must hold."""

    reason: str | None = None
    error: str | None = None  # matches a part of the error
    group: str | None = None
    consumer: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    ids: frozenset[str] | None = None
    where: Callable[[Letter], bool] | None = None

    def matches(self, letter: Letter) -> bool:
        return (
            (self.reason is None or letter.reason == self.reason)
            and (self.error is None or self.error in letter.error)
            and (self.group is None or letter.group == self.group)
            and (self.consumer is None or letter.consumer == self.consumer)
            and (self.since_ms is None or letter.dead_at_ms >= self.since_ms)
            and (self.until_ms is None or letter.dead_at_ms <= self.until_ms)
            and (self.ids is None or letter.id in self.ids)
            and (self.where is None or self.where(letter))
        )


def filter_of(which: Filter | None, criteria: Mapping[str, Any]) -> Filter:
    """Return a filter from its conditions by name. `since` and `until` may be "90s", "15m", "1h", "2d" ago."""
    if not criteria:
        return which or Filter()
    given = dict(criteria)
    for name in ("since", "until"):
        if name in given:
            given[f"{name}_ms"] = time.time_ns() // 1_000_000 - round(seconds_of(given.pop(name)) * 1000)
    if isinstance(given.get("ids"), Iterable):
        given["ids"] = frozenset(map(str, given["ids"]))
    unknown = given.keys() - Filter.__dataclass_fields__.keys()
    if unknown or which is not None:
        what = f"{', '.join(sorted(unknown))}: no such condition" if unknown else "a Filter and conditions by name"
        raise ConfigError(f"{what}; give a Filter, or: reason, error, group, consumer, since, until, ids, where")
    return Filter(**given)


def seconds_of(text: str | float) -> float:
    """Return a duration in seconds: a number, or a text with the unit s, m, h or d."""
    if isinstance(text, int | float):
        return float(text)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is not a duration: write a number with s, m, h or d, such as 15m")
    return float(match.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match.group(2)]


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of a redrive or discard, or with dry_run the expected result."""

    matched: int
    done: int
    gone: int  # moved by another process meanwhile
    ids: tuple[str, ...] = field(default=(), repr=False)  # the dead letters that matched
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of one stream."""

    backend: RunsCalls
    keys: Keys
    publishing: Publishing
    prefix: bytes = b"_"

    def count(self) -> int:
        """Return the number of dead letters of all groups."""
        call: Call[int] = Call(("XLEN", self.keys.dead), self.keys.dead, int)
        return self.backend.run(call)

    def list(self, which: Filter | None = None, *, limit: int | None = None, **criteria: Any) -> Iterator[Letter]:
        """Return dead letters, oldest first. Conditions are a Filter or names, with `since="1h"` for a time ago."""
        chosen, start, found = filter_of(which, criteria), b"-", 0
        while True:
            page = self._page(start)
            for letter in page:
                if chosen.matches(letter):
                    yield letter
                    found += 1
                    if found == limit:
                        return
            if len(page) < PAGE:
                return
            start = b"(" + page[-1].id.encode()

    def show(self, letter_id: str) -> Letter | None:
        """Return one dead letter by its id."""
        rows = self.backend.run(self._range(letter_id.encode(), letter_id.encode()))
        return self._letter(rows[0]) if rows else None

    def redrive(
        self,
        which: Filter | None = None,
        *,
        rate: float | None = None,
        dry_run: bool = False,
        group: str | None = None,
        limit: int | None = None,
        progress: Callable[[int], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        **criteria: Any,
    ) -> Plan:
        """Send dead letters back to their stream, at most `rate` a second. A repeated call continues the work.

        Only the group that gave them up gets them (`group`: another one, "" all groups).
        """
        chosen = filter_of(which, criteria)
        return self._each(chosen, dry_run, limit, rate, sleep, progress, group, discard=False)

    def discard(
        self,
        which: Filter | None = None,
        *,
        dry_run: bool = False,
        limit: int | None = None,
        progress: Callable[[int], None] | None = None,
        **criteria: Any,
    ) -> Plan:
        """Remove dead letters for good."""
        return self._each(filter_of(which, criteria), dry_run, limit, None, time.sleep, progress, None, discard=True)

    def _each(
        self,
        which: Filter | None,
        dry_run: bool,
        limit: int | None,
        rate: float | None,
        sleep: Callable[[float], None],
        progress: Callable[[int], None] | None,
        group: str | None,
        *,
        discard: bool,
    ) -> Plan:
        # List first, then move: an entry that fails again meanwhile is a new dead letter and not part of this run.
        letters = list(self.list(which, limit=limit))
        ids = tuple(letter.id for letter in letters)
        if dry_run:
            return Plan(len(ids), 0, 0, ids, is_dry_run=True)
        at_once = AT_ONCE if rate is None else max(1, min(AT_ONCE, round(rate / 10)))
        done = gone = 0
        for first in range(0, len(letters), at_once):
            page = letters[first : first + at_once]
            for to_group, chosen in self._by_group(page, group).items():
                results = self.backend.run(self.publishing.redrive(chosen, group=to_group, discard=discard))
                gone += sum(result is None for result in results)
                done += sum(result is not None for result in results)
            if progress is not None:
                progress(len(page))
            if rate is not None and first + at_once < len(letters):
                sleep(len(page) / rate)
        return Plan(len(ids), done, gone, ids)

    def _by_group(self, page: Sequence[Letter], group: str | None) -> dict[bytes, Rows[bytes]]:
        """Return ids by target group."""
        sorted_: dict[bytes, Rows[bytes]] = {}
        for letter in page:
            to_group = letter.group if group is None else group
            sorted_.setdefault(to_group.encode("utf-8", "surrogateescape"), []).append(letter.id.encode())
        return sorted_

    def _page(self, start: bytes) -> Rows[Letter]:
        return [self._letter(row) for row in self.backend.run(self._range(start, b"+"))]

    def _range(self, start: bytes, end: bytes) -> Call[Rows[Any]]:
        return Call(("XRANGE", self.keys.dead, start, end, "COUNT", PAGE), self.keys.dead, list)

    def _letter(self, row: Any) -> Letter:
        flat: Rows[bytes] = row[1]
        known, own = self._split(flat)

        def text(name: bytes) -> str:
            return known.get(self.prefix + name, b"").decode("utf-8", "replace")

        def number(name: bytes) -> int:
            value = known.get(self.prefix + name, b"0")
            return int(value) if _is_number(value) else 0

        return Letter(
            row[0].decode(),
            pairs(own),
            text(b"original_id") or row[0].decode(),
            text(b"reason") or "retries",
            text(b"error"),
            text(b"traceback"),
            number(b"attempts") or number(b"retry_count") + 1,
            number(b"retry_count"),
            text(b"consumer"),
            known.get(self.prefix + b"group", b"").decode("utf-8", "surrogateescape"),  # a redrive adds the name again
            number(b"dead_at") or int(row[0].split(b"-")[0]),
            number(b"redriven"),
        )

    def _split(self, flat: Rows[bytes]) -> tuple[dict[bytes, bytes], Rows[bytes]]:
        """Split fields into ours by name and the entry's own in order. Other libraries write only two of ours."""
        if len(flat) >= 2 and flat[-2] == self.prefix + b"meta" and _is_number(flat[-1]):
            cut = len(flat) - 2 * int(flat[-1])
            if cut >= 0:
                return dict(pairs(flat[cut:])), flat[:cut]
        theirs = (b"retry_count", b"original_id")
        known = {name: value for name, value in pairs(flat) if name[len(self.prefix) :] in theirs}
        own = [word for name, value in pairs(flat) if name not in known for word in (name, value)]
        return known, own


def _is_number(value: bytes) -> bool:
    """Return whether a field is a 64-bit number. Other libraries may write anything there."""
    return value.isdigit() and len(value) < 20
