"""One connection without a socket: what is known of the client, its transaction, what it still has to send.

    feed(bytes) ──▶ RequestDecoder ──▶ argv ── checks ──▶ queued (MULTI) or run ──▶ reply ──▶ send(bytes)

Requests are answered strictly in order. While a command blocks, later requests wait. Messages from channels go out
between replies; those that the session's own command causes, after its reply.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from millstream.engine import faults
from millstream.engine.faults import fault
from millstream.engine.outcome import Encoded, Reply, Simple, Wait
from millstream.engine.table import Command
from millstream.errors import CommandError, ProtocolError
from millstream.server.auth import DEFAULT_USER
from millstream.server.commands import PLAIN, lookup
from millstream.server.commands.common import ReplyMode
from millstream.server.express import EXPRESS
from millstream.server.resp import RequestDecoder, append_reply, encode

if TYPE_CHECKING:
    from millstream.server.blocking import Place, Waiter
    from millstream.server.hub import Hub

logger = logging.getLogger(__name__)

Gate = Callable[["Session", Command, list[bytes]], "CommandError | None"]

QUEUED: Final = Simple(b"QUEUED")
_ON: Final = ReplyMode.ON
_LOCAL: Final = (b"127.", b"[::1]:", b"[::ffff:127.", b"embedded:")
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
        "__weakref__", "_closed", "_decoder", "_deferred", "_output", "_pending", "_provisional", "_queued_bytes",
        "_send", "aborted", "address", "bytes_in", "bytes_out", "channels", "commands", "created_ms", "db", "hub",
        "id", "is_authenticated", "is_closed", "is_closing", "is_running", "is_trusted", "last_command", "last_ms",
        "lib_name", "lib_version", "local_address", "name", "patterns", "protocol", "queue", "reply_mode", "shards",
        "user", "waiter", "watch_failed", "watched",
    )  # fmt: skip

    def __init__(
        self,
        hub: Hub,
        send: Callable[[bytes], None],
        closed: Callable[[], None] | None = None,
        *,
        number: int = 0,
        address: bytes = b"",
        local_address: bytes = b"",
    ) -> None:
        self.hub = hub
        self.id = number
        self.address = address or b"embedded:%d" % number
        self.local_address = local_address or b"embedded:0"
        self.created_ms = self.last_ms = hub.now_ms()
        self.last_command = "NULL"
        self.commands = self.bytes_in = self.bytes_out = 0
        self.lib_name = self.lib_version = b""
        self.is_closed = False  # the peer has gone, or was sent away
        self.is_closing = False  # to be closed once the output is sent
        self.is_trusted = False  # not a client, but the program that this server is a part of
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
        self._provisional: list[tuple[int, int]] = []  # parts of it that hold only once the log is written
        self._deferred: list[bytes] = []
        self.start_over()
        self.follow_limits()

    def start_over(self) -> None:
        """The state of a fresh connection, as far as RESET brings it back."""
        self.protocol = 2
        self.db = 0
        self.name = b""
        self.user = DEFAULT_USER
        self.is_authenticated = self.hub.access.is_open
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
        self.hub.stats.bytes_in += self.bytes_in
        self.hub.stats.bytes_out += self.bytes_out
        self.leave_everything()
        self.hub.sessions.pop(self.id, None)

    # Requests

    def advance(self) -> None:
        """Run requests until there is none, one of them blocks, or the connection ends."""
        parsed = self._decoder.parsed
        while self.waiter is None and not self.is_closing:
            if parsed and not self._pending:
                if parsed[0][0] not in EXPRESS or not self._run_express(parsed):
                    self._handle(parsed.popleft())
                continue
            try:
                argv = self._pending.popleft() if self._pending else self._decoder.next()
            except ProtocolError as error:
                self._break_off(str(error))
                return
            if argv is None:
                return
            self._handle(argv)

    def _run_express(self, parsed: deque[list[bytes]]) -> bool:
        """Run requests of one of the hot few from the front of the queue; False if the first needs the long way.

        What holds for all commands is looked at once: nothing that these do can change it. The time is taken anew
        every few of them.
        """
        hub = self.hub
        if (
            self.queue is not None
            or not self.is_authenticated
            or self.reply_mode is not _ON
            or hub.is_told
            or hub.monitors
            or hub.access.is_needed
            or self.channels
            or self.patterns
            or self.shards
        ):
            return False
        word = parsed[0][0]
        run = EXPRESS[word]
        row = PLAIN[word]
        if hub.gates and self.refusal(row, parsed[0]) is not None:
            return False
        output, db, protocol = self._output, self.db, self.protocol
        start = len(output)
        started = perf_counter_ns()
        now_ms = 0
        while parsed and parsed[0][0] == word:
            if not len(output) - start & 31:
                now_ms = hub.now_ms()
            data = run(hub, db, parsed[0], now_ms, protocol)
            if data is None:
                break
            parsed.popleft()
            output.append(data)
        done = len(output) - start
        if not done:
            return False
        if not start:
            hub.send_later(self)
        if hub.keeps_log and hub.before_replies is not None:
            self._provisional += zip(range(start, start + done), range(start + 1, start + done + 1), strict=True)
        self.last_ms, self.last_command = now_ms, row.name
        self.commands += done
        hub.stats.commands += done
        counters = hub.stats.of(row.name)
        counters.calls += done
        counters.nanoseconds += perf_counter_ns() - started
        return True

    def _break_off(self, text: str) -> None:
        """Answer a protocol error, unless it is one to be silent about, and close."""
        if text:
            error = fault(b"ERR Protocol error: " + text.encode("latin-1"))
            self.hub.stats.count_error(error)
            self._write(encode(error, self.protocol))
        self.shut()

    def _handle(self, argv: list[bytes]) -> None:
        """Check a request, and run or queue it."""
        hub = self.hub
        self.commands += 1
        self.last_ms = hub.now_ms()
        row = PLAIN.get(argv[0])
        # Nearly every request is one of a plain command on a plain connection, which passes all checks.
        if (
            row is not None
            and self.queue is None
            and self.is_authenticated
            and not (hub.monitors or self.channels or self.patterns or self.shards)
            and (len(argv) == row.arity or len(argv) >= -row.arity > 0)
        ):
            refusal = self.refusal(row, argv) if hub.gates else None
            if refusal is not None:
                self._refuse(refusal, row, argv)
                return
            self.last_command = row.name
            self._run(row, argv)
        else:
            self._handle_carefully(argv)

    def _handle_carefully(self, argv: list[bytes]) -> None:
        hub = self.hub
        row = None
        try:
            row = lookup(argv)
            self._check(row, argv)
        except CommandError as error:
            self._refuse(error, row, argv)
            return
        self.last_command = row.name
        if self.queue is not None and row.name not in _NEVER_QUEUED:
            self._queued_bytes += sum(map(len, argv))
            if self._queued_bytes > self._decoder.max_buffer:
                logger.warning("Closing a client whose transaction is too long: %d", self.id)
                self.shut()
                return
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
        if row.name == "debug" and not self._may_debug():
            raise fault(NO_DEBUG)
        if not self.is_authenticated and "no_auth" not in row.flags:
            raise fault("NOAUTH Authentication required.")
        if self.queue is not None and "no_multi" in row.flags:
            raise fault("ERR Command not allowed inside a transaction")
        refusal = self.refusal(row, argv) if hub.gates else None
        if refusal is not None:
            raise refusal
        if self.is_subscriber and row.name not in _FOR_SUBSCRIBERS:
            raise fault(
                f"ERR Can't execute '{row.name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET "
                "are allowed in this context"
            )

    def _may_debug(self) -> bool:
        """Whether DEBUG is allowed; `local` is on this machine, whose two ends of a unix socket have one name."""
        setting = self.hub.config["enable-debug-command"]
        is_local = self.address == self.local_address or self.address.startswith(_LOCAL)
        return setting == b"yes" or (setting == b"local" and is_local)

    def refusal(self, row: Command, argv: list[bytes]) -> CommandError | None:
        """What one of the hub's gates has against a command: access control, memory, a log that cannot be written."""
        for gate in self.hub.gates:
            refusal = gate(self, row, argv)
            if refusal is not None:
                return refusal
        return None

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
        start = len(self._output)
        self.is_running = True
        reply = hub.perform(self, row, argv, self.last_ms, True)
        self.is_running = False
        if type(reply) is Wait:
            self.waiter = hub.block(self, row, reply, self.db, self.protocol)
        elif self.reply_mode is _ON:
            if not self._output:
                hub.send_later(self)
            append_reply(self._output, reply, self.protocol)
        else:
            self._answer(reply)
        if hub.is_unsettled and hub.has_logged:
            self._note_provisional(start)
        if self._deferred:
            self.send_deferred()
        if hub.is_unsettled:
            hub.commit()

    def resume(self, reply: Reply) -> None:
        """The command that blocked has its reply."""
        waiter, self.waiter = self.waiter, None
        start = len(self._output)
        self._answer(reply)
        if waiter is not None and "write" in waiter.row.flags:
            self._note_provisional(start)
        self.send_deferred()
        self.hub.resume_later(self)

    # Output

    def _answer(self, reply: Reply | Wait) -> None:
        mode = self.reply_mode
        if mode is _ON:
            if not self._output:
                self.hub.send_later(self)
            append_reply(self._output, reply, self.protocol)
        elif mode is ReplyMode.SKIP_NEXT:
            self.reply_mode = ReplyMode.SKIP
        elif mode is ReplyMode.SKIP:
            self.reply_mode = ReplyMode.ON

    def _note_provisional(self, start: int) -> None:
        """The output from here on is a reply that promises something that is not certain yet."""
        if self.hub.before_replies is not None and len(self._output) > start:
            self._provisional.append((start, len(self._output)))

    def take_back(self, error: CommandError) -> None:
        """What was changed could not be made certain: an error goes out instead of each reply that promised it."""
        for start, end in self._provisional:
            self._output[start:end] = [encode(error, self.protocol)] + [b""] * (end - start - 1)
            self.hub.stats.count_error(error)

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
            data = self._output[0] if len(self._output) == 1 else b"".join(self._output)
            self._output.clear()
            self._provisional.clear()
            self.bytes_out += len(data)
            try:
                self._send(data)
            except Exception:  # costs its own connection and nobody else's
                logger.exception("Output could not be handed over, closing the connection: %d", self.id)
                self.is_closing = True
        if self.is_closing:
            self.forget()
            if self._closed is not None:
                self._closed()

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
        self._queued_bytes = 0
        self.aborted = False
        if self.watched:
            self.hub.watches.drop(self)
            self.hub.observe()

    def run_queue(self, queue: list[tuple[Command, list[bytes]]], now_ms: int) -> list[Reply]:
        """Run the commands of a transaction, all at the same time of day; their replies."""
        replies: list[Reply] = []
        access = self.hub.access
        for row, argv in queue:
            refusal = access.refusal_in_exec(self, row, argv) if access.is_needed or self.is_closing else None
            if refusal is not None:
                self.hub.stats.count_error(refusal)
                replies.append(refusal)
                continue
            protocol = self.protocol
            reply = self.hub.perform(self, row, argv, now_ms, False)
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
