"""Directives of redis.conf that have no effect here: a file written for Redis names many of them.

What they tune is not there: memory layouts, the allocator, replicas, a cluster, Redis' own threads and child processes.
"""

from __future__ import annotations

from typing import Final

_WRITTEN: Final = """
    active-defrag-cycle-max active-defrag-cycle-min active-defrag-ignore-bytes active-defrag-max-scan-fields
    active-defrag-threshold-lower active-defrag-threshold-upper activedefrag activerehashing always-show-logo
    aof-rewrite-cpulist aof-rewrite-incremental-fsync aof_rewrite_cpulist bgsave-cpulist
    bgsave_cpulist bio-cpulist bio_cpulist cluster-allow-pubsubshard-when-down
    cluster-allow-reads-when-down cluster-config-file cluster-migration-barrier cluster-node-timeout cluster-port
    cluster-replica-validity-factor cluster-require-full-coverage crash-log-enabled crash-memcheck-enabled
    disable-thp dynamic-hz hash-max-listpack-entries hash-max-listpack-value hash-max-ziplist-entries
    hash-max-ziplist-value hll-sparse-max-bytes ignore-warnings io-threads io-threads-do-reads jemalloc-bg-thread
    lazyfree-lazy-eviction lazyfree-lazy-expire lazyfree-lazy-server-del lazyfree-lazy-user-del lfu-decay-time
    lfu-log-factor list-compress-depth list-max-listpack-size list-max-ziplist-size locale-collate
    maxmemory-eviction-tenacity min-replicas-max-lag min-replicas-to-write oom-score-adj
    oom-score-adj-values proc-title-template propagation-error-behavior rdb-del-sync-files
    rdb-save-incremental-fsync rdbchecksum repl-backlog-size repl-backlog-ttl
    repl-disable-tcp-nodelay repl-diskless-load repl-diskless-sync repl-diskless-sync-delay
    repl-diskless-sync-max-replicas repl-ping-replica-period repl-timeout replica-announced
    replica-ignore-disk-write-errors replica-ignore-maxmemory replica-lazy-flush replica-priority replica-read-only
    replica-serve-stale-data server-cpulist server_cpulist set-max-intset-entries
    set-max-listpack-entries set-max-listpack-value set-proc-title shutdown-on-sigint shutdown-on-sigterm
    shutdown-timeout socket-mark-id stop-writes-on-bgsave-error
    tls-cluster tls-dh-params-file tls-replication tls-session-cache-size tls-session-cache-timeout
    tls-session-caching zset-max-listpack-entries zset-max-listpack-value
    zset-max-ziplist-entries zset-max-ziplist-value
"""
MEANINGLESS: Final = frozenset(_WRITTEN.split())
