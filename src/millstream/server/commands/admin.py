"""Server commands without a home of their own: TIME, ROLE, WAIT, MEMORY, DEBUG, CLUSTER, MONITOR."""

from __future__ import annotations

import re
import time
from typing import Final

from millstream.clock import SystemClock
from millstream.engine.commands.plain.generic import encoding_of
from millstream.engine.faults import (
    BLOCK_NEGATIVE,
    BLOCK_NOT_INTEGER,
    BLOCK_OUT_OF_RANGE,
    NO_SUCH_KEY,
    SYNTAX,
    bad_subcommand_use,
    fault,
)
from millstream.engine.outcome import OK, Pairs, Reply, Simple, Verbatim, Wait
from millstream.engine.text.args import integer
from millstream.persistence.rdb import dump_payload
from millstream.server.commands.common import add_help
from millstream.server.commands.persistence import debug_loadaof, debug_reload
from millstream.server.core.call import ServerCall, ServerRegistry, ServerRun
from millstream.server.features.maxmemory import STARTUP, of_key

COMMANDS = ServerRegistry("server")
_TRAILER: Final = 11  # bytes of what DUMP answers that are not the value: its type, the version, the checksum
_FAST = "loading stale fast"
_ADMIN = "admin noscript loading stale"


@COMMANDS.serves("time", 1, _FAST, since="2.6.0", summary="Returns the server time.")
def time_(call: ServerCall, argv: list[bytes]) -> Reply:
    """TIME"""
    if isinstance(call.hub.clock, SystemClock):
        seconds, rest = divmod(time.time_ns(), 10**9)
        return [b"%d" % seconds, b"%d" % (rest // 1000)]
    seconds, ms = divmod(call.now_ms, 1000)
    return [b"%d" % seconds, b"%d" % (ms * 1000)]


@COMMANDS.serves(
    "role",
    1,
    "noscript loading stale fast",
    since="2.8.12",
    summary="Returns the replication role.",
    extra_categories="@admin @dangerous",
)
def role(call: ServerCall, argv: list[bytes]) -> Reply:
    """ROLE"""
    return [b"master", 0, []]


# Waiting for replicas, of which there are none


def _timeout(call: ServerCall, word: bytes) -> int:
    timeout_ms = integer(word, BLOCK_NOT_INTEGER)
    if timeout_ms < 0:
        raise fault(BLOCK_NEGATIVE)
    if call.now_ms + timeout_ms > 2**63 - 1:
        raise fault(BLOCK_OUT_OF_RANGE)
    return timeout_ms


@COMMANDS.serves(
    "wait", 3, "blocking", group="connection", since="3.0.0", summary="Waits until replicas have caught up."
)
def wait(call: ServerCall, argv: list[bytes]) -> Reply | Wait:
    """WAIT numreplicas timeout"""
    replicas = integer(argv[1])
    timeout_ms = _timeout(call, argv[2])
    if replicas <= 0 or not call.may_block:
        return 0
    return Wait((), timeout_ms, argv)


@COMMANDS.serves("waitaof", 4, "blocking", group="connection", since="7.2.0", summary="Waits until writes are synced.")
def waitaof(call: ServerCall, argv: list[bytes]) -> Reply | Wait:
    """WAITAOF numlocal numreplicas timeout"""
    local, replicas = integer(argv[1]), integer(argv[2])
    if not 0 <= local <= 1:
        raise fault("ERR value is out of range, value must between 0 and 1")
    if replicas < 0:
        raise fault("ERR value is out of range, must be positive")
    timeout_ms = _timeout(call, argv[3])
    if local and not call.hub.config.is_on("appendonly"):
        raise fault("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.")
    if local and call.hub.store is not None:
        call.hub.store.settle()
    if replicas == 0 or not call.may_block:
        return [local, 0]
    return Wait((), timeout_ms, argv)


# MEMORY

COMMANDS.contains("memory", since="4.0.0", summary="A container for memory diagnostics commands.")


@COMMANDS.serves(
    "memory|usage",
    -3,
    "readonly",
    keys=(2, 2, 1),
    access="RO",
    since="4.0.0",
    summary="Estimates the memory a key takes.",
)
def memory_usage(call: ServerCall, argv: list[bytes]) -> Reply:
    """MEMORY USAGE key [SAMPLES count]"""
    rest, samples = argv[3:], 5
    while rest:
        if rest[0].upper() != b"SAMPLES" or len(rest) < 2 or integer(rest[1]) < 0:
            raise fault(SYNTAX)
        rest, samples = rest[2:], integer(rest[1])
    return None if call.lookup_to_read(argv[2]) is None else of_key(call.db, argv[2], samples)


@COMMANDS.serves("memory|stats", 2, since="4.0.0", summary="Returns details about memory usage.")
def memory_stats(call: ServerCall, argv: list[bytes]) -> Reply:
    """MEMORY STATS"""
    memory = call.hub.memory
    used, peak = memory.used, memory.peak
    keys = sum(len(db.values) for db in call.hub.keyspace)
    dataset = used - STARTUP
    return Pairs(
        [
            b"peak.allocated",
            peak,
            b"total.allocated",
            used,
            b"startup.allocated",
            STARTUP,
            b"replication.backlog",
            0,
            b"clients.slaves",
            0,
            b"clients.normal",
            call.hub.client_memory.total,
            b"cluster.links",
            0,
            b"aof.buffer",
            0,
            b"lua.caches",
            call.hub.runner.memory,
            b"functions.caches",
            0,
            b"overhead.total",
            STARTUP,
            b"keys.count",
            keys,
            b"keys.bytes-per-key",
            dataset // keys if keys else 0,
            b"dataset.bytes",
            dataset,
            b"dataset.percentage",
            100.0 if dataset else 0.0,
            b"peak.percentage",
            100 * used / peak if peak else 0.0,
        ]
    )


@COMMANDS.serves("memory|malloc-stats", 2, since="4.0.0", summary="Returns the allocator's statistics.")
def memory_malloc_stats(call: ServerCall, argv: list[bytes]) -> Reply:
    """MEMORY MALLOC-STATS"""
    return Verbatim(b"Stats not supported for the current allocator")


@COMMANDS.serves("memory|doctor", 2, since="4.0.0", summary="Reports memory problems.")
def memory_doctor(call: ServerCall, argv: list[bytes]) -> Reply:
    """MEMORY DOCTOR"""
    return Verbatim(b"Nothing to report: this server leaves its memory to Python.\n")


@COMMANDS.serves("memory|purge", 2, since="4.0.0", summary="Asks the allocator to release memory.")
def memory_purge(call: ServerCall, argv: list[bytes]) -> Reply:
    """MEMORY PURGE"""
    return OK


# DEBUG, MONITOR


@COMMANDS.serves("debug", -2, _ADMIN, summary="A container for debugging commands.")
def debug(call: ServerCall, argv: list[bytes]) -> Reply:
    """DEBUG <SLEEP seconds | SET-ACTIVE-EXPIRE 0|1 | LOADAOF | RELOAD [NOSAVE] [NOFLUSH] [MERGE] | OBJECT key |
    SET-DISABLE-DENY-SCRIPTS 0|1>
    """
    match argv[1].upper(), len(argv):
        case b"SLEEP", 3:
            if isinstance(call.hub.clock, SystemClock):
                time.sleep(_generous_float(argv[2]))  # under the lock: everybody waits, as in Redis
            return OK
        case b"SET-ACTIVE-EXPIRE", 3:
            call.hub.active_expiry = _generous_float(argv[2]) != 0
            call.hub.keep_swept()
            return OK
        case b"SET-DISABLE-DENY-SCRIPTS", 3:
            call.hub.runner.allows_everything = _generous_float(argv[2]) != 0
            return OK
        case b"OBJECT", 3:
            return _debug_object(call, argv[2])
        case b"LOADAOF", _:
            return debug_loadaof(call, argv)
        case b"RELOAD", _:
            return debug_reload(call, argv)
        case ((b"JMAP" | b"QUICKLIST-PACKED-THRESHOLD" | b"PAUSE-CRON"), 3):
            return OK
    raise bad_subcommand_use("debug", argv[1])


def _debug_object(call: ServerCall, key: bytes) -> Reply:
    """Describe a value as Redis does. The address is one of this process, the clock that of OBJECT IDLETIME."""
    value = call.db.values.get(key)  # also one whose time is over: who debugs wants to see it
    if value is None:
        raise fault(NO_SUCH_KEY)
    used_ms = call.db.accessed.get(key, call.now_ms)
    size = len(dump_payload(value, compress=False, now_ms=call.now_ms)) - _TRAILER
    idle_s = max(0, call.now_ms - used_ms) // 1000
    return Simple(
        f"Value at:{id(value):#x} refcount:1 encoding:{encoding_of(key, value).decode()} serializedlength:{size} "
        f"lru:{used_ms // 1000 % (1 << 24)} lru_seconds_idle:{idle_s}".encode()
    )


def _generous_float(word: bytes) -> float:
    """Return the number at the beginning of a word, or 0, as C reads it."""
    number = re.match(rb"\s*([0-9]*\.?[0-9]+)", word)
    return float(number[1]) if number else 0.0


@COMMANDS.serves("monitor", 1, _ADMIN, summary="Shows all commands as they run.")
def monitor(call: ServerCall, argv: list[bytes]) -> Reply:
    """MONITOR"""
    call.hub.monitors[call.session] = None
    call.hub.observe()
    return OK


# Cluster commands: there is no cluster

COMMANDS.contains("cluster", since="3.0.0", summary="A container for cluster commands.")


def _refuse_cluster(call: ServerCall, argv: list[bytes]) -> Reply:
    raise fault("ERR This instance has cluster support disabled")


def _without_cluster(name: str, arity: int, flags: str, group: str | None = None) -> None:
    refuse: ServerRun = _refuse_cluster
    COMMANDS.serves(name, arity, flags, group=group, since="3.0.0", summary="Needs a cluster.")(refuse)


_CLUSTER_FLAGS: Final = dict.fromkeys(
    ("meet", "failover", "addslots", "delslots", "setslot"), "admin stale no_async_loading"
) | {
    "reset": "admin noscript stale",
    "countkeysinslot": "stale",
    "getkeysinslot": "stale",
    "replicas": "admin loading stale",
    "slaves": "admin loading stale",
}
for _name, _arity in (
    ("info", 2),
    ("nodes", 2),
    ("slots", 2),
    ("shards", 2),
    ("myid", 2),
    ("myshardid", 2),
    ("links", 2),
    ("keyslot", 3),
    ("countkeysinslot", 3),
    ("getkeysinslot", 4),
    ("meet", -4),
    ("reset", -2),
    ("help", 2),
    ("replicas", 3),
    ("slaves", 3),
    ("failover", -2),
    ("addslots", -3),
    ("delslots", -3),
    ("setslot", -4),
):
    _without_cluster(f"cluster|{_name}", _arity, _CLUSTER_FLAGS.get(_name, "loading stale"))
_without_cluster("readonly", 1, _FAST, "connection")
_without_cluster("readwrite", 1, _FAST, "connection")
_without_cluster("asking", 1, "fast", "connection")

add_help(COMMANDS, "memory")
