"""Commands of Redis 8.10 that this server may lack. Access rules can name them.

An access list written for Redis denies commands that are dangerous there (`-module -migrate`). It must load here, too;
a rule about a missing command has no effect. Names that are also in the command table do no harm.
"""

from __future__ import annotations

from typing import Final

_WRITTEN: Final = """
    arcount ardel ardelrange arget argetrange argrep arinfo arinsert arlastitems arlen armget armset arnext arop
    arring arscan arseek arset backup backup|abort backup|cleanup backup|help backup|list backup|seal backup|start
    backup|status bgrewriteaof bgsave bitcount bitfield bitfield_ro bitop bitpos blmove blmovem blmpop blpop brpop
    brpoplpush bzmpop bzpopmax bzpopmin client|caching cluster|addslotsrange cluster|bumpepoch
    cluster|count-failure-reports cluster|delslotsrange cluster|flushslots cluster|forget cluster|migration
    cluster|replicate cluster|saveconfig cluster|set-config-epoch cluster|slot-stats cluster|syncslots dump eval_ro
    evalsha_ro failover fcall_ro function|delete function|dump function|load function|restore geoadd geodist geohash
    geopos georadius georadius_ro georadiusbymember georadiusbymember_ro geosearch geosearchstore getbit hexpire
    hexpireat hexpiretime hgetdel hgetex himport himport|discard himport|discardall himport|prepare himport|set
    hincrbyfloat hotkeys hotkeys|get hotkeys|help hotkeys|reset hotkeys|start hotkeys|stop hpersist hpexpire
    hpexpireat hpexpiretime hpttl hrandfield hscan hsetex httl increx latency|doctor latency|graph lcs linsert lmove
    lmovem lmpop lolwut lpos lset memory|malloc-stats memory|stats migrate module module|help module|list module|load
    module|loadex module|unload msetex pfadd pfcount pfdebug pfmerge pfselftest psync replconf replicaof restore
    restore-asking rpoplpush save script|debug sdiff sdiffcard sdiffstore setbit shutdown sinter sintercard
    sinterstore slaveof smove sort sort_ro sscan substr sunion sunioncard sunionstore sync trimslots vadd vcard vdim
    vemb vgetattr vinfo vismember vlinks vrandmember vrange vrem vsetattr vsim zdiff zdiffstore zinter zintercard
    zinterstore zlexcount zmpop zrandmember zrangebylex zrangestore zremrangebylex zrevrangebylex zscan zunion
    zunionstore
"""
NAMES: Final = frozenset(_WRITTEN.split())
