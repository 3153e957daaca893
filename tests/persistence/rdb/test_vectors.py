"""Payloads that Redis 8.10 (and one that 7.0) has answered: what they hold, and that the same bytes come out again."""

from __future__ import annotations

import pytest

from millstream.engine import invariants
from millstream.engine.keys.keyspace import KeyspaceSettings
from millstream.engine.streams.stream import Stream
from millstream.persistence.rdb import dump_payload, restore_payload
from tests.persistence.rdb.support import NOW_MS, claim_order, holding, info, nodes, wire
from tests.support.wire import parse

LLMAX = 2**63 - 1

RELEASED = bytes.fromhex(
    "1b0110000000000000000100000000000000003e3e000000190003010101010181660200010201000100018176020401020101010001817602040102"
    "010201000181760204010301030100018176020401ff030400010004000401016704000404000000000000000100000000000000000068e5cf8b0100"
    "0003000000000000000200000000000000000000000000000000817fffffffffffffff00000000000000030000000000000000000000000000000001"
    "000000000000000400000000000000000168e5cf8b010000010201632393b2e0a10100002393b2e0a101000001000000000000000100000000000000"
    "0001642393b2e0a10100002393b2e0a10100000100000000000000040000000000000000020000000000000003000000000000000000000000000000"
    "020000000000000000406440640000000f00e40ecf307a720db8"
)
IDEMPOTENT = bytes.fromhex(
    "1b011000005af3107a3fff0000000000000000404f4f0000001d000401000101018161020001020100010001c3e8020401020100010101dffb020401"
    "0001000102010201826631038276310382663203827632030801020100010301f2701101040401ff048100005af3107a3fff038100005af3107a3fff"
    "000000040101678100005af3107a3fff0381ffffffffffffffff0000004e10320202703102107193082837792097800900d09de161ea8100005af310"
    "7a3fff02c02a8100005af3107a3fff03027032010272318100005af3107a3fff0103010f0062a004f1c531531c"
)
COMPRESSED = bytes.fromhex(
    "1b011000000000000000010000000000000001c3407c40e015e00000003600080100010201856669656c6406816e02400d00002001038c616263e000"
    "02030d64010520254000e0051702c0c80240184001e0051801c12c601800032001e006180090601800042001e0061800f4601800052001e0051801c2"
    "58601800062001e0061800bc601800072001e0051801c320201800ff080808010100000801026731050581ffffffffffffffff020000000000000004"
    "00000000000000040068e5cf8b01000002000000000000000500000000000000050068e5cf8b01000002010263312593b2e0a10100002593b2e0a101"
    "000002000000000000000400000000000000040000000000000005000000000000000500406440640000000f0072af7507725a31a4"
)
MINIMAL = bytes.fromhex(
    "1b01100000000000000001000000000000000028280000000f00020100010101816602000102010001000181760204010201010100018176020401ff"
    "020200010000000201016702000202000000000000000100000000000000000068e5cf8b010000010000000000000002000000000000000000000000"
    "00000000000101630068e5cf8b0100000068e5cf8b010000010000000000000001000000000000000001000000000000000200000000000000004064"
    "40640000000e00908c2e6c76339db9"
)
REDIS_7 = bytes.fromhex(
    "13011000000000000000010000000000000000c3407b40941a940000002b00050101010201846e616d650586616d6f756e7407002011000020010b87"
    "6f726465722d310864010520120001e00112073208c0c8020501032015e00026033308c12c201300022015e00013033408c19060130004e001130335"
    "08c1f4201300002053000020530c856f74686572068178020601ff0506000100030006020167050081ffffffffffffffff0400000000000000010000"
    "0000000000000068e5cf8b01000003000000000000000200000000000000000168e5cf8b01000001000000000000000400000000000000000168e5cf"
    "8b01000001000000000000000500000000000000000268e5cf8b0100000102016150f1a5e1a101000003000000000000000100000000000000000000"
    "000000000002000000000000000000000000000000040000000000000000016250f1a5e1a10100000100000000000000050000000000000000016806"
    "0081ffffffffffffffff00000a002affcd4deff85f9d"
)
ALL = {"released": RELEASED, "idempotent": IDEMPOTENT, "compressed": COMPRESSED, "minimal": MINIMAL}


def restored(payload: bytes) -> Stream:
    value = restore_payload(payload, KeyspaceSettings(), NOW_MS, sanitize=True)
    assert isinstance(value, Stream)
    invariants.check_stream(value)
    return value


def told(stream: Stream) -> dict[bytes, object]:
    return pairs(parse(info(stream)))


def pairs(flat: object) -> dict[bytes, object]:
    assert isinstance(flat, list)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def one_group(stream: Stream) -> dict[bytes, object]:
    (group,) = told(stream)[b"groups"]  # type: ignore[misc]
    return pairs(group)


