"""Runs the specification tests on the engine, or on a real server to see that the tests are right.

    MILLSTREAM_SPEC_TARGET=engine (default)   commands run on `millstream.engine` with a clock moved by hand;
                                              `invariants.check` follows every command
    MILLSTREAM_SPEC_TARGET=redis              the same tests run on a real Redis 8.10 on this machine,
    MILLSTREAM_SPEC_PORT=<port>               whose data they destroy

The real server wants `--appendonly yes --appendfsync always --save ""`: what a command did is read back from its
append-only file, from keyspace events, from WATCH and from the change counter, and is compared with the same
expectations as the engine's `Outcome`. A higher `--hz` (100) shortens the waits of blocked claims.

A test talks to an `Engine` and never sees the difference:

    e("XADD", "s", "1-0", "f", "v")     the reply as Python values: str, int, list, None, NIL_ARRAY
    e.error("XADD", "s", "0-0", ...)    the text of the error that must come
    e.wire("XLEN", "s", protocol=3)     the bytes of the reply
    e.did("XNACK", ...)                 a `Did`: reply, log, events, touched keys, readied keys, changes
    e.block("XREAD", "BLOCK", ...)      a `Reader` that waits; reader.reply(), reader.is_waiting()
    e.wait(20), e.now_ms, e.near(20)    time: exact on the engine, close on a server

Maps come as flat lists (the RESP2 form); `pairs` makes dicts of them.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from tests.support.logged import one_by_one

Word = str | int | bytes
LLMAX = 2**63 - 1
U64_MAX = 2**64 - 1
TOP_ID = f"{U64_MAX}-{U64_MAX}"

ON_REDIS = os.environ.get("MILLSTREAM_SPEC_TARGET", "engine") == "redis"

BAD_ID = "ERR Invalid stream ID specified as stream command argument"
NOT_AN_INTEGER = "ERR value is not an integer or out of range"
SYNTAX = "ERR syntax error"
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
ID_TOO_SMALL = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
ID_EXHAUSTED = "ERR The stream has exhausted the last possible ID, unable to add more items"


class NilArray:
    """The null array, which RESP2 tells apart from the null bulk string."""

    def __repr__(self) -> str:
        return "NIL_ARRAY"


NIL_ARRAY = NilArray()


class Near(int):
    """A number of milliseconds that a real server meets with a delay of its own."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and int(self) - 2 <= int(other) <= int(self) + 400

    __hash__ = int.__hash__

    def __repr__(self) -> str:
        return f"about {int(self)}"


@dataclass(frozen=True)
class Failure:
    """An error reply."""

    text: str


@dataclass
class Did:
    """What a command answered and what it did."""

    reply: Any
    log: list[str]  # the commands to replay, words joined by blanks; the command's own time is `now`
    events: list[str]  # "xadd s", in order
    touched: list[str]  # the keys that WATCH sees as changed
    dirty: int
    ready: Any = field(default_factory=list)  # the keys whose waiters run again; a real server does not tell


def arity(command: str) -> str:
    return f"ERR wrong number of arguments for '{command}' command"


def as_bytes(word: Word) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogateescape")


def as_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def spelled(data: bytes) -> str:
    """RESP bytes in the specification's notation: a blank for each line end."""
    return as_text(data).removesuffix("\r\n").replace("\r\n", " ")


def entry(entry_id: str, *fields: str) -> list[Any]:
    """An entry as replies show it; `f v` unless told otherwise."""
    return [entry_id, list(fields or ("f", "v"))]


