"""redis-py's clients on a hub: what they can do over a socket, they can do here."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from millstream.broker.redis_clients import (
    AsyncEmbeddedConnection,
    EmbeddedConnection,
    LocalConnection,
    Pipe,
    make_async_client,
    make_client,
)
from millstream.server.core.hub import Hub


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


@pytest.fixture(params=[2, 3])
def protocol(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def client(hub: Hub, protocol: int) -> Iterator[redis.Redis]:
    client = make_client(hub, protocol=protocol, decode_responses=True)
    yield client
    client.close()


def wait_for(condition: Callable[[], object], within_s: float = 60) -> None:
    """For what another thread does."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def once() -> Retry:
    """No second try: what fails is seen."""
    return Retry(NoBackoff(), 0)


def ids(reply: Any) -> list[str]:
    """The entry ids of an XREAD or XREADGROUP reply, in both protocols' shapes."""
    streams = reply.values() if isinstance(reply, dict) else [entries for _, entries in reply]
    return [entry[0] for entries in streams for entry in (entries[0] if isinstance(entries[0], list) else entries)]


# Commands


def test_plain_commands(client: redis.Redis) -> None:
    assert client.ping() is True
    assert client.set("k", "v", px=5000) is True
    assert client.get("k") == "v"
    assert client.hset("h", mapping={"a": 1, "b": 2}) == 2
    assert client.hgetall("h") == {"a": "1", "b": "2"}
    assert client.zadd("z", {"m": 1.5}) == 1
    assert client.zscore("z", "m") == 1.5
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.incr("h")


def test_streams(client: redis.Redis) -> None:
    first = client.xadd("s", {"f": "v"})
    client.xgroup_create("s", "g", id="0")
    assert ids(client.xreadgroup("g", "c", {"s": ">"})) == [first]
    assert client.xpending("s", "g")["pending"] == 1
    assert client.xack("s", "g", first) == 1
    assert client.xinfo_stream("s")["length"] == 1
    assert client.xrange("s") == [(first, {"f": "v"})]


def test_bytes_are_bytes_unless_asked_otherwise(hub: Hub) -> None:
    client = make_client(hub)
    client.set(b"\xff", b"\x00\xfe")
    assert client.get(b"\xff") == b"\x00\xfe"
    assert isinstance(client.info()["redis_version"], str)


def test_large_values_go_through(client: redis.Redis) -> None:
    big = "x" * 3_000_000
    assert client.set("k", big) is True
    assert client.get("k") == big
    assert client.mget(["k", "k"]) == [big, big]


def test_databases_and_names(hub: Hub) -> None:
    client = make_client(hub, db=4, client_name="me", decode_responses=True)
    client.set("k", "v")
    assert client.client_getname() == "me"
    assert make_client(hub, db=4).get("k") == b"v"
    assert make_client(hub).get("k") is None
    assert client.client_list()[0]["lib-name"].startswith("redis-py")


def test_a_password(hub: Hub) -> None:
    make_client(hub).config_set("requirepass", "secret")
    with pytest.raises(redis.AuthenticationError):
        make_client(hub, retry=once()).ping()
    assert make_client(hub, password="secret").ping() is True


# Pipelines and transactions


def test_a_pipeline_with_and_without_a_transaction(client: redis.Redis) -> None:
    for transaction in (True, False):
        pipeline = client.pipeline(transaction=transaction)
        for number in range(500):
            pipeline.set(f"k{number}", number)
            pipeline.get(f"k{number}")
        replies = pipeline.execute()
        assert replies[1::2] == [str(number) for number in range(500)]


def test_an_error_in_a_pipeline(client: redis.Redis) -> None:
    client.set("k", "x")
    replies = client.pipeline().incr("k").get("k").execute(raise_on_error=False)
    assert isinstance(replies[0], redis.ResponseError)
    assert replies[1] == "x"


def test_watch_and_try_again(client: redis.Redis) -> None:
    attempts = []

    def add_one(pipeline: Any) -> None:
        value = int(pipeline.get("k") or 0)
        if not attempts:
            client.set("k", 10)  # somebody comes between
        attempts.append(value)
        pipeline.multi()
        pipeline.set("k", value + 1)

    client.transaction(add_one, "k")
    assert attempts == [0, 10]
    assert client.get("k") == "11"


# Blocking


def test_a_blocking_read_is_served_by_another_thread(hub: Hub, client: redis.Redis) -> None:
    client.xgroup_create("s", "g", mkstream=True)

    def write() -> None:
        wait_for(lambda: len(hub.waiters))
        make_client(hub).xadd("s", {"f": "v"}, id="1-0")

    thread = threading.Thread(target=write)
    thread.start()
    assert ids(client.xreadgroup("g", "c", {"s": ">"}, block=0)) == ["1-0"]
    thread.join()


