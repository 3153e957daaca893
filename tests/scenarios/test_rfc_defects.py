"""The defects of the RFC's library, one by one, as things that ours does not do: scenarios B1 to B18."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry

from millstream.client import connect
from millstream.delivery.config.settings import RecoveryConfig, Settings
from millstream.delivery.settlement import Ack
from millstream.errors import ConfigError, LeaseLost, NotSettled, Unavailable
from millstream.worker.metrics import PrometheusRecorder
from millstream.worker.runtime.listener import merge_flags
from millstream.worker.stream import Stream
from tests.scenarios.fleet import ONE_SERVER, Fleet, Tally, at, everywhere, finish, running, until
from tests.support import servers
from tests.support.places import Site

SHORT = RecoveryConfig(min_idle_time=1.0, reconciliation_interval=0.2)


def flags(fleet: Fleet) -> str:
    return str(fleet.execute("CONFIG", "GET", "notify-keyspace-events")[1].decode())


@at(*ONE_SERVER)
def test_a_second_worker_starts_where_the_first_has_switched_events_on(place: Site) -> None:
    """Scenario B1."""
    fleet, tallies = Fleet(place, more={"listener": True}), [Tally(), Tally()]
    place.configure("notify-keyspace-events", "")
    first, second = (fleet.consumer(tally) for tally in tallies)
    with fleet.listener(first), fleet.listener(second):
        assert set(flags(fleet)) == set("Kx")
        fleet.expire(fleet.abandon(1, locked=True))
        until(lambda: sum(tally["keyspace_notification"] for tally in tallies) == 2)


@at(*ONE_SERVER)
@pytest.mark.parametrize(
    ("before", "after"), [("", "Kx"), ("Ex", "KEx"), ("Eg$", "KEg$x"), ("KA", "KA"), ("KEA", "KEA"), ("Kx", "Kx")]
)
def test_flags_are_added_to_the_servers_and_replace_none(place: Site, before: str, after: str) -> None:
    """Scenario B1."""
    fleet = Fleet(place)
    place.configure("notify-keyspace-events", before)
    assert merge_flags(fleet.backend.raw_client())
    assert set(flags(fleet)) == set(after)


@everywhere
def test_the_walk_at_the_start_ends_however_many_are_alive(place: Site) -> None:
    """Scenario B2."""
    fleet, tally = Fleet(place, more={"startup_batch": 10}), Tally()
    fleet.abandon(500, "slow", locked=True)
    started = time.monotonic()
    fleet.consumer(tally)
    assert time.monotonic() - started < 60
    assert (tally["scan_skipped_alive"], tally["startup_recovery:ok"]) == (500, 1)


@everywhere
def test_a_malformed_entry_becomes_a_dead_letter_and_the_reader_lives(place: Site) -> None:
    """Scenario B3."""
    fleet, tally = Fleet(place, config=SHORT), Tally()
    handled: list[int] = []
    program: Stream[Any] = Stream(
        "orders", place.url, group="g", type=dict[str, int], settings=fleet.settings, recorder=tally
    )
    program.handler(lambda data: handled.append(data["n"]))
    bad = [
        fleet.execute("XADD", "orders", "*", *words)
        for words in (("data", b"\xff"), ("data", "{"), ("other", "1"), ("data", '{"n": "x"}'))
    ]
    with program, running(program):
        program.publish({"n": 1})
        until(lambda: handled == [1])
        until(lambda: program.dead.count() == len(bad))
        letters = list(program.dead.list())
    assert [letter.original_id.encode() for letter in letters] == bad
    assert {letter.reason for letter in letters} == {"malformed"}
    assert fleet.dead()[0][b"data"] == b"\xff"


@everywhere
def test_a_lock_that_somebody_else_holds_does_not_end_the_batch(place: Site) -> None:
    """Scenario B4."""
    fleet = Fleet(place)
    ids = fleet.publish(5)
    fleet.execute("SET", fleet.lock(ids[1]), "somebody", "PX", 60_000)
    consumer = fleet.consumer()
    deliveries = consumer.fetch(10, 0)
    assert [delivery.id for delivery in deliveries] == ids
    finish(consumer, deliveries)
    fleet.publish(1)
    assert len(consumer.fetch(10, 0)) == 1


@everywhere
def test_a_shutdown_acknowledges_nothing_that_is_unfinished(place: Site) -> None:
    """Scenario B5."""
    fleet = Fleet(place, more={"shutdown_grace": 0.0})
    entered = threading.Event()
    freed = threading.Event()

    def hang(*_: Any) -> None:
        entered.set()
        freed.wait(10)

    ids = fleet.publish(3)
    with fleet.worker(hang, concurrency=1):
        assert entered.wait(60)
    freed.set()
    assert fleet.pending() == {}, "nothing waits for a lease"
    consumer = fleet.consumer()
    again = consumer.fetch(10, 0)
    assert sorted(consumer.original_id(delivery) for delivery in again) == ids
    assert {consumer.retry_count(delivery) for delivery in again} == {0}, "a shutdown is no failure"


@everywhere
def test_ending_a_delivery_is_one_step_and_its_error_is_told(place: Site) -> None:
    """Scenario B6."""
    fleet = Fleet(place)
    fleet.execute("SET", "{orders}:dlq", "not a stream")
    fleet.publish(1)
    with fleet.program() as program, closing(program.consume(wait=5)) as messages:
        message = next(messages)
        with pytest.raises(NotSettled, match="WRONGTYPE") as caught:
            message.reject("no")
        assert message.id in str(caught.value)
        entry_id = message.delivery.id
        assert list(fleet.pending()) == [entry_id]
        assert fleet.execute("EXISTS", fleet.lock(entry_id)) == 1, "it is still ours, for all to see"
        fleet.execute("DEL", "{orders}:dlq")
        message.reject("no")
    assert len(fleet.dead()) == 1
    assert fleet.execute("EXISTS", fleet.lock(entry_id)) == 0


@everywhere
def test_what_somebody_else_has_requeued_and_ended_is_not_reported_as_done(place: Site) -> None:
    """Scenario B6."""
    fleet, tally = Fleet(place), Tally()
    slow, other = fleet.consumer(tally), fleet.consumer()
    fleet.publish(1)
    (delivery,) = slow.fetch(1, 0)
    fleet.execute("DEL", fleet.lock(delivery.id))
    fleet.age([delivery.id])
    assert other.rfc.scan(other.backend).recovered == 1
    finish(other, other.fetch(1, 0))
    (result,) = slow.settle([(delivery, Ack())])
    assert result.is_lost
    assert (tally["lease_lost"], tally["settled:ack"], tally["lock_release:failed"]) == (1, 0, 1)


@everywhere
def test_a_message_that_was_requeued_meanwhile_says_so(place: Site) -> None:
    """Scenario B6."""
    fleet = Fleet(place)
    fleet.publish(1)
    with fleet.program() as program, closing(program.consume(wait=5)) as messages:
        message = next(messages)
        fleet.execute("DEL", fleet.lock(message.delivery.id))
        fleet.age([message.delivery.id])
        fleet.consumer()
        with pytest.raises(LeaseLost) as caught:
            message.ack()
    assert (caught.value.stream, caught.value.entry_id) == ("orders", message.id)


def test_errors_keep_their_cause() -> None:
    """Scenario B7."""
    with pytest.raises(Unavailable) as caught:
        connect(f"redis://127.0.0.1:{servers.free_port()}", timeout_s=1)
    assert isinstance(caught.value.__cause__, redis.ConnectionError)
    assert isinstance(caught.value.__cause__.__cause__ or caught.value.__cause__.__context__, OSError)


@at("broker", "valkey", "redis", "redis7")
def test_events_of_the_database_in_use_are_heard(place: Site) -> None:
    """Scenario B8."""
    elsewhere = Fleet(replace(place, url=f"{place.url}/3", _opened=[], _before=[]))
    tally = Tally()
    consumer = elsewhere.consumer(tally)
    (entry_id,) = elsewhere.abandon(1, locked=True)
    Fleet(place).execute("SET", elsewhere.lock(b"7-7"), "of database 0", "PX", 1)
    with elsewhere.listener(consumer):
        elsewhere.expire([entry_id])
        until(lambda: tally["keyspace_requeued"] == 1)
    assert tally["keyspace_notification"] == 1
    elsewhere.site.leave()


@everywhere
def test_lease_and_heartbeat_are_settings(place: Site) -> None:
    """Scenario B9."""
    fleet = Fleet(place, config=RecoveryConfig(min_idle_time=60), more={"lease": 45.0, "heartbeat": 15.0})
    consumer = fleet.consumer()
    (entry_id,) = fleet.publish(1)
    consumer.fetch(1, 0)
    assert 44_000 < fleet.execute("PTTL", fleet.lock(entry_id)) <= 45_000
    assert (consumer.settings.heartbeat_s, consumer.settings.min_idle_s) == (15.0, 60.0)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("heartbeat", {"lease": 3.0, "heartbeat": 2.0}),
        ("min_idle", {"lease": 3.0, "min_idle": 2.0}),
        ("lock_keys", {"recovery": "rfc", "lock_keys": False}),
        ("listener_timeout", {"listener_timeout": 1.0}),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(field: str, wrong: dict[str, Any]) -> None:
    """Scenario B9."""
    with pytest.raises(ConfigError, match=f"^{field}: "):
        Settings(**wrong)


@everywhere
def test_an_expiry_event_is_no_proof_of_death(place: Site) -> None:
    """Scenario B10."""
    fleet, tally = Fleet(place), Tally()
    consumer = fleet.consumer(tally)
    (entry_id,) = fleet.abandon(1, "frozen for a moment", locked=True)
    with fleet.listener(consumer):
        # the event of a lock that its owner has written again by the time it is looked at
        assert consumer.rfc.on_expired(consumer.backend, [entry_id]) == 0
        fleet.publish(1, first=1)
        (fresh,) = fleet.read_as("about to write its lock")
        assert consumer.rfc.on_expired(consumer.backend, [fresh]) == 0
    assert sorted(fleet.pending()) == [entry_id, fresh]
    assert tally["keyspace_requeued"] == tally["scan_skipped_alive"] == 0


@everywhere
def test_leases_begin_when_entries_are_read_and_not_when_they_are_taken(place: Site) -> None:
    """Scenario B11."""
    fleet = Fleet(place, config=SHORT)
    ids = fleet.publish(4)
    tally = Tally()
    thief = fleet.consumer(tally)
    with fleet.program() as program, closing(program.consume(ahead=4, wait=5)) as messages:
        message = next(messages)
        end = time.monotonic() + 1.6  # longer than a lease, and nobody asks for the next one
        while time.monotonic() < end:
            thief.maintain()
            assert all(fleet.execute("EXISTS", fleet.lock(entry_id)) for entry_id in ids)
            time.sleep(0.05)
        message.ack()
        for message in messages:
            message.ack()
            if message.id == ids[-1].decode():
                break
    assert tally["scan_requeued"] == tally["scan_skipped_alive"] == 0
    assert fleet.entries() == []


@everywhere
def test_whoever_recovers_an_entry_gets_all_of_it(place: Site) -> None:
    """Scenario B12."""
    fleet = Fleet(place)
    got: list[tuple[dict[str, str], dict[str, str], int]] = []
    with fleet.program() as producer:
        entry_id = producer.publish({"n": "1", "info": "ü"}, headers={"trace": "abc"})
    fleet.read_as("dead")
    fleet.age([entry_id.encode()])

    def keep(data: dict[str, str], message: Any) -> None:
        got.append((data, dict(message.headers), message.retry_count))

    with fleet.worker(keep):
        until(lambda: got)
    assert got == [({"n": "1", "info": "ü"}, {"trace": "abc"}, 1)]


@everywhere
def test_what_is_dropped_from_the_queue_of_events_the_next_scan_finds(
    place: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario B13."""
    fleet, tally = Fleet(place, more={"listener_queue": 1}), Tally()
    consumer = fleet.consumer(tally)
    ids = fleet.abandon(20, locked=True)
    busy = threading.Event()
    requeue = consumer.rfc.on_expired

    def slowly(*args: Any) -> Any:
        busy.wait(5)
        return requeue(*args)

    with fleet.listener(consumer) as listener:
        monkeypatch.setattr(type(consumer.rfc), "on_expired", lambda _, *args: slowly(*args))
        fleet.expire(ids)
        until(lambda: tally["keyspace_notification"] == 20)
        assert listener is not None
        busy.set()
        until(lambda: tally["keyspace_requeued"] + tally["keyspace_notification_dropped"] == 20)
    assert tally["keyspace_notification_dropped"] >= 18
    fleet.age(list(fleet.pending()))
    consumer.rfc.scan(consumer.backend)
    assert fleet.pending() == {}
    assert tally["keyspace_requeued"] + tally["scan_requeued"] == 20


