"""Which files of the suites are run, and which of their tests are not, each with the reason."""

from __future__ import annotations

# Files of Redis's suite that are about what this server has.
UNITS = (
    "unit/type/stream",
    "unit/type/stream-cgroups",
    "unit/pubsub",
    "unit/multi",
    "unit/scripting",
    "unit/functions",
    "unit/expire",
    "unit/keyspace",
    "unit/scan",
    "unit/slowlog",
    "unit/tracking",
    "unit/pause",
    "unit/introspection",
    "unit/introspection-2",
    "unit/protocol",
    "unit/quit",
    "unit/dump",
    "unit/type/string",
    "unit/type/incr",
    "unit/type/increx",
    "unit/type/list",
    "unit/type/set",
    "unit/type/zset",
    "unit/type/hash",
    "unit/latency-monitor",
    "unit/info-command",
    "unit/networking",
    "unit/other",
)

# Those that `make test` runs.
CORE_UNITS = ("unit/type/stream", "unit/type/stream-cgroups")

# Those that `make test-long` runs; the others take longer and run with MILLSTREAM_SUITES=all.
QUICK_UNITS = (
    "unit/type/stream",
    "unit/type/stream-cgroups",
    "unit/pubsub",
    "unit/multi",
    "unit/scripting",
    "unit/functions",
    "unit/keyspace",
    "unit/slowlog",
    "unit/tracking",
    "unit/pause",
    "unit/introspection",
    "unit/introspection-2",
    "unit/protocol",
    "unit/quit",
    "unit/dump",
    "unit/type/incr",
    "unit/type/increx",
    "unit/info-command",
)

_PAST = "a key that is set with a time that is past never was there, and is not counted as expired"
_EVICTION = "nothing is evicted: memory that is full is an error"
_ALLOCATOR = "is about the memory of Redis's allocator or its Lua, which are others here"
_BUFFERS = "is about the size of Redis's own buffers"
_HIDDEN = "is about settings that slow Redis down for its tests"

# Tests by file, as --skiptest takes them (`/` starts a pattern).
LEFT_OUT: dict[str, dict[str, str]] = {
    "unit/pubsub": {
        "Keyspace notifications: evicted events": _EVICTION,
        "/^Subkey notifications": "the fields of a hash are not told of one by one",
    },
    "unit/scripting": {
        "EVAL does not leak in the Lua stack": _ALLOCATOR,
        "/will not leak memory": _ALLOCATOR,
        "Verify Lua performs GC correctly after script loading": _ALLOCATOR,
        "EVAL - JSON empty array decoding": "scripts and functions share one Lua, and what the first run has set in it",
        "SORT BY <constant> output gets ordered for scripting": "sets keep their own order in scripts too",
        "not enough good replicas": "there are no replicas, and min-replicas-to-write is refused",
    },
    "unit/tracking": {"Tracking invalidation message of eviction keys should be before response": _EVICTION},
    "unit/functions": {"/^FUNCTION - async function flush rebuilds": _ALLOCATOR},
    "unit/introspection-2": {
        "/^(ZUNIONSTORE|SORT|SORT_RO|MIGRATE|GEORADIUS) command is marked": "the command is not here"
    },
    "unit/dump": {"RESTORE with ABSTTL in the past": _PAST, "RESTORE can set LFU": _EVICTION},
    "unit/latency-monitor": {
        "LATENCY of expire events are correctly collected": "runs a million commands in one script",
        "LATENCY GRAPH can output the expire event graph": "needs the one before it",
    },
    "unit/type/zset": {"/^Z(INTER|UNION|DIFF|REMRANGEBYLEX)": "the command is not here"},
    "unit/type/incr": {"INCR can modify objects in-place": "numbers have no place of their own here"},
    "unit/type/string": {"/^Extended SET .* past expiration time": _PAST, "MEMORY USAGE - STRINGS": _ALLOCATOR},
    "unit/introspection": {
        "CLIENT INFO read-events and pipeline-length stats": "reads are not counted",
        "CLIENT INFO pipeline-length stats for pipelined commands": "reads are not counted",
        "CLIENT KILL close the client connection during bgsave": _HIDDEN,
        "CONFIG GET hidden configs": _HIDDEN,
        "CONFIG SET with multiple args": "sets backup-sealed-ttl, which is about backups that are not here",
    },
}

_SECONDS = "takes seconds"
# Left out of `make test` only.
SLOW: dict[str, dict[str, str]] = {
    "unit/type/stream": {
        "/^XADD IDMP": "waits for seconds, forty times: the rules are compared in tests/differential",
        "XRANGE fuzzing": _SECONDS,
        "XADD mass insertion and XLEN": _SECONDS,
    },
    "unit/type/stream-cgroups": {
        "XREADGROUP CLAIM with large number of PEL messages": _SECONDS,
        "XREADGROUP CLAIM usage stability with repeated claims": _SECONDS,
    },
    "unit/introspection-2": {"/no-touch mode": _SECONDS},
    "unit/scripting": {"EVAL - cmsgpack pack/unpack smoke test": "packs large tables, ten seconds on a loaded machine"},
    "unit/dump": {"MIGRATE cached connections are released after some time": _SECONDS},
}

# redis-py's files by a name, and which of their tests.
_STREAMS = "stream or xadd or xread or xack or xclaim or xautoclaim or xgroup or xinfo or xlen or xpending or xrange"
# Needs no sentinel and no TLS; HRANDFIELD is not here.
_CACHE = "not Sentinel and not SSL and not ignore_not_allowed_command"
QUICK_PYTHON_FILES: dict[str, tuple[tuple[str, ...], str]] = {
    "streams": (("tests/test_commands.py",), "xack or xreadgroup or xautoclaim or xnack or xadd_with or xinfo"),
    "scripts and transactions": (("tests/test_scripting.py", "tests/test_pipeline.py"), "not bitfield"),
    "client-side caching": (("tests/test_cache.py",), _CACHE),
    "asyncio": (("tests/test_asyncio/test_pipeline.py",), "watch or transaction"),
}
PYTHON_FILES: dict[str, tuple[tuple[str, ...], str]] = {
    "streams": (("tests/test_commands.py", "tests/test_asyncio/test_commands.py"), _STREAMS),
    "pubsub": (("tests/test_pubsub.py", "tests/test_asyncio/test_pubsub.py"), ""),
    "scripts and transactions": (
        (
            "tests/test_scripting.py",
            "tests/test_pipeline.py",
            "tests/test_function.py",
            "tests/test_monitor.py",
            "tests/test_asyncio/test_scripting.py",
            "tests/test_asyncio/test_pipeline.py",
            "tests/test_asyncio/test_monitor.py",
        ),
        "not bitfield",
    ),
    "client-side caching": (("tests/test_cache.py",), _CACHE),
    "locks": (("tests/test_lock.py", "tests/test_asyncio/test_lock.py"), ""),
}
