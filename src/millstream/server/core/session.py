"""One connection without a socket: what is known of the client, its transaction, what it still has to send.

    feed(bytes) ──▶ RequestDecoder ──▶ argv ── checks ──▶ queued (MULTI) or run ──▶ reply ──▶ send(bytes)

Requests are answered strictly in order. While a command blocks, later requests wait. A session with a socket runs
requests for TURN_MS or until they have TURN_BYTES of output, then lets others have their turn (`Pacer.run_later`);
while its peer leaves output unread (`hold`), it takes requests in and runs none. Messages from channels go out
between replies; those that the session's own command causes, after its reply.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from itertools import islice, takewhile
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, Protocol

from millstream.engine import faults
from millstream.engine.faults import fault
from millstream.engine.outcome import Encoded, Reply, Simple, Wait
from millstream.engine.table import Command
from millstream.errors import CommandError, ProtocolError
from millstream.server.access.auth import DEFAULT_USER
from millstream.server.batching.hot_commands import EXPRESS, EXPRESS_ALIKE
from millstream.server.batching.uniform import AlikeReader
from millstream.server.commands import PLAIN, lookup
from millstream.server.core.interfaces import ReplyMode
from millstream.server.core.services import Services
from millstream.server.features.client_memory import Pacer
from millstream.server.features.pause import Postponed
from millstream.server.protocol.resp import RequestDecoder, append_reply, encode
from millstream.server.protocol.sequence import Several

if TYPE_CHECKING:
    from millstream.server.core.blocking import Place, Waiter

logger = logging.getLogger(__name__)

QUEUED: Final = Simple(b"QUEUED")
TURN_MS: Final = 3  # how long requests of one connection may run before others have their turn
TURN_BYTES: Final = 1 << 20  # how many bytes of output they may make in that turn
_CHUNK: Final = 1 << 18  # bytes of output that are joined into one write
_NEVER: Final = 1 << 62
_ON: Final = ReplyMode.ON
_TINY: Final = 64  # a read of fewer bytes that completes no request counts as unusual
_WORTH_A_LOOK: Final = 256  # a read of so many bytes probably has more than one request
_MOST_AT_ONCE: Final = 64  # requests from a queue that run at the same time of day
_LOCAL: Final = (b"127.", b"[::1]:", b"[::ffff:127.", b"embedded:")
# These run at once inside MULTI.
_NEVER_QUEUED: Final = frozenset({"exec", "discard", "multi", "watch", "quit", "reset"})
_FOR_SUBSCRIBERS: Final = frozenset(
    {"ping", "subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe", "quit", "reset"}
)

NO_DEBUG: Final = (
    'ERR DEBUG command not allowed. If the enable-debug-command option is set to "local", you can run it from a '
    "local connection, otherwise you need to set this option in the configuration file, and then restart the server."
)


class SessionHub(Services, Protocol):
    """The hub as its sessions see it. Its attributes are explained there."""

    before_replies: Callable[[], CommandError | None] | None
    encoded_db: int
    is_busy: bool
    is_told: bool
    is_unsettled: bool
    lock: threading.RLock

    @property
    def has_logged(self) -> bool:
        """Return whether the command that just ran made a promise that is not certain yet."""

    def close_later(self, session: Session) -> None:
        """Forget a session once the current command has run."""

    def commit(self) -> None:
        """Log what a command did, and serve those who waited for it."""

    def drop_session(self, session: Session) -> None:
        """Remove a session from the list of all."""

    def finish(self) -> None:
        """Do what is due before the lock is released."""

    def log_in_database(self, db: int) -> None:
        """Use this database for the log lines of fast paths."""

    def resume_later(self, session: Session) -> None:
        """Let a session go on after the current one."""

    def send_later(self, session: Session) -> None:
        """Note that a session has output."""


class Session:
    """The state of a connection. Everything but `feed`, `execute` and `close` is called under the hub's lock."""

    __slots__ = (
        "__weakref__",
        "_alike",
        "_closed",
        "_decoder",
        "_deferred",
        "_output",
        "_pending",
        "_promised",
        "_provisional",
        "_queued_bytes",
        "_send",
        "_unsent",
        "aborted",
        "address",
        "bytes_in",
        "bytes_out",
        "channels",
        "commands",
        "created_ms",
        "db",
        "hub",
        "id",
        "is_authenticated",
        "is_behind",
        "is_closed",
        "is_closing",
        "is_cut",
        "is_held",
        "is_idle_work",
        "is_plain",
        "is_running",
        "is_spared",
        "is_trusted",
        "last_command",
        "last_ms",
        "leaves_untouched",
        "lib_name",
        "lib_version",
        "local_address",
        "name",
        "pacer",
        "patterns",
        "protocol",
        "queue",
        "reply_mode",
        "shards",
        "user",
        "waiter",
        "watch_failed",
        "watched",
    )

    def __init__(
        self,
        hub: SessionHub,
        send: Callable[[bytes], None],
        closed: Callable[[], None] | None = None,
        *,
        number: int = 0,
        address: bytes = b"",
        local_address: bytes = b"",
    ) -> None:
        self.hub: SessionHub = hub
        self.id = number
        self.address = address or b"embedded:%d" % number
        self.local_address = local_address or b"embedded:0"
        self.created_ms = self.last_ms = hub.now_ms()
        self.last_command = "NULL"
        self.commands = self.bytes_in = self.bytes_out = 0
        self.lib_name = self.lib_version = b""
        self.is_closed = False  # the peer has gone, or the server has closed the connection
        self.is_closing = False  # to be closed once the output is sent
        self.is_trusted = False  # not a client, but the program that contains this server
        self.is_running = False  # one of its commands is running: messages that it causes wait for its reply
        self.is_cut = False  # its output exceeded the limit and was dropped
        self.is_held = False  # the peer does not read its output: no request runs
        self.is_behind = False  # it has requests that did not run in this turn
        self.is_idle_work = False  # the last input was unusual: inline, refused, or very few bytes
        self.pacer: Pacer | None = None  # None: there is no loop that other connections share
        self.waiter: Waiter | None = None  # the command that blocks
        self.watched: dict[Place, bool] = {}
        self.watch_failed = False
        self.channels: dict[bytes, None] = {}
        self.patterns: dict[bytes, None] = {}
        self.shards: dict[bytes, None] = {}
        self._send = send
        self._closed = closed
        self._decoder = RequestDecoder()
        self._alike = AlikeReader()
        self._pending: deque[list[bytes]] = deque()  # requests that came as words, not as bytes
        self._output: list[bytes] = []
        self._provisional: list[tuple[int, int]] = []  # slices of `_output` that hold only once the log is written
        self._promised: list[tuple[int, int]] = []  # the same, where each piece is one reply
        self._deferred: list[bytes] = []
        self._unsent = 0  # bytes in `_output`; estimated for replies of a fast path
        # No special state, and the last requests took a fast path: the next may run with those of other connections.
        self.is_plain = False
        self.start_over()
        self.follow_limits()

    def start_over(self) -> None:
        """Reset the connection to its first state, as RESET does."""
        self.protocol = 2
        self.db = 0
        self.name = b""
        self.user = DEFAULT_USER
        self.is_authenticated = self.hub.access.is_open
        self.reply_mode = ReplyMode.ON
        self.is_spared = False  # CLIENT NO-EVICT
        self.leaves_untouched = False  # CLIENT NO-TOUCH: what it reads does not count as used
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
            self.is_idle_work = False
            if self.is_held or self.is_behind:
                self._decoder.keep(data)
                return
            if self.is_running:  # its own script is running long, and other input is being read
                self._decoder.feed(data)
                return
            if not self._run_at_once(data):
                commands, inline = self.commands, self._decoder.inline
                self.advance()
                if self._decoder.inline != inline or (self.commands == commands and len(data) < _TINY):
                    self.is_idle_work = True
            hub.finish()

    def go_on(self) -> None:
        """Run what had no time in the last turn, or was held back."""
        hub = self.hub
        with hub.lock:
            self.is_behind = False
            if not (self.is_closed or self.is_held):
                hub.is_busy = True
                self.advance()
                hub.finish()

    def hold(self) -> None:
        """Run no request until `release`."""
        self.is_held = True
        self.is_plain = False

    def release(self) -> None:
        """Let requests run again, from the next `go_on` on."""
        self.is_held = False

    def execute(self, argv: list[bytes]) -> None:
        """Take in one request that is already split into words."""
        with self.hub.lock:
            if not self.is_closed:
                self.hub.is_busy = True
                self.is_plain = False
                self._pending.append(argv)
                self.advance()
                self.hub.finish()

    def close(self) -> None:
        """Forget a peer that has gone. A command that blocks has taken nothing."""
        with self.hub.lock:
            if self.hub.is_busy:  # called by the garbage collector while a command iterates over sessions
                self.hub.close_later(self)
            else:
                self.forget()

    def drop(self) -> None:
        """Close without waiting, for `__del__`: at exit the thread that has the lock may have been ended with it."""
        if self.hub.lock.acquire(blocking=False):
            try:
                self.close()
            finally:
                self.hub.lock.release()
        else:
            self.hub.close_later(self)

    def forget(self) -> None:
        """Leave everything in which the hub knows this session."""
        if self.is_closed:
            return
        self.is_closed = self.is_closing = True
        self.is_plain = False
        if self.waiter is not None:
            self.hub.blocking.give_up(self.waiter)
            self.waiter = None
        self._output.clear()
        self._decoder.drop()
        self._pending.clear()
        self.hub.stats.bytes_in += self.bytes_in
        self.hub.stats.bytes_out += self.bytes_out
        self.leave_everything()
        self.hub.drop_session(self)

    # Requests

    def _run_at_once(self, data: bytes) -> bool:
        """Take in bytes. Returns True if all their requests ran on a fast path."""
        decoder = self._decoder
        is_free = self.waiter is None and not self._pending and not self.is_closing and decoder.is_idle
        pieces = [data]
        alike = self._alike.read(pieces) if is_free and len(data) >= _WORTH_A_LOOK else None
        done = 0
        if alike is not None and alike.words[0] in EXPRESS_ALIKE:
            name, run = EXPRESS_ALIKE[alike.words[0]]
            done = self._run_express(name, run, alike, pieces)
            if done == len(alike.bulks):
                self.is_plain = True
                return True
        if alike is not None:
            requests: list[list[bytes]] | None = alike.requests(done)
        else:
            requests = decoder.read_at_once(data) if is_free else None
        if not requests:  # an incomplete request, or no bytes
            self.is_plain = False
            decoder.feed(data)
            return False
        done = 0
        if alike is None and requests[0][0] in EXPRESS:
            done = self._run_express(*EXPRESS[requests[0][0]], requests, pieces)
        if done == len(requests):
            self.is_plain = True
            return True
        self.is_plain = False
        decoder.parsed.extend(map(list, requests[done:]))  # copies, because the decoder may return the same lists again
        return False

    def advance(self) -> None:
        """Run requests until there is none, one of them blocks, the connection ends, or its turn does."""
        if self.is_held or self.is_behind:
            return
        parsed = self._decoder.parsed
        end_ms, most = _NEVER, _NEVER
        if self.pacer is not None:
            end_ms, most = self.hub.now_ms() + TURN_MS * self.is_authenticated, TURN_BYTES
        while self.waiter is None and not self.is_closing:
            if self._unsent >= most or self.last_ms > end_ms:
                self._end_turn()
                return
            if parsed and not self._pending:
                if parsed[0][0] not in EXPRESS or not self._run_some(parsed):
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

    def _end_turn(self) -> None:
        """Leave what is not run yet for later."""
        if self.pacer is not None and (self._decoder.parsed or self._pending or self._decoder.buffered):
            self.is_behind = True
            self.pacer.run_later()

    def _run_some(self, parsed: deque[list[bytes]]) -> bool:
        """Run queued requests of one hot command. Returns False if the first needs the general path."""
        word = parsed[0][0]
        requests = list(takewhile(lambda argv: argv[0] == word, islice(parsed, _MOST_AT_ONCE)))
        done = self._run_express(*EXPRESS[word], requests, [])
        for _ in range(done):
            parsed.popleft()
        return done > 0

    def _run_express(self, name: str, run: Callable[..., int], requests: object, pieces: list[bytes]) -> int:
        """Run requests on a fast path; `pieces` are their bytes, if known. Returns how many it ran.

        What holds for all commands is checked once: these commands cannot change it.
        """
        hub = self.hub
        if hub.gates or hub.is_told or hub.monitors or not self._look_plain():
            return 0
        db, output = self.db, self._output
        if db != hub.encoded_db:
            hub.log_in_database(db)
        start = len(output)
        started = perf_counter_ns()
        now_ms = hub.now_ms()
        done = run(hub, db, requests, now_ms, self.protocol, output, pieces)
        if not done:
            return 0
        if not start:
            hub.send_later(self)
        self._unsent += done * len(output[-1])  # an estimate: replies of one run have similar sizes
        if hub.keeps_log and hub.before_replies is not None:
            self._promised.append((start, start + done))
        self.last_ms, self.last_command = now_ms, name
        self.commands += done
        hub.stats.count_calls(name, done, perf_counter_ns() - started)
        return done

    def _look_plain(self) -> bool:
        """Whether this connection has nothing about it that a command must respect."""
        return self.is_plain or (
            self.is_authenticated
            and self.queue is None
            and self.reply_mode is _ON
            and not (self.channels or self.patterns or self.shards)
        )

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
        self.is_plain = False  # a command may change that
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
            self.commands -= 1  # it counts when it runs
            self._answer(QUEUED)
            return
        if hub.monitors and row.name != "exec":
            hub.show(self, row, argv)
        self._run(row, argv)
        if hub.monitors and row.name == "exec":  # after the commands that it has run
            hub.show(self, row, argv)

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
        """Return a gate's reason to refuse a command, or None: access control, memory, a log that cannot be written."""
        for gate in tuple(self.hub.gates):  # one whose reason has gone removes itself
            refusal = gate(self, row, argv)
            if refusal is not None:
                return refusal
        return None

    def _refuse(self, error: CommandError, row: Command | None, argv: list[bytes]) -> None:
        if type(error) is Postponed and row is not None:
            self.waiter = self.hub.pause.postpone(self, row, argv)
            return
        if row is None and argv[0].lower() in (b"post", b"host:"):  # a browser was tricked into sending a request
            self.shut()
            return
        if row is not None:
            self.hub.stats.of(row.name).rejected += 1
            if row.name == "exec":
                reason = error.wire.removeprefix(b"ERR ")
                error = fault(b"EXECABORT Transaction discarded because of: " + reason)
                self.end_transaction()
        self.aborted = self.queue is not None
        self.is_idle_work = self.is_idle_work or row is None or not self.is_authenticated
        self.hub.stats.count_error(error)
        self._answer(error)

    def _run(self, row: Command, argv: list[bytes]) -> None:
        hub = self.hub
        start = len(self._output)
        self.is_running = True
        reply = hub.perform(self, row, argv, self.last_ms, True)
        self.is_running = False
        if type(reply) is Wait:
            self.waiter = hub.blocking.begin(self, row, reply, self.db, self.protocol)
            self.commands -= 1  # it counts when it ends
        elif self.reply_mode is _ON and not self.is_cut:
            output = self._output
            if not output:
                hub.send_later(self)
            append_reply(output, reply, self.protocol)
            self._unsent += len(output[start]) if len(output) == start + 1 else sum(map(len, output[start:]))
        else:
            self._answer(reply)
        if hub.is_unsettled and hub.has_logged:
            self._note_provisional(start)
        if self._deferred:
            self.send_deferred()
        if hub.is_unsettled:
            hub.commit()

    def resume(self, reply: Reply) -> None:
        """Answer the command that blocked."""
        waiter, self.waiter = self.waiter, None
        self.commands += 1
        start = len(self._output)
        self._answer(reply)
        if waiter is not None and "write" in waiter.row.flags:
            self._note_provisional(start)
        self.send_deferred()
        self.hub.resume_later(self)

    def run_later(self, argv: list[bytes]) -> None:
        """Run a request that waited for the end of a pause before those that came after it."""
        self.waiter = None
        self._pending.appendleft(argv)
        self.hub.resume_later(self)

    # Output

    def _answer(self, reply: Reply | Wait) -> None:
        mode = self.reply_mode
        if self.is_cut:
            return
        if mode is _ON or (type(reply) is Several and reply):  # subscription messages are sent in every reply mode
            start = len(self._output)
            if not start:
                self.hub.send_later(self)
            append_reply(self._output, reply, self.protocol)
            self._unsent += sum(map(len, self._output[start:]))
        elif mode is ReplyMode.SKIP_NEXT:
            self.reply_mode = ReplyMode.SKIP
        elif mode is ReplyMode.SKIP:
            self.reply_mode = ReplyMode.ON

    @property
    def has_output(self) -> bool:
        """Whether something is to be sent that came before a reply of now."""
        return bool(self._output)

    def _note_provisional(self, start: int) -> None:
        """Mark the output from `start` on as a reply that holds only once the log is written."""
        if self.hub.before_replies is not None and len(self._output) > start:
            self._provisional.append((start, len(self._output)))

    def take_back(self, error: CommandError) -> None:
        """Replace each reply that promised a change by an error, because the log could not be written."""
        for start, end in self._provisional:
            self._output[start:end] = [encode(error, self.protocol)] + [b""] * (end - start - 1)
            self.hub.stats.count_error(error)
        for start, end in self._promised:
            self._output[start:end] = [encode(error, self.protocol)] * (end - start)
            for _ in range(start, end):
                self.hub.stats.count_error(error)

    def _write(self, data: bytes) -> None:
        if self.is_cut:
            return
        if not self._output:
            self.hub.send_later(self)
        self._output.append(data)
        self._unsent += len(data)
        if self._unsent > TURN_BYTES and self.pacer is not None:
            self.pacer.check_output()  # a script may publish without limit

    def push(self, data: bytes) -> None:
        """Send an encoded message now, or behind the reply of the command that is running."""
        if self.is_running:
            self._deferred.append(data)
            self._unsent += len(data)
            if self._unsent > TURN_BYTES and self.pacer is not None:
                self.pacer.check_output()
        else:
            self._write(data)

    def send_deferred(self) -> None:
        """Send the messages that a command caused, after its reply."""
        if self._deferred:
            deferred, self._deferred = b"".join(self._deferred), []
            self._unsent = max(0, self._unsent - len(deferred))  # they were counted when they were deferred
            self._write(deferred)

    def flush(self) -> None:
        """Hand all output to the peer; then close, if that was asked for."""
        if self.is_closed:
            return
        if self._unsent > TURN_BYTES and self.pacer is not None:
            self.pacer.check_output()
        if self._output:
            if self._promised or self._provisional:
                self._promised.clear()
                self._provisional.clear()
            try:
                if self._unsent < _CHUNK:
                    data = self._output[0] if len(self._output) == 1 else b"".join(self._output)
                    self._output.clear()
                    self._unsent = 0
                    self.bytes_out += len(data)
                    self._send(data)
                else:
                    self._flush_in_chunks()
            except Exception:  # affects only this connection
                self.is_closing = True
                logger.exception("Output could not be handed over, closing the connection: %d", self.id)
        if self.is_closing:
            self.forget()
            if self._closed is not None:
                self._closed()

    def _flush_in_chunks(self) -> None:
        """Hand much output over without making one text of it."""
        output, self._output, self._unsent = self._output, [], 0
        chunk: list[bytes] = []
        size = 0
        for piece in output:
            if chunk and size + len(piece) > _CHUNK:
                self.bytes_out += size
                self._send(b"".join(chunk) if len(chunk) > 1 else chunk[0])
                chunk, size = [], 0
            chunk.append(piece)
            size += len(piece)
        self.bytes_out += size
        self._send(b"".join(chunk) if len(chunk) > 1 else chunk[0])

    def cut(self) -> None:
        """Forget all output, and take no more: there is too much of it."""
        self.is_cut = self.is_closing = True
        self.is_plain = False
        self._output.clear()
        self._deferred.clear()
        self._promised.clear()
        self._provisional.clear()
        self._unsent = 0

    @property
    def unsent(self) -> int:
        """How many bytes of output have not been handed over."""
        return self._unsent

    @property
    def decoder(self) -> RequestDecoder:
        """What has arrived and is no request yet."""
        return self._decoder

    @property
    def queued_bytes(self) -> int:
        """How many bytes the commands of the open transaction take."""
        return self._queued_bytes

    @property
    def is_idle(self) -> bool:
        """Whether nothing that has arrived waits to be run."""
        return not (self.is_behind or self._decoder.parsed or self._pending or self._decoder.buffered)

    def shut(self) -> None:
        """Close the connection once its output is sent."""
        self.is_closing = True
        self.is_plain = False
        if self.waiter is not None:
            self.hub.blocking.give_up(self.waiter)
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
        size = 0
        access = self.hub.access
        for row, argv in queue:
            refusal = access.refusal_in_exec(self, row, argv) if access.is_needed or self.is_closing else None
            if refusal is not None:
                self.hub.stats.count_error(refusal)
                replies.append(refusal)
                continue
            protocol = self.protocol
            self.commands += 1
            if self.hub.monitors:
                self.hub.show(self, row, argv)
            reply = self.hub.perform(self, row, argv, now_ms, False)
            assert not isinstance(reply, Wait), row.name
            if self.protocol != protocol:  # HELLO: earlier replies keep the old protocol
                replies = [Encoded(encode(earlier, protocol)) for earlier in replies]
            if self.is_cut:
                continue  # the rest runs, but its replies are dropped
            replies.append(reply)
            if isinstance(reply, bytes):
                size += len(reply)
                if size > TURN_BYTES and self.pacer is not None:
                    self.pacer.check_output(size)
                    if self.is_cut:
                        replies.clear()
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
        """No transaction, no subscription, no monitoring, no cache to tell of changes."""
        self.end_transaction()
        self.hub.tracking.stop(self)
        pubsub = self.hub.pubsub
        for names, topics in (
            (self.channels, pubsub.channels),
            (self.patterns, pubsub.patterns),
            (self.shards, pubsub.shards),
        ):
            for name in names:
                topics.drop(name, self)
            names.clear()
        if self.hub.monitors.pop(self, "absent") is None:
            self.hub.observe()
