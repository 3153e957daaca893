"""Unions, intersections and differences of sorted sets; a plain set counts as one with scores of 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

from millstream.engine import faults
from millstream.engine.commands.derived.sets import limit_option
from millstream.engine.commands.derived.storing import store
from millstream.engine.commands.plain.sorted_sets import with_scores
from millstream.engine.commands.plain.waiting import keys_after
from millstream.engine.faults import fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.keys.values import SetOf, SortedSet
from millstream.engine.outcome import Reply
from millstream.engine.table import Registry
from millstream.engine.text.args import integer
from millstream.engine.text.floats import parse_double

REGISTRY = Registry("sorted_set")

Scores: TypeAlias = dict[bytes, float]
Aggregate: TypeAlias = Callable[[float, float], float]


def _sum(one: float, other: float) -> float:
    total = one + other
    return 0.0 if math.isnan(total) else total  # opposite infinities


_AGGREGATES: Final[dict[bytes, Aggregate]] = {b"SUM": _sum, b"MIN": min, b"MAX": max, b"COUNT": _sum}


@dataclass(slots=True)
class _Terms:
    """The inputs of a command and how their scores are combined."""

    inputs: list[Scores]
    weights: list[float]
    aggregate: Aggregate = _sum
    counts: bool = False  # AGGREGATE COUNT: every input gives a member its weight instead of its score
    with_scores: bool = False
    limit: int | None = None

    def sorted_inputs(self) -> list[tuple[Scores, float]]:
        """Return inputs and weights, the smallest input first: Redis adds scores in this order."""
        return sorted(zip(self.inputs, self.weights, strict=True), key=lambda pair: len(pair[0]))

    def weighted(self, score: float, weight: float) -> float:
        if self.counts:
            return weight
        value = weight * score
        return 0.0 if math.isnan(value) else value  # zero times infinity


def _scores(value: object | None) -> Scores:
    if value is None:
        return {}
    if isinstance(value, SortedSet):
        return value.scores
    if isinstance(value, SetOf):
        return dict.fromkeys(value, 1.0)
    raise fault(faults.WRONG_TYPE)


@dataclass(frozen=True, slots=True)
class _Form:
    """What a command takes besides its keys."""

    name: str
    weighs: bool = True
    stores: bool = False
    counts: bool = False  # ZINTERCARD


def _parse(call: CommandContext, argv: list[bytes], form: _Form) -> _Terms:
    at = 2 if form.stores else 1
    number = integer(argv[at])
    if number < 1:
        raise faults.no_input_key(form.name)
    if number > len(argv) - at - 1:
        raise fault(faults.SYNTAX)
    inputs = [_scores(call.lookup_to_read(key)) for key in argv[at + 1 : at + 1 + number]]
    terms = _Terms(inputs, [1.0] * number)
    words = argv[at + 1 + number :]
    while words:
        words = words[_read_option(terms, words, form) :]
    return terms


def _read_option(terms: _Terms, words: list[bytes], form: _Form) -> int:
    """Read one option; return the number of words that it takes."""
    option, number = words[0].upper(), len(terms.inputs)
    takes_scores = form.weighs and not form.counts
    if option == b"WEIGHTS" and takes_scores and len(words) > number:
        terms.weights = [_weight(word) for word in words[1 : number + 1]]
        return number + 1
    if option == b"AGGREGATE" and takes_scores and len(words) > 1 and words[1].upper() in _AGGREGATES:
        terms.aggregate = _AGGREGATES[words[1].upper()]
        terms.counts = words[1].upper() == b"COUNT"
        return 2
    if option == b"WITHSCORES" and not form.stores and not form.counts:
        terms.with_scores = True
        return 1
    if option == b"LIMIT" and form.counts and len(words) > 1:
        terms.limit = limit_option(words[1])
        return 2
    raise fault(faults.SYNTAX)


def _weight(word: bytes) -> float:
    value = parse_double(word)
    if value is None:
        raise fault(faults.WEIGHT_NOT_FLOAT)
    return value


def _union(terms: _Terms) -> Scores:
    result: Scores = {}
    for scores, weight in terms.sorted_inputs():
        for member, score in scores.items():
            value = terms.weighted(score, weight)
            result[member] = terms.aggregate(result[member], value) if member in result else value
    return result


def _intersection(terms: _Terms) -> Scores:
    (smallest, first_weight), *others = terms.sorted_inputs()
    result: Scores = {}
    for member, score in smallest.items():
        if not all(member in scores for scores, _ in others):
            continue
        value = terms.weighted(score, first_weight)
        for scores, weight in others:
            value = terms.aggregate(value, terms.weighted(scores[member], weight))
        result[member] = value
    return result


def _difference(terms: _Terms) -> Scores:
    first, *others = terms.inputs
    return {member: score for member, score in first.items() if not any(member in scores for scores in others)}


_Combine: TypeAlias = Callable[[_Terms], Scores]


def _answer(call: CommandContext, argv: list[bytes], form: _Form, combine: _Combine) -> Reply:
    terms = _parse(call, argv, form)
    pairs = sorted((score + 0.0, member) for member, score in combine(terms).items())
    return with_scores(pairs) if terms.with_scores else [member for _, member in pairs]


def _store(call: CommandContext, argv: list[bytes], form: _Form, combine: _Combine) -> Reply:
    result = SortedSet()
    for member, score in combine(_parse(call, argv, form)).items():
        result.put(member, score)
    return store(call, argv[1], result, "z", form.name.encode(), argv)


_reads = partial(REGISTRY.command, flags="readonly movablekeys", find_keys=keys_after(1), access="RO access")
_writes = partial(
    REGISTRY.command,
    flags="write denyoom movablekeys",
    keys=(1, 1, 1),
    find_keys=keys_after(2, before=(1,)),
    access="OW update",
    rest_access="RO access",
)


@_reads("zunion", -3, since="6.2.0", summary="Answers the members of several sorted sets, their scores combined.")
def zunion(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZUNION numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX | COUNT>] [WITHSCORES]"""
    return _answer(call, argv, _Form("zunion"), _union)


