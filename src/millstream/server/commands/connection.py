"""HELLO, AUTH, PING, ECHO, QUIT, RESET, SELECT."""

from __future__ import annotations

from millstream.engine.faults import BAD_DB_INDEX, SYNTAX, fault, wrong_arity
from millstream.engine.outcome import OK, Pairs, Reply, Simple
from millstream.engine.text.args import as_integer, integer
from millstream.server.access.auth import DEFAULT_USER
from millstream.server.commands.common import bad_name, is_plain
from millstream.server.core.call import ServerCall, ServerRegistry
from millstream.server.version import REDIS_VERSION

COMMANDS = ServerRegistry("connection")

_FREE = "noscript loading stale fast no_auth allow_busy"
_WRONG_PASS = "WRONGPASS invalid username-password pair or user is disabled."
_HELLO_NEEDS_AUTH = (
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> "
    "<pass> option can be used to authenticate the client and select the RESP protocol version at the same time"
)
_NO_PASSWORD = (
    "ERR AUTH <password> called without any password configured for the default user. Are you sure your "
    "configuration is correct?"
)


def _authenticate(call: ServerCall, word: bytes, user: bytes, password: bytes) -> None:
    """Let the client in, or raise; of whom no password is asked, any one will do."""
    # neither command is allowed in scripts: what may not block is in EXEC
    if not call.hub.access.log_in(call.session, user, password, word, in_exec=not call.may_block):
        raise fault(_WRONG_PASS)


@COMMANDS.serves("hello", -1, _FREE, since="6.0.0", summary="Handshakes with the server.")
def hello(call: ServerCall, argv: list[bytes]) -> Reply:
    """HELLO [protover [AUTH username password] [SETNAME clientname]]"""
    session = call.session
    protocol = session.protocol
    if len(argv) > 1:
        version = as_integer(argv[1])
        if version is None:
            raise fault("ERR Protocol version is not an integer or out of range")
        if version not in (2, 3):
            raise fault("NOPROTO unsupported protocol version")
        protocol = version
    login, name = _hello_options(argv[2:])
    if login is not None:
        _authenticate(call, argv[0], *login)
    if not session.is_authenticated:
        raise fault(_HELLO_NEEDS_AUTH)
    if name is not None:
        session.name = name
    session.protocol = protocol
    return Pairs(
        [
            b"server",
            b"redis",
            b"version",
            REDIS_VERSION,
            b"proto",
            protocol,
            b"id",
            session.id,
            b"mode",
            b"standalone",
            b"role",
            b"master",
            b"modules",
            [],
        ]
    )


def _hello_options(words: list[bytes]) -> tuple[tuple[bytes, bytes] | None, bytes | None]:
    """User and password, and the name, where given."""
    login = name = None
    at = 0
    while at < len(words):
        option = words[at].upper()
        if option == b"AUTH" and at + 2 < len(words):
            login = (words[at + 1], words[at + 2])
            at += 3
        elif option == b"SETNAME" and at + 1 < len(words):
            name = words[at + 1]
            if not is_plain(name):
                raise bad_name(b"Client names")
            at += 2
        else:
            raise fault(b"ERR Syntax error in HELLO option '" + words[at] + b"'")
    return login, name


@COMMANDS.serves("auth", -2, _FREE, summary="Authenticates the connection.")
def auth(call: ServerCall, argv: list[bytes]) -> Reply:
    """AUTH [username] password"""
    if len(argv) > 3:
        raise fault(SYNTAX)
    if len(argv) == 2 and call.hub.access.users[DEFAULT_USER].needs_no_password:
        raise fault(_NO_PASSWORD)
    _authenticate(call, argv[0], argv[1] if len(argv) == 3 else DEFAULT_USER, argv[-1])
    return OK


@COMMANDS.serves("ping", -1, "fast", summary="Returns the server's liveliness response.")
def ping(call: ServerCall, argv: list[bytes]) -> Reply:
    """PING [message]"""
    if len(argv) > 2:
        raise wrong_arity("ping")
    if call.session.is_subscriber:
        return [b"pong", argv[1] if len(argv) == 2 else b""]
    return argv[1] if len(argv) == 2 else Simple(b"PONG")


@COMMANDS.serves("echo", 2, "loading stale fast", summary="Returns the given string.")
def echo(call: ServerCall, argv: list[bytes]) -> Reply:
    """ECHO message"""
    return argv[1]


@COMMANDS.serves("quit", -1, _FREE, summary="Closes the connection.")
def quit_(call: ServerCall, argv: list[bytes]) -> Reply:
    """QUIT"""
    call.session.shut()
    return OK


@COMMANDS.serves("reset", 1, _FREE, since="6.2.0", summary="Resets the connection.")
def reset(call: ServerCall, argv: list[bytes]) -> Reply:
    """RESET"""
    call.session.leave_everything()
    call.session.start_over()
    call.session.follow_limits()
    return Simple(b"RESET")


@COMMANDS.serves("select", 2, "loading stale fast", summary="Changes the selected database.")
def select(call: ServerCall, argv: list[bytes]) -> Reply:
    """SELECT index"""
    index = integer(argv[1])
    if not 0 <= index < len(call.keyspace.databases):
        raise fault(BAD_DB_INDEX)
    call.session.db = index
    return OK
