"""Every setting of a worker: its meaning, its default, and the rules that hold between them.

Every `Settings` object is valid: a value that breaks a rule is refused when the object is made, with the name of the
field and the rule. All durations are seconds. Settings come from code, from environment variables
(`MILLSTREAM_LEASE=10`, `MILLSTREAM_BACKOFF_CAP=60`), from a TOML file or from a URL's query; see `sources`.

`RecoveryConfig` holds the names and defaults of the RFC and becomes Settings that share a group with its workers.
The options of the RFC's library are here under these names: LBSIdleTime min_idle, LBSRecoveryCount startup_batch,
KspChanSize listener_queue, KspChanTimeout listener_timeout, RetryConfig reconnect and reconnect_tries; OutputChanSize
is `consume(ahead=)`; ForceConfigOverride is not needed, since flags are added to the server's and never replace them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal, Self, TypedDict, Unpack, get_args

from millstream.delivery import identity
from millstream.delivery.config import checks, sources
from millstream.delivery.policy import Backoff, RetryPolicy, Rule
from millstream.delivery.settlement import Discard
from millstream.errors import ConfigError

Redeliver = Literal["in_place", "copy"]
Recovery = Literal["lease", "rfc"]
Retain = Literal["acked", "all"]

DEAD_LETTER: Final = "{stream}:dlq"
RFC_LOCK_S: Final = 5.0  # seconds that a lock of the RFC's profile lives without a heartbeat
GROUP_START: Final = re.compile(r"\$|\d+(-\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """The rule that pauses reading: more than `share` dead letters of at least `least` settled in the last `window`."""

    share: float = 0.5  # dead letters out of all settled
    least: int = 20  # settled in the window before the rule applies
    window: float = 60.0  # seconds
    pause: float = 30.0  # seconds without reading before the next try

    def __post_init__(self) -> None:
        for name in ("share", "window", "pause"):
            checks.number(f"breaker.{name}", getattr(self, name))
        checks.whole("breaker.least", self.least, 1)
        checks.holds("breaker.share", self.share, 0 < self.share <= 1, "must be above 0 and at most 1")
        checks.holds("breaker.window", self.window, self.window > 0, "must be above 0 seconds")
        checks.holds("breaker.pause", self.pause, self.pause > 0, "must be above 0 seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one worker treats one stream. The properties resolve defaults that depend on other settings."""

    # Leases
    lease: float = 30.0  # seconds after which a delivery without renewal may be taken over
    heartbeat: float | None = None  # seconds between renewals; None: lease / 3
    heartbeat_process: bool = False  # also renew from a child process, for handlers that hold the interpreter
    lock_keys: bool | None = None  # also write the RFC's `lock:{stream}:<id>`; None: with recovery="rfc" only

    # Failures
    max_retries: int = 3  # deliveries after the first; then the entry is a dead letter
    max_crashes: int = 2  # deaths of a process that the entry caused, being handled alone; then it is a dead letter
    backoff: Backoff = field(default_factory=Backoff)  # the delay before each retry
    dead_letter: str | type[Discard] = DEAD_LETTER  # the dead-letter stream; {stream} stands for the stream's name
    breaker: Breaker | None = field(default_factory=Breaker)  # None: never pause

    # Recovery
    recovery: Recovery = "lease"  # "rfc": lock keys and scan, to share a group with the RFC's workers
    redeliver: Redeliver = "in_place"  # "copy": XADD anew, as the RFC does
    reconcile_every: float = 60.0  # seconds between scans; jitter is added
    min_idle: float | None = None  # seconds an entry must be idle to be recovered; None: lease
    batch: int = 50  # entries recovered by one call
    startup_batch: int = 1000  # entries recovered by the scan before the first read
    reap_idle: float = 3600.0  # seconds after which a consumer without entries is removed
    listener: bool | None = None  # listen for expired lock keys; None: with recovery="rfc" only
    listener_queue: int = 500  # events in the queue; further ones are dropped and counted
    listener_timeout: float = 600.0  # seconds an event may wait before it is dropped

    # Reading
    group_start: str = "0"  # where a new group begins: "0" the first entry, "$" new entries, or an id
    block: float = 5.0  # seconds that a blocking read waits at most
    reconnect: Backoff = field(
        default_factory=lambda: Backoff(first=0.1, cap=30.0)
    )  # the delay between tries to reconnect
    reconnect_tries: int | None = None  # failures in a row before a worker gives up; None: never
    connect_wait: float | None = None  # seconds that a start waits for the server; None: for ever

    # Entries
    field_prefix: str = "_"  # the prefix of fields that Millstream adds: _retry_count, _original_id
    retain: Retain = "acked"  # "acked": an entry is removed when all groups are done with it; "all": it stays
    dedupe_window: float = 3600.0  # seconds during which a `dedupe=` key is remembered

    # The process
    shutdown_grace: float = 30.0  # seconds that handlers get to finish before their entries are released
    consumer: str | None = None  # a name of your choice; see `identity`

    def __post_init__(self) -> None:
        for name in _SECONDS:
            if getattr(self, name) is not None or name not in _MAY_BE_NONE:
                checks.number(name, getattr(self, name))
        for name, least in _COUNTS.items():
            if getattr(self, name) is not None or name not in _MAY_BE_NONE:
                checks.whole(name, getattr(self, name), least)
        for name in ("lock_keys", "listener"):
            if getattr(self, name) is not None:
                checks.flag(name, getattr(self, name))
        checks.flag("heartbeat_process", self.heartbeat_process)
        self._check_times()
        self._check_words()

    def _check_times(self) -> None:
        for name in ("lease", "reconcile_every", "reap_idle", "block", "dedupe_window"):
            checks.holds(name, getattr(self, name), getattr(self, name) > 0, "must be above 0 seconds")
        beat, idle, grace, patience = self.heartbeat_s, self.min_idle_s, self.shutdown_grace, self.listener_timeout
        third = self.lease / 3
        checks.holds("heartbeat", beat, 0 < beat <= third, f"must be above 0 and at most lease / 3 ({third:g})")
        checks.holds("min_idle", idle, idle >= self.lease, f"must not be below the lease ({self.lease:g})")
        checks.holds("shutdown_grace", grace, grace >= 0, "must be 0 seconds or more")
        start = self.connect_wait
        checks.holds("connect_wait", start, start is None or start >= 0, "must be 0 seconds or more")
        checks.holds("listener_timeout", patience, patience >= 60, "must be 60 seconds or more")

    def _check_words(self) -> None:
        for name, allowed in _WORDS.items():
            value = getattr(self, name)
            checks.holds(name, value, value in allowed, f"must be one of {', '.join(allowed)}")
        for name, kind in (("backoff", Backoff), ("reconnect", Backoff), ("breaker", Breaker | None)):
            value = getattr(self, name)
            checks.holds(name, value, isinstance(value, kind), f"must be of type {getattr(kind, '__name__', kind)}")
        if self.recovery == "rfc" and not self.has_lock_keys:
            raise ConfigError('lock_keys: must be on with recovery="rfc", or every live delivery looks dead to others')
        if self.dead_letter is not Discard and not (isinstance(self.dead_letter, str) and self.dead_letter):
            raise ConfigError("dead_letter: must be the name of a stream; to drop what is given up, say Discard")
        checks.text("field_prefix", self.field_prefix)  # otherwise our fields could clash with the user's
        checks.text("group_start", self.group_start)
        is_place = GROUP_START.fullmatch(self.group_start) is not None
        checks.holds("group_start", self.group_start, is_place, 'must be "0", "$" or an entry id')
        if self.consumer is not None:
            checks.text("consumer", self.consumer)

    @property
    def heartbeat_s(self) -> float:
        """Return the seconds between renewals."""
        return self.lease / 3 if self.heartbeat is None else self.heartbeat

    @property
    def min_idle_s(self) -> float:
        """Return the seconds an entry must be idle to be recovered."""
        return self.lease if self.min_idle is None else self.min_idle

    @property
    def has_lock_keys(self) -> bool:
        """Return whether deliveries are also marked by the RFC's lock keys."""
        return self.recovery == "rfc" if self.lock_keys is None else self.lock_keys

    @property
    def has_listener(self) -> bool:
        """Return whether the worker listens for expired lock keys."""
        return self.recovery == "rfc" if self.listener is None else self.listener

    @property
    def keeps_dead(self) -> bool:
        """Return whether an entry that is given up becomes a dead letter."""
        return self.dead_letter is not Discard

    @property
    def dead_letter_name(self) -> str:
        """Return the name of the dead-letter stream, with {stream} for the name of the stream."""
        return self.dead_letter if isinstance(self.dead_letter, str) else DEAD_LETTER

    def policy(self, on: Mapping[type[BaseException], Rule] | None = None) -> RetryPolicy:
        """Return the retry policy of these settings, with rules for exception classes."""
        return RetryPolicy(max_retries=self.max_retries, backoff=self.backoff, on=on or {})

    def consumer_name(self) -> str:
        """Return a name for a new incarnation of a worker. Each call returns another name."""
        return identity.consumer_name(self.consumer)

    @classmethod
    def names(cls) -> frozenset[str]:
        """Return the names of settings in a query or TOML file: `lease`, `backoff.cap`, …"""
        return sources.names(cls)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ, prefix: str = "MILLSTREAM_") -> Self:
        """Read settings from the environment. Other variables are ignored."""
        return sources.from_env(cls, environ, prefix)

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Self:
        """Read settings from the query of a URL (`lease=10&backoff.cap=60`). An unknown name is an error."""
        return sources.from_texts(cls, query)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """Read settings from the table `[millstream]` or `[tool.millstream]` of a TOML file, or from its top level."""
        return sources.from_toml(cls, Path(path))


