"""Compare the target with the source. Both are read again; results of the copying are not trusted.

Of a stream are compared: length, first and last id, a checksum over ids and fields, each group's last id and
consumers, each pending entry's owner and count. Of plain values: all elements. Of others: the type.

A pending entry whose entry is gone from the stream cannot be made by commands: if it is missing, it is counted and is
no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from millstream.migration.copying import name_of
from millstream.migration.place import Endpoint
from millstream.migration.streams import Info, Pending, SourceGroup, read_groups
from millstream.migration.values import PLAIN, pages
from millstream.persistence.rdb import RELEASED_TO

_TOGETHER: Final = 50  # keys asked for in one go
_PAGE: Final = 1000
_SHOWN: Final = 3  # ids in a message


@dataclass(slots=True)
class Comparison:
    """The differences in words, and the number of pending entries that cannot be copied because their entry is gone."""

    problems: list[str] = field(default_factory=list)
    ghosts: int = 0


@dataclass(frozen=True, slots=True)
class _Ends:
    """Source and target, asked the same for many keys."""

    source: Endpoint
    target: Endpoint

    def ask_each(self, keys: Sequence[bytes], *words: str) -> list[tuple[Any, Any]]:
        return list(zip(*(place.ask_each(keys, *words) for place in (self.source, self.target)), strict=True))


def compare_all(
    source: Endpoint, target: Endpoint, keys: Sequence[bytes], *, deep: bool = True
) -> Iterator[tuple[bytes, Comparison]]:
    """Compare keys of source and target; without `deep` no entries are read."""
    ends = _Ends(source, target)
    for at in range(0, len(keys), _TOGETHER):
        some = keys[at : at + _TOGETHER]
        kinds, times = ends.ask_each(some, "TYPE"), ends.ask_each(some, "PTTL")
        strings = [key for key, both in zip(some, kinds, strict=True) if both == (b"string", b"string")]
        texts = dict(zip(strings, ends.ask_each(strings, "GET"), strict=True))
        for key, both, left in zip(some, kinds, times, strict=True):
            found = Comparison()
            problems = [*_compare_types(both, left), *_compare_contents(ends, key, both, texts.get(key), deep, found)]
            found.problems = [f"{name_of(key)}: {problem}" for problem in problems]
            yield key, found


def _compare_types(kinds: tuple[bytes, bytes], left: tuple[int, int]) -> Iterator[str]:
    if kinds[0] != kinds[1]:
        ours, theirs = (_article(kind.decode()) for kind in kinds)
        yield f"is {ours} on the source and {theirs} on the target"
    elif (left[0] >= 0) != (left[1] >= 0):
        yield "expires at one end only"


def _compare_contents(
    ends: _Ends, key: bytes, kinds: tuple[bytes, bytes], texts: tuple[Any, Any] | None, deep: bool, found: Comparison
) -> Iterator[str]:
    kind = kinds[0].decode()
    if kinds[0] != kinds[1]:
        return
    if kind == "stream":
        yield from _compare_streams(ends.source, ends.target, key, deep, found)
    elif texts is not None:
        if texts[0] != texts[1]:
            yield "the string has other contents"
    elif kind in PLAIN and digest(ends.source, key, kind) != digest(ends.target, key, kind):
        yield f"the {kind} has other contents"


def _article(kind: str) -> str:
    return "not there" if kind == "none" else f"of type {kind}"


def _compare_streams(source: Endpoint, target: Endpoint, key: bytes, deep: bool, found: Comparison) -> Iterator[str]:
    ours, theirs = Info.read(source, key), Info.read(target, key)
    if ours.length != theirs.length:
        yield f"{ours.length} entries on the source, {theirs.length} on the target"
    if ours.last != theirs.last:
        yield f"last id {name_of(ours.last)} on the source, {name_of(theirs.last)} on the target"
    for what, first in (("first", ("-", "+")), ("last", ("+", "-"))):
        if _end(source, key, what, *first) != _end(target, key, what, *first):
            yield f"the {what} entry is another one"
    if deep and checksum(source, key) != checksum(target, key):
        yield "the checksums over ids and fields differ"
    yield from _compare_groups(source, target, key, found)


def _end(place: Endpoint, key: bytes, what: str, start: str, end: str) -> Any:
    command = "XRANGE" if what == "first" else "XREVRANGE"
    return [entry_id for entry_id, _ in place.ask(key, command, key, start, end, "COUNT", 1)]


def checksum(place: Endpoint, key: bytes) -> str:
    """Compute a checksum over the ids and fields of a stream, in order."""
    total = blake2b(digest_size=16)
    start = b"-"
    while page := place.ask(key, "XRANGE", key, start, "+", "COUNT", _PAGE):
        for entry_id, fields in page:
            # lengths first, so that no two entries are the same bytes
            total.update(b"%d %s " % (len(fields), entry_id))
            total.update(b" ".join(b"%d" % len(word) for word in fields) + b":" + b"".join(fields))
        start = b"(" + page[-1][0]
    return total.hexdigest()


def digest(place: Endpoint, key: bytes, kind: str) -> str:
    """Compute a checksum over the elements of a plain value; their order counts in a list only."""
    flat = [word for page in pages(place, key, kind) for word in page]
    if kind != "list":
        width = 1 if kind == "set" else 2
        flat = sorted({tuple(flat[at : at + width]) for at in range(0, len(flat), width)})
    return blake2b(repr(flat).encode()).hexdigest()


# Groups


def _compare_groups(source: Endpoint, target: Endpoint, key: bytes, found: Comparison) -> Iterator[str]:
    ours = {group.name: group for group in read_groups(source, key)}
    theirs = {group.name: group for group in read_groups(target, key)}
    for name in sorted(ours.keys() ^ theirs.keys()):
        yield f"group {name_of(name)} is only on the {'source' if name in ours else 'target'}"
    for name in sorted(ours.keys() & theirs.keys()):
        problems = _compare_group(source, target, key, ours[name], theirs[name], found)
        yield from (f"group {name_of(name)}: {problem}" for problem in problems)


def _compare_group(
    source: Endpoint, target: Endpoint, key: bytes, ours: SourceGroup, theirs: SourceGroup, found: Comparison
) -> Iterator[str]:
    if ours.last != theirs.last:
        yield f"has read up to {name_of(ours.last)} on the source, {name_of(theirs.last)} on the target"
    missing = sorted(set(ours.consumers) - set(theirs.consumers))
    if missing:
        yield f"consumers are missing: {_some(missing)}"
    can_release = target.knows("xnack")
    here = {each.id: _owned(each, can_release) for each in ours.pending}
    there = {each.id: _owned(each, can_release) for each in theirs.pending}
    lost = [entry_id for entry_id in here if entry_id not in there]
    ghosts = set(_gone(source, key, lost))
    found.ghosts += len(ghosts)
    yield from _say("pending entries are missing", [each for each in lost if each not in ghosts])
    yield from _say("entries are pending on the target only", [each for each in there if each not in here])
    changed = [each for each, row in here.items() if each in there and there[each] != row]
    yield from _say("pending entries have another owner or count", changed)


def _owned(entry: Pending, can_release: bool) -> tuple[bytes | None, int]:
    """Return owner and count; on targets without XNACK a released entry belongs to the consumer RELEASED_TO."""
    owner = entry.consumer if can_release or entry.consumer is not None else RELEASED_TO
    return owner, entry.count


def _gone(source: Endpoint, key: bytes, ids: list[bytes]) -> Iterator[bytes]:
    """Yield the ids whose entry is no longer in the stream."""
    for at in range(0, len(ids), _PAGE):
        some = ids[at : at + _PAGE]
        replies = source.ask_all(key, [("XRANGE", key, each, each) for each in some])
        yield from (each for each, entries in zip(some, replies, strict=True) if not entries)


def _say(what: str, ids: list[bytes]) -> Iterator[str]:
    if ids:
        yield f"{len(ids)} {what}: {_some(ids)}"


def _some(names: list[bytes]) -> str:
    more = ", …" if len(names) > _SHOWN else ""
    return ", ".join(map(name_of, names[:_SHOWN])) + more
