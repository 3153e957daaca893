"""Server commands without a home of their own: TIME, ROLE, WAIT, SLOWLOG, LATENCY, MEMORY, DEBUG, CLUSTER, MONITOR."""

from __future__ import annotations

import re
import time

from millstream.clock import SystemClock
from millstream.engine.args import as_integer, integer
from millstream.engine.faults import (
    BLOCK_NEGATIVE,
    BLOCK_NOT_INTEGER,
    BLOCK_OUT_OF_RANGE,
    SYNTAX,
    bad_subcommand_use,
    fault,
)
from millstream.engine.outcome import OK, Pairs, Reply, Verbatim, Wait
from millstream.server.call import ServerCall, ServerRegistry, ServerRun
from millstream.server.commands.common import add_help
from millstream.server.commands.keeping import debug_loadaof, debug_reload
from millstream.server.memory import of_key

COMMANDS = ServerRegistry("server")
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
    "role", 1, "noscript loading stale fast", since="2.8.12", summary="Returns the replication role.",
    extra_categories="@admin @dangerous",
)  # fmt: skip
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


@COMMANDS.serves(
    "waitaof", 4, "blocking", group="connection", since="7.2.0", summary="Waits until writes are synced."
)
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


# SLOWLOG and LATENCY: nothing is recorded

COMMANDS.contains("slowlog", since="2.2.12", summary="A container for slow log commands.")
COMMANDS.contains("latency", since="2.8.13", summary="A container for latency diagnostics commands.")
_SLOWLOG = "admin loading stale"


@COMMANDS.serves("slowlog|get", -2, _SLOWLOG, since="2.2.12", summary="Returns slow commands: none are kept.")
def slowlog_get(call: ServerCall, argv: list[bytes]) -> Reply:
    """SLOWLOG GET [count]"""
    count = as_integer(argv[2]) if len(argv) > 2 else 10
    if count is None or count < -1:
        raise fault("ERR count should be greater than or equal to -1")
    return []


@COMMANDS.serves("slowlog|len", 2, _SLOWLOG, since="2.2.12", summary="Returns the length of the slow log.")
def slowlog_len(call: ServerCall, argv: list[bytes]) -> Reply:
    """SLOWLOG LEN"""
    return 0


@COMMANDS.serves("slowlog|reset", 2, _SLOWLOG, since="2.2.12", summary="Clears the slow log.")
def slowlog_reset(call: ServerCall, argv: list[bytes]) -> Reply:
    """SLOWLOG RESET"""
    return OK


@COMMANDS.serves("latency|latest", 2, _ADMIN, since="2.8.13", summary="Returns the latest latency samples.")
def latency_latest(call: ServerCall, argv: list[bytes]) -> Reply:
    """LATENCY LATEST"""
    return []


@COMMANDS.serves("latency|history", 3, _ADMIN, since="2.8.13", summary="Returns latency samples of an event.")
def latency_history(call: ServerCall, argv: list[bytes]) -> Reply:
    """LATENCY HISTORY event"""
    return []


@COMMANDS.serves("latency|reset", -2, _ADMIN, since="2.8.13", summary="Clears latency samples.")
def latency_reset(call: ServerCall, argv: list[bytes]) -> Reply:
    """LATENCY RESET [event [event ...]]"""
    return 0


@COMMANDS.serves("latency|histogram", -2, _ADMIN, since="7.0.0", summary="Returns latency histograms.")
def latency_histogram(call: ServerCall, argv: list[bytes]) -> Reply:
    """LATENCY HISTOGRAM [command [command ...]]"""
    return Pairs()


# MEMORY

COMMANDS.contains("memory", since="4.0.0", summary="A container for memory diagnostics commands.")


@COMMANDS.serves(
    "memory|usage", -3, "readonly", keys=(2, 2, 1), access="RO", since="4.0.0",
    summary="Estimates the memory a key takes.",
)  # fmt: skip
def memory_usage(call: ServerCall, argv: list[bytes]) -> Reply:
    """MEMORY USAGE key [SAMPLES count]"""
    rest, samples = argv[3:], 5
    while rest:
        if rest[0].upper() != b"SAMPLES" or len(rest) < 2 or integer(rest[1]) < 0:
            raise fault(SYNTAX)
        rest, samples = rest[2:], integer(rest[1])
    return None if call.lookup_to_read(argv[2]) is None else of_key(call.db, argv[2], samples)


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
    """DEBUG <SLEEP seconds | SET-ACTIVE-EXPIRE 0|1 | LOADAOF | RELOAD [NOSAVE]>"""
    match argv[1].upper(), len(argv):
        case b"SLEEP", 3:
            if isinstance(call.hub.clock, SystemClock):
                time.sleep(_generous_float(argv[2]))  # under the lock: everybody waits, as in Redis
            return OK
        case b"SET-ACTIVE-EXPIRE", 3:
            call.hub.active_expiry = _generous_float(argv[2]) != 0
            call.hub.keep_swept()
            return OK
        case b"LOADAOF", _:
            return debug_loadaof(call, argv)
        case b"RELOAD", _:
            return debug_reload(call, argv)
        case (b"JMAP" | b"QUICKLIST-PACKED-THRESHOLD"), 3:
            return OK
    raise bad_subcommand_use("debug", argv[1])


def _generous_float(word: bytes) -> float:
    """The number a word begins with, 0 if with none: how C reads it."""
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


for _name, _arity in (
    ("info", 2), ("nodes", 2), ("slots", 2), ("shards", 2), ("myid", 2), ("myshardid", 2), ("links", 2),
    ("keyslot", 3), ("countkeysinslot", 3), ("getkeysinslot", 4), ("meet", -4), ("reset", -2), ("help", 2),
    ("replicas", 3), ("slaves", 3), ("failover", -2), ("addslots", -3), ("delslots", -3), ("setslot", -4),
):  # fmt: skip
    _without_cluster(f"cluster|{_name}", _arity, "loading stale")
_without_cluster("readonly", 1, _FAST, "connection")
_without_cluster("readwrite", 1, _FAST, "connection")
_without_cluster("asking", 1, "fast", "connection")

for _container in ("slowlog", "latency", "memory"):
    add_help(COMMANDS, _container)
