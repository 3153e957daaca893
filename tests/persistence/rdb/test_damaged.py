"""Payloads that are not right: refused with Redis's texts, or taken as Redis takes them, and never anything else.

Each row was tried on Redis 8.10.2; where we differ on purpose, the row says so.
"""

from __future__ import annotations

import contextlib
import random

import pytest

from millstream.engine import invariants
from millstream.engine.keys.keyspace import KeyspaceSettings
from millstream.engine.streams.stream import Stream
from millstream.errors import CommandError
from millstream.persistence.rdb import dump_payload, restore_payload
from tests.persistence.rdb.support import (
    NOW_MS,
    Member,
    claim_order,
    group,
    info,
    node,
    node_of,
    pack,
    producer,
    ran,
    real_now_ms,
    sealed,
    stream,
    string,
)
from tests.persistence.rdb.test_vectors import ALL
from tests.support.servers import RealServer

LATE = 10**14  # an id whose idempotency record does not expire
ONE, TWO = [node(1, 1)], [node(1, 1, 2)]
LATE_NODE = [node(LATE, LATE)]
C1 = Member(b"c", (1,))
PEL_1 = [(1, 100, 1)]
BAD, WRONG = "ERR Bad data format", "ERR DUMP payload version or checksum are wrong"

REFUSED = {
    "a length that is not that of the nodes": stream(TWO, 3, 2),
    "a node without live entries": stream([node(1, live=0)], 0, 2),
    "a node whose live count is negative": stream([node(1, 1, live=-1)], 1, 2),
    "a node id of 15 bytes": stream([string(bytes(15)) + string(pack(1, 0, 1, b"f", 0, 2, 0, 0, b"v", 4))], 1, 5),
    "a node that is there twice": stream([node(1, 1), node(1, 1)], 2, 1),
    "fewer entries added than there are": stream(TWO, 2, 2, added=1),
    "more entries added than 63 bits hold": stream(TWO, 2, 2, added=2**63),
    "a group that has read more than was added": stream(TWO, 2, 2, [group(b"g", 2, read=3)]),
    "a group that has read less than nothing": stream(TWO, 2, 2, [group(b"g", 2, read=-2)]),
    "a group that is there twice": stream(ONE, 1, 1, [group(b"g", 1), group(b"g", 1)]),
    "a pending entry that is there twice": stream(TWO, 2, 2, [group(b"g", 2, pending=PEL_1 * 2, members=[C1])]),
    "a consumer's entry that is not pending": stream(
        TWO, 2, 2, [group(b"g", 2, pending=PEL_1, members=[Member(b"c", (2,))])]
    ),
    "an entry with two owners": stream(TWO, 2, 2, [group(b"g", 2, pending=PEL_1, members=[C1, Member(b"d", (1,))])]),
    "an entry twice with one owner": stream(TWO, 2, 2, [group(b"g", 2, pending=PEL_1, members=[Member(b"c", (1, 1))])]),
    "a consumer that is there twice": stream(TWO, 2, 2, [group(b"g", 2, pending=PEL_1, members=[C1, Member(b"c")])]),
    "a released entry with an owner": stream(TWO, 2, 2, [group(b"g", 2, pending=PEL_1, members=[C1], zone=[1])]),
    "a released entry that is not pending": stream(TWO, 2, 2, [group(b"g", 2, pending=PEL_1, members=[C1], zone=[2])]),
    "no duration": stream(ONE, 1, 1, idmp=(0, 100)),
    "too long a duration": stream(ONE, 1, 1, idmp=(86401, 100)),
    "no room for records": stream(ONE, 1, 1, idmp=(100, 0)),
    "room for too many records": stream(ONE, 1, 1, idmp=(100, 10001)),
    "a producer that is there twice": stream(
        LATE_NODE, 1, LATE, producers=[producer(b"p", (b"a", LATE)), producer(b"p", (b"b", LATE))]
    ),
    "a producer again with expired records": stream(
        LATE_NODE, 1, LATE, producers=[producer(b"p", (b"a", LATE)), producer(b"p", (b"b", 1))]
    ),
    "a type that does not exist": sealed(b"\x63abc"),
    "an empty set": sealed(b"\x02\x00"),
    "an empty sorted set": sealed(b"\x05\x00"),
    "an empty list": sealed(b"\x01\x00"),
    "a list of empty nodes": sealed(b"\x12\x01\x02" + string(pack())),
    "an empty intset": sealed(b"\x0b" + string(bytes((2, 0, 0, 0, 0, 0, 0, 0)))),
    "a set with a member twice": sealed(b"\x02\x02" + string(b"a") * 2),
    "a sorted set with a member twice": sealed(b"\x05\x02" + (string(b"a") + bytes(8)) * 2),
    "a score that is no number": sealed(b"\x05\x01" + string(b"a") + bytes.fromhex("000000000000f87f")),
    "a list node of an unknown kind": sealed(b"\x12\x01\x03" + string(pack(b"x"))),
    "a string that ends beyond the payload": sealed(b"\x00\x14hel"),
}

