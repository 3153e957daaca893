"""A stream shared by consumers of several kinds, for the scenarios of the recovery RFC.

    Fleet      one stream and group at a place: our consumers, workers, and whoever else takes part
    Go         a consumer as the RFC describes it: plain redis-py, one command after the other, no script of ours
    Tally      counts what a recorder is told

Time is not waited for where the server can be told that it has passed: `age` makes a pending entry idle, `expire` ends
a lock. Where it has to be waited for, it is for a condition, and with a bound.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from millstream.client import Backend
from millstream.delivery.config.settings import RecoveryConfig, Settings
from millstream.delivery.consumer import Consumer
from millstream.delivery.delivery import Delivery
from millstream.delivery.recorder import NullRecorder
from millstream.delivery.settlement import Ack
from millstream.worker.message import Message
from millstream.worker.runtime.listener import ExpiryListener
from millstream.worker.stream import Stream
from tests.support.places import Site

EVERYWHERE: Final = ("memory", "file", "broker", "valkey", "redis", "redis7", "cluster")
ONE_SERVER: Final = EVERYWHERE[:-1]
MATRIX: Final = ("memory", "file", "broker", "valkey", "redis7", "cluster")  # where every scenario must hold
FEW: Final = ("memory", "valkey", "redis")  # each way that steps take: all commands and scripts, scripts only, both
OLD_MS: Final = 3_600_000
WAIT_S: Final = 60


def at(*names: Any) -> pytest.MarkDecorator:
    """Run a test at these places."""
    return pytest.mark.parametrize("place", names, indirect=True)


def later(*names: str) -> list[Any]:
    """Places that a slow test is run at by `make test-long` only."""
    return [pytest.param(name, marks=pytest.mark.long) for name in names]


everywhere = at(*EVERYWHERE)
matrix = at(*MATRIX)
few = at(*FEW)


def until(condition: Callable[[], Any], seconds: float = WAIT_S, what: str = "it") -> None:
    """Wait for a condition, not longer than this."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.005)


