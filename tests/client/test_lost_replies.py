"""What is sent again when the connection breaks, and what is not."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from millstream.client.calls import Call, Script, as_is, command
from millstream.errors import Unavailable
from tests.client.conftest import Open
from tests.support.cluster import Cluster
from tests.support.places import Served
from tests.support.proxy import FaultProxy
from tests.support.servers import RealServer

COUNT_UP = Script("return redis.call('INCR', KEYS[1])")


@pytest.fixture(params=["broker", "valkey"])
def proxy(request: pytest.FixtureRequest, served_broker: Served, valkey_server: RealServer) -> Iterator[FaultProxy]:
    port = served_broker.port if request.param == "broker" else valkey_server.port
    with FaultProxy("127.0.0.1", port) as made:
        yield made


@pytest.fixture
def backend(proxy: FaultProxy, open_backend: Open) -> object:
    made = open_backend(proxy.url, timeout_s=0.5)
    made.execute("FLUSHALL")
    made.run(COUNT_UP.call([b"warm"], [], as_is))
    proxy.reset()
    return made


def test_a_step_whose_reply_is_lost_is_sent_again(backend: Open, proxy: FaultProxy) -> None:
    proxy.drop_reply()
    assert backend.run(COUNT_UP.call([b"n"], [], as_is)) == 2
    assert proxy.counts["EVALSHA"] == 2


def test_a_step_that_never_arrived_is_sent_again(backend: Open, proxy: FaultProxy) -> None:
    proxy.cut()
    assert backend.run(COUNT_UP.call([b"n"], [], as_is)) == 1


def test_a_call_that_may_not_be_sent_twice_is_not(backend: Open, proxy: FaultProxy) -> None:
    proxy.drop_reply()
    with pytest.raises(Unavailable) as caught:
        backend.run(command("XADD", "s", "*", "a", "b", key=b"s"))
    assert caught.value.is_retryable
    assert proxy.counts["XADD"] == 1
    assert backend.execute("XLEN", "s") == 1


def test_execute_never_sends_twice(backend: Open, proxy: FaultProxy) -> None:
    proxy.cut()
    with pytest.raises(Unavailable):
        backend.execute("INCR", "n")
    assert proxy.counts["INCR"] == 1
    assert backend.execute("GET", "n") is None


def test_a_blocking_read_is_never_sent_twice(backend: Open, proxy: FaultProxy) -> None:
    proxy.drop_reply(command="XREAD")
    with pytest.raises(Unavailable):
        backend.run(Call(("XREAD", "BLOCK", 50, "STREAMS", "s", "$"), b"s", as_is, block_ms=50))
    assert proxy.counts["XREAD"] == 1


def test_sending_again_ends_after_four_times(backend: Open, proxy: FaultProxy) -> None:
    for nth in range(1, 9):
        proxy.drop_reply(nth)
    with pytest.raises(Unavailable):
        backend.run(COUNT_UP.call([b"n"], [], as_is))
    assert proxy.counts["EVALSHA"] == 4


def test_a_lost_reply_to_the_whole_script_is_sent_again(backend: Open, proxy: FaultProxy) -> None:
    backend.execute("SCRIPT", "FLUSH")
    proxy.drop_reply(command="EVAL")
    assert backend.run(COUNT_UP.call([b"n"], [], as_is)) == 2


def test_a_server_that_does_not_answer_is_unavailable_in_time(backend: Open, proxy: FaultProxy) -> None:
    proxy.freeze()
    start = time.monotonic()
    with pytest.raises(Unavailable, match=r"(?i)time"):
        backend.execute("GET", "k")
    assert 0.3 < time.monotonic() - start < 30
    proxy.thaw()
    assert backend.execute("GET", "k") is None


def test_a_reply_that_comes_too_late_is_not_taken_for_the_next_one(backend: Open, proxy: FaultProxy) -> None:
    backend.execute("SET", "k", "right")
    proxy.delay(0.8, command="INCR")
    with pytest.raises(Unavailable):
        backend.execute("INCR", "n")
    for _ in range(3):
        assert backend.execute("GET", "k") == b"right"
        time.sleep(0.2)


def test_connections_that_broke_while_idle_are_made_again(backend: Open, proxy: FaultProxy) -> None:
    backend.run(Call(("XREAD", "BLOCK", 10, "STREAMS", "s", "$"), b"s", as_is, block_ms=10))
    proxy.cut_all()
    time.sleep(0.1)
    assert backend.run(COUNT_UP.call([b"n"], [], as_is)) == 1


def test_a_cluster_client_does_not_repeat_what_may_have_run(open_backend: Open, valkey_cluster: Cluster) -> None:
    backend = open_backend(valkey_cluster.url, timeout_s=0.3)
    key = valkey_cluster.key_on(1, "lost")
    node = valkey_cluster.primary(1)
    backend.execute("DEL", key)
    backend.execute("GET", key)
    with asleep(node.port, 3.0), pytest.raises(Unavailable):
        backend.execute("XADD", key, "*", "a", "b")
    assert node.client.xlen(key) == 1


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.TimeoutError:
        return False


@contextlib.contextmanager
def asleep(port: int, seconds: float) -> Iterator[None]:
    """A server that does nothing for a while; what is sent meanwhile waits in its socket, and runs."""
    with redis.Redis(port=port, socket_timeout=60) as client:
        client.ping()
        thread = threading.Thread(target=client.execute_command, args=("DEBUG", "SLEEP", seconds))
        thread.start()
        with redis.Redis(port=port, socket_timeout=0.5, retry=Retry(NoBackoff(), 0)) as asking:
            while _answers(asking):
                time.sleep(0.005)
        yield
        thread.join(60)
