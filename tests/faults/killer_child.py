"""A worker that some of its entries kill: `python -m tests.faults.killer_child url concurrency lease kind`.

A lease of 0 leaves the default. The kind is `threads` or `async`. It ends by itself when everything is settled.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from typing import Any

from millstream.errors import BackendError
from millstream.worker.stream import Stream


def main(url: str, concurrency: int, lease: float, kind: str) -> None:
    logging.disable(logging.WARNING)
    overrides: dict[str, Any] = {"lease": lease} if lease else {}
    jobs = Stream[dict[str, Any]]("jobs", url, group="g", **overrides)

    def work(job: dict[str, Any]) -> None:
        if job["kills"]:
            os.kill(os.getpid(), signal.SIGKILL)

    async def work_async(job: dict[str, Any]) -> None:
        work(job)

    jobs.handler(concurrency=concurrency)(work_async if kind == "async" else work)

    def stop_at_the_end() -> None:
        while True:
            try:
                account = jobs.audit()
            except BackendError:
                continue
            if account.published and account.done + account.dead == account.published:
                return jobs.stop()
            time.sleep(0.1)

    threading.Thread(target=stop_at_the_end, daemon=True).start()
    jobs.run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
