"""The fourteen tests of the RFC's own library, A1 to A14, told for plain streams.

There an entry names a whole stream that one consumer owns; here it is the work itself. So a StreamAdded is a delivery,
DoneStream an acknowledgement, and Claim what recovery does by itself. Left out are the notifications StreamExpired and
StreamDisowned of A10 and the echo of `Info` in A1, which belong to whole-stream ownership.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.delivery.config.settings import RecoveryConfig, Settings
from millstream.delivery.policy import Backoff
from millstream.errors import ConfigError, ServerReplied
from millstream.worker.runtime.listener import id_of_event, pattern_of
from millstream.worker.stream import Stream
from tests.scenarios.fleet import WAIT_S, Fleet, Tally, at, everywhere, finish, later, running, until
from tests.support import ours
from tests.support.places import Site

SHORT = RecoveryConfig(min_idle_time=1.0, reconciliation_interval=0.2)


@everywhere
def test_two_consumers_and_two_entries_each_gets_one(place: Site) -> None:
    """Scenario A1."""
    fleet = Fleet(place)
    fleet.publish(2)
    seen: set[bytes] = set()
    for tally in (Tally(), Tally()):
        consumer = fleet.consumer(tally)
        (delivery,) = consumer.fetch(1, 0)
        seen.add(delivery.by_name[b"n"])
        finish(consumer, [delivery])
        assert (tally["lock_acquisition:ok"], tally["lock_release:ok"]) == (1, 1)
        assert tally["claim_attempt:ok"] == tally["claim_attempt:failed"] == 0
    assert seen == {b"0", b"1"}
    assert fleet.consumer().fetch(1, 0) == []


@everywhere
def test_an_entry_is_delivered_again_after_its_consumer_ended_without_an_answer(place: Site) -> None:
    """Scenario A2."""
    fleet = Fleet(place, config=RecoveryConfig(min_idle_time=1))  # which it must not take to start again
    fleet.publish(1)
    first = fleet.consumer(name=b"redis-consumer-pod-1")
    (delivery,) = first.fetch(1, 0)
    again = fleet.consumer(name=b"redis-consumer-pod-1")
    assert again.fetch(1, 0) == [], "its lock lives"
    until(lambda: again.rfc.scan(again.backend).recovered == 1)
    (second,) = again.fetch(1, 0)
    assert second.by_name[b"n"] == b"0"
    assert again.original_id(second) == delivery.id
    finish(again, [second])


@everywhere
def test_of_five_entries_those_that_were_not_finished_come_back(place: Site) -> None:
    """Scenario A3."""
    fleet, tallies = Fleet(place), [Tally(), Tally()]
    first = fleet.consumer(tallies[0])
    fleet.publish(5)
    deliveries = first.fetch(10, 0)
    finish(first, [deliveries[1], deliveries[3]])
    left = list(fleet.pending())
    fleet.expire(left, 1)
    until(lambda: not any(fleet.execute("EXISTS", fleet.lock(entry_id)) for entry_id in left))
    fleet.age(left)
    second = fleet.consumer(tallies[1])
    again = second.fetch(10, 0)
    assert [delivery.by_name[b"n"] for delivery in again] == [b"0", b"2", b"4"]
    assert (tallies[0]["lock_acquisition:ok"], tallies[0]["lock_release:ok"]) == (5, 2)
    assert tallies[1]["lock_acquisition:ok"] == 3


@everywhere
def test_of_two_who_recover_the_same_entry_one_does(place: Site) -> None:
    """Scenario A4."""
    fleet, tallies = Fleet(place), [Tally(), Tally()]
    ids = fleet.abandon(1)
    one, other = (fleet.consumer(tally, opened=False) for tally in tallies)
    assert one.rfc.on_expired(one.backend, ids) == 1
    assert other.rfc.on_expired(other.backend, ids) == 0
    assert (tallies[0]["duplicate_ack"], tallies[1]["duplicate_ack"]) == (0, 1)


@everywhere
def test_a_read_waits_and_has_the_entry_soon_after_it_was_added(place: Site) -> None:
    """Scenario A5."""
    fleet = Fleet(place)
    consumer = fleet.consumer()
    asked = time.monotonic()
    assert consumer.fetch(1, 0.2) == []
    assert time.monotonic() - asked >= 0.19
    adding = threading.Timer(0.1, fleet.publish, (1,))
    adding.start()
    asked = time.monotonic()
    (delivery,) = consumer.fetch(1, 60)
    assert time.monotonic() - asked < 30
    assert delivery.by_name[b"n"] == b"0"
    adding.join()


@everywhere
def test_the_expiry_of_a_lock_is_heard_and_names_its_entry(place: Site) -> None:
    """Scenario A6."""
    fleet = Fleet(place)
    consumer = fleet.consumer()
    pattern = pattern_of(fleet.backend, consumer.keys.lock_base)
    assert pattern == b"__keyspace@0__:lock:{orders}:*"
    heard: list[list[bytes]] = []
    assert consumer.rfc is not None
    with fleet.listener(consumer) as listener:
        listener._recovery = type("Kept", (), {"on_expired": lambda _, __, ids: heard.append(ids)})()
        fleet.execute("SET", fleet.lock(b"1526919030474-55"), "somebody", "PX", 30)
        until(lambda: heard == [[b"1526919030474-55"]])


@everywhere
def test_two_of_ten_consumers_die_and_the_others_finish_two_thousand(place: Site) -> None:
    """Scenario A7."""
    fleet, tally = Fleet(place), Tally()
    consumers = [fleet.consumer() for _ in range(8)]
    for page in range(4):
        with fleet.program() as producer:
            producer.publish_many([{"n": str(page * 500 + n)} for n in range(500)])
    done: set[bytes] = set()
    stranded = [entry_id for name in ("dead-1", "dead-2") for entry_id in fleet.read_as(name, 200)]
    assert len(stranded) == 400
    lock_all(fleet, stranded)
    for consumer in consumers:
        found = consumer.fetch(200, 0)
        assert len(found) == 200
        finish(consumer, found)
        done.update(delivery.by_name[b"n"] for delivery in found)
    survivor = consumers[0]
    survivor.recorder = tally
    assert survivor.rfc is not None
    survivor.rfc.recorder = tally
    with fleet.listener(survivor):
        # as old as their locks would be: an entry that was delivered just now may be about to be locked
        fleet.execute("XCLAIM", "orders", "g", "dead-1", 0, *stranded, "IDLE", 2000, "JUSTID")
        expire_all(fleet, stranded)
        until(lambda: fleet.pending() == {})
        while found := survivor.fetch(500, 0):
            finish(survivor, found)
            done.update(delivery.by_name[b"n"] for delivery in found)
    assert len(done) == 2000
    assert tally["keyspace_requeued"] == 400
    assert fleet.entries() == []


def lock_all(fleet: Fleet, ids: list[bytes]) -> None:
    script = "for i, key in ipairs(KEYS) do redis.call('SET', key, 'dead', 'PX', 60000) end"
    fleet.execute("EVAL", script, len(ids), *map(fleet.lock, ids))


def expire_all(fleet: Fleet, ids: list[bytes]) -> None:
    script = "for i, key in ipairs(KEYS) do redis.call('PEXPIRE', key, 20) end"
    fleet.execute("EVAL", script, len(ids), *map(fleet.lock, ids))


@everywhere
def test_an_acknowledged_entry_is_gone_and_the_stream_stays(place: Site) -> None:
    """Scenario A8."""
    fleet = Fleet(place)
    fleet.publish(1)
    consumer = fleet.consumer()
    deliveries = consumer.fetch(1, 0)
    assert (len(fleet.pending()), fleet.execute("XLEN", "orders")) == (1, 1)
    finish(consumer, deliveries)
    assert (len(fleet.pending()), fleet.execute("XLEN", "orders")) == (0, 0)
    assert fleet.execute("EXISTS", "orders") == 1


@everywhere
def test_entries_finished_one_by_one_go_one_by_one_and_a_stop_lets_the_last_finish(place: Site) -> None:
    """Scenario A9."""
    fleet, tally = Fleet(place), Tally()
    left: list[tuple[int, int]] = []
    gates = [threading.Event() for _ in range(3)]
    entered = threading.Semaphore(0)

    def work(data: dict[str, str], _: Any) -> None:
        entered.release()
        gates[int(data["n"])].wait(WAIT_S)

    fleet.publish(3)
    with fleet.worker(work, tally, concurrency=3):
        for _ in gates:
            assert entered.acquire(timeout=WAIT_S)
        for number in (0, 1):
            left.append((len(fleet.pending()), len(fleet.entries())))
            gates[number].set()
            until(lambda number=number: len(fleet.pending()) == 2 - number)  # type: ignore[misc]
        left.append((len(fleet.pending()), len(fleet.entries())))
        threading.Timer(0.2, gates[2].set).start()  # while the worker drains
    assert left == [(3, 3), (2, 2), (1, 1)]
    assert (len(fleet.pending()), len(fleet.entries())) == (0, 0)
    names = ("lock_acquisition:ok", "lock_release:ok", "processing_start", "processing_end")
    assert [tally[name] for name in names] == [3] * 4


@at("broker", "valkey", "cluster", *later("redis", "redis7"))
def test_a_producer_two_workers_and_one_is_killed(place: Site) -> None:
    """Scenario A10."""
    fleet, tally = Fleet(place, config=RecoveryConfig(min_idle_time=1.0), more={"listener": True}), Tally()
    doomed = subprocess.Popen(
        [sys.executable, "-c", DOOMED, place.url], stdout=subprocess.PIPE, env=ours.environment(), cwd=os.getcwd()
    )
    try:
        assert doomed.stdout is not None
        assert doomed.stdout.readline() == b"ready\n"
        (entry_id,) = fleet.publish(1)
        assert doomed.stdout.readline().strip() == entry_id
        handled: list[tuple[str, int]] = []
        with fleet.worker(lambda data, message: handled.append((data["n"], message.retry_count)), tally):
            until(lambda: tally["startup_recovery:ok"] == 1)
            end = time.monotonic() + 1.3  # longer than a lease: the other one lives and renews
            while time.monotonic() < end:
                assert not handled
                time.sleep(0.05)
            doomed.send_signal(signal.SIGKILL)
            killed = time.monotonic()
            until(lambda: handled == [("0", 1)])
            assert time.monotonic() - killed < 1.0 + 30
        assert (tally["keyspace_requeued"], tally["scan_requeued"]) == (1, 0)
        assert fleet.entries() == []
    finally:
        doomed.kill()
        doomed.wait(10)


DOOMED = """
import sys, time
from millstream.delivery.config.settings import RecoveryConfig
from millstream.worker.stream import Stream

