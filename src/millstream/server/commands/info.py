"""INFO: counters and facts for people and monitoring."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import uuid4

from millstream.engine.outcome import Reply, Verbatim
from millstream.server.commands.info_fields import FIELDS
from millstream.server.core.call import ServerCall, ServerRegistry
from millstream.server.core.stats import CommandStats
from millstream.server.features.maxmemory import STARTUP
from millstream.version import REDIS_VERSION, VERSION

if TYPE_CHECKING:
    from millstream.server.core.services import Services

COMMANDS = ServerRegistry("server")

Field: TypeAlias = "tuple[str, object]"
Section: TypeAlias = "Callable[[Services, int], Iterator[Field]]"

_RUN_ID: Final = uuid4().hex + uuid4().hex[:8]


def _server(hub: Services, now_ms: int) -> Iterator[Field]:
    yield "redis_version", REDIS_VERSION.decode()
    yield "millstream_version", VERSION
    yield "redis_git_sha1", "00000000"
    yield "redis_git_dirty", 0
    yield "redis_build_id", 0
    yield "redis_mode", "standalone"
    yield "os", f"{platform.system()} {platform.release()} {platform.machine()}"
    yield "arch_bits", 64
    yield "python_version", platform.python_version()
    yield "process_id", os.getpid()
    is_supervised = hub.config["supervised"] in (b"systemd", b"auto") and "NOTIFY_SOCKET" in os.environ
    yield "process_supervised", "systemd" if is_supervised else "no"
    yield "run_id", _RUN_ID
    yield "tcp_port", hub.config.number("port")
    yield "server_time_usec", now_ms * 1000
    up_s = max(0, now_ms - hub.started_ms) // 1000
    yield "uptime_in_seconds", up_s
    yield "uptime_in_days", up_s // 86400
    yield "hz", hub.config.number("hz")
    yield "configured_hz", hub.config.number("hz")


def _clients(hub: Services, now_ms: int) -> Iterator[Field]:
    sessions = list(hub.sessions.values())
    yield "connected_clients", len(sessions)
    yield "cluster_connections", 0
    yield "maxclients", hub.config.number("maxclients")
    largest_query, largest_output = hub.client_memory.largest
    yield "client_recent_max_input_buffer", largest_query
    yield "client_recent_max_output_buffer", largest_output
    yield "blocked_clients", len(hub.waiters)
    yield "tracking_clients", len(hub.tracking.sessions)
    yield "pubsub_clients", sum(bool(s.subscriptions or s.shards) for s in sessions)
    yield "watching_clients", sum(bool(s.watched) for s in sessions)
    yield "clients_in_timeout_table", len(hub.waiters)
    yield "total_watched_keys", len(hub.watches)
    yield "total_blocking_keys", hub.waiters.keys()
    yield "total_blocking_keys_on_nokey", hub.waiters.group_keys()


def _resident_bytes() -> int:
    """Return the memory of this process, or 0 where the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _human(size: int) -> str:
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.2f}{unit}"
    return f"{size}B"


def _memory(hub: Services, now_ms: int) -> Iterator[Field]:
    resident, used, peak = _resident_bytes(), hub.memory.used, hub.memory.peak
    limit = hub.config.number("maxmemory")
    for name, size in (("used_memory", used), ("used_memory_rss", resident), ("used_memory_peak", peak)):
        yield name, size
        yield f"{name}_human", _human(size)
    yield "used_memory_peak_perc", f"{100 * used / peak:.2f}%"
    yield "used_memory_overhead", STARTUP
    yield "used_memory_startup", STARTUP
    yield "used_memory_dataset", used - STARTUP
    yield "used_memory_dataset_perc", "100.00%"
    lua = hub.runner.memory
    for name in ("used_memory_lua", "used_memory_vm_eval", "used_memory_vm_functions", "used_memory_vm_total"):
        yield name, lua  # scripts and functions share one Lua
    yield "used_memory_lua_human", _human(lua)
    yield "used_memory_vm_total_human", _human(lua)
    yield "number_of_cached_scripts", len(hub.scripts)
    yield "number_of_functions", hub.libraries.functions
    yield "number_of_libraries", len(hub.libraries)
    yield "maxmemory", limit
    yield "maxmemory_human", _human(limit)
    yield "maxmemory_policy", hub.config["maxmemory-policy"].decode()
    yield "mem_fragmentation_ratio", f"{resident / used:.2f}"
    yield "mem_fragmentation_bytes", resident - used
    clients = hub.client_memory.total
    yield "mem_clients_normal", clients
    yield "mem_clients_normal_unshared", clients
    yield "mem_allocator", "python"
    yield "lazyfree_pending_objects", 0


