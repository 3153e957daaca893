"""CONFIG."""

from __future__ import annotations

from millstream.engine.faults import fault
from millstream.engine.outcome import OK, Pairs, Reply
from millstream.persistence.files import RealFiles, write_file
from millstream.server.commands.common import add_help
from millstream.server.config.rewrite import rewritten
from millstream.server.config.settings import defaults
from millstream.server.core.call import ServerCall, ServerRegistry
from millstream.server.core.stats import Stats

COMMANDS = ServerRegistry("server")
COMMANDS.contains("config", since="2.0.0", summary="A container for server configuration commands.")

_ADMIN = "admin noscript loading stale"


@COMMANDS.serves("config|get", -3, _ADMIN, since="2.0.0", summary="Returns the values of settings.")
def get(call: ServerCall, argv: list[bytes]) -> Reply:
    """CONFIG GET parameter [parameter ...]"""
    flat = Pairs()
    for name, value in call.hub.config.find(argv[2:]).items():
        flat += [name, value]
    return flat


@COMMANDS.serves("config|set", -4, _ADMIN, since="2.0.0", summary="Changes settings, all or none.")
def set_(call: ServerCall, argv: list[bytes]) -> Reply:
    """CONFIG SET parameter value [parameter value ...]"""
    for name in call.hub.config.change(argv[2:]):
        call.hub.apply_setting(name)
    return OK


@COMMANDS.serves("config|resetstat", 2, _ADMIN, since="2.0.0", summary="Resets the counters of INFO.")
def resetstat(call: ServerCall, argv: list[bytes]) -> Reply:
    """CONFIG RESETSTAT"""
    call.hub.stats = Stats()
    call.hub.rates.forget()
    return OK


@COMMANDS.serves("config|rewrite", 2, _ADMIN, since="2.8.0", summary="Writes the configuration to its file.")
def rewrite(call: ServerCall, argv: list[bytes]) -> Reply:
    """CONFIG REWRITE"""
    hub = call.hub
    if hub.config_file is None:
        raise fault("ERR The server is running without a config file")
    users = [] if hub.config["aclfile"] else [user.describe() for _, user in sorted(hub.access.users.items())]
    files = RealFiles()
    try:
        text = b"".join(files.read(hub.config_file)) if files.exists(hub.config_file) else b""
        write_file(files, hub.config_file, [rewritten(text, hub.config.values(), defaults(), users)])
    except OSError as error:
        raise fault(f"ERR Rewriting config file: {error.strerror}") from error
    return OK


add_help(COMMANDS, "config")
