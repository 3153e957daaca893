"""Nothing is left behind: after many operations of a kind a server has as many objects as before them.

Garbage in circles counts as left behind: the collector finds it in the end, but it looks at old objects so seldom that
by then everything that such a circle has hold of (buffers, a copy of all keys) has piled up. So it is switched off
here, and must have nothing to do.
"""

from __future__ import annotations

import contextlib
import gc
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.persistence.malloc import give_back
from millstream.persistence.store import Store
from millstream.server.core.hub import Hub
from millstream.server.net.listener import Endpoints
from millstream.server.net.serve import BackgroundServer
from tests.support.ours import WAIT_S, Ours, eventually, read_all
from tests.support.wire import Wire, pack

TIMES = 120
ROOM = TIMES // 3  # objects that may come or go: caches of Python and of the loop, which do not grow with TIMES
READ = (b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", b"1", b"STREAMS", b"s", b">")

Kind = Callable[[Ours, int], None]


@pytest.fixture(scope="module", params=["yes", "no"], ids=["log", "no log"])
def ours(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours]:
    """A server that keeps its state; slow commands, which a busy machine makes, are not remembered."""
    settings = {"appendonly": request.param, "slowlog-log-slower-than": "-1", "latency-tracking": "no"}
    give_back()  # what it imports is imported now, and not by the first rewrite that ends
    hub = Hub(settings=settings)
    store = Store(hub, tmp_path_factory.mktemp("data"))
    store.open()
    hub.store = store
    with BackgroundServer(hub, Endpoints(port=0)) as server:
        yield Ours(hub, server, Path())
    store.close()
    hub.close()


def connections(ours: Ours, times: int) -> None:
    for at in range(times):
        with ours.connect(2 + at % 2) as wire:
            wire.ask(b"PING")


def half_closed(ours: Ours, times: int) -> None:
    for _ in range(times):
        with ours.open() as sock:
            sock.sendall(b"PING\r\n")
            sock.shutdown(socket.SHUT_WR)
            read_all(sock)


def broken_protocol(ours: Ours, times: int) -> None:
    for _ in range(times):
        with ours.open() as sock:
            sock.sendall(b"*1\r\n:5\r\n")
            read_all(sock)


def killed(ours: Ours, times: int) -> None:
    with ours.connect() as wire:
        for _ in range(times):
            with ours.open() as victim:
                victim.sendall(pack([b"CLIENT", b"ID"]))
                wire.ask(b"CLIENT", b"KILL", b"ID", victim.recv(100)[1:-2])
                read_all(victim)


def deliveries(ours: Ours, times: int) -> None:
    with ours.connect() as wire:
        wire.ask(b"XGROUP", b"CREATE", b"s", b"g", b"0", b"MKSTREAM")
        ids = wire.exchange(pack([b"XADD", b"s", b"*", b"f", b"v" * 100]) * times).split(b"\r\n")[1::2]
        wire.exchange(pack(READ) * times)
        wire.exchange(b"".join(pack([b"XACK", b"s", b"g", entry_id]) for entry_id in ids))
        wire.ask(b"DEL", b"s")


def one_at_a_time(ours: Ours, times: int) -> None:
    """What several connections send at once, which one turn runs together."""
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(ours.connect()) for _ in range(6)]
        wires[0].ask(b"XGROUP", b"CREATE", b"s", b"g", b"0", b"MKSTREAM")
        for _ in range(times // 6):
            for request in ([b"XADD", b"s", b"*", b"f", b"v"], READ):
                for wire in wires:
                    wire.send_only(request)
                for wire in wires:
                    wire.receive_some()
        wires[0].ask(b"DEL", b"s")


def releases_and_claims(ours: Ours, times: int) -> None:
    with ours.connect() as wire:
        wire.ask(b"XGROUP", b"CREATE", b"s", b"g", b"0", b"MKSTREAM")
        for at in range(times):
            entry_id = wire.ask(b"XADD", b"s", b"*", b"f", b"v").split(b"\r\n")[1]
            wire.ask(b"XREADGROUP", b"GROUP", b"g", b"c%d" % at, b"STREAMS", b"s", b">")
            wire.ask(b"XNACK", b"s", b"g", b"FAIL", b"IDS", b"1", entry_id)
            wire.ask(b"XREADGROUP", b"GROUP", b"g", b"d", b"CLAIM", b"0", b"STREAMS", b"s", b">")
            wire.ask(b"XGROUP", b"DELCONSUMER", b"s", b"g", b"c%d" % at)
            assert wire.ask(b"XACKDEL", b"s", b"g", b"DELREF", b"IDS", b"1", entry_id) == b"*1\r\n:1\r\n"
        wire.ask(b"DEL", b"s")


def transactions(ours: Ours, times: int) -> None:
    requests = [b"WATCH", b"n"], [b"MULTI"], [b"INCR", b"n"], [b"LPUSH", b"n", b"x"], [b"EXEC"]
    aborted = [b"MULTI"], [b"NOPE"], [b"EXEC"]
    with ours.connect() as wire:
        for _ in range(times):
            wire.exchange(b"".join(map(pack, (*requests, *aborted))))


def scripts(ours: Ours, times: int) -> None:
    with ours.connect() as wire:
        for at in range(times):
            wire.ask(b"EVAL", b"return redis.call('incrby', KEYS[1], %d)" % (at % 30), b"1", b"n")


def scripts_that_fail(ours: Ours, times: int) -> None:
    with ours.connect() as wire:
        wire.ask(b"SET", b"text", b"x")
        for body in (b"return redis.call('incr', 'text')", b"error('x')", b"return redis.error_reply('X y')", b"?"):
            for _ in range(times // 4):
                assert wire.ask(b"EVAL", body, b"0").startswith(b"-")


def errors(ours: Ours, times: int) -> None:
    with ours.connect() as wire:
        wire.ask(b"SET", b"text", b"x")
        for _ in range(times):
            for request in (b"XADD text * a b", b"INCR text", b"XADD new 0-0 a b", b"CONFIG SET nope 1", b"NOPE"):
                assert wire.ask(*request.split()).startswith(b"-")


def subscriptions(ours: Ours, times: int) -> None:
    with ours.connect() as publisher:
        for at in range(times):
            with ours.connect() as wire:
                wire.send_only([b"SUBSCRIBE", b"channel-%d" % at])
                wire.receive_some()
                wire.send_only([b"PSUBSCRIBE", b"c*"])
                wire.receive_some()
                publisher.ask(b"PUBLISH", b"channel-%d" % at, b"x")


def waits_that_time_out(ours: Ours, times: int) -> None:
    with ours.connect() as wire:
        for at in range(times):
            wire.ask(b"XREAD", b"BLOCK", b"1", b"STREAMS", b"none-%d" % at, b"$")


def waits_that_are_served(ours: Ours, times: int) -> None:
    with ours.connect() as waiting, ours.connect() as giving:
        for _ in range(times):
            waiting.send_only([b"BLPOP", b"list", b"60"])
            assert eventually(lambda: len(ours.hub.waiters) == 1)
            giving.ask(b"RPUSH", b"list", b"x")
            waiting.receive_some()


def keys_that_expire(ours: Ours, times: int) -> None:
    with ours.connect() as wire:
        for at in range(times):
            wire.ask(b"SET", b"short-%d" % at, b"v" * 100, b"PX", b"3")
        assert eventually(lambda: not any(key.startswith(b"short-") for key in ours.hub.keyspace.databases[0].values))


def idempotent_appends(ours: Ours, times: int) -> None:
    with ours.connect() as wire:
        for at in range(times):
            wire.ask(b"XADD", b"s", b"IDMPAUTO", b"p%d" % at, b"MAXLEN", b"10", b"*", b"f", b"%d" % at)
        wire.ask(b"DEL", b"s")


def caches(ours: Ours, times: int) -> None:
    with ours.connect(3) as wire, ours.connect() as other:
        wire.ask(b"CLIENT", b"TRACKING", b"ON")
        for at in range(times):
            wire.ask(b"GET", b"cached-%d" % at)
            other.ask(b"SET", b"cached-%d" % at, b"x")
            other.ask(b"DEL", b"cached-%d" % at)


def questions(ours: Ours, times: int) -> None:
    with ours.connect() as wire:
        for _ in range(times // 4):
            for request in (b"INFO everything", b"CLIENT LIST", b"SLOWLOG GET", b"LATENCY LATEST", b"COMMAND COUNT"):
                wire.ask(*request.split())


def rewrites(ours: Ours, times: int) -> None:
    with ours.connect() as wire:
        wire.exchange(pack([b"XADD", b"s", b"*", b"f", b"v" * 100]) * 1000)
        for _ in range(5):
            assert wire.ask(b"BGREWRITEAOF").startswith(b"+")
            assert eventually(lambda: _is_idle(wire))
        wire.ask(b"DEL", b"s")


def snapshots(ours: Ours, times: int) -> None:
    with ours.connect() as wire:
        wire.exchange(pack([b"XADD", b"s", b"*", b"f", b"v" * 100]) * 1000)
        for _ in range(5):
            assert wire.ask(b"SAVE") == b"+OK\r\n"
            assert wire.ask(b"BGSAVE").startswith(b"+")
            assert eventually(lambda: _is_idle(wire))
        wire.ask(b"DEL", b"s")


def _is_idle(wire: Wire) -> bool:
    info = wire.ask(b"INFO", b"persistence")
    assert b"aof_last_bgrewrite_status:ok" in info
    assert b"rdb_last_bgsave_status:ok" in info
    return b"aof_rewrite_in_progress:0" in info and b"rdb_bgsave_in_progress:0" in info


KINDS: list[Kind] = [
    connections,
    half_closed,
    broken_protocol,
    killed,
    deliveries,
    one_at_a_time,
    releases_and_claims,
    transactions,
    scripts,
    scripts_that_fail,
    errors,
    subscriptions,
    waits_that_time_out,
    waits_that_are_served,
    keys_that_expire,
    idempotent_appends,
    caches,
    questions,
    rewrites,
    snapshots,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_nothing_is_left_behind(ours: Ours, kind: Kind) -> None:
    with _without_collector():
        kind(ours, TIMES)  # what is made once is made now
        _garbage(ours)
        before, blocks = len(gc.get_objects()), sys.getallocatedblocks()
        kind(ours, TIMES)
        assert _garbage(ours) == {}
        assert len(gc.get_objects()) - before < ROOM
        assert sys.getallocatedblocks() - blocks < TIMES


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what other tests have left is not looked at again and again
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _garbage(ours: Ours) -> dict[str, int]:
    """What only the collector could find, by type."""
    assert eventually(ours.is_deserted)
    assert ours.hub.store is not None
    ours.hub.store.background.join(WAIT_S)
    with ours.hub.lock:
        ours.hub.store.settle()  # what is written is kept until it is synced
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return dict(Counter(type(each).__qualname__ for each in gc.garbage))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.collect()
