"""CONFIG: the settings by name, their limits, and what Redis says about a value that will not do.

Few of them change anything here; the others are kept because clients ask for them, or set what they had read. A
setting that acts has a hook in the hub (`Hub.apply_setting`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from millstream.engine.faults import SYNTAX, fault
from millstream.engine.text.args import I64_MAX, U64_MAX, as_integer
from millstream.engine.text.floats import parse_double
from millstream.engine.text.glob import compiled
from millstream.errors import CommandError, ConfigError
from millstream.server.features import keyspace_events
from millstream.server.net.output_limits import DEFAULT_OUTPUT_LIMITS, print_output_limits, read_output_limits

Value = bytes
Parse = Callable[[bytes], bytes]  # the value in its normal form, or BadValue


class BadValue(Exception):
    """Why a value will not do, in Redis's words."""


@dataclass(frozen=True, slots=True)
class Option:
    """A setting: how its values are read, and whether CONFIG SET may change it."""

    default: bytes
    parse: Parse
    refusal: str | None = None  # why it cannot be changed at run time
    frozen: bool = False  # what it is about is settled at start: only the value it has is accepted
    adds: bool = False  # a new value changes only those parts of the old one that it names

    def read(self, word: bytes, old: bytes = b"") -> bytes:
        """Return the value of a word; `old` is the current value."""
        return self.parse(old + b" " + word if self.adds else word)


_UNITS: Final = {b"": 1, b"b": 1, b"k": 1000, b"kb": 1024, b"m": 1000**2, b"mb": 1024**2, b"g": 1000**3, b"gb": 1024**3}
_MEMORY: Final = re.compile(rb"([0-9]*)([a-zA-Z]*)")
_SAVE_POINT: Final = re.compile(rb"\s*([0-9]+)\s+([0-9]+)(?=\s|$)")


def integer(low: int = 0, high: int = I64_MAX) -> Parse:
    """Parse an integer in a range."""

    def parse(word: bytes) -> bytes:
        value = as_integer(word)
        if value is None:
            raise BadValue("argument couldn't be parsed into an integer")
        if not low <= value <= high:
            raise BadValue(f"argument must be between {low} and {high} inclusive")
        return word

    return parse


def memory(low: int = 0, high: int = I64_MAX) -> Parse:
    """Parse a number of bytes, with an optional unit; an empty word is 0."""

    def parse(word: bytes) -> bytes:
        found = _MEMORY.fullmatch(word)
        unit = _UNITS.get(found[2].lower()) if found else None
        if found is None or unit is None:
            raise BadValue("argument must be a memory value")
        # a number too long for its type is the largest there is
        value = min(int(found[1] or b"0"), U64_MAX) * unit
        if not low <= value <= high:
            raise BadValue(f"argument must be between {low} and {high} inclusive")
        return b"%d" % value

    return parse


def _memory_or_percent(word: bytes) -> bytes:
    """Parse a number of bytes or a percentage of `maxmemory`."""
    if share := re.fullmatch(rb"([0-9]+)%", word):
        if int(share[1]) > 100:
            raise BadValue("percentage argument must be less or equal to 100")
        return b"%d%%" % int(share[1]) if int(share[1]) else b"0"
    try:
        return memory()(word)
    except BadValue:
        raise BadValue("argument must be a memory or percent value") from None


def one_of(*words: str) -> Parse:
    """One of a few words, in any case."""

    def parse(word: bytes) -> bytes:
        if word.lower().decode("latin-1") not in words:
            raise BadValue(f"argument(s) must be one of the following: {', '.join(words)}")
        return word.lower()

    return parse


def yes_or_no(word: bytes) -> bytes:
    if word.lower() not in (b"yes", b"no"):
        raise BadValue("argument must be 'yes' or 'no'")
    return word.lower()


def _permissions(word: bytes) -> bytes:
    """File permissions, in octal."""
    if not re.fullmatch(rb"[0-7]{1,4}", word) or int(word, 8) > 0o777:
        raise BadValue("argument must be an octal number up to 777")
    return word


def text(word: bytes) -> bytes:
    return word


def _name_in_dir(setting: str, kind: str = "filename") -> Parse:
    """Parse the name of a file or directory inside `dir`."""

    def parse(word: bytes) -> bytes:
        if not word:
            raise BadValue(f"{setting} can't be empty")
        if b"/" in word or b"\0" in word or word in (b".", b".."):
            raise BadValue(f"{setting} can't be a path, just a {kind}")
        return word

    return parse


def _events(word: bytes) -> bytes:
    letters = keyspace_events.parse(word)
    if letters is None:
        raise BadValue(keyspace_events.BAD_CLASS)
    return "".join(sorted(letters)).encode()  # all of them: what is shown leaves some out