class Tally(NullRecorder):
    """Counts by the name of the hook; those that tell of success or failure as `name:ok` and `name:failed`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.depth: int | None = None
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> int:
        return self.counts[name]

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self.counts[name] += count

    def pel_depth(self, count: int) -> None:
        self.depth = count


def _counting(name: str) -> Any:
    with_flag = ("startup_recovery", "claim_attempt", "lock_acquisition", "lock_extension", "lock_release")
    with_word = ("settled", "dead", "discarded")

    def told(self: Tally, *args: Any) -> None:
        if name in with_flag:
            count = args[1] if name in ("lock_extension", "lock_release") and len(args) > 1 else 1
            self.add(f"{name}:{'ok' if args[0] else 'failed'}", count)
        elif name in with_word:
            self.add(f"{name}:{args[0]}", args[1] if len(args) > 1 else 1)
        else:
            self.add(name, args[0] if args and isinstance(args[0], int) else 1)

    return told


for _name in vars(NullRecorder):
    if not _name.startswith("_") and _name not in ("bind", "pel_depth"):
        setattr(Tally, _name, _counting(_name))


@dataclass
class Fleet:
    """One stream and one group."""

    site: Site
    stream: str = "orders"
    group: str = "g"
    config: RecoveryConfig = field(default_factory=RecoveryConfig)
    more: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.backend: Backend = self.site.connect()
        self.execute("XGROUP", "CREATE", self.stream, self.group, "0", "MKSTREAM")

    @property
    def settings(self) -> Settings:
        return self.config.settings(**({"listener": False, "block": 0.1} | self.more))

    def execute(self, *words: Any) -> Any:
        return self.backend.execute(*words, key=self.stream)

    # Who takes part

    def consumer(self, recorder: NullRecorder | None = None, *, opened: bool = True, name: bytes = b"") -> Consumer:
        """One of ours without threads."""
        watch = lambda: time.monotonic_ns() // 1_000_000  # noqa: E731
        chosen = name or self.settings.consumer_name().encode()
        made = Consumer(
            self.site.connect(),
            self.stream.encode(),
            self.group.encode(),
            chosen,
            self.settings,
            watch,
            recorder or NullRecorder(),
        )
        if opened:
            made.open()
        return made

    def go(self, name: str = "redis-consumer-go-0", **options: Any) -> Go:
        return Go(self.site.connect().raw_client(), self.stream, self.group, name, **options)

    def program(self, recorder: NullRecorder | None = None, **options: Any) -> Stream[Any]:
        """The stream as a program has it; its settings are the fleet's."""
        return Stream(
            self.stream,
            self.site.url,
            group=self.group,
            type=dict[str, str],
            fields=True,
            settings=self.settings,
            recorder=recorder,
            **options,
        )

    @contextmanager
    def worker(
        self,
        handler: Callable[[dict[str, str], Message[Any]], None],
        recorder: NullRecorder | None = None,
        concurrency: int = 4,
        **options: Any,
    ) -> Iterator[Stream[Any]]:
        """A worker of ours in a thread; stopped and looked after at the end."""
        with self.program(recorder, **options) as program:
            program.handler(concurrency=concurrency)(handler)
            with running(program):
                yield program

    @contextmanager
    def listener(self, consumer: Consumer) -> Iterator[ExpiryListener]:
        """A listener on behalf of a consumer."""
        assert consumer.rfc is not None
        made = ExpiryListener(consumer, consumer.rfc, lambda: self.site.connect())
        for thread in made._threads:
            thread.start()
        try:
            until(made.is_listening.is_set, what="listening")
            yield made
        finally:
            made.stop()

    # What is there

    def publish(self, count: int, first: int = 0) -> list[bytes]:
        """Entries n=0, n=1, …; their ids."""
        return [self.execute("XADD", self.stream, "*", "n", n) for n in range(first, first + count)]

    def lock(self, entry_id: bytes) -> bytes:
        return b"lock:{%s}:%s" % (self.stream.encode(), entry_id)

    def dead(self) -> list[dict[bytes, bytes]]:
        return [fields for _, fields in self.entries(f"{{{self.stream}}}:dlq")]

    def entries(self, key: str | None = None) -> list[tuple[bytes, dict[bytes, bytes]]]:
        rows = self.execute("XRANGE", key or self.stream, "-", "+")
        return [(row[0], dict(zip(row[1][::2], row[1][1::2], strict=True))) for row in rows]

    def pending(self) -> dict[bytes, bytes]:
        """Id to consumer."""
        return {row[0]: row[1] for row in self.execute("XPENDING", self.stream, self.group, "-", "+", 100_000)}

    # What happens to it

    def abandon(self, count: int = 1, consumer: str = "dead", *, locked: bool = False) -> list[bytes]:
        """Publish entries and let a consumer take them and die, long ago; their ids."""
        ids = self.publish(count)
        self.read_as(consumer, count)
        if locked:
            for entry_id in ids:
                self.execute("SET", self.lock(entry_id), consumer, "PX", OLD_MS)
        self.age(ids)
        return ids

    def abandon_while_busy(self, first: int) -> int:
        """The same beside a worker that reads: entries of which a consumer gets some and dies; how many there are."""
        ids = self.publish(50, first)
        stolen = self.read_as("dead", 50)
        owners = self.pending()
        self.age([entry_id for entry_id in stolen if owners.get(entry_id) == b"dead"])
        return len(ids)

    def read_as(self, consumer: str, count: int = 1000) -> list[bytes]:
        """Deliver new entries to a consumer that does nothing about them; their ids."""
        reply = self.execute("XREADGROUP", "GROUP", self.group, consumer, "COUNT", count, "STREAMS", self.stream, ">")
        return [row[0] for row in reply[0][1]] if reply else []

    def age(self, ids: Sequence[bytes], idle_ms: int = OLD_MS) -> None:
        """Let it be long ago that these were delivered."""
        owners = self.pending()
        for entry_id in ids:
            self.execute("XCLAIM", self.stream, self.group, owners[entry_id], 0, entry_id, "IDLE", idle_ms, "JUSTID")

    def expire(self, ids: Sequence[bytes], within_ms: int = 20) -> None:
        """Let locks run out."""
        for entry_id in ids:
            self.execute("PEXPIRE", self.lock(entry_id), within_ms)