@_reads("zinter", -3, since="6.2.0", summary="Answers the members that several sorted sets have in common.")
def zinter(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZINTER numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX | COUNT>] [WITHSCORES]"""
    return _answer(call, argv, _Form("zinter"), _intersection)


@_reads("zdiff", -3, since="6.2.0", summary="Answers the members of the first sorted set that the others do not have.")
def zdiff(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZDIFF numkeys key [key ...] [WITHSCORES]"""
    return _answer(call, argv, _Form("zdiff", weighs=False), _difference)


@_reads("zintercard", -3, since="7.0.0", summary="Counts the members that several sorted sets have in common.")
def zintercard(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZINTERCARD numkeys key [key ...] [LIMIT limit]"""
    terms = _parse(call, argv, _Form("zintercard", counts=True))
    return sum(1 for _ in islice(_intersection(terms), terms.limit))


@_writes("zunionstore", -4, since="2.0.0", summary="Stores the members of several sorted sets, their scores combined.")
def zunionstore(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZUNIONSTORE destination numkeys key [key ...] [WEIGHTS weight [weight ...]]
    [AGGREGATE <SUM | MIN | MAX | COUNT>]
    """
    return _store(call, argv, _Form("zunionstore", stores=True), _union)


@_writes("zinterstore", -4, since="2.0.0", summary="Stores the members that several sorted sets have in common.")
def zinterstore(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZINTERSTORE destination numkeys key [key ...] [WEIGHTS weight [weight ...]]
    [AGGREGATE <SUM | MIN | MAX | COUNT>]
    """
    return _store(call, argv, _Form("zinterstore", stores=True), _intersection)


@_writes("zdiffstore", -4, since="6.2.0", summary="Stores the members of the first sorted set that the others lack.")
def zdiffstore(call: CommandContext, argv: list[bytes]) -> Reply:
    """ZDIFFSTORE destination numkeys key [key ...]"""
    return _store(call, argv, _Form("zdiffstore", weighs=False, stores=True), _difference)
