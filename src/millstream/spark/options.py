"""What the user wrote in `.option(…)`, parsed once. Knows nothing of Spark; opens nothing.

    Read, Write, Table ── each has ──▶ Connection

Names are those that Kafka's users know. A name that nobody knows is an error with the nearest known one; a value
that cannot be used is an error that names the option and says what would do. Passwords are in no `repr` and in no
message.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from millstream.errors import ConfigError
from millstream.spark.ids import first_of, parse_id

T = TypeVar("T")

DEFAULT_URL = "redis://127.0.0.1:6379"
EARLIEST, LATEST = "earliest", "latest"
PERMISSIVE, FAILFAST, DROPMALFORMED = "PERMISSIVE", "FAILFAST", "DROPMALFORMED"
TABLES = ("pending", "groups", "consumers", "dead_letters", "streams")
TIMESTAMP_FORMATS = ("iso", "s", "ms", "us")

CONNECTION = (
    "url",
    "username",
    "password",
    "passwordFile",
    "tlsCaFile",
    "tlsCertFile",
    "tlsKeyFile",
    "tlsVerify",
    "timeout",
    "retryTimeout",
)
CHOICE = ("stream", "streamPattern", "path")
READ = (
    *CONNECTION,
    *CHOICE,
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "missingStream",
    "fetchSize",
    "mode",
    "discoveryInterval",
    "timestampFormat",
)
WRITE = (*CONNECTION, "stream", "path", "maxlen", "minid", "trim", "idempotence", "fenceTtl", "chunkSize", "nulls")
TABLE = (*CONNECTION, *CHOICE, "table", "group", "deadLetters")
# Spark hands its own options to the sources, too.
OF_SPARK = ("checkpointLocation", "queryName", "outputMode", "triggerInterval")

# Spark hands the properties of a table in its catalog to `schema` only: reads and writes get none of its options.
NO_CATALOG = (
    "a table in Spark's catalog (CREATE TABLE) loses its options: use CREATE TEMPORARY VIEW … USING millstream "
    "OPTIONS (…), or spark.read"
)

_NUMBERED = re.compile(r"\{(\d+)\.\.(\d+)\}")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?")
_UNITS = {"ms": 0.001, "s": 1, None: 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_SIZE = re.compile(r"(\d+)\s*([kmg]?)b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How to reach the server."""

    url: str = field(repr=False)  # everything in it, the password too
    timeout_s: float = 10.0  # for connecting and for each reply
    retry_s: float = 60.0  # how long a server may be gone before a query fails


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where to begin or to end, stream by stream: `earliest`, `latest`, or an id as a number."""

    default: str | int
    by_stream: Mapping[str, str | int] = field(default_factory=dict)

    def of(self, stream: str) -> str | int:
        return self.by_stream.get(stream, self.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which streams: named ones, or those that a glob pattern matches."""

    names: tuple[str, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A read in range mode."""

    connection: ConnectionOptions
    choice: Choice
    starting: Bounds  # the first id that is read
    ending: Bounds  # the first id that is no longer read
    max_rows: int | None = None  # a trigger
    min_rows: int | None = None
    max_delay_s: float = 900.0  # after which a trigger runs with fewer than min_rows
    max_bytes: int | None = None
    min_partitions: int | None = None  # None: as many as the rows are worth
    fail_on_loss: bool = True
    fail_on_missing: bool = True
    fetch: int = 10_000  # entries a request, fewer for large ones
    mode: str = PERMISSIVE
    discovery_s: float = 10.0  # how often a pattern is looked up
    timestamps: str = "iso"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A write."""

    connection: ConnectionOptions
    stream: str | None  # None: the column `stream` says
    trim: tuple[str, ...] = ()  # the words of XADD, such as MAXLEN ~ 1000
    idempotence: str = "auto"  # auto, fence, idmp, none
    fence_ttl_s: int = 7 * 86400
    chunk: int = 0  # rows a script call, or between two looks at the replies; 0: what suits the way of writing
    keep_nulls: bool = False  # write them as empty values instead of leaving them out


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """A table for looking."""

    connection: ConnectionOptions
    name: str
    choice: Choice
    group: str | None = None
    dead_letters: str = ""  # the name of the dead-letter stream, where it is not the usual one


class Given:
    """The options as given: looked up without case, errors that name them."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        names = {name.lower(): name for name in known}
        spark = {name.lower() for name in OF_SPARK}
        self._values = {key.lower(): value for key, value in options.items()}
        if "provider" in self._values:
            raise ConfigError(NO_CATALOG)
        for key in options:
            if key.lower() not in names and key.lower() not in spark:
                raise ConfigError(_unknown(key, names))

    def __len__(self) -> int:
        return len(self._values)

    def text(self, name: str, default: str | None = None) -> str | None:
        found = self._values.get(name.lower())
        return default if found is None else found

    def parsed(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """Return the option's value read by `parse`. A ConfigError of `parse` gets the name of the option."""
        value = self._values.get(name.lower())
        if value is None:
            return default
        try:
            return parse(value.strip())
        except ConfigError as error:
            raise ConfigError(f"option {name!r}: {error}") from None

    def count(self, name: str, least: int = 1) -> int | None:
        return self.parsed(name, lambda text: _count(text, least), None)

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        return self.parsed(name, lambda text: _one_of(text, choices), default)

    def flag(self, name: str, default: bool) -> bool:
        return self.parsed(name, _flag, default)

    def duration(self, name: str, default: float) -> float:
        return self.parsed(name, _duration, default)


def parse_read(options: Mapping[str, str]) -> Read:
    """Return the options of a read."""
    given = Given(options, READ)
    starting_ms, ending_ms = (given.parsed(name, _time, None) for name in ("startingTimestamp", "endingTimestamp"))
    starting = Bounds(EARLIEST) if starting_ms is None else Bounds(first_of(starting_ms))
    ending = Bounds(LATEST) if ending_ms is None else Bounds(first_of(ending_ms))
    choice = parse_choice(given)
    return Read(
        connection=parse_connection(given),
        choice=choice,
        starting=given.parsed("startingOffsets", lambda text: _bounds(text, starting, choice), starting),
        ending=given.parsed("endingOffsets", lambda text: _bounds(text, ending, choice), ending),
        max_rows=given.count("maxOffsetsPerTrigger"),
        min_rows=given.count("minOffsetsPerTrigger"),
        max_delay_s=given.duration("maxTriggerDelay", 900.0),
        max_bytes=given.parsed("maxBytesPerTrigger", _size, None),
        min_partitions=given.count("minPartitions"),
        fail_on_loss=given.flag("failOnDataLoss", True),
        fail_on_missing=given.choice("missingStream", ("fail", "wait"), "fail") == "fail",
        fetch=given.count("fetchSize") or 10_000,
        mode=given.choice("mode", (PERMISSIVE, FAILFAST, DROPMALFORMED), PERMISSIVE),
        discovery_s=given.duration("discoveryInterval", 10.0),
        timestamps=given.choice("timestampFormat", TIMESTAMP_FORMATS, "iso"),
    )


def parse_write(options: Mapping[str, str]) -> Write:
    """Return the options of a write."""
    given = Given(options, WRITE)
    return Write(
        connection=parse_connection(given),
        stream=given.parsed("path" if given.text("stream") is None else "stream", _named, None),
        trim=_trim(given),
        idempotence=given.choice("idempotence", ("auto", "fence", "idmp", "none"), "auto"),
        fence_ttl_s=int(given.duration("fenceTtl", 7 * 86400)),
        chunk=given.count("chunkSize") or 0,
        keep_nulls=given.choice("nulls", ("skip", "empty"), "skip") == "empty",
    )


def parse_table(options: Mapping[str, str]) -> TableOptions:
    """Return the options of a table for inspection."""
    given = Given(options, TABLE)
    return TableOptions(
        connection=parse_connection(given),
        name=given.choice("table", TABLES, ""),
        choice=parse_choice(given, default_pattern="*"),
        group=given.text("group"),
        dead_letters=given.text("deadLetters") or "",
    )


def parse_choice(given: Given, default_pattern: str | None = None) -> Choice:
    """Which streams."""
    stream, pattern = given.text("stream", given.text("path")), given.text("streamPattern", default_pattern)
    if stream is not None and given.text("streamPattern") is not None:
        raise ConfigError("options 'stream' and 'streamPattern' exclude each other: give one of them")
    if stream is not None:
        return Choice(names=given.parsed("path" if given.text("stream") is None else "stream", _names, ()))
    if pattern is None:
        question = "which stream? Set option 'stream' (one, some with commas, orders-{0..7}) or 'streamPattern'"
        raise ConfigError(question if given else f"{question}; {NO_CATALOG}")
    return Choice(pattern=pattern)


def parse_connection(given: Given) -> ConnectionOptions:
    """How to reach the server: the URL with what the other options add to it."""
    url = given.text("url") or DEFAULT_URL
    return ConnectionOptions(
        url=_complete_url(url, given),
        timeout_s=given.duration("timeout", 10.0),
        retry_s=given.duration("retryTimeout", 60.0),
    )


def _complete_url(url: str, given: Given) -> str:
    scheme, mark, rest = url.partition("://")
    if not mark:
        raise ConfigError("option 'url': it has no scheme; write redis://host:port, rediss://… or redis+cluster://…")
    if scheme in ("memory", "file"):
        raise ConfigError(f"option 'url': {scheme}:// is inside one process and Spark has many: run `millstream serve`")
    parts = urlsplit(f"x://{rest}")
    user_info, _, hosts = parts.netloc.rpartition("@")
    username, _, password = user_info.partition(":")
    username = quote(given.text("username") or "", safe="") or username
    password = quote(_password(given) or "", safe="") or password
    query = dict(parse_qsl(parts.query, keep_blank_values=True)) | _tls(given)
    head = f"{username}:{password}@" if username or password else ""
    tail = f"?{urlencode(query)}" if query else ""
    return f"{scheme}://{head}{hosts}{parts.path}{tail}"


def _password(given: Given) -> str | None:
    path = given.text("passwordFile")
    if path is None:
        return given.text("password")
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise ConfigError(f"option 'passwordFile': {path} cannot be read: {error.strerror}") from None


def _tls(given: Given) -> dict[str, str]:
    names = {"tlsCaFile": "ssl_ca_certs", "tlsCertFile": "ssl_certfile", "tlsKeyFile": "ssl_keyfile"}
    found = {theirs: value for ours, theirs in names.items() if (value := given.text(ours)) is not None}
    if not given.flag("tlsVerify", True):
        found |= {"ssl_cert_reqs": "none", "ssl_check_hostname": "no"}
    return found


def _unknown(key: str, names: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(key.lower(), names, n=1, cutoff=0.6)
    hint = f"did you mean {names[near[0]]!r}?" if near else "known are " + ", ".join(sorted(set(names.values())))
    return f"unknown option {key!r}: {hint}"


def _names(text: str) -> tuple[str, ...]:
    """Parse a list with commas or a JSON list. `{0..7}` in a name stands for eight names."""
    words = _json_list(text) if text.startswith("[") else [word.strip() for word in text.split(",")]
    found = [name for word in words if word for name in _expanded(word)]
    if not found:
        raise ConfigError("it is empty; name a stream")
    return tuple(dict.fromkeys(found))


def _named(text: str) -> str | None:
    if not text:
        raise ConfigError("it is empty; name a stream")
    return text


def _expanded(word: str) -> list[str]:
    match = _NUMBERED.search(word)
    if match is None:
        return [word]
    low, high = int(match[1]), int(match[2])
    if not low <= high < low + 100_000:
        raise ConfigError(f"{match[0]} is not a range of numbers: write the lower one first, as in {{0..7}}")
    rests = _expanded(word[match.end() :])
    return [f"{word[: match.start()]}{number}{rest}" for number in range(low, high + 1) for rest in rests]


def _json_list(text: str) -> list[str]:
    found = _json(text)
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ConfigError('a JSON list of names was expected, such as ["a", "b"]')
    return found


def _json(text: str) -> object:
    try:
        found: object = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"this is not JSON: {error}") from None
    return found


def _bounds(text: str, otherwise: Bounds, choice: Choice) -> Bounds:
    """`earliest`, `latest`, an id, or JSON {"stream": one of these}; streams that it lacks are as without it."""
    if not text.startswith("{"):
        return Bounds(_bound(text))
    found = _json(text)
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ConfigError('expected JSON such as {"orders": "1700000000000-0", "refunds": "earliest"}')
    others = [] if choice.pattern is not None else sorted(set(found) - set(choice.names))
    if others:
        raise ConfigError(f"{others[0]!r} is not among the streams that are read: {', '.join(choice.names)}")
    return Bounds(otherwise.default, {name: _bound(value) for name, value in found.items()})


def _bound(text: str) -> str | int:
    return text.lower() if text.lower() in (EARLIEST, LATEST) else parse_id(text)


def _time(text: str) -> int | None:
    """Milliseconds since 1970, or ISO 8601, UTC where no zone is given."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is neither milliseconds since 1970 nor ISO 8601 (2026-01-31T12:00:00Z)") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _trim(given: Given) -> tuple[str, ...]:
    maxlen, minid = given.count("maxlen", 0), given.text("minid")
    if maxlen is not None and minid is not None:
        raise ConfigError("options 'maxlen' and 'minid' exclude each other: give one of them")
    how = {"approximate": "~", "exact": "="}[given.choice("trim", ("approximate", "exact"), "approximate")]
    if maxlen is not None:
        return ("MAXLEN", how, str(maxlen))
    if minid is not None:
        given.parsed("minid", parse_id, 0)
        return ("MINID", how, minid.strip())
    return ()


def _count(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{text!r} must be a number, {least} or more")
    return int(text)


def _one_of(text: str, choices: tuple[str, ...]) -> str:
    for choice in choices:
        if choice.lower() == text.lower():
            return choice
    raise ConfigError(f"{text!r} must be one of {', '.join(choices)}")


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _duration(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is not a duration: write 500ms, 30s, 15m or 1h")
    return float(match[1]) * _UNITS[match[2]]


def _size(text: str) -> int | None:
    match = _SIZE.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise ConfigError(f"{text!r} is not a size: write 1048576, 64k, 16m or 1g")
    return int(match[1]) * {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[match[2].lower()]