@everywhere
def test_events_that_waited_too_long_are_dropped_and_counted(place: Site) -> None:
    """Scenario B13."""
    fleet, tally = Fleet(place), Tally()
    consumer = fleet.consumer(tally)
    with fleet.listener(consumer) as listener:
        listener._heard.put((time.monotonic() - 601, b"1-1"))
        until(lambda: tally["keyspace_notification_dropped"] == 1)
    assert tally["duplicate_ack"] == 0


@everywhere
def test_events_at_a_time_when_the_clock_cannot_be_believed_are_left_to_the_scan(place: Site) -> None:
    """Scenario B13."""
    fleet, tally = Fleet(place), Tally()
    consumer = fleet.consumer(tally)
    (entry_id,) = fleet.abandon(1, locked=True)
    consumer.watch.look(0, consumer.watch_ms())  # it jumped
    with fleet.listener(consumer):
        fleet.expire([entry_id])
        until(lambda: tally["keyspace_notification_dropped"] == 1)
    assert list(fleet.pending()) == [entry_id]


@everywhere
def test_locks_are_not_counted_as_recoveries_and_threads_may_count_at_once(place: Site) -> None:
    """Scenario B14."""
    fleet, registry = Fleet(place), CollectorRegistry()
    recorder = PrometheusRecorder(registry)
    labels = {"stream": "orders", "group": "g"}
    fleet.publish(30)
    with fleet.worker(lambda *_: None, recorder, concurrency=8) as program:
        until(lambda: program.audit().done == 30)
    assert registry.get_sample_value("redis_mutex_startup_recovery_total", {**labels, "success": "true"}) == 1
    assert registry.get_sample_value("millstream_leases_taken_total", {**labels, "success": "true"}) == 30
    assert registry.get_sample_value("redis_mutex_lock_release_total", {**labels, "success": "true"}) == 30
    assert registry.get_sample_value("redis_mutex_stream_processing_duration_seconds_count", labels) == 30