def _shown_events(letters: bytes) -> bytes:
    return keyspace_events.to_text(keyspace_events.parse(letters) or frozenset())


def _save_points(word: bytes) -> bytes:
    """Pairs of seconds and changes."""
    points, at = [], 0
    while word[at:].strip():
        point = _SAVE_POINT.match(word, at)
        if point is None or int(point[1]) < 1:
            raise BadValue("Invalid save parameters")
        points += [point[1], point[2]]
        at = point.end()
    return b" ".join(points)


def _output_limits(words: bytes) -> bytes:
    try:
        return print_output_limits(read_output_limits(words))
    except ValueError as reason:
        raise BadValue(str(reason)) from None


def _percentiles(words: bytes) -> bytes:
    """Numbers from 0 to 100."""
    found = []
    for word in words.split():
        share = parse_double(word)
        if share is None or not 0 <= share <= 100:
            raise BadValue("Invalid latency-tracking-info-percentiles parameters")
        found.append(b"%g" % share)
    return b" ".join(found)


_POLICIES: Final = (
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
    "volatile-lrm",
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "allkeys-lrm",
    "noeviction",
)
_IMMUTABLE: Final = "can't set immutable config"
_FROZEN: Final = {
    "bind": "Failed to bind to specified addresses: they are fixed while the server runs.",
    "port": "Unable to listen on this port: it is fixed while the server runs.",
    "tls-port": "Unable to listen on this port: it is fixed while the server runs.",
}
_PROTECTED: Final = "can't set protected config"
_MEBI: Final = 1 << 20
# Settings that Redis knows by an older name too.
_OLDER_NAMES: Final = {
    "busy-reply-threshold": "lua-time-limit",
    "hash-max-listpack-entries": "hash-max-ziplist-entries",
    "hash-max-listpack-value": "hash-max-ziplist-value",
    "list-max-listpack-size": "list-max-ziplist-size",
    "zset-max-listpack-entries": "zset-max-ziplist-entries",
    "zset-max-listpack-value": "zset-max-ziplist-value",
}
_TWINS: Final = _OLDER_NAMES | {old: new for new, old in _OLDER_NAMES.items()}