class SettingsOverrides(TypedDict, total=False):
    """The settings as keyword arguments of `Stream`, so that type checkers know them. Kept equal by a test."""

    lease: float
    heartbeat: float | None
    heartbeat_process: bool
    lock_keys: bool | None
    max_retries: int
    max_crashes: int
    backoff: Backoff
    dead_letter: str | type[Discard]
    breaker: Breaker | None
    recovery: Recovery
    redeliver: Redeliver
    reconcile_every: float
    min_idle: float | None
    batch: int
    startup_batch: int
    reap_idle: float
    listener: bool | None
    listener_queue: int
    listener_timeout: float
    group_start: str
    block: float
    reconnect: Backoff
    reconnect_tries: int | None
    connect_wait: float | None
    field_prefix: str
    retain: Retain
    dedupe_window: float
    shutdown_grace: float
    consumer: str | None


class ClusterMode(StrEnum):
    """The RFC's names for kinds of servers. They are accepted and not needed: the URL names the kind, and changes of a
    cluster are followed automatically."""

    NONE = "none"
    OSS = "oss"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConfig:
    """The RFC's settings by the RFC's names, with its defaults."""

    reconciliation_interval: float = 60.0  # seconds between scans
    min_idle_time: float = 30.0  # seconds an entry must be idle to be looked at
    batch_size: int = 50  # entries that one scan recovers
    max_retries: int = 3  # requeues; then the dead letter stream
    dlq_stream: str | type[Discard] = DEAD_LETTER
    field_prefix: str = "_"
    cluster_mode: ClusterMode | str | None = None  # None: as the URL says, and so with the others

    def __post_init__(self) -> None:
        checks.number("min_idle_time", self.min_idle_time)
        if self.cluster_mode is not None and self.cluster_mode not in list(ClusterMode):
            raise ConfigError(f"cluster_mode: must be one of {', '.join(ClusterMode)}, not {self.cluster_mode!r}")

    def settings(self, **others: Unpack[SettingsOverrides]) -> Settings:
        """Return settings of a worker that shares a group with the RFC's. `others` are settings that the RFC lacks.

        The lease, which is the lifetime of a lock, is 5 s or the idle time if that is shorter, unless another is given:
        an owner that is silent for so long counts as dead for the keyspace listener. The scan waits for the idle time.
        """
        given: dict[str, Any] = {
            "recovery": "rfc",
            "redeliver": "copy",
            "lease": min(RFC_LOCK_S, self.min_idle_time),
            "min_idle": self.min_idle_time,
            "reconcile_every": self.reconciliation_interval,
            "batch": self.batch_size,
            "max_retries": self.max_retries,
            "dead_letter": self.dlq_stream,
            "field_prefix": self.field_prefix,
        }
        return Settings(**(given | dict(others)))


_SECONDS: Final = (
    "lease",
    "heartbeat",
    "reconcile_every",
    "min_idle",
    "reap_idle",
    "listener_timeout",
    "block",
    "dedupe_window",
    "shutdown_grace",
    "connect_wait",
)
_COUNTS: Final = {
    "max_retries": 0,
    "max_crashes": 1,
    "reconnect_tries": 0,
    "batch": 1,
    "startup_batch": 1,
    "listener_queue": 1,
}
_MAY_BE_NONE: Final = ("heartbeat", "min_idle", "reconnect_tries", "connect_wait")
_WORDS: Final = {"redeliver": get_args(Redeliver), "recovery": get_args(Recovery), "retain": get_args(Retain)}
