"""The sockets: where they are bound, who is let in, who is sent away, and the end of all of them.

    Endpoints ──▶ Listener.start() ──▶ accept ──▶ Connection ──▶ Session ──▶ hub
                     ├── the hub's deadlines in the loop (LoopTimer)
                     ├── once a second: idle clients, clients that do not read
                     └── with a log: what a turn of the loop has to say goes out at its end, after one write

All in one thread, that of the loop; `stop` ends what `start` began.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import socket
import ssl
import stat
from dataclasses import dataclass
from threading import get_ident
from typing import Any, Final

from millstream.errors import ConfigError, MillstreamError
from millstream.server.config.settings import Config
from millstream.server.core.hub import Hub
from millstream.server.core.loop_timer import LoopTimer
from millstream.server.core.rates import SAMPLE_S
from millstream.server.core.timer import Waker
from millstream.server.features.client_memory import LOOK_S
from millstream.server.net.connection import LINGER_S, Connection
from millstream.server.net.epoll import IS_POSSIBLE, Reactor, open_listening, open_listening_unix
from millstream.server.net.tls import HANDSHAKE_S, server_context

logger = logging.getLogger(__name__)

TOO_MANY: Final = b"-ERR max number of clients reached\r\n"
DENIED: Final = (
    b"-DENIED This server is in protected mode: it has no password and accepts connections from this machine only. "
    b"Set requirepass, or protected-mode no if everybody who can reach it may use it.\r\n"
)
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)
_HOUSEKEEPING_S: Final = 1.0
_CLOSING_S: Final = 2.0  # how long clients may take at the end to read their last replies


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where to listen. An address that begins with `-` may be missing on this machine, as in Redis."""

    addresses: tuple[str, ...] = ("127.0.0.1",)
    port: int | None = 6379  # None: no TCP; 0: any free port
    tls_port: int | None = None
    unix_socket: str | None = None
    unix_permissions: int = 0  # 0: as the umask says

    @classmethod
    def of(cls, config: Config) -> Endpoints:
        """Where the settings say; a port 0 is none, as in Redis."""
        return cls(
            addresses=tuple(config["bind"].decode().split()) or ("*",),
            port=config.number("port") or None,
            tls_port=config.number("tls-port") or None,
            unix_socket=config["unixsocket"].decode() or None,
            unix_permissions=int(config["unixsocketperm"], 8),
        )

    def exposed(self) -> list[str]:
        """Those addresses that other machines can reach."""
        if self.port is None and self.tls_port is None:
            return []
        return [address for address in self.addresses if not is_loopback(address)]


