"""Every documented series moves in default mode, and gauges move back; some move with the RFC profile only."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from millstream import Breaker, Discard, Message
from millstream.delivery import consumer
from millstream.worker.metrics import COUNTERS, GAUGES, HISTOGRAMS, PrometheusRecorder
from tests.worker.test_stream import MakeStream, running, until

RFC_ONLY = {
    "recovery_keyspace_requeued_total",
    "recovery_scan_skipped_alive_total",
    "redis_mutex_startup_recovery_total",
    "redis_mutex_startup_recovery_duration_seconds",
    "redis_mutex_ksp_notification_total",
    "redis_mutex_ksp_notification_dropped_total",
    "millstream_startup_recovered_total",
}


class Seen:
    """The largest value of each series so far, and what it is now."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.most: dict[str, float] = {}

    def now(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for family in self._registry.collect():
            for sample in family.samples:
                if not sample.name.endswith(("_created", "_bucket", "_sum")):
                    name = sample.name.removesuffix("_count")
                    found[name] = found.get(name, 0) + sample.value
        for name, value in found.items():
            self.most[name] = max(value, self.most.get(name, 0))
        return found

    def unmoved(self) -> set[str]:
        self.now()
        documented = (COUNTERS | HISTOGRAMS | GAUGES).keys() - RFC_ONLY
        return {name for name in documented if not self.most.get(name)}


def test_every_documented_series_moves_and_gauges_move_back(
    make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "DEPTH_EVERY_MS", 50)  # 10 s otherwise
    registry = CollectorRegistry()
    recorder, seen = PrometheusRecorder(registry), Seen(registry)
    breaker = Breaker(share=0.01, least=1, pause=0.5)
    stream = make_stream(recorder=recorder, breaker=breaker, max_retries=0, reconcile_every=0.5)
    dropping = make_stream("dropping", recorder=recorder, dead_letter=Discard, max_retries=0, breaker=None)
    entered, go_on = threading.Event(), threading.Event()

    @stream.handler
    def handle(data: dict[str, Any], message: Message[Any]) -> None:
        match data["do"]:
            case "fail":
                raise ValueError("no")
            case "wait":
                entered.set()
                assert go_on.wait(30)
            case "lose" if message.attempt == 1:
                stream.backend.execute("XCLAIM", "orders", "billing", "thief", 0, message.id)

    @dropping.handler
    def drop(_: Any) -> None:
        raise ValueError("no")

    with left_by_the_dead(stream), running(stream), running(dropping):
        stream.publish({"do": "wait"})
        stream.publish_many([{"do": "nothing"}] * 5)
        stream.publish({"do": "nothing"}, delay=3)
        dropping.publish({})
        assert entered.wait(30)
        assert seen.now()["millstream_in_progress"] == 1
        held = {"millstream_delayed", "millstream_lag", "pel_depth", "redis_mutex_lock_extension_total"}
        until(lambda: not held & seen.unmoved(), 30)
        go_on.set()
        stream.publish({"do": "lose"})
        until(lambda: seen.now()["millstream_leases_lost_total"] >= 1, 30)
        stream.publish({"do": "fail"})
        until(lambda: seen.now()["millstream_breaker_open"] == 1, 30)
        until(lambda: seen.now()["millstream_breaker_open"] == 0, 30)
        until(lambda: stream.audit().pending == stream.audit().undelivered == 0, 30)
    assert seen.unmoved() == set()
    now = seen.now()
    assert {name: now[name] for name in GAUGES} == dict.fromkeys(GAUGES, 0)


class left_by_the_dead:
    """Before a worker starts: a dead consumer holds one entry and one that was trimmed away, others wait."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        backend = self._stream.backend
        backend.execute("XGROUP", "CREATE", "orders", "billing", "0", "MKSTREAM")
        ids = self._stream.publish_many([{"do": "nothing"}, {"do": "nothing"}])
        backend.execute("XREADGROUP", "GROUP", "billing", "dead", "COUNT", 2, "STREAMS", "orders", ">", key="orders")
        backend.execute("XDEL", "orders", ids[0])
        self._stream.publish_many([{"do": "nothing"}] * 2)
        self._stream.publish({"do": "nothing"}, delay=3)

    def __exit__(self, *_: object) -> None:
        """Nothing to put back."""


def test_a_worker_that_has_stopped_is_no_consumer_any_more(make_stream: MakeStream) -> None:
    stream, handled = make_stream(), threading.Event()
    stream.handler(lambda data: handled.set())
    stream.publish({})
    with running(stream):
        assert handled.wait(10)
        assert len(consumers(stream)) == 1
    assert consumers(stream) == []
    stream.publish({})
    messages = stream.consume(wait=10)
    next(messages).ack()
    messages.close()  # type: ignore[attr-defined]
    assert consumers(stream) == []


def consumers(stream: Any) -> list[Any]:
    rows = stream.backend.execute("XINFO", "CONSUMERS", "orders", "billing")
    return [row for row in rows if not row[1].startswith(b"~")]
