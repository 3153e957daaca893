"""A broker in a process of its own that is killed: `python -m tests.persistence.crash_child DIRECTORY POLICY`.

It does what workers do, and says each thing on its standard output only after it was answered.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from millstream.persistence.store import Store
from millstream.server.core.hub import Hub
from tests.support.wire import parse


def main(directory: str, policy: str, seed: str) -> None:
    choose = random.Random(int(seed))
    hub = Hub(
        settings={
            "appendonly": "yes",
            "appendfsync": policy,
            "auto-aof-rewrite-min-size": "4000",
            "auto-aof-rewrite-percentage": "50",
        }
    )
    store = hub.store = Store(hub, Path(directory))
    store.open()
    received: list[bytes] = []
    session = hub.session(received.append)

    def ask(*words: str) -> object:
        session.execute([word.encode() for word in words])
        reply = parse(b"".join(received))
        received.clear()
        return reply

    def say(*words: object) -> None:
        os.write(1, (" ".join(map(str, words)) + "\n").encode())

    ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    say("ready")
    held: list[bytes] = []
    while True:
        match choose.randrange(7):
            case 0 | 1 | 2:
                entry_id = ask("XADD", "s", "*", "f", "v" * choose.randrange(200))
                say("added", entry_id.decode())  # type: ignore[attr-defined]
            case 3 | 4:
                rows = ask("XREADGROUP", "GROUP", "g", "c", "COUNT", "2", "STREAMS", "s", ">")
                for row in rows[0][1] if isinstance(rows, list) else ():
                    held.append(row[0])
                    say("claimed", row[0].decode())
            case 5 if held:
                entry_id = held.pop(choose.randrange(len(held)))
                ask("XACK", "s", "g", entry_id.decode())
                say("acked", entry_id.decode())
            case _ if held:
                entry_id = held.pop(choose.randrange(len(held)))
                ask("XNACK", "s", "g", "FAIL", "IDS", "1", entry_id.decode())
                say("released", entry_id.decode())
        if choose.randrange(200) == 0:
            ask("BGREWRITEAOF")
            store.tick()


if __name__ == "__main__":
    main(*sys.argv[1:])