def _persistence(hub: Services, now_ms: int) -> Iterator[Field]:
    yield "loading", 0
    yield "async_loading", 0
    if hub.store is not None:
        yield from hub.store.info()
        return
    yield "rdb_changes_since_last_save", hub.dirty
    yield "rdb_bgsave_in_progress", 0
    yield "rdb_last_save_time", hub.started_ms // 1000
    yield "rdb_last_bgsave_status", "ok"
    yield "aof_enabled", int(hub.config.is_on("appendonly"))
    yield "aof_rewrite_in_progress", 0
    yield "aof_rewrite_scheduled", 0
    yield "aof_last_bgrewrite_status", "ok"
    yield "aof_last_write_status", "ok"


def _stats(hub: Services, now_ms: int) -> Iterator[Field]:
    stats, pubsub = hub.stats, hub.pubsub
    totals = hub.rates.totals()
    commands, bytes_in, bytes_out = hub.rates.per_second()
    yield "total_connections_received", stats.connections
    yield "total_commands_processed", stats.commands
    yield "instantaneous_ops_per_sec", round(commands)
    yield "total_net_input_bytes", totals.bytes_in
    yield "total_net_output_bytes", totals.bytes_out
    yield "instantaneous_input_kbps", f"{bytes_in / 1024:.2f}"
    yield "instantaneous_output_kbps", f"{bytes_out / 1024:.2f}"
    yield "evicted_clients", stats.evicted_clients
    yield "client_query_buffer_limit_disconnections", stats.query_disconnections
    yield "client_output_buffer_limit_disconnections", stats.output_disconnections
    yield "rejected_connections", stats.rejected_connections
    yield "expired_keys", stats.expired
    yield "expired_keys_active", stats.expired_actively
    yield "evicted_keys", 0
    yield "keyspace_hits", stats.hits
    yield "keyspace_misses", stats.misses
    yield "pubsub_channels", len(pubsub.channels.by_name)
    yield "pubsub_patterns", len(pubsub.patterns.by_name)
    yield "pubsubshard_channels", len(pubsub.shards.by_name)
    yield "tracking_total_keys", hub.tracking.keys
    yield "tracking_total_items", hub.tracking.items
    yield "tracking_total_prefixes", hub.tracking.prefixes
    yield "unexpected_error_replies", 0
    yield "total_error_replies", stats.errors
    yield "slowlog_commands_count", stats.slow
    yield "slowlog_commands_time_ms_max", f"{stats.slowest_ns / 1e6:.2f}"
    yield "slowlog_commands_time_ms_sum", f"{stats.slow_ns / 1e6:.2f}"
    for what, times in hub.access.denied.items():
        yield f"acl_access_denied_{what}", times


def _replication(hub: Services, now_ms: int) -> Iterator[Field]:
    yield "role", "master"
    yield "connected_slaves", 0
    yield "master_failover_state", "no-failover"
    yield "master_replid", _RUN_ID
    yield "master_replid2", "0" * 40
    yield "master_repl_offset", 0
    yield "second_repl_offset", -1
    yield "repl_backlog_active", 0
    yield "repl_backlog_size", 1048576
    yield "repl_backlog_first_byte_offset", 0
    yield "repl_backlog_histlen", 0


def _cpu(hub: Services, now_ms: int) -> Iterator[Field]:
    times = os.times()
    yield "used_cpu_sys", f"{times.system:.6f}"
    yield "used_cpu_user", f"{times.user:.6f}"
    yield "used_cpu_sys_children", f"{times.children_system:.6f}"
    yield "used_cpu_user_children", f"{times.children_user:.6f}"
    yield "used_cpu_sys_main_thread", f"{times.system:.6f}"
    yield "used_cpu_user_main_thread", f"{times.user:.6f}"
    yield "used_cpu_process", f"{time.process_time():.6f}"


