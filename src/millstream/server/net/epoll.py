"""Sockets without the loop's transports: what is ready is read, run and answered in one turn.

    the loop ── our epoll is readable ──▶ turn: poll ──▶ recv ──▶ data_received … recv ──▶ data_received
                                                   └──▶ one write of the log ──▶ send … send

The loop sees one file only, the epoll itself, and is entered once for all sockets that are ready; timers and signals
stay with it, and the handshakes of TLS, after which a socket is one like the others. A turn has the hub's lock, and
keeps all output until its end. Systems without epoll do without this.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import socket
import ssl
import stat
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from millstream.server.batching.cross_connection import RequestSource, Turn
from millstream.server.net.tls import Handshake, TlsSocket

if TYPE_CHECKING:
    from millstream.server.core.hub import Hub
    from millstream.server.net.connection import Connection

logger = logging.getLogger(__name__)

IS_POSSIBLE: Final = hasattr(select, "epoll")

_READ: Final = 1 << 16  # bytes taken from a socket at a time
_COPIED: Final = 1 << 14  # bytes of output that are copied when they have to wait
_WRITE: Final = 1 << 18  # bytes offered to a socket that had no room before
_MOST: Final = 256  # sockets in a turn
_BUSY: Final = 8  # with so many ready, more will be soon: look again before the loop does
_ROUNDS: Final = 4
_IN: Final = 1  # EPOLLIN and EPOLLOUT, which other systems do not name
_OUT: Final = 4
_FULL: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ACCEPTS: Final = 100  # connections taken in at a time
_FULL_PAUSE_S: Final = 1.0

NewProtocol = Callable[[], "Connection"]


class Reactor:
    """All plain sockets of a listener, in the thread of its loop."""

    def __init__(self, hub: Hub, loop: asyncio.AbstractEventLoop) -> None:
        self._hub = hub
        self.loop = loop
        self.turn = Turn(hub)
        self._epoll = select.epoll()
        self._streams: dict[int, SocketTransport] = {}
        self._listening: dict[socket.socket, NewProtocol] = {}
        self._contexts: dict[socket.socket, ssl.SSLContext] = {}  # of those that listen for TLS
        self._handshakes: dict[Handshake, None] = {}
        hub.hear_others = self._hear_others
        hub.loop_thread = get_ident()
        loop.add_reader(self._epoll.fileno(), self._turn)

    # Accepting

    def listen(self, sock: socket.socket, new_protocol: NewProtocol, tls: ssl.SSLContext | None = None) -> None:
        """Take in whoever connects to a socket that listens."""
        if tls is not None:
            self._contexts[sock] = tls
        self._listening[sock] = new_protocol
        self.loop.add_reader(sock.fileno(), self._accept, sock, new_protocol)

    def _accept(self, listening: socket.socket, new_protocol: NewProtocol) -> None:
        for _ in range(_ACCEPTS):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except (OSError, MemoryError) as error:
                if isinstance(error, OSError) and error.errno not in _FULL:
                    raise
                logger.error("No more connections can be taken in: %s", error)
                self.loop.remove_reader(listening.fileno())
                self.loop.call_later(_FULL_PAUSE_S, self._accept_again, listening, new_protocol)
                return
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                with contextlib.suppress(OSError):  # it has gone already
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = self._contexts.get(listening)
            if context is None:
                SocketTransport(self, sock, new_protocol())
            else:
                self._greet(sock, context, new_protocol)

    def _greet(self, sock: socket.socket, context: ssl.SSLContext, new_protocol: NewProtocol) -> None:
        """Agree on keys with a client, then take it in."""
        try:
            Handshake(
                self.loop, sock, context, lambda secure: SocketTransport(self, secure, new_protocol()), self._handshakes
            )
        except (OSError, ValueError):  # it has gone already
            sock.close()

    def _accept_again(self, listening: socket.socket, new_protocol: NewProtocol) -> None:
        if listening in self._listening:
            self.loop.add_reader(listening.fileno(), self._accept, listening, new_protocol)

    def stop_listening(self) -> None:
        """Take in nobody any more."""
        for sock in self._listening:
            self.loop.remove_reader(sock.fileno())
            sock.close()
        self._listening.clear()
        self._contexts.clear()
        for handshake in list(self._handshakes):
            handshake.close()

    def close(self) -> None:
        """Give everything back; streams that are left are cut off."""
        self.stop_listening()
        for stream in list(self._streams.values()):
            stream.abort()
        if not self._epoll.closed:
            self._hub.hear_others = None
            self.loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    # Watching

    def watch(self, stream: SocketTransport, fd: int, mask: int) -> None:
        """Turn to this stream when it can be read (`_IN`) or written (`_OUT`); 0: only if it breaks."""
        if fd in self._streams:
            self._epoll.modify(fd, mask)
        else:
            self._streams[fd] = stream
            self._epoll.register(fd, mask)

    def forget(self, fd: int) -> None:
        """Remove a transport that is closed."""
        if self._streams.pop(fd, None) is not None and not self._epoll.closed:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def _turn(self) -> None:
        hub, poll, streams = self._hub, self._epoll.poll, self._streams
        for _ in range(_ROUNDS):
            events = poll(0, _MOST)
            if not events:
                return
            with hub.lock:
                hub.in_turn = True
                try:
                    for fd, event in events:
                        stream = streams.get(fd)  # None: closed by one before it
                        if stream is not None:
                            try:
                                stream.handle(event)
                            except Exception as error:
                                stream.fail(error)
                    self.turn.run()
                finally:
                    hub.in_turn = False
                    hub.send_output(self.turn.answer)
            if len(events) < _BUSY or self._epoll.closed:
                return

    def _hear_others(self) -> None:
        """Read from whoever sends something in the middle of a turn, but for those with a request that waits in it."""
        if self.turn.owes_replies:  # to those who had their turn before what takes long
            self._hub.send_output(self.turn.answer)
        for listening, new_protocol in self._listening.items():
            self._accept(listening, new_protocol)
        for handshake in list(self._handshakes):
            handshake.step()
        waiting = self.turn.waiting()
        for fd, event in self._epoll.poll(0, _MOST):
            stream = self._streams.get(fd)
            if stream is not None:
                try:
                    stream.handle_aside(event, waiting)
                except Exception as error:
                    stream.fail(error)


class SocketTransport:
    """A socket with the methods of an asyncio.Transport, as far as our connections need them."""

    __slots__ = (
        "_buffer",
        "_fd",
        "_high",
        "_is_aside",
        "_is_at_end",
        "_is_choked",
        "_is_closing",
        "_is_lost",
        "_is_paused",
        "_mask",
        "_protocol",
        "_reactor",
        "_recv",
        "_send",
        "_sends_no_more",
        "_size",
        "_sock",
        "_turn",
    )

    __deletable__ = ("_protocol",)  # for mypyc

    def __init__(self, reactor: Reactor, sock: Any, protocol: Connection) -> None:
        """`sock` is a socket, or a TlsSocket."""
        self._reactor = reactor
        self._sock = sock
        self._fd = sock.fileno()
        self._recv = sock.recv
        self._send = sock.send
        self._turn = reactor.turn
        self._is_aside = False  # a turn is under way, and what arrives is not for it
        self._protocol = protocol
        self._buffer: deque[bytearray | memoryview] = deque()  # what the socket had no room for
        self._size = 0  # bytes in it
        self._high = 1 << 16
        self._mask = -1
        self._is_choked = False  # the protocol was told that there is much in it
        self._is_paused = False
        self._is_at_end = False  # the peer sends no more
        self._is_closing = False
        self._is_lost = False
        self._sends_no_more = False
        protocol.connection_made(self)
        self._watch()

    def _watch(self) -> None:
        reads = not (self._is_paused or self._is_at_end or self._is_closing)
        mask = _IN * reads | _OUT * bool(self._buffer)
        if mask != self._mask and not self._is_lost:
            self._mask = mask
            self._reactor.watch(self, self._fd, mask)

    def handle(self, event: int) -> None:
        """Handle a ready socket."""
        if event == _IN:
            try:
                data = self._recv(_READ)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._lose(error)
                return
            if not data:
                self._end()
            elif self._is_aside:
                self._protocol.data_received(data)
            else:
                self._turn.take(self._protocol, data)
            return
        if event & _OUT:
            self._send_on()
        if event & ~_OUT and not self._is_lost:
            if self._mask & _IN:
                self.handle(_IN)  # reading tells what is wrong, after what has arrived
            elif event & ~(_OUT | _IN):
                self._lose(None)  # it is broken, and nobody reads from it

    def handle_aside(self, event: int, waiting: set[RequestSource]) -> None:
        """Handle a ready socket in the middle of a turn: its requests must not wait for the end of that turn."""
        if self._protocol in waiting:
            return
        self._is_aside = True
        try:
            self.handle(event)
        finally:
            self._is_aside = False

    def _end(self) -> None:
        self._is_at_end = True
        if not self._protocol.eof_received():
            self.close()
        self._watch()

    # Writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        buffer = self._buffer
        if self._is_closing or self._sends_no_more:
            return
        start = 0
        if not buffer:
            try:
                start = self._send(data)
            except (BlockingIOError, InterruptedError):
                start = 0
            except OSError as error:
                self._lose(error)
                return
            if start == len(data):
                return
        self._keep(data, start)
        self._watch()
        if self._size > self._high and not self._is_choked:
            self._is_choked = True
            self._protocol.pause_writing()

    def _keep(self, data: bytes | bytearray | memoryview, start: int) -> None:
        """Put data behind what waits: little of it is copied, much is referred to."""
        size = len(data) - start
        self._size += size
        rest = memoryview(data)[start:]
        last = self._buffer[-1] if self._buffer else None
        if size > _COPIED:
            self._buffer.append(rest)
        elif isinstance(last, bytearray) and len(last) < _COPIED:
            last += rest
        else:
            self._buffer.append(bytearray(rest))

    def _send_on(self) -> None:
        buffer = self._buffer
        left = _WRITE
        while buffer and left > 0:
            piece = buffer[0]
            try:
                with memoryview(piece) as view:
                    sent = self._send(view[:_WRITE])
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._lose(error)
                return
            self._size -= sent
            left -= sent
            if sent == len(piece):
                buffer.popleft()
            elif isinstance(piece, bytearray):
                del piece[:sent]
                break
            else:
                buffer[0] = piece[sent:]
                break
        if self._is_choked and self._size <= self._high // 4:
            self._is_choked = False
            self._protocol.resume_writing()
        if not buffer:
            self._finish()
        self._watch()

    def _finish(self) -> None:
        """Everything is sent: do what waited for that."""
        if self._sends_no_more:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
        if self._is_closing:
            self._lose(None)

    def write_eof(self) -> None:
        self._sends_no_more = True
        if not self._buffer and not self._is_lost:
            self._finish()

    def can_write_eof(self) -> bool:
        return not isinstance(self._sock, TlsSocket)  # TLS has no such half of a connection

    def get_write_buffer_size(self) -> int:
        return self._size

    def pieces(self) -> int:
        """Return in how many pieces output waits."""
        return len(self._buffer)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is not None:
            self._high = high

    # Reading, ending

    def pause_reading(self) -> None:
        self._is_paused = True
        self._watch()

    def resume_reading(self) -> None:
        self._is_paused = False
        self._watch()

    def is_closing(self) -> bool:
        return self._is_closing or self._is_lost

    def close(self) -> None:
        """Send what there is, read no more, then let go of the socket."""
        if not self.is_closing():
            self._is_closing = True
            if self._buffer:
                self._watch()
            else:
                self._lose(None)

    def abort(self) -> None:
        self._lose(None)

    def fail(self, error: Exception) -> None:
        """Close at once, because something read may be lost: what comes next must not be taken for a request."""
        self._lose(None)
        if isinstance(error, MemoryError):
            logger.error("There is no memory left for a connection, closing it")
        else:
            logger.error("A socket failed in a way it must not, closing it", exc_info=error)

    def _lose(self, error: OSError | None) -> None:
        """Give up the socket. The protocol is notified in a later turn of the loop."""
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._buffer.clear()
        self._size = 0
        self._reactor.forget(self._fd)
        self._reactor.loop.call_soon(self._part, error)

    def _part(self, error: OSError | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._sock.close()
            # It has us, too: two that have each other stay in memory until the collector has looked at everything.
            del self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        with contextlib.suppress(OSError):  # the peer has gone
            match name:
                case "socket":
                    return self._sock
                case "sslcontext":
                    return self._sock.context if isinstance(self._sock, TlsSocket) else default
                case "peername":
                    return self._sock.getpeername()
                case "sockname":
                    return self._sock.getsockname()
        return default


def open_listening_unix(path: str, backlog: int) -> socket.socket:
    """Open a listening unix socket; a stale one at the path is replaced."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(path)
        sock.listen(backlog)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def open_listening(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Sockets that listen on all addresses of a name; OSError if one cannot."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            opened.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(backlog)
            sock.setblocking(False)
    except BaseException:
        for sock in opened:
            sock.close()
        raise
    return opened
