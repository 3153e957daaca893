"""The options of group mode and of settling, parsed once. Knows nothing of Spark; opens nothing.

    GroupRead ── has ──▶ Read (connection, streams, columns), Terms
    Settling  ── has ──▶ Connection, Terms

Terms are what a query must have in common with the workers of its group: the dead letters' name, how often an entry is
tried, the prefix of fields that are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millstream.delivery.config.settings import GROUP_START
from millstream.delivery.policy import Backoff, RetryPolicy
from millstream.errors import ConfigError
from millstream.spark.group.policies import policy_from
from millstream.spark.options import CHOICE, CONNECTION, ConnectionOptions, Given, Read, parse_connection, parse_read

MOST_ROWS = 250_000  # a batch, unless the options say otherwise: what it has, no other member of the group can have
SHARED = ("group", "consumer", "lease", "maxRetries", "backoff", "retryPolicy", "deadLetter", "fieldPrefix")
OF_COLUMNS = ("mode", "timestampFormat", "fetchSize", "minPartitions", "maxOffsetsPerTrigger", "discoveryInterval")
OWN = (*SHARED, "groupStart", "settle", "retain")
GROUP_READ = (*CONNECTION, *CHOICE, *OF_COLUMNS, *OWN)
OF_RANGES = (
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "failOnDataLoss",
    "missingStream",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
)
SETTLING = (*CONNECTION, *SHARED, "stream")
ROWS, BATCH = "rows", "batch"
GROUP_SCHEMA = (
    "stream string, id string, timestamp timestamp, seq bigint, fields map<string, binary>, delivery_count int, "
    "idle_ms bigint, consumer string"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds for all members of a group."""

    group: str
    prefix: str = "spark"  # of the names of our consumers
    lease_ms: int = 30_000
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    dead_letter: str = ""  # the dead-letter stream; empty: the usual one
    field_prefix: str = "_"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRead:
    """A read in group mode."""

    read: Read
    terms: Terms
    start: str = "0"  # where a new group begins
    settle: str = ROWS  # what becomes of rows that nobody settled: `rows` retried, `batch` acknowledged
    retain: str = "acked"  # `all`: entries stay when all groups are done with them
    max_rows: int = MOST_ROWS  # a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """Settlements to be carried out."""

    connection: ConnectionOptions
    terms: Terms
    stream: str | None = None  # where rows do not say it


def has_group(options: Mapping[str, str]) -> bool:
    """Whether the options ask for group mode."""
    return any(name.lower() == "group" for name in options)


def parse_group_read(options: Mapping[str, str]) -> GroupRead:
    """Return the options of a read in group mode."""
    ranges = {name.lower(): name for name in OF_RANGES}
    for name in options:
        if name.lower() in ranges:
            raise ConfigError(
                f"option {ranges[name.lower()]!r} is not for group mode, where the group knows what was delivered: "
                "leave it out (a new group begins where 'groupStart' says), or leave out 'group'"
            )
    given = Given(options, GROUP_READ)
    own = {name.lower() for name in OWN}
    rest = {name: value for name, value in options.items() if name.lower() not in own}
    return GroupRead(
        read=parse_read(rest),
        terms=parse_terms(given),
        start=given.parsed("groupStart", _start, "0"),
        settle=given.choice("settle", (ROWS, BATCH), ROWS),
        retain=given.choice("retain", ("acked", "all"), "acked"),
        max_rows=given.count("maxOffsetsPerTrigger") or MOST_ROWS,
    )


def parse_settling(options: Mapping[str, str]) -> Settling:
    """Return the options of the settle sink."""
    given = Given(options, SETTLING)
    return Settling(connection=parse_connection(given), terms=parse_terms(given), stream=given.text("stream"))


def parse_terms(given: Given) -> Terms:
    """Return the settings that a query shares with its group."""
    group = given.text("group")
    if not group:
        raise ConfigError("which group? Set option 'group' to the consumer group's name")
    lease_s = given.duration("lease", 30.0)
    if lease_s < 1:
        raise ConfigError("option 'lease': must be a second or more, as that of the group's workers")
    return Terms(
        group=group,
        prefix=given.parsed("consumer", _prefix, "spark"),
        lease_ms=round(lease_s * 1000),
        policy=_policy(given),
        dead_letter=given.text("deadLetter") or "",
        field_prefix=given.text("fieldPrefix", "_") or "",
    )


def _policy(given: Given) -> RetryPolicy:
    whole = given.parsed("retryPolicy", policy_from, None)
    if whole is None:
        first = given.duration("backoff", Backoff().first)
        backoff = Backoff(first=first, cap=max(first, Backoff().cap))
        return RetryPolicy(max_retries=given.parsed("maxRetries", _retries, 3), backoff=backoff)
    for name in ("maxRetries", "backoff"):
        if given.text(name) is not None:
            raise ConfigError(f"options 'retryPolicy' and {name!r} exclude each other: give one of them")
    return whole


def _retries(text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"{text!r} must be a number, 0 or more")
    return int(text)


def _prefix(text: str) -> str:
    if not text or "*" in text or text.startswith("~"):
        raise ConfigError(f"{text!r} cannot begin the name of a consumer: use letters, digits and dashes")
    return text


def _start(text: str) -> str:
    if not GROUP_START.fullmatch(text):
        raise ConfigError(f"{text!r} is not a start: write 0 for all entries, $ for new ones only, or an entry id")
    return text
