"""`millstream serve`: from settings to a running server, and its start banner."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from millstream.cli import output
from millstream.cli.broker.directives import Directives, read_all, split_arguments
from millstream.cli.exits import Exit, Failure
from millstream.errors import ConfigError, CorruptFile
from millstream.persistence.malloc import keep_large_apart
from millstream.persistence.store import Opened, Store
from millstream.printable import printable
from millstream.server.config.settings import Config
from millstream.server.core.hub import Hub
from millstream.server.host.log import ServerLog
from millstream.server.host.supervision import ServiceManager, pid_file
from millstream.server.net.listener import Endpoints, Listener, check_exposure
from millstream.server.net.serve import Server
from millstream.server.net.tls import server_context
from millstream.version import REDIS_VERSION, VERSION

logger = logging.getLogger(__name__)

DEFAULTS: Final = {"bind": "127.0.0.1 -::1", "port": "6379", "dir": "./millstream-data", "appendonly": "yes"}
_SYNCS: Final = {
    b"always": "on the disk before it is answered",
    b"everysec": "on the disk within a second",
    b"no": "on the disk when the system sees fit",
}
_GC: Final = (20_000, 20, 50)  # entries are no cycles: look less often for those that are
_OWN_FILES: Final = 32  # descriptors that are not clients'


def serve(
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[CONFIG-FILE] [--NAME VALUE ...]", help="Settings, as in redis.conf.")
    ] = None,
) -> None:
    """Run the broker, a server for every Redis client, until SIGTERM or Ctrl-C.

    Settings have Redis' own names, in a file like redis.conf or as --NAME VALUE, which wins:

    \b
      millstream serve
      millstream serve /etc/millstream.conf --port 7000
      millstream serve --bind 0.0.0.0 --requirepass SECRET --appendfsync always

    \b
      --port N  --bind ADDRESS ...  --unixsocket PATH   where to listen (127.0.0.1, port 6379)
      --tls-port N  --tls-cert-file F  --tls-key-file F  --tls-ca-cert-file F  --tls-auth-clients yes|no|optional
      --dir PATH  --appendonly yes|no  --appendfsync always|everysec|no  --save "SECONDS CHANGES"
      --requirepass SECRET  --maxclients N  --timeout SECONDS  --maxmemory BYTES  --logfile PATH
      --enable-debug-command yes|no|local   and all others that CONFIG GET knows

    At the end no new clients are accepted; what was accepted before is finished and kept.

    Exit codes: 0 stopped on request, 1 it could not start or go on, 2 a setting cannot be used, 3 its data is damaged.
    """
    arguments = settings or []
    directives = read_all(arguments, DEFAULTS)
    hub = _make_hub(directives)
    config = hub.config
    endpoints = Endpoints.of(config)
    check_exposure(endpoints, hub)
    if endpoints.tls_port is not None:
        server_context(config)  # before anything else is touched
    log = ServerLog(config)
    hub.setting_hooks.append(log.follow)
    manager = ServiceManager(config)
    if directives.meaningless:
        logger.warning("Accepted without effect: %s", ", ".join(dict.fromkeys(directives.meaningless)))
    _make_room(config)
    store = Store(hub, Path(config["dir"].decode("utf-8", "surrogateescape")))
    hub.libraries.keep_in(store)
    opened = _open(store)
    hub.store = store
    file = split_arguments(arguments)[0]
    hub.config_file = Path(file).resolve() if file not in (None, "-") else None
    settle_in()
    server = Server(hub, endpoints)
    server.on_hangup = log.reopen

    def ready(listener: Listener) -> None:
        _greet(listener, directives, opened)
        manager.ready()

    try:
        with pid_file(config):
            server.run(ready, signals=True)
            manager.stopping()
            if not server.was_told_to_stop:
                store.settle(save=None)
    finally:
        store.close()
        hub.close()
    logger.info("Stopped")


def settle_in() -> None:
    """Tune the collector and the allocator for a process that only serves."""
    gc.freeze()  # what was loaded lives as long as the server: do not look through it again and again
    gc.set_threshold(*_GC)
    keep_large_apart()


def _open(store: Store) -> Opened:
    try:
        return store.open()
    except CorruptFile as error:
        raise Failure(f"{error}\n{error.hint}", Exit.DAMAGED) from error


def _make_hub(directives: Directives) -> Hub:
    try:
        return Hub(settings=directives.settings, users=directives.users)
    except ConfigError as error:
        places = [place for name, place in directives.user_places.items() if repr(name) in str(error)]
        raise ConfigError(": ".join([*places, str(error)])) from error


def _make_room(config: Config) -> None:
    """Raise the limit of open files to what `maxclients` needs, or lower `maxclients`."""
    wanted = config.number("maxclients") + _OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            config.put("maxclients", b"%d" % max(1, soft - _OWN_FILES))
            logger.warning("The system allows fewer clients than maxclients asks for: %d", soft - _OWN_FILES)


# The start banner


def _greet(listener: Listener, directives: Directives, opened: Opened) -> None:
    output.say(f"Millstream {VERSION} speaks as Redis {REDIS_VERSION.decode()}, {_engine_room()}")
    for label, value in _lines(listener, directives, opened):
        output.say(f"  {label:<10} {printable(value)}")


def _engine_room() -> str:
    loop = "uvloop" if type(asyncio.get_running_loop()).__module__.startswith("uvloop") else "asyncio"
    return f"Python {platform.python_version()} with {loop}, process {os.getpid()}"


def _lines(listener: Listener, directives: Directives, opened: Opened) -> Iterator[tuple[str, str]]:
    if listener.tcp:
        yield "listens", ", ".join(map(_shown, listener.tcp))
    if listener.tls:
        yield "TLS", ", ".join(map(_shown, listener.tls))
    if listener.unix_socket:
        yield "socket", listener.unix_socket
    yield "data", f"{_kept(listener.hub.config)}; {opened}"
    yield "access", _open_to(listener) if listener.hub.access.is_open else "by password"
    yield from (("connect", way) for way in _ways_in(listener))
    if directives.meaningless:
        yield "ignored", "settings without effect here: " + ", ".join(dict.fromkeys(directives.meaningless))
    yield "stop", "Ctrl-C or SIGTERM"


def _kept(config: Config) -> str:
    """Describe where data is kept, and how safely."""
    directory = Path(config["dir"].decode("utf-8", "surrogateescape")).resolve()
    if config.is_on("appendonly"):
        return f"{directory}, every change logged, {_SYNCS[config['appendfsync']]}"
    if config["save"]:
        return f"{directory}, snapshots only: a crash loses everything after the last one"
    return f"in memory only: nothing is kept except by SAVE, in {directory}"


def _open_to(listener: Listener) -> str:
    return (
        "no password: open to everybody who can reach it" if _is_exposed(listener) else "no password, this machine only"
    )


def _is_exposed(listener: Listener) -> bool:
    return bool(Endpoints.of(listener.hub.config).exposed())


def _shown(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _ways_in(listener: Listener) -> Iterator[str]:
    """Yield ways to connect, for new users."""
    password = "" if listener.hub.access.is_open else ", password=…"
    if listener.tcp:
        port = listener.tcp[0][1]
        yield f"redis-cli -p {port}"
        yield f"redis.Redis(port={port}{password})"
    elif listener.tls:
        yield f"redis-cli --tls -p {listener.tls[0][1]}"
    elif listener.unix_socket:
        yield f"redis-cli -s {listener.unix_socket}"