class CannotListen(MillstreamError):
    """An address or path cannot be bound."""


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address."""
    host = address.removeprefix("-")
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def check_exposure(endpoints: Endpoints, hub: Hub) -> None:
    """Refuse to be reachable by others without a password."""
    exposed = endpoints.exposed()
    if exposed and hub.config.is_on("protected-mode") and hub.access.is_open:
        raise ConfigError(
            f"protected mode: {', '.join(exposed)} can be reached from other machines, and no password is set. "
            "Set requirepass, or bind 127.0.0.1 only; or, if everybody who can reach it may use it, "
            "set protected-mode no."
        )


class Listener:
    """All sockets of a hub; made and used in the thread of a running loop."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.loop = asyncio.get_running_loop()
        self.thread = get_ident()
        self.connections: dict[Connection, None] = {}
        self.penalties = 0  # connections that are not read from because of their unusual work
        self.tcp: list[tuple[str, int]] = []  # what we listen on
        self.tls: list[tuple[str, int]] = []
        self.unix_socket: str | None = None
        self._unix_inode = 0
        self._servers: list[asyncio.Server] = []
        self._waker_before: Waker | None = None
        self._housekeeping: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._sampled_s = 0.0
        self._is_empty = asyncio.Event()
        self._holds_output = False  # until the end of this turn of the loop
        self._reactor = Reactor(hub, self.loop) if IS_POSSIBLE else None

    # Starting

    async def start(self, endpoints: Endpoints) -> None:
        """Listen everywhere, or raise and listen nowhere."""
        check_exposure(endpoints, self.hub)
        tls = server_context(self.hub.config) if endpoints.tls_port is not None else None
        try:
            for address in endpoints.addresses:
                if endpoints.port is not None:
                    self.tcp += await self._listen(address, endpoints.port)
                if endpoints.tls_port is not None:
                    self.tls += await self._listen(address, endpoints.tls_port, tls)
            if endpoints.unix_socket is not None:
                await self._listen_unix(endpoints.unix_socket, endpoints.unix_permissions)
            if not (self.tcp or self.tls or self.unix_socket):
                raise CannotListen("there is nothing to listen on: no port and no unixsocket")
        except BaseException:
            await self.stop()
            raise
        if self.tcp:
            self.hub.config.put("port", b"%d" % self.tcp[0][1])
        self._waker_before = self.hub.use_waker(LoopTimer(self.hub, self.loop))
        self.hub.turn_end = self._hold_output
        self._housekeeping = self.loop.call_later(_HOUSEKEEPING_S, self._keep_house)
        self._looking = self.loop.call_later(SAMPLE_S, self._look)

    def _new_connection(self) -> Any:  # a Connection: loops say that they want an asyncio.Protocol, and take this
        return Connection(self)

    async def _listen(self, address: str, port: int, tls: ssl.SSLContext | None = None) -> list[tuple[str, int]]:
        host = address.removeprefix("-")
        try:
            return await self._open(host, port, tls)
        except OSError as error:
            if address.startswith("-") and error.errno in _NOT_HERE:
                logger.warning("This machine does not have an address, going on without it: %s", host)
                return []
            raise CannotListen(f"cannot listen on {host}, port {port}: {os.strerror(error.errno or 0)}") from error

    async def _open(self, host: str, port: int, tls: ssl.SSLContext | None) -> list[tuple[str, int]]:
        host = {"*": "0.0.0.0", "::*": "::"}.get(host, host)
        backlog = self.hub.config.number("tcp-backlog")
        if self._reactor is not None:
            opened = open_listening(host, port, backlog)
            for sock in opened:
                self._reactor.listen(sock, self._new_connection, tls)
            return [sock.getsockname()[:2] for sock in opened]
        server = await self.loop.create_server(
            self._new_connection,
            host,
            port,
            backlog=backlog,
            ssl=tls,
            ssl_handshake_timeout=HANDSHAKE_S if tls else None,
            ssl_shutdown_timeout=LINGER_S if tls else None,
        )
        self._servers.append(server)
        return [sock.getsockname()[:2] for sock in server.sockets]

    async def _listen_unix(self, path: str, permissions: int) -> None:
        if _is_served(path):
            raise CannotListen(f"cannot listen on {path}: another server does")
        try:
            backlog = self.hub.config.number("tcp-backlog")
            if self._reactor is not None:
                self._reactor.listen(open_listening_unix(path, backlog), self._new_connection)
            else:
                self._servers.append(await self.loop.create_unix_server(self._new_connection, path, backlog=backlog))
            if permissions:
                os.chmod(path, permissions)
            self._unix_inode = os.stat(path).st_ino
        except OSError as error:
            raise CannotListen(f"cannot listen on {path}: {error.strerror or error}") from error
        self.unix_socket = path

    # Who is let in

    def refusal(self, address: bytes) -> bytes | None:
        """Return the error for a new client that is not admitted, or None."""
        config = self.hub.config
        if len(self.connections) >= config.number("maxclients"):
            self.hub.stats.rejected_connections += 1
            return TOO_MANY
        if not self.hub.access.is_open or not config.is_on("protected-mode") or self._is_local(address):
            return None
        self.hub.stats.rejected_connections += 1
        return DENIED

    def _is_local(self, address: bytes) -> bool:
        host = address.rpartition(b":")[0].strip(b"[]").decode()
        return host == self.unix_socket or is_loopback(host.removeprefix("::ffff:"))

    def leave(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self.connections.pop(connection, None)
        if not self.connections:
            self._is_empty.set()

    def _look(self) -> None:
        """Note the totals for rates; with `maxmemory-clients`, look at the clients more often."""
        hub = self.hub
        with hub.lock:
            now_s = self.loop.time()
            if now_s >= self._sampled_s + SAMPLE_S:
                self._sampled_s = now_s
                hub.rates.sample()
            hub.client_memory.look_soon()
            is_limited = hub.client_memory.is_limited
        self._looking = self.loop.call_later(LOOK_S if is_limited else SAMPLE_S, self._look)

    def _keep_house(self) -> None:
        self._housekeeping = self.loop.call_later(_HOUSEKEEPING_S, self._keep_house)
        timeout_s = self.hub.config.number("timeout")
        now_s = self.loop.time()
        for connection in list(self.connections):
            connection.check_output()
            if timeout_s:
                connection.check_idle(now_s, timeout_s)

    # Output that waits for the log

    def _hold_output(self) -> bool:
        """Keep all output until the end of this turn, so that one write of the log is enough for it."""
        if get_ident() != self.thread:
            return False
        if not self._holds_output:
            self._holds_output = True
            self.loop.call_soon(self.send_output)
        return True

    def send_output(self) -> None:
        """Hand out what was kept back."""
        if self._holds_output or self.hub.in_turn:
            self._holds_output = False
            self.hub.send_output()

    # Ending

    async def stop(self) -> None:
        """Accept no more, send what is to be sent, close everything."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._reactor is not None:
            self._reactor.stop_listening()
        self._remove_unix_socket()
        self.hub.turn_end = None
        for connection in list(self.connections):
            connection.close()
        await self._wait_until_empty(_CLOSING_S)
        for connection in list(self.connections):
            connection.abort()
        await self._wait_until_empty(_CLOSING_S)
        if self._reactor is not None:
            self._reactor.close()
        for handle in (self._housekeeping, self._looking):
            if handle is not None:
                handle.cancel()
        if self._waker_before is not None:
            self.hub.use_waker(self._waker_before)
            self._waker_before = None

    async def _wait_until_empty(self, seconds: float) -> None:
        self._is_empty.clear()
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_empty.wait(), seconds)

    def _remove_unix_socket(self) -> None:
        """Remove the socket's file, unless another server has put its own there."""
        if self.unix_socket is None:
            return
        with contextlib.suppress(OSError):
            if os.stat(self.unix_socket).st_ino == self._unix_inode:
                os.unlink(self.unix_socket)
        self.unix_socket = None


def _is_served(path: str) -> bool:
    """Whether somebody answers at this path; a socket that was left behind is nobody's."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            probe.connect(path)
    except OSError:
        return False
    return True
