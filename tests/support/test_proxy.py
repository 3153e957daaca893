"""The proxy that other tests rest on: what it cuts is cut exactly there, what it lets through is untouched."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.proxy import Action, Cut, DropReply, FaultProxy, Forward
from tests.support.servers import RealServer


@pytest.fixture
def proxy(valkey_server: RealServer) -> Iterator[FaultProxy]:
    with direct(valkey_server) as client:
        client.flushall()
    with FaultProxy("127.0.0.1", valkey_server.port) as proxy:
        yield proxy


def direct(server: RealServer) -> redis.Redis:
    return redis.Redis(port=server.port)


def through(proxy: FaultProxy, **options: object) -> redis.Redis:
    """A client that does not try again by itself."""
    return redis.Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0), socket_timeout=60, **options)


@pytest.mark.parametrize("protocol", [2, 3])
def test_everything_passes_unchanged(proxy: FaultProxy, protocol: int) -> None:
    with through(proxy, protocol=protocol) as client:
        client.set("k", b"\r\n\x00" * 100_000)
        assert client.get("k") == b"\r\n\x00" * 100_000
        pipe = client.pipeline()
        for number in range(1000):
            pipe.xadd("s", {"n": number})
        assert len(set(pipe.execute())) == 1000
        assert len(client.xrange("s")) == 1000
    assert proxy.counts == {"SET": 1, "GET": 1, "MULTI": 1, "XADD": 1000, "EXEC": 1, "XRANGE": 1}
    assert proxy.number == 1005


def test_a_cut_command_does_not_run(proxy: FaultProxy, valkey_server: RealServer) -> None:
    proxy.cut(nth=2)
    with through(proxy) as client, direct(valkey_server) as server:
        client.incr("n")
        with pytest.raises(redis.ConnectionError):
            client.incr("n")
        assert server.get("n") == b"1"
        assert client.incr("n") == 2  # the plan is used up
    assert proxy.connections == 2


def test_a_command_whose_reply_is_dropped_has_run(proxy: FaultProxy, valkey_server: RealServer) -> None:
    proxy.drop_reply(nth=3)
    with through(proxy) as client, direct(valkey_server) as server:
        assert [client.incr("n"), client.incr("n")] == [1, 2]
        with pytest.raises(redis.ConnectionError):
            client.incr("n")
        assert server.get("n") == b"3"


def test_a_fault_can_wait_for_a_command_by_name(proxy: FaultProxy, valkey_server: RealServer) -> None:
    proxy.drop_reply(nth=2, command="xadd")
    with through(proxy) as client, direct(valkey_server) as server:
        client.xadd("s", {"n": 1})
        client.ping()
        with pytest.raises(redis.ConnectionError):
            client.xadd("s", {"n": 2})
        assert server.xlen("s") == 2


@pytest.mark.parametrize("doom", [Cut(), DropReply()])
def test_earlier_replies_of_a_pipeline_arrive(proxy: FaultProxy, valkey_server: RealServer, doom: Action) -> None:
    proxy.rule = lambda argv, _number: doom if argv == [b"INCR", b"doomed"] else Forward()
    with through(proxy) as client, direct(valkey_server) as server:
        connection = client.connection_pool.get_connection()
        connection.send_packed_command(connection.pack_commands([("INCR", "n"), ("INCR", "n"), ("INCR", "doomed")]))
        assert [connection.read_response(), connection.read_response()] == [1, 2]
        with pytest.raises(redis.ConnectionError):
            connection.read_response()
        connection.disconnect()
        assert server.exists("doomed") == (doom == DropReply())


def test_a_rule_sees_words_and_numbers(proxy: FaultProxy) -> None:
    seen: list[tuple[list[bytes], int]] = []

    def rule(argv: list[bytes], number: int) -> Action:
        seen.append((argv, number))
        return Forward()

    proxy.rule = rule
    with through(proxy) as client:
        client.set("k", "v")
        client.get("k")
    assert seen == [([b"SET", b"k", b"v"], 1), ([b"GET", b"k"], 2)]


def test_a_delayed_command_runs_later(proxy: FaultProxy) -> None:
    proxy.delay(0.2, command="PING")
    with through(proxy) as client:
        begun = time.monotonic()
        client.echo("at once")
        between = time.monotonic()
        client.ping()
        assert time.monotonic() - between >= 0.2 > between - begun


def test_new_connections_can_be_refused_for_a_while(proxy: FaultProxy) -> None:
    with through(proxy) as old, through(proxy) as new:
        old.ping()
        proxy.refuse(60)
        with pytest.raises(redis.ConnectionError):
            new.ping()
        assert old.ping()
        proxy.reset()
        assert new.ping()


def test_open_connections_can_be_cut_from_outside(proxy: FaultProxy) -> None:
    with through(proxy) as client:
        connection = client.connection_pool.get_connection()
        connection.send_command("BLPOP", "nothing", 0)
        threading.Timer(0.05, proxy.cut_all).start()
        with pytest.raises(redis.ConnectionError):
            connection.read_response()
        connection.disconnect()


def test_a_frozen_proxy_holds_replies_back_until_thawed(proxy: FaultProxy) -> None:
    with through(proxy) as client, through(proxy) as impatient:
        client.ping()
        proxy.freeze()
        threading.Timer(0.1, proxy.thaw).start()
        assert client.ping()
        proxy.freeze()
        impatient.connection_pool.connection_kwargs["socket_timeout"] = 0.05
        with pytest.raises(redis.TimeoutError):
            impatient.ping()
        proxy.thaw()


def test_a_subscription_gets_its_messages(proxy: FaultProxy, valkey_server: RealServer) -> None:
    with through(proxy) as client, direct(valkey_server) as server, client.pubsub() as channel:
        channel.subscribe("news")
        assert channel.get_message(timeout=5)["type"] == "subscribe"
        for number in range(3):
            server.publish("news", number)
        assert [channel.get_message(timeout=5)["data"] for _ in range(3)] == [b"0", b"1", b"2"]
