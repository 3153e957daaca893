"""The parser against what was put in: any bytes, cut anywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.errors import CommandError, ProtocolError
from millstream.spark.wire.resp_arrow import Entries, EntriesReader, ListedEntries, TokenEntries

Listed = list[tuple[bytes, list[bytes]]]

# Bytes that look like the protocol, far more often than chance would have it.
tricky = st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"$", b"*", b"*2\r\n", b"$5\r\n", b"1", b"ab"]), max_size=6)
payloads = st.one_of(st.binary(max_size=30), tricky.map(b"".join), st.binary(min_size=95, max_size=105))
ids = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)).map(lambda pair: b"%d-%d" % pair)
entries = st.tuples(ids, st.lists(payloads, min_size=1, max_size=4).map(lambda words: words + words))
replies = st.lists(entries, max_size=8)


def encoded(reply: Listed) -> bytes:
    parts = [b"*%d\r\n" % len(reply)]
    for entry_id, flat in reply:
        parts.append(b"*2\r\n$%d\r\n%s\r\n*%d\r\n" % (len(entry_id), entry_id, len(flat)))
        parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in flat]
    return b"".join(parts)


def parsed(data: bytes) -> Entries:
    reader = EntriesReader()
    reader.feed(data)
    found = reader.take()
    assert found is not None
    return found


def check(found: Entries, reply: Listed) -> None:
    """Everything that can be asked of entries."""
    assert found.count == len(reply)
    assert found.ids().to_pylist() == [entry_id for entry_id, _ in reply]
    for name in {name for _, flat in reply for name in flat[::2]} | {b"no such name"}:
        wanted = [dict(zip(flat[::2], flat[1::2], strict=True)).get(name) for _, flat in reply]
        assert found.field(name).to_pylist() == wanted
    offsets, names, values = found.fields()
    assert np.diff(offsets).tolist() == [len(flat) // 2 for _, flat in reply]
    assert names.to_pylist() == [name for _, flat in reply for name in flat[::2]]
    assert values.to_pylist() == [value for _, flat in reply for value in flat[1::2]]
    ms, sequence = found.times()
    assert [b"%d-%d" % pair for pair in zip(ms.tolist(), sequence.tolist(), strict=True)] == [each for each, _ in reply]
    if reply:
        assert found.last_id() == reply[-1][0]
        assert len(found.sizes()) == len(reply)


@settings(max_examples=400, deadline=None)
@given(replies)
@example([(b"1-0", [b"v", b"$$\n\n"]), (b"2-0", [b"v", b""])])
@example([(b"1-0", [b"v", b"5\r\n$"]), (b"2-0", [b"v", b"*"])])
def test_any_entries_are_found(reply: Listed) -> None:
    check(parsed(encoded(reply)), reply)


@settings(max_examples=300, deadline=None)
@given(replies, st.lists(st.integers(0, 400), max_size=6))
def test_a_reply_is_whole_with_its_last_byte_and_not_before(reply: Listed, places: list[int]) -> None:
    data = encoded(reply)
    cuts = sorted({min(place, len(data) - 1) for place in places} | {0})
    reader = EntriesReader()
    for start, end in zip(cuts, [*cuts[1:], len(data) - 1], strict=True):
        reader.feed(data[start:end])
        assert reader.take() is None
    reader.feed(data[-1:])
    found = reader.take()
    assert found is not None
    check(found, reply)


def test_a_reply_fed_byte_by_byte_is_found() -> None:
    reply: Listed = [(b"1-0", [b"a", b"$3\r\nx\r\n", b"b", b"\r\n*2\r\n"]), (b"2-0", [b"a", b""])]
    reader = EntriesReader()
    for byte in encoded(reply)[:-1]:
        reader.feed(bytes([byte]))
        assert reader.take() is None
    reader.feed(b"\n")
    found = reader.take()
    assert found is not None
    check(found, reply)


def test_a_reader_reads_one_reply_after_another() -> None:
    reader = EntriesReader()
    for n in range(1, 4):
        reply: Listed = [(b"%d-0" % row, [b"n", b"%d" % row]) for row in range(1, n * 3000)]
        reader.feed(encoded(reply))
        found = reader.take()
        assert found is not None
        check(found, reply)


def test_payloads_that_are_no_protocol_need_no_second_parser() -> None:
    rng = np.random.default_rng(1)
    values = [b"\r\nx" + rng.bytes(20).replace(b"\n$", b"").replace(b"\n*", b"") for _ in range(500)]
    reply: Listed = [(b"%d-0" % number, [b"v", value]) for number, value in enumerate([b"$x", b"*x", *values], 1)]
    assert isinstance(parsed(encoded(reply)), TokenEntries)


def test_payloads_that_look_like_protocol_are_read_by_hiredis() -> None:
    reply: Listed = [(b"1-0", [b"v", b"x\r\n$1\r\ny"])]
    found = parsed(encoded(reply))
    assert isinstance(found, ListedEntries)
    check(found, reply)


def test_an_error_is_raised_as_the_server_said_it() -> None:
    reader = EntriesReader()
    reader.feed(b"-WRONGTYPE Operation against a key\r\n")
    with pytest.raises(CommandError, match="WRONGTYPE Operation") as caught:
        reader.take()
    assert caught.value.code == "WRONGTYPE"


def test_what_is_no_list_of_entries_is_refused() -> None:
    reader = EntriesReader()
    reader.feed(b":5\r\n")
    with pytest.raises(ProtocolError, match="a list of entries was expected"):
        reader.take()


def test_of_several_fields_with_one_name_the_last_is_read() -> None:
    regular: Listed = [(b"1-0", [b"a", b"1", b"a", b"2"]), (b"2-0", [b"a", b"3", b"a", b"4"])]
    assert parsed(encoded(regular)).field(b"a").to_pylist() == [b"2", b"4"]
    assert parsed(encoded([*regular, (b"3-0", [b"b", b"5"])])).field(b"a").to_pylist() == [b"2", b"4", None]


def test_values_of_every_width_of_length_are_read() -> None:
    for size in (0, 1, 9, 10, 99, 100, 999, 1000, 9999, 10000, 99999, 100000, 1_000_000):
        reply: Listed = [(b"1-0", [b"v", b"x" * size]), (b"2-0", [b"v", b"y"])]
        found = parsed(encoded(reply))
        assert isinstance(found, TokenEntries)
        check(found, reply)
