"""redis-py on the engine, in one process: its own clients, with a connection that has no socket.

    redis.Redis ── Connection.send ──▶ Pipe.sendall ──▶ Session.feed ── runs in the caller, under the hub's lock
         ▲                                                    │
         └──────── parser ◀── Pipe.recv_into ◀── chunks ◀─────┘     (replies to a blocked read come from other threads)

The asyncio client has a real `StreamReader`, fed by the session. All of redis-py above the connection is unchanged.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any, Final

import redis
import redis.asyncio
from redis.asyncio.connection import Connection as AsyncConnection
from redis.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError

from millstream.server.core.hub import Hub

_HOST: Final = "embedded"
_CLOSED: Final = "Connection closed by server."


def make_client(hub: Hub, db: int = 0, **options: Any) -> redis.Redis:
    """Make a `redis.Redis` on this hub; the options are those of redis.Redis.

    There is no network that could hang, so `socket_timeout` is None unless given: a read blocks as long as its BLOCK.
    """
    is_single = options.pop("single_connection_client", False)
    client = redis.Redis(db=db, **_defaults(redis.Redis, options))
    pool: Any = client.connection_pool
    pool.connection_class = EmbeddedConnection
    pool.connection_kwargs["hub"] = hub
    if is_single:  # not before the pool knows how to connect
        client._single_connection_client = True
        client.connection = pool.get_connection()
    return client


def make_async_client(hub: Hub, db: int = 0, **options: Any) -> redis.asyncio.Redis:
    """Make a `redis.asyncio.Redis` on this hub; the options are its own, and see `make_client`."""
    client = redis.asyncio.Redis(db=db, **_defaults(redis.asyncio.Redis, options))
    pool: Any = client.connection_pool
    pool.connection_class = AsyncEmbeddedConnection
    pool.connection_kwargs["hub"] = hub
    return client


def _defaults(kind: type, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a client, with defaults that suit a connection without a network."""
    options = {"host": _HOST, "port": 0, "socket_timeout": None, "socket_connect_timeout": None, **options}
    if "maint_notifications_config" in signature(kind).parameters:  # since redis-py 7, for asyncio since 8
        from redis.maint_notifications import MaintNotificationsConfig

        # Nobody will move this server: spare each new connection the question.
        options.setdefault("maint_notifications_config", MaintNotificationsConfig(enabled=False))
    return options


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Return a callback that does not keep its object alive: a connection that is dropped takes its session with it."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        target = reference()
        if target is not None:
            target(*arguments)

    return call


# Threads


