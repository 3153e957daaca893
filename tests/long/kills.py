"""The server is killed again and again, and nothing that it answered is gone: `python -m tests.long.kills`.

    writers ── pipelines over sockets ──▶ millstream serve ── SIGKILL at a random moment, start again on the same files
       └── each notes what it sent and what was answered; a model of its stream says what must be found

With appendfsync always that is the model after all answered commands and some of those that were sent and not
answered, in their order. With everysec a last part of the answered ones may be missing, but not more than a second.
What is compared is exact: entries, what was delivered, pending entries with owner and count.
"""

from __future__ import annotations

import argparse
import random
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.long.rig import ask, check, conclude, connect, directory, serving
from tests.support.ours import Process
from tests.support.wire import Wire, end_of, pack, parse

WRITERS: Final = 4
DEPTH: Final = 12  # most commands that are sent ahead of their answers
GROUP: Final = b"g"
CONSUMERS: Final = (b"a", b"b", b"c")
EVERYSEC_S: Final = 1.0  # what everysec may lose
SMALL_LOG: Final = ("--auto-aof-rewrite-min-size", "64kb", "--auto-aof-rewrite-percentage", "100")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--always", type=int, default=200, help="kills with appendfsync always")
    parser.add_argument("--everysec", type=int, default=40, help="kills with appendfsync everysec")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    conclude(lambda: prove(options.always, options.everysec, options.seed))


def prove(always: int, everysec: int, seed: int) -> None:
    """So many kills with each policy, each on a directory of its own."""
    for policy, kills in (("always", always), ("everysec", everysec)):
        with directory() as place:
            print(f"{policy:<9} {kill_again_and_again(place, policy, kills, seed)}", flush=True)


# The model


@dataclass(slots=True)
class Model:
    """One stream with one group, as far as the writers change it."""

    entries: dict[bytes, None] = field(default_factory=dict)  # in order
    unread: deque[bytes] = field(default_factory=deque)
    delivered: bytes = b"0-0"  # the last one
    pending: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)  # owner, empty if released; count

    def apply(self, step: Step, made: bytes | None) -> None:
        """Do what a command does; `made` is the id of an entry that it adds."""
        match step.what:
            case b"XADD":
                assert made is not None
                self.entries[made] = None
                self.unread.append(made)
            case b"XREADGROUP" if self.unread:
                self.delivered = self.unread.popleft()
                self.pending[self.delivered] = (step.consumer, 1)
            case b"XACK":
                self.pending.pop(step.entry_id, None)
            case b"XNACK" if step.entry_id in self.pending:
                self.pending[step.entry_id] = (b"", self.pending[step.entry_id][1])
            case b"XCLAIM" if step.entry_id in self.pending:
                self.pending[step.entry_id] = (step.consumer, self.pending[step.entry_id][1] + 1)
            case b"XDEL":
                self.entries.pop(step.entry_id, None)

    def settled(self) -> list[bytes]:
        """Entries that were acknowledged."""
        unread = set(self.unread)
        return [entry_id for entry_id in self.entries if entry_id not in self.pending and entry_id not in unread]


@dataclass(slots=True)
class Step:
    """One command of a writer, and what became of it."""

    what: bytes
    entry_id: bytes = b""
    consumer: bytes = b""
    reply: object = None
    answered_s: float | None = None

    def argv(self, key: bytes, value: bytes) -> list[bytes]:
        match self.what:
            case b"XADD":
                return [b"XADD", key, b"*", b"f", value]
            case b"XREADGROUP":
                return [b"XREADGROUP", b"GROUP", GROUP, self.consumer, b"COUNT", b"1", b"STREAMS", key, b">"]
            case b"XNACK":
                return [b"XNACK", key, GROUP, b"FAIL", b"IDS", b"1", self.entry_id]
            case b"XCLAIM":
                return [b"XCLAIM", key, GROUP, self.consumer, b"0", self.entry_id]
            case b"XDEL":
                return [b"XDEL", key, self.entry_id]
            case _:
                return [self.what, key, GROUP, self.entry_id]

    @property
    def made(self) -> bytes | None:
        """The id of the entry that it has added, if it was answered."""
        return self.reply if isinstance(self.reply, bytes) and self.what == b"XADD" else None