program = Stream("orders", sys.argv[1], group="g", type=dict[str, str], fields=True,
                 settings=RecoveryConfig(min_idle_time=1.0).settings(listener=False))

@program.handler
def work(data, message):
    print(message.id, flush=True)
    time.sleep(60)

print("ready", flush=True)
program.run()
"""


@everywhere
def test_the_log_says_that_nothing_was_left_behind(place: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Scenario A11."""
    fleet = Fleet(place)
    with caplog.at_level(logging.INFO, logger="millstream"):
        fleet.consumer()
    assert any("no unacknowledged entries" in line for line in caplog.messages)
    caplog.clear()
    fleet.abandon(1)
    with caplog.at_level(logging.INFO, logger="millstream"):
        fleet.consumer()
    assert not any("no unacknowledged entries" in line for line in caplog.messages)


@everywhere
def test_a_malformed_entry_left_behind_does_not_keep_a_worker_from_starting(place: Site) -> None:
    """Scenario A12."""
    fleet = Fleet(place)
    bad = fleet.execute("XADD", "orders", "*", "data", b"\xff\x00 not JSON")
    fleet.read_as("dead")
    fleet.age([bad])
    program: Stream[Any] = Stream("orders", place.url, group="g", type=dict[str, int], settings=fleet.settings)
    handled: list[int] = []
    program.handler(lambda data: handled.append(data["n"]))
    with program, running(program):
        program.publish({"n": 7})
        until(lambda: handled == [7])
        until(lambda: program.dead.count() == 1)
        (letter,) = program.dead.list()
    assert (letter.reason, letter.original_id.encode()) == ("malformed", bad)


