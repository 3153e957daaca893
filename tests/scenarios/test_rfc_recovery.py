"""The RFC's recovery, scenarios C1 to C18 and C23 to C28: what becomes of entries whose consumer is slow, dead or gone.

The cluster's own scenarios, C19 to C22, are in test_rfc_recovery_cluster.py.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from millstream.delivery.config.settings import RecoveryConfig
from millstream.delivery.consumer import Consumer
from millstream.delivery.policy import Backoff
from millstream.delivery.rfc import RfcRecovery
from millstream.delivery.server_clock import ServerWatch
from millstream.delivery.settlement import Discard
from millstream.errors import Unavailable
from millstream.worker.metrics import PrometheusRecorder
from millstream.worker.runtime.listener import id_of_event
from millstream.worker.stream import Stream
from tests.scenarios.fleet import EVERYWHERE, ONE_SERVER, Fleet, Tally, at, everywhere, few, finish, running, until
from tests.support.places import Site

SHORT = RecoveryConfig(min_idle_time=1.0, reconciliation_interval=0.2)


class Recording:
    """A backend that keeps what was sent, and fails when it is told to."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.capabilities, self.is_cluster = backend.capabilities, backend.is_cluster
        self.sent: list[tuple[Any, ...]] = []
        self.failures = 0

    def run(self, call: Any) -> Any:
        self.sent.append(call.argv)
        if self.failures:
            self.failures -= 1
            raise Unavailable("cut")
        return self.backend.run(call)

    def count(self, command: str) -> int:
        return sum(argv[0] == command for argv in self.sent)


def recording(fleet: Fleet, recorder: Tally, watch_ms: Any = None) -> tuple[Consumer, Recording]:
    backend = Recording(fleet.site.connect())
    watch = watch_ms or (lambda: time.monotonic_ns() // 1_000_000)
    consumer = Consumer(backend, b"orders", b"g", b"me", fleet.settings, watch, recorder)  # type: ignore[arg-type]
    return consumer, backend


@at("valkey")
def test_by_default_a_dead_owners_entry_is_requeued_by_its_event_within_seconds(place: Site) -> None:
    """RecoveryConfig as it is: the lock's lifetime is seconds, while the scan waits for half a minute of idle time."""
    fleet, tally = Fleet(place, more={"listener": True, "block": 5.0}), Tally()
    (entry_id,) = fleet.publish(1)
    assert len(fleet.consumer(name=b"dying").fetch(1, 0)) == 1
    lifetime_ms = fleet.execute("PTTL", fleet.lock(entry_id))
    assert 0 < lifetime_ms <= 5_000
    handled: list[int] = []
    taken = time.monotonic()
    with fleet.worker(lambda data, message: handled.append(message.retry_count), tally):
        until(lambda: handled, seconds=20)
    assert handled == [1]
    assert (tally["keyspace_requeued"], tally["scan_requeued"]) == (1, 0)
    assert time.monotonic() - taken < 15  # about 5 s; 28 s when the lock lived as long as the idle time


@everywhere
def test_a_slow_owner_whose_lock_lives_is_skipped_and_counted_alive(place: Site) -> None:
    """Scenario C1."""
    fleet, tally = Fleet(place), Tally()
    ids = fleet.abandon(3, "slow", locked=True)
    fleet.consumer(tally)
    assert fleet.pending() == dict.fromkeys(ids, b"slow")
    assert tally["scan_skipped_alive"] == 3
    assert tally["scan_requeued"] == tally["duplicate_ack"] == 0


@everywhere
def test_a_dead_owners_entry_is_requeued_by_the_scan_after_the_idle_time(place: Site) -> None:
    """Scenario C2."""
    fleet, tally = Fleet(place), Tally()
    (old,) = fleet.abandon(1)
    consumer = fleet.consumer(tally)
    assert tally["scan_requeued"] == 1
    assert fleet.pending() == {}
    (delivery,) = consumer.fetch(10, 0)
    assert delivery.id != old
    assert dict(delivery.fields) == {b"n": b"0", b"_retry_count": b"1", b"_original_id": old}
    finish(consumer, [delivery])
    assert fleet.entries() == []


@at(*EVERYWHERE, "unix", "sentinel")
def test_a_dead_owners_entry_is_requeued_by_the_event_at_once(place: Site) -> None:
    """Scenario C3."""
    fleet, tally = Fleet(place), Tally()
    consumer = fleet.consumer(tally)
    (entry_id,) = fleet.abandon(1, locked=True)
    fleet.age([entry_id], 1000)  # too young for any scan
    with fleet.listener(consumer):
        fleet.expire([entry_id])
        until(lambda: tally["keyspace_requeued"] == 1)
    (delivery,) = consumer.fetch(1, 0)
    assert consumer.original_id(delivery) == entry_id
    assert tally["keyspace_notification"] == 1


@everywhere
def test_of_many_who_recover_one_requeues_and_the_others_are_counted_duplicates(place: Site) -> None:
    """Scenario C4."""
    fleet, tally = Fleet(place), Tally()
    ids = fleet.abandon(1)
    consumers = [fleet.consumer(tally, opened=False) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda each: each.rfc.on_expired(each.backend, ids), consumers))
    assert sorted(done) == [0] * 7 + [1]
    assert (tally["keyspace_requeued"], tally["duplicate_ack"]) == (1, 7)
    assert len(fleet.entries()) == 1


