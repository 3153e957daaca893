"""Sorted sets: members with scores, in order of score and then of bytes: delay sets, time windows, rankings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import dropwhile, islice, takewhile
from typing import Final

from millstream.engine import faults
from millstream.engine.commands.plain.common import changed, drop_if_empty, positive, window
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.keys.values import SortedSet
from millstream.engine.outcome import NIL_ARRAY, Reply, Scored
from millstream.engine.table import Registry
from millstream.engine.text.args import I64_MAX, integer
from millstream.engine.text.floats import parse_bound, parse_double

REGISTRY = Registry("sorted_set")


def _score(word: bytes) -> float:
    value = parse_double(word)
    if value is None:
        raise fault(faults.NOT_A_FLOAT)
    return value


# Adding


_ZADD_WORDS: Final = frozenset({b"NX", b"XX", b"GT", b"LT", b"CH", b"INCR"})


@dataclass(frozen=True, slots=True)
class ZAdd:
    """Scores and members to set, and the options."""

    options: frozenset[bytes]
    pairs: list[tuple[float, bytes]]


def _parse_zadd(argv: list[bytes]) -> ZAdd:
    at = 2
    options = set()
    while at < len(argv) and (word := argv[at].upper()) in _ZADD_WORDS:
        options.add(word)
        at += 1
    words = argv[at:]
    if not words or len(words) % 2:
        raise fault(faults.SYNTAX)
    if {b"NX", b"XX"} <= options:
        raise fault(faults.ZADD_NX_WITH_XX)
    if len(options & {b"NX", b"GT", b"LT"}) > 1:
        raise fault(faults.ZADD_GT_LT_NX)
    if b"INCR" in options and len(words) > 2:
        raise fault(faults.ZADD_INCR_ONE)
    pairs = [(_score(score), member) for score, member in zip(words[::2], words[1::2], strict=True)]
    return ZAdd(frozenset(options), pairs)


def _new_score(options: frozenset[bytes], old: float | None, score: float) -> float | None:
    """Return the new score of a member, or None to leave it unchanged."""
    if old is None:
        return None if b"XX" in options else score
    if b"NX" in options:
        return None
    if b"INCR" in options:
        score += old
        if math.isnan(score):
            raise fault(faults.SCORE_IS_NAN)
    if (b"GT" in options and score <= old) or (b"LT" in options and score >= old):
        return None
    return score


def _add(call: CommandContext, argv: list[bytes], command: ZAdd) -> tuple[int, int, float | None]:
    """Set the pairs. Returns the number of new members, the number of changed scores, and the last score set."""
    key = argv[1]
    found = call.typed(key, SortedSet)
    if found is None:
        if b"XX" in command.options:
            return 0, 0, None
        found = SortedSet()
        call.add(key, found)
    added = updated = 0
    score = None
    for wanted, member in command.pairs:
        old = found.scores.get(member)
        score = _new_score(command.options, old, wanted)
        if score is None:
            continue
        added += found.put(member, score)
        updated += old is not None and old != score
    if added + updated:
        event = b"zincr" if b"INCR" in command.options else b"zadd"
        changed(call, key, "z", event, argv, added + updated)
    return added, updated, score


@REGISTRY.command(
    "zadd",
    -4,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW update",
    since="1.2.0",
    summary="Sets the scores of members; answers how many members are new, or with CH how many changed.",
)
def zadd(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZADD key [NX | XX] [GT | LT] [CH] [INCR] score member [score member ...]"""
    command = _parse_zadd(argv)
    added, updated, score = _add(call, argv, command)
    if b"INCR" in command.options:
        return score
    return added + updated if b"CH" in command.options else added


