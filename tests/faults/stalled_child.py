"""A worker with long handlers: `python -m tests.faults.stalled_child url lease file how`; how: lease or rfc.

It writes a line to the file when a handler begins: the entry and the process.
"""

from __future__ import annotations

import logging
import os
import sys
import time

from millstream.worker.message import Message
from millstream.worker.stream import Stream


def main(url: str, path: str, how: str) -> None:
    from tests.faults.test_stalls import settings_of

    logging.disable(logging.WARNING)
    orders = Stream[dict[str, float]]("orders", url, group="g", settings=settings_of(how))
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @orders.handler(concurrency=12)
    def charge(order: dict[str, float], message: Message[dict[str, float]]) -> None:
        os.write(file, f"{message.original_id} {os.getpid()}\n".encode())
        time.sleep(order["works_s"])

    orders.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[3], sys.argv[4])
