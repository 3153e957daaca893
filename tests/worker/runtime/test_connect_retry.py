"""A worker that is started before its server: it waits, says so, and begins when the server is there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream import aio
from millstream.broker import Broker
from millstream.delivery.policy import Backoff
from millstream.errors import CapabilityMissing, ConfigError, ServerReplied, Unavailable
from millstream.worker.stream import Stream
from tests.support import servers
from tests.support.ours import SOURCE
from tests.support.servers import RealServer

SOON = Backoff(0.05, cap=0.1)


@contextlib.contextmanager
def late_server(port: int, after_s: float = 0.4) -> Iterator[None]:
    """Our broker on this port, but not at once; there is one entry in each of two streams."""
    with Broker() as broker, contextlib.ExitStack() as stack:
        for name in ("orders", "others"):
            broker.client().xadd(name, {"data": '{"n": 1}'})
        timer = threading.Timer(after_s, lambda: stack.enter_context(broker.serve_in_background(port=port)))
        timer.start()
        try:
            yield
        finally:
            timer.join()


def make(port: int, **settings: object) -> Stream[dict[str, int]]:
    return Stream[dict[str, int]]("orders", f"redis://:secret@127.0.0.1:{port}", group="g", reconnect=SOON, **settings)


def test_run_waits_for_its_server_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    port, seen = servers.free_port(), threading.Event()
    orders = Stream[dict[str, int]]("orders", f"redis://127.0.0.1:{port}", group="g", reconnect=SOON)

    @orders.handler
    def charge(order: dict[str, int]) -> None:
        seen.set()
        orders.stop()

    with caplog.at_level(logging.WARNING, "millstream.worker.runtime.connect_retry"), late_server(port):
        worker = threading.Thread(target=orders.run, kwargs={"signals": False}, daemon=True)
        worker.start()
        assert seen.wait(60)
        worker.join(60)
        assert not worker.is_alive()
    first = caplog.records[0].getMessage()
    assert first.startswith(f"redis://127.0.0.1:{port} does not answer yet, trying again in ")
    assert "refused" in first
    assert first.count(str(port)) <= 2


def test_a_password_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    orders = make(servers.free_port(), connect_wait=0.1)
    orders.handler(lambda order: None)
    with pytest.raises(Unavailable):
        orders.run(signals=False)
    assert "***" in caplog.text
    assert "secret" not in caplog.text


def test_consume_waits_for_its_server() -> None:
    port = servers.free_port()
    orders = Stream[dict[str, int]]("orders", f"redis://127.0.0.1:{port}", group="g", reconnect=SOON)
    with late_server(port):
        for message in orders.consume():
            message.ack()
            break
    assert message.data == {"n": 1}


def test_asyncio_waits_for_its_server_too() -> None:
    port, seen = servers.free_port(), []

    async def main() -> None:
        orders = aio.Stream[dict[str, int]]("orders", f"redis://127.0.0.1:{port}", group="g", reconnect=SOON)

        @orders.handler
        async def charge(order: dict[str, int]) -> None:
            seen.append(order)
            orders.stop()

        await asyncio.wait_for(orders.run(signals=False), 20)
        other = aio.Stream[dict[str, int]]("others", f"redis://127.0.0.1:{port}", group="g", reconnect=SOON)
        async with other, contextlib.aclosing(other.consume(wait=5)) as messages:
            async for message in messages:
                await message.ack()
                seen.append(message.data)
                break

    with late_server(port):
        asyncio.run(main())
    assert seen == [{"n": 1}, {"n": 1}]


def test_a_wait_that_is_cancelled_ends() -> None:
    port = servers.free_port()

    async def main() -> None:
        orders = aio.Stream[dict[str, int]]("orders", f"redis://127.0.0.1:{port}", group="g")

        async def loop() -> None:
            async for _ in orders.consume():
                raise AssertionError("there is no server")

        task = asyncio.create_task(loop())
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 60)

    before = threading.active_count()
    asyncio.run(main())
    assert threading.active_count() <= before


def test_stop_ends_the_wait() -> None:
    orders = Stream[dict[str, int]]("orders", f"redis://127.0.0.1:{servers.free_port()}", group="g")
    orders.handler(lambda order: None)
    worker = threading.Thread(target=orders.run, kwargs={"signals": False}, daemon=True)
    worker.start()
    while not orders._workers:
        time.sleep(0.01)
    orders.stop()
    worker.join(60)
    assert not worker.is_alive()


def test_how_long_is_a_setting() -> None:
    orders = Stream[dict[str, int]](
        "orders", f"redis://127.0.0.1:{servers.free_port()}", group="g", connect_wait=0.3, reconnect=SOON
    )
    orders.handler(lambda order: None)
    began = time.monotonic()
    with pytest.raises(Unavailable):
        orders.run(signals=False)
    assert 0.3 <= time.monotonic() - began < 60
    with pytest.raises(Unavailable):  # no message within the time, and that because nobody was there
        list(orders.consume(wait=0.2))
    with pytest.raises(Unavailable):  # a producer is told at once
        orders.publish({"n": 1})


def test_what_waiting_does_not_mend_ends_at_once(valkey_server: RealServer) -> None:
    client = valkey_server.connect()
    with client:
        client.ask(b"ACL", b"SETUSER", b"bare", b"on", b">p", b"~*", b"&*", b"+@all", b"-@scripting")
    address = f"127.0.0.1:{valkey_server.port}"
    for url, error in (
        (f"redis://bare:wrong@{address}", ServerReplied),
        (f"redis://bare:p@{address}", CapabilityMissing),
        (f"redis+cluster://{address}", ConfigError),
        (f"redis://{address}/99", ServerReplied),
        ("http://nowhere", ConfigError),
    ):
        orders = Stream[dict[str, int]]("orders", url, group="g")
        orders.handler(lambda order: None)
        with pytest.raises(error):
            orders.run(signals=False)
        with pytest.raises(error):
            next(orders.consume())


def test_consume_goes_on_after_its_server_was_away() -> None:
    port = servers.free_port()
    orders = Stream[dict[str, int]]("orders", f"redis://127.0.0.1:{port}", group="g", reconnect=SOON)
    with Broker() as broker:
        with broker.serve_in_background(port=port):
            messages = orders.consume()
            orders.publish({"n": 1})
            next(messages).ack()
        orders.close()
        timer = threading.Timer(0.4, lambda: stack.enter_context(broker.serve_in_background(port=port)))
        broker.client().xadd("orders", {"data": '{"n": 2}'})
        with contextlib.ExitStack() as stack:
            timer.start()
            message = next(messages)
            message.ack()
            assert message.data == {"n": 2}
            messages.close()  # type: ignore[attr-defined]
            timer.join()


def test_the_program_waits_too_and_ends_on_sigterm(tmp_path: Path) -> None:
    port = servers.free_port()
    (tmp_path / "app.py").write_text(
        "from millstream import Stream\n"
        f"orders = Stream[dict]('orders', 'redis://127.0.0.1:{port}', group='g')\n"
        "@orders.handler\ndef charge(order): print('charged', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "millstream", "worker", "app:orders"],
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "does not answer yet" in process.stderr.readline()
        with late_server(port, 0.0):
            assert process.stdout.readline() == "charged\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate(timeout=60)
