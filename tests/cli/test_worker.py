"""`millstream worker`: a process that handles a program's streams until SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from millstream import Stream
from tests.support import servers

APP = """
import os, time
from millstream import Stream
import millstream.aio

orders = Stream[dict]("orders", os.environ["APP_URL"], group="billing", lease=2.0)
quick = millstream.aio.Stream[dict]("quick", os.environ["APP_URL"], group="billing", lease=2.0)
empty = Stream[dict]("empty", os.environ["APP_URL"])

@orders.handler(concurrency=2)
def handle(data):
    with open("begun", "a") as file:  # one write: two threads do not mix
        file.write(".")
    time.sleep(data.get("sleep", 0))

@quick.handler(concurrency=2)
async def handle_quick(data):
    pass
"""


@pytest.fixture
def app(tmp_path: Path, valkey_server: servers.RealServer) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def start(app: Path, port: int, *args: str) -> subprocess.Popen[str]:
    environment = os.environ | {
        "APP_URL": f"redis://127.0.0.1:{port}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "millstream", "worker", *args],
        cwd=app,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_it_handles_until_sigterm_and_releases_the_rest(app: Path, valkey_server: servers.RealServer) -> None:
    url = f"redis://127.0.0.1:{valkey_server.port}"
    with (
        Stream[dict[str, int]]("orders", url, group="billing") as orders,
        Stream[dict[str, int]]("quick", url, group="billing") as quick,
    ):
        orders.backend.execute("FLUSHALL", key=b"")
        orders.publish_many([{"n": n} for n in range(50)])
        quick.publish_many([{"n": n} for n in range(50)])
        port, begun = servers.free_port(), app / "begun"
        process = start(app, valkey_server.port, "shop:orders", "shop:quick", "--metrics", str(port))
        try:
            end = time.monotonic() + 60
            while orders.audit().done + quick.audit().done < 100:
                assert time.monotonic() < end
                assert process.poll() is None, process.communicate()[0]
                time.sleep(0.05)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                assert b'stream="orders"' in answer.read()
            orders.publish_many([{"sleep": 1}] * 6)
            while len(begun.read_text()) < 51:
                assert time.monotonic() < end
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 0, output
        audit = orders.audit()
        assert 51 <= audit.done == len(begun.read_text()), "what was begun is finished"
        assert audit.pending == audit.released, "and what was not is released"
        assert audit.balanced


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("shop", "MODULE:NAME"),
        ("nowhere:orders", "no module 'nowhere'"),
        ("shop:nothing", "it has orders, quick, empty"),
        ("shop:empty", "has no handler"),
    ],
)
def test_what_cannot_be_run_is_named(app: Path, valkey_server: servers.RealServer, target: str, said: str) -> None:
    process = start(app, valkey_server.port, target)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said in output


def test_a_stream_that_is_named_twice_is_refused(app: Path, valkey_server: servers.RealServer) -> None:
    (app / "twice.py").write_text("from shop import orders\nalso = orders\n")
    worker = start(app, valkey_server.port, "twice:orders", "twice:also")
    output, _ = worker.communicate(timeout=60)
    assert worker.returncode == 2
    assert "'twice:also' is given twice" in output


def test_a_stop_is_heard_by_a_stream_that_is_only_starting(app: Path, valkey_server: servers.RealServer) -> None:
    (app / "late.py").write_text(
        "import os, signal, time\n"
        "from shop import orders\n"
        "make = orders._definition.make_worker\n"
        "def late(*args):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(1)\n"
        "    return make(*args)\n"
        "orders._definition.make_worker = late\n"
    )
    worker = start(app, valkey_server.port, "late:orders")
    try:
        worker.communicate(timeout=60)
        assert worker.returncode == 0
    finally:
        worker.kill()


ENDLESS = """
import asyncio, os, threading, time
import millstream.aio
from millstream import Stream
import millstream.cli.worker

millstream.cli.worker.END_WITHIN_S = 1.0
AsyncStream = millstream.aio.Stream
stream = {kind}[dict]("endless", os.environ["APP_URL"], group="g", shutdown_grace=0.1)

async def swallow():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def cancel_all():
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(1)

@stream.handler
async def handle(data):
    print("begun", flush=True)
    {body}
"""


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("AsyncStream", "time.sleep(3600)"),
        ("AsyncStream", "await swallow()"),
        ("Stream", "await asyncio.to_thread(time.sleep, 3600)"),
    ],
    ids=["blocks-its-loop", "swallows-the-cancellation", "waits-for-a-thread"],
)
def test_no_handler_keeps_the_process_from_ending(
    tmp_path: Path, valkey_server: servers.RealServer, kind: str, body: str
) -> None:
    (tmp_path / "shop.py").write_text(ENDLESS.format(kind=kind, body=body))
    with Stream[dict[str, int]]("endless", f"redis://127.0.0.1:{valkey_server.port}", group="g") as stream:
        stream.backend.execute("FLUSHALL", key=b"")
        stream.publish({})
        process = start(tmp_path, valkey_server.port, "shop:stream")
        try:
            assert process.stdout is not None
            while process.stdout.readline() != "begun\n":
                assert process.poll() is None
            process.terminate()
            said = process.communicate(timeout=60)[0]
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 1
        assert "threads that did not end" in said
        assert stream.audit().released == 1, "the entry was given back before"


def test_a_handler_that_cancels_its_worker_ends_it_with_an_error(
    tmp_path: Path, valkey_server: servers.RealServer
) -> None:
    (tmp_path / "shop.py").write_text(ENDLESS.format(kind="AsyncStream", body="await cancel_all()"))
    with Stream[dict[str, int]]("endless", f"redis://127.0.0.1:{valkey_server.port}", group="g") as stream:
        stream.backend.execute("FLUSHALL", key=b"")
        stream.publish({})
        process = start(tmp_path, valkey_server.port, "shop:stream")
        try:
            said = process.communicate(timeout=60)[0]
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 1, said
    assert "CancelledError" in said


def test_a_refused_password_is_one_line_without_a_traceback(app: Path, redis_server: servers.RealServer) -> None:
    url = f"redis://nobody:wrong@127.0.0.1:{redis_server.port}"
    worker = start(app, redis_server.port, "shop:orders", "--url", url)
    output, _ = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "WRONGPASS" in output
    assert "Traceback" not in output
    assert "wrong@" not in output