def test_a_blocking_read_times_out(client: redis.Redis) -> None:
    started = time.monotonic()
    assert not client.xread({"s": "$"}, block=50)
    assert 0.045 < time.monotonic() - started < 30


def test_a_socket_timeout_ends_a_read_that_blocks_longer(hub: Hub, protocol: int) -> None:
    client = make_client(hub, protocol=protocol, socket_timeout=0.05, retry=once())
    client.xgroup_create("s", "g", mkstream=True)
    with pytest.raises(redis.TimeoutError):
        client.xreadgroup("g", "c", {"s": ">"}, block=0)
    assert len(hub.waiters) == 0
    make_client(hub).xadd("s", {"f": "v"})
    assert client.xpending("s", "g")["pending"] == 0  # who hung up took nothing
    assert client.ping() is True


def test_closing_ends_a_read_in_another_thread(hub: Hub) -> None:
    client = make_client(hub, retry=once())
    failures: list[Exception] = []

    def read() -> None:
        try:
            client.xread({"s": "$"}, block=0)
        except redis.ConnectionError as error:
            failures.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    wait_for(lambda: len(hub.waiters))
    client.close()
    thread.join(60)
    assert len(failures) == 1
    assert len(hub.waiters) == 0


def test_threads_share_a_client(hub: Hub) -> None:
    client = make_client(hub)

    def count() -> None:
        for _ in range(200):
            client.incr("n")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.get("n") == b"800"


# Pub/sub


def test_messages_are_listened_to(client: redis.Redis) -> None:
    pubsub = client.pubsub()
    pubsub.subscribe("news")
    pubsub.psubscribe("n*")
    assert [pubsub.get_message(timeout=1)["type"] for _ in range(2)] == ["subscribe", "psubscribe"]  # type: ignore[index]
    assert client.publish("news", "hi") == 2
    listening = pubsub.listen()
    assert [next(listening)["data"] for _ in range(2)] == ["hi", "hi"]
    assert pubsub.get_message(timeout=0.02) is None
    assert pubsub.get_message() is None
    pubsub.unsubscribe()
    pubsub.punsubscribe()
    assert [pubsub.get_message(timeout=1)["type"] for _ in range(2)] == ["unsubscribe", "punsubscribe"]  # type: ignore[index]
    pubsub.close()


def test_messages_come_while_a_thread_listens(client: redis.Redis) -> None:
    received: list[str] = []
    pubsub = client.pubsub(ignore_subscribe_messages=True)
    pubsub.subscribe(c=lambda message: received.append(message["data"]))
    thread = pubsub.run_in_thread(sleep_time=0.01)
    for number in range(20):
        client.publish("c", number)
    wait_for(lambda: len(received) == 20)
    thread.stop()
    thread.join(60)
    assert received == [str(number) for number in range(20)]


def test_shard_channels(client: redis.Redis) -> None:
    pubsub = client.pubsub(ignore_subscribe_messages=True)
    pubsub.ssubscribe("c")
    wait_for(lambda: client.pubsub_shardnumsub("c") == [("c", 1)] or client.pubsub_shardnumsub("c") == [["c", 1]])
    client.spublish("c", "x")
    wait_for(lambda: (message := pubsub.get_message(timeout=0.1)) and message["data"] == "x")
    pubsub.close()


def test_keyspace_events(client: redis.Redis) -> None:
    client.config_set("notify-keyspace-events", "KEA")
    pubsub = client.pubsub(ignore_subscribe_messages=True)
    pubsub.psubscribe("__keyevent@0__:*")
    pubsub.get_message(timeout=1)
    client.xadd("s", {"f": "v"})
    wait_for(lambda: (message := pubsub.get_message(timeout=0.1)) and message["data"] == "s")
    pubsub.close()


# Locks


def test_a_lock(client: redis.Redis) -> None:
    lock = client.lock("name", timeout=10)
    assert lock.acquire(blocking=False)
    other = client.lock("name", timeout=10)
    assert not other.acquire(blocking=False)
    assert lock.extend(5)
    assert client.pttl("name") > 10_000
    assert lock.reacquire()
    assert client.pttl("name") <= 10_000
    assert lock.owned()
    lock.release()
    with pytest.raises(redis.exceptions.LockError):
        lock.release()
    with client.lock("name", timeout=1, blocking_timeout=1):
        assert client.exists("name")


def test_a_lock_waits_until_the_holder_s_time_is_over(client: redis.Redis) -> None:
    client.lock("name", timeout=0.05).acquire()
    assert client.lock("name", timeout=1).acquire(blocking_timeout=2)


# Connections


