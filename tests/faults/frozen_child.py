"""A worker that is stopped and woken: `python -m tests.faults.frozen_child url lease file how`; how: run or consume.

It writes a line to the file when a handler begins and one when it ends: what, entry, fence, whether the lease is valid.
"""

from __future__ import annotations

import logging
import os
import sys
import time

from millstream.worker.message import Message
from millstream.worker.stream import Stream


def main(url: str, lease: float, path: str, how: str) -> None:
    logging.disable(logging.WARNING)
    orders = Stream[dict[str, int]]("orders", url, group="g", lease=lease)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, message: Message[dict[str, int]]) -> None:
        os.write(file, f"{what} {message.id} {message.fence} {int(message.lease.valid)}\n".encode())

    def charge(order: dict[str, int], message: Message[dict[str, int]]) -> None:
        note("begin", message)
        time.sleep(0.05)
        note("end", message)

    if how == "consume":
        for message in orders.consume(ahead=32):
            with message:
                charge(message.data, message)
    orders.handler(concurrency=16)(charge)
    orders.run()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4])