@everywhere
def test_the_counter_goes_1_2_3_and_the_fourth_death_makes_a_dead_letter(place: Site) -> None:
    """Scenario C5."""
    fleet, tally = Fleet(place), Tally()
    consumer = fleet.consumer(tally)
    (first,) = fleet.publish(1)
    counts = []
    for _ in range(4):
        (entry_id,) = fleet.read_as("dying")
        counts.append(dict(fleet.entries())[entry_id].get(b"_retry_count"))
        fleet.age([entry_id])
        consumer.rfc.scan(consumer.backend)
    assert counts == [None, b"1", b"2", b"3"]
    assert fleet.entries() == []
    (letter,) = fleet.dead()
    assert (letter[b"n"], letter[b"_retry_count"], letter[b"_original_id"]) == (b"0", b"3", first)
    assert (tally["scan_requeued"], tally["dlq"], tally["dead:retries"]) == (3, 1, 1)


@everywhere
def test_a_handler_that_fails_four_times_goes_the_same_way(place: Site) -> None:
    """Scenario C5."""
    fleet, tally = Fleet(place, config=RecoveryConfig(min_idle_time=5.0)), Tally()
    seen: list[tuple[int, int]] = []

    def fail(_: Any, message: Any) -> None:
        seen.append((message.attempt, message.retry_count))
        raise ValueError("no")

    fleet.more["backoff"] = Backoff(0.01, cap=0.02)
    with fleet.worker(fail, tally) as program:
        fleet.publish(1)
        until(lambda: program.dead.count() == 1)
        (letter,) = program.dead.list()
    assert seen == [(1, 0), (2, 1), (3, 2), (4, 3)]
    assert letter.attempts == 4
    assert tally["dlq"] == 1


@everywhere
def test_the_original_id_stays_the_first_one_over_three_requeues(place: Site) -> None:
    """Scenario C6."""
    fleet = Fleet(place)
    consumer = fleet.consumer()
    (first,) = fleet.publish(1)
    seen = []
    for _ in range(3):
        ids = fleet.read_as("dying")
        fleet.age(ids)
        consumer.rfc.scan(consumer.backend)
        ((_, fields),) = fleet.entries()
        seen.append(fields[b"_original_id"])
    assert seen == [first] * 3


@everywhere
def test_the_prefix_of_the_fields_is_a_setting(place: Site) -> None:
    """Scenario C7."""
    fleet = Fleet(place, config=RecoveryConfig(field_prefix="x-"))
    (first,) = fleet.abandon(1)
    fleet.consumer()
    ((_, fields),) = fleet.entries()
    assert fields == {b"n": b"0", b"x-retry_count": b"1", b"x-original_id": first}