def pairs(flat: list[Any]) -> dict[Any, Any]:
    """A flat list of keys and values as a dict."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def ids_of(reply: Any) -> list[str]:
    """The ids of a list of entries."""
    return [] if reply is NIL_ARRAY else [item[0] for item in reply]


def decode(data: bytes, at: int = 0) -> tuple[Any, int]:
    """One RESP value from `data[at:]` and where it ends; IndexError if it is cut short."""
    end = data.find(b"\r\n", at)
    if end < 0:
        raise IndexError
    kind, head, at = data[at : at + 1], data[at + 1 : end], end + 2
    if kind == b"+":
        return as_text(head), at
    if kind == b"-":
        return Failure(as_text(head)), at
    if kind == b":":
        return int(head), at
    if kind == b"_":
        return None, at
    if kind == b"$":
        return _decode_bulk(data, at, int(head))
    if kind in b"*~>%":
        return _decode_items(data, at, int(head) * (2 if kind == b"%" else 1))
    raise AssertionError(f"unknown RESP type {kind!r}")


def _decode_bulk(data: bytes, at: int, size: int) -> tuple[Any, int]:
    if size < 0:
        return None, at
    if len(data) < at + size + 2:
        raise IndexError
    return as_text(data[at : at + size]), at + size + 2


def _decode_items(data: bytes, at: int, count: int) -> tuple[Any, int]:
    if count < 0:
        return NIL_ARRAY, at
    items = []
    for _ in range(count):
        item, at = decode(data, at)
        items.append(item)
    return items, at


def make_engine() -> Engine:
    """A fresh engine of the kind that the environment asks for."""
    return RedisServer() if ON_REDIS else PythonEngine()


class Engine:
    """What tests may ask; the two ways of answering are below."""

    now_ms: int

    def __call__(self, *words: Word) -> Any:
        """Run a command that must not fail; its reply."""
        reply = decode(self.wire(*words))[0]
        assert not isinstance(reply, Failure), f"{words} failed: {reply.text}"
        return reply

    def error(self, *words: Word) -> str:
        """Run a command that must fail; the text of its error."""
        reply = decode(self.wire(*words))[0]
        assert isinstance(reply, Failure), f"{words} was answered: {reply!r}"
        return reply.text

    def wire(self, *words: Word, protocol: int = 2) -> bytes:
        """Run a command; the bytes of its reply."""
        raise NotImplementedError

    def did(self, *words: Word, watch: tuple[str, ...] = ("s",), classes: str = "t") -> Did:
        """Run a command; its reply (a `Failure` if it is an error) and its effects, events of these classes only."""
        raise NotImplementedError

    def block(self, *words: Word) -> Reader:
        """Start a command that must find nothing and wait."""
        raise NotImplementedError

    def wait(self, ms: int) -> None:
        """Let time pass."""
        raise NotImplementedError

    def near(self, ms: int) -> int:
        """To compare a duration or a time with: exact when the clock stands still."""
        raise NotImplementedError

    def configure(self, name: str, value: int) -> None:
        """Change a setting for the rest of the test."""
        raise NotImplementedError

    def sweep(self) -> None:
        """Let the periodic sweep of idempotent ids run at least once; on a server this takes time."""
        raise NotImplementedError

    def close(self) -> None:
        """End what the test left open."""

    # What most tests need

    def fill(self, first: int, last: int, key: str = "s") -> None:
        """Append first-0 to last-0, each with `f v`."""
        for ms in range(first, last + 1):
            self("XADD", key, f"{ms}-0", "f", "v")

    def stream(self, last: int, *groups: str, key: str = "s") -> None:
        """A stream 1-0 to last-0 and groups that have read nothing of it."""
        self.fill(1, last, key)
        for group in groups:
            self("XGROUP", "CREATE", key, group, "0")

    def deliver(self, group: str, consumer: str, *options: Word, key: str = "s") -> list[str]:
        """XREADGROUP >; the ids delivered."""
        reply = self("XREADGROUP", "GROUP", group, consumer, *options, "STREAMS", key, ">")
        return [] if reply is NIL_ARRAY else ids_of(reply[0][1])

    def claim(self, group: str, consumer: str, min_idle: Word, *options: Word, key: str = "s") -> Any:
        """XREADGROUP CLAIM; the entries of its one stream, or NIL_ARRAY."""
        reply = self("XREADGROUP", "GROUP", group, consumer, "CLAIM", min_idle, *options, "STREAMS", key, ">")
        return reply if reply is NIL_ARRAY else reply[0][1]

    def history(self, group: str, consumer: str, after: str = "0", key: str = "s") -> list[Any]:
        """XREADGROUP with an id; the entries."""
        return self("XREADGROUP", "GROUP", group, consumer, "STREAMS", key, after)[0][1]

    def nack(self, mode: str, *ids: str, group: str = "g", key: str = "s") -> int:
        return self("XNACK", key, group, mode, "IDS", len(ids), *ids)

    def live(self, key: str = "s") -> list[str]:
        """The ids of all entries of a stream."""
        return ids_of(self("XRANGE", key, "-", "+"))

    def pending(self, group: str = "g", key: str = "s") -> list[Any]:
        """All pending entries: id, consumer, idle, count."""
        return self("XPENDING", key, group, "-", "+", 1000)

    def owners(self, group: str = "g", key: str = "s") -> dict[str, str]:
        """Pending id to consumer, "" for released entries."""
        return {item[0]: item[1] for item in self.pending(group, key)}

    def counts(self, group: str = "g", key: str = "s") -> dict[str, int]:
        """Pending id to delivery count."""
        return {item[0]: item[3] for item in self.pending(group, key)}

    def info(self, key: str = "s") -> dict[str, Any]:
        return pairs(self("XINFO", "STREAM", key))

    def full(self, key: str = "s", *options: Word) -> dict[str, Any]:
        """XINFO STREAM FULL with its groups and their consumers as dicts."""
        info = pairs(self("XINFO", "STREAM", key, "FULL", *options))
        info["groups"] = [pairs(group) for group in info["groups"]]
        for group in info["groups"]:
            group["consumers"] = [pairs(consumer) for consumer in group["consumers"]]
        return info

    def full_group(self, group: str = "g", key: str = "s") -> dict[str, Any]:
        """A group as XINFO STREAM FULL shows it."""
        return next(found for found in self.full(key, "COUNT", 0)["groups"] if found["name"] == group)

    def group_info(self, group: str = "g", key: str = "s") -> dict[str, Any]:
        """A group as XINFO GROUPS shows it."""
        return next(found for found in map(pairs, self("XINFO", "GROUPS", key)) if found["name"] == group)

    def consumers(self, group: str = "g", key: str = "s") -> dict[str, dict[str, Any]]:
        """XINFO CONSUMERS by name."""
        return {found["name"]: found for found in map(pairs, self("XINFO", "CONSUMERS", key, group))}

    def progress(self, group: str = "g", key: str = "s") -> tuple[int | None, int | None]:
        """A group's entries-read and lag."""
        info = self.group_info(group, key)
        return info["entries-read"], info["lag"]


