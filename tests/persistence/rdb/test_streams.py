"""Streams of every kind, written and read again."""

from __future__ import annotations

from functools import cache

import pytest

from millstream.engine import invariants
from millstream.engine.commands import execute
from millstream.engine.keys.keyspace import Keyspace, KeyspaceSettings
from millstream.engine.streams.ids import order
from millstream.engine.streams.stream import Stream
from millstream.persistence.rdb import STREAM_TYPES, dump_payload, restore_payload
from tests.persistence.rdb.support import NOW_MS, Ran, as_saved, claim_order, holding, info, nodes, ran, wire

SEEDS = range(60)


@cache
def left_by(seed: int) -> Ran:
    """What a program has left; tests look at it and leave it as it is."""
    return ran(seed)


def restored(payload: bytes, now_ms: int = NOW_MS, settings: KeyspaceSettings | None = None) -> Stream:
    value = restore_payload(payload, settings or KeyspaceSettings(), now_ms, sanitize=True)
    assert isinstance(value, Stream)
    invariants.check_stream(value)
    return value


def a_stream(*commands: str, settings: KeyspaceSettings | None = None) -> Stream:
    """The stream `s` after these commands."""
    keyspace = Keyspace(settings=settings)
    for command in commands:
        reply = wire(keyspace, *command.encode().split(b" "))
        assert not reply.startswith(b"-"), (command, reply)
    value = keyspace.databases[0].values[b"s"]
    assert isinstance(value, Stream)
    return value


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stream_comes_back_as_it_was(seed: int) -> None:
    program = left_by(seed)
    settings = program.keyspace.settings
    for stream in program.streams().values():
        saved = as_saved(stream)
        again = restored(dump_payload(stream, compress=seed % 2 == 0), program.now_ms, settings)
        assert info(again) == info(saved)
        assert nodes(again) == nodes(saved)
        assert again.producers == saved.producers
        assert dump_payload(again) == dump_payload(stream)


@pytest.mark.parametrize("seed", SEEDS)
def test_released_entries_keep_their_order_and_held_ones_go_by_time_then_id(seed: int) -> None:
    program = left_by(seed)
    for stream in program.streams().values():
        again = restored(dump_payload(stream), program.now_ms)
        for name, group in stream.groups.items():
            rows = list(group.pending.in_order(0, 2**128))
            zone = [entry_id for hold in group.pending.zone.walk() for entry_id, _ in group.pending.live_items(hold)]
            held = sorted((hold.time_ms, order(i), i) for i, hold in rows if hold.consumer is not None)
            assert claim_order(again)[name] == zone + [i for *_, i in held]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stream_that_came_back_goes_on_as_the_first_would(seed: int) -> None:
    """Nodes are opened and trimmed at the same places, groups read on from the same place."""
    program = left_by(seed)
    settings = program.keyspace.settings
    for stream in program.streams().values():
        if stream.last >> 64 > 2**62:
            continue  # there is no room for more
        payload = dump_payload(stream)
        saved = as_saved(stream)
        twins = [holding(saved), holding(restored(payload, program.now_ms, settings))]
        for keyspace in twins:
            keyspace.settings = settings
        ms = (stream.last >> 64) + 1
        steps = [[b"XADD", b"s", b"%d" % (ms + i), b"f", b"v" * (7 * i % 90)] for i in range(30)]
        steps += [[b"XTRIM", b"s", b"MINID", b"~", b"%d" % (ms + 9)], [b"XTRIM", b"s", b"MAXLEN", b"=", b"4"]]
        for name in sorted(stream.groups):
            steps.append([b"XREADGROUP", b"GROUP", name, b"me", b"COUNT", b"9", b"STREAMS", b"s", b">"])
        for step in steps:
            one, two = (wire(keyspace, *step, now_ms=program.now_ms) for keyspace in twins)
            assert one == two
        assert info(saved) == wire(twins[1], b"XINFO", b"STREAM", b"s", b"FULL", b"COUNT", b"0")
        invariants.check(twins[1])


@pytest.mark.parametrize("size", [*range(30), *range(50, 80), *range(115, 140), *range(4080, 4120), 16370, 16380])
def test_the_bytes_of_deleted_entries_stay_counted(size: int) -> None:
    value = "x" * size or '""'
    stream = a_stream(
        "XADD s 1-0 f v",
        f"XADD s 2-5 f {value}",
        "XADD s 1700000000000-7 f v",
        "XADD s 1700000000001-0 f v",
        "XDEL s 2-5 1700000000001-0",
        settings=KeyspaceSettings(stream_node_max_bytes=0),
    )
    assert nodes(restored(dump_payload(stream))) == nodes(stream)


def test_a_node_whose_first_entry_is_deleted_keeps_its_id() -> None:
    stream = a_stream(*(f"XADD s {i}-1 f v" for i in range(1, 9)), "XDEL s 1-1 2-1 3-1 7-1")
    again = restored(dump_payload(stream))
    assert again.first_stored() == b"1-1"
    assert nodes(again) == nodes(stream)


def test_a_node_without_live_entries_is_not_written() -> None:
    # Redis 8.10 writes it, and then refuses its own payload and its own file
    stream = a_stream("XADD s 1-0 f v", "XADD s 2-0 f v", "XDEL s 2-0", "XTRIM s MINID = 2-0")
    assert [len(block.ids) for block in stream.entries.blocks] == [0]
    again = restored(dump_payload(stream))
    assert again.entries.blocks == []
    assert (again.last, again.max_deleted, again.entries_added) == (stream.last, stream.max_deleted, 2)


