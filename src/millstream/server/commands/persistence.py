"""Commands about what is kept: SAVE, BGSAVE, LASTSAVE, BGREWRITEAOF, SHUTDOWN, and two subcommands of DEBUG."""

from __future__ import annotations

from typing import Final

from millstream.engine.faults import SYNTAX, fault
from millstream.engine.outcome import OK, Reply, Simple
from millstream.errors import PersistenceError, WriteFailed
from millstream.persistence.store import Store
from millstream.server.core.call import ServerCall, ServerRegistry
from millstream.server.core.interfaces import ReplyMode

COMMANDS = ServerRegistry("server")

IN_MEMORY: Final = "ERR This broker keeps its data in memory only"
SAVE_IN_PROGRESS: Final = "ERR Background save already in progress"
REWRITE_IN_PROGRESS: Final = "ERR Background append only file rewriting already in progress"
OTHER_IN_PROGRESS: Final = (
    "ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE SCHEDULE in order to schedule a "
    "BGSAVE whenever possible."
)
CANNOT_REWRITE: Final = (
    "ERR Can't execute an AOF background rewriting. Please check the server logs for more information."
)
CANNOT_SHUT_DOWN: Final = "ERR Errors trying to SHUTDOWN. Check logs."
_ADMIN: Final = "admin noscript no_async_loading"
_SHUTDOWN_WORDS: Final = frozenset({b"NOSAVE", b"SAVE", b"NOW", b"FORCE", b"ABORT"})


def _store(call: ServerCall) -> Store:
    store = call.hub.store
    if store is None:
        raise fault(IN_MEMORY)
    return store


def _is_in_transaction(call: ServerCall) -> bool:
    """Whether this is run by EXEC; what comes without a connection cannot block either, and has no number."""
    return not call.may_block and call.session.id != 0


@COMMANDS.serves("save", 1, f"{_ADMIN} no_multi", summary="Writes a snapshot and waits for it.")
def save(call: ServerCall, argv: list[bytes]) -> Reply:
    """SAVE"""
    background = _store(call).background
    if background.snapshots.started_ms is not None:
        raise fault(SAVE_IN_PROGRESS)
    try:
        background.save()
    except PersistenceError as error:
        raise fault("ERR") from error
    return OK


@COMMANDS.serves("bgsave", -1, _ADMIN, summary="Writes a snapshot in the background.")
def bgsave(call: ServerCall, argv: list[bytes]) -> Reply:
    """BGSAVE [SCHEDULE]"""
    is_scheduled = len(argv) == 2 and argv[1].upper() == b"SCHEDULE"
    if len(argv) > 1 and not is_scheduled:
        raise fault(SYNTAX)
    background = _store(call).background
    if background.snapshots.started_ms is not None:
        raise fault(SAVE_IN_PROGRESS)
    if background.is_busy or _is_in_transaction(call):
        if not is_scheduled and not _is_in_transaction(call):
            raise fault(OTHER_IN_PROGRESS)
        background.is_save_scheduled = True
        return Simple(b"Background saving scheduled")
    background.begin_save()
    return Simple(b"Background saving started")


@COMMANDS.serves("bgrewriteaof", 1, _ADMIN, summary="Rewrites the append-only log in the background.")
def bgrewriteaof(call: ServerCall, argv: list[bytes]) -> Reply:
    """BGREWRITEAOF"""
    store = _store(call)
    background = store.background
    if background.rewrites.started_ms is not None:
        raise fault(REWRITE_IN_PROGRESS)
    if background.is_busy or _is_in_transaction(call):
        background.is_rewrite_scheduled = True
        return Simple(b"Background append only file rewriting scheduled")
    try:
        store.begin_rewrite()
    except WriteFailed as error:
        raise fault(CANNOT_REWRITE) from error
    return Simple(b"Background append only file rewriting started")


@COMMANDS.serves(
    "lastsave",
    1,
    "loading stale fast",
    summary="Returns the time of the last save.",
    extra_categories="@admin @dangerous",
)
def lastsave(call: ServerCall, argv: list[bytes]) -> Reply:
    """LASTSAVE"""
    store = call.hub.store
    return (call.hub.started_ms if store is None else store.background.snapshots.last_ms) // 1000


@COMMANDS.serves(
    "shutdown", -1, "admin noscript loading stale no_multi allow_busy", summary="Saves and ends the server."
)
def shutdown(call: ServerCall, argv: list[bytes]) -> Reply:
    """SHUTDOWN [NOSAVE|SAVE] [NOW] [FORCE] [ABORT]"""
    words = {word.upper() for word in argv[1:]}
    if not words <= _SHUTDOWN_WORDS or {b"SAVE", b"NOSAVE"} <= words or (b"ABORT" in words and len(argv) > 2):
        raise fault(SYNTAX)
    if b"ABORT" in words:
        raise fault("ERR No shutdown in progress.")
    hub = call.hub
    if hub.store is not None:
        try:
            hub.store.settle(save=True if b"SAVE" in words else False if b"NOSAVE" in words else None)
        except PersistenceError as error:
            if b"FORCE" not in words:
                raise fault(CANNOT_SHUT_DOWN) from error
    hub.runner.abandon()
    call.session.reply_mode = ReplyMode.OFF  # a server that has gone does not answer
    for session in list(hub.sessions.values()):
        session.shut()
    if hub.on_shutdown is not None:
        hub.on_shutdown()
    return OK


def debug_loadaof(call: ServerCall, argv: list[bytes]) -> Reply:
    """DEBUG LOADAOF: forget everything and load the log again."""
    store = _store(call)
    try:
        store.reload_log()
    except PersistenceError as error:
        raise fault("ERR Error trying to load the AOF files, check server logs.") from error
    finally:
        call.hub.count_anew()
    return OK


def debug_reload(call: ServerCall, argv: list[bytes]) -> Reply:
    """DEBUG RELOAD [NOSAVE] [NOFLUSH] [MERGE]: write a snapshot, forget everything and load it again."""
    words = {word.upper() for word in argv[2:]}
    if not words <= {b"NOSAVE", b"MERGE", b"NOFLUSH"}:
        raise fault("ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options.")
    forget = b"NOFLUSH" not in words
    if not forget and b"MERGE" not in words and len(call.hub.libraries):
        raise fault("ERR Error trying to load the RDB dump, check server logs.")  # they would be there twice
    try:
        _store(call).reload_snapshot(save=b"NOSAVE" not in words, forget=forget, merge=b"MERGE" in words)
    except PersistenceError as error:
        raise fault("ERR Error trying to load the RDB dump, check server logs.") from error
    finally:
        call.hub.count_anew()
    return OK
