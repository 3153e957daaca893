"""Worker processes that are killed between any two calls, connections that are cut, replies that are lost.

Each worker has a proxy of its own in front of a real server, so that a rule sees every call of that worker and can
kill it exactly there: before the server has the call, or when it has done it and the reply is on its way. At the end
the account must balance, every payload must have been handled, and every entry that was handled twice must have been
so because a lease ran out. `MILLSTREAM_FAULTS=100000` for the long run.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from millstream.errors import Unavailable
from millstream.worker.audit import Audit
from millstream.worker.stream import Stream
from tests.support.ours import SOURCE
from tests.support.proxy import Action, Cut, DropReply, FaultProxy, Forward
from tests.support.servers import RealServer

ROOT = Path(__file__).parent.parent.parent
MESSAGES = int(os.environ.get("MILLSTREAM_FAULTS", "2000"))
LEASE_S = 1.5
WORKERS = 3
KILLS = max(9, MESSAGES // 250)  # so many lives end by SIGKILL
LIMIT_S = 240 + MESSAGES / 50


@dataclass
class Process:
    """A worker that comes back, and the proxy through which it speaks."""

    proxy: FaultProxy
    file: Path
    luck: random.Random
    process: subprocess.Popen[bytes] | None = None
    kills: int = 0
    faults: int = 0
    is_calm: bool = False
    _kill_at: int = 0

    def start(self) -> None:
        self._kill_at = self.luck.randint(1, 60)  # calls from now
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.worker_child", self.proxy.url, str(LEASE_S), str(self.file)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{SOURCE}:{ROOT}"},
            stderr=subprocess.DEVNULL,
        )

    def rule(self, argv: list[bytes], number: int) -> Action:
        """What becomes of a call of this worker."""
        if self.is_calm:
            return Forward()
        self._kill_at -= 1
        if self._kill_at == 0:
            return self._kill()
        if self.luck.random() < 0.02:
            self.faults += 1
            return self.luck.choice((Cut(), DropReply()))
        return Forward()

    def _kill(self) -> Action:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.kills += 1
        return self.luck.choice((Cut(), DropReply()))  # unseen by the server, or done and unanswered

    def revive(self) -> None:
        if self.process is None or self.process.poll() is not None:
            self.start()

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)


@contextlib.contextmanager
def fleet(port: int, directory: Path) -> Iterator[list[Process]]:
    """Workers behind proxies, all ended behind the block."""
    with contextlib.ExitStack() as stack:
        made = []
        for number in range(WORKERS):
            proxy = stack.enter_context(FaultProxy("127.0.0.1", port))
            process = Process(proxy, directory / "handled", random.Random(number))
            proxy.rule = process.rule
            stack.callback(process.end)
            made.append(process)
        yield made


@dataclass
class Handled:
    """What the workers wrote down about one entry."""

    begun: dict[int, int] = field(default_factory=dict)  # delivery number to idle time in ms before it
    ended: dict[int, int] = field(default_factory=dict)
    payload: int = -1


def read_file(path: Path) -> dict[str, Handled]:
    found: dict[str, Handled] = defaultdict(Handled)
    for line in path.read_text().splitlines():
        what, entry_id, number, payload, idle_ms = line.split()
        entry = found[entry_id]
        entry.payload = int(payload)
        (entry.begun if what == "begin" else entry.ended)[int(number)] = int(idle_ms)
    return found


def test_nothing_is_lost_when_workers_die_between_any_two_calls(valkey_server: RealServer, tmp_path: Path) -> None:
    publisher_luck = random.Random(99)
    with FaultProxy("127.0.0.1", valkey_server.port) as door, fleet(valkey_server.port, tmp_path) as workers:
        with Stream[dict[str, int]]("orders", door.url, group="g") as orders:
            orders.backend.execute("FLUSHALL")
            door.rule = lambda _argv, _number: DropReply() if publisher_luck.random() < 0.1 else Forward()
            for worker in workers:
                worker.start()
            account = run(orders, workers)
            door.rule = lambda _argv, _number: Forward()
            account = drain(orders, workers, account)
            assert account.balanced, account
            assert (account.published, account.done, account.dead) == (MESSAGES, MESSAGES, 0), account
        assert sum(worker.kills for worker in workers) >= KILLS
        assert sum(worker.faults for worker in workers) > 0
    check_duplicates(read_file(tmp_path / "handled"), sum(worker.faults for worker in workers))


def run(orders: Stream[dict[str, int]], workers: list[Process]) -> Audit:
    """Publish while workers die and come back, until enough have."""
    published, end = 0, time.monotonic() + LIMIT_S
    while (published < MESSAGES or sum(worker.kills for worker in workers) < KILLS) and time.monotonic() < end:
        page = range(published, min(published + 20, MESSAGES))
        if not publish(orders, page):
            continue
        published += len(page)
        for worker in workers:
            worker.revive()
        if published == MESSAGES:
            time.sleep(0.02)  # idle workers make calls too, and die at them
    return Audit(**dict.fromkeys(Audit.__dataclass_fields__, 0))  # the door still loses replies: drain looks


def publish(orders: Stream[dict[str, int]], page: range) -> bool:
    """Append a page; whether it is sure. A producer that gave up on a server sends again with the same tokens."""
    try:
        orders.publish_many([{"n": n} for n in page], dedupe=[f"order-{n}" for n in page])
    except Unavailable:
        return False
    return True


def drain(orders: Stream[dict[str, int]], workers: list[Process], account: Audit) -> Audit:
    """No more faults: what is left is done."""
    end = time.monotonic() + LIMIT_S
    while account.done < MESSAGES and time.monotonic() < end:
        for worker in workers:
            worker.is_calm = True
            worker.revive()
        time.sleep(0.1)
        account = orders.audit()
    return account


def check_duplicates(handled: dict[str, Handled], faults: int) -> None:
    """All payloads are there; whoever handled one again did so because a lease had run out.

    Where the reply that said for how long was lost, and the entry was read again, nobody can tell: no more than faults.
    """
    assert {entry.payload for entry in handled.values()} == set(range(MESSAGES))
    assert len(handled) == MESSAGES  # a payload is one entry, however often its publication was sent
    assert all(entry.ended for entry in handled.values())
    for entry_id, entry in handled.items():
        for number in sorted(entry.ended)[1:]:  # handled before, and again: the server says for how long it was silent
            assert entry.ended[number] >= LEASE_S * 1000 or entry.ended[number] == -1, (entry_id, entry)
    unknown = sum(1 for entry in handled.values() for number in sorted(entry.ended)[1:] if entry.ended[number] == -1)
    assert unknown <= faults
