from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from millstream.engine.keys.values import Hash, List, SetOf, SortedSet

SCORES = st.sampled_from([-1.0, 0.0, 1.0, 2.5, float("inf"), float("-inf")])
CHANGES = st.lists(st.tuples(st.binary(max_size=1), st.one_of(st.none(), SCORES)), max_size=40)


@given(CHANGES)
def test_a_sorted_set_is_a_sorted_list_of_its_scores(changes: list[tuple[bytes, float | None]]) -> None:
    found, model = SortedSet(), {}
    for member, score in changes:
        if score is None:
            assert found.discard(member) == (model.pop(member, None) is not None)
        else:
            assert found.put(member, score) == (member not in model)
            model[member] = score
    _check(found, model)


def _check(found: SortedSet, model: dict[bytes, float]) -> None:
    pairs = sorted((score, member) for member, score in model.items())
    assert (list(found), list(reversed(found)), len(found)) == (pairs, pairs[::-1], len(pairs))
    for start in range(0, len(pairs) + 1, max(len(pairs) // 7, 1)):
        for stop in range(start, len(pairs) + 2, max(len(pairs) // 7, 1)):
            assert list(found.between(start, stop)) == pairs[start:stop]
            assert list(found.between_reversed(start, stop)) == pairs[::-1][start:stop]
    for rank, (_, member) in list(enumerate(pairs))[:: max(len(pairs) // 20, 1)]:
        assert found.rank(member) == rank
    for score in (-1.0, 0.0, 0.5, 1.0, float("inf"), float("-inf")):
        assert found.from_score(score) == sum(other < score for other, _ in pairs)
        assert found.from_score(score, beyond=True) == sum(other <= score for other, _ in pairs)


def test_a_large_sorted_set_stays_in_order_through_its_blocks() -> None:
    found, model, rng = SortedSet(), {}, Random(3)
    for _ in range(12_000):
        member = b"%d" % rng.randrange(6000)
        if rng.random() < 0.3:
            found.discard(member)
            model.pop(member, None)
        else:
            model[member] = float(rng.randrange(200))
            found.put(member, model[member])
    _check(found, model)
    for member in list(model):
        found.discard(member)
    assert list(found) == []
    found.put(b"again", 1.0)
    assert list(found) == [(1.0, b"again")]


@given(st.lists(st.tuples(st.binary(max_size=1), st.booleans()), max_size=40))
def test_a_set_keeps_members_and_their_places_together(changes: list[tuple[bytes, bool]]) -> None:
    found, model = SetOf(), set()
    for member, add in changes:
        assert (found.add(member) if add else found.discard(member)) == ((member in model) != add)
        (model.add if add else model.discard)(member)
        assert set(found) == model
        assert sorted(found[place] for place in range(len(found))) == sorted(model)
        assert all(member in found for member in model)


def test_copies_are_independent_and_equal() -> None:
    zset = SortedSet()
    zset.put(b"a", 1.0)
    for value in (Hash({b"a": b"1"}), List([b"a"]), SetOf([b"a"]), zset):
        twin = value.copy()
        assert type(twin) is type(value)
        assert twin == value
    twin = zset.copy()
    twin.put(b"b", 0.0)
    assert list(zset) == [(1.0, b"a")]
    assert twin != zset


def test_equal_sets_may_have_another_order() -> None:
    assert SetOf([b"a", b"b", b"a"]) == SetOf([b"b", b"a"])
    assert SetOf([b"a"]) != SetOf([b"b"])