def test_the_server_can_hang_up(client: redis.Redis) -> None:
    other = client.client_id()
    pool: Any = client.connection_pool
    connection = pool.get_connection()
    assert client.client_kill_filter(_id=other) in (0, 1)
    connection.disconnect()
    pool.release(connection)
    assert client.ping() is True  # on a new connection


def test_a_connection_that_was_killed_is_replaced(hub: Hub) -> None:
    client, other = make_client(hub), make_client(hub)
    number = client.client_id()
    assert other.client_kill_filter(_id=str(number)) == 1
    assert client.client_id() > number


def test_pools_of_one_s_own(hub: Hub) -> None:
    pool = redis.BlockingConnectionPool(connection_class=EmbeddedConnection, max_connections=2, timeout=1, hub=hub)
    client = redis.Redis(connection_pool=pool)
    assert client.set("k", "v") is True
    assert "embedded" in repr(pool.get_connection())
    pool.disconnect()


def test_a_client_with_a_single_connection(hub: Hub) -> None:
    with make_client(hub, single_connection_client=True) as client:
        assert client.client_id() == client.client_id()


def test_health_checks(hub: Hub) -> None:
    client = make_client(hub, health_check_interval=1)
    assert client.ping() is True
    for connection in client.connection_pool._available_connections:
        connection.next_health_check = 0
    assert client.ping() is True


@pytest.mark.parametrize("parser", ["_RESP2Parser", "_RESP3Parser"])
def test_the_parsers_written_in_python(hub: Hub, parser: str) -> None:
    parsers = pytest.importorskip("redis._parsers")
    pool = redis.ConnectionPool(
        connection_class=EmbeddedConnection,
        parser_class=getattr(parsers, parser),
        hub=hub,
        socket_timeout=None,
        protocol=int(parser[5]),
    )
    client = redis.Redis(connection_pool=pool)
    assert client.set("k", "v") is True
    assert client.get("k") == b"v"
    pubsub = client.pubsub()
    pubsub.subscribe("c")
    assert pubsub.get_message(timeout=1)
    assert pubsub.get_message(timeout=0.01) is None
    pubsub.close()


def test_a_client_that_is_dropped_leaves_nothing_behind(hub: Hub) -> None:
    client = make_client(hub)
    pubsub = client.pubsub()
    pubsub.subscribe("c")
    assert len(hub.sessions) == 1
    client.ping()
    assert len(hub.sessions) == 2
    del client, pubsub
    gc.collect()
    hub.run([b"PING"])
    assert len(hub.sessions) == 0
    assert hub.run([b"PUBLISH", b"c", b"x"]) == 0


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_client_that_is_dropped_waits_for_nobody(hub: Hub, kind: str) -> None:
    """At exit the thread that has the hub's lock may have been ended with it: waiting would be for ever."""
    loop = asyncio.new_event_loop()
    pipes: list[object] = [
        Pipe(hub) if kind == "blocking" else LocalConnection(hub, asyncio.StreamReader(loop=loop), loop)
    ]
    dropping = threading.Thread(target=pipes.clear)
    with hub.lock:
        dropping.start()
        dropping.join(30)
        was_stuck = dropping.is_alive()
    dropping.join()
    loop.close()
    assert not was_stuck
    hub.run([b"PING"])
    assert len(hub.sessions) == 0, "the next who has the lock forgets the session"


def test_a_closed_client_opens_again(client: redis.Redis) -> None:
    client.ping()
    client.close()
    assert client.ping() is True


# asyncio


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 20))  # type: ignore[arg-type]


@pytest.fixture
def options(hub: Hub, protocol: int) -> dict[str, Any]:
    return {"hub": hub, "protocol": protocol, "decode_responses": True}


def test_async_commands_pipelines_and_streams(options: dict[str, Any]) -> None:
    async def main() -> None:
        async with make_async_client(**options) as client:
            assert await client.set("k", "v") is True
            assert await client.get("k") == "v"
            big = "x" * 3_000_000
            await client.set("big", big)
            assert await client.get("big") == big
            pipeline = client.pipeline(transaction=True)
            for number in range(300):
                pipeline.incrby("n", number)
            assert (await pipeline.execute())[-1] == sum(range(300))
            entry = await client.xadd("s", {"f": "v"})
            await client.xgroup_create("s", "g", id="0")
            assert ids(await client.xreadgroup("g", "c", {"s": ">"})) == [entry]

    run(main)


def test_async_reads_block_and_are_served_by_a_task_or_a_thread(options: dict[str, Any]) -> None:
    async def main() -> None:
        client = make_async_client(**options)
        other = make_async_client(**options)
        reading = asyncio.create_task(client.xread({"s": "$"}, block=0))
        await asyncio.sleep(0.02)
        assert not reading.done()
        await other.xadd("s", {"f": "v"}, id="1-0")
        assert ids(await reading) == ["1-0"]
        reading = asyncio.create_task(client.xread({"s": "$"}, block=0))
        await asyncio.sleep(0.02)
        await asyncio.to_thread(make_client(options["hub"]).xadd, "s", {"f": "v"}, id="2-0")
        assert ids(await reading) == ["2-0"]
        assert not await client.xread({"s": "$"}, block=30)
        await client.aclose()
        await other.aclose()

    run(main)


