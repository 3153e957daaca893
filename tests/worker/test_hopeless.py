"""What cannot go on ends loudly, and what can is waited for: streams that change, servers that refuse."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from millstream import Backoff, LeaseLost, Message, NotSettled, Stream
from millstream.delivery.consumer import Consumer
from millstream.errors import ServerReplied
from tests.support.servers import RealServer
from tests.worker.test_stream import MakeStream, running, until

RUN = """
import sys
from millstream import Stream
stream = Stream("orders", sys.argv[1], group="g")
@stream.handler
def handle(data):
    print("handled", flush=True)
stream.publish({})
stream.run()
"""
CONSUME = """
import sys
from millstream import Stream
stream = Stream("orders", sys.argv[1], group="g")
stream.publish({})
for message in stream.consume():
    message.ack()
    print("handled", flush=True)
"""


@pytest.fixture
def server(valkey_server: RealServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=valkey_server.port) as client:
        client.flushall()
        yield client
        client.execute_command("ACL", "SETUSER", "default", "on", "nopass", "allkeys", "allcommands")
        client.flushall()


@pytest.mark.parametrize("script", [RUN, CONSUME], ids=["run", "consume"])
@pytest.mark.parametrize("trouble", ["WRONGTYPE", "NOPERM"])
def test_what_waiting_does_not_mend_ends_the_process_with_its_reason(
    server: redis.Redis, valkey_server: RealServer, script: str, trouble: str
) -> None:
    server.execute_command("ACL", "SETUSER", "app", "on", ">secret", "allkeys", "allcommands", "allchannels")
    url = f"redis://app:secret@127.0.0.1:{valkey_server.port}"
    command = [sys.executable, "-c", script, url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "handled\n"
        if trouble == "WRONGTYPE":
            server.set("orders", "no stream")
        else:
            server.execute_command("ACL", "SETUSER", "app", "-@all")
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert trouble in errors
    assert "Traceback" in errors


REJECT = """
import sys
from millstream import Reject, Stream
stream = Stream("orders", sys.argv[1], group="g")
@stream.handler
def handle(data):
    raise Reject("no")
stream.run()
"""


@pytest.mark.parametrize(
    ("rights", "named"),
    [
        (["-xadd"], "'xadd'|this command"),  # Redis 7.0 does not say which
        (["resetkeys", "~orders", "~{orders}:[^d]*", "~{orders}:delayed"], "{orders}:dlq"),
    ],
    ids=["command", "key"],
)
@pytest.mark.parametrize("kind", ["valkey_server", "redis_server", "redis7_server"])
def test_a_right_that_only_dead_letters_need_ends_the_worker(
    request: pytest.FixtureRequest, kind: str, rights: list[str], named: str
) -> None:
    """One entry that cannot be settled for want of a right would be sent again for ever."""
    port = request.getfixturevalue(kind).port
    with redis.Redis(port=port) as client:
        client.flushall()
        client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "+@all", *rights)
        Stream[dict[str, int]]("orders", f"redis://127.0.0.1:{port}", group="g").publish({"n": 1})
        command = [sys.executable, "-c", REJECT, f"redis://app:secret@127.0.0.1:{port}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert "ServerReplied" in last
        assert re.search(named, last), last
        assert client.xlen("orders") == 1, "nothing is lost"
        client.execute_command("ACL", "DELUSER", "app")


def test_a_refusal_while_it_drains_ends_the_worker_before_its_grace(
    server: redis.Redis, valkey_server: RealServer
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    with Stream[int]("orders", f"redis://127.0.0.1:{valkey_server.port}", group="g", shutdown_grace=300) as orders:

        def handle(number: int) -> None:
            begun.set()
            assert go_on.wait(60)

        orders.handler(handle)
        orders.publish(1)
        ended: list[BaseException] = []

        def run() -> None:
            try:
                orders.run()
            except ServerReplied as error:
                ended.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        assert begun.wait(30)
        orders.stop()
        server.set("orders", "no stream")
        go_on.set()
        thread.join(60)
        assert not thread.is_alive(), "it waited for an entry that cannot be settled"
    assert "WRONGTYPE" in str(ended[0])


def test_entries_that_cannot_become_dead_letters_hold_no_places(
    server: redis.Redis, valkey_server: RealServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A script can append 3,500 fields: wider entries that do not fit the type stay, and the others are handled."""
    wide = {f"f{n}": "v" for n in range(4000)}
    handled: list[int] = []
    with Stream[int]("orders", f"redis://127.0.0.1:{valkey_server.port}", group="g", shutdown_grace=5) as orders:
        orders.handler(handled.append, concurrency=1)
        for _ in range(4):  # more than are in hand at once
            server.xadd("orders", wide)
        orders.publish(1)
        with running(orders):
            until(lambda: handled == [1])
        audit = orders.audit()
        assert (audit.done, audit.dead, audit.pending) == (1, 0, 4), "nothing is lost"
    assert "cannot become a dead letter" in caplog.text