class Reader:
    """A command that waits for its keys."""

    def reply(self) -> Any:
        """The reply that must have come by now; a `Failure` if it is an error."""
        raise NotImplementedError

    def is_waiting(self) -> bool:
        raise NotImplementedError


# The engine


class PythonEngine(Engine):
    """The engine in this process; invariants are checked after every command."""

    def __init__(self) -> None:
        from millstream.engine import commands, invariants
        from millstream.engine.keys.keyspace import Keyspace
        from millstream.server.protocol import resp

        self._execute, self._check, self._encode = commands.execute, invariants.check, resp.encode
        self.keyspace = Keyspace()
        self.now_ms = 1_767_225_600_000
        self.readers: list[EngineReader] = []
        self.log: list[tuple[bytes, ...]] = []  # everything logged so far

    def fill(self, first: int, last: int, key: str = "s") -> None:
        """As above, but with one check of the invariants for all (a check looks at everything)."""
        check, self._check = self._check, lambda keyspace: None
        try:
            super().fill(first, last, key)
        finally:
            self._check = check
        self._check(self.keyspace)

    def outcome(self, *words: Word, protocol: int = 2, may_block: bool = False) -> Any:
        """Run a command; its Outcome. Then run the readers it made ready, as a server does."""
        outcome = self.run([as_bytes(word) for word in words], protocol, may_block)
        self._serve([key for _, key in outcome.ready])
        return outcome

    def run(self, argv: list[bytes], protocol: int = 2, may_block: bool = False) -> Any:
        """Run a command and check the invariants; its Outcome."""
        outcome = self._execute(self.keyspace, 0, argv, self.now_ms, may_block=may_block, protocol=protocol)
        self._check(self.keyspace)
        self.log += [argv for _, argv in outcome.log]
        return outcome

    def replayed(self) -> PythonEngine:
        """A fresh engine made of this one's log, a minute later and with nothing left to chance."""
        twin = PythonEngine()
        twin.now_ms = self.now_ms + 60_000
        for argv in self.log:
            reply = self._execute(twin.keyspace, 0, list(argv), twin.now_ms, trusted=True).reply
            assert not isinstance(reply, Exception), f"{argv} failed: {reply}"
            self._check(twin.keyspace)
        return twin

    def wire(self, *words: Word, protocol: int = 2) -> bytes:
        return self.encode(self.outcome(*words, protocol=protocol).reply, protocol)

    def encode(self, reply: Any, protocol: int = 2) -> bytes:
        data = self._encode(reply, protocol)
        assert decode(data)[1] == len(data), "a reply is exactly one RESP value"
        return data

    def did(self, *words: Word, watch: tuple[str, ...] = ("s",), classes: str = "t") -> Did:
        outcome = self.outcome(*words)
        reply = decode(self.encode(outcome.reply))[0]
        assert all(db == 0 for db, _ in outcome.log + outcome.touched + outcome.ready)
        touched = dict.fromkeys(as_text(key) for _, key in outcome.touched)
        return Did(
            reply=reply,
            log=[as_logged(list(argv), self.now_ms) for _, line in outcome.log for argv in one_by_one(line)],
            events=[f"{as_text(it.name)} {as_text(it.key)}" for it in outcome.events if it.kind in classes],
            touched=[key for key in touched if key in watch],
            dirty=outcome.dirty,
            ready=list(dict.fromkeys(as_text(key) for _, key in outcome.ready)),
        )

    def block(self, *words: Word) -> EngineReader:
        outcome = self.outcome(*words, may_block=True)
        assert hasattr(outcome.reply, "argv"), f"{words} did not wait: {outcome.reply!r}"
        reader = EngineReader(self, outcome.reply)
        self.readers.append(reader)
        return reader

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        for reader in list(self.readers):
            wake_at = reader.wait.wake_at_ms
            if wake_at is not None and wake_at < self.now_ms:
                reader.run_again()
        for reader in list(self.readers):
            if reader.deadline_ms is not None and reader.deadline_ms <= self.now_ms:
                reader.answer(NIL_ARRAY)

    def near(self, ms: int) -> int:
        return ms

    def configure(self, name: str, value: int) -> None:
        attribute = name.replace("-", "_")
        assert hasattr(self.keyspace.settings, attribute), name
        setattr(self.keyspace.settings, attribute, value)

    def sweep(self) -> None:
        from millstream.engine.streams.stream import sweep_idempotency

        for database in self.keyspace:
            sweep_idempotency(database, self.now_ms)
        self._check(self.keyspace)

    def _serve(self, keys: list[bytes]) -> None:
        """Run the readers that wait for these keys again, the longest waiting first."""
        for key in dict.fromkeys(keys):
            for reader in list(self.readers):
                value = self.keyspace.databases[0].values.get(key)
                if key in reader.wait.keys and (reader.wait.group or type(value).__name__ == "Stream"):
                    reader.run_again()


