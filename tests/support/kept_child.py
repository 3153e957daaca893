"""A program with a kept broker that is killed: `python -m tests.support.kept_child DIRECTORY POLICY SEED`.

It does what workers do, by direct calls and by a redis-py client in turn, and says each thing on its standard output
only after the call has returned: the words are those of tests.persistence.crash_child.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any, cast

from millstream import Broker


def main(directory: str, policy: Any, seed: str) -> None:
    choose = random.Random(int(seed))
    broker = Broker(directory, appendfsync=policy)
    client = broker.client()
    broker.execute("CONFIG", "SET", "auto-aof-rewrite-min-size", 4000, "auto-aof-rewrite-percentage", 50)
    if not broker.execute("EXISTS", "s"):
        broker.xgroup_create("s", "g", "0", mkstream=True)
    say("ready")
    held: list[bytes] = []
    while True:
        is_direct = choose.randrange(2) == 0
        match choose.randrange(7):
            case 0 | 1 | 2:
                fields = {"f": "v" * choose.randrange(200)}
                say("added", broker.xadd("s", fields) if is_direct else client.xadd("s", cast(Any, fields)))
            case 3 | 4:
                for entry_id in read(broker) if is_direct else read_as_client(client):
                    held.append(entry_id)
                    say("claimed", entry_id)
            case 5 if held:
                entry_id = held.pop(choose.randrange(len(held)))
                assert (broker if is_direct else client).xack("s", "g", entry_id) == 1
                say("acked", entry_id)
            case _ if held:
                entry_id = held.pop(choose.randrange(len(held)))
                assert broker.xnack("s", "g", entry_id) == 1
                say("released", entry_id)
        if choose.randrange(200) == 0:
            broker.execute("BGREWRITEAOF")


def read(broker: Broker) -> list[bytes]:
    return [entry.id for entry in broker.xreadgroup("g", "c", {"s": ">"}, 2).get(b"s", [])]


def read_as_client(client: Any) -> list[bytes]:
    found = client.execute_command("XREADGROUP", "GROUP", "g", "c", "COUNT", 2, "STREAMS", "s", ">")
    rows = found.get(b"s", []) if isinstance(found, dict) else found[0][1] if found else []
    return [row[0] for row in (rows[0] if rows and isinstance(rows[0][0], list | tuple) else rows)]


def say(what: str, entry_id: object = b"") -> None:
    assert isinstance(entry_id, bytes)
    os.write(1, what.encode() + b" " * bool(entry_id) + entry_id + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