def test_async_socket_timeouts_and_cancelling_take_nothing(options: dict[str, Any]) -> None:
    async def main() -> None:
        client = make_async_client(**options, socket_timeout=0.05, retry=_async_once())
        patient = make_async_client(**options)
        await patient.xgroup_create("s", "g", mkstream=True)
        with pytest.raises(redis.TimeoutError):
            await client.xreadgroup("g", "c", {"s": ">"}, block=0)
        reading = asyncio.create_task(patient.xreadgroup("g", "c", {"s": ">"}, block=0))
        await asyncio.sleep(0.02)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await patient.xadd("s", {"f": "v"})
        assert (await patient.xpending("s", "g"))["pending"] == 0
        await client.aclose()
        await patient.aclose()

    run(main)


def _async_once() -> Any:
    from redis.asyncio.retry import Retry as AsyncRetry

    return AsyncRetry(NoBackoff(), 0)


def test_async_pubsub(options: dict[str, Any]) -> None:
    async def main() -> None:
        client = make_async_client(**options)
        pubsub = client.pubsub(ignore_subscribe_messages=True)
        await pubsub.subscribe("c")
        await pubsub.get_message(timeout=1)
        await client.publish("c", "one")
        await asyncio.to_thread(make_client(options["hub"]).publish, "c", "two")
        received = []
        async for message in pubsub.listen():
            received.append(message["data"])
            if len(received) == 2:
                break
        assert received == ["one", "two"]
        assert await pubsub.get_message(timeout=0.02) is None
        await pubsub.aclose()
        await client.aclose()

    run(main)


def test_async_locks_and_transactions(options: dict[str, Any]) -> None:
    async def main() -> None:
        client = make_async_client(**options)
        async with client.lock("name", timeout=5):
            assert not await client.lock("name", timeout=5).acquire(blocking=False)
        async with client.pipeline() as pipeline:
            await pipeline.watch("k")
            await client.set("k", "changed")
            pipeline.multi()
            pipeline.set("k", "mine")
            with pytest.raises(redis.WatchError):
                await pipeline.execute()
        await client.aclose()

    run(main)


def test_a_task_that_never_waits_lets_others_run(options: dict[str, Any]) -> None:
    async def main() -> None:
        client = make_async_client(**options)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(count())
        for _ in range(100):
            await client.incr("n")
        assert turns > 10
        task.cancel()
        await client.aclose()

    run(main)


def test_event_loops_one_after_the_other_and_side_by_side(hub: Hub) -> None:
    results: list[int] = []

    async def main() -> None:
        async with make_async_client(hub) as client:
            for _ in range(50):
                results.append(await client.incr("n"))

    def loop() -> None:
        asyncio.run(main())

    loop()
    threads = [threading.Thread(target=loop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == list(range(1, 201))


@pytest.mark.filterwarnings("ignore:unclosed Connection")
def test_a_listener_whose_loop_is_gone_is_forgotten(hub: Hub) -> None:
    kept: list[Any] = []

    async def main() -> None:
        client = make_async_client(hub)
        pubsub = client.pubsub()
        await pubsub.subscribe("c")
        kept.extend([client, pubsub])

    asyncio.run(main())
    assert hub.run([b"PUBLISH", b"c", b"x"]) == 1
    assert hub.run([b"PUBLISH", b"c", b"x"]) == 0
    kept.clear()


def test_the_server_can_hang_up_on_a_task(hub: Hub) -> None:
    async def main() -> None:
        client = make_async_client(hub, retry=_async_once())
        number = await client.client_id()
        hub.run([b"CLIENT", b"KILL", b"ID", b"%d" % number])
        assert await client.client_id() > number
        reading = asyncio.create_task(client.xread({"s": "$"}, block=0))
        await asyncio.sleep(0.02)
        hub.run([b"CLIENT", b"KILL", b"TYPE", b"normal"])
        with pytest.raises(redis.ConnectionError):
            await reading
        await client.aclose()

    run(main)


def test_async_pools_of_one_s_own(hub: Hub) -> None:
    async def main() -> None:
        pool = redis.asyncio.BlockingConnectionPool(
            connection_class=AsyncEmbeddedConnection, max_connections=2, timeout=5, hub=hub
        )
        client = redis.asyncio.Redis(connection_pool=pool)
        assert await asyncio.gather(*(client.ping() for _ in range(10))) == [True] * 10
        await pool.disconnect()

    run(main)
