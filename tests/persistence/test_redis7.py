"""Logs, snapshots and values that go to and fro between us and a real Redis 7, whose streams are of an older type.

Compared is XINFO STREAM FULL of every stream, but for what Redis 7 does not tell: idempotency and released entries.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from millstream.cli.main import main
from millstream.persistence.rdb import dump_payload
from tests.persistence.rdb.support import FULL, info
from tests.persistence.rdb.test_real_servers import (
    a_full_keyspace,
    all_keys,
    asking,
    bulk,
    common,
    exchange_plain_values,
    fill,
    loaded,
    pairs,
    recently,
    restored,
    state,
    without_quirks,
    written,
)
from tests.persistence.test_real_servers import (
    COMMON,
    GHOST,
    NEW,
    older,
    ours,
    play,
    rewrite,
    rewrite_there,
    seen,
    theirs,
)
from tests.support import redis7, servers
from tests.support.servers import RealServer
from tests.support.wire import Wire, parse

TYPES = (15, 19)  # of streams, that Redis 7.0 reads; it writes the second
VERSION = 10  # of RDB, that it writes


def told(reply: bytes) -> dict[bytes, object]:
    """What XINFO STREAM FULL tells on either server; Redis 7.0 does not know when a consumer was active."""
    found = common(without_quirks(reply))
    for group in found[b"groups"]:  # type: ignore[attr-defined]
        group[b"consumers"] = [pairs(consumer) for consumer in group[b"consumers"]]
        for consumer in group[b"consumers"]:
            consumer.pop(b"active-time", None)
    return found


def after_loading(server: Wire) -> dict[bytes, object]:
    """What the server itself makes of its log: it does not log how many entries a group has read, and forgets it."""
    assert server.ask(b"DEBUG", b"LOADAOF") == b"+OK\r\n"
    return older(seen(server))


def scores_as_numbers(found: dict[bytes, object]) -> dict[bytes, object]:
    """Redis 7.0 prints a score with 17 digits, and we the shortest way, as Redis does since 7.2."""
    kind, expires, reply = cast("tuple[bytes, bytes, bytes]", found[b"zset"])
    flat = parse(reply)
    assert isinstance(flat, list)
    return found | {b"zset": (kind, expires, [(flat[at], float(flat[at + 1])) for at in range(0, len(flat), 2)])}


@pytest.fixture
def redis7_binary() -> Path:
    return redis7.require()


@pytest.fixture
def connection(redis7_server: RealServer) -> Iterator[Wire]:
    with redis7_server.connect() as wire:
        wire.ask(b"FLUSHALL")
        yield wire


# Logs


@pytest.mark.parametrize("preamble", ["yes", "no"])
@pytest.mark.parametrize("rewrites", [False, True])
def test_we_load_the_log_of_redis_7(redis7_binary: Path, tmp_path: Path, preamble: str, rewrites: bool) -> None:
    with theirs(redis7_binary, tmp_path, "--aof-use-rdb-preamble", preamble, "--appendfsync", "always") as server:
        play(server, COMMON)
        if rewrites:
            rewrite_there(server)
        play(server, ["XADD s 9-1 f v", "XREADGROUP GROUP g a STREAMS s >", *GHOST])
        expected = after_loading(server)
        shutil.copytree(tmp_path / "appendonlydir", tmp_path / "ours" / "appendonlydir")
    with ours(tmp_path / "ours") as broker:
        assert older(seen(broker)) == expected
        play(broker, ["XADD s 99-1 f v"])


@pytest.mark.parametrize("rewrites", [False, True])
def test_redis_7_loads_our_log(redis7_binary: Path, tmp_path: Path, rewrites: bool) -> None:
    """Written as commands: an RDB base is of the newest type, which is not for older servers."""
    with ours(tmp_path, aof_use_rdb_preamble="no") as broker:
        play(broker, COMMON)
        if rewrites:
            rewrite(broker)
        play(broker, ["XADD s 9-1 f v", "XREADGROUP GROUP g a STREAMS s >"])
        expected = older(seen(broker))
    with theirs(redis7_binary, tmp_path) as server:
        assert older(seen(server)) == expected
        play(server, ["XADD s 99-1 f v"])


def test_a_log_goes_to_redis_7_and_back(redis7_binary: Path, tmp_path: Path) -> None:
    with ours(tmp_path, aof_use_rdb_preamble="no") as broker:
        play(broker, COMMON)
    with theirs(redis7_binary, tmp_path, "--appendfsync", "always") as server:
        rewrite_there(server)
        play(server, GHOST)
        expected = after_loading(server)
    with ours(tmp_path) as broker:
        assert older(seen(broker)) == expected


# Snapshots


@pytest.mark.parametrize("stream_type", TYPES)
def test_redis_7_starts_from_our_file(redis7_binary: Path, tmp_path: Path, stream_type: int) -> None:
    data = written(a_full_keyspace(), stream_type, compress=stream_type == TYPES[0])
    (tmp_path / "dump.rdb").write_bytes(data)
    here = loaded(data)
    with servers.running(redis7_binary, "--dir", str(tmp_path)) as server, server.connect() as wire:
        keys = all_keys(here)
        assert parse(wire.ask(b"DBSIZE")) == len(keys)
        there = scores_as_numbers(state(wire.ask, keys, told))
        assert there == scores_as_numbers(state(asking(here), keys, told))


def test_we_read_the_file_of_redis_7(redis7_server: RealServer, connection: Wire) -> None:
    keys = fill(connection, lambda stream: dump_payload(stream, stream_type=19))
    assert connection.ask(b"SAVE") == b"+OK\r\n"
    data = (redis7_server.directory / "dump.rdb").read_bytes()
    assert data.startswith(b"REDIS%04d" % VERSION)
    there = scores_as_numbers(state(connection.ask, keys, told))
    assert scores_as_numbers(state(asking(loaded(data)), keys, told)) == there


def test_redis_7_starts_from_what_export_wrote_for_it(redis7_binary: Path, tmp_path: Path) -> None:
    """Released entries are pending entries of a consumer that is named so."""
    with ours(tmp_path / "data") as broker:
        play(broker, COMMON + NEW)
        released = parse(broker.ask(b"XPENDING", b"s", b"g", b"-", b"+", b"10"))
        entries, expected = broker.ask(b"XRANGE", b"p", b"-", b"+"), older(seen(broker))
    target = tmp_path / "dump.rdb"
    main(["export", str(target), "--dir", str(tmp_path / "data"), "--for", "redis-7.0"])
    with servers.running(redis7_binary, "--dir", str(tmp_path)) as server, server.connect() as wire:
        found = older(seen(wire))
        assert {key: found[key] for key in found if key not in (b"s", b"p")} == {
            key: expected[key] for key in expected if key not in (b"s", b"p")
        }
        assert wire.ask(b"XRANGE", b"p", b"-", b"+") == entries
        rows = parse(wire.ask(b"XPENDING", b"s", b"g", b"-", b"+", b"10"))
        assert isinstance(rows, list)
        assert isinstance(released, list)
        assert [(row[0], row[1] or b"released", row[3]) for row in released] == [(r[0], r[1], r[3]) for r in rows]


# Values


@pytest.mark.parametrize("stream_type", TYPES)
def test_redis_7_takes_our_streams_and_we_take_its(connection: Wire, stream_type: int) -> None:
    for seed in range(20):
        for stream in recently(seed).streams().values():
            payload = dump_payload(stream, stream_type=stream_type, compress=seed % 2 == 0)
            assert connection.ask(b"RESTORE", b"s", b"0", payload, b"REPLACE") == b"+OK\r\n"
            expected = told(connection.ask(b"XINFO", b"STREAM", b"s", *FULL))
            assert told(info(restored(payload))) == expected
            theirs_ = bulk(connection.ask(b"DUMP", b"s"))
            assert told(info(restored(theirs_))) == expected


def test_plain_values_go_to_redis_7_and_come_from_it(connection: Wire) -> None:
    exchange_plain_values(connection, VERSION)
