"""One socket: bytes from the peer to its session, replies back, and what becomes of a peer that does not read.

    data_received ──▶ Session.feed ── runs all requests of the read ──▶ one _send ──▶ transport.write
                                                                          │
           output of other threads ── queued, the loop is called ─────────┘

A session runs requests for a moment, then others have their turn (`run_later`). A peer that leaves output unread is
not read from, and nothing of it is run, until it has caught up. One that reads nothing at all while it sends (a
pipeline of a million commands, whose replies are read at the end) would then wait for us as we for it. So after a
moment without progress its requests are read again, and kept; they are run until its output limit is reached, or,
where it has none, until UNREAD bytes wait.

What is not what clients send in numbers (inline requests, requests before AUTH, single bytes) has a fifth of the time,
all such connections together: one that has used its part is not read from for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from millstream.server.net.output_limits import OutputLimit, read_output_limits

if TYPE_CHECKING:
    from millstream.server.core.hub import Hub
    from millstream.server.core.session import Session

logger = logging.getLogger(__name__)

HIGH_WATER: Final = 1 << 20  # bytes a peer may leave unread before we read no more from it
PATIENCE_S: Final = 0.2  # how long a peer that reads nothing is not read from
UNREAD: Final = 32 << 20  # bytes that may wait for a peer without an output limit before its requests have to
_KEPT: Final = 16 << 20  # bytes of requests that are read at full speed although they have to wait
_TRICKLE_S: Final = 0.02  # how long to wait between reads after that
_BURST_S: Final = 0.0005  # what a connection may use of the time for unusual work before it is not read from
_READ_S: Final = 0.00002  # what a read costs before there is anything to do
_SHARE: Final = 0.2  # part of the time that unusual work gets
LINGER_S = 5.0  # how long a peer may take to read what it is sent before we close; not Final, for a test sets it


class ConnectionHost(Protocol):
    """The listener as its connections see it. Its attributes are explained there."""

    connections: dict[Connection, None]
    hub: Hub
    loop: asyncio.AbstractEventLoop
    penalties: int
    thread: int

    def leave(self, connection: Connection) -> None:
        """Remove a connection that has ended."""

    def refusal(self, address: bytes) -> bytes | None:
        """Return the error for a connection that is not admitted, or None."""

    def send_output(self) -> None:
        """Send the output that was kept back until the end of the turn."""


class Connection:
    """The socket's side of a session. Its methods are the loop's, but for `reply`, `_send` and `_end`.

    It has the methods of an asyncio.Protocol and is none, so that it can be compiled; so with its transport, which is a
    reactor's `Stream` or one of the loop's own.
    """

    __slots__ = (
        "_active_s",
        "_choked_size",
        "_ends_when_idle",
        "_is_called",
        "_is_choked",
        "_is_due",
        "_is_read",
        "_linger",
        "_listener",
        "_odd_s",
        "_over_since_s",
        "_patience",
        "_penalty",
        "_queued",
        "_seen_bytes",
        "_transport",
        "_waited_bytes",
        "session",
    )

    def __init__(self, listener: ConnectionHost) -> None:
        self._listener = listener
        self._transport: Any = None
        self.session: Session | None = None
        self._queued: deque[bytes | None] = deque()  # output of other threads; None ends the connection
        self._is_called = False  # the loop's thread will see to that, and has not begun
        self._is_choked = False  # the peer does not read
        self._linger: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._choked_size = 0
        self._penalty: asyncio.TimerHandle | None = None  # it is not read from until then
        self._is_due = False  # the loop will call `_continue`
        self._is_read = True  # the transport reads
        self._ends_when_idle = False  # the peer sends no more: close when all it has sent is answered
        self._odd_s = 0.0  # time that unusual work took since the last penalty
        self._over_since_s: float | None = None  # when the soft limit was first exceeded
        self._waited_bytes = 0  # came in while a command blocked
        self._seen_bytes = -1  # moved in both directions when last looked at
        self._active_s = listener.loop.time()

    # From the loop

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        listener = self._listener
        address, local_address = addresses(transport)
        refusal = listener.refusal(address)
        if refusal is not None:
            self._transport.write(refusal)
            self._part()
            return
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        keep_alive(transport, listener.hub.config.number("tcp-keepalive"))
        self.session = listener.hub.session(self._send, self._end, address=address, local_address=local_address)
        self.session.pacer = self
        listener.connections[self] = None

    def data_received(self, data: bytes) -> None:
        session = self.session
        if session is None:
            return
        started = perf_counter()
        try:
            session.feed(data)
        except Exception as error:
            self._fail(session, error)
            return
        if session.is_idle_work or not session.is_authenticated:
            self._charge(perf_counter() - started + _READ_S)
        if session.waiter is not None or session.is_held:
            self._wait_for_reply(session, len(data))
        elif self._waited_bytes:
            self._waited_bytes = 0

    def _fail(self, session: Session, error: Exception) -> None:
        self._drop()  # first: whatever else fails, what comes next must not be taken for the start of a request
        if isinstance(error, MemoryError):  # as many lines as requests, so they are short
            logger.error("There is no memory left for a connection, closing it: %d", session.id)
        else:
            logger.error("A connection failed in a way it must not: %d", session.id, exc_info=error)
        self._listener.hub.recover()

    # Turns

    def run_later(self) -> None:
        """Let the session go on when others have had their turn."""
        if not self._is_due:
            self._is_due = True
            self._listener.loop.call_soon(self._continue)
            self._update_reading()

    def _continue(self) -> None:
        self._is_due = False
        session = self.session
        if session is None or self._transport.is_closing() or self._penalty is not None:
            return
        started = perf_counter()
        try:
            session.go_on()
        except Exception as error:
            self._fail(session, error)
            return
        if session.is_idle_work or not session.is_authenticated:
            self._charge(perf_counter() - started)
        self._update_reading()
        if self._ends_when_idle and not (session.is_held or session.is_behind):
            self.close()  # what is left is a part of a request, or a command that would wait

    def _charge(self, seconds: float) -> None:
        """Count time for unusual work; above a burst the peer is not read from until others had theirs."""
        self._odd_s += seconds
        if self._odd_s < _BURST_S or self._penalty is not None:
            return
        listener = self._listener
        listener.penalties += 1
        delay_s = self._odd_s * listener.penalties / _SHARE
        self._odd_s = 0.0
        self._penalty = listener.loop.call_later(min(delay_s, 1.0), self._end_penalty)
        self._update_reading()

    def _end_penalty(self) -> None:
        if self._penalty is not None:
            self._penalty.cancel()
            self._penalty = None
            self._listener.penalties -= 1
            if self.session is not None and self.session.is_behind:
                self.run_later()
            self._update_reading()

    def _update_reading(self) -> None:
        """Read from the peer, unless something speaks against it."""
        session = self.session
        is_read = self._patience is None and self._penalty is None and (session is None or not session.is_behind)
        if is_read != self._is_read and not self._transport.is_closing():
            self._is_read = is_read
            if is_read:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Handle the end of the peer's input: send its replies and give up what it waits for."""
        session = self.session
        if session is not None and session.waiter is None and (session.is_behind or session.is_held):
            self._ends_when_idle = True  # whole requests that came before are answered first
        else:
            self.close()
        # True: we close when we are through. With TLS there is no such choice.
        return self._transport.get_extra_info("sslcontext") is None

    def connection_lost(self, error: Exception | None) -> None:
        for handle in (self._linger, self._patience):
            if handle is not None:
                handle.cancel()
        if self._penalty is not None:
            self._penalty.cancel()
            self._penalty = None
            self._listener.penalties -= 1
        self._linger = self._patience = None  # they have the transport, which has us
        self._forget()
        self._listener.leave(self)

    def pause_writing(self) -> None:
        self._is_choked = True
        session = self.session
        if session is None or self._transport.is_closing():
            return
        if not session.is_authenticated:
            logger.warning("Closing a client that neither logs in nor reads: %d", session.id)
            self._drop()
            return
        session.hold()
        self._be_patient()
        self._listener.hub.client_memory.look_soon()

    def resume_writing(self) -> None:
        self._is_choked = False
        self._over_since_s = None
        self._lose_track_of_progress()
        session = self.session
        if session is not None:
            session.release()
            if not session.is_idle:
                session.is_behind = True
                self.run_later()
        self._update_reading()

    def reply(self, data: bytes) -> None:
        """Send a reply that did not go through the session; in the loop's thread, under the hub's lock."""
        session = self.session
        if session is None or session.is_closed:
            return
        session.bytes_out += len(data)
        if self._queued or self._is_choked:
            self._send(data)
        else:
            self._transport.write(data)

    # From the session, under the hub's lock, in any thread

    def _send(self, data: bytes) -> None:
        if get_ident() != self._listener.thread:
            self._pass_on(data)
        elif self._queued:
            self._queued.append(data)
            self._drain()
        elif not self._transport.is_closing():
            self._transport.write(data)
            if self._is_choked:
                self._after_choked_write()

    def _end(self) -> None:
        if get_ident() != self._listener.thread:
            self._pass_on(None)
        else:
            self._queued.append(None)
            self._drain()

    def _pass_on(self, data: bytes | None) -> None:
        """Leave output to the loop's thread."""
        self._queued.append(data)
        # Only now: looked at before, the drain that was called could be through before there is anything new for it.
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it all connections
                self._listener.loop.call_soon_threadsafe(self._drain)

    # Output, in the loop's thread

    def _drain(self) -> None:
        self._is_called = False  # first: who adds something from now on calls again
        queued = self._queued
        while queued:
            data = queued.popleft()
            if data is not None:
                self._write(data)
                continue
            self.session = None
            self._part()

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)
            if self._is_choked:
                self._after_choked_write()

    def backlog(self) -> tuple[int, int]:
        """Return how many bytes of output wait for the peer, and in how many pieces."""
        size: int = self._transport.get_write_buffer_size()
        pieces: int = self._transport.pieces() if hasattr(self._transport, "pieces") else int(size > 0)
        queued = [len(data) for data in list(self._queued) if data is not None]
        return size + sum(queued), pieces + len(queued)

    def check_output(self, extra: int = 0) -> None:
        """Close a peer that has left more unread than its class may, or too much for too long."""
        session = self.session
        if session is None or self._transport is None or self._transport.is_closing():
            return
        limit = self._output_limit(session)
        if not (limit.hard or limit.soft):
            return
        size = self.backlog()[0] + session.unsent + extra
        if limit.soft and size > limit.soft:
            if self._over_since_s is None:
                self._over_since_s = self._listener.loop.time()
            is_over = self._listener.loop.time() - self._over_since_s >= limit.soft_s
        else:
            self._over_since_s = None
            is_over = False
        if is_over or (limit.hard and size > limit.hard):
            logger.warning("Closing a client that left too much unread: %d, %d bytes", session.id, size)
            session.hub.stats.output_disconnections += 1
            self.evict()

    def evict(self) -> None:
        """Close without sending what waits."""
        if self.session is not None:
            self.session.cut()
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it all connections
            self._listener.loop.call_soon_threadsafe(self._drop)

    def _output_limit(self, session: Session) -> OutputLimit:
        limits = read_output_limits(session.hub.config["client-output-buffer-limit"])
        if session.subscriptions or session.shards:
            return limits["pubsub"]
        limit, hub = limits["normal"], session.hub
        # Messages cannot wait as requests can: unlike in Redis, who gets them is never without a limit by default.
        if not (limit.hard or limit.soft) and (session in hub.monitors or hub.tracking.notifies(session)):
            return limits["pubsub"]
        return limit

    def _be_patient(self) -> None:
        self._choked_size = self._transport.get_write_buffer_size()
        if self._patience is None:
            self._patience = self._listener.loop.call_later(PATIENCE_S, self._lose_patience)
            self._update_reading()

    def _lose_track_of_progress(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _lose_patience(self) -> None:
        self._patience = None
        session = self.session
        if session is None or self._transport.is_closing() or not self._is_choked:
            return
        if self._transport.get_write_buffer_size() < self._choked_size:  # it is reading: let it
            self._be_patient()
            return
        if self._may_run_on(session):
            session.release()
            if not session.is_idle:
                session.is_behind = True
                self.run_later()
        self._update_reading()

    def _may_run_on(self, session: Session) -> bool:
        """Return whether requests of a peer that reads nothing may run until its limit ends it."""
        limit = self._output_limit(session)
        return self.backlog()[0] <= (limit.hard or limit.soft or UNREAD)

    def _after_choked_write(self) -> None:
        """Check output limits after output for a peer that does not read, and pause its requests if needed."""
        self.check_output()
        session = self.session
        if session is not None and not session.is_held and not self._may_run_on(session):
            session.hold()

    # Waiting, idling, ending

    def _wait_for_reply(self, session: Session, size: int) -> None:
        """Buffer requests that have to wait, up to the limit of the query buffer."""
        self._waited_bytes += size
        if self._waited_bytes > session.hub.config.number("client-query-buffer-limit"):
            logger.warning("Closing a client that sends without end while it waits: %d", session.id)
            session.hub.stats.query_disconnections += 1
            self._drop()
        elif session.is_held and self._waited_bytes > _KEPT and self._patience is None:
            self._choked_size = 0
            self._patience = self._listener.loop.call_later(_TRICKLE_S, self._lose_patience)
            self._update_reading()

    def check_idle(self, now_s: float, timeout_s: int) -> None:
        """Close a peer that did nothing for so long; waiting for entries or messages is doing something."""
        session = self.session
        if session is None:
            return
        moved = session.bytes_in + session.bytes_out
        is_waiting = session.waiter or session.subscriptions or session.shards or session in session.hub.monitors
        if moved != self._seen_bytes or is_waiting:
            self._seen_bytes = moved
            self._active_s = now_s
        elif now_s - self._active_s >= timeout_s:
            logger.info("Closing an idle client: %d", session.id)
            self.close()

    def close(self) -> None:
        """Send what there is, then close."""
        self._listener.send_output()
        self._forget()
        self._hang_up()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _forget(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            session.close()

    def _part(self) -> None:
        """Close behind the output that is on its way, and let the peer hang up first.

        Closing a socket that holds unread requests makes the system reset it, and the peer might never see why.
        """
        if self._transport.is_closing() or not self._transport.can_write_eof():
            self._hang_up()
            return
        self._transport.write_eof()
        self._lose_track_of_progress()
        self._end_penalty()
        self._update_reading()  # to see it go
        self._start_lingering()

    def _hang_up(self) -> None:
        self._transport.close()
        self._start_lingering()

    def _start_lingering(self) -> None:
        if self._linger is None:
            self._linger = self._listener.loop.call_later(LINGER_S, self._transport.abort)

    def _drop(self) -> None:
        """Close without sending what there is. The session is left when the loop tells that the socket is closed."""
        self._transport.abort()


def addresses(transport: Any) -> tuple[bytes, bytes]:
    """Return the peer's address and ours, as CLIENT LIST shows them."""
    peer, ours = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    if isinstance(ours, tuple):
        return _printed(peer), _printed(ours)
    path = ours if isinstance(ours, bytes) else str(ours).encode()
    return path + b":0", path + b":0"


def _printed(name: Any) -> bytes:
    if not isinstance(name, tuple):  # it has gone already
        return b"?:0"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"{host}:{name[1]}".encode()


def keep_alive(transport: Any, seconds: int) -> None:
    """Have the system ask a silent TCP peer every so often whether it is still there."""
    sock = transport.get_extra_info("socket")
    if sock is None or not seconds or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # the peer has gone already, or the system knows no such option
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        idle = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)
        if idle is not None:
            sock.setsockopt(socket.IPPROTO_TCP, idle, min(seconds, 32767))
        if hasattr(socket, "TCP_KEEPINTVL"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, min(max(1, seconds // 3), 32767))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
