"""Thousands of connections that do nothing beside a hundred that do much: `python -m tests.long.crowd`.

The busy ones are the load generator of the benchmarks, one command at a time, once alone and once beside the crowd. Of
the crowd a part waits in blocking reads and a part listens to channels, as idle workers do. At the end every one of
them must still be served: those that wait are woken, those that listen get a message, the others an answer.
"""

from __future__ import annotations

import argparse
import socket
import time
from dataclasses import dataclass
from typing import Final

from bench.load import Run, generator, load, prepare
from tests.long.rig import MB, allow_files, ask, check, conclude, connect, cpu_s, directory, rss_bytes, serving
from tests.support.ours import Process
from tests.support.wire import pack

PART: Final = 10  # each tenth of the crowd waits, each tenth listens
DEAREST: Final = 1.5  # times the processor time of a request without the crowd
WAKE_S: Final = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=int, default=5000)
    parser.add_argument("--busy", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the busy ones work beside the crowd")
    options = parser.parse_args()
    conclude(lambda: prove(options.idle, options.busy, options.seconds))


def prove(idle: int, busy: int, seconds: float, dearest: float = DEAREST) -> None:
    """Failed if one of the crowd is lost or the busy ones cost much more than alone."""
    allow_files(idle + busy + 100)
    clients = ("--maxclients", str(idle + busy + 100))
    with directory() as place, serving(place, *clients) as server, generator() as binary:

        def work(for_s: float) -> tuple[float, Run]:
            """Append, read and acknowledge for so long; processor time a request, and the last answers of XADD."""
            deadline_s, started_s, done = time.monotonic() + for_s, cpu_s(server.process.pid), 0
            while True:
                prepare(server.port, busy)
                requests = {"xadd": 200 * busy, "xreadgroup": 200 * busy, "xack": 200 * busy}
                runs = load(binary, server.port, requests, connections=busy, depth=1)
                done += sum(requests.values())
                if time.monotonic() >= deadline_s:
                    return (cpu_s(server.process.pid) - started_s) / done, runs["xadd"]

        work(min(seconds / 10, 2.0))  # to get warm
        alone = work(seconds / 4)
        before = rss_bytes(server.process.pid)
        crowd = Crowd.gather(server, idle)
        each = (rss_bytes(server.process.pid) - before) / idle
        print(f"{idle} connections take {each * idle / MB:.0f} MB, {each / 1024:.1f} KB each")
        beside = work(seconds)
        for name, (cost_s, run) in (("alone", alone), ("beside them", beside)):
            print(
                f"  {busy} busy ones {name}: {cost_s * 1e6:.1f} us of processor time a request; "
                f"{run.per_second:,.0f} XADD/s, median {run.p50_us:.0f} us, p99 {run.p99_us:.0f} us, "
                f"longest {run.max_us / 1000:.1f} ms"
            )
        crowd.call(server)
        crowd.leave(server)
        check(beside[0] < dearest * alone[0], "the crowd makes the busy ones dearer")


@dataclass
class Crowd:
    """Connections that do nothing."""

    waiting: list[socket.socket]
    listening: list[socket.socket]
    others: list[socket.socket]

    @classmethod
    def gather(cls, server: Process, count: int) -> Crowd:
        crowd = cls([], [], [])
        for index in range(count):
            sock = socket.create_connection(("127.0.0.1", server.port), timeout=WAKE_S)
            match index % PART:
                case 0:
                    crowd.waiting.append(sock)
                    sock.sendall(pack([b"XREAD", b"BLOCK", b"0", b"STREAMS", b"quiet", b"$"]))
                case 1:
                    crowd.listening.append(sock)
                    sock.sendall(pack([b"SUBSCRIBE", b"news"]))
                    check(_answer(sock).startswith(b"*3\r\n$9\r\nsubscribe"), "a subscription was not answered")
                case _:
                    crowd.others.append(sock)
                    sock.sendall(pack([b"PING"]))
                    check(_answer(sock) == b"+PONG\r\n", "a new connection was not answered")
        return crowd

    def call(self, server: Process) -> None:
        """Every one of them must answer, and soon."""
        started_s = time.monotonic()
        with connect(server) as wire:
            ask(wire, b"XADD", b"quiet", b"1-1", b"f", b"v")
            told = ask(wire, b"PUBLISH", b"news", b"hello")
            check(told == len(self.listening), f"{told} of {len(self.listening)} listeners were told")
        for sock in self.others:
            sock.sendall(pack([b"PING"]))
        for sock in self.waiting:
            check(b"$3\r\n1-1\r\n" in _answer(sock), "one that waited was not woken")
        for sock in self.listening:
            check(_answer(sock).endswith(b"$5\r\nhello\r\n"), "a listener got no message")
        for sock in self.others:
            check(_answer(sock) == b"+PONG\r\n", "an idle connection does not answer")
        print(
            f"  all of the crowd answered in {time.monotonic() - started_s:.2f} s: {len(self.waiting)} woken, "
            f"{len(self.listening)} told, {len(self.others)} asked"
        )

    def leave(self, server: Process) -> None:
        """They hang up, and nothing of them is left."""
        for sock in (*self.waiting, *self.listening, *self.others):
            sock.close()
        deadline_s = time.monotonic() + WAKE_S
        with connect(server) as wire:
            while b"connected_clients:1\r" not in wire.ask(b"INFO", b"clients"):
                check(time.monotonic() < deadline_s, "connections are left although their clients are gone")
                time.sleep(0.05)


def _answer(sock: socket.socket) -> bytes:
    """What comes next: these answers are small enough to come in one piece."""
    return sock.recv(4096)


if __name__ == "__main__":
    main()