class Pipe:
    """What redis-py takes for a connected socket: requests run in `sendall`, `recv` waits for replies."""

    __slots__ = ("__weakref__", "_chunks", "_gate", "_is_ended", "_offset", "_session", "_timeout_s")

    def __init__(self, hub: Hub, timeout_s: float | None = None) -> None:
        self._chunks: deque[bytes] = deque()  # replies not yet read
        self._offset = 0  # how much of the first was
        self._gate: Any = None  # a lock that a waiting reader holds and waits for
        self._is_ended = False
        self._timeout_s = timeout_s
        self._session = hub.session(_weakly(self._receive), _weakly(self._end))

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None:
            session.drop()

    # Called by the session, from any thread

    def _receive(self, data: bytes) -> None:
        self._chunks.append(data)
        self._open_gate()

    def _end(self) -> None:
        self._is_ended = True
        self._open_gate()

    def _open_gate(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.release()

    # Called by redis-py

    def sendall(self, data: bytes) -> None:
        """Run the requests in `data`."""
        if self._session.is_closed:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        self._session.feed(data if type(data) is bytes else bytes(data))

    def recv_into(self, buffer: bytearray | memoryview, nbytes: int = 0, flags: int = 0) -> int:
        """Copy what there is, at least a byte, into the buffer; 0 at the end."""
        room = nbytes or len(buffer)
        chunk = self._take(room, flags)
        size = len(chunk)
        buffer[:size] = chunk
        return size

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """Return the bytes that have come, at least one; no bytes at the end of the connection."""
        return self._take(bufsize, flags)

    def _take(self, room: int, flags: int) -> bytes:
        if not self._chunks and not self.wait(self._timeout_s):
            if self._timeout_s == 0:
                raise BlockingIOError(errno.EWOULDBLOCK, "Resource temporarily unavailable")
            raise TimeoutError("timed out")
        if not self._chunks:
            return b""
        first = self._chunks[0]
        chunk = first[self._offset : self._offset + room] if self._offset or len(first) > room else first
        if not flags & socket.MSG_PEEK:
            self._offset += len(chunk)
            if self._offset >= len(first):
                self._chunks.popleft()
                self._offset = 0
        return chunk

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for something to read, the end included; whether it came in time."""
        gate = threading.Lock()
        gate.acquire()
        self._gate = gate
        # Looked at only now: whatever comes after this finds the gate.
        if self._chunks or self._is_ended:
            self._gate = None
            return True
        if timeout_s != 0:
            gate.acquire(timeout=-1 if timeout_s is None else timeout_s)
        self._gate = None
        return bool(self._chunks) or self._is_ended

    def pending(self) -> int:
        """How many bytes can be read at once."""
        return sum(map(len, self._chunks)) - self._offset

    @property
    def is_at_end(self) -> bool:
        """Whether nothing is left to read, nor will be."""
        return self._is_ended and not self._chunks

    def settimeout(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    def gettimeout(self) -> float | None:
        return self._timeout_s

    def setblocking(self, flag: bool) -> None:
        self._timeout_s = None if flag else 0

    def setsockopt(self, *arguments: Any) -> None:
        """There is nothing to set."""

    def getpeername(self) -> tuple[str, int]:
        return (_HOST, 0)

    def getsockname(self) -> tuple[str, int]:
        return (_HOST, self._session.id)

    def shutdown(self, how: int = socket.SHUT_RDWR) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; a thread that waits for a reply is told."""
        session = getattr(self, "_session", None)
        if session is not None:
            session.close()
            self._end()


class EmbeddedConnection(Connection):
    """redis-py's connection, on a hub. Also for pools of your own: `ConnectionPool(connection_class=…, hub=hub)`."""

    def __init__(self, *, hub: Hub, **options: Any) -> None:
        self._hub = hub
        super().__init__(**options)  # type: ignore[no-untyped-call]

    def _connect(self) -> Any:
        return Pipe(self._hub, self.socket_timeout)

    def can_read(self, timeout: float | None = 0) -> bool:
        """Whether there is something to read, after waiting for it that long."""
        pipe: Any = self._sock
        reader = getattr(self._parser, "_reader", None)
        if pipe is None or reader is None or hasattr(self._parser, "_next_response"):
            return bool(super().can_read(timeout))  # type: ignore[arg-type]
        # redis-py 8 would poll the socket's file descriptor here, and we have none
        if reader.has_data():
            return True
        if not pipe._chunks and (timeout == 0 or not pipe.wait(timeout)) and not pipe._is_ended:
            return False
        if pipe.is_at_end:
            raise RedisConnectionError(_CLOSED)
        return True

    def repr_pieces(self) -> list[tuple[str, Any]]:
        return [("embedded", True), ("db", self.db)]

    def _host_error(self) -> str:
        return _HOST


# asyncio


class LocalConnection:
    """What redis-py takes for a `StreamWriter`; the session's output goes to the reader beside it."""

    __slots__ = ("__weakref__", "_is_called", "_is_ended", "_loop", "_queued", "_reader", "_session")

    def __init__(self, hub: Hub, reader: asyncio.StreamReader, loop: asyncio.AbstractEventLoop) -> None:
        self._reader = reader
        self._loop = loop
        self._queued: deque[bytes | None] = deque()  # output on its way to the reader; None is the end
        self._is_called = False  # the loop knows that there is some
        self._is_ended = False
        self._session = hub.session(_weakly(self._receive), _weakly(self._end))

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None:
            session.drop()

    # Called by the session, from any thread

    def _receive(self, data: bytes) -> None:
        self._queued.append(data)
        self._deliver()

    def _end(self) -> None:
        self._queued.append(None)
        self._deliver()

    def _deliver(self) -> None:
        """Hand output to the reader, here or, as readers are not for other threads, when the loop comes to it."""
        if asyncio._get_running_loop() is self._loop:
            self._drain()
        elif not self._is_called:
            self._is_called = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed, and with it whoever would have read this
                self._session.close()

    def _drain(self) -> None:
        self._is_called = False
        while self._queued:
            data = self._queued.popleft()
            if self._is_ended:
                continue
            if data is None:
                self._is_ended = True
                self._reader.feed_eof()
            else:
                self._reader.feed_data(data)

    # Called by redis-py

    def write(self, data: bytes) -> None:
        """Run the requests in `data`."""
        if self._session.is_closed:
            raise ConnectionResetError(errno.ECONNRESET, "Connection lost")
        self._session.feed(data if type(data) is bytes else bytes(data))

    def writelines(self, lines: Iterable[bytes]) -> None:
        self.write(b"".join(lines))

    async def drain(self) -> None:
        """Let other tasks run: a loop of commands that never waits would keep them out for ever."""
        await asyncio.sleep(0)

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._session.is_closed

    def close(self) -> None:
        """Hang up; a task that waits for a reply is told."""
        self._session.close()
        self._end()

    async def wait_closed(self) -> None:
        """Return at once: `close` has closed the connection already."""

    @property
    def transport(self) -> LocalConnection:
        return self

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": (_HOST, 0), "sockname": (_HOST, self._session.id)}.get(name, default)


class AsyncEmbeddedConnection(AsyncConnection):
    """redis-py's asyncio connection, on a hub."""

    def __init__(self, *, hub: Hub, **options: Any) -> None:
        self._hub = hub
        super().__init__(**options)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=2**31, loop=loop)
        self._reader = reader
        self._writer = LocalConnection(self._hub, reader, loop)  # type: ignore[assignment]

    def repr_pieces(self) -> list[tuple[str, Any]]:
        return [("embedded", True), ("db", self.db)]

    def _host_error(self) -> str:
        return _HOST
