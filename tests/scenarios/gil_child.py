"""A worker whose handler holds the interpreter's lock: `python -m tests.scenarios.gil_child url seconds process`."""

from __future__ import annotations

import ctypes
import sys

from millstream.worker.stream import Stream


def main(url: str, seconds: int, has_process: bool) -> None:
    orders = Stream[dict[str, int]]("orders", url, group="g", lease=1.0, heartbeat_process=has_process)
    c_sleep = ctypes.PyDLL(None).sleep  # PyDLL keeps the lock while it calls: no other thread of ours can run

    @orders.handler
    def charge(order: dict[str, int]) -> None:
        print("entered", flush=True)
        c_sleep(seconds)
        print("left", flush=True)

    orders.run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "yes")