OPTIONS: Final[dict[str, Option]] = {
    "acl-pubsub-default": Option(b"resetchannels", one_of("allchannels", "resetchannels")),
    "aclfile": Option(b"", text, _IMMUTABLE),
    "acllog-max-len": Option(b"128", integer()),
    "active-expire-effort": Option(b"1", integer(1, 10)),
    "aof-load-truncated": Option(b"yes", yes_or_no),
    "aof-use-rdb-preamble": Option(b"yes", yes_or_no),
    "appenddirname": Option(b"appendonlydir", _name_in_dir("appenddirname", "dirname"), _IMMUTABLE),
    "appendfilename": Option(b"appendonly.aof", _name_in_dir("appendfilename"), _IMMUTABLE),
    "appendfsync": Option(b"everysec", one_of("everysec", "always", "no")),
    "appendonly": Option(b"no", yes_or_no),
    "auto-aof-rewrite-min-size": Option(b"67108864", memory()),
    "auto-aof-rewrite-percentage": Option(b"100", integer(0, 2**31 - 1)),
    "bind": Option(b"127.0.0.1", text, frozen=True),
    "busy-reply-threshold": Option(b"5000", integer()),
    "client-output-buffer-limit": Option(DEFAULT_OUTPUT_LIMITS, _output_limits, adds=True),
    "client-query-buffer-limit": Option(b"1073741824", memory(_MEBI)),
    "cluster-enabled": Option(b"no", yes_or_no, _IMMUTABLE),
    "daemonize": Option(b"no", yes_or_no, _IMMUTABLE),
    "databases": Option(b"16", integer(1, 2**31 - 1), _IMMUTABLE),
    "dbfilename": Option(b"dump.rdb", _name_in_dir("dbfilename"), _PROTECTED),
    "dir": Option(b"", text, _PROTECTED),
    "enable-debug-command": Option(b"no", one_of("no", "yes", "local"), _IMMUTABLE),
    "hz": Option(b"10", integer(1, 500)),
    "latency-monitor-threshold": Option(b"0", integer()),
    "latency-tracking": Option(b"yes", yes_or_no),
    "latency-tracking-info-percentiles": Option(b"50 99 99.9", _percentiles),
    "lazyfree-lazy-user-flush": Option(b"no", yes_or_no),
    "logfile": Option(b"", text, _IMMUTABLE),
    "loglevel": Option(b"notice", one_of("debug", "verbose", "notice", "warning", "nothing")),
    "lua-time-limit": Option(b"5000", integer()),  # the same as busy-reply-threshold
    "maxclients": Option(b"10000", integer(1, 2**32 - 1)),
    "maxmemory": Option(b"0", memory(0, U64_MAX)),
    "maxmemory-clients": Option(b"0", _memory_or_percent),
    "maxmemory-policy": Option(b"noeviction", one_of(*_POLICIES)),
    "maxmemory-samples": Option(b"5", integer(1, 64)),
    "no-appendfsync-on-rewrite": Option(b"no", yes_or_no),
    "notify-keyspace-events": Option(b"", _events),
    "pidfile": Option(b"", text, _IMMUTABLE),
    "port": Option(b"0", integer(0, 65535), frozen=True),
    "proto-max-bulk-len": Option(b"536870912", memory(_MEBI)),
    "protected-mode": Option(b"yes", yes_or_no),
    "rdbcompression": Option(b"yes", yes_or_no),
    "requirepass": Option(b"", text),
    "sanitize-dump-payload": Option(b"no", one_of("no", "yes", "clients")),
    "save": Option(b"", _save_points),
    "slowlog-entry-max-argc": Option(b"32", integer(2, 2**31 - 1)),
    "slowlog-entry-max-string-len": Option(b"128", integer(1)),
    "slowlog-log-slower-than": Option(b"10000", integer(-1)),
    "slowlog-max-len": Option(b"128", integer()),
    "stream-idmp-duration": Option(b"100", integer(1, 86400)),
    "stream-idmp-maxsize": Option(b"100", integer(1, 10000)),
    "stream-node-max-bytes": Option(b"4096", memory()),
    "stream-node-max-entries": Option(b"100", integer()),
    "supervised": Option(b"no", one_of("upstart", "systemd", "auto", "no"), _IMMUTABLE),
    "syslog-enabled": Option(b"no", yes_or_no, _IMMUTABLE),
    "syslog-facility": Option(b"local0", one_of("user", *(f"local{number}" for number in range(8))), _IMMUTABLE),
    "syslog-ident": Option(b"millstream", text, _IMMUTABLE),
    "tcp-backlog": Option(b"511", integer(0, 2**31 - 1), _IMMUTABLE),
    "tcp-keepalive": Option(b"300", integer(0, 2**31 - 1)),
    "timeout": Option(b"0", integer(0, 2**31 - 1)),
    "tls-auth-clients": Option(b"yes", one_of("no", "yes", "optional"), frozen=True),
    "tls-ca-cert-dir": Option(b"", text, frozen=True),
    "tls-ca-cert-file": Option(b"", text, frozen=True),
    "tls-cert-file": Option(b"", text, frozen=True),
    "tls-ciphers": Option(b"", text, frozen=True),
    "tls-key-file": Option(b"", text, frozen=True),
    "tls-key-file-pass": Option(b"", text, frozen=True),
    "tls-port": Option(b"0", integer(0, 65535), frozen=True),
    "tls-prefer-server-ciphers": Option(b"no", yes_or_no, frozen=True),
    "tls-protocols": Option(b"", text, frozen=True),
    "tracking-table-max-keys": Option(b"1000000", integer()),
    "unixsocket": Option(b"", text, _IMMUTABLE),
    "unixsocketperm": Option(b"0", _permissions, _IMMUTABLE),
}

# What a Redis has to tune and this server has not. It is kept, so that whoever sets it or asks for it goes on.
_WITHOUT_EFFECT: Final = """
    activerehashing=yes aof-rewrite-incremental-fsync=yes aof-timestamp-enabled=no
    crash-log-enabled=yes dynamic-hz=yes hash-max-listpack-entries=512 hash-max-listpack-value=64
    hll-sparse-max-bytes=3000 jemalloc-bg-thread=yes lazyexpire-nested-arbitrary-keys=yes lazyfree-lazy-eviction=no
    lazyfree-lazy-expire=no lazyfree-lazy-server-del=no lazyfree-lazy-user-del=no lfu-decay-time=1 lfu-log-factor=10
    list-compress-depth=0 list-max-listpack-size=-2
    rdb-save-incremental-fsync=yes rdbchecksum=yes repl-backlog-size=1048576 repl-backlog-ttl=3600
    repl-disable-tcp-nodelay=no repl-diskless-sync=yes repl-diskless-sync-delay=5 repl-ping-replica-period=10
    repl-timeout=60 replica-lazy-flush=no replica-priority=100 replica-read-only=yes replica-serve-stale-data=yes
    set-max-intset-entries=512 set-max-listpack-entries=128 set-max-listpack-value=64
    zset-max-listpack-entries=128 zset-max-listpack-value=64
"""
_MEMORY_VALUES: Final = frozenset({"repl-backlog-size"})


