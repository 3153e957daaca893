"""Sends the orders. Started again it goes on where it was; what it sends twice by that is published once.

python -m examples.shop.producer URL DIRECTORY SIZE SEED
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from examples.shop.events import Send, sends
from examples.shop.leash import on_leash
from examples.shop.orders import STREAM
from millstream import EntryId, Stream, Unavailable

AT_ONCE = 500
PATIENCE_S = 120.0  # with a server that does not answer
REMEMBERED_S = 7 * 86_400.0  # how long the server knows a token: a run may be gone on with tomorrow


@dataclass(slots=True)
class Progress:
    """What has been sent so far."""

    sent: int = 0
    refused: int = 0  # sends that were answered with the id of an earlier one
    last_id: str = "0-0"  # of all answers

    @classmethod
    def read(cls, path: Path) -> Progress:
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def write(self, path: Path) -> None:
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(asdict(self)))
        os.replace(draft, path)

    def count(self, ids: list[str]) -> None:
        """Count answers: an id that is not above all before it is that of an earlier order.

        So a page that is sent again after a crash is counted as when it was sent first: its orders have the same ids.
        """
        for answered in ids:
            if EntryId.parse(answered) > EntryId.parse(self.last_id):
                self.last_id = answered
            else:
                self.refused += 1
        self.sent += len(ids)


def produce(url: str, directory: Path, size: int, seed: int) -> None:
    """Send what has not been sent."""
    file = directory / "producer.json"
    progress = Progress.read(file)
    waiting = islice(sends(size, seed), progress.sent, None)
    with Stream[bytes](STREAM, url, type=bytes, dedupe_window=REMEMBERED_S) as stream:
        while page := list(islice(waiting, AT_ONCE)):
            progress.count(_publish(stream, page))
            progress.write(file)


def _publish(stream: Stream[bytes], page: list[Send]) -> list[str]:
    """Publish a page; a server that does not answer is asked again, and has by then perhaps done it: tokens tell."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return stream.publish_many([send.payload for send in page], dedupe=[send.token for send in page])
        except Unavailable:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


if __name__ == "__main__":
    on_leash()
    produce(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