def test_a_group_has_never_read_more_than_was_added() -> None:
    # XSETID can bring this about; Redis 8.10 writes it and then refuses what it has written
    stream = a_stream(
        "XADD s 1-0 f v",
        "XGROUP CREATE s g 0",
        "XREADGROUP GROUP g c STREAMS s >",
        "XTRIM s MAXLEN 0",
        "XSETID s 5-0 ENTRIESADDED 0",
    )
    assert stream.groups[b"g"].entries_read == 1
    assert restored(dump_payload(stream)).groups[b"g"].entries_read == 0


def test_ids_that_start_anew_below_those_that_are_gone_are_found_again() -> None:
    stream = a_stream("XADD s 10-0 f v")
    block = stream.entries.blocks[0]
    block.ids[0] = b"6-0"  # as if XSETID had gone back while the node was empty
    again = restored(dump_payload(stream))
    assert wire(holding(again), b"XRANGE", b"s", b"6", b"6").startswith(b"*1")


def test_names_that_look_like_numbers_and_long_ones_come_back() -> None:
    long = "n" * 5000
    stream = a_stream(
        f"XADD s 1-0 12 -7 {long} 0012",
        f"XADD s 2-0 12 {long} {long} 9223372036854775807",
        "XGROUP CREATE s 42 0",
        "XGROUP CREATE s -2147483649 0",
        "XREADGROUP GROUP 42 007 STREAMS s >",
    )
    assert info(restored(dump_payload(stream))) == info(stream)


def test_ids_as_far_apart_as_can_be_come_back() -> None:
    top = 2**64 - 1
    stream = a_stream(f"XADD s 0-{top} f v", f"XADD s {top}-0 f v", f"XADD s {top}-{top - 1} f v")
    assert info(restored(dump_payload(stream))) == info(stream)
    stream = a_stream("XADD s 0-1 f v", f"XADD s 0-{top} f v", f"XADD s {top}-{top - 1} f v")
    assert info(restored(dump_payload(stream))) == info(stream)


# Older types


@pytest.mark.parametrize("kind", STREAM_TYPES)
@pytest.mark.parametrize("seed", range(20))
def test_an_older_type_loses_only_what_it_has_no_place_for(kind: int, seed: int) -> None:
    program = left_by(seed)
    for stream in program.streams().values():
        again = restored(dump_payload(stream, stream_type=kind), program.now_ms)
        saved = as_saved(stream)
        assert again.entries.read(0, 2**128) == saved.entries.read(0, 2**128)
        assert nodes(again) == nodes(saved)
        assert sorted(again.groups) == sorted(saved.groups)
        for name, group in saved.groups.items():
            rows = [(i, h.consumer, h.time_ms, h.count) for i, h in group.pending.in_order(0, 2**128)]
            expected = [
                (i, (b"released" if kind < 27 else b"") if owner is None else owner.name, time_ms, count)
                for i, owner, time_ms, count in rows
            ]
            found = again.groups[name].pending.in_order(0, 2**128)
            assert [(i, h.consumer.name if h.consumer else b"", h.time_ms, h.count) for i, h in found] == expected
        if kind >= 19:
            assert (again.max_deleted, again.entries_added) == (saved.max_deleted, saved.entries_added)
        if kind >= 26:
            assert again.producers == saved.producers


def test_released_entries_are_given_to_the_consumer_that_is_named() -> None:
    stream = a_stream(
        *(f"XADD s {i}-0 f v" for i in range(1, 5)),
        "XGROUP CREATE s g 0",
        "XREADGROUP GROUP g c STREAMS s >",
        "XNACK s g FAIL IDS 2 3-0 2-0",
    )
    again = restored(dump_payload(stream, stream_type=21, released_to=b"c"))
    assert list(again.groups[b"g"].consumers) == [b"c"]
    again = restored(dump_payload(stream, stream_type=21))
    assert sorted(again.groups[b"g"].consumers) == [b"c", b"released"]
    keyspace = holding(again)
    reply = execute(keyspace, 0, [b"XAUTOCLAIM", b"s", b"g", b"d", b"60000", b"0", b"JUSTID"], NOW_MS).reply
    assert reply == [b"0-0", [b"2-0", b"3-0"], []]


def test_the_oldest_type_has_its_counters_estimated() -> None:
    stream = a_stream(
        "XADD s 1-0 f v",
        "XADD s 2-0 f v",
        "XADD s 3-0 f v",
        "XDEL s 3-0",
        "XGROUP CREATE s a 0",
        "XGROUP CREATE s b 1-0",
        "XGROUP CREATE s c 3-0",
        "XGROUP CREATE s d 9-0",
    )
    again = restored(dump_payload(stream, stream_type=15))
    assert (again.max_deleted, again.entries_added) == (0, 2)
    assert {name: group.entries_read for name, group in again.groups.items()} == {b"a": 0, b"b": 1, b"c": 2, b"d": None}


# Idempotency records


def test_records_that_have_expired_are_neither_written_nor_read() -> None:
    keyspace = Keyspace()
    for at, iid in enumerate((b"a", b"b", b"c")):
        wire(keyspace, b"XADD", b"s", b"IDMP", b"p", iid, b"*", b"f", b"v", now_ms=NOW_MS + 50_000 * at)
    stream = keyspace.databases[0].values[b"s"]
    assert isinstance(stream, Stream)
    later = NOW_MS + 120_000
    assert restored(dump_payload(stream), NOW_MS).producers.keys() == {b"p"}
    assert list(restored(dump_payload(stream), later).producers[b"p"]) == [b"b", b"c"]
    assert list(restored(dump_payload(stream, now_ms=later), NOW_MS).producers[b"p"]) == [b"b", b"c"]
    gone = restored(dump_payload(stream, now_ms=later + 10**6), NOW_MS)
    assert (gone.producers, gone.iids_added) == ({}, 3)


def test_an_unknown_stream_type_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="20"):
        dump_payload(Stream(KeyspaceSettings()), stream_type=20)
