"""Whole files: what is in them, how they are read, and what becomes of those that are damaged."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from millstream.engine import invariants
from millstream.engine.keys.keyspace import Keyspace
from millstream.engine.streams.stream import Stream
from millstream.errors import BadFormat
from millstream.persistence.rdb import Loaded, codec, read_rdb, write_rdb
from millstream.persistence.rdb.crc64 import crc64
from tests.persistence.rdb.support import NOW_MS, as_saved, info, node_of, ran, run, stream, string, wire

AUX = {b"redis-ver": b"8.10.0", b"redis-bits": b"64", b"ctime": b"1767225600"}


def a_keyspace() -> Keyspace:
    """Some of everything, in two databases."""
    keyspace = ran(1).keyspace
    for command in (
        "SET text hello",
        "SET number 12345 PX 5000",
        "SET gone x PX 1",
        "RPUSH list a 1 300",
        "SADD set 1 2 x",
        "HSET hash a 1 b two",
        "ZADD zset 1 a 2.5 b inf c",
        "XADD records IDMP p i * f v",
        "SET other 1",
        "MOVE other 9",
    ):
        reply = wire(keyspace, *command.encode().split(b" "))
        assert not reply.startswith(b"-"), (command, reply)
    return keyspace


def written(keyspace: Keyspace, **options: object) -> bytes:
    parts: list[bytes] = []
    write_rdb(keyspace, parts.append, now_ms=NOW_MS, **options)  # type: ignore[arg-type]
    return b"".join(parts)


def loaded(data: bytes, now_ms: int = NOW_MS, **options: object) -> Loaded:
    found = read_rdb(io.BytesIO(data).read, now_ms, **options)  # type: ignore[arg-type]
    invariants.check(found.keyspace)
    return found


def values(keyspace: Keyspace) -> dict[tuple[int, bytes], object]:
    """Everything there is, streams as XINFO tells them."""
    return {
        (database.index, key): (
            info(as_saved(value)) if isinstance(value, Stream) else value,
            database.expires.get(key),
        )
        for database in keyspace
        for key, value in database.values.items()
    }


def a_file(*parts: bytes, version: int = 15, magic: bytes = b"REDIS%04d") -> bytes:
    body = magic % version + b"".join(parts) + b"\xff"
    return body + crc64(body).to_bytes(8, "little")


@pytest.mark.parametrize("compress", [False, True])
def test_a_keyspace_comes_back(compress: bool) -> None:
    keyspace = a_keyspace()
    data = written(keyspace, aux=AUX, functions=[b"#!lua name=l"], compress=compress)
    assert data.startswith(b"REDIS0015")
    found = loaded(data)
    assert values(found.keyspace) == values(keyspace)
    assert (found.aux, found.functions, found.version) == (AUX, [b"#!lua name=l"], 15)
    assert found.keyspace.databases[0].idempotent == keyspace.databases[0].idempotent


@pytest.mark.parametrize(
    ("stream_type", "header"), [(15, b"REDIS0009"), (19, b"REDIS0010"), (21, b"REDIS0011"), (26, b"REDIS0013")]
)
def test_a_file_for_an_older_server_has_its_version(stream_type: int, header: bytes) -> None:
    keyspace = a_keyspace()
    data = written(keyspace, stream_type=stream_type)
    assert data.startswith(header)
    assert values(loaded(data).keyspace).keys() == values(keyspace).keys()


def test_an_empty_keyspace_is_written_without_databases() -> None:
    data = written(Keyspace())
    assert data == a_file()
    assert values(loaded(data).keyspace) == {}


def test_keys_whose_time_is_over_are_left_out_unless_they_are_kept_for_a_log() -> None:
    data = written(a_keyspace())
    later = loaded(data, NOW_MS + 2)
    assert b"gone" not in later.keyspace.databases[0].values
    assert b"number" in later.keyspace.databases[0].values
    assert later.expired == 1
    kept = loaded(data, NOW_MS + 10**9, keep_expired=True)
    assert kept.keyspace.databases[0].expires == {b"gone": NOW_MS + 1, b"number": NOW_MS + 5000}


def test_a_file_is_read_in_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "PIECE", 50)  # so that writing comes in pieces too
    keyspace = a_keyspace()
    data = written(keyspace, aux=AUX)
    for size in (1, 7, 1000):
        source = io.BytesIO(data)
        found = read_rdb(limited(source.read, size), NOW_MS)
        assert values(found.keyspace) == values(keyspace)


def limited(read: Callable[[int], bytes], size: int) -> Callable[[int], bytes]:
    return lambda count: read(min(count, size))


def test_writing_hands_out_pieces_and_needs_no_second_copy_of_the_data() -> None:
    keyspace = Keyspace()
    for i in range(3000):
        run(keyspace, b"XADD", b"s", b"%d-0" % (i + 1), b"f", b"v" * 1000)
    sizes: list[int] = []
    write_rdb(keyspace, lambda piece: sizes.append(len(piece)), now_ms=NOW_MS)
    assert sum(sizes) > 3_000_000
    assert max(sizes) < 1_100_000


def test_a_file_that_is_cut_anywhere_is_refused() -> None:
    data = written(a_keyspace(), aux=AUX)
    for size in [*range(0, len(data), 7), len(data) - 1]:
        with pytest.raises(BadFormat):
            loaded(data[:size])


def test_a_file_with_a_changed_byte_is_refused() -> None:
    data = written(a_keyspace(), aux=AUX)
    for at in range(0, len(data), 7):
        with pytest.raises(BadFormat):
            loaded(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :])


def test_a_checksum_of_zero_is_not_checked() -> None:
    data = written(a_keyspace())
    assert values(loaded(data[:-8] + bytes(8)).keyspace) == values(loaded(data).keyspace)


def test_what_follows_the_end_is_handed_back() -> None:
    assert loaded(a_file() + b"*1\r\n").rest == b"*1\r\n"


def test_every_opcode_is_understood() -> None:
    hello = b"\x00" + string(b"k?") + string(b"v")
    data = a_file(
        b"\xfa" + string(b"redis-ver") + string(b"7.2.0"),
        b"\xf7\x81" + bytes(8) + b"\x02\x05\x01\x07\x03" + bytes(4) + b"\x04" + bytes(8) + b"\x05\x01x\x00",
        b"\xf5" + string(b"#!lua name=l"),
        b"\xfe\x03",
        b"\xfb\x04\x01",
        b"\xf4\x01\x02\x03",
        b"\xfd" + (2_000_000_000).to_bytes(4, "little") + hello.replace(b"?", b"1"),
        b"\xfc" + (2_000_000_000_123).to_bytes(8, "little") + hello.replace(b"?", b"2"),
        b"\xf8\x3c" + hello.replace(b"?", b"3"),
        b"\xf9\x05" + hello.replace(b"?", b"4"),
    )
    found = loaded(data)
    database = found.keyspace.databases[3]
    assert list(database.values) == [b"k1", b"k2", b"k3", b"k4"]
    assert database.expires == {b"k1": 2_000_000_000_000, b"k2": 2_000_000_000_123}
    assert database.accessed == {b"k3": NOW_MS - 60_000}
    assert found.functions == [b"#!lua name=l"]


def test_a_file_of_valkey_is_read() -> None:
    data = a_file(b"\x00" + string(b"k") + string(b"v"), version=80, magic=b"VALKEY%03d")
    assert loaded(data).keyspace.databases[0].values == {b"k": b"v"}


def test_a_file_of_an_old_release_has_no_checksum() -> None:
    assert loaded(b"REDIS0003\xfe\x00\x00\x01k\x01v\xff").keyspace.databases[0].values == {b"k": b"v"}


def test_keys_without_elements_are_left_out() -> None:
    found = loaded(a_file(b"\x02" + string(b"k") + b"\x00", b"\x00" + string(b"l") + string(b"v")))
    assert (list(found.keyspace.databases[0].values), found.empty, found.keys) == ([b"l"], 1, 1)


def test_a_node_without_live_entries_is_read_from_a_file() -> None:
    # Redis 8.10 writes such a file after XDEL and XTRIM MINID, and then cannot start from it
    payload = stream([node_of(1, 0, 1, 1, b"f", 0, 3, 0, 0, b"v", 4)], 0, 2)
    found = loaded(a_file(b"\x1b" + string(b"s") + payload[1:-10]))
    value = found.keyspace.databases[0].values[b"s"]
    assert isinstance(value, Stream)
    assert [(len(block.ids), block.dead) for block in value.entries.blocks] == [(0, 1)]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "end early"),
        (b"REDIS00", "end early"),
        (b"SQLite format 3", "not an RDB file"),
        (b"REDISabcd", "not an RDB file"),
        (b"REDIS0016\xff", "version 16"),
        (b"REDIS0000\xff", "version 0"),
        (a_file(b"\xfe\x10"), "database 16"),
        (a_file(b"\xf0"), "opcode 240"),
        (a_file(b"\x18" + string(b"key")), "'key': a hash with fields that expire"),
        (a_file(b"\x07" + string(b"key")), "'key': a module's value"),
        (a_file(b"\x63" + string(b"key")), "'key': a value of type 99"),
        (a_file(*[b"\x00" + string(b"key") + string(b"v")] * 2), "'key' is there twice"),
        (a_file(b"\x00\xc0"), "end early"),
        (a_file(b"\x00\xff\x00"), "unknown encoding"),
        (a_file(b"\x02\x01k\xc3\x02"), "a length was expected"),
        (a_file()[:-1] + b"\x00", "checksum"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_name(data: bytes, what: str) -> None:
    with pytest.raises(BadFormat, match=what):
        loaded(data)


def test_an_error_says_where_it_was() -> None:
    data = a_file(b"\x00" + string(b"k") + string(b"v"), b"\x02" + string(b"set") + b"\x02" + string(b"a") * 2)
    with pytest.raises(BadFormat) as caught:
        loaded(data)
    assert caught.value.at == len(data) - 9
    assert str(caught.value) == "key b'set': a set with a duplicate member, before offset 24"
