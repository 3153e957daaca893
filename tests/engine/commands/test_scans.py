from __future__ import annotations

import pytest

from tests.engine.commands.plain import Plain

COUNT = 500


def _walk(e: Plain, command: str, step: int = 7, options: str = "") -> list[bytes]:
    """All that a scan answers."""
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