def test_starts_and_ends_of_many_threads_are_kept_apart() -> None:
    """Scenario B14."""
    registry = CollectorRegistry()
    recorder = PrometheusRecorder(registry).bind("s", "g")

    def handle(number: int) -> None:
        recorder.processing_start(f"{number}-0")
        recorder.processing_end(f"{number}-0")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(handle, range(2000)))
    name = "redis_mutex_stream_processing_duration_seconds_count"
    assert registry.get_sample_value(name, {"stream": "s", "group": "g"}) == 2000


@everywhere
def test_recovered_entries_have_a_start_too(place: Site) -> None:
    """Scenario B15."""
    fleet, tally = Fleet(place), Tally()
    fleet.abandon(3)
    with fleet.worker(lambda *_: None, tally) as program:
        until(lambda: program.audit().done == 3)
    assert tally["processing_start"] == tally["processing_end"] == 3
    assert tally["scan_requeued"] == 3


@at(*ONE_SERVER)
def test_a_server_set_up_for_keyevents_only_gets_the_flag_that_is_needed(place: Site) -> None:
    """Scenario B16."""
    fleet, tally = Fleet(place), Tally()
    place.configure("notify-keyspace-events", "Ex")
    consumer = fleet.consumer(tally)
    ids = fleet.abandon(1, locked=True)
    with fleet.listener(consumer):
        fleet.expire(ids)
        until(lambda: tally["keyspace_requeued"] == 1)


@everywhere
def test_a_stop_does_not_wait_for_a_heartbeat(place: Site) -> None:
    """Scenario B17."""
    fleet = Fleet(place, more={"listener": True, "block": 30.0})
    handled: list[str] = []
    with fleet.worker(lambda data, _: handled.append(data["n"])):
        fleet.publish(1)
        until(lambda: handled)
        stopped = time.monotonic()
    assert time.monotonic() - stopped < 20  # BLOCK is 30 s


@everywhere
def test_what_was_published_before_the_first_start_is_delivered(place: Site) -> None:
    """Scenario B18."""
    backend = place.connect()
    for number in range(3):
        backend.execute("XADD", "early", "*", "n", number)
    settings = RecoveryConfig().settings(listener=False)
    program: Stream[Any] = Stream("early", place.url, group="new", type=dict[str, str], fields=True, settings=settings)
    handled: list[str] = []
    program.handler(lambda data: handled.append(data["n"]))
    with program, running(program):
        until(lambda: len(handled) == 3)
    assert handled == ["0", "1", "2"]