@contextmanager
def running(program: Stream[Any]) -> Iterator[None]:
    """A worker in a thread, until it is left."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            program.run(signals=False)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        program.stop()
        thread.join(60)
        assert not thread.is_alive(), "the worker did not stop"
        assert not failures, failures


def finish(consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
    """Acknowledge all, and see that it was so."""
    results = consumer.settle([(delivery, Ack()) for delivery in deliveries])
    assert [result.code for result in results] == [1] * len(deliveries)


@dataclass
class Go:
    """A consumer of the RFC: what its text says, in its order, with its gaps."""

    client: Any
    stream: str
    group: str
    name: str
    lock_ms: int = 2000
    min_idle_ms: int = 30_000
    batch: int = 50
    max_retries: int = 3
    prefix: str = "_"
    duplicates: int = 0
    skipped_alive: int = 0

    def read(self, count: int = 10) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """New entries, each locked."""
        reply = self.client.execute_command(
            "XREADGROUP", "GROUP", self.group, self.name, "COUNT", count, "STREAMS", self.stream, ">"
        )
        found = [(row[0], self._fields(row[1])) for row in reply[0][1]] if reply else []
        for entry_id, _ in found:
            self.client.execute_command("SET", self.lock(entry_id), self.name, "NX", "PX", self.lock_ms)
        return found

    def heartbeat(self, ids: Sequence[bytes]) -> None:
        """Extend locks; one that is gone is made again."""
        for entry_id in ids:
            self.client.execute_command("SET", self.lock(entry_id), self.name, "PX", self.lock_ms)

    def done(self, entry_id: bytes) -> bool:
        """Unlock, acknowledge, delete; whether it was still ours to acknowledge."""
        if self.client.execute_command("GET", self.lock(entry_id)) == self.name.encode():
            self.client.execute_command("DEL", self.lock(entry_id))
        was_ours = self.client.execute_command("XACK", self.stream, self.group, entry_id) == 1
        self.client.execute_command("XDEL", self.stream, entry_id)
        return bool(was_ours)

    def scan(self) -> int:
        """Look at the first of what is idle; how many were requeued or dead-lettered."""
        page = self.client.execute_command(
            "XPENDING", self.stream, self.group, "IDLE", self.min_idle_ms, "-", "+", self.batch
        )
        recovered = 0
        for entry_id, *_ in page:
            if self.client.execute_command("EXISTS", self.lock(entry_id)):
                self.skipped_alive += 1
            else:
                recovered += self.requeue(entry_id)
        return recovered

    def requeue(self, entry_id: bytes) -> bool:
        if self.client.execute_command("XACK", self.stream, self.group, entry_id) == 0:
            self.duplicates += 1
            return False
        rows = self.client.execute_command("XRANGE", self.stream, entry_id, entry_id)
        if not rows:
            return False
        fields = self._fields(rows[0][1])
        counter, origin = f"{self.prefix}retry_count".encode(), f"{self.prefix}original_id".encode()
        retries = int(fields.get(counter, b"0")) + 1
        fields[counter] = b"%d" % retries
        fields.setdefault(origin, entry_id)
        target = self.stream if retries <= self.max_retries else f"{{{self.stream}}}:dlq"
        flat = [word for pair in fields.items() for word in pair]
        self.client.execute_command("XADD", target, "*", *flat)
        return True

    def lock(self, entry_id: bytes) -> bytes:
        return b"lock:{%s}:%s" % (self.stream.encode(), entry_id)

    @staticmethod
    def _fields(flat: Sequence[bytes]) -> dict[bytes, bytes]:
        return dict(zip(flat[::2], flat[1::2], strict=True))
