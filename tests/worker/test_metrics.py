"""Metrics: the names are the RFC's to the letter, each call moves its own series and no other."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterable

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from millstream.errors import ConfigError
from millstream.worker.metrics import NullRecorder, PrometheusRecorder, Recorder

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
RFC = {
    "recovery_keyspace_requeued_total",
    "recovery_scan_requeued_total",
    "recovery_scan_skipped_alive_total",
    "recovery_duplicate_ack_total",
    "recovery_dlq_total",
    "recovery_scan_duration_seconds_count",
    "pel_depth",
}


def samples(registry: CollectorRegistry) -> Samples:
    """Every sample but the buckets and the times of making."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith(("_bucket", "_created"))
    }


def moved(before: Samples, after: Samples) -> dict[str, float]:
    """What changed, by name."""
    return {key[0]: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}


CALLS: list[tuple[Callable[[Recorder], None], dict[str, float]]] = [
    (
        lambda r: r.startup_recovery(True, 7, 0.5),
        {
            "redis_mutex_startup_recovery_total": 1,
            "redis_mutex_startup_recovery_duration_seconds_count": 1,
            "redis_mutex_startup_recovery_duration_seconds_sum": 0.5,
            "millstream_startup_recovered_total": 7,
        },
    ),
    (
        lambda r: r.claim_attempt(False, 0.25),
        {
            "redis_mutex_claim_total": 1,
            "redis_mutex_claim_duration_seconds_count": 1,
            "redis_mutex_claim_duration_seconds_sum": 0.25,
        },
    ),
    (lambda r: r.lock_acquisition(True, 0.1), {"millstream_leases_taken_total": 1}),
    (lambda r: r.lock_extension(True, 500), {"redis_mutex_lock_extension_total": 500}),
    (lambda r: r.lock_release(True), {"redis_mutex_lock_release_total": 1}),
    (lambda r: r.keyspace_notification(), {"redis_mutex_ksp_notification_total": 1}),
    (lambda r: r.keyspace_notification_dropped(), {"redis_mutex_ksp_notification_dropped_total": 1}),
    (lambda r: r.keyspace_requeued(), {"recovery_keyspace_requeued_total": 1}),
    (lambda r: r.scan_requeued(3), {"recovery_scan_requeued_total": 3}),
    (lambda r: r.scan_skipped_alive(2), {"recovery_scan_skipped_alive_total": 2}),
    (lambda r: r.duplicate_ack(), {"recovery_duplicate_ack_total": 1}),
    (lambda r: r.dlq(), {"recovery_dlq_total": 1}),
    (
        lambda r: r.scan_duration(2.0),
        {"recovery_scan_duration_seconds_count": 1, "recovery_scan_duration_seconds_sum": 2},
    ),
    (lambda r: r.pel_depth(12), {"pel_depth": 12}),
    (lambda r: r.published(4), {"millstream_published_total": 4}),
    (lambda r: r.delivered(5), {"millstream_delivered_total": 5}),
    (lambda r: r.settled("ack", 5), {"millstream_settled_total": 5}),
    (lambda r: r.handled("ack", 1.5), {"millstream_handler_seconds_count": 1, "millstream_handler_seconds_sum": 1.5}),
    (lambda r: r.lease_lost(), {"millstream_leases_lost_total": 1}),
    (lambda r: r.recovered(200), {"millstream_recovered_total": 200}),
    (lambda r: r.dead("retries"), {"millstream_dead_letters_total": 1}),
    (lambda r: r.discarded("retries"), {"millstream_discarded_total": 1}),
    (lambda r: r.trimmed(), {"recovery_trimmed_total": 1}),
    (lambda r: r.delayed_depth(3), {"millstream_delayed": 3}),
    (lambda r: r.lag(9), {"millstream_lag": 9}),
    (lambda r: r.in_progress(2), {"millstream_in_progress": 2}),
    (lambda r: r.breaker(True), {"millstream_breaker_open": 1}),
]


@pytest.mark.parametrize(("call", "expected"), CALLS)
def test_a_call_moves_its_own_series_and_no_other(call: Callable[[Recorder], None], expected: dict[str, float]) -> None:
    registry = CollectorRegistry()
    recorder = PrometheusRecorder(registry).bind("orders", "billing")
    before = samples(registry)
    call(recorder)
    assert moved(before, samples(registry)) == expected