def _threads(hub: Services, now_ms: int) -> Iterator[Field]:
    yield "io_thread_0", f"clients={len(hub.sessions)},reads=0,writes=0"


def _hotkeys(hub: Services, now_ms: int) -> Iterator[Field]:
    yield from ()


def _modules(hub: Services, now_ms: int) -> Iterator[Field]:
    yield from ()


def _commandstats(hub: Services, now_ms: int) -> Iterator[Field]:
    for name, counted in hub.stats.by_command.items():
        usec = counted.nanoseconds // 1000
        per_call = counted.nanoseconds / 1000 / counted.calls if counted.calls else 0.0
        yield (
            f"cmdstat_{name}",
            f"calls={counted.calls},usec={usec},usec_per_call={per_call:.2f},"
            f"rejected_calls={counted.rejected},failed_calls={counted.failed}" + _slowness(counted),
        )


def _slowness(counted: CommandStats) -> str:
    if not counted.slow:
        return ""
    total_ms, most_ms = counted.slow_ns / 1e6, counted.slowest_ns / 1e6
    return f",slowlog_count={counted.slow},slowlog_time_ms_sum={total_ms:.2f},slowlog_time_ms_max={most_ms:.2f}"


def _latencystats(hub: Services, now_ms: int) -> Iterator[Field]:
    if not hub.tracks_latency:
        return
    shares = hub.config["latency-tracking-info-percentiles"].decode().split()
    for name, counted in hub.stats.by_command.items():
        if counted.calls:
            known = [f"p{share}={counted.percentile(float(share) / 100):.3f}" for share in shares]
            yield f"latency_percentiles_usec_{name}", ",".join(known)


def _errorstats(hub: Services, now_ms: int) -> Iterator[Field]:
    for code, times in hub.stats.by_error.items():
        yield f"errorstat_{code}", f"count={times}"


def _cluster(hub: Services, now_ms: int) -> Iterator[Field]:
    yield "cluster_enabled", 0


def _keyspace(hub: Services, now_ms: int) -> Iterator[Field]:
    for db in hub.keyspace:
        if db.values:
            left = [at_ms - now_ms for at_ms in db.expires.values()]
            average = max(0, sum(left) // len(left)) if left else 0
            yield f"db{db.index}", f"keys={len(db.values)},expires={len(left)},avg_ttl={average},subexpiry=0"


_SECTIONS: Final[dict[str, Section]] = {
    "Server": _server,
    "Clients": _clients,
    "Memory": _memory,
    "Persistence": _persistence,
    "Threads": _threads,
    "Stats": _stats,
    "Replication": _replication,
    "CPU": _cpu,
    "Hotkeys": _hotkeys,
    "Modules": _modules,
    "Commandstats": _commandstats,
    "Errorstats": _errorstats,
    "Latencystats": _latencystats,
    "Cluster": _cluster,
    "Keyspace": _keyspace,
}
_EXTRA: Final = frozenset({"Commandstats", "Latencystats"})  # only when asked for, by name or as `all`


def _chosen(words: list[bytes]) -> list[str]:
    """Return the titles of the requested sections in their fixed order."""
    asked = {word.lower().decode("latin-1") for word in words}
    everything = bool(asked & {"all", "everything"})
    usual = not asked or "default" in asked
    return [title for title in _SECTIONS if everything or title.lower() in asked or (usual and title not in _EXTRA)]


@COMMANDS.serves(
    "info",
    -1,
    "loading stale",
    since="1.0.0",
    summary="Returns information and statistics about the server.",
    extra_categories="@dangerous",
)
def info(call: ServerCall, argv: list[bytes]) -> Reply:
    """INFO [section [section ...]]"""
    sections = []
    for title in _chosen(argv[1:]):
        fields = FIELDS.get(title, {}) | dict(_SECTIONS[title](call.hub, call.now_ms))
        lines = [f"{name}:{value}\r\n" for name, value in fields.items()]
        sections.append(f"# {title}\r\n" + "".join(lines))
    return Verbatim("\r\n".join(sections).encode("utf-8", "surrogateescape"))
