from __future__ import annotations

import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.engine.commands import execute
from millstream.engine.keys.values import Hash, SetOf, SortedSet
from tests.engine.commands.plain import Plain

COUNT = 500


def _walk(e: Plain, command: str, step: int = 7, options: str = "") -> list[bytes]:
    """Return all that a scan returns."""
    met: list[bytes] = []
    cursor = b"0"
    for _ in range(10 * COUNT):
        reply = e(f"{command} {cursor.decode()} COUNT {step}{options}")
        assert isinstance(reply, list)
        cursor, page = reply  # type: ignore[assignment]
        met += page  # type: ignore[arg-type]
        if cursor == b"0":
            return met
    raise AssertionError("the scan does not end")


@pytest.fixture
def many(e: Plain) -> Plain:
    for number in range(COUNT):
        e(f"HSET h f{number} v{number}")
        e(f"SADD s m{number}")
        e(f"ZADD z {number} m{number}")
    return e


def test_a_scan_meets_each_element_once(many: Plain) -> None:
    assert sorted(_walk(many, "SSCAN s")) == sorted(b"m%d" % number for number in range(COUNT))
    flat = _walk(many, "HSCAN h")
    assert dict(zip(flat[::2], flat[1::2], strict=True)) == {b"f%d" % n: b"v%d" % n for n in range(COUNT)}
    flat = _walk(many, "ZSCAN z", step=1)
    assert {member: int(score) for member, score in zip(flat[::2], flat[1::2], strict=True)} == {
        b"m%d" % n: n for n in range(COUNT)
    }


def test_a_page_is_about_as_long_as_asked_for(many: Plain) -> None:
    cursor, page = many("SSCAN s 0 COUNT 20")  # type: ignore[misc]
    assert (cursor != b"0", len(page)) == (True, 20)  # type: ignore[arg-type]


def test_what_is_there_all_the_time_is_met_whatever_comes_and_goes(many: Plain) -> None:
    met: set[bytes] = set()
    cursor, turn = b"0", 0
    while cursor != b"0" or not met:
        cursor, page = many(f"SSCAN s {cursor.decode()} COUNT 10")  # type: ignore[misc]
        met.update(page)  # type: ignore[arg-type]
        many(f"SREM s m{COUNT - 1 - turn}")
        many(f"SADD s new{turn}")
        turn += 1
    assert met >= {b"m%d" % number for number in range(COUNT - turn)}
    assert turn < COUNT, "a set that grows meanwhile does not keep the scan from ending"


def test_a_small_value_comes_whole(e: Plain) -> None:
    e("HSET h a 1 b 2 c 3")
    assert e("HSCAN h 0 COUNT 1") == [b"0", [b"a", b"1", b"b", b"2", b"c", b"3"]]
    assert e("HSCAN h 0 COUNT 1 NOVALUES MATCH [ab]") == [b"0", [b"a", b"b"]]


def test_a_pattern_filters_what_is_met(many: Plain) -> None:
    assert sorted(_walk(many, "SSCAN s", options=" MATCH m1?")) == sorted(b"m%d" % n for n in range(10, 20))


# The guarantee, under random programs

ADD = {
    "HSCAN": "HSET {key} {name} v",
    "SSCAN": "SADD {key} {name}",
    "ZSCAN": "ZADD {key} {score} {name}",
    "SCAN": "SET {name} v",
}
REMOVE = {
    "HSCAN": "HDEL {key} {name}",
    "SSCAN": "SREM {key} {name}",
    "ZSCAN": "ZREM {key} {name}",
    "SCAN": "DEL {name}",
}


class Walked:
    """A value under scans and changes, and what must hold between them."""

    def __init__(self, command: str, size: int) -> None:
        self.engine = Plain()
        self.command = command
        self.names: set[str] = set()
        for number in range(size):
            self.add(f"m{number}")

    def add(self, name: str) -> None:
        self.engine(ADD[self.command].format(key="k", name=name, score=sum(name.encode()) % 7))
        self.names.add(name)

    def remove(self, name: str) -> None:
        self.engine(REMOVE[self.command].format(key="k", name=name))
        self.names.discard(name)

    def page(self, cursor: str, count: int) -> tuple[str, list[str]]:
        key = "" if self.command == "SCAN" else " k"
        after, page = self.engine(f"{self.command}{key} {cursor} COUNT {count}")  # type: ignore[misc]
        names = [word.decode() for word in page]  # type: ignore[union-attr]
        return after.decode(), names if self.command in ("SSCAN", "SCAN") else names[::2]  # type: ignore[union-attr]