def test_processing_is_measured_from_start_to_end() -> None:
    registry, times = CollectorRegistry(), iter([10.0, 11.0, 15.0])
    recorder = PrometheusRecorder(registry, now_s=lambda: next(times)).bind("orders", "billing")
    before = samples(registry)
    recorder.processing_start("1-0")
    recorder.processing_start("2-0")
    recorder.processing_end("1-0")
    recorder.processing_end("9-9")  # never begun: nothing to measure
    assert moved(before, samples(registry)) == {
        "redis_mutex_stream_processing_duration_seconds_count": 1,
        "redis_mutex_stream_processing_duration_seconds_sum": 5,
    }


def test_the_same_id_in_two_streams_is_two_handlings() -> None:
    registry, times = CollectorRegistry(), iter([0.0, 100.0, 101.0, 104.0])
    recorder = PrometheusRecorder(registry, now_s=lambda: next(times))
    one, two = recorder.bind("a", "g"), recorder.bind("b", "g")
    one.processing_start("1-0")
    two.processing_start("1-0")
    one.processing_end("1-0")
    two.processing_end("1-0")
    name = "redis_mutex_stream_processing_duration_seconds_sum"
    assert samples(registry)[name, (("group", "g"), ("stream", "a"))] == 101
    assert samples(registry)[name, (("group", "g"), ("stream", "b"))] == 4


def test_the_rfcs_series_are_there_at_zero_as_soon_as_a_stream_is_bound() -> None:
    registry = CollectorRegistry()
    PrometheusRecorder(registry).bind("orders", "billing")
    at = (("group", "billing"), ("stream", "orders"))
    assert {name for (name, labels), value in samples(registry).items() if labels == at and value == 0} >= RFC


def test_what_is_scraped_has_the_names_to_the_letter() -> None:
    registry = CollectorRegistry()
    recorder = PrometheusRecorder(registry).bind("orders", "billing")
    for call, _ in CALLS:
        call(recorder)
    text = generate_latest(registry).decode()
    for name in RFC | {
        "redis_mutex_claim_total",
        "redis_mutex_claim_duration_seconds_count",
        "redis_mutex_lock_extension_total",
        "redis_mutex_lock_release_total",
        "redis_mutex_startup_recovery_total",
        "redis_mutex_ksp_notification_total",
        "redis_mutex_startup_recovery_duration_seconds_count",
        "redis_mutex_stream_processing_duration_seconds_count",
        "redis_mutex_ksp_notification_dropped_total",
    }:
        assert f'\n{name}{{group="billing",stream="orders"' in text, name


def test_streams_are_counted_apart() -> None:
    registry = CollectorRegistry()
    recorder = PrometheusRecorder(registry)
    recorder.bind("a", "g").delivered(1)
    recorder.bind("b", "g").delivered(2)
    recorder.bind("b", "g").delivered(3)
    counted = {
        dict(labels)["stream"]: value
        for (name, labels), value in samples(registry).items()
        if name == "millstream_delivered_total"
    }
    assert counted == {"a": 1, "b": 5}


def test_two_recorders_may_share_a_registry() -> None:
    registry = CollectorRegistry()
    for _ in range(2):
        PrometheusRecorder(registry).bind("a", "g").dlq()
    assert samples(registry)["recovery_dlq_total", (("group", "g"), ("stream", "a"))] == 2


def test_the_process_has_one_registry_by_default() -> None:
    PrometheusRecorder().bind("default-registry", "g")
    PrometheusRecorder().bind("default-registry", "g")


def test_threads_lose_no_counts() -> None:
    registry = CollectorRegistry()
    recorder = PrometheusRecorder(registry).bind("a", "g")

    def work(number: int) -> None:
        for turn in range(500):
            recorder.processing_start(f"{number}-{turn}")
            recorder.settled("ack")
            recorder.processing_end(f"{number}-{turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    after = samples(registry)
    assert after["millstream_settled_total", (("group", "g"), ("outcome", "ack"), ("stream", "a"))] == 4000
    assert after["redis_mutex_stream_processing_duration_seconds_count", (("group", "g"), ("stream", "a"))] == 4000


def test_without_the_package_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match="prometheus-client is not installed"):
        PrometheusRecorder(CollectorRegistry())


def hooks(kind: type) -> Iterable[tuple[str, list[str]]]:
    members = inspect.getmembers(kind, inspect.isfunction)
    return [(name, list(inspect.signature(f).parameters)) for name, f in members if not name.startswith("_")]


@pytest.mark.parametrize("kind", [NullRecorder, PrometheusRecorder])
def test_every_recorder_has_every_hook(kind: type) -> None:
    assert hooks(kind) == hooks(Recorder)


def test_the_null_recorder_takes_everything() -> None:
    recorder = NullRecorder().bind("a", "g")
    for call, _ in CALLS:
        call(recorder)
