"""redis-py as a user runs it: in a process of its own, with Python's collector as it is by default.

    python -m bench.redis_py PORT scan STREAM
    python -m bench.redis_py PORT append STREAM ROWS BYTES
    python -m bench.redis_py PORT work STREAM GROUP

Prints the rows and the seconds that they took, as JSON. Inside the process of a Spark driver, where the collector walks
all of PySpark, the same loops take twice as long.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import redis

PAGE = 1_000  # entries of one XRANGE, read or pipeline: its best


def scan(client: Any, stream: str) -> int:
    """Read a whole stream by XRANGE."""
    at, seen = "-", 0
    while page := client.xrange(stream, min=at, count=PAGE):
        seen += len(page)
        at = "(" + page[-1][0].decode()
    return seen


def append(client: Any, stream: str, rows: str, size: str) -> int:
    """Append entries of one field, a pipeline a page."""
    value, count = b"x" * int(size), int(rows)
    for first in range(0, count, PAGE):
        pipe = client.pipeline(transaction=False)
        for _ in range(first, min(first + PAGE, count)):
            pipe.xadd(stream, {b"v": value})
        pipe.execute()
    return count


def work(client: Any, stream: str, group: str) -> int:
    """Read for a group and acknowledge, page by page, until there is nothing new."""
    seen = 0
    while found := client.xreadgroup(group, "c", {stream: ">"}, count=PAGE):
        ids = [entry_id for entry_id, _ in found[0][1]]
        seen += client.xack(stream, group, *ids)
    return seen


JOBS = {"scan": scan, "append": append, "work": work}


def seconds(port: int, rows: int, *words: str) -> float:
    """Run a job in a process of its own. Returns its seconds; the start of Python is not counted."""
    command = [sys.executable, "-m", "bench.redis_py", str(port), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["rows"] == rows, found
    return float(found["seconds"])


def main() -> int:
    port, job, *words = sys.argv[1:]
    with redis.Redis(port=int(port), protocol=2) as client:
        client.ping()
        start = time.perf_counter()
        rows = JOBS[job](client, *words)
        took = time.perf_counter() - start
    print(json.dumps({"rows": rows, "seconds": took}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