def test_a_group_that_is_destroyed_is_made_anew(make_stream: MakeStream, caplog: pytest.LogCaptureFixture) -> None:
    stream, handled = make_stream(), list[int]()
    stream.handler(lambda data: handled.append(data["n"]))
    stream.publish({"n": 1})
    with running(stream):
        until(lambda: handled == [1])
        stream.backend.execute("XGROUP", "DESTROY", "orders", "billing")
        stream.publish({"n": 2})
        until(lambda: 2 in handled, 30)
    assert "made anew" in caplog.text


@pytest.mark.parametrize("key", ["group", "stream"])
def test_a_busy_worker_survives_the_end_of_its_group(server: redis.Redis, valkey_server: RealServer, key: str) -> None:
    """With the group its pending list is gone: what is in hand is lost, and must not hold the places of others."""
    url = f"redis://127.0.0.1:{valkey_server.port}"
    handled, begun, go_on = list[int](), threading.Event(), threading.Event()
    with Stream[int]("orders", url, group="g", shutdown_grace=5) as orders:

        def handle(number: int) -> None:
            begun.set()
            assert go_on.wait(60)
            handled.append(number)

        orders.handler(handle, concurrency=1)
        orders.publish_many(range(4))
        with running(orders):
            assert begun.wait(30)
            until(lambda: orders.audit().pending == 2)  # no room for more
            server.execute_command(*(["XGROUP", "DESTROY", "orders", "g"] if key == "group" else ["DEL", "orders"]))
            go_on.set()
            orders.publish(9)
            until(lambda: 9 in handled)


def test_consume_goes_on_when_its_group_is_gone(server: redis.Redis, valkey_server: RealServer) -> None:
    with Stream[int]("orders", f"redis://127.0.0.1:{valkey_server.port}", group="g") as orders:
        orders.publish(1)
        messages = iter(orders.consume(wait=30))
        message = next(messages)
        server.xgroup_destroy("orders", "g")
        with pytest.raises(LeaseLost):
            message.ack()
        assert next(messages).data == 1, "the new group begins with what the stream has"
        messages.close()  # type: ignore[attr-defined]


def test_consume_sends_again_what_full_memory_refused(server: redis.Redis, valkey_server: RealServer) -> None:
    url = f"redis://127.0.0.1:{valkey_server.port}"
    with Stream[int]("orders", url, group="g") as orders, Stream[int]("paid", url, group="g") as paid:
        orders.publish(1)
        messages = orders.consume(wait=20)
        message = next(messages)
        message.publish(paid, 7)
        server.config_set("maxmemory", 1)
        with pytest.raises(NotSettled, match="OOM"):
            message.ack()
        server.config_set("maxmemory", 0)
        mended = threading.Timer(1.0, lambda: orders.publish(2))
        mended.start()
        assert next(messages).data == 2, "the loop goes on"
        until(lambda: paid.audit().published == 1)
        assert orders.audit().done == 1
        messages.close()  # type: ignore[attr-defined]
        mended.join()


def test_consume_settles_at_its_end_what_was_refused_before(server: redis.Redis, valkey_server: RealServer) -> None:
    url = f"redis://127.0.0.1:{valkey_server.port}"
    with Stream[int]("orders", url, group="g") as orders, Stream[int]("paid", url, group="g") as paid:
        orders.publish(1)
        messages = orders.consume(wait=20)
        message = next(messages)
        message.publish(paid, 7)
        server.config_set("maxmemory", 1)
        with pytest.raises(NotSettled, match="OOM"):
            message.ack()
        server.config_set("maxmemory", 0)
        messages.close()  # type: ignore[attr-defined]
        assert (orders.audit().done, paid.audit().published) == (1, 1)


def test_consume_waits_for_a_server_that_cannot_make_the_group_yet(
    server: redis.Redis, valkey_server: RealServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.config_set("maxmemory", 1)
    threading.Timer(1.0, lambda: redis.Redis(port=valkey_server.port).config_set("maxmemory", 0)).start()
    url = f"redis://127.0.0.1:{valkey_server.port}"
    got: list[Message[Any]] = []
    with Stream[int]("orders", url, group="g", reconnect=Backoff(0.2, cap=0.2)) as orders:
        publisher = threading.Timer(3.0, lambda: orders.publish(1))
        publisher.start()
        got.append(next(iter(orders.consume(wait=30))))
        publisher.join()
    assert got[0].data == 1
    assert "OOM" in caplog.text


def test_the_log_names_the_step_that_was_refused(make_stream: MakeStream, caplog: pytest.LogCaptureFixture) -> None:
    stream = make_stream()
    handled = threading.Event()
    stream.handler(lambda data: handled.set())
    stream.publish({})

    def refuse(self: Consumer, now: int) -> None:
        raise ServerReplied("OOM command not allowed when used memory > 'maxmemory'.")

    with pytest.MonkeyPatch.context() as patch, running(stream):
        assert handled.wait(30)
        patch.setattr(Consumer, "_promote", refuse)
        until(lambda: "promoting what is due of" in caplog.text)
    assert "renewing leases" not in caplog.text
