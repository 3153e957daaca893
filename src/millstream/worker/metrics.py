"""Metrics for Prometheus: the seven series of the RFC, the nine of its library, and our own `millstream_*`.

    recorder = PrometheusRecorder()             # the process's registry, or PrometheusRecorder(registry)
    orders = Stream[Order]("orders", url, group="billing", recorder=recorder)

Names are exactly those of the RFC, so its dashboards work with our workers, too. Every series has the labels stream and
group. Any number of recorders may share a registry: the series are made once. The package `prometheus-client` is needed
only to make a recorder.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from millstream.delivery.recorder import NullRecorder, Recorder
from millstream.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["NullRecorder", "PrometheusRecorder", "Recorder"]

LABELS: Final = ("stream", "group")

# Names to (help, further labels).
COUNTERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "recovery_keyspace_requeued_total": ("Entries recovered because of a keyspace notification", ()),
    "recovery_scan_requeued_total": ("Entries recovered by the scan", ()),
    "recovery_scan_skipped_alive_total": ("Entries that the scan left to their living owner", ()),
    "recovery_duplicate_ack_total": ("Entries that somebody else had recovered first", ()),
    "recovery_dlq_total": ("Entries that recovery gave up", ()),
    "recovery_trimmed_total": ("Pending entries that had been trimmed away", ()),
    "redis_mutex_claim_total": ("Attempts to claim an entry", ("success",)),
    "redis_mutex_lock_extension_total": ("Renewals of leases", ("success",)),
    "redis_mutex_lock_release_total": ("Leases given up", ("success",)),
    "redis_mutex_startup_recovery_total": ("Scans before the first read", ("success",)),
    "redis_mutex_ksp_notification_total": ("Keyspace notifications received", ()),
    "redis_mutex_ksp_notification_dropped_total": ("Keyspace notifications dropped for want of room", ()),
    "millstream_published_total": ("Entries appended", ()),
    "millstream_delivered_total": ("Entries handed to this worker", ()),
    "millstream_settled_total": ("Deliveries ended", ("outcome",)),
    "millstream_leases_taken_total": ("Leases and locks taken", ("success",)),
    "millstream_leases_lost_total": ("Deliveries that turned out to be somebody else's", ()),
    "millstream_recovered_total": ("Deliveries taken over from others", ()),
    "millstream_startup_recovered_total": ("Entries recovered before the first read", ()),
    "millstream_dead_letters_total": ("Entries set aside", ("reason",)),
    "millstream_discarded_total": ("Entries given up and dropped", ("reason",)),
}
HISTOGRAMS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "recovery_scan_duration_seconds": ("How long scans take", ()),
    "redis_mutex_claim_duration_seconds": ("How long claims take", ("success",)),
    "redis_mutex_startup_recovery_duration_seconds": ("How long scans before the first read take", ("success",)),
    "redis_mutex_stream_processing_duration_seconds": ("From the start of a handler to its end", ()),
    "millstream_handler_seconds": ("How long handlers take", ("outcome",)),
}
GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "pel_depth": ("Entries pending in the group", ()),
    "millstream_delayed": ("Entries that wait for their time", ()),
    "millstream_lag": ("Entries never delivered to the group", ()),
    "millstream_in_progress": ("Handlers that run", ()),
    "millstream_breaker_open": ("1 while reading is paused for a flood of dead letters", ()),
}
# From a millisecond to an hour: handlers take as long as they take.
BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)

_made: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
_making = threading.Lock()


def _series(registry: CollectorRegistry | None) -> dict[str, Any]:
    """Return the series of a registry, created on first use."""
    try:
        import prometheus_client as prometheus
    except ImportError as error:
        raise ConfigError("metrics: the package prometheus-client is not installed") from error
    home = prometheus.REGISTRY if registry is None else registry
    with _making:
        if home not in _made:
            series: dict[str, Any] = {}
            for name, (told, more) in COUNTERS.items():
                series[name] = prometheus.Counter(name, told, (*LABELS, *more), registry=home)
            for name, (told, more) in HISTOGRAMS.items():
                series[name] = prometheus.Histogram(name, told, (*LABELS, *more), registry=home, buckets=BUCKETS)
            for name, (told, more) in GAUGES.items():
                series[name] = prometheus.Gauge(name, told, (*LABELS, *more), registry=home)
            _made[home] = series
        return _made[home]


@dataclass(frozen=True, slots=True)
class _Place:
    """The stream and group of a recorder."""

    stream: str = ""
    group: str = ""


class PrometheusRecorder:
    """Records into a Prometheus registry; safe to use from any thread.

    Before it is bound to a stream and a group its labels are empty.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, now_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self._series = _series(registry)
        self._place = _Place()
        self._now_s = now_s
        self._begun: dict[tuple[_Place, str], float] = {}
        self._lock = threading.Lock()
        self._children: dict[tuple[str, ...], Any] = {}  # a look-up by labels takes a lock

    def bind(self, stream: str, group: str) -> PrometheusRecorder:
        """Return a recorder for a stream and a group in the same registry. The series of the group start at 0."""
        bound = copy.copy(self)  # shares the series and the starts
        bound._place, bound._children = _Place(stream, group), {}
        for name, (_, more) in (COUNTERS | HISTOGRAMS | GAUGES).items():
            if not more:
                bound._at(name)
        return bound

    def _at(self, name: str, *more: str) -> Any:
        """Return the series for this stream and group and further labels."""
        child = self._children.get((name, *more))
        if child is None:
            child = self._series[name].labels(self._place.stream, self._place.group, *more)
            self._children[name, *more] = child
        return child

    # The nine hooks of the RFC's library

    def startup_recovery(self, ok: bool, recovered: int, seconds: float) -> None:
        self._at("redis_mutex_startup_recovery_total", _word(ok)).inc()
        self._at("redis_mutex_startup_recovery_duration_seconds", _word(ok)).observe(seconds)
        self._at("millstream_startup_recovered_total").inc(recovered)

    def claim_attempt(self, ok: bool, seconds: float) -> None:
        self._at("redis_mutex_claim_total", _word(ok)).inc()
        self._at("redis_mutex_claim_duration_seconds", _word(ok)).observe(seconds)

    def lock_acquisition(self, ok: bool, seconds: float) -> None:
        # The library's example counted these as startup recoveries.
        self._at("millstream_leases_taken_total", _word(ok)).inc()

    def lock_extension(self, ok: bool, count: int = 1) -> None:
        self._at("redis_mutex_lock_extension_total", _word(ok)).inc(count)

    def lock_release(self, ok: bool, count: int = 1) -> None:
        self._at("redis_mutex_lock_release_total", _word(ok)).inc(count)

    def processing_start(self, entry_id: str) -> None:
        with self._lock:
            self._begun[self._place, entry_id] = self._now_s()

    def processing_end(self, entry_id: str) -> None:
        with self._lock:
            begun = self._begun.pop((self._place, entry_id), None)
        if begun is not None:
            self._at("redis_mutex_stream_processing_duration_seconds").observe(self._now_s() - begun)

    def keyspace_notification(self) -> None:
        self._at("redis_mutex_ksp_notification_total").inc()

    def keyspace_notification_dropped(self) -> None:
        self._at("redis_mutex_ksp_notification_dropped_total").inc()

    # The RFC's seven metrics

    def keyspace_requeued(self, count: int = 1) -> None:
        self._at("recovery_keyspace_requeued_total").inc(count)

    def scan_requeued(self, count: int = 1) -> None:
        self._at("recovery_scan_requeued_total").inc(count)

    def scan_skipped_alive(self, count: int = 1) -> None:
        self._at("recovery_scan_skipped_alive_total").inc(count)

    def duplicate_ack(self, count: int = 1) -> None:
        self._at("recovery_duplicate_ack_total").inc(count)

    def dlq(self, count: int = 1) -> None:
        self._at("recovery_dlq_total").inc(count)

    def scan_duration(self, seconds: float) -> None:
        self._at("recovery_scan_duration_seconds").observe(seconds)

    def pel_depth(self, count: int) -> None:
        self._at("pel_depth").set(count)

    # What workers need besides

    def published(self, count: int = 1) -> None:
        self._at("millstream_published_total").inc(count)

    def delivered(self, count: int = 1) -> None:
        self._at("millstream_delivered_total").inc(count)

    def settled(self, outcome: str, count: int = 1) -> None:
        self._at("millstream_settled_total", outcome).inc(count)

    def handled(self, outcome: str, seconds: float) -> None:
        self._at("millstream_handler_seconds", outcome).observe(seconds)

    def lease_lost(self, count: int = 1) -> None:
        self._at("millstream_leases_lost_total").inc(count)

    def recovered(self, count: int = 1) -> None:
        self._at("millstream_recovered_total").inc(count)

    def dead(self, reason: str, count: int = 1) -> None:
        self._at("millstream_dead_letters_total", reason).inc(count)

    def discarded(self, reason: str, count: int = 1) -> None:
        self._at("millstream_discarded_total", reason).inc(count)

    def trimmed(self, count: int = 1) -> None:
        self._at("recovery_trimmed_total").inc(count)

    def delayed_depth(self, count: int) -> None:
        self._at("millstream_delayed").set(count)

    def lag(self, count: int) -> None:
        self._at("millstream_lag").set(count)

    def in_progress(self, count: int) -> None:
        self._at("millstream_in_progress").set(count)

    def breaker(self, is_open: bool) -> None:
        self._at("millstream_breaker_open").set(int(is_open))


def _word(ok: bool) -> str:
    return "true" if ok else "false"