@everywhere
def test_a_users_fields_are_kept_byte_for_byte_and_in_order(place: Site) -> None:
    """Scenario C8."""
    fleet = Fleet(place)
    words = [b"b", b"\x00\xff\r\n", b"a", b"", b"b", b"again", b"", b"empty name", "ü".encode(), b"x" * 5000]
    entry_id = fleet.execute("XADD", fleet.stream, "*", *words)
    fleet.read_as("dead")
    fleet.age([entry_id])
    consumer = fleet.consumer()
    (delivery,) = consumer.fetch(1, 0)
    flat = [word for pair in delivery.fields for word in pair]
    assert flat == [*words, b"_retry_count", b"1", b"_original_id", entry_id]


@everywhere
@pytest.mark.parametrize(("given", "name"), [(None, "{orders}:dlq"), ("{stream}:gone", "{orders}:gone")])
def test_dead_letters_go_to_the_usual_stream_or_the_one_of_ones_choice(
    place: Site, given: str | None, name: str
) -> None:
    """Scenario C9."""
    config = RecoveryConfig(max_retries=0, **({} if given is None else {"dlq_stream": given}))
    fleet = Fleet(place, config=config)
    fleet.abandon(2)
    fleet.consumer()
    assert len(fleet.entries(name)) == 2
    assert fleet.entries() == []


@at(*ONE_SERVER)
def test_a_dead_letter_stream_without_a_tag_works_where_there_is_no_cluster(place: Site) -> None:
    """Scenario C9."""
    fleet = Fleet(place, config=RecoveryConfig(max_retries=0, dlq_stream="graveyard"))
    fleet.abandon(1)
    fleet.consumer()
    assert len(fleet.entries("graveyard")) == 1