@dataclass
class Found:
    """What a server has of one stream."""

    entries: list[bytes]
    delivered: bytes
    pending: dict[bytes, tuple[bytes, int]]

    @classmethod
    def on(cls, wire: Wire, key: bytes) -> Found:
        entries, pending, groups = (
            ask(wire, b"XRANGE", key, b"-", b"+"),
            ask(wire, b"XPENDING", key, GROUP, b"-", b"+", 1 << 30),
            ask(wire, b"XINFO", b"GROUPS", key),
        )
        assert isinstance(entries, list)
        assert isinstance(pending, list)
        assert isinstance(groups, list)
        (group,) = groups
        rows = {row[0]: (row[1], row[3]) for row in pending}
        return cls([row[0] for row in entries], group[group.index(b"last-delivered-id") + 1], rows)

    def against(self, writer: Writer, at_least: int) -> str:
        """What is different from the first state that it could be, for people."""
        _, model = next(states(writer, self, at_least), (0, writer.model))
        wrong = [entry_id for entry_id in model.pending if self.pending.get(entry_id) != model.pending[entry_id]]
        missing = sorted(model.entries.keys() - self.entries)
        return (
            f"{len(self.entries)} entries of {len(model.entries)}, without {missing[:3]}, "
            f"{len(self.pending)} pending of {len(model.pending)}, differing in "
            f"{[(entry_id, model.pending[entry_id], self.pending.get(entry_id)) for entry_id in wrong[:3]]}, "
            f"delivered up to {self.delivered!r} and not {model.delivered!r}"
        )

    def equals(self, model: Model) -> bool:
        return (
            len(model.entries) == len(self.entries)
            and model.delivered == self.delivered
            and model.pending == self.pending
            and list(model.entries) == self.entries
        )


# Writing


class Writer:
    """Sends commands on a stream of its own, and knows what was answered."""

    def __init__(self, key: bytes, seed: int) -> None:
        self.key = key
        self.model = Model()  # as it was found after the last start
        self.steps: list[Step] = []  # since then
        self.error: Exception | None = None
        self._rng = random.Random(seed)
        self._open: list[bytes] = []  # pending, as far as is known and not yet settled
        self._done: list[bytes] = []  # acknowledged

    def begin(self, model: Model) -> None:
        """Go on from here."""
        self.model, self.steps = model, []
        self._open, self._done = list(model.pending), model.settled()

    def run(self, port: int) -> None:
        """Write until the server is gone."""
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
                while self._exchange(sock):
                    pass
        except ConnectionError:
            return  # it was killed
        except Exception as error:  # told to the main thread, which ends the proof
            self.error = error

    def _exchange(self, sock: socket.socket) -> bool:
        """Send some commands and read their answers; False if the server is gone before the last of them."""
        steps = [self._next() for _ in range(self._rng.randint(1, DEPTH))]
        self.steps += steps
        value = b"v" * self._rng.randrange(300)
        sock.sendall(b"".join(pack(step.argv(self.key, value)) for step in steps))
        data = b""
        for step in steps:
            while (end := _end_of(data)) is None:
                chunk = sock.recv(1 << 16)
                if not chunk:
                    return False
                data += chunk
            check(not data.startswith(b"-"), f"{step.what.decode()} was answered with {data[:end]!r}")
            step.reply, step.answered_s = parse(data[:end]), time.monotonic()
            data = data[end:]
            self._note(step)
        return True

    def _next(self) -> Step:
        rng = self._rng
        match rng.randrange(12):
            case 0 | 1 | 2:
                return Step(b"XADD")
            case 3 | 4 | 5:
                return Step(b"XREADGROUP", consumer=rng.choice(CONSUMERS))
            case 6 | 7 if self._open:
                return Step(b"XACK", self._open.pop(rng.randrange(len(self._open))))
            case 8 if self._open:
                return Step(b"XNACK", rng.choice(self._open))
            case 9 if self._open:
                return Step(b"XCLAIM", rng.choice(self._open), rng.choice(CONSUMERS))
            case 10 | 11 if self._done:
                return Step(b"XDEL", self._done.pop(rng.randrange(len(self._done))))
            case _:
                return Step(b"XADD")

    def _note(self, step: Step) -> None:
        if step.what == b"XREADGROUP" and isinstance(step.reply, list):
            self._open.append(step.reply[0][1][0][0])
        elif step.what == b"XACK":
            self._done.append(step.entry_id)


def _end_of(data: bytes) -> int | None:
    try:
        return end_of(data)
    except ValueError:
        return None


# Comparing