def _add_those_without_effect() -> None:
    for pair in _WITHOUT_EFFECT.split():
        name, _, default = pair.partition("=")
        parse = yes_or_no if default in ("yes", "no") else memory() if name in _MEMORY_VALUES else integer(-(2**31))
        for either in (name, _OLDER_NAMES.get(name, name)):
            OPTIONS[either] = Option(default.encode(), parse)


_add_those_without_effect()

# All settings that are kept and change nothing. `maxmemory-policy` is one unless it is `noeviction`.
_EFFECTIVE: Final = frozenset({"aof-load-truncated"})
WITHOUT_EFFECT: Final = (
    (
        frozenset(pair.partition("=")[0] for pair in _WITHOUT_EFFECT.split())
        | _OLDER_NAMES.keys() & OPTIONS.keys()
        | frozenset(_OLDER_NAMES.values())
        | {"active-expire-effort", "hz", "lazyfree-lazy-user-flush", "maxmemory-samples"}
    )
    - _EFFECTIVE
    - {"busy-reply-threshold", "lua-time-limit"}
)


class Config:
    """The values of all settings of a hub."""

    __slots__ = ("_values",)

    def __init__(self, given: dict[str, str] | None = None) -> None:
        """Set the defaults and the settings given at start, which may include immutable ones."""
        self._values = {name: option.default for name, option in OPTIONS.items()}
        for name, value in (given or {}).items():
            if name not in OPTIONS:
                raise ConfigError(f"unknown setting {name!r}")
            try:
                self._values[name] = OPTIONS[name].read(value.encode("utf-8", "surrogateescape"), self._values[name])
            except BadValue as reason:
                raise ConfigError(f"setting {name!r}: {reason}") from reason

    def __getitem__(self, name: str) -> bytes:
        return self._values[name]

    def number(self, name: str) -> int:
        return int(self._values[name])

    def values(self) -> dict[str, bytes]:
        """All settings by name."""
        return dict(self._values)

    def is_on(self, name: str) -> bool:
        return self._values[name] == b"yes"

    def find(self, patterns: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the settings that match a pattern; a plain name keeps the case of the request."""
        found: dict[bytes, bytes] = {}
        for pattern in patterns:
            if not re.search(rb"[*?\[]", pattern):
                name = pattern.lower().decode("latin-1")
                if name in self._values:
                    found.setdefault(pattern, self._shown(name))
                continue
            fits = compiled(pattern, True)
            found.update({name.encode(): self._shown(name) for name in self._values if fits(name.encode())})
        return found

    def _shown(self, name: str) -> bytes:
        """Format a value as CONFIG GET does."""
        return _shown_events(self._values[name]) if name == "notify-keyspace-events" else self._values[name]

    def change(self, words: list[bytes]) -> list[str]:
        """Set name and value pairs, all or none; the names in lower case."""
        if len(words) % 2:
            raise fault(SYNTAX)
        names = [word.lower().decode("latin-1") for word in words[::2]]
        for name, sent in zip(names, words[::2], strict=True):
            if name not in OPTIONS:
                raise fault(b"ERR Unknown option or number of arguments for CONFIG SET - '" + sent + b"'")
        changed: dict[str, bytes] = {}
        for name, sent, value in zip(names, words[::2], words[1::2], strict=True):
            is_duplicate = name in changed or _TWINS.get(name) in changed
            changed[name] = self._checked(name, sent, value, is_duplicate=is_duplicate)
        self._values.update(changed)
        self._values.update({_TWINS[name]: value for name, value in changed.items() if name in _TWINS})
        return names

    def put(self, name: str, value: bytes) -> None:
        """Note what is the case now, whatever was asked for."""
        self._values[name] = value

    def _checked(self, name: str, sent: bytes, value: bytes, *, is_duplicate: bool) -> bytes:
        option = OPTIONS[name]
        if option.refusal is not None:
            raise _failed(sent, option.refusal)
        if is_duplicate:
            raise _failed(sent, "duplicate parameter")
        try:
            new = option.read(value, self._values[name])
        except BadValue as reason:
            raise _failed(sent, str(reason)) from None
        if option.frozen and new != self._values[name]:
            raise _failed(sent, _FROZEN.get(name, "it cannot be changed while the server runs"))
        return new


def defaults() -> dict[str, bytes]:
    """Return the default of each setting."""
    return {name: option.default for name, option in OPTIONS.items()}


def _failed(sent: bytes, reason: str) -> CommandError:
    argument = b"(possibly related to argument '" + sent + b"') - "
    return fault(b"ERR CONFIG SET failed " + argument + reason.encode())
