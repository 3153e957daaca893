"""Blocks of entries: encoding, sizes as Redis's listpacks have them, finding, deleting."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.engine.keys.keyspace import KeyspaceSettings
from millstream.engine.streams.entries import EntryLog, decode_fields, element_size, encode_fields, integer_size
from millstream.engine.streams.ids import MAX_KEY, order, text_of

WORD = st.binary(max_size=12) | st.sampled_from([b"", b"\r\n", b"$5\r\nhello\r\n", b"x" * 5000, b"*2\r\n"])


def log_of(keys: list[int], settings: KeyspaceSettings | None = None, size: int = 3) -> EntryLog:
    log = EntryLog()
    for key in keys:
        log.append(text_of(key), key, [b"f", b"v" * size], settings or KeyspaceSettings())
    return log


@given(st.lists(st.tuples(WORD, WORD), min_size=1, max_size=5))
def test_decoding_gives_back_what_was_encoded(pairs: list[tuple[bytes, bytes]]) -> None:
    flat = [word for pair in pairs for word in pair]
    assert decode_fields(encode_fields(flat)) == flat


@given(st.lists(st.tuples(WORD, WORD), min_size=1, max_size=3))
def test_the_path_for_one_field_encodes_as_the_general_one(pairs: list[tuple[bytes, bytes]]) -> None:
    log = EntryLog()
    for index, (name, value) in enumerate(pairs, 1):
        log.append(text_of(index << 64), index << 64, [name, value], KeyspaceSettings())
    _, fragments = log.read(0, MAX_KEY)
    assert fragments == [encode_fields(list(pair)) for pair in pairs]


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (b"0", 2),
        (b"127", 2),
        (b"128", 3),
        (b"-4096", 3),
        (b"4095", 3),
        (b"4096", 4),
        (b"32767", 4),
        (b"32768", 5),
        (b"8388608", 6),
        (b"2147483648", 10),
        (b"-9223372036854775808", 10),
        (b"", 2),
        (b"a", 3),
        (b"007", 5),
        (b"-0", 4),
        (b"9223372036854775808", 21),
        (b"x" * 63, 65),
        (b"x" * 64, 67),
        (b"x" * 125, 128),
        (b"x" * 126, 130),
        (b"x" * 4095, 4099),
        (b"x" * 4096, 4103),
    ],
)
def test_an_element_takes_what_redis_takes_for_it(value: bytes, size: int) -> None:
    assert element_size(value) == size


def test_both_ways_to_append_count_the_same_bytes() -> None:
    rng = random.Random(7)
    settings = KeyspaceSettings()
    for _ in range(300):
        short, general = EntryLog(), EntryLog()
        key = 5 << 64
        for _ in range(rng.randrange(1, 12)):
            key += rng.choice([1, 200, 1 << 64, 5000 << 64])
            name = rng.choice([b"f", b"g", b"12"])
            value = rng.choice([b"", b"7", b"abc", b"x" * rng.randrange(300), b"-77777", b"x" * 5000])
            short.append_field(text_of(key), key, name, value, settings)
            block = general._block_for(key, [name, value], settings)
            block.size += general_size([name, value], block.names, key, block.first)
            general._put(block, text_of(key), key, encode_fields([name, value]))
        assert [block.node_bytes() for block in short.blocks] == [block.node_bytes() for block in general.blocks]
        assert short.firsts == general.firsts


def general_size(fields: list[bytes], names: list[bytes], key: int, first: int) -> int:
    """Bytes of an entry, element by element, as the format says."""
    seq_mask = (1 << 64) - 1
    elements = integer_size((key >> 64) - (first >> 64)) + integer_size((key & seq_mask) - (first & seq_mask))
    elements += 2  # flags
    if fields[::2] == names:
        return elements + sum(map(element_size, fields[1::2])) + integer_size(len(names) + 3)
    return elements + integer_size(len(fields) // 2) + sum(map(element_size, fields)) + integer_size(len(fields) + 4)


def test_a_block_takes_a_hundred_entries_or_four_kilobytes() -> None:
    small = log_of([n << 64 for n in range(1, 251)])
    assert [len(block.ids) for block in small.blocks] == [100, 100, 50]
    large = log_of([n << 64 for n in range(1, 101)], size=1000)
    assert [len(block.ids) for block in large.blocks][:2] == [4, 4]


@pytest.mark.parametrize("most", [1, 2, 7, 100])
def test_every_entry_is_found_and_nothing_else(most: int) -> None:
    rng = random.Random(most)
    # several digits of milliseconds and sequence numbers, so that texts do not compare like keys
    keys = sorted(rng.sample([ms << 64 | seq for ms in range(95, 105) for seq in range(0, 120, 3)], 250))
    log = log_of(keys, KeyspaceSettings(stream_node_max_entries=most))
    gone = set(rng.sample(keys, 100))
    for key in gone:
        assert log.delete(text_of(key))
        assert not log.delete(text_of(key))
    left = [key for key in keys if key not in gone]
    assert [order(entry_id) for entry_id in log.read(0, MAX_KEY)[0]] == left
    assert [order(entry_id) for entry_id in log.read_back(0, MAX_KEY)[0]] == left[::-1]
    for key in range(keys[0], keys[0] + 50):
        assert (log.find(text_of(key)) is not None) == (key in left)
    for _ in range(200):
        start, end = rng.choice(keys) + rng.randrange(-2, 3), rng.choice(keys) + rng.randrange(-2, 3)
        limit = rng.choice([None, 1, 5, 500])
        expected = [key for key in left if start <= key <= end]
        assert [order(i) for i in log.read(start, end, limit)[0]] == expected[:limit]
        assert [order(i) for i in log.read_back(start, end, limit)[0]] == expected[::-1][:limit]


def test_a_block_that_becomes_the_last_again_takes_entries() -> None:
    log = log_of([1 << 64, 2 << 64], KeyspaceSettings(stream_node_max_entries=2))
    log.append(b"3-0", 3 << 64, [b"f", b"v"], KeyspaceSettings(stream_node_max_entries=2))
    log.delete(b"3-0")
    log.append(b"1000-0", 1000 << 64, [b"f", b"v"], KeyspaceSettings())
    assert log.read(3 << 64, MAX_KEY)[0] == [b"1000-0"]
    assert len(log.blocks) == 1


@pytest.mark.parametrize(("keys", "nodes"), [([1], 1), ([1, 2], 4), (list(range(1, 256)), 257)])
def test_the_radix_tree_over_consecutive_ids_has_the_nodes_the_spec_names(keys: list[int], nodes: int) -> None:
    assert log_of([key << 64 for key in keys], KeyspaceSettings(stream_node_max_entries=1)).trie_nodes() == nodes


@pytest.mark.parametrize("known", [0, 100, 400])
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_fields_of_many_entries_are_those_of_each(is_shuffled: bool, known: int) -> None:
    log, settings = EntryLog(), KeyspaceSettings()
    for seq in range(1, 400):  # ids of one, two and three digits, in sealed blocks and an open one
        log.append_field(b"7-%d" % seq, order(b"7-%d" % seq), b"f", b"value %d" % seq, settings)
    ids = [b"7-%d" % seq for seq in range(1, 400) if seq % 7]
    if is_shuffled:
        random.Random(3).shuffle(ids)
    places = [log.find(entry_id) for entry_id in ids]
    blocks = [place and place[0] for place in places]
    hints = [place[1] if place and place[1] % 5 else -1 for place in places[:known]]
    fragments = [place and place[0].fragment(place[1]) for place in places]
    assert log.fragments_of(ids, blocks, hints) == fragments
    for gone in (b"7-7", b"7-210"):  # behind which nothing is any more where it was
        assert log.delete(gone)
    assert log.fragments_of(ids, blocks, hints) == fragments


@pytest.mark.parametrize("missing", [b"7-5", b"7-150"])
def test_fields_of_many_entries_are_not_told_if_one_is_gone(missing: bytes) -> None:
    log, settings = EntryLog(), KeyspaceSettings()
    for seq in range(1, 160):
        log.append_field(b"7-%d" % seq, order(b"7-%d" % seq), b"f", b"value %d" % seq, settings)
    ids = [b"7-4", b"7-5", b"7-6", b"7-150"]
    blocks = [place and place[0] for place in map(log.find, ids)]
    hints = [place[1] if place else -1 for place in map(log.find, ids)]
    assert log.fragments_of(ids, blocks, []) is not None
    assert log.fragments_of(ids, [*blocks[:3], None], []) is None
    log.delete(missing)
    assert log.fragments_of(ids, blocks, []) is None
    assert log.fragments_of(ids, blocks, hints) is None