ANYTHING = st.none() | st.integers() | st.text() | st.binary()


@given(st.fixed_dictionaries({}, optional={"type": ANYTHING, "channel": ANYTHING, "data": ANYTHING}), st.binary())
def test_no_message_of_a_subscription_breaks_the_parser(event: dict[str, Any], base: bytes) -> None:
    """Scenario A13."""
    assert id_of_event(event, base) is None or event["type"] == "pmessage"


@given(st.binary(), st.binary(max_size=40), st.sampled_from([b"", b"lock:{orders}:", b"lock:{a*b}c:"]))
def test_no_channel_breaks_the_parser_and_only_ids_come_out(noise: bytes, tail: bytes, base: bytes) -> None:
    """Scenario A13."""
    for channel in (noise, b"__keyspace@0__:" + tail, b"__keyspace@7__:" + base + tail):
        found = id_of_event({"type": "pmessage", "channel": channel, "data": b"expired"}, base)
        assert found is None or (channel.endswith(found) and all(part.isdigit() for part in found.split(b"-")))


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.binary(min_size=1), st.integers(0, 15))
def test_the_id_of_every_lock_comes_out(ms: int, seq: int, base: bytes, database: int) -> None:
    """Scenario A13."""
    entry_id = b"%d-%d" % (ms, seq)
    channel = b"__keyspace@%d__:%s%s" % (database, base, entry_id)
    assert id_of_event({"type": "pmessage", "channel": channel, "data": b"expired"}, base) == entry_id


