"""What a batch holds, how it is split, and what was lost: decided without a server."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.spark.ids import MAX_ID, first_of, parse_id, text_of
from millstream.spark.options import Bounds
from millstream.spark.range.filters import IdComparison, narrow
from millstream.spark.range.offsets import Cut, Offset, Position, from_json, spans_between, to_json
from millstream.spark.range.splits import (
    Window,
    after_loss,
    available,
    batch_spans,
    drained,
    first_position,
    lag_of,
    parts_for,
    shares,
)
from millstream.spark.runtime.errors import EntriesLost
from millstream.spark.wire.metadata import StreamState

NOW = first_of(1_700_000_000_000)
numbers = st.integers(0, MAX_ID)


def state(length: int, first: int, last: int, added: int, deleted: int = 0) -> StreamState:
    return StreamState(length, NOW + first, NOW + last, NOW + last, added, deleted)


@given(numbers)
def test_an_id_is_read_as_it_was_printed(number: int) -> None:
    assert parse_id(text_of(number)) == number


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "1-x", "1-2-3", str(2**64), f"1-{2**64}"])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an entry id"):
        parse_id(text)


@given(st.lists(st.tuples(numbers, st.none() | st.integers(0, 9)), max_size=4), st.none() | numbers, st.booleans())
def test_an_offset_is_read_as_written(cuts: list[tuple[int, int | None]], floor: int | None, reset: bool) -> None:
    position = Position(7, 3, tuple(Cut(*cut) for cut in cuts), floor, reset)
    offset = Offset({"a": position, "b": Position(0, None)}, {"rows": 3, "lag": 0})
    assert from_json(to_json(offset)) == offset


def test_an_offset_of_another_source_is_refused() -> None:
    with pytest.raises(ConfigError, match="use another checkpointLocation"):
        from_json({"0": 5})


def test_a_batch_is_what_lies_between_its_offsets() -> None:
    start = Offset({"a": Position(10, 5), "b": Position(4, 4), "d": Position(9, 9)})
    end = Offset(
        {
            "a": Position(30, 9, (Cut(20, 2), Cut(30, 2))),
            "b": Position(4, 4),  # nothing new
            "c": Position(3, 3, (Cut(3, 3),)),  # new in the pattern
            "d": Position(6, 2, (Cut(6, 2),), is_reset=True),  # made again
        }
    )
    found = [(span.stream, span.after, span.upto, span.count) for span in spans_between(start, end)]
    assert found == [("a", 10, 20, 2), ("a", 20, 30, 2), ("c", 0, 3, 3), ("d", 0, 6, 2)]


def test_where_a_query_begins() -> None:
    full = state(10, 1, 10, 100)
    assert first_position("earliest", full) == Position(0, 90)
    assert first_position("latest", full) == Position(NOW + 10, 100)
    assert first_position(NOW + 5, full) == Position(NOW + 4, None)
    assert first_position(NOW + 50, full) == Position(NOW + 49, 100)
    assert first_position("latest", None) == Position(0, 0)


def test_entries_that_were_trimmed_are_counted() -> None:
    read = Position(NOW + 10, 100)
    assert after_loss("s", read, state(50, 11, 60, 150), fail=True).lost == 0
    assert after_loss("s", read, state(30, 31, 60, 150), fail=False).lost == 20
    with pytest.raises(EntriesLost, match="20 entries of stream 's' were trimmed before they were read"):
        after_loss("s", read, state(30, 31, 60, 150), fail=True)


def test_all_entries_may_have_been_trimmed() -> None:
    empty = StreamState(0, None, None, NOW + 60, 150)
    assert after_loss("s", Position(NOW + 10, 100), empty, fail=False).lost == 50


def test_trimming_what_was_read_loses_nothing() -> None:
    assert after_loss("s", Position(NOW + 10, 100), state(20, 5, 60, 150), fail=True).lost == 0
    assert after_loss("s", Position(NOW + 60, 150), StreamState(0, None, None, NOW + 60, 150), fail=True).lost == 0


def test_a_stream_that_was_made_again_is_read_from_its_start() -> None:
    again = StreamState(3, NOW + 1, NOW + 3, NOW + 3, 3)
    with pytest.raises(EntriesLost, match="the stream was deleted and made again"):
        after_loss("s", Position(NOW + 10, 100), again, fail=True)
    missed = after_loss("s", Position(NOW + 10, 100), again, fail=False)
    assert (missed.position, missed.is_reset) == (Position(0, 0), True)


def test_a_stream_that_was_deleted_is_lost() -> None:
    with pytest.raises(EntriesLost, match="the stream was deleted"):
        after_loss("s", Position(NOW, 5), None, fail=True)
    assert after_loss("s", Position(0, 0), None, fail=True).lost == 0


@given(st.integers(1, 1000), st.dictionaries(st.sampled_from("abcd"), st.integers(0, 500), min_size=1))
def test_a_limit_is_kept_and_used_up(total: int, waiting: dict[str, int]) -> None:
    found = shares(total, waiting)
    everything = sum(waiting.values())
    taken = {stream: waiting[stream] if share is None else share for stream, share in found.items()}
    assert sum(taken.values()) == min(total, everything)
    assert all(0 < rows <= waiting[stream] for stream, rows in taken.items())


def test_what_waits_is_known_from_the_counts() -> None:
    assert available(Position(NOW + 10, 100), state(50, 11, 60, 150)) == 50
    assert available(Position(NOW + 60, 150), state(50, 11, 60, 150)) == 0
    assert available(Position(NOW + 20, None), state(50, 11, 60, 150)) == 50  # at most


def test_a_batch_of_everything_counts_without_a_look() -> None:
    start, full = Position(NOW + 10, 100), state(50, 11, 60, 150)
    assert drained(start, full, Position(NOW + 60, 150), 1).cuts == (Cut(NOW + 60, 50),)
    with_holes = state(49, 11, 60, 150, deleted=NOW + 30)
    assert drained(start, with_holes, Position(NOW + 60, 150), 1).cuts == (Cut(NOW + 60, None),)


def test_few_rows_are_one_partition() -> None:
    assert [parts_for(rows, None, cores=4) for rows in (1, 39_999, 100_000, 10**7)] == [1, 1, 2, 4]
    assert parts_for(70, 7) == 7
    assert [parts_for(rows, 50) for rows in (3, 0)] == [3, 1]  # no task without a row


def test_lag_is_in_entries_and_seconds() -> None:
    last = first_of(1_700_000_002_500)
    full = StreamState(50, NOW, last, last, 150)
    found = lag_of(Offset({"s": Position(NOW + 1, 120)}), {"s": full})
    assert found == {"lag": 30, "lagSeconds": 2.5}
    assert lag_of(Offset({"s": Position(last, 150)}), {"s": full}) == {"lag": 0, "lagSeconds": 0.0}


@given(st.integers(1, 9), st.integers(0, 10**6), st.integers(1, 10**6))
def test_the_spans_of_a_batch_read_join_without_gaps(parts: int, first: int, more: int) -> None:
    full = state(1000, first, first + more, 1000)
    spans = batch_spans({"s": full}, Bounds("earliest"), Bounds("latest"), Window(), parts)
    assert spans[0].after < NOW + first
    assert spans[-1].upto >= NOW + first + more
    assert all(one.upto == other.after for one, other in pairwise(spans))


def test_filters_narrow_a_read_only_where_they_may() -> None:
    regular, early = state(10, 1, 10, 10), StreamState(3, parse_id("2-0"), parse_id("10-0"), parse_id("10-0"), 3)
    found = narrow([IdComparison("id", ">=", "1700000000000-5"), IdComparison("other", "=", 1)])
    assert found.of(regular) == Window(low=NOW)
    assert found.of(early) == Window()
    one = narrow([IdComparison("id", "=", "5-1"), IdComparison("stream", "in", ["a", "b"])])
    assert one.of(early) == Window(frozenset("ab"), parse_id("5-1"), parse_id("5-2"))
    assert narrow([IdComparison("id", "<", "no id")]).of(regular) == Window()