class EngineReader(Reader):
    """A `Wait` of the engine, run again as the specification says (base section 6)."""

    def __init__(self, engine: PythonEngine, wait: Any) -> None:
        self.engine, self.wait = engine, wait
        self.deadline_ms = engine.now_ms + wait.timeout_ms if wait.timeout_ms else None
        self.answered: list[Any] = []

    def run_again(self) -> None:
        reply = self.engine.run(list(self.wait.argv), may_block=True).reply
        if hasattr(reply, "argv"):
            self.wait = reply
        else:
            self.answer(decode(self.engine.encode(reply))[0])

    def answer(self, reply: Any) -> None:
        self.answered.append(reply)
        self.engine.readers.remove(self)

    def reply(self) -> Any:
        assert self.answered, f"{self.wait.argv} still waits"
        return self.answered[0]

    def is_waiting(self) -> bool:
        return not self.answered


# A real server


class Connection:
    """One connection to the server: send words, read replies."""

    def __init__(self, port: int, protocol: int = 2) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.buffer = b""
        if protocol == 3:
            self.call("HELLO", 3)

    def send(self, *words: Word) -> None:
        parts = [b"*%d\r\n" % len(words)]
        for word in map(as_bytes, words):
            parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
        self.socket.sendall(b"".join(parts))

    def raw(self, timeout_s: float = 5) -> bytes:
        """The bytes of the next reply."""
        self.socket.settimeout(timeout_s)
        while True:
            try:
                _, end = decode(self.buffer)
            except IndexError:
                data = self.socket.recv(1 << 16)
                assert data, "the server closed the connection"
                self.buffer += data
                continue
            found, self.buffer = self.buffer[:end], self.buffer[end:]
            return found

    def call(self, *words: Word) -> Any:
        self.send(*words)
        return decode(self.raw())[0]

    def close(self) -> None:
        self.socket.close()


