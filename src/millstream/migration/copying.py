"""Rebuild one stream by commands, in steps that can be interrupted and repeated.

    1  counters of the source                what comes later is for the next time
    2  its entries up to there, in pages     XADD with their ids, behind what the target has
    3  XSETID                                the counters
    4  each group, made anew                 XGROUP CREATE, consumers, XCLAIM … FORCE, XNACK … FORCE
    5  XCFGSET, XIDMPRECORD                  idempotent production, where the target knows it

Commands cannot bring back: pending entries whose entry is gone, when a consumer was last seen or active, how often an
idempotent id came again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import redis

from millstream.migration.place import Endpoint, Words
from millstream.migration.streams import Hidden, Info, Pending, SourceGroup, read_groups
from millstream.persistence.rdb import RELEASED_TO
from millstream.printable import printable

_PAGE_BYTES: Final = 1 << 20  # what a page of entries should come to
_FIRST_PAGE: Final = 100
_MOST_ENTRIES: Final = 2000  # in a page
_MOST_IDS: Final = 64  # in an XNACK or XCLAIM
_BATCH: Final = 500  # commands sent together

OnPage = Callable[[int, bytes], None]  # told how many entries were copied and the last one's id


@dataclass(slots=True)
class Rebuilt:
    """The result of rebuilding a stream."""

    entries: int = 0  # copied this time
    ghosts: int = 0  # pending entries that commands cannot bring back
    warnings: list[str] = field(default_factory=list)


def rebuild(
    source: Endpoint, target: Endpoint, key: bytes, *, hidden: Hidden | None, on_page: OnPage = lambda count, last: None
) -> Rebuilt:
    """Rebuild a stream on the target, after the entries that it has already."""
    info = Info.read(source, key)
    done = Rebuilt()
    done.entries = copy_entries(source, target, key, upto=info.last, on_page=on_page)
    _trim_front(source, target, key)
    _set_counters(target, key, info)
    make_groups(source, target, key, hidden, done)
    _make_idempotent(target, key, info, hidden, done)
    return done


# Entries


def copy_entries(source: Endpoint, target: Endpoint, key: bytes, *, upto: bytes, on_page: OnPage) -> int:
    """Append the entries that the target lacks, up to an id. Returns their number."""
    last = last_id(target, key)
    total, size = 0, _FIRST_PAGE
    while True:
        page = source.ask(key, "XRANGE", key, "-" if last is None else b"(" + last, upto, "COUNT", size)
        if not page:
            return total
        target.ask_all(key, [("XADD", key, entry_id, *fields) for entry_id, fields in page])
        last = page[-1][0]
        total += len(page)
        on_page(len(page), last)
        taken = sum(len(word) for _, fields in page for word in fields) + 32 * len(page)
        size = max(1, min(_MOST_ENTRIES, 2 * size, _PAGE_BYTES * len(page) // taken))


def last_id(place: Endpoint, key: bytes) -> bytes | None:
    """Return the last id that a stream has given out; None if there is no stream or it never had an entry."""
    if not place.ask(key, "EXISTS", key):
        return None
    last = Info.read(place, key).last
    return None if last == b"0-0" else last


def _trim_front(source: Endpoint, target: Endpoint, key: bytes) -> None:
    """Trim the target as the source was trimmed since it was copied."""
    if not target.ask(key, "EXISTS", key):
        return
    first = source.ask(key, "XRANGE", key, "-", "+", "COUNT", 1)
    if first:
        target.ask(key, "XTRIM", key, "MINID", "=", first[0][0])
    else:
        target.ask(key, "XTRIM", key, "MAXLEN", "=", 0)


def _set_counters(target: Endpoint, key: bytes, info: Info) -> None:
    if not target.ask(key, "EXISTS", key):
        target.ask(key, "XADD", key, "MAXLEN", 0, "0-1", "x", "y")  # as Redis writes an empty stream into its log
    words: Words = ("XSETID", key, info.last)
    if info.entries_added is not None and info.max_deleted is not None:
        try:
            target.ask(key, *words, "ENTRIESADDED", info.entries_added, "MAXDELETEDID", info.max_deleted)
            return
        except redis.ResponseError:
            pass  # before Redis 7, which does not count; or counters that XSETID itself has made impossible
    target.ask(key, *words)


# Groups


def make_groups(source: Endpoint, target: Endpoint, key: bytes, hidden: Hidden | None, done: Rebuilt) -> None:
    """Replace the groups of the target by those of the source."""
    groups = read_groups(source, key)
    there = [reply[reply.index(b"name") + 1] for reply in target.ask(key, "XINFO", "GROUPS", key)]
    target.ask_all(key, [("XGROUP", "DESTROY", key, name) for name in there])
    for group in groups:
        _create_group(target, key, group)
        _claim(target, key, group, done)
        _release(target, key, group, hidden, done)


def _create_group(target: Endpoint, key: bytes, group: SourceGroup) -> None:
    words: Words = ("XGROUP", "CREATE", key, group.name, group.last)
    try:
        target.ask(key, *words, *(() if group.entries_read is None else ("ENTRIESREAD", group.entries_read)))
    except redis.ResponseError:
        if group.entries_read is None:
            raise
        target.ask(key, *words)  # before Redis 7
    target.ask_all(key, [("XGROUP", "CREATECONSUMER", key, group.name, name) for name in group.consumers])


def _claim(target: Endpoint, key: bytes, group: SourceGroup, done: Rebuilt) -> None:
    """Claim pending entries for their consumers, oldest delivery first."""
    held = sorted((each for each in group.pending if each.consumer is not None), key=lambda each: each.time_ms)
    done.ghosts += len(held) - _run_counted(target, key, _claims(key, group.name, held))


def _claims(key: bytes, group: bytes, held: list[Pending]) -> Iterator[Words]:
    for (consumer, time_ms, count), same in groupby(held, lambda each: (each.consumer, each.time_ms, each.count)):
        for ids in _chunks([each.id for each in same]):
            yield _claim_words(key, group, consumer or b"", ids, time_ms, count)


def _claim_words(key: bytes, group: bytes, consumer: bytes, ids: list[bytes], time_ms: int, count: int) -> Words:
    options = ("TIME", time_ms, "RETRYCOUNT", count, "FORCE", "JUSTID")
    return ("XCLAIM", key, group, consumer, 0, *ids, *options)


def _release(target: Endpoint, key: bytes, group: SourceGroup, hidden: Hidden | None, done: Rebuilt) -> None:
    """Release the entries that are released on the source, in its order where that is known."""
    counts = {each.id: each.count for each in group.pending if each.consumer is None}
    if not counts:
        return
    order = (hidden.zones.get(group.name) if hidden else None) or []
    line = [entry_id for entry_id in order if entry_id in counts]
    line += sorted(counts.keys() - set(line), key=_order)
    if len(line) > 1 and not order:
        done.warnings.append(f"{_group(key, group.name)}: released entries are now in the order of their ids")
    if not target.knows("xnack"):
        done.warnings.append(no_release(key, group.name, len(line)))
    commands = _releases(key, group.name, line, counts, can_release=target.knows("xnack"))
    done.ghosts += len(line) - _run_counted(target, key, commands)


def _releases(
    key: bytes, group: bytes, line: list[bytes], counts: dict[bytes, int], *, can_release: bool
) -> Iterator[Words]:
    for count, same in groupby(line, counts.__getitem__):
        for ids in _chunks(list(same)):
            if can_release:
                yield ("XNACK", key, group, "FAIL", "IDS", len(ids), *ids, "RETRYCOUNT", count, "FORCE")
            else:
                yield _claim_words(key, group, RELEASED_TO, ids, 0, count)


def no_release(key: bytes, group: bytes, count: int) -> str:
    """Return the warning for a target that cannot release."""
    name = RELEASED_TO.decode()
    return f"{_group(key, group)}: the target has no XNACK: {count} released entries now belong to consumer {name!r}"


def _run_counted(target: Endpoint, key: bytes, commands: Iterator[Words]) -> int:
    """Run commands that answer with ids or a number of ids. Returns the total number of ids."""
    total, batch = 0, []
    for words in commands:
        batch.append(words)
        if len(batch) == _BATCH:
            total += _counted(target, key, batch)
            batch = []
    return total + _counted(target, key, batch)


def _counted(target: Endpoint, key: bytes, batch: list[Words]) -> int:
    replies = target.ask_all(key, batch) if batch else []
    return sum(reply if isinstance(reply, int) else len(reply) for reply in replies)


# Idempotent production


def _make_idempotent(target: Endpoint, key: bytes, info: Info, hidden: Hidden | None, done: Rebuilt) -> None:
    records = hidden.records if hidden else []
    if info.idmp is None:
        return
    if not target.knows("xcfgset"):
        if records:
            done.warnings.append(f"{name_of(key)}: the target has no idempotent production: its records are not copied")
        return
    duration_s, most = info.idmp
    target.ask(key, "XCFGSET", key, "IDMP-DURATION", duration_s, "IDMP-MAXSIZE", most)
    if records and target.knows("xidmprecord"):
        commands = [("XIDMPRECORD", key, *record) for record in records]
        target.ask_all(key, commands, strict=False)  # refused for entries that are gone, whose record is of no use


# Words


def name_of(key: bytes) -> str:
    """Return a key as text that is safe to print."""
    return printable(key)


def _group(key: bytes, group: bytes) -> str:
    return f"{name_of(key)}, group {name_of(group)}"


def _chunks(ids: list[bytes]) -> Iterator[list[bytes]]:
    for at in range(0, len(ids), _MOST_IDS):
        yield ids[at : at + _MOST_IDS]


def _order(entry_id: bytes) -> tuple[int, int]:
    ms, _, seq = entry_id.partition(b"-")
    return int(ms), int(seq)