@dataclass
class Scan:
    """One scan in progress; scans of several clients go on side by side."""

    stayed: set[str]
    cursor: str = "0"
    returned: set[str] = field(default_factory=set)


@pytest.mark.parametrize("command", ADD)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(size=st.integers(0, 400), choice=st.randoms(use_true_random=False))
def test_a_scan_returns_what_stays_under_any_program(command: str, size: int, choice: Random) -> None:
    walked = Walked(command, size)
    scans = [Scan(set(walked.names)) for _ in range(2)]
    growth = choice.choice((0, 2, 30))
    shrinkage = choice.choice((0, 2, 30))
    for turn in range(2_000):
        scan = choice.choice(scans)
        scan.cursor, names = walked.page(scan.cursor, choice.choice((1, 7, 60)))
        scan.returned.update(names)
        if scan.cursor == "0":
            assert scan.stayed <= scan.returned, f"never returned: {scan.stayed - scan.returned}"
            scans.remove(scan)
            if not scans:
                return
        # most recent and oldest names too: the ends of the order are where positions change
        present = sorted(walked.names)
        for name in choice.sample(present, min(choice.randint(0, shrinkage), len(present))):
            walked.remove(name)
            for other in scans:
                other.stayed.discard(name)
            if choice.random() < 0.3:
                walked.add(name)
        for number in range(choice.randint(0, growth)):
            walked.add(f"n{turn}-{number}" if choice.random() < 0.7 else f"m{choice.randint(0, 400)}")
    raise AssertionError("a scan does not end")


@pytest.mark.parametrize("way", ["item", "update", "setdefault", "ior"])
def test_no_way_to_add_a_field_escapes_a_scan(way: str) -> None:
    fields = Hash({b"%d" % number: b"" for number in range(300)})
    cursor, _ = fields.page(0, 10)
    for number in range(0, 300, 2):
        del fields[b"%d" % number]
    for number in range(1_000, 1_500):
        name = b"%d" % number
        if way == "item":
            fields[name] = b""
        elif way == "update":
            fields.update({name: b""})
        elif way == "setdefault":
            fields.setdefault(name, b"")
        else:
            fields |= {name: b""}
    met: set[bytes] = set()
    cursor = 0  # while the order of the first scan is kept
    while not met or cursor:
        cursor, page = fields.page(cursor, 50)
        met.update(page)
    assert met == fields.keys()


def test_a_value_that_is_not_scanned_pays_nothing_for_scans(many: Plain) -> None:
    values: dict[bytes, Any] = many.keyspace.databases[0].values  # type: ignore[assignment]
    for key, command in ((b"h", "HSCAN h"), (b"z", "ZSCAN z")):
        assert values[key]._order is None
        many(f"{command} 0 COUNT 10")
        assert values[key]._order is not None
        _walk(many, command)
        assert values[key]._order is None, "the order goes with the scan"


def test_a_scan_of_160000_elements_takes_seconds() -> None:
    e = Plain()
    values = e.keyspace.databases[0].values
    names = [b"member:%d" % number for number in range(160_000)]
    values[b"h"], values[b"s"] = Hash(dict.fromkeys(names, b"v")), SetOf(names)
    values[b"z"] = SortedSet()
    for number, name in enumerate(names):
        values[b"z"].put(name, number)  # type: ignore[attr-defined]
    for command, width in (("HSCAN h", 2), ("SSCAN s", 1), ("ZSCAN z", 2)):
        started = time.monotonic()
        met, cursor = 0, b"0"
        while True:
            argv = [*command.encode().split(), cursor, b"COUNT", b"100"]
            cursor, page = execute(e.keyspace, 0, argv, e.now_ms).reply  # type: ignore[misc]
            met += len(page)
            if cursor == b"0":
                break
        assert met == width * len(names)
        assert time.monotonic() - started < 20  # 0.2 s on a quiet machine; the walk of 0.1.0 took four minutes
