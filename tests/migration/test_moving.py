"""Moves between real servers and our broker, whole and entry by entry."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from millstream import Broker
from millstream.migration import Endpoint, Move, Options, Report
from millstream.migration.resume import Notes
from tests.migration.support import claim_order, client_of, fill, state_of, take_times, url_of
from tests.support.servers import RealServer


@pytest.fixture
def broker_url() -> Iterator[str]:
    with Broker() as broker, broker.serve_in_background() as served:
        yield f"redis://127.0.0.1:{served.port}"


def move(source: str, target: str, **options: Any) -> Report:
    places = Endpoint.connect(source), Endpoint.connect(target)
    try:
        return Move(*places, Options(**options)).run()
    finally:
        for place in places:
            place.close()


@pytest.fixture(params=["redis to broker", "broker to redis"])
def ends(request: pytest.FixtureRequest, redis_server: RealServer, broker_url: str) -> tuple[str, str]:
    """A source with keys and an empty target, both as new as Redis 8.10."""
    urls = (url_of(redis_server), broker_url)
    source, target = urls if request.param == "redis to broker" else urls[::-1]
    client_of(target)
    fill(client_of(source))
    return source, target


def test_a_whole_move_keeps_everything(ends: tuple[str, str]) -> None:
    report = move(*ends)
    assert (report.problems, report.warnings, report.copied, report.whole) == ([], [], 7, 7)
    assert state_of(ends[0]) == state_of(ends[1])
    assert state_of(ends[0], "empty") == state_of(ends[1], "empty")


def test_a_move_by_entries_keeps_everything_but_counters_of_idempotency(ends: tuple[str, str]) -> None:
    report = move(*ends, by_entries=True)
    assert (report.problems, report.warnings, report.ghosts, report.whole) == ([], [], 0, 5)
    ours, theirs = state_of(ends[0]), state_of(ends[1])
    # XCFGSET forgets the first record, and the count of records starts anew
    assert ours.pop("iids-added") == 2
    assert theirs.pop("iids-added") == 1
    delivered = zip(take_times(ours), take_times(theirs), strict=True)
    assert all(abs(one - other) < 5000 for one, other in delivered)
    assert ours == theirs
    assert claim_order(ends[0])[:3] == claim_order(ends[1])[:3] == [b"6-0", b"4-0", b"5-0"]


def test_an_idempotent_id_is_known_on_the_target(ends: tuple[str, str]) -> None:
    move(*ends, by_entries=True)
    source, target = map(redis.Redis.from_url, ends)
    words = ("XADD", "orders", "IDMP", "shop", "r2", "*", "n", "again")
    assert source.execute_command(*words) == target.execute_command(*words)


def test_pending_entries_without_entry_are_counted_when_they_stay_behind(ends: tuple[str, str]) -> None:
    redis.Redis.from_url(ends[0]).xdel("orders", "2-0", "6-0")
    assert move(*ends).ghosts == 0
    report = move(*ends, by_entries=True, replace=True)
    assert (report.ghosts, report.problems) == (2, [])


def test_valkey_gets_released_entries_under_a_consumer(redis_server: RealServer, valkey_server: RealServer) -> None:
    source, target = url_of(redis_server), url_of(valkey_server)
    fill(client_of(source))
    client_of(target)
    for by_entries in (False, True):
        report = move(source, target, by_entries=by_entries, replace=True)
        assert report.problems == []
        assert len(report.warnings) == 2
        assert any("3 released entries now belong to consumer 'released'" in warning for warning in report.warnings)
        (group, _) = state_of(target)["groups"]
        most = 9223372036854775807
        assert group["consumers"][b"released"] == [[b"4-0", 0, 1], [b"5-0", 0, most], [b"6-0", 0, 1]]
        assert group["consumers"][b"anna"][0] == [b"1-0", 1700000000000, 7]


@pytest.mark.parametrize("by_entries", [False, True])
def test_valkey_moves_to_us(valkey_server: RealServer, broker_url: str, by_entries: bool) -> None:
    source = url_of(valkey_server)
    fill(client_of(source), is_new=False)
    assert move(source, broker_url, by_entries=by_entries).problems == []
    ours, theirs = state_of(source), state_of(broker_url)
    assert ours["entries"] == theirs["entries"]
    for before, after in zip(ours["groups"], theirs["groups"], strict=True):
        assert before.items() <= after.items()


def test_keys_on_the_target_are_left_alone_unless_they_may_be_replaced(ends: tuple[str, str]) -> None:
    target = redis.Redis.from_url(ends[1])
    target.set("orders", "mine")
    report = move(*ends)
    assert report.existing == [b"orders"]
    assert report.problems == ["orders: exists on the target (--replace overwrites it)"]
    assert target.get("orders") == b"mine"
    assert move(*ends, replace=True, by_entries=True).problems == []


def test_only_keys_that_match_are_moved(ends: tuple[str, str]) -> None:
    assert move(*ends, match="*t").copied == 4
    assert sorted(redis.Redis.from_url(ends[1]).keys()) == [b"list", b"set", b"text", b"zset"]


def test_a_look_changes_nothing(ends: tuple[str, str]) -> None:
    report = Move(Endpoint.connect(ends[0]), Endpoint.connect(ends[1])).look()
    assert report.found.by_kind == {"hash": 1, "list": 1, "set": 1, "stream": 2, "string": 1, "zset": 1}
    assert redis.Redis.from_url(ends[1]).dbsize() == 0


def test_plain_values_are_copied_by_commands_when_no_payload_is_taken(
    ends: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.migration.values.dump", lambda source, key: None)
    monkeypatch.setattr("millstream.migration.values.dump_short", lambda source, keys: [])
    report = move(*ends)
    assert (report.problems, report.whole, report.copied) == ([], 0, 7)
    assert redis.Redis.from_url(ends[1]).pttl("text") > 900_000


class Interfering:
    """Does something when a part of a move begins."""

    def __init__(self, part: str, act: Callable[[], object]) -> None:
        self._part, self._act = part, act

    def begin(self, what: str, total: int) -> None:
        if what == self._part:
            self._act()

    def step(self, count: int = 1) -> None:
        pass


@pytest.mark.parametrize("by_entries", [False, True])
def test_what_changes_meanwhile_is_picked_up(ends: tuple[str, str], by_entries: bool) -> None:
    writer, target = map(redis.Redis.from_url, ends)

    def write() -> None:
        writer.xadd("orders", {"n": "new"})
        writer.xtrim("orders", maxlen=7, approximate=False)
        writer.xack("orders", "billing", "7-0")
        writer.delete("hash")
        writer.set("text", "other")
        writer.xadd("fresh", {"n": "new"})

    watcher = Interfering("catching up", write)
    report = Move(*map(Endpoint.connect, ends), Options(by_entries=by_entries), watcher=watcher).run()
    assert report.problems == []
    assert report.caught_up == 2
    assert [target.exists(key) for key in ("fresh", "hash")] == [1, 0]
    assert state_of(ends[0])["entries"] == state_of(ends[1])["entries"]


def test_a_difference_is_found_and_named(ends: tuple[str, str]) -> None:
    target = redis.Redis.from_url(ends[1])

    def meddle() -> None:
        target.xdel("orders", "3-0")
        target.xack("orders", "billing", "7-0")
        target.xclaim("orders", "billing", "anna", 0, ["4-0"])
        target.set("text", "other", keepttl=True)
        target.persist("text")
        target.delete("set")

    report = Move(*map(Endpoint.connect, ends), watcher=Interfering("verifying", meddle)).run()
    assert sorted(report.problems) == [
        "orders: 10 entries on the source, 9 on the target",
        "orders: group billing: 1 pending entries are missing: 7-0",
        "orders: group billing: 1 pending entries have another owner or count: 4-0",
        "orders: the checksums over ids and fields differ",
        "set: is of type set on the source and not there on the target",
        "text: expires at one end only",
        "text: the string has other contents",
    ]


def test_entries_that_are_written_all_the_while_arrive(ends: tuple[str, str], tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        writer = redis.Redis.from_url(ends[0])
        for number in range(3000):
            if stop.is_set():
                return
            writer.xadd("live", {"n": number})

    thread = threading.Thread(target=write)
    thread.start()
    try:
        notes = Notes(tmp_path / "state", {})
        Move(*map(Endpoint.connect, ends), Options(by_entries=True), notes=notes).run()
    finally:
        stop.set()
        thread.join(60)
    # whether the first run was a success depends on when the last entry came: the next one finds quiet
    report = Move(*map(Endpoint.connect, ends), Options(by_entries=True, replace=True), notes=notes).run()
    assert report.problems == []
