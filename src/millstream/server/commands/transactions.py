"""MULTI, EXEC, DISCARD, WATCH, UNWATCH."""

from __future__ import annotations

from millstream.engine.faults import fault
from millstream.engine.outcome import NIL_ARRAY, OK, Reply
from millstream.server.core.call import ServerCall, ServerRegistry

COMMANDS = ServerRegistry("transactions")

_FAST = "noscript loading stale fast allow_busy"


@COMMANDS.serves("multi", 1, _FAST, since="1.2.0", summary="Starts a transaction.")
def multi(call: ServerCall, argv: list[bytes]) -> Reply:
    """MULTI"""
    if call.session.queue is not None:
        raise fault("ERR MULTI calls can not be nested")
    call.session.queue = []
    return OK


@COMMANDS.serves(
    "exec", 1, "noscript loading stale skip_slowlog", since="1.2.0", summary="Runs all commands of a transaction."
)
def exec_(call: ServerCall, argv: list[bytes]) -> Reply:
    """EXEC"""
    session = call.session
    queue = session.queue
    if queue is None:
        raise fault("ERR EXEC without MULTI")
    aborted = session.aborted
    has_changed = call.hub.watches.failed(session, call.now_ms)
    session.end_transaction()
    if aborted:
        raise fault("EXECABORT Transaction discarded because of previous errors.")
    if has_changed:
        return NIL_ARRAY
    return session.run_queue(queue, call.now_ms)


@COMMANDS.serves("discard", 1, _FAST, since="2.0.0", summary="Discards a transaction.")
def discard(call: ServerCall, argv: list[bytes]) -> Reply:
    """DISCARD"""
    if call.session.queue is None:
        raise fault("ERR DISCARD without MULTI")
    call.session.end_transaction()
    return OK


@COMMANDS.serves(
    "watch",
    -2,
    _FAST,
    keys=(1, -1, 1),
    access="RO",
    since="2.2.0",
    summary="Makes a transaction depend on keys not changing.",
)
def watch(call: ServerCall, argv: list[bytes]) -> Reply:
    """WATCH key [key ...]"""
    session = call.session
    if session.queue is not None:
        raise fault("ERR WATCH inside MULTI is not allowed")
    if not session.watch_failed:  # else EXEC will not run anyway
        for key in argv[1:]:
            call.hub.watches.add(session, (session.db, key), call.now_ms)
        call.hub.observe()
    return OK


@COMMANDS.serves("unwatch", 1, _FAST, since="2.2.0", summary="Forgets about watched keys.")
def unwatch(call: ServerCall, argv: list[bytes]) -> Reply:
    """UNWATCH"""
    call.hub.watches.drop(call.session)
    call.hub.observe()
    return OK