TAKEN = {
    "nodes in any order": stream([node(5, 5, 6), node(1, 1, 2)], 4, 6),
    "a count of deleted entries that is wrong": stream([node(1, 1, 2, dead=5)], 2, 2),
    "flags that mean nothing": stream([node_of(1, 1, 0, 1, b"f", 0, 6, 0, 0, b"v", 4)], 1, 5),
    "names that are numbers": stream([node_of(1, 1, 0, 1, b"12", 0, 2, 0, 0, b"v", 4)], 1, 5),
    "no names": stream([node_of(1, 1, 0, 0, 0, 2, 0, 0, 3)], 1, 5),
    "no fields": stream([node_of(1, 1, 0, 1, b"f", 0, 0, 0, 0, 0, 4)], 1, 5),
    "all entries added that there can be": stream(TWO, 2, 2, added=2**63 - 1),
    "a group that has read all": stream(TWO, 2, 2, [group(b"g", 1, read=2)]),
    "a group beyond the last id": stream(TWO, 2, 2, [group(b"g", 9)]),
    "a deleted id beyond the last id": stream(TWO, 2, 2, max_deleted=9),
    "pending entries in any order": stream(
        TWO, 2, 2, [group(b"g", 2, pending=[(2, 100, 1), (1, 100, 1)], members=[Member(b"c", (2, 1))])]
    ),
    "a consumer without a name": stream(TWO, 2, 2, [group(b"g", 2, pending=PEL_1, members=[Member(b"", (1,))])]),
    "a released entry twice": stream(
        TWO, 2, 2, [group(b"g", 2, pending=[(1, 100, 1), (2, 5, 2)], members=[Member(b"c")], zone=[2, 1, 2])]
    ),
    "a count that is negative as shown": stream(
        TWO, 2, 2, [group(b"g", 2, pending=[(1, 100, 2**64 - 3)], members=[C1])]
    ),
    "times before 1970": stream(
        TWO, 2, 2, [group(b"g", 2, pending=[(1, -100, 1)], members=[Member(b"c", (1,), -7, -5)])]
    ),
    "counters that are negative as shown": stream(TWO, 2, 2, counters=(2**64 - 1, 2**63)),
    "more records than there is room for": stream(
        LATE_NODE,
        1,
        LATE,
        first=LATE,
        idmp=(100, 2),
        producers=[producer(b"p", (b"a", LATE), (b"b", LATE), (b"c", LATE))],
    ),
    "a record twice": stream(
        LATE_NODE, 1, LATE, first=LATE, producers=[producer(b"p", (b"a", LATE), (b"a", LATE + 1))]
    ),
    "records that have expired": stream(
        LATE_NODE, 1, LATE, first=LATE, producers=[producer(b"p", (b"a", LATE), (b"b", 5), (b"c", LATE))]
    ),
    "a producer without records": stream(LATE_NODE, 1, LATE, first=LATE, producers=[producer(b"p")], counters=(3, 1)),
    "a producer again after one without records": stream(
        LATE_NODE, 1, LATE, first=LATE, producers=[producer(b"p"), producer(b"p", (b"b", LATE))]
    ),
    "a producer again after one that has expired": stream(
        LATE_NODE, 1, LATE, first=LATE, producers=[producer(b"p", (b"a", 1)), producer(b"p", (b"b", LATE))]
    ),
    "a producer again without records": stream(
        LATE_NODE, 1, LATE, first=LATE, producers=[producer(b"p", (b"b", LATE)), producer(b"p")]
    ),
    "names that are empty": stream(LATE_NODE, 1, LATE, first=LATE, producers=[producer(b"", (b"", LATE))]),
    "bytes before the trailer": sealed(stream(TWO, 2, 2)[:-10] + b"more"),
    "type 15": stream(TWO, 2, 2, [group(b"g", 1, pending=PEL_1, members=[C1], kind=15)], kind=15),
    "type 15, groups here and there": stream(
        TWO, 2, 2, [group(b"g", 0, kind=15), group(b"h", 2, kind=15), group(b"i", 3, kind=15)], kind=15
    ),
    "type 19": stream(TWO, 2, 2, [group(b"g", 1, pending=PEL_1, members=[C1], read=1, kind=19)], kind=19),
    "type 21": stream(
        TWO, 2, 2, [group(b"g", 1, pending=PEL_1, members=[Member(b"c", (1,), 1, -1)], read=1, kind=21)], kind=21
    ),
    "type 26": stream(TWO, 2, 2, [group(b"g", 1, pending=PEL_1, members=[C1], read=1, kind=26)], kind=26),
}

