"""A worker that may die at any moment: `python -m tests.faults.worker_child url lease file`.

It writes a line to the file when a handler begins and one when it ends: what, entry, delivery number, payload, how long
it had been idle when it was taken, by the server.
"""

from __future__ import annotations

import logging
import os
import sys

from millstream.worker.message import Message
from millstream.worker.stream import Stream


def main(url: str, lease: float, path: str) -> None:
    logging.disable(logging.WARNING)
    orders = Stream[dict[str, int]]("orders", url, group="g", lease=lease)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, order: dict[str, int], message: Message[dict[str, int]]) -> None:
        line = f"{what} {message.id} {message.delivery.number} {order['n']} {message.delivery.idle_ms}\n"
        os.write(file, line.encode())

    @orders.handler(concurrency=16)
    def charge(order: dict[str, int], message: Message[dict[str, int]]) -> None:
        note("begin", order, message)
        if order["n"] % 20 == 7 and message.attempt == 1:
            raise ValueError("the first time fails")
        note("end", order, message)

    orders.run()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