@dataclass
class Tally:
    """What happened over all kills."""

    kills: int = 0
    answered: int = 0
    unanswered: int = 0  # sent, and the server was killed before it answered
    unanswered_done: int = 0  # of these: done nevertheless
    lost: int = 0  # answered and gone; with everysec only
    lost_s: float = 0.0  # the oldest of them was answered this long before the kill
    bases: int = 0

    def __str__(self) -> str:
        since = f" (of the last {self.lost_s:.3f} s)" if self.lost else ""
        return (
            f"{self.kills} kills, {self.answered:,} commands answered and {self.lost} of them lost{since}, "
            f"{self.unanswered:,} not answered and {self.unanswered_done:,} of them done, "
            f"log rewritten {self.bases} times"
        )


def kill_again_and_again(place: Path, policy: str, kills: int, seed: int) -> Tally:
    """Write, kill, start, compare; Failed at the first difference."""
    rng = random.Random(f"{policy}{seed}")
    writers = [Writer(b"w%d" % index, rng.randrange(1 << 30)) for index in range(WRITERS)]
    tally = Tally()
    may_lose_s = EVERYSEC_S if policy == "everysec" else 0.0
    killed_s = 0.0
    for _ in range(kills + 1):
        with serving(place, "--appendfsync", policy, *SMALL_LOG) as server, connect(server) as wire:
            for writer in writers:
                go_on(wire, writer, killed_s, may_lose_s, tally)
            if tally.kills == kills:
                break
            killed_s = run_and_kill(server, writers, rng)
        tally.kills += 1
    names = [path.name for path in (place / "data" / "appendonlydir").glob("*.base.*")]
    tally.bases = max(int(name.split(".")[2]) for name in names) - 1
    return tally


def run_and_kill(server: Process, writers: list[Writer], rng: random.Random) -> float:
    """Let them write for a moment and kill the server; when that was."""
    threads = [threading.Thread(target=writer.run, args=(server.port,), daemon=True) for writer in writers]
    for thread in threads:
        thread.start()
    time.sleep(rng.uniform(0.05, 0.5))
    if rng.randrange(3) == 0:  # the files change hands when it is killed
        with connect(server) as wire:
            ask(wire, b"BGREWRITEAOF")
        time.sleep(rng.uniform(0.0, 0.3))
    killed_s = time.monotonic()
    server.end(signal.SIGKILL)
    for thread in threads:
        thread.join(60)
        check(not thread.is_alive(), "a writer did not notice that the server is gone")
    for writer in writers:
        check(writer.error is None, f"a writer failed: {writer.error!r}")
    return killed_s


def go_on(wire: Wire, writer: Writer, killed_s: float, may_lose_s: float, tally: Tally) -> None:
    """Hold what is found against what was answered, and let the writer go on from there."""
    if ask(wire, b"EXISTS", writer.key) == 0 and not writer.steps:
        ask(wire, b"XGROUP", b"CREATE", writer.key, GROUP, b"0", b"MKSTREAM")
    found = Found.on(wire, writer.key)
    steps = writer.steps
    answered = sum(step.answered_s is not None for step in steps)
    needed = sum(step.answered_s is not None and step.answered_s < killed_s - may_lose_s for step in steps)
    at_least = needed if may_lose_s else answered
    matching = [(done, model) for done, model in states(writer, found, at_least) if found.equals(model)]
    check(
        bool(matching),
        f"{writer.key.decode()}: {answered} commands were answered, {at_least} of them must be there, and what is "
        f"found is no state after that: {found.against(writer, at_least)}",
    )
    done, model = matching[-1]
    tally.answered += answered
    tally.unanswered += len(steps) - answered
    tally.unanswered_done += max(0, done - answered)
    if done < answered:
        tally.lost += answered - done
        tally.lost_s = max(tally.lost_s, killed_s - (steps[done].answered_s or killed_s))
    writer.begin(model)


def states(writer: Writer, found: Found, at_least: int) -> Iterator[tuple[int, Model]]:
    """The states after so many commands and each one more; an entry that was not answered has the id that is found."""
    model = deepcopy(writer.model)
    known = {step.made for step in writer.steps} | set(model.entries)
    new = iter([entry_id for entry_id in found.entries if entry_id not in known])
    if at_least == 0:
        yield 0, deepcopy(model)
    for done, step in enumerate(writer.steps, 1):
        made = step.made or (next(new, None) if step.what == b"XADD" else None)
        if step.what == b"XADD" and made is None:
            return  # no such entry is there, so nothing after it is
        model.apply(step, made)
        if done >= at_least:
            yield done, deepcopy(model)


if __name__ == "__main__":
    main()
