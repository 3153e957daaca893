"""A worker that one of its entries kills: `python -m tests.scenarios.killed_child url`; it ends when all is settled."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from millstream.worker.stream import Stream


def main(url: str) -> None:
    orders = Stream[dict[str, int]]("orders", url, group="g", lease=0.5)

    @orders.handler
    def charge(order: dict[str, int]) -> None:
        if order["n"] == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def stop_at_the_end() -> None:
        while orders.audit().done + orders.audit().dead < 4:
            time.sleep(0.05)
        orders.stop()

    threading.Thread(target=stop_at_the_end, daemon=True).start()
    orders.run()


if __name__ == "__main__":
    main(sys.argv[1])
