"""Where a pipeline's rows come from: a group's share of a stream, or a range of it. Values; opens nothing.

Columns that begin with `_` say which entry a row is: `_stream`, `_id`, `_timestamp`, and in a group `_delivery_count`
and `_consumer`. Everything else is the payload's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.delivery.policy import RetryPolicy
from millstream.errors import ConfigError
from millstream.spark.group.options import parse_group_read
from millstream.spark.group.policies import check_travels, policy_text
from millstream.spark.options import parse_read

STREAM, ID, TIMESTAMP, COUNT, CONSUMER = "_stream", "_id", "_timestamp", "_delivery_count", "_consumer"
OF_RANGE = {STREAM: "stream", ID: "id", TIMESTAMP: "timestamp"}
OF_GROUP = {**OF_RANGE, COUNT: "delivery_count", CONSUMER: "consumer"}
TYPES = {STREAM: "string", ID: "string", TIMESTAMP: "timestamp", COUNT: "int", CONSUMER: "string"}


@dataclass(frozen=True, slots=True)
class GroupSource:
    """A group's share of a stream: every row is settled, alone or beside workers of the same group."""

    stream: str
    group: str = field(kw_only=True)
    url: str | None = field(default=None, kw_only=True, repr=False)
    lease: float | None = field(default=None, kw_only=True)  # seconds; not above that of the group's workers
    max_rows: int | None = field(default=None, kw_only=True)  # a batch
    dead_letter: str | None = field(default=None, kw_only=True)
    columns: str | None = field(default=None, kw_only=True)  # fields of the entries as columns: "n int, v string"
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)  # of the source, as they are

    is_group = True
    meta = OF_GROUP

    def read_options(self, url: str | None, retry: RetryPolicy) -> dict[str, str]:
        """Return the options of the read."""
        found = self._shared(url, retry) | {"stream": self.stream, "maxOffsetsPerTrigger": self.max_rows}
        return _texts(found | dict(self.options))

    def settle_options(self, url: str | None, retry: RetryPolicy) -> dict[str, str]:
        """Return the options of the settle sink: those of the read that are about settling."""
        shared = {
            "username",
            "password",
            "passwordFile",
            "tlsCaFile",
            "tlsCertFile",
            "tlsKeyFile",
            "tlsVerify",
            "timeout",
            "retryTimeout",
            "consumer",
            "fieldPrefix",
        }
        return _texts(self._shared(url, retry) | {name: self.options.get(name) for name in shared})

    def _shared(self, url: str | None, retry: RetryPolicy) -> dict[str, Any]:
        return {
            "url": url or self.url,
            "group": self.group,
            "lease": self.lease,
            "deadLetter": self.dead_letter,
            "retryPolicy": policy_text(retry),
        }

    def check(self, retry: RetryPolicy) -> None:
        _check_stream(self.stream)
        check_travels(retry)
        parse_group_read(self.read_options(None, retry))


@dataclass(frozen=True, slots=True)
class RangeSource:
    """A range of a stream: read without a trace, from where the checkpoint says. Nothing is settled."""

    stream: str
    url: str | None = field(default=None, kw_only=True, repr=False)
    starting: str = field(default="earliest", kw_only=True)
    max_rows: int | None = field(default=None, kw_only=True)
    columns: str | None = field(default=None, kw_only=True)
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    is_group = False
    meta = OF_RANGE

    def read_options(self, url: str | None, retry: RetryPolicy) -> dict[str, str]:
        """Return the options of the read."""
        found = {
            "url": url or self.url,
            "stream": self.stream,
            "startingOffsets": self.starting,
            "maxOffsetsPerTrigger": self.max_rows,
        }
        return _texts(found | dict(self.options))

    def check(self, retry: RetryPolicy) -> None:
        _check_stream(self.stream)
        parse_read(self.read_options(None, retry))


Source = GroupSource | RangeSource


def _check_stream(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{name!r} is not the name of a stream")


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in options.items() if value is not None}


def history(source: Source, url: str | None, start_ms: int, end_ms: int) -> dict[str, str]:
    """Return the options of a batch read between two times."""
    taken = {
        "username",
        "password",
        "passwordFile",
        "tlsCaFile",
        "tlsCertFile",
        "tlsKeyFile",
        "tlsVerify",
        "timeout",
        "retryTimeout",
        "fetchSize",
        "minPartitions",
    }
    found: dict[str, Any] = {name: value for name, value in source.options.items() if name in taken}
    found |= {"url": url or source.url, "stream": source.stream}
    return _texts(found | {"startingTimestamp": start_ms, "endingTimestamp": end_ms})


def read_schema(source: Source, payload: str | None) -> str:
    """Return the columns to read: those about entries, then the payload's field or the named columns."""
    about = [f"{name} {TYPES[ours]}" for ours, name in source.meta.items()]
    if payload is not None:
        return ", ".join([*about, f"`{payload}` binary"])
    if source.columns is not None:
        return ", ".join([*about, source.columns])
    return ", ".join([*about, "fields map<string,binary>"])


def check_names(names: list[str], what: str) -> None:
    """Raise if a column of the user's has the name of one of ours."""
    taken = [name for name in names if name in TYPES]
    if taken:
        raise ConfigError(f"{what}: the column {taken[0]!r} says which entry a row is: name yours otherwise")
