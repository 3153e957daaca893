"""Rows that are written once, whatever happens between them. Without Spark, on a real Valkey."""

from __future__ import annotations

import pyarrow as pa
import pytest
import redis

from millstream.errors import ConfigError, ServerReplied, Unavailable
from millstream.spark.options import Write, parse_write
from millstream.spark.sink.fence import FenceWriter, fence_key, read_note
from millstream.spark.sink.packing import Packed, layout_of, pack
from millstream.spark.sink.writer import Identity
from tests.support.servers import RealServer

ONE = Identity("q", 3, 0)


@pytest.fixture
def client(valkey_server: RealServer) -> redis.Redis:
    client = redis.Redis(port=valkey_server.port)
    client.flushall()
    return client


@pytest.fixture
def options(valkey_server: RealServer) -> Write:
    return parse_write({"url": f"redis://127.0.0.1:{valkey_server.port}", "stream": "s", "chunkSize": "7"})


def rows(first: int, last: int) -> Packed:
    batch = pa.RecordBatch.from_pydict({"n": list(range(first, last))})
    return pack(batch, layout_of(batch.schema, True), keep_nulls=False)


def numbers(client: redis.Redis) -> list[int]:
    return [int(fields[b"n"]) for _, fields in client.xrange("s")]  # type: ignore[union-attr, misc]


def write(options: Write, *parts: Packed, identity: Identity = ONE) -> None:
    writer = FenceWriter(options, "s", identity)
    for part in parts:
        writer.write(part)
    writer.finish()
    writer.close()


def test_an_attempt_goes_on_behind_the_last_one(client: redis.Redis, options: Write) -> None:
    """Its parts may be cut elsewhere."""
    write(options, rows(0, 10))
    write(options, rows(0, 4), rows(4, 33))
    write(options, rows(0, 33))
    assert numbers(client) == list(range(33))
    assert read_note(client.hget(fence_key("s", "q").decode(), "0"))[:2] == (3, 33)  # type: ignore[arg-type]


def test_two_attempts_at_once_write_each_row_once(client: redis.Redis, options: Write) -> None:
    """Spark may begin one while the last one still runs."""
    slow, quick = (FenceWriter(options, "s", ONE) for _ in range(2))
    slow.write(rows(0, 7))
    slow.finish()
    quick.write(rows(0, 20))
    quick.finish()
    slow.write(rows(7, 40))
    slow.finish()
    quick.write(rows(20, 40))
    quick.finish()
    assert numbers(client) == list(range(40))


def test_partitions_and_batches_have_notes_of_their_own(client: redis.Redis, options: Write) -> None:
    for identity in (Identity("q", 3, 0), Identity("q", 3, 1), Identity("q", 4, 0), Identity("r", 3, 0)):
        for _ in range(2):
            write(options, rows(0, 9), identity=identity)
    assert numbers(client) == list(range(9)) * 4


def test_the_work_of_others_is_not_counted(client: redis.Redis, options: Write) -> None:
    writer = FenceWriter(options, "s", ONE)
    writer.write(rows(0, 3))
    writer.finish()
    client.xadd("s", {"n": -1})
    client.xtrim("s", maxlen=0)
    writer.write(rows(3, 6))
    writer.finish()
    assert numbers(client) == [3, 4, 5]
    assert read_note(client.hget(fence_key("s", "q").decode(), "0"))[:2] == (3, 6)  # type: ignore[arg-type]


def test_rows_that_are_refused_are_not_noted_as_written(client: redis.Redis, options: Write) -> None:
    """Somebody puts something else in the place of the stream, and later the stream back."""
    writer = FenceWriter(options, "s", ONE)
    writer.write(rows(0, 7))
    writer.finish()
    client.rename("s", "kept")
    client.set("s", "text")
    writer.write(rows(7, 14))
    with pytest.raises(ConfigError, match="the key is not a stream"):
        writer.finish()
    client.rename("kept", "s")
    write(options, rows(0, 20))
    assert numbers(client) == list(range(20))


def test_of_rows_that_are_refused_halfway_those_before_are_noted(client: redis.Redis, options: Write) -> None:
    """The last possible id is near: three more entries fit, the fourth does not."""
    largest = 2**64 - 1
    client.xadd("s", {"n": -1}, id=f"{largest}-{largest - 3}")
    with pytest.raises(ServerReplied, match="exhausted"):
        write(options, rows(0, 6))
    assert numbers(client) == [-1, 0, 1, 2]
    assert read_note(client.hget(fence_key("s", "q").decode(), "0"))[:2] == (3, 3)  # type: ignore[arg-type]


def test_a_fence_that_is_gone_is_told(client: redis.Redis, options: Write) -> None:
    writer = FenceWriter(options, "s", ONE)
    writer.write(rows(0, 7))
    writer.finish()
    client.delete(fence_key("s", "q").decode())
    writer.write(rows(7, 14))
    with pytest.raises(ConfigError, match="an earlier part of this batch is missing in the fence"):
        writer.finish()
    assert numbers(client) == list(range(7))


def test_a_full_server_takes_nothing_and_is_not_asked_for_ever(client: redis.Redis, options: Write) -> None:
    hasty = parse_write({"url": options.connection.url, "stream": "s", "retryTimeout": "300ms"})
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(Unavailable, match=r"has refused this for 0\.3 s: put right what it says.*OOM"):
            write(hasty, rows(0, 3))
    finally:
        client.config_set("maxmemory", 0)
    assert client.exists("s") == 0
    write(options, rows(0, 3))
    assert numbers(client) == [0, 1, 2]


def test_a_lost_connection_is_made_again_and_nothing_is_there_twice(client: redis.Redis, options: Write) -> None:
    writer = FenceWriter(options, "s", ONE)
    for start in range(0, 100, 10):
        writer.write(rows(start, start + 10))
        client.client_kill_filter(_type="normal", skipme=True)
    writer.finish()
    assert numbers(client) == list(range(100))
