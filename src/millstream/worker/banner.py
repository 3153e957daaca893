"""The line that a worker begins with: what it works on, where, and where dead letters go.

An INFO record where the program has set up logging; a line on standard error where it has not.
"""

from __future__ import annotations

import logging
import sys

from millstream.printable import printable, safe_logger

logger = safe_logger(logging.getLogger(__name__))


def announce(*, stream: bytes, group: bytes, url: str, concurrency: int, dead: bytes) -> None:
    """Say that a worker starts."""
    where = f"{url} (in this process only: nothing is kept)" if url.startswith("memory:") else url
    text = (
        f"worker starts: stream {printable(stream)}, group {printable(group)}, server {printable(where)}, "
        f"concurrency {concurrency}, dead letters in {printable(dead)}"
    )
    if logger.hasHandlers():
        logger.info("%s", text)
    elif sys.stderr is not None:
        print(f"millstream: {text}", file=sys.stderr, flush=True)
