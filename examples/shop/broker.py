"""The demo's broker in a process of its own: inside the demo's it would wait for the interpreter that drives Spark.

python -m examples.shop.broker DIRECTORY
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from examples.shop.leash import Child, on_leash
from millstream import Broker
from millstream.cli.broker.serve import settle_in
from millstream.errors import MillstreamError, PersistenceError

STARTS_S = 60.0
LETS_GO_S = 5.0


def keep(directory: Path) -> None:
    """Serve what the directory has until SIGTERM; the port is written beside it."""
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    with _opened(directory / "data") as broker, broker.serve_in_background() as server:
        # The log of a run of a minute is not worth writing anew halfway.
        broker.execute("CONFIG", "SET", "auto-aof-rewrite-percentage", 0)
        draft = directory / "port.new"
        draft.write_text(str(server.port))
        os.replace(draft, directory / "port")
        settle_in()
        asked.wait()


def _opened(path: Path) -> Broker:
    """The broker of a directory. That of a run which was killed may need a moment to let go of it."""
    until = time.monotonic() + LETS_GO_S
    while True:
        try:
            return Broker(path)
        except PersistenceError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def started(directory: Path) -> tuple[Child, int]:
    """A broker for this directory, and its port."""
    port, log, until = directory / "port", directory / "broker.log", time.monotonic() + STARTS_S
    port.unlink(missing_ok=True)
    child = Child("examples.shop.broker", [str(directory)], log)
    while not port.exists():
        if child.code is not None or time.monotonic() > until:
            child.end()
            raise MillstreamError(f"the broker does not start, see {log}: {''.join(log.read_text().splitlines()[-1:])}")
        time.sleep(0.02)
    return child, int(port.read_text())


if __name__ == "__main__":
    on_leash()
    keep(Path(sys.argv[1]))
