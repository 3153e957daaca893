"""What a fresh installation must be able to do, run by its own Python: `python smoke.py [--compiled] [--spark]`.

Knows nothing of this repository: it is copied out of it. Ends with a line of what it did.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WAIT_S = 60


def broker() -> None:
    from millstream import Broker

    with Broker() as kept:
        kept.xgroup_create("s", "g", "0", mkstream=True)
        kept.xadd("s", {"n": 1})
        (entry,) = kept.xreadgroup("g", "me", {"s": ">"})[b"s"]
        assert entry.fields == {b"n": b"1"}
        assert kept.xack("s", "g", entry.id) == 1


def worker() -> None:
    from millstream import Reject, Stream

    orders = Stream[dict[str, int]]("orders", "memory://", group="billing")
    seen: list[int] = []

    @orders.handler()
    def charge(order: dict[str, int]) -> None:
        if order["n"] == 0:
            raise Reject("nothing to charge")
        seen.append(order["n"])
        if len(seen) == 2:
            orders.stop()

    orders.publish_many([{"n": n} for n in range(3)])
    orders.run()
    audit = orders.audit()
    assert (sorted(seen), audit.done, audit.dead, audit.balanced) == ([1, 2], 2, 1, True), audit


def server(directory: Path) -> None:
    import redis

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = [sys.executable, "-m", "millstream", "serve", "--bind", "127.0.0.1", "--port", str(port), "--dir", "data"]
    process = subprocess.Popen(program, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        with redis.Redis(port=port) as client:
            _until(lambda: client.ping(), process)
            client.xadd("s", {"n": 1})
            assert client.eval("return redis.call('XLEN', KEYS[1])", 1, "s") == 1
            if "--spark" in sys.argv:
                spark(f"redis://127.0.0.1:{port}", directory)
        process.terminate()
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
    assert (directory / "data" / "appendonlydir").is_dir()


def spark(url: str, directory: Path) -> None:
    from millstream.spark import session

    found = session("smoke", log_file=directory / "spark.log")
    try:
        rows = found.read.format("millstream").option("url", url).option("stream", "s").load().collect()
        assert [bytes(row.fields["n"]) for row in rows] == [b"1"]
    finally:
        found.stop()


def _until(holds: Any, process: subprocess.Popen[bytes]) -> None:
    import redis

    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            holds()
            return
        except redis.ConnectionError:
            assert process.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)


def main() -> None:
    import millstream
    from millstream.engine.streams import entries

    here = Path.cwd()
    assert Path(millstream.__file__).is_relative_to(sys.prefix), millstream.__file__
    assert entries.__file__ is not None
    assert (not entries.__file__.endswith(".py")) is ("--compiled" in sys.argv), entries.__file__
    said = subprocess.run(
        [str(Path(sys.executable).with_name("millstream")), "--version"],
        check=True,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    ).stdout
    assert said.startswith(f"millstream {millstream.__version__} "), said
    broker()
    worker()
    server(here)
    print("smoke: all well")


if __name__ == "__main__":
    main()