def test_released_entries_and_a_ghost_come_back() -> None:
    stream = restored(RELEASED)
    seen = told(stream)
    assert [entry for entry, _ in seen[b"entries"]] == [b"1-0", b"2-0", b"3-0"]  # type: ignore[attr-defined]
    assert (seen[b"max-deleted-entry-id"], seen[b"entries-added"]) == (b"4-0", 4)
    group = one_group(stream)
    assert (group[b"last-delivered-id"], group[b"entries-read"], group[b"nacked-count"]) == (b"4-0", 4, 2)
    assert group[b"pending"] == [
        [b"1-0", b"c", 1700000000000, 3],
        [b"2-0", b"", 0, LLMAX],
        [b"3-0", b"", 0, 1],
        [b"4-0", b"d", 1700000000001, 1],
    ]
    for consumer in group[b"consumers"]:  # type: ignore[attr-defined]
        assert pairs(consumer)[b"seen-time"] == pairs(consumer)[b"active-time"] == 1794771161891
    assert claim_order(stream)[b"g"] == [b"3-0", b"2-0", b"1-0", b"4-0"]


def test_idempotency_records_come_back() -> None:
    stream = restored(IDEMPOTENT)
    seen = told(stream)
    assert (seen[b"idmp-duration"], seen[b"idmp-maxsize"]) == (3600, 50)
    assert (seen[b"pids-tracked"], seen[b"iids-tracked"]) == (2, 3)
    assert (seen[b"iids-added"], seen[b"iids-duplicates"]) == (3, 1)
    assert one_group(stream)[b"entries-read"] is None
    again = wire(holding(stream), b"XADD", b"s", b"IDMPAUTO", b"p1", b"*", b"f2", b"v2", b"f1", b"v1")
    assert parse(again) == b"99999999999999-2"
    assert [fields for _, fields in seen[b"entries"]] == [  # type: ignore[attr-defined]
        [b"a", b"1000"],
        [b"a", b"-5"],
        [b"f1", b"v1", b"f2", b"v2"],
        [b"a", b"70000"],
    ]


def test_a_compressed_node_comes_back() -> None:
    stream = restored(COMPRESSED)
    expected = [[b"%d-%d" % (i, i), [b"field", b"abcabcabcabc", b"n", b"%d" % (100 * i)]] for i in range(1, 9)]
    assert told(stream)[b"entries"] == expected
    group = one_group(stream)
    assert group[b"pending"] == [[b"4-4", b"c1", 1700000000000, 2], [b"5-5", b"c1", 1700000000000, 2]]
    assert (group[b"entries-read"], group[b"lag"], group[b"nacked-count"]) == (None, None, 0)


def test_a_stream_of_redis_7_comes_back() -> None:
    # captured from 7.0.15: type 19, which has no active times, no released entries and no idempotency records
    stream = restored(REDIS_7)
    seen = told(stream)
    assert (seen[b"max-deleted-entry-id"], seen[b"entries-added"], seen[b"iids-added"]) == (b"3-0", 6, 0)
    orders = [[b"%d-0" % i, [b"name", b"order-%d" % i, b"amount", b"%d00" % i]] for i in (1, 2, 4, 5)]
    assert seen[b"entries"] == [*orders, [b"6-0", [b"other", b"x"]]]
    one, two = (pairs(group) for group in seen[b"groups"])  # type: ignore[attr-defined]
    assert (one[b"last-delivered-id"], one[b"entries-read"], one[b"lag"]) == (b"5-0", None, None)
    assert one[b"pending"] == [
        [b"1-0", b"a", 1700000000000, 3],
        [b"2-0", b"a", 1700000000001, 1],
        [b"4-0", b"a", 1700000000001, 1],
        [b"5-0", b"b", 1700000000002, 1],
    ]
    for consumer in one[b"consumers"]:  # type: ignore[attr-defined]
        assert pairs(consumer)[b"seen-time"] == pairs(consumer)[b"active-time"] == 1794787111248
    assert (two[b"name"], two[b"last-delivered-id"], two[b"lag"]) == (b"h", b"6-0", 0)
    again = restored(dump_payload(stream, stream_type=19))
    assert (info(again), nodes(again)) == (info(stream), nodes(stream))


@pytest.mark.parametrize(("name", "compress"), [("idempotent", False), ("compressed", True)])
def test_what_was_restored_is_dumped_as_the_same_bytes(name: str, compress: bool) -> None:
    assert dump_payload(restored(ALL[name]), compress=compress) == ALL[name]


def test_a_payload_of_an_older_release_is_dumped_with_the_version_of_this_one() -> None:
    assert dump_payload(restored(MINIMAL), compress=False) == MINIMAL[:-10] + bytes.fromhex("0f00f953931f8bac7430")


def test_a_deleted_entry_is_dumped_in_as_many_bytes_as_it_had() -> None:
    # What the deleted 4-0 held is not kept: its `v` (flags 3, value 81 76) becomes a count of no fields that is as
    # long (flags 1, count c0 00). All other bytes but the checksum are the same, and so is what can be seen.
    dumped = dump_payload(restored(RELEASED), compress=False)
    was, now = bytes.fromhex("03010301000181760204"), bytes.fromhex("010103010001c0000204")
    assert dumped[:-8] == RELEASED[:-8].replace(was, now)
    again = restored(dumped)
    assert info(again) == info(restored(RELEASED))
    assert nodes(again) == nodes(restored(RELEASED))
    assert claim_order(again) == claim_order(restored(RELEASED))


@pytest.mark.parametrize("payload", ALL.values(), ids=ALL)
def test_a_payload_whose_checksum_is_zero_is_not_checked(payload: bytes) -> None:
    assert info(restored(payload[:-8] + bytes(8))) == info(restored(payload))
