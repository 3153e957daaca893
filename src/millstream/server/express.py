"""What workers send all day, from the words of a request to the bytes of its reply without a stop.

    XADD key * field value …                                               XACK key group id
    XREADGROUP GROUP group consumer COUNT 1 [BLOCK ms] STREAMS key >

Each function does what its command in the engine does, in the one case that nearly always is the case, and answers
with the reply's bytes; or has changed nothing and answers None: then it is for the engine's own command. So is
everything while somebody would have to be told (waiters of the key, watchers, subscribers to events). The log gets the
same lines either way. A test holds both ways against each other, and both are compared with a real server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millstream.engine.commands.group import deliver_next
from millstream.engine.ids import MAX_KEY
from millstream.engine.stream import Stream

if TYPE_CHECKING:
    from millstream.server.hub import Hub

# On a hub, in a database, an argv, at a time, for a protocol.
Express = Callable[["Hub", int, list[bytes], int, int], "bytes | None"]

_MULTI: Final = (b"MULTI",)
_EXEC: Final = (b"EXEC",)
_SEQUENCE: Final = (1 << 64) - 1
_ONE: Final = [b"COUNT", b"1"]
_LONG: Final = 1 << 20  # words whose length is worth a look at the limits


def xadd(hub: Hub, db: int, argv: list[bytes], now_ms: int, protocol: int) -> bytes | None:
    """XADD key * field value [field value ...]"""
    size = len(argv)
    if size < 5 or not size & 1 or argv[2] != b"*":
        return None
    database = hub.keyspace.databases[db]
    name = argv[1]
    stream = database.values.get(name)
    if type(stream) is not Stream or name in database.expires or (hub.has_waiters and (db, name) in hub.waiters):
        return None
    key = now_ms << 64
    if key <= stream.last:
        key = stream.last + 1
        if key > MAX_KEY:
            return None
    entry_id = b"%d-%d" % (key >> 64, key & _SEQUENCE)
    if size == 5 and len(argv[3]) < _LONG and len(argv[4]) < _LONG:
        stream.append_field(entry_id, key, argv[3], argv[4], hub.keyspace.settings)
    elif sum(map(len, argv)) < _LONG:
        stream.append(entry_id, key, argv[3:], hub.keyspace.settings)
    else:
        return None
    database.accessed[name] = now_ms
    hub.dirty += 1
    if hub.keeps_log:
        hub.lines.append((db, (argv[0], name, entry_id, *argv[3:])))
    return b"$%d\r\n%b\r\n" % (len(entry_id), entry_id)


def xreadgroup(hub: Hub, db: int, argv: list[bytes], now_ms: int, protocol: int) -> bytes | None:
    """XREADGROUP GROUP group consumer COUNT 1 [BLOCK ms] STREAMS key >"""
    size = len(argv)
    if size != 9 and not (size == 11 and argv[6] == b"BLOCK" and argv[7].isdigit() and len(argv[7]) < 13):
        return None
    if argv[4:6] != _ONE or argv[-1] != b">" or argv[-3] != b"STREAMS" or argv[1] != b"GROUP":
        return None
    database = hub.keyspace.databases[db]
    name = argv[-2]
    stream = database.values.get(name)
    if type(stream) is not Stream or name in database.expires:
        return None
    group = stream.groups.get(argv[2])
    consumer = None if group is None else group.consumers.get(argv[3])
    if group is None or consumer is None:
        return None
    before = group.mark
    found = deliver_next(stream, group, consumer, now_ms)
    if found is None:
        return None
    entry_id, fragment = found
    consumer.seen_ms = database.accessed[name] = now_ms
    hub.dirty += 1
    if hub.keeps_log:
        read = -1 if group.entries_read is None else group.entries_read
        hub.lines += (
            (db, _MULTI),
            (db, (
                b"XCLAIM", name, argv[2], argv[3], b"0", entry_id, b"TIME", b"%d" % now_ms, b"RETRYCOUNT", b"1",
                b"FORCE", b"JUSTID", b"LASTID", before,
            )),
            (db, (b"XGROUP", b"SETID", name, argv[2], entry_id, b"ENTRIESREAD", b"%d" % read)),
            (db, _EXEC),
        )  # fmt: skip
    opening = b"%1\r\n" if protocol == 3 else b"*1\r\n*2\r\n"
    return b"%b$%d\r\n%b\r\n*1\r\n*2\r\n$%d\r\n%b\r\n%b" % (opening, len(name), name, len(entry_id), entry_id, fragment)


def xack(hub: Hub, db: int, argv: list[bytes], now_ms: int, protocol: int) -> bytes | None:
    """XACK key group id"""
    if len(argv) != 4:
        return None
    database = hub.keyspace.databases[db]
    name = argv[1]
    stream = database.values.get(name)
    if type(stream) is not Stream or name in database.expires:
        return None
    group = stream.groups.get(argv[2])
    # An id that is not in its canonical form is not found here, and takes the long way.
    if group is None or not group.pending.remove(argv[3]):
        return None
    database.accessed[name] = now_ms
    hub.dirty += 1
    if hub.keeps_log:
        hub.lines.append((db, tuple(argv)))
    return b":1\r\n"


# By the name as clients write it; other spellings take the long way.
EXPRESS: Final[dict[bytes, Express]] = {
    b"XADD": xadd, b"XREADGROUP": xreadgroup, b"XACK": xack, b"xadd": xadd, b"xreadgroup": xreadgroup, b"xack": xack,
}  # fmt: skip