class RedisServer(Engine):
    """A real server, emptied for each test."""

    settings = {
        "stream-node-max-entries": 100,
        "stream-node-max-bytes": 4096,
        "stream-idmp-duration": 100,
        "stream-idmp-maxsize": 100,
    }
    shared: dict[int, Connection] = {}

    def __init__(self) -> None:
        self.port = int(os.environ["MILLSTREAM_SPEC_PORT"])
        self.opened: list[Connection] = []
        self.connection(2).call("FLUSHALL")
        self._reset_settings()

    def _reset_settings(self) -> None:
        for name, value in self.settings.items():
            assert self.connection(2).call("CONFIG", "SET", name, value) == "OK"

    def connection(self, protocol: int) -> Connection:
        """The connection that all tests use for this protocol."""
        if protocol not in self.shared:
            self.shared[protocol] = Connection(self.port, protocol)
        return self.shared[protocol]

    def open(self) -> Connection:
        """A connection for this test alone."""
        self.opened.append(Connection(self.port))
        return self.opened[-1]

    def close(self) -> None:
        for connection in self.opened:
            connection.close()
        self._reset_settings()

    @property
    def now_ms(self) -> int:  # type: ignore[override]
        seconds, micros = self.connection(2).call("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def wire(self, *words: Word, protocol: int = 2) -> bytes:
        connection = self.connection(protocol)
        connection.send(*words)
        return connection.raw()

    def fill(self, first: int, last: int, key: str = "s") -> None:
        """As above, in one packet."""
        connection = self.connection(2)
        for ms in range(first, last + 1):
            connection.send("XADD", key, f"{ms}-0", "f", "v")
        for ms in range(first, last + 1):
            assert decode(connection.raw())[0] == f"{ms}-0"

    def wait(self, ms: int) -> None:
        time.sleep((ms + 0.5) / 1000)

    def near(self, ms: int) -> int:
        return Near(ms)

    def configure(self, name: str, value: int) -> None:
        assert self("CONFIG", "SET", name, value) == "OK"

    def sweep(self) -> None:
        time.sleep(1.3)

    def block(self, *words: Word) -> RedisReader:
        before = self._blocked()
        connection = self.open()
        connection.send(*words)
        for _ in range(200):
            if self._blocked() > before:
                return RedisReader(connection)
            time.sleep(0.005)
        raise AssertionError(f"{words} did not wait")

    def _blocked(self) -> int:
        return self._counter("clients", "blocked_clients")

    def _counter(self, section: str, name: str) -> int:
        info = self.connection(2).call("INFO", section)
        return int(next(line for line in info.split("\r\n") if line.startswith(name + ":")).split(":")[1])

    def did(self, *words: Word, watch: tuple[str, ...] = ("s",), classes: str = "t") -> Did:
        main = self.connection(2)
        assert main.call("CONFIG", "GET", "appendonly")[1] == "yes", "start the server with --appendonly yes"
        main.call("CONFIG", "SET", "notify-keyspace-events", "E" + classes)
        listener, watchers = self.open(), {key: self.open() for key in watch}
        listener.call("PSUBSCRIBE", "__keyevent@0__:*")
        for key, watcher in watchers.items():
            watcher.call("WATCH", key)
        at, changes = len(self._log_bytes()), self._counter("persistence", "rdb_changes_since_last_save")
        reply = main.call(*words)
        return Did(
            reply=reply,
            log=list(self._logged_after(at)),
            events=list(self._events(listener)),
            touched=[key for key, watcher in watchers.items() if _is_dirty(watcher)],
            dirty=self._counter("persistence", "rdb_changes_since_last_save") - changes,
            ready=ANY,
        )

    def _log_bytes(self) -> bytes:
        """The newest file of the append-only log."""
        main = self.connection(2)
        folder = Path(main.call("CONFIG", "GET", "dir")[1]) / main.call("CONFIG", "GET", "appenddirname")[1]
        name = main.call("CONFIG", "GET", "appendfilename")[1]
        lines = (folder / f"{name}.manifest").read_text().splitlines()
        return (folder / [line.split()[1] for line in lines if " type i" in line][-1]).read_bytes()

    def _logged_after(self, at: int) -> Iterator[str]:
        data, now_ms = self._log_bytes()[at:], self.now_ms
        end = 0
        while end < len(data):
            argv, end = decode(data, end)
            if argv[0].upper() not in ("SELECT", "MULTI", "EXEC"):
                yield as_logged([as_bytes(word) for word in argv], now_ms, slack_ms=3000)

    def _events(self, listener: Connection) -> Iterator[str]:
        self.connection(2).call("PUBLISH", "__keyevent@0__:end", "")
        for _ in itertools.count():
            _, _, channel, key = decode(listener.raw())[0]
            name = channel.partition(":")[2]
            if name == "end":
                return
            yield f"{name} {key}"


def _is_dirty(watcher: Connection) -> bool:
    watcher.call("MULTI")
    return watcher.call("EXEC") is NIL_ARRAY


def as_logged(argv: list[bytes], now_ms: int, slack_ms: int = 0) -> str:
    """A logged command as text; a TIME that is the command's own is written as `now`."""
    words = [as_text(word) for word in argv]
    for at in range(1, len(words)):
        if words[at - 1] == "TIME" and 0 <= now_ms - int(words[at]) <= slack_ms:
            words[at] = "now"
    return " ".join(words)


class RedisReader(Reader):
    """A connection whose command waits."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def reply(self) -> Any:
        return decode(self.connection.raw(timeout_s=2))[0]

    def is_waiting(self) -> bool:
        try:
            data = self.connection.raw(timeout_s=0.03)
        except TimeoutError:
            return True
        self.connection.buffer = data + self.connection.buffer  # for reply()
        return False


engine_only = pytest.mark.skipif(ON_REDIS, reason="asks for what only the engine shows")