NUMBERS = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.integers(), st.booleans(), st.none(), st.text())


@given(NUMBERS, NUMBERS, NUMBERS, st.booleans(), st.integers(-5, 5000))
def test_retry_settings_are_refused_or_give_a_wait_within_their_bounds(
    first: Any, factor: Any, cap: Any, jitter: bool, attempt: int
) -> None:
    """Scenario A14."""
    try:
        backoff = Backoff(first, factor, cap, jitter)
    except ConfigError:
        return
    delay = backoff.delay(attempt)
    assert math.isfinite(delay)
    assert 0 <= delay <= cap


@given(st.dictionaries(st.sampled_from(sorted(RecoveryConfig.__dataclass_fields__)), NUMBERS))
def test_any_recovery_settings_are_refused_by_name_or_make_settings(given_ones: dict[str, Any]) -> None:
    """Scenario A14."""
    refused = ""
    try:
        assert RecoveryConfig(**given_ones).settings().has_lock_keys
    except ConfigError as error:
        refused = str(error).partition(":")[0]
    assert not refused or refused in NAMES


NAMES = {*Settings.__dataclass_fields__, *RecoveryConfig.__dataclass_fields__}


@everywhere
@pytest.mark.parametrize("tries", [0, 2])
def test_a_reader_gives_up_after_the_tries_that_it_was_given(
    place: Site, tries: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario A14."""
    quick = {"reconnect": Backoff(0.01, cap=0.02), "shutdown_grace": 0.0, "block": 0.05}
    fleet = Fleet(place, more={**quick, "reconnect_tries": tries})
    handled: list[str] = []

    def break_it(data: dict[str, str]) -> None:
        handled.append(data["n"])
        fleet.execute("SET", "orders", "no stream any more")

    fleet.publish(1)
    with fleet.program() as program:
        program.handler(break_it)
        with pytest.raises(ServerReplied, match="WRONGTYPE"):
            program.run(signals=False)
    assert handled == ["0"]
    assert sum("reading b'orders' failed" in line for line in caplog.messages) == tries
