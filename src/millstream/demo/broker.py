"""The demo's broker in a process of its own: inside the demo's it would wait for the interpreter that drives Spark.

    python -m millstream.demo.broker DIRECTORY
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from millstream import Broker
from millstream.cli.serve import settle_in
from millstream.demo.leash import Child, on_leash
from millstream.errors import MillstreamError

STARTS_S = 60.0


def keep(directory: Path) -> None:
    """Serve what the directory has until SIGTERM; the port is written beside it."""
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    with Broker(directory / "data") as broker, broker.serve_in_background() as server:
        draft = directory / "port.new"
        draft.write_text(str(server.port))
        os.replace(draft, directory / "port")
        settle_in()
        asked.wait()


def started(directory: Path) -> tuple[Child, int]:
    """A broker for this directory, and its port. One of a run that was killed may need a moment to let go of it."""
    port, until = directory / "port", time.monotonic() + STARTS_S
    port.unlink(missing_ok=True)
    child = Child("millstream.demo.broker", [str(directory)], directory / "broker.log")
    while not port.exists():
        if time.monotonic() > until:
            child.end()
            raise MillstreamError(f"the broker does not start: see {directory / 'broker.log'}")
        if child.code is not None:
            time.sleep(0.5)
            child = Child("millstream.demo.broker", [str(directory)], directory / "broker.log")
        time.sleep(0.02)
    return child, int(port.read_text())


if __name__ == "__main__":
    on_leash()
    keep(Path(sys.argv[1]))