@everywhere
def test_without_dead_letters_what_is_given_up_is_logged_dropped_and_counted(
    place: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario C10."""
    fleet, tally = Fleet(place, config=RecoveryConfig(max_retries=0, dlq_stream=Discard)), Tally()
    (entry_id,) = fleet.abandon(1)
    fleet.consumer(tally)
    assert fleet.entries() == fleet.dead() == []
    assert fleet.pending() == {}
    assert (tally["dlq"], tally["discarded:retries"]) == (1, 1)
    assert any(entry_id.decode() in line and "dropped" in line for line in caplog.messages)
    audit = fleet.program().audit()
    assert (audit.discarded, audit.balanced) == (1, True)


@everywhere
def test_the_scan_at_the_start_comes_before_the_first_new_entry(place: Site) -> None:
    """Scenario C11."""
    fleet = Fleet(place)
    fleet.abandon(2)
    fleet.publish(2, first=2)
    consumer, backend = recording(fleet, Tally())
    consumer.open()
    assert backend.count("XREADGROUP") == 0
    assert fleet.pending() == {}
    found = consumer.fetch(10, 0)
    assert [delivery.by_name[b"n"] for delivery in found] == [b"2", b"3", b"0", b"1"]  # copies stand at the end


def test_the_interval_between_scans_is_kept_and_has_jitter() -> None:
    """Scenario C12."""
    settings = RecoveryConfig(reconciliation_interval=60).settings()
    made = RfcRecovery(None, settings, Tally(), ServerWatch(1, 1), lambda: 0, random.Random(7))  # type: ignore[arg-type]
    drawn = [made.next_interval_ms() for _ in range(1000)]
    assert 54_000 <= min(drawn) < 55_000
    assert 65_000 < max(drawn) <= 66_000
    assert len(set(drawn)) > 500


@everywhere
def test_a_scan_comes_when_its_time_has_come_and_not_before(place: Site) -> None:
    """Scenario C12."""
    fleet, tally = Fleet(place), Tally()
    now = [1_000_000]
    consumer, _ = recording(fleet, tally, lambda: now[0])
    consumer.open()
    ids = fleet.abandon(1)
    started = now[0]
    for _ in range(200):
        consumer.watch._offset_ms = None  # this test's watch does not run as the server's does
        consumer.maintain()
        if not fleet.pending():
            break
        now[0] += 500
    assert 53_500 <= now[0] - started <= 66_500
    assert fleet.pending() == {}
    assert [fields[b"_original_id"] for _, fields in fleet.entries()] == ids


@everywhere
def test_a_call_looks_at_as_many_as_the_batch_and_the_scan_goes_on_to_the_end(place: Site) -> None:
    """Scenario C13."""
    fleet, tally = Fleet(place, config=RecoveryConfig(batch_size=10)), Tally()
    consumer, backend = recording(fleet, tally)
    consumer.open()
    fleet.abandon(35)
    backend.sent.clear()
    turns = 1
    while consumer.rfc.walk(backend):
        turns += 1
    assert turns == 4
    pages = [argv for argv in backend.sent if argv[0] == "XPENDING"]
    assert [argv[-1] for argv in pages] == [10] * 4
    assert tally["scan_requeued"] == 35


@everywhere
def test_living_entries_at_the_head_do_not_hide_dead_ones_behind_them(place: Site) -> None:
    """Scenario C13."""
    fleet, tally = Fleet(place, config=RecoveryConfig(batch_size=10)), Tally()
    fleet.abandon(50, "slow", locked=True)
    fleet.abandon(10, "dead")
    fleet.consumer(tally)
    assert (tally["scan_requeued"], tally["scan_skipped_alive"]) == (10, 50)


@everywhere
def test_the_idle_time_is_kept_to_within_a_heartbeat(place: Site) -> None:
    """Scenario C14."""
    fleet, tally = Fleet(place, config=RecoveryConfig(min_idle_time=1.5, reconciliation_interval=0.02)), Tally()
    consumer = fleet.consumer(tally)
    fleet.publish(1)
    asked = time.monotonic()
    fleet.read_as("dead")
    delivered = time.monotonic()
    until(lambda: consumer.maintain() and tally["scan_requeued"])
    assert time.monotonic() - asked >= 1.5
    assert time.monotonic() - delivered <= 1.5 + 20 * consumer.settings.heartbeat_s


@everywhere
def test_a_delivery_has_the_lock_key_of_the_rfc_with_the_consumers_id(place: Site) -> None:
    """Scenario C15."""
    fleet = Fleet(place)
    consumer = fleet.consumer()
    ids = fleet.publish(2)
    deliveries = consumer.fetch(10, 0)
    for entry_id in ids:
        key = b"lock:{orders}:" + entry_id
        assert fleet.execute("GET", key) == consumer.name
        assert 0 < fleet.execute("PTTL", key) <= 5_000
    finish(consumer, deliveries[:1])
    assert [fleet.execute("EXISTS", fleet.lock(entry_id)) for entry_id in ids] == [0, 1]


@everywhere
def test_nothing_happens_for_a_lock_whose_entry_is_no_longer_pending(place: Site) -> None:
    """Scenario C16."""
    fleet, tally = Fleet(place), Tally()
    consumer = fleet.consumer(tally)
    (entry_id,) = fleet.publish(1)
    (delivery,) = consumer.fetch(1, 0)
    finish(consumer, [delivery])
    fleet.execute("SET", fleet.lock(entry_id), "left behind", "PX", 60_000)
    assert consumer.rfc.scan(consumer.backend).seen == 0
    with fleet.listener(consumer):
        fleet.expire([entry_id])
        until(lambda: tally["duplicate_ack"] == 1)
    assert fleet.entries() == fleet.dead() == []
    assert tally["scan_requeued"] == tally["keyspace_requeued"] == 0


@everywhere
def test_an_entry_whose_consumer_died_before_it_wrote_the_lock_is_recovered(place: Site) -> None:
    """Scenario C17."""
    fleet, tally = Fleet(place, config=SHORT), Tally()
    fleet.publish(1)
    fleet.read_as("died between the read and the lock")
    consumer = fleet.consumer(tally)
    assert tally["scan_requeued"] == 0, "it was young"
    until(lambda: consumer.maintain() is not None and tally["scan_requeued"] == 1)
    (delivery,) = consumer.fetch(1, 0)
    assert delivery.by_name[b"n"] == b"0"


@everywhere
@pytest.mark.parametrize("keeps", [True, False], ids=["dead letters", "discarding"])
def test_an_entry_that_was_trimmed_is_reported(place: Site, caplog: pytest.LogCaptureFixture, keeps: bool) -> None:
    """Scenario C18."""
    fleet = Fleet(place, config=RecoveryConfig(**({} if keeps else {"dlq_stream": Discard})))
    tally = Tally()
    gone, kept = fleet.abandon(2)
    fleet.execute("XDEL", fleet.stream, gone)
    fleet.consumer(tally)
    assert (tally["trimmed"], tally["scan_requeued"]) == (1, 1)
    assert fleet.pending() == {}
    assert any(gone.decode() in line and "trimmed" in line for line in caplog.messages)
    if keeps:
        (tombstone,) = fleet.dead()
        assert (tombstone[b"_original_id"], tombstone[b"_reason"], tombstone[b"_attempts"]) == (gone, b"trimmed", b"1")
    assert [fields[b"_original_id"] for _, fields in fleet.entries()] == [kept]
    assert fleet.program().audit().balanced


@everywhere
def test_the_seven_metrics_move_as_the_rfc_says(place: Site) -> None:
    """Scenario C23."""
    fleet, registry = Fleet(place), CollectorRegistry()
    recorder = PrometheusRecorder(registry)

    def value(name: str) -> float:
        return registry.get_sample_value(name, {"stream": "orders", "group": "g"}) or 0.0

    fleet.abandon(2)  # requeued
    fleet.abandon(3, "slow", locked=True)
    for number in range(4):  # beyond their retries
        entry_id = fleet.execute("XADD", fleet.stream, "*", "n", number, "_retry_count", 3)
        fleet.read_as("dead")
        fleet.age([entry_id])
    consumer = fleet.consumer(recorder)
    assert value("recovery_scan_requeued_total") == 2
    assert value("recovery_scan_skipped_alive_total") == 3
    assert value("recovery_dlq_total") == 4
    assert value("recovery_scan_duration_seconds_count") == 1
    assert value("recovery_duplicate_ack_total") == value("recovery_keyspace_requeued_total") == 0
    slow = list(fleet.pending())
    fleet.execute("DEL", fleet.lock(slow[0]))
    consumer.rfc.on_expired(consumer.backend, slow[:1])
    consumer.rfc.on_expired(consumer.backend, slow[:1])
    assert value("recovery_keyspace_requeued_total") == 1
    assert value("recovery_duplicate_ack_total") == 1
    consumer.maintain()
    assert value("pel_depth") == 2


@everywhere
def test_an_error_in_a_scan_leaves_the_loop_alive(place: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Scenario C24."""
    fleet, tally = Fleet(place, config=RecoveryConfig(reconciliation_interval=0.001)), Tally()
    consumer, backend = recording(fleet, tally)
    fleet.abandon(1)
    consumer.backend.run(consumer.steps.create_group("0"))
    backend.failures = 1
    assert not consumer.rfc.scan(backend).is_whole
    assert any("ended early" in line for line in caplog.messages)
    assert not consumer.rfc.walk(backend)
    assert tally["scan_requeued"] == 1
    assert tally["scan_duration"] == 2


@at("broker", "valkey", "redis", "redis7")
def test_a_worker_goes_on_after_its_server_was_away(place: Site) -> None:
    """Scenario C24."""
    fleet, tally = Fleet(place, config=SHORT), Tally()
    handled: list[str] = []
    with fleet.worker(lambda data, _: handled.append(data["n"]), tally):
        until(lambda: tally["scan_duration"] > 1)
        fleet.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        before = tally["scan_duration"]
        fleet.publish(1)
        until(lambda: handled == ["0"])
        until(lambda: tally["scan_duration"] > before)


@everywhere
def test_twenty_scanners_and_ten_stuck_entries_make_ten_requeues(place: Site) -> None:
    """Scenario C25."""
    fleet, tally = Fleet(place), Tally()
    ids = fleet.abandon(10)
    scanners = [fleet.consumer(tally, opened=False) for _ in range(20)]
    gate = threading.Barrier(20)

    def scan(consumer: Consumer) -> int:
        gate.wait()
        return int(consumer.rfc.scan(consumer.backend).recovered)

    with ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(scan, scanners)) == 10
    assert tally["scan_requeued"] == 10
    assert sorted(fields[b"_original_id"] for _, fields in fleet.entries()) == sorted(ids)


