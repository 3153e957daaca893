"""CLIENT: what the server knows of connections, and how to end or unblock them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millstream.engine.faults import (
    BLOCK_NEGATIVE,
    BLOCK_NOT_INTEGER,
    BLOCK_OUT_OF_RANGE,
    SYNTAX,
    bad_subcommand_use,
    fault,
)
from millstream.engine.outcome import OK, Reply, Verbatim
from millstream.engine.text.args import I64_MAX, as_integer, integer
from millstream.errors import CommandError
from millstream.server.commands.common import add_help, bad_name, is_plain
from millstream.server.core.call import ServerCall, ServerRegistry
from millstream.server.core.interfaces import Client, ReplyMode
from millstream.server.features.client_memory import sizes_of
from millstream.server.protocol.sequence import NOTHING

if TYPE_CHECKING:
    from millstream.server.core.services import Services

COMMANDS = ServerRegistry("connection")
COMMANDS.contains("client", since="2.4.0", summary="A container for client connection commands.")

_PLAIN = "noscript loading stale"
_ADMIN = "admin noscript loading stale"
_TYPES: Final = (b"normal", b"master", b"replica", b"slave", b"pubsub")

Test = Callable[[Client], bool]


def describe(hub: Services, session: Client, now_ms: int) -> bytes:
    """Format a connection as a line of CLIENT LIST, without the line end."""
    sizes = sizes_of(session)
    fields = {
        "id": session.id,
        "addr": _text(session.address),
        "laddr": _text(session.local_address),
        "fd": -1,
        "name": _text(session.name),
        "age": max(0, now_ms - session.created_ms) // 1000,
        "idle": max(0, now_ms - session.last_ms) // 1000,
        "flags": _flags(hub, session),
        "db": session.db,
        "sub": len(session.channels),
        "psub": len(session.patterns),
        "ssub": len(session.shards),
        "multi": -1 if session.queue is None else len(session.queue),
        "watch": len(session.watched),
        "qbuf": sizes.query,
        "qbuf-free": sizes.query_free,
        "argv-mem": sizes.arguments,
        "multi-mem": sizes.transaction,
        "rbs": 0,
        "rbp": 0,
        "obl": sizes.unsent,
        "oll": sizes.pieces,
        "omem": sizes.waiting,
        "omem-shared": 0,
        "omem-unshared": sizes.waiting,
        "tot-mem": sizes.total,
        "events": "rw" if sizes.waiting else "r",
        "cmd": session.last_command,
        "user": _text(session.user),
        "redir": _redirect(hub, session),
        "resp": session.protocol,
        "lib-name": _text(session.lib_name),
        "lib-ver": _text(session.lib_version),
        "io-thread": 0,
        "tot-net-in": session.bytes_in,
        "tot-net-out": session.bytes_out,
        "tot-cmds": session.commands,
        "read-events": 0,
        "avg-pipeline-len-sum": 0,
        "avg-pipeline-len-cnt": 0,
    }
    return " ".join(f"{name}={value}" for name, value in fields.items()).encode("latin-1")


def _text(word: bytes) -> str:
    return word.decode("latin-1")


def _flags(hub: Services, session: Client) -> str:
    letters = ""
    tracked = hub.tracking.of(session)
    for letter, applies in (
        ("O", session in hub.monitors),
        ("P", session.subscriptions or session.shards),
        ("x", session.queue is not None),
        ("b", session.waiter is not None),
        ("t", tracked is not None),
        ("R", tracked is not None and tracked.is_broken),
        ("B", tracked is not None and tracked.bcast),
        ("d", session.watch_failed),
        ("e", session.is_spared),
        ("T", session.leaves_untouched),
    ):
        letters += letter if applies else ""
    return letters or "N"


def _redirect(hub: Services, session: Client) -> int:
    tracked = hub.tracking.of(session)
    return -1 if tracked is None else tracked.redirect


def _type_of(session: Client) -> bytes:
    return b"pubsub" if session.subscriptions or session.shards else b"normal"


def _type(word: bytes) -> bytes:
    kind = word.lower()
    if kind not in _TYPES:
        raise fault(b"ERR Unknown client type '" + word + b"'")
    return b"replica" if kind == b"slave" else kind


def _sessions(call: ServerCall) -> list[Client]:
    return [session for _, session in sorted(call.hub.sessions.items()) if not session.is_closed]


@COMMANDS.serves("client|id", 2, _PLAIN, since="5.0.0", summary="Returns the connection's unique id.")
def id_(call: ServerCall, argv: list[bytes]) -> Reply:
    """CLIENT ID"""
    return call.session.id


@COMMANDS.serves("client|setname", 3, _PLAIN, since="2.6.9", summary="Sets the connection's name.")
def setname(call: ServerCall, argv: list[bytes]) -> Reply:
    """CLIENT SETNAME connection-name"""
    if not is_plain(argv[2]):
        raise bad_name(b"Client names")
    call.session.name = argv[2]
    return OK


@COMMANDS.serves("client|getname", 2, _PLAIN, since="2.6.9", summary="Returns the connection's name.")
def getname(call: ServerCall, argv: list[bytes]) -> Reply:
    """CLIENT GETNAME"""
    return call.session.name or None


@COMMANDS.serves("client|setinfo", 4, _PLAIN, since="7.2.0", summary="Names the client's library.")
def setinfo(call: ServerCall, argv: list[bytes]) -> Reply:
    """CLIENT SETINFO <LIB-NAME libname | LIB-VER libver>"""
    option = argv[2].lower()
    if option not in (b"lib-name", b"lib-ver"):
        raise fault(b"ERR Unrecognized option '" + argv[2] + b"'")
    if not is_plain(argv[3]):
        raise bad_name(argv[2])
    if option == b"lib-name":
        call.session.lib_name = argv[3]
    else:
        call.session.lib_version = argv[3]
    return OK


@COMMANDS.serves("client|info", 2, _PLAIN, since="6.2.0", summary="Describes this connection.")
def info(call: ServerCall, argv: list[bytes]) -> Reply:
    """CLIENT INFO"""
    return Verbatim(describe(call.hub, call.session, call.now_ms) + b"\n")


@COMMANDS.serves("client|list", -2, _ADMIN, since="2.4.0", summary="Lists open connections.")
def list_(call: ServerCall, argv: list[bytes]) -> Reply:
    """CLIENT LIST [TYPE <NORMAL | MASTER | REPLICA | PUBSUB>] [ID client-id [client-id ...]]"""
    chosen = _sessions(call)
    if len(argv) == 4 and argv[2].upper() == b"TYPE":
        kind = _type(argv[3])
        chosen = [session for session in chosen if _type_of(session) == kind]
    elif len(argv) > 3 and argv[2].upper() == b"ID":
        ids = [integer(word, "ERR Invalid client ID") for word in argv[3:]]
        chosen = [call.hub.sessions[number] for number in ids if number in call.hub.sessions]
    elif len(argv) != 2:
        raise fault(SYNTAX)
    return Verbatim(b"".join(describe(call.hub, session, call.now_ms) + b"\n" for session in chosen))


@COMMANDS.serves("client|kill", -3, _ADMIN, since="2.4.0", summary="Terminates open connections.")
def kill(call: ServerCall, argv: list[bytes]) -> Reply:
    """CLIENT KILL <ip:port | <[ID client-id] | [TYPE <NORMAL | MASTER | REPLICA | PUBSUB>] | [USER username] |
    [ADDR ip:port] | [LADDR ip:port] | [SKIPME <YES | NO>] | [MAXAGE maxage]>>
    """
    if len(argv) == 3:
        found = [session for session in _sessions(call) if session.address == argv[2]]
        if not found:
            raise fault("ERR No such client")
        found[0].shut()
        return OK
    if len(argv) % 2:
        raise fault(SYNTAX)
    options = list(zip(argv[2::2], argv[3::2], strict=True))
    tests = [_kill_test(call, option, value) for option, value in options]
    spare_us = (b"SKIPME", b"NO") not in [(option.upper(), value.upper()) for option, value in options]
    killed = 0
    for session in _sessions(call):
        if all(test(session) for test in tests) and not (spare_us and session is call.session):
            session.shut()
            killed += 1
    return killed


def _kill_test(call: ServerCall, option: bytes, value: bytes) -> Test:
    """Whom an option of CLIENT KILL is about."""
    match option.upper():
        case b"ID":
            number = as_integer(value)
            if number is None or number < 1:
                raise fault("ERR client-id should be greater than 0")
            return lambda session: session.id == number
        case b"TYPE":
            kind = _type(value)
            return lambda session: _type_of(session) == kind
        case b"ADDR":
            return lambda session: session.address == value
        case b"LADDR":
            return lambda session: session.local_address == value
        case b"USER":
            if value not in call.hub.access.users:
                raise fault(b"ERR No such user '" + value + b"'")
            return lambda session: session.user == value
        case b"SKIPME" if value.upper() in (b"YES", b"NO"):
            return lambda session: True
        case b"MAXAGE":
            age_s = integer(value, "ERR maxage is not an integer or out of range")
            if age_s < 1:
                raise fault("ERR maxage should be greater than 0")
            return lambda session: call.now_ms - session.created_ms >= age_s * 1000
    raise fault(SYNTAX)


@COMMANDS.serves("client|unblock", -3, _ADMIN, since="5.0.0", summary="Ends another connection's wait.")
def unblock(call: ServerCall, argv: list[bytes]) -> Reply:
    """CLIENT UNBLOCK client-id [TIMEOUT | ERROR]"""
    if len(argv) > 4:
        raise bad_subcommand_use("client", argv[1])
    reason = argv[3].upper() if len(argv) == 4 else b"TIMEOUT"
    if reason not in (b"TIMEOUT", b"ERROR"):
        raise fault("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
    session = call.hub.sessions.get(integer(argv[2]))
    if session is None or session.waiter is None or call.hub.pause.holds(session.waiter):
        return 0
    waiter = session.waiter
    error = CommandError("UNBLOCKED client unblocked via CLIENT UNBLOCK")
    call.hub.blocking.end(waiter, error if reason == b"ERROR" else waiter.timeout_reply)
    return 1


@COMMANDS.serves("client|reply", 3, _PLAIN, since="3.2.0", summary="Tells the server whether to reply.")
def reply(call: ServerCall, argv: list[bytes]) -> Reply:
    """CLIENT REPLY <ON | OFF | SKIP>"""
    session = call.session
    match argv[2].upper():
        case b"ON":
            session.reply_mode = ReplyMode.ON
            return OK
        case b"OFF":
            session.reply_mode = ReplyMode.OFF
            return NOTHING
        case b"SKIP":
            if session.reply_mode is not ReplyMode.OFF:
                session.reply_mode = ReplyMode.SKIP_NEXT
            return NOTHING
    raise fault(SYNTAX)


def _is_on(word: bytes) -> bool:
    if word.upper() not in (b"ON", b"OFF"):
        raise fault(SYNTAX)
    return word.upper() == b"ON"


@COMMANDS.serves("client|no-evict", 3, _ADMIN, since="7.0.0", summary="Spares this connection when memory is short.")
def no_evict(call: ServerCall, argv: list[bytes]) -> Reply:
    """CLIENT NO-EVICT <ON | OFF>"""
    call.session.is_spared = _is_on(argv[2])
    return OK


@COMMANDS.serves("client|no-touch", 3, _PLAIN, since="7.2.0", summary="Keeps reads from counting as uses of a key.")
def no_touch(call: ServerCall, argv: list[bytes]) -> Reply:
    """CLIENT NO-TOUCH <ON | OFF>"""
    call.session.leaves_untouched = _is_on(argv[2])
    return OK


@COMMANDS.serves("client|pause", -3, _ADMIN, since="3.0.0", summary="Suspends commands processing.")
def pause(call: ServerCall, argv: list[bytes]) -> Reply:
    """CLIENT PAUSE timeout [WRITE | ALL]"""
    if len(argv) > 4:
        raise fault(SYNTAX)
    mode = argv[3].upper() if len(argv) == 4 else b"ALL"
    if mode not in (b"WRITE", b"ALL"):
        raise fault("ERR CLIENT PAUSE mode must be WRITE or ALL")
    timeout_ms = integer(argv[2], BLOCK_NOT_INTEGER)
    if timeout_ms < 0:
        raise fault(BLOCK_NEGATIVE)
    if timeout_ms > I64_MAX - call.now_ms:
        raise fault(BLOCK_OUT_OF_RANGE)
    call.hub.pause.begin(call.now_ms + timeout_ms, of_all=mode == b"ALL")
    return OK


@COMMANDS.serves("client|unpause", 2, _ADMIN, since="6.2.0", summary="Resumes commands processing.")
def unpause(call: ServerCall, argv: list[bytes]) -> Reply:
    """CLIENT UNPAUSE"""
    call.hub.pause.end()
    return OK


add_help(COMMANDS, "client")
