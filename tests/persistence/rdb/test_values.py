"""Values of plain keys, written and read again, and in the forms of older releases."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.engine.commands import execute
from millstream.engine.keys.keyspace import Keyspace, KeyspaceSettings
from millstream.engine.keys.values import Hash, List, SetOf, SortedSet
from millstream.engine.streams.stream import Stream
from millstream.persistence.rdb import Reader, dump_payload, dump_value, load_value, restore_payload
from tests.persistence.rdb.support import NOW_MS, info, pack, string
from tests.persistence.rdb.test_listpack import a_ziplist

WORDS = st.binary(max_size=70) | st.integers(-(2**63), 2**63 - 1).map(lambda number: b"%d" % number)
SCORES = st.floats(allow_nan=False)


def sorted_set(scores: dict[bytes, float]) -> SortedSet:
    members = SortedSet()
    for member, score in scores.items():
        members.put(member, score)
    return members


VALUES = (
    WORDS
    | st.binary(max_size=2).map(lambda piece: piece * 1000)
    | st.lists(WORDS, min_size=1, max_size=40).map(List)
    | st.lists(WORDS, min_size=1, max_size=40).map(SetOf)
    | st.dictionaries(WORDS, WORDS, min_size=1, max_size=20).map(Hash)
    | st.dictionaries(WORDS, SCORES, min_size=1, max_size=20).map(sorted_set)
)


def loaded(data: bytes) -> object:
    reader = Reader(data)
    value = load_value(reader.byte(), reader, KeyspaceSettings(), NOW_MS)
    assert reader.at == len(data)
    return value


@given(VALUES, st.booleans())
def test_a_value_comes_back(value: object, compress: bool) -> None:
    assert loaded(dump_value(value, compress=compress)) == value
    assert restore_payload(dump_payload(value, compress=compress), KeyspaceSettings(), NOW_MS) == value


@given(VALUES)
def test_a_value_comes_back_from_the_form_for_old_servers(value: object) -> None:
    again = loaded(dump_value(value, stream_type=15))
    assert type(again) is type(value)
    assert again == value


@given(st.lists(st.lists(WORDS, min_size=2, max_size=8).filter(lambda words: len(words) % 2 == 0), max_size=12))
def test_entries_with_any_fields_come_back(entries: list[list[bytes]]) -> None:
    keyspace = Keyspace()
    execute(keyspace, 0, [b"XGROUP", b"CREATE", b"s", b"g", b"0", b"MKSTREAM"], NOW_MS)
    for at, fields in enumerate(entries):
        execute(keyspace, 0, [b"XADD", b"s", b"%d-%d" % (at // 3 + 1, at), *fields], NOW_MS)
    stream = keyspace.databases[0].values[b"s"]
    again = loaded(dump_value(stream))
    assert isinstance(stream, Stream)
    assert isinstance(again, Stream)
    assert info(again) == info(stream)


def test_a_list_is_written_in_nodes_and_large_elements_by_themselves() -> None:
    words = List([b"x" * 100] * 200 + [b"y" * 9000, b"z"])
    data = dump_value(words, compress=False)
    assert data[:2] == b"\x12\x05"  # three nodes of small elements, one large element, one more
    assert loaded(data) == words


INTSET = (2).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"\xff\xff\x01\0\x07\0"

OLD_FORMS = {
    "list": (b"\x01\x02" + string(b"a") + string(b"12"), List([b"a", b"12"])),
    "list as a ziplist": (b"\x0a" + string(a_ziplist(b"\x01a", b"\xfd")), List([b"a", b"12"])),
    "list of ziplists": (
        b"\x0e\x02" + string(a_ziplist(b"\x01a")) + string(a_ziplist(b"\xfd", b"\x01b")),
        List([b"a", b"12", b"b"]),
    ),
    "list of listpacks": (
        b"\x12\x03\x02" + string(pack(b"a", 12)) + b"\x01" + string(b"plain") + b"\x02" + string(pack()),
        List([b"a", b"12", b"plain"]),
    ),
    "set": (b"\x02\x02" + string(b"a") + string(b"12"), SetOf([b"a", b"12"])),
    "set as an intset": (b"\x0b" + string(INTSET), SetOf([b"-1", b"1", b"7"])),
    "set as a listpack": (b"\x14" + string(pack(b"a", 12)), SetOf([b"a", b"12"])),
    "hash": (b"\x04\x01" + string(b"a") + string(b"12"), Hash({b"a": b"12"})),
    "hash as a ziplist": (b"\x0d" + string(a_ziplist(b"\x01a", b"\xfd")), Hash({b"a": b"12"})),
    "hash as a listpack": (b"\x10" + string(pack(b"a", 12)), Hash({b"a": b"12"})),
    "sorted set with decimals": (
        b"\x03\x03" + string(b"a") + b"\x032.5" + string(b"b") + b"\xfe" + string(b"c") + b"\xff",
        sorted_set({b"a": 2.5, b"b": math.inf, b"c": -math.inf}),
    ),
    "sorted set with doubles": (b"\x05\x01" + string(b"a") + bytes(6) + b"\x04\x40", sorted_set({b"a": 2.5})),
    "sorted set as a ziplist": (
        b"\x0c" + string(a_ziplist(b"\x01a", b"\x032.5", b"\x01b", b"\xfd")),
        sorted_set({b"a": 2.5, b"b": 12}),
    ),
    "sorted set as a listpack": (
        b"\x11" + string(pack(b"a", b"2.5", b"b", 12, b"c", b"inf")),
        sorted_set({b"a": 2.5, b"b": 12, b"c": math.inf}),
    ),
}


@pytest.mark.parametrize(("data", "value"), OLD_FORMS.values(), ids=OLD_FORMS)
def test_a_value_in_another_form_is_read(data: bytes, value: object) -> None:
    assert loaded(data) == value


def test_something_else_cannot_be_written() -> None:
    with pytest.raises(TypeError, match="float"):
        dump_value(1.5)
