"""What operations cost as streams and pending lists grow: counted in steps of the interpreter, not in time.

A trace function counts the lines of engine code that run, so the result is the same on any machine. C code below a
line (a bisection, a list slice) is not seen; those are known to be O(log n) or memory moves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from millstream.engine.commands import execute
from millstream.engine.keys.keyspace import Keyspace
from millstream.engine.streams.stream import Stream

START_MS = 1_767_225_600_000


class Engine:
    """A stream `s` with a group `g`, a clock, and a count of steps."""

    def __init__(self, entries: int, *, pending: int, batch: int = 100) -> None:
        self.keyspace = Keyspace()
        self.now_ms = START_MS
        stream = Stream(self.keyspace.settings)
        self.keyspace.databases[0].values[b"s"] = stream
        for index in range(1, entries + 1):
            stream.append(b"%d-0" % index, index << 64, [b"f", b"v"], self.keyspace.settings)
        self("XGROUP", "CREATE", "s", "g", "0")
        for _ in range(pending // batch):
            self("XREADGROUP", "GROUP", "g", "c", "COUNT", batch, "STREAMS", "s", ">")
        self.now_ms += 10_000

    def __call__(self, *words: object) -> Any:
        argv = [str(word).encode() for word in words]
        return execute(self.keyspace, 0, argv, self.now_ms, keep_log=False).reply

    def steps(self, *words: object) -> int:
        """Lines of Python that a command takes."""
        count = 0

        def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
            nonlocal count
            count += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            self(*words)
        finally:
            sys.settrace(before)
        return count


SIZES = (1_000, 20_000)


def grown(command: Callable[[Engine], tuple[object, ...]], *, batch: int = 100) -> list[int]:
    """Steps of a command at each size of stream and pending list."""
    found = []
    for size in SIZES:
        engine = Engine(size, pending=size // 2, batch=batch)
        found.append(engine.steps(*command(engine)))
    return found


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize(
    "command",
    [
        ("XADD", "s", "*", "f", "v"),
        ("XACK", "s", "g", "251-0"),
        ("XNACK", "s", "g", "FAIL", "IDS", "1", "251-0"),
        ("XACKDEL", "s", "g", "IDS", "1", "251-0"),
        ("XREADGROUP", "GROUP", "g", "c", "COUNT", "10", "STREAMS", "s", ">"),
        ("XREADGROUP", "GROUP", "g", "d", "COUNT", "10", "CLAIM", "5000", "STREAMS", "s", ">"),
        ("XREADGROUP", "GROUP", "g", "d", "COUNT", "10", "CLAIM", "50000", "STREAMS", "s", ">"),
        ("XREADGROUP", "GROUP", "g", "c", "COUNT", "10", "STREAMS", "s", "100"),
        ("XRANGE", "s", "200", "+", "COUNT", "10"),
        ("XREVRANGE", "s", "400", "-", "COUNT", "10"),
        ("XPENDING", "s", "g", "100", "+", "10"),
        ("XPENDING", "s", "g"),
        ("XCLAIM", "s", "g", "d", "0", "251-0"),
        ("XAUTOCLAIM", "s", "g", "d", "0", "100", "COUNT", "10"),
        ("XDEL", "s", "251-0"),
        ("XTRIM", "s", "MAXLEN", "~", "900", "LIMIT", "100"),
    ],
    ids=" ".join,
)
def test_a_command_takes_no_more_steps_on_a_stream_twenty_times_as_long(command: tuple[str, ...], batch: int) -> None:
    small, large = grown(lambda _: command, batch=batch)
    # bisecting by key calls into Python: a few more steps as the logarithm grows
    assert large <= small + 80, f"{small} steps at {SIZES[0]}, {large} at {SIZES[1]}"


def test_claiming_costs_what_it_claims_out_of_any_number_pending() -> None:
    costs = {}
    for size in (1_000, 100_000):
        engine = Engine(size, pending=size)
        due = [f"{index}-0" for index in range(1, 1_000, 10)]
        engine("XCLAIM", "s", "g", "c", 0, *[f"{index}-0" for index in range(1, size + 1)], "JUSTID")
        engine("XCLAIM", "s", "g", "c", 0, *due, "IDLE", 1100, "JUSTID")
        costs[size] = engine.steps("XREADGROUP", "GROUP", "g", "d", "CLAIM", 1000, "STREAMS", "s", ">")
        assert engine("XPENDING", "s", "g")[0] == size
    assert costs[100_000] <= costs[1_000] + 100, costs


def test_polling_for_due_entries_costs_nothing_while_none_is() -> None:
    engine = Engine(20_000, pending=20_000, batch=10_000)
    # acknowledged entries stay behind in the lists until they are swept out; they must not be walked each time
    for index in range(1, 10_000):
        engine("XACK", "s", "g", f"{index}-0")
    poll = ("XREADGROUP", "GROUP", "g", "d", "CLAIM", "50000", "STREAMS", "s", ">")
    engine.steps(*poll)
    assert engine.steps(*poll) < 300


def test_what_was_acknowledged_is_forgotten() -> None:
    engine = Engine(50_000, pending=0)
    for index in range(1, 50_001):
        engine("XREADGROUP", "GROUP", "g", f"c{index % 3}", "COUNT", 1, "STREAMS", "s", ">")
        if index > 10:
            engine("XACK", "s", "g", f"{index - 10}-0")
    stream = engine.keyspace.databases[0].values[b"s"]
    assert isinstance(stream, Stream)
    group = stream.groups[b"g"]
    assert len(group.pending) == 10
    lists = [group.pending.order.ids, group.pending.owned.holds, *(c.order.ids for c in group.consumers.values())]
    assert max(map(len, lists)) < 300


@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize(
    ("scan", "add", "remove"),
    [
        ("HSCAN k {cursor}", "HSET k {name} v", "HDEL k {name}"),
        ("SSCAN k {cursor}", "SADD k {name}", "SREM k {name}"),
        ("ZSCAN k {cursor}", "ZADD k 1 {name}", "ZREM k {name}"),
        ("SCAN {cursor}", "SET {name} v", "DEL {name}"),
    ],
)
def test_scans_and_changes_during_scans_cost_the_same_at_any_size(scan: str, add: str, remove: str, count: int) -> None:
    costs = []
    for size in SIZES:
        engine = Engine(1, pending=0)
        for number in range(size):
            engine(*add.format(name=f"m{number}").split())
        cursor, worst = "0", 0
        for turn in range(30):
            words = (*scan.format(cursor=cursor).split(), "COUNT", count)
            worst = max(worst, engine.steps(*words))
            cursor = engine(*words)[0].decode()
            assert cursor != "0"
            worst = max(worst, engine.steps(*add.format(name=f"n{turn}").split()))
            worst = max(worst, engine.steps(*remove.format(name=f"m{turn}").split()))
        costs.append(worst)
    small, large = costs
    assert large <= small + 40, f"{small} steps at {SIZES[0]}, {large} at {SIZES[1]}"