@everywhere
def test_when_listener_and_scan_race_there_is_one_requeue(place: Site) -> None:
    """Scenario C26."""
    fleet, tally = Fleet(place), Tally()
    ids = fleet.abandon(20)
    scanner, nudged = fleet.consumer(tally, opened=False), fleet.consumer(tally, opened=False)
    gate = threading.Barrier(2)

    def scan() -> None:
        gate.wait()
        scanner.rfc.scan(scanner.backend)

    def hear() -> None:
        gate.wait()
        for entry_id in ids:
            nudged.rfc.on_expired(nudged.backend, [entry_id])

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(scan), pool.submit(hear)]:
            done.result()
    assert tally["scan_requeued"] + tally["keyspace_requeued"] == 20
    assert sorted(fields[b"_original_id"] for _, fields in fleet.entries()) == sorted(ids)


@at("broker", "valkey", "redis", "redis7")
def test_where_notifications_are_off_and_stay_off_the_scan_recovers(
    place: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario C27."""
    fleet, tally = Fleet(place, config=SHORT, more={"listener": True}), Tally()
    place.configure("notify-keyspace-events", "")
    fleet.execute("ACL", "SETUSER", "modest", "on", ">pw", "~*", "&*", "+@all", "-config")
    url = place.url.replace("redis://", "redis://modest:pw@")
    fleet.publish(1)
    fleet.read_as("dead")
    handled: list[str] = []
    program: Stream[Any] = Stream(
        "orders", url, group="g", type=dict[str, str], fields=True, settings=fleet.settings, recorder=tally
    )
    program.handler(lambda data: handled.append(data["n"]))
    with program, running(program):
        until(lambda: handled == ["0"])
    assert fleet.execute("CONFIG", "GET", "notify-keyspace-events")[1] == b""
    assert (tally["scan_requeued"], tally["keyspace_notification"]) == (1, 0)
    assert any("cannot be switched on" in line for line in caplog.messages)
    fleet.execute("ACL", "DELUSER", "modest")


@everywhere
def test_events_other_than_expiry_are_ignored(place: Site) -> None:
    """Scenario C28."""
    fleet, tally = Fleet(place), Tally()
    consumer = fleet.consumer(tally)
    ids = fleet.abandon(3, locked=True)
    place.configure("notify-keyspace-events", "KA")
    with fleet.listener(consumer):
        fleet.execute("DEL", fleet.lock(ids[0]))
        fleet.execute("SET", fleet.lock(ids[1]), "again", "PX", 60_000)
        fleet.execute("SET", "lock:{orders}:no-id", "x", "PX", 1)
        fleet.execute("SET", b"lock:{orders}:" + ids[1] + b":more", "x", "PX", 1)
        fleet.expire([ids[2]])  # a true one, behind all the others
        until(lambda: tally["keyspace_requeued"] == 1)
    assert tally["keyspace_notification"] == 1
    assert list(fleet.pending()) == ids[:2]


def test_only_an_expiry_of_a_lock_of_this_stream_has_an_id() -> None:
    """Scenario C28."""
    base = b"lock:{orders}:"
    event = {"type": "pmessage", "data": b"expired", "channel": b"__keyspace@0__:lock:{orders}:1-2"}
    assert id_of_event(event, base) == b"1-2"
    for name, value in (
        ("data", b"del"),
        ("data", 1),
        ("type", "message"),
        ("channel", b"__keyspace@0__:lock:{order}:1-2"),
        ("channel", b"__keyevent@0__:lock:{orders}:1-2"),
        ("channel", b"__keyspace@0__:lock:{orders}:1-2\n"),
    ):
        assert id_of_event({**event, name: value}, base) is None


# A fleet of both kinds


@everywhere
def test_a_consumer_of_the_rfc_leaves_what_a_slow_worker_of_ours_has(place: Site) -> None:
    fleet = Fleet(place)
    ours, go = fleet.consumer(), fleet.go()
    fleet.publish(2)
    deliveries = ours.fetch(10, 0)
    fleet.age([delivery.id for delivery in deliveries])  # slow: only the lock says that it lives
    assert go.scan() == 0
    assert go.skipped_alive == 2
    finish(ours, deliveries)


@everywhere
def test_a_worker_of_ours_leaves_what_a_slow_consumer_of_the_rfc_has(place: Site) -> None:
    fleet, tally = Fleet(place), Tally()
    go = fleet.go(lock_ms=60_000)
    fleet.publish(2)
    ids = [entry_id for entry_id, _ in go.read()]
    fleet.age(ids)
    ours = fleet.consumer(tally)
    assert tally["scan_skipped_alive"] == 2
    assert ours.fetch(10, 0) == []
    assert all(go.done(entry_id) for entry_id in ids)


@everywhere
def test_what_either_kind_leaves_behind_the_other_takes_with_the_counter_going_on(place: Site) -> None:
    fleet = Fleet(place)
    ours, go = fleet.consumer(), fleet.go()
    (first,) = fleet.publish(1)
    counts = []
    for _ in range(2):
        (delivery,) = ours.fetch(1, 0)  # ours dies …
        counts.append(ours.retry_count(delivery))
        fleet.expire([delivery.id], 1)
        until(lambda entry_id=delivery.id: not fleet.execute("EXISTS", fleet.lock(entry_id)))
        fleet.age([delivery.id])
        assert go.scan() == 1  # … theirs recovers, takes it, dies …
        ((entry_id, fields),) = go.read()
        counts.append(int(fields[b"_retry_count"]))
        assert fields[b"_original_id"] == first
        fleet.execute("DEL", fleet.lock(entry_id))
        fleet.age([entry_id])
        if counts[-1] < 3:
            assert ours.rfc.scan(ours.backend).recovered == 1  # … and ours recovers
    assert counts == [0, 1, 2, 3]
    ours.rfc.scan(ours.backend)
    (letter,) = fleet.dead()
    assert (letter[b"_retry_count"], letter[b"_original_id"]) == (b"3", first)


@few
def test_a_dead_letter_of_the_rfcs_consumer_can_be_listed_and_redriven(place: Site) -> None:
    fleet = Fleet(place)
    go = fleet.go(max_retries=0)
    (entry_id,) = fleet.abandon(1)
    assert go.scan() == 1
    program = fleet.program()
    (letter,) = program.dead.list()
    assert letter.original_id == entry_id.decode()
    program.dead.redrive()
    (delivery,) = fleet.consumer().fetch(1, 0)
    assert delivery.by_name[b"n"] == b"0"
    program.close()


@few
def test_two_fleets_share_the_work_and_nothing_is_lost_or_done_twice(place: Site) -> None:
    fleet = Fleet(place, config=RecoveryConfig(min_idle_time=2.0, reconciliation_interval=0.3))
    done: list[str] = []
    with fleet.worker(lambda data, _: done.append(data["n"])):
        go = fleet.go(min_idle_ms=2000)
        fleet.publish(200)
        while len(done) < 200:
            for entry_id, fields in go.read(5):
                assert go.done(entry_id)
                done.append(fields[b"n"].decode())
            go.scan()
            time.sleep(0.005)
        until(lambda: not fleet.pending())
    assert sorted(done, key=int) == [str(n) for n in range(200)]
    assert go.duplicates == 0