@REGISTRY.command(
    "zincrby",
    4,
    "write denyoom fast",
    keys=(1, 1, 1),
    access="RW access update",
    since="1.2.0",
    summary="Adds a number to a member's score, which starts at 0; answers the new score.",
)
def zincrby(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZINCRBY key increment member"""
    command = _parse_zadd(argv)  # as in ZADD, an increment that looks like an option is taken for one
    return _add(call, argv, replace(command, options=frozenset({b"INCR"})))[2]


# Single members


@REGISTRY.command(
    "zscore",
    3,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO access",
    since="1.2.0",
    summary="Answers the score of a member.",
)
def zscore(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZSCORE key member"""
    found = call.typed_to_read(argv[1], SortedSet)
    return None if found is None else found.scores.get(argv[2])


@REGISTRY.command(
    "zmscore",
    -3,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO access",
    since="6.2.0",
    summary="Answers the scores of several members, nil for those that do not exist.",
)
def zmscore(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZMSCORE key member [member ...]"""
    found = call.typed_to_read(argv[1], SortedSet) or SortedSet()
    return [found.scores.get(member) for member in argv[2:]]


@REGISTRY.command(
    "zcard",
    2,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO",
    since="1.2.0",
    summary="Counts the members of a sorted set.",
)
def zcard(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZCARD key"""
    return len(call.typed_to_read(argv[1], SortedSet) or ())


def _rank(call: CommandContext, argv: list[bytes], *, reverse: bool) -> Reply:
    if len(argv) > 4:
        raise faults.wrong_arity("zrevrank" if reverse else "zrank")
    with_score = len(argv) == 4
    if with_score and argv[3].upper() != b"WITHSCORE":
        raise fault(faults.SYNTAX)
    found = call.typed_to_read(argv[1], SortedSet)
    if found is None or argv[2] not in found.scores:
        return NIL_ARRAY if with_score else None
    rank = found.rank(argv[2])
    rank = len(found) - 1 - rank if reverse else rank
    return [rank, found.scores[argv[2]]] if with_score else rank


@REGISTRY.command(
    "zrank",
    -3,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO access",
    since="2.0.0",
    summary="Answers how many members come before one.",
)
def zrank(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZRANK key member [WITHSCORE]"""
    return _rank(call, argv, reverse=False)


@REGISTRY.command(
    "zrevrank",
    -3,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO access",
    since="2.0.0",
    summary="Answers how many members come after one.",
)
def zrevrank(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZREVRANK key member [WITHSCORE]"""
    return _rank(call, argv, reverse=True)


# Ranges


@dataclass(frozen=True, slots=True)
class ScoreRange:
    """A range of scores; each end is included or excluded."""

    low: float
    high: float
    without_low: bool
    without_high: bool

    def ranks(self, found: SortedSet) -> tuple[int, int]:
        """Return the ranks of the range, half-open."""
        start = found.from_score(self.low, beyond=self.without_low)
        return start, max(start, found.from_score(self.high, beyond=not self.without_high))


def _bound(word: bytes) -> tuple[float, bool]:
    """Read one end of a score range. Returns the score and whether it is excluded."""
    out = word.startswith(b"(")
    value = parse_bound(word[1:] if out else word)
    if value is None:
        raise fault(faults.BAD_SCORE_RANGE)
    return value, out


def _score_range(low: bytes, high: bytes) -> ScoreRange:
    (low_score, without_low), (high_score, without_high) = _bound(low), _bound(high)
    return ScoreRange(low_score, high_score, without_low, without_high)


@dataclass(frozen=True, slots=True)
class LexRange:
    """A range of members; each end is included or excluded. None is the very first or the very last."""

    low: bytes | None
    high: bytes | None
    without_low: bool
    without_high: bool
    nothing: bool  # starts at `+` or ends at `-`

    def above_low(self, member: bytes) -> bool:
        return self.low is None or (member > self.low if self.without_low else member >= self.low)

    def below_high(self, member: bytes) -> bool:
        return self.high is None or (member < self.high if self.without_high else member <= self.high)


def _lex_bound(word: bytes) -> tuple[bytes | None, bool]:
    """Read one end of a member range. Returns the member (None for `-` and `+`) and whether it is excluded."""
    if word in (b"-", b"+"):
        return None, False
    if word[:1] not in (b"(", b"["):
        raise fault(faults.BAD_LEX_RANGE)
    return word[1:], word[:1] == b"("


def lex_range(low: bytes, high: bytes) -> LexRange:
    (first, without_low), (last, without_high) = _lex_bound(low), _lex_bound(high)
    return LexRange(first, last, without_low, without_high, low == b"+" or high == b"-")


def by_lex(found: SortedSet, wanted: LexRange, *, reverse: bool) -> Iterator[tuple[float, bytes]]:
    """Return the pairs of a member range."""
    if wanted.nothing or not len(found):
        return iter(())
    (low_score, first), (high_score, last) = next(iter(found)), next(reversed(found))
    if low_score == high_score:
        start, stop = _lex_ranks(found, wanted, low_score)
        return _between(found, start, stop, reverse=reverse)
    # The scores differ, so the range is not well defined. Follow Redis: start at the first member inside one end and
    # stop at the first member beyond the other.
    if not wanted.above_low(last) or not wanted.below_high(first):
        return iter(())
    if reverse:
        fitting = dropwhile(lambda pair: not wanted.below_high(pair[1]), reversed(found))
        return takewhile(lambda pair: wanted.above_low(pair[1]), fitting)
    fitting = dropwhile(lambda pair: not wanted.above_low(pair[1]), iter(found))
    return takewhile(lambda pair: wanted.below_high(pair[1]), fitting)


def _lex_ranks(found: SortedSet, wanted: LexRange, score: float) -> tuple[int, int]:
    """Return the ranks of a member range, half-open. All members have this score."""
    # the successor of a member in byte order is the member with a zero byte appended
    start, stop = 0, len(found)
    if wanted.low is not None:
        start = found.from_member(score, wanted.low + b"\0" * wanted.without_low)
    if wanted.high is not None:
        stop = found.from_member(score, wanted.high + b"\0" * (not wanted.without_high))
    return start, max(start, stop)


def _between(found: SortedSet, start: int, stop: int, *, reverse: bool) -> Iterator[tuple[float, bytes]]:
    """Return the pairs with rank start to stop - 1, the last one first if reversed."""
    if reverse:
        return found.between_reversed(len(found) - stop, len(found) - start)
    return found.between(start, stop)


@dataclass(slots=True)
class ZRange:
    """The options of a range command."""

    by: str | None = None  # rank, score, lex
    reverse: bool = False
    offset: int = 0
    limit: int = -1  # negative: no limit
    with_scores: bool = False


def parse_options(words: list[bytes], query: ZRange, *, free: bool, may_score: bool = True) -> None:
    """Read the options after the range. With `free` (ZRANGE) they include REV, BYSCORE and BYLEX."""
    at = 0
    while at < len(words):
        word = words[at].upper()
        if word == b"WITHSCORES" and may_score:
            query.with_scores = True
        elif word == b"LIMIT" and at + 2 < len(words):
            query.offset, query.limit = integer(words[at + 1]), integer(words[at + 2])
            at += 2
        elif free and word == b"REV" and not query.reverse:
            query.reverse = True
        elif free and word in (b"BYSCORE", b"BYLEX") and query.by is None:
            query.by = word[2:].decode().lower()
        else:
            raise fault(faults.SYNTAX)
        at += 1


def select(call: CommandContext, argv: list[bytes], query: ZRange) -> Iterator[tuple[float, bytes]]:
    """Return the pairs that `key first second` and the query's options choose; the order of its checks is Redis's."""
    by = query.by or "rank"
    if query.limit != -1 and by == "rank":
        raise fault(faults.LIMIT_NEEDS_BY)
    if query.with_scores and by == "lex":
        raise fault(faults.WITHSCORES_BYLEX)
    low, high = (argv[3], argv[2]) if query.reverse and by != "rank" else (argv[2], argv[3])
    if by == "rank":
        start, stop = integer(low), integer(high)
        return _by_rank(call.typed_to_read(argv[1], SortedSet) or SortedSet(), start, stop, reverse=query.reverse)
    if by == "score":
        scores = _score_range(low, high)
        found = call.typed_to_read(argv[1], SortedSet) or SortedSet()
        return _limited(_between(found, *scores.ranks(found), reverse=query.reverse), query)
    members = lex_range(low, high)
    return _limited(
        by_lex(call.typed_to_read(argv[1], SortedSet) or SortedSet(), members, reverse=query.reverse), query
    )


def answer_range(call: CommandContext, argv: list[bytes], query: ZRange, *, free: bool = False) -> Reply:
    """Answer a range command."""
    parse_options(argv[4:], query, free=free)
    pairs = select(call, argv, query)
    return with_scores(pairs) if query.with_scores else [member for _, member in pairs]


def _by_rank(found: SortedSet, start: int, stop: int, *, reverse: bool) -> Iterator[tuple[float, bytes]]:
    first, end = window(start, stop, len(found))
    return found.between_reversed(first, end) if reverse else found.between(first, end)


def _limited(pairs: Iterator[tuple[float, bytes]], query: ZRange) -> Iterator[tuple[float, bytes]]:
    """Apply LIMIT."""
    if query.offset < 0:
        return iter(())
    end = None if query.limit < 0 else min(query.offset + query.limit, I64_MAX)
    return pairs if end is None and not query.offset else islice(pairs, query.offset, end)


def with_scores(pairs: Iterable[tuple[float, bytes]]) -> Scored:
    return Scored(word for score, member in pairs for word in (member, score))


@REGISTRY.command(
    "zrange",
    -4,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="1.2.0",
    summary="Answers the members in a range of ranks, scores or bytes, in either direction.",
)
def zrange(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZRANGE key start stop [BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]"""
    return answer_range(call, argv, ZRange(), free=True)


@REGISTRY.command(
    "zrevrange",
    -4,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="1.2.0",
    summary="Answers the members in a range of ranks counted from the highest score.",
)
def zrevrange(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZREVRANGE key start stop [WITHSCORES]"""
    return answer_range(call, argv, ZRange(by="rank", reverse=True))


@REGISTRY.command(
    "zrangebyscore",
    -4,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="1.0.5",
    summary="Answers the members whose scores lie in a range.",
)
def zrangebyscore(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZRANGEBYSCORE key min max [WITHSCORES] [LIMIT offset count]"""
    return answer_range(call, argv, ZRange(by="score"))


@REGISTRY.command(
    "zrevrangebyscore",
    -4,
    "readonly",
    keys=(1, 1, 1),
    access="RO access",
    since="2.2.0",
    summary="Answers the members whose scores lie in a range, the highest first.",
)
def zrevrangebyscore(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZREVRANGEBYSCORE key max min [WITHSCORES] [LIMIT offset count]"""
    return answer_range(call, argv, ZRange(by="score", reverse=True))


@REGISTRY.command(
    "zcount",
    4,
    "readonly fast",
    keys=(1, 1, 1),
    access="RO access",
    since="2.0.0",
    summary="Counts the members whose scores lie in a range.",
)
def zcount(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZCOUNT key min max"""
    wanted = _score_range(argv[2], argv[3])
    start, stop = wanted.ranks(call.typed_to_read(argv[1], SortedSet) or SortedSet())
    return stop - start


# Removing


@REGISTRY.command(
    "zrem",
    -3,
    "write fast",
    keys=(1, 1, 1),
    access="RW delete",
    since="1.2.0",
    summary="Removes members from a sorted set; answers how many of them there were.",
)
def zrem(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZREM key member [member ...]"""
    found = call.typed(argv[1], SortedSet)
    if found is None:
        return 0
    return remove_members(call, argv, found, b"zrem", argv[2:])


def remove_members(
    call: CommandContext, argv: list[bytes], found: SortedSet, event: bytes, members: Iterable[bytes]
) -> int:
    """Remove members and report it. Returns the number removed."""
    removed = sum(found.discard(member) for member in members)
    if removed:
        changed(call, argv[1], "z", event, argv, removed)
        drop_if_empty(call, argv[1], found)
    return removed


@REGISTRY.command(
    "zremrangebyscore",
    4,
    "write",
    keys=(1, 1, 1),
    access="RW delete",
    since="1.2.0",
    summary="Removes the members whose scores lie in a range; answers how many it were.",
)
def zremrangebyscore(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZREMRANGEBYSCORE key min max"""
    wanted = _score_range(argv[2], argv[3])
    found = call.typed(argv[1], SortedSet)
    if found is None:
        return 0
    members = [member for _, member in found.between(*wanted.ranks(found))]
    return remove_members(call, argv, found, b"zremrangebyscore", members)


@REGISTRY.command(
    "zremrangebyrank",
    4,
    "write",
    keys=(1, 1, 1),
    access="RW delete",
    since="2.0.0",
    summary="Removes the members in a range of ranks; answers how many it were.",
)
def zremrangebyrank(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZREMRANGEBYRANK key start stop"""
    start, stop = integer(argv[2]), integer(argv[3])
    found = call.typed(argv[1], SortedSet)
    if found is None:
        return 0
    members = [member for _, member in found.between(*window(start, stop, len(found)))]
    return remove_members(call, argv, found, b"zremrangebyrank", members)


def _pop(call: CommandContext, argv: list[bytes], *, highest: bool) -> Reply:
    if len(argv) > 3:
        raise fault(faults.SYNTAX)
    count = positive(argv[2]) if len(argv) == 3 else 1
    found = call.typed(argv[1], SortedSet)
    if found is None or count == 0:
        return []
    pairs = list(found.between_reversed(0, count) if highest else found.between(0, count))
    remove_members(call, argv, found, b"zpopmax" if highest else b"zpopmin", [member for _, member in pairs])
    popped = with_scores(pairs)
    return popped if len(argv) == 3 else [*popped]


@REGISTRY.command(
    "zpopmin",
    -2,
    "write fast",
    keys=(1, 1, 1),
    access="RW access delete",
    since="5.0.0",
    summary="Removes the members with the lowest scores and answers them.",
)
def zpopmin(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZPOPMIN key [count]"""
    return _pop(call, argv, highest=False)


@REGISTRY.command(
    "zpopmax",
    -2,
    "write fast",
    keys=(1, 1, 1),
    access="RW access delete",
    since="5.0.0",
    summary="Removes the members with the highest scores and answers them.",
)
def zpopmax(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZPOPMAX key [count]"""
    return _pop(call, argv, highest=True)