# Redis takes these and trusts them until a command meets them; we refuse them at once.
REFUSED_BY_US = {
    "nodes that overlap": stream([node(1, 1, 2, 7), node(5, 5, 6)], 5, 7),
    "entries that go down": stream([node(1, 2, 1)], 2, 2),
    "an entry that is there twice": stream([node(1, 1, 1)], 2, 2),
    "a live count that is wrong": stream([node(1, 1, 2, live=3)], 3, 2),
    "a count of elements that is wrong": stream([node_of(1, 1, 0, 1, b"f", 0, 2, 0, 0, b"v", 9)], 1, 5),
    "elements after the last entry": stream([node_of(1, 1, 0, 1, b"f", 0, 2, 0, 0, b"v", 4, 1, 2, 3)], 1, 5),
    "names that do not end": stream([node_of(1, 1, 0, 7, b"f", 0, 2, 0, 0, b"v", 4)], 1, 5),
    "a head that ends early": stream([node_of(1, 1)], 1, 5),
    "text for an id": stream([node_of(1, 1, 0, 1, b"f", 0, 2, b"x", 0, b"v", 4)], 1, 5),
    "an entry that ends early": stream([node_of(1, 1, 0, 1, b"f", 0, 2, 0, 0)], 1, 5),
    "a hash with a field twice": sealed(b"\x04\x02" + (string(b"a") + string(b"1")) * 2),
    "a packed hash with a field twice": sealed(b"\x10" + string(pack(b"a", 1, b"a", 2))),
    "a packed hash with a field that has no value": sealed(b"\x10" + string(pack(b"a", 1, b"a"))),
    "a packed set with a member twice": sealed(b"\x14" + string(pack(b"a", b"a"))),
    "a packed sorted set with a score that is no number": sealed(b"\x11" + string(pack(b"a", b"xx"))),
    "an intset with a member twice": sealed(b"\x0b" + string(bytes((2, 0, 0, 0, 2, 0, 0, 0, 1, 0, 1, 0)))),
}


def restore(payload: bytes, *, sanitize: bool = False, now_ms: int = NOW_MS) -> object:
    return restore_payload(payload, KeyspaceSettings(), now_ms, sanitize=sanitize)


def error_of(payload: bytes, *, sanitize: bool = False) -> str:
    with pytest.raises(CommandError) as caught:
        restore(payload, sanitize=sanitize)
    return str(caught.value)


@pytest.mark.parametrize("payload", [*REFUSED.values(), *REFUSED_BY_US.values()], ids=[*REFUSED, *REFUSED_BY_US])
def test_what_is_damaged_is_refused(payload: bytes) -> None:
    assert error_of(payload) == BAD


@pytest.mark.parametrize("payload", TAKEN.values(), ids=TAKEN)
def test_what_is_odd_is_taken(payload: bytes) -> None:
    value = restore(payload, sanitize=True)
    assert isinstance(value, Stream)
    if len(value.producers.get(b"p", ())) <= value.idmp_maxsize:
        invariants.check_stream(value)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x00\x05hello",
        bytes(9),
        sealed(b"\x00\x05hello", 16),
        sealed(b"\x00\x05hello", 79),
        sealed(b"\x00\x05hello")[:-1] + b"\x01",
        b"\x01" + sealed(b"\x00\x05hello")[1:],
    ],
)
def test_a_wrong_version_or_checksum_is_refused(payload: bytes) -> None:
    assert error_of(payload) == WRONG


