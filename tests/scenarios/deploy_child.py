"""A worker as a program: `python -m tests.scenarios.deploy_child url seconds grace`; each handler takes that long."""

from __future__ import annotations

import sys
import time

from millstream.worker.stream import Stream


def main(url: str, seconds: float, grace: float) -> None:
    orders = Stream[dict[str, int]]("orders", url, group="g", lease=30.0, max_retries=1, shutdown_grace=grace)

    @orders.handler(concurrency=4)
    def charge(order: dict[str, int]) -> None:
        print("entered", flush=True)
        time.sleep(seconds)

    orders.run()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
