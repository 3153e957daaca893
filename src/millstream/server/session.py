"""One connection without a socket: what is known of the client, its transaction, what it still has to send.

    feed(bytes) ──▶ RequestDecoder ──▶ argv ── checks ──▶ queued (MULTI) or run ──▶ reply ──▶ send(bytes)

Requests are answered strictly in order. While a command blocks, later requests wait. Messages from channels go out
between replies; those that the session's own command causes, after its reply.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millstream.engine import faults
from millstream.engine.faults import fault
from millstream.engine.outcome import Encoded, Reply, Simple, Wait
from millstream.engine.table import Command
from millstream.errors import CommandError, ProtocolError
from millstream.server.commands import lookup
from millstream.server.commands.common import ReplyMode
from millstream.server.resp import RequestDecoder, append_reply, encode

if TYPE_CHECKING:
    from millstream.server.blocking import Place, Waiter
    from millstream.server.hub import Hub

logger = logging.getLogger(__name__)

Gate = Callable[["Session", Command, list[bytes]], "CommandError | None"]

QUEUED: Final = Simple(b"QUEUED")
DEFAULT_USER: Final = b"default"
# Run at once although a transaction is being written down.
_NEVER_QUEUED: Final = frozenset({"exec", "discard", "multi", "watch", "quit", "reset"})
_FOR_SUBSCRIBERS: Final = frozenset({
    "ping", "subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe", "quit", "reset",
})  # fmt: skip

NO_DEBUG: Final = (
    "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a "
    "local connection, otherwise you need to set this option in the configuration file, and then restart the server."
)


class Session:
    """The state of a connection. Everything but `feed`, `execute` and `close` is called under the hub's lock."""

    __slots__ = (
        "__weakref__", "_closed", "_decoder", "_deferred", "_output", "_pending", "_send", "aborted", "address",
        "bytes_in", "bytes_out", "channels", "commands", "created_ms", "db", "hub", "id", "is_authenticated",
        "is_closed", "is_closing", "is_running", "last_command", "last_ms", "lib_name", "lib_version", "name",
        "patterns", "protocol", "queue", "reply_mode", "shards", "user", "waiter", "watch_failed", "watched",
    )  # fmt: skip

    def __init__(
        self,
        hub: Hub,
        send: Callable[[bytes], None],
        closed: Callable[[], None] | None = None,
        *,
        number: int = 0,
        address: bytes = b"",
    ) -> None:
        self.hub = hub
        self.id = number
        self.address = address or b"embedded:%d" % number
        self.created_ms = self.last_ms = hub.now_ms()
        self.last_command = "NULL"
        self.commands = self.bytes_in = self.bytes_out = 0
        self.lib_name = self.lib_version = b""
        self.is_closed = False  # the peer has gone, or was sent away
        self.is_closing = False  # to be closed once the output is sent
        self.is_running = False  # a command of this session is: messages it causes wait for its reply
        self.waiter: Waiter | None = None  # the command that blocks
        self.watched: dict[Place, bool] = {}
        self.watch_failed = False
        self.channels: dict[bytes, None] = {}
        self.patterns: dict[bytes, None] = {}
        self.shards: dict[bytes, None] = {}
        self._send = send
        self._closed = closed
        self._decoder = RequestDecoder()
        self._pending: deque[list[bytes]] = deque()  # requests that came as words
        self._output: list[bytes] = []
        self._deferred: list[bytes] = []
        self.start_over()
        self.follow_limits()

    def start_over(self) -> None:
        """The state of a fresh connection, as far as RESET brings it back."""
        self.protocol = 2
        self.db = 0
        self.name = b""
        self.user = DEFAULT_USER
        self.is_authenticated = not self.hub.config["requirepass"]
        self.reply_mode = ReplyMode.ON
        self.end_transaction()

    def follow_limits(self) -> None:
        """Take over the limits of requests from the settings."""
        config = self.hub.config
        self._decoder.max_bulk = config.number("proto-max-bulk-len")
        self._decoder.max_buffer = config.number("client-query-buffer-limit")
        self._decoder.restricted = not self.is_authenticated

    # From the outside

    def feed(self, data: bytes) -> None:
        """Take in bytes from the peer, and run what requests they complete."""
        hub = self.hub
        with hub.lock:
            if self.is_closed:
                return
            hub.is_busy = True
            self.bytes_in += len(data)
            self._decoder.feed(data)
            self.advance()
            hub.finish()

    def execute(self, argv: list[bytes]) -> None:
        """Take in one request that is already split into words."""
        with self.hub.lock:
            if not self.is_closed:
                self.hub.is_busy = True
                self._pending.append(argv)
                self.advance()
                self.hub.finish()

    def close(self) -> None:
        """The peer has gone: forget it. A command that blocks has taken nothing."""
        with self.hub.lock:
            if self.hub.is_busy:  # garbage collection came between: not while lists are being walked
                self.hub.close_later(self)
            else:
                self.forget()

    def forget(self) -> None:
        """Leave everything in which the hub knows this session."""
        if self.is_closed:
            return
        self.is_closed = self.is_closing = True
        if self.waiter is not None:
            self.hub.give_up(self.waiter)
            self.waiter = None
        self._output.clear()
        self.leave_everything()
        self.hub.sessions.pop(self.id, None)

    # Requests

    def advance(self) -> None:
        """Run requests until there is none, one of them blocks, or the connection ends."""
        while self.waiter is None and not self.is_closing:
            try:
                argv = self._pending.popleft() if self._pending else self._decoder.next()
            except ProtocolError as error:
                self._break_off(str(error))
                return
            if argv is None:
                return
            self._handle(argv)

    def _break_off(self, text: str) -> None:
        """Answer a protocol error, unless it is one to be silent about, and close."""
        if text:
            error = fault(b"ERR Protocol error: " + text.encode("latin-1"))
            self.hub.stats.count_error(error)
            self._write(encode(error, self.protocol))
        self.shut()

    def _handle(self, argv: list[bytes]) -> None:
        hub = self.hub
        self.commands += 1
        self.last_ms = hub.now_ms()
        row = None
        try:
            row = lookup(argv)
            self._check(row, argv)
        except CommandError as error:
            self._refuse(error, row, argv)
            return
        self.last_command = row.name
        if self.queue is not None and row.name not in _NEVER_QUEUED:
            self.queue.append((row, argv))
            self._answer(QUEUED)
            return
        if hub.monitors:
            hub.show(self, row, argv)
        self._run(row, argv)

    def _check(self, row: Command, argv: list[bytes]) -> None:
        """All reasons to refuse a command before it is run or queued, in Redis's order."""
        hub = self.hub
        if not row.fits(len(argv)):
            raise faults.wrong_arity(row.name)
        if row.name == "debug" and hub.config["enable-debug-command"] == b"no":
            raise fault(NO_DEBUG)
        if not self.is_authenticated and "no_auth" not in row.flags:
            raise fault("NOAUTH Authentication required.")
        if self.queue is not None and "no_multi" in row.flags:
            raise fault("ERR Command not allowed inside a transaction")
        for gate in hub.gates:  # access control, memory, a log that cannot be written
            refusal = gate(self, row, argv)
            if refusal is not None:
                raise refusal
        if self.is_subscriber and row.name not in _FOR_SUBSCRIBERS:
            raise fault(
                f"ERR Can't execute '{row.name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET "
                "are allowed in this context"
            )

    def _refuse(self, error: CommandError, row: Command | None, argv: list[bytes]) -> None:
        if row is None and argv[0].lower() in (b"post", b"host:"):  # a browser was tricked into talking to us
            self.shut()
            return
        if row is not None:
            self.hub.stats.of(row.name).rejected += 1
            if row.name == "exec":
                reason = error.wire.removeprefix(b"ERR ")
                error = fault(b"EXECABORT Transaction discarded because of: " + reason)
                self.end_transaction()
        self.aborted = self.queue is not None
        self.hub.stats.count_error(error)
        self._answer(error)

    def _run(self, row: Command, argv: list[bytes]) -> None:
        hub = self.hub
        self.is_running = True
        reply = hub.perform(self, row, argv, self.last_ms, may_block=True)
        self.is_running = False
        if type(reply) is Wait:
            self.waiter = hub.block(self, row, reply, self.db, self.protocol)
        else:
            self._answer(reply)
        self.send_deferred()
        hub.commit()

    def resume(self, reply: Reply) -> None:
        """The command that blocked has its reply."""
        self.waiter = None
        self._answer(reply)
        self.send_deferred()
        self.hub.resume_later(self)

    # Output

    def _answer(self, reply: Reply | Wait) -> None:
        mode = self.reply_mode
        if mode is ReplyMode.ON:
            if not self._output:
                self.hub.send_later(self)
            append_reply(self._output, reply, self.protocol)
        elif mode is ReplyMode.SKIP_NEXT:
            self.reply_mode = ReplyMode.SKIP
        elif mode is ReplyMode.SKIP:
            self.reply_mode = ReplyMode.ON

    def _write(self, data: bytes) -> None:
        if not self._output:
            self.hub.send_later(self)
        self._output.append(data)

    def push(self, data: bytes) -> None:
        """Send an encoded message now, or behind the reply of the command that is running."""
        if self.is_running:
            self._deferred.append(data)
        else:
            self._write(data)

    def send_deferred(self) -> None:
        """The reply is written: now the messages its command caused."""
        if self._deferred:
            self._write(b"".join(self._deferred))
            self._deferred.clear()

    def flush(self) -> None:
        """Hand all output to the peer; then close, if that was asked for."""
        if self.is_closed:
            return
        if self._output:
            data = b"".join(self._output)
            self._output.clear()
            self.bytes_out += len(data)
            self._hand_over(data)
        if self.is_closing:
            self.forget()
            if self._closed is not None:
                self._closed()

    def _hand_over(self, data: bytes) -> None:
        """Call `send`; one that fails costs its own connection and nobody else's."""
        try:
            self._send(data)
        except Exception:
            logger.exception("Output could not be handed over, closing the connection: %d", self.id)
            self.is_closing = True

    def shut(self) -> None:
        """Close the connection once its output is sent."""
        self.is_closing = True
        if self.waiter is not None:
            self.hub.give_up(self.waiter)
            self.waiter = None
        self.hub.send_later(self)

    # Transactions

    def end_transaction(self) -> None:
        """No transaction, nothing watched."""
        self.queue: list[tuple[Command, list[bytes]]] | None = None
        self.aborted = False
        if self.watched:
            self.hub.watches.drop(self)
            self.hub.observe()

    def run_queue(self, queue: list[tuple[Command, list[bytes]]], now_ms: int) -> list[Reply]:
        """Run the commands of a transaction, all at the same time of day; their replies."""
        replies: list[Reply] = []
        for row, argv in queue:
            protocol = self.protocol
            reply = self.hub.perform(self, row, argv, now_ms, may_block=False)
            assert not isinstance(reply, Wait), row.name
            if self.protocol != protocol:  # HELLO: what came before it is in the old protocol
                replies = [Encoded(encode(earlier, protocol)) for earlier in replies]
            replies.append(reply)
        return replies

    # Subscriptions

    @property
    def subscriptions(self) -> int:
        """Channels and patterns."""
        return len(self.channels) + len(self.patterns)

    @property
    def is_subscriber(self) -> bool:
        """Whether only a few commands are allowed: RESP2 cannot tell a message from a reply."""
        return self.protocol == 2 and bool(self.channels or self.patterns or self.shards)

    def leave_everything(self) -> None:
        """No transaction, no subscription, no monitoring."""
        self.end_transaction()
        pubsub = self.hub.pubsub
        for names, topics in (
            (self.channels, pubsub.channels), (self.patterns, pubsub.patterns), (self.shards, pubsub.shards)
        ):  # fmt: skip
            for name in names:
                topics.drop(name, self)
            names.clear()
        if self.hub.monitors.pop(self, "absent") is None:
            self.hub.observe()