@pytest.mark.parametrize("version", [0, 6, 11, 14, 15, 80])
def test_older_versions_and_that_of_valkey_are_taken(version: int) -> None:
    assert restore(sealed(b"\x00\x05hello", version)) == b"hello"


def test_a_value_that_is_cut_short_goes_on_into_the_trailer() -> None:
    assert restore(sealed(b"\x00\x05hel")) == b"hel\x0f\x00"


def test_an_entry_without_owner_joins_the_released_ones_unless_payloads_are_sanitized() -> None:
    # Redis 8.10 keeps it outside of the zone, with its time, where no command could have put it
    rows = [(1, 100, 1), (2, 5, 2), (3, 7, 1)]
    for kind, zone in ((27, [2]), (26, [])):
        payload = stream([node(1, 1, 2, 3)], 3, 3, [group(b"g", 3, pending=rows, zone=zone, kind=kind)], kind=kind)
        value = restore(payload)
        assert isinstance(value, Stream)
        invariants.check_stream(value)
        assert claim_order(value)[b"g"] == ([b"2-0", b"1-0", b"3-0"] if zone else [b"1-0", b"2-0", b"3-0"])
        assert value.groups[b"g"].pending.released == 3
        assert error_of(payload, sanitize=True) == BAD


def test_a_last_id_below_an_entry_is_raised() -> None:
    value = restore(stream(TWO, 2, 1))
    assert isinstance(value, Stream)
    assert value.last == 2 << 64


@pytest.mark.parametrize("kind", [6, 7, 9, 22, 23, 24, 25])
def test_types_that_cannot_be_read_are_refused(kind: int) -> None:
    assert error_of(sealed(bytes((kind,)) + b"abc")) == BAD


def test_random_damage_is_refused_or_makes_a_sound_value() -> None:
    rng = random.Random(3)
    payloads = list(ALL.values())
    for seed in range(6):
        payloads += [dump_payload(value, compress=seed % 2 == 1) for value in ran(seed).streams().values()]
    for _ in range(3000):
        body = bytearray(rng.choice(payloads)[:-10])
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            _damage(body, rng)
        value: object = None
        with contextlib.suppress(CommandError):  # and no other
            value = restore(sealed(bytes(body)))
        if isinstance(value, Stream):
            value.idmp_maxsize = 10**6  # a payload may hold more records than it says: see above
            invariants.check_stream(value)
            info(value)
            dump_payload(value, compress=False)


def _damage(body: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(body) + 1)
    match rng.randrange(5):
        case 0:
            body[at : at + 1] = bytes((rng.choice([0, 1, 0x7F, 0x80, 0x81, 0xC3, 0xFF, rng.randrange(256)]),))
        case 1:
            del body[at : at + rng.choice([1, 1, 4, 16])]
        case 2:
            body[at:at] = rng.randbytes(rng.choice([1, 1, 4, 16]))
        case 3:
            del body[at:]
        case _:
            other = rng.randrange(len(body) + 1)
            body[at:at] = body[other : other + rng.choice([1, 8, 16, 40])]
    body[0:1] = body[0:1] or b"\x1b"


@pytest.mark.parametrize("name", [*REFUSED, *TAKEN])
def test_redis_takes_and_refuses_the_same(redis_server: RealServer, name: str) -> None:
    payload = {**REFUSED, **TAKEN}[name]
    with redis_server.connect() as connection:
        connection.ask(b"DEL", b"s")
        reply = connection.ask(b"RESTORE", b"s", b"0", payload)
        if name in REFUSED:
            assert reply == b"-" + BAD.encode() + b"\r\n"
            return
        assert reply == b"+OK\r\n"
        value = restore(payload, now_ms=real_now_ms())
        assert isinstance(value, Stream)
        told = connection.ask(b"XINFO", b"STREAM", b"s", b"FULL", b"COUNT", b"0")
        assert told == info(value, real_now_ms())
        connection.ask(b"DEL", b"s")
