"""Facts about commands that only COMMAND shows: tips for proxies and cluster clients, notes on keys."""

from __future__ import annotations

from typing import Final

_BY_TIPS: Final[dict[str, str]] = {
    "nondeterministic_output": (
        "client|info client|list cluster|getkeysinslot cluster|info cluster|links cluster|myshardid "
        "cluster|nodes cluster|replicas cluster|shards cluster|slaves cluster|slots lastsave "
        "object|encoding object|freq object|idletime object|refcount pttl spop srandmember hrandfield zrandmember "
        "time ttl xadd xautoclaim xclaim xinfo|consumers xpending xtrim dump hscan sscan zscan"
    ),
    "nondeterministic_output request_policy:all_nodes response_policy:special": (
        "latency|doctor latency|graph latency|histogram latency|history latency|latest"
    ),
    "nondeterministic_output request_policy:all_shards response_policy:special": (
        "function|stats info memory|doctor memory|malloc-stats memory|stats"
    ),
    "nondeterministic_output request_policy:special response_policy:special": "scan",
    "nondeterministic_output_order": (
        "command command|docs command|info command|list function|list hgetall hkeys hvals smembers sinter sunion sdiff"
    ),
    "request_policy:all_nodes nondeterministic_output": "slowlog|get",
    "request_policy:all_nodes response_policy:agg_sum": "latency|reset",
    "request_policy:all_nodes response_policy:agg_sum nondeterministic_output": "slowlog|len",
    "request_policy:all_nodes response_policy:all_succeeded": (
        "acl|deluser acl|save acl|setuser client|setinfo client|setname config|resetstat config|rewrite "
        "config|set script|flush script|load slowlog|reset"
    ),
    "request_policy:all_shards nondeterministic_output_order": "keys",
    "request_policy:all_shards response_policy:agg_logical_and": "script|exists",
    "request_policy:all_shards response_policy:agg_min": "wait waitaof",
    "request_policy:all_shards response_policy:agg_sum": "dbsize",
    "request_policy:all_shards response_policy:all_succeeded": (
        "flushall flushdb function|delete function|flush function|load function|restore memory|purge ping"
    ),
    "request_policy:all_shards response_policy:one_succeeded": "function|kill script|kill",
    "request_policy:all_shards response_policy:special nondeterministic_output": "randomkey",
    "request_policy:multi_shard": "mget",
    "request_policy:multi_shard response_policy:agg_sum": "del exists touch unlink",
    "request_policy:multi_shard response_policy:all_succeeded": "mset msetex",
}
TIPS: Final[dict[str, tuple[str, ...]]] = {
    name: tuple(tips.split()) for tips, names in _BY_TIPS.items() for name in names.split()
}

_UNKNOWN_USE: Final = "We cannot tell how the keys will be used so we assume the worst, "

KEY_NOTES: Final[dict[str, str]] = {
    "eval": _UNKNOWN_USE + "RW and UPDATE",
    "eval_ro": _UNKNOWN_USE + "RO and ACCESS",
    "fcall": _UNKNOWN_USE + "RW and UPDATE",
    "fcall_ro": _UNKNOWN_USE + "RO and ACCESS",
    "getex": "RW and UPDATE because it changes the TTL",
    "bitfield": "This command allows both access and modification of the key",
    "set": "RW and ACCESS due to the optional `GET` argument",
    "xread": (
        "Incomplete because a stream key named STREAMS (or options before it) can shift the STREAMS keyword; fall back "
        "to xreadGetKeys"
    ),
    "xadd": "UPDATE instead of INSERT because of the optional trimming feature",
    "xreadgroup": (
        "Incomplete because a consumer/group named STREAMS (or options before GROUP) can shift the STREAMS keyword; "
        "fall back to xreadGetKeys"
    ),
}

SORT_BY_NOTE: Final = (
    "For the optional BY/GET keyword. It is marked 'unknown' because the key names derive from the content of the key "
    "we sort"
)
SORT_STORE_NOTE: Final = (
    "For the optional STORE keyword. It is marked 'unknown' because the keyword can appear anywhere in the argument "
    "array"
)
