"""A stream of a million entries, 200,000 of them pending: `python -m tests.long.large`.

Everything that workers and operators do must go on as on a small one: each command is timed, and must not take longer
than it may. Then the log is rewritten while a client asks all the time, the server is killed, and what it loads must
be what was there.
"""

from __future__ import annotations

import argparse
import signal
import threading
import time
from typing import Final

from tests.long.rig import MB, ask, batch, check, conclude, connect, directory, rss_bytes, serving
from tests.support.ours import Process
from tests.support.wire import Wire

KEY, GROUP = b"s", b"g"
PIPELINE: Final = 1000
QUICK_S: Final = 0.1  # for what touches few entries, wherever they are
LONGEST_STALL_S: Final = 1.0  # for anybody, while the log is rewritten


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--pending", type=int, default=200_000)
    options = parser.parse_args()
    conclude(lambda: prove(options.entries, options.pending))


def prove(entries: int, pending: int) -> None:
    """Failed if something takes too long or is not there after a kill."""
    with directory() as place:
        by_hand = ("--auto-aof-rewrite-percentage", "0")
        with serving(place, *by_hand) as server, connect(server) as wire:
            empty = rss_bytes(server.process.pid)
            fill(wire, entries)
            deliver(wire, pending)
            used = rss_bytes(server.process.pid) - empty
            print(f"{entries:,} entries and {pending:,} pending ones take {used / MB:.0f} MB")
            work(wire, entries, pending)
            rewrite(server, wire)
            expected = told(wire)
            server.end(signal.SIGKILL)
        started_s = time.monotonic()
        with serving(place, *by_hand) as server, connect(server) as wire:
            print(f"loaded in {time.monotonic() - started_s:.1f} s")
            found = told(wire)
            check(found == expected, f"after the kill there is {found}, and there was {expected}")
            work(wire, entries, pending)


def fill(wire: Wire, entries: int) -> None:
    started_s = time.monotonic()
    for start in range(1, entries + 1, PIPELINE):
        stop = min(start + PIPELINE, entries + 1)
        wire.exchange(batch([[b"XADD", KEY, b"%d-0" % at, b"field", b"value-%d" % at] for at in range(start, stop)]))
    check(ask(wire, b"XLEN", KEY) == entries, "entries are missing")
    print(f"appended {entries / (time.monotonic() - started_s):,.0f} a second")


def deliver(wire: Wire, pending: int) -> None:
    ask(wire, b"XGROUP", b"CREATE", KEY, GROUP, b"0")
    for start in range(0, pending, PIPELINE):
        count, name = min(PIPELINE, pending - start), b"c%d" % (start // PIPELINE % 50)
        read = [b"XREADGROUP", b"GROUP", GROUP, name, b"COUNT", b"%d" % count, b"STREAMS", KEY, b">"]
        wire.exchange(batch([read]))
    check(_count(wire) == pending, "deliveries are missing")


def _count(wire: Wire) -> int:
    summary = ask(wire, b"XPENDING", KEY, GROUP)
    assert isinstance(summary, list)
    return int(summary[0])


def work(wire: Wire, entries: int, pending: int) -> None:
    """What touches few entries is quick, wherever they are; leaves as many pending as there were."""
    middle = b"%d-0" % (entries // 2)
    slowest = (0.0, "")
    before = _count(wire)
    check(before == pending, f"{before} are pending, not {pending}")
    held = b"%d-0" % (pending // 2)
    commands: list[list[bytes]] = [
        [b"XRANGE", KEY, middle, b"+", b"COUNT", b"10"],
        [b"XREVRANGE", KEY, middle, b"-", b"COUNT", b"10"],
        [b"XREAD", b"COUNT", b"10", b"STREAMS", KEY, middle],
        [b"XINFO", b"STREAM", KEY],
        [b"XINFO", b"GROUPS", KEY],
        [b"XINFO", b"CONSUMERS", KEY, GROUP],
        [b"XPENDING", KEY, GROUP],
        [b"XPENDING", KEY, GROUP, held, b"+", b"10"],
        [b"XPENDING", KEY, GROUP, b"IDLE", b"0", b"-", b"+", b"10"],
        [b"XNACK", KEY, GROUP, b"FAIL", b"IDS", b"1", held],
        [b"XREADGROUP", b"GROUP", GROUP, b"claimer", b"COUNT", b"10", b"CLAIM", b"0", b"STREAMS", KEY, b">"],
        [b"XCLAIM", KEY, GROUP, b"claimer", b"0", held],
        [b"XAUTOCLAIM", KEY, GROUP, b"claimer", b"0", held],
        [b"XREADGROUP", b"GROUP", GROUP, b"claimer", b"COUNT", b"10", b"STREAMS", KEY, b"0"],
        [b"XADD", KEY, b"%d-*" % entries, b"f", b"v"],
        [b"XDEL", KEY, b"%d-1" % entries],
        [b"XLEN", KEY],
        [b"MEMORY", b"USAGE", KEY],
        [b"TYPE", KEY],
        [b"OBJECT", b"ENCODING", KEY],
    ]
    for argv in commands:
        started_s = time.monotonic()
        ask(wire, *argv)
        took_s = time.monotonic() - started_s
        slowest = max(slowest, (took_s, b" ".join(argv).decode()))
        check(took_s < QUICK_S, f"{b' '.join(argv).decode()} took {took_s:.3f} s")
    check(_count(wire) == pending, "pending entries have come or gone")
    print(f"  {len(commands)} kinds of commands, the slowest in {slowest[0] * 1000:.1f} ms: {slowest[1]}")


def rewrite(server: Process, wire: Wire) -> None:
    """Rewrite the log while another client asks all the time: how long did it ever wait?"""
    stopped = threading.Event()
    waits: list[float] = []

    def ask_all_the_time() -> None:
        with connect(server) as other:
            while not stopped.is_set():
                started_s = time.monotonic()
                ask(other, b"XLEN", KEY)
                waits.append(time.monotonic() - started_s)
                time.sleep(0.001)

    asking = threading.Thread(target=ask_all_the_time)
    asking.start()
    started_s = time.monotonic()
    ask(wire, b"BGREWRITEAOF")
    while b"aof_rewrite_in_progress:0" not in wire.ask(b"INFO", b"persistence"):
        time.sleep(0.05)
        check(time.monotonic() - started_s < 600, "the rewrite does not end")
    took_s = time.monotonic() - started_s
    stopped.set()
    asking.join()
    longest_ms = max(waits) * 1000
    print(f"rewritten in {took_s:.1f} s; meanwhile {len(waits):,} answers, the longest after {longest_ms:.0f} ms")
    check(b"aof_last_bgrewrite_status:ok" in wire.ask(b"INFO", b"persistence"), "the rewrite failed")
    check(max(waits) < LONGEST_STALL_S, "a client waited too long for the rewrite")


def told(wire: Wire) -> list[object]:
    """What must be the same after a kill."""
    stream, groups = ask(wire, b"XINFO", b"STREAM", KEY), ask(wire, b"XINFO", b"GROUPS", KEY)
    assert isinstance(stream, list)
    named = dict(zip(stream[::2], stream[1::2], strict=True))
    kept = [named[name] for name in (b"length", b"last-generated-id", b"entries-added", b"first-entry", b"last-entry")]
    return [kept, groups, ask(wire, b"XPENDING", KEY, GROUP)]


if __name__ == "__main__":
    main()
