"""One process's shared state: the keyspace, and everybody who may learn of a change to it.

A command's outcome is handed out here, in this order:

    events ──▶ subscribers        as they happen, inside EXEC too
    touched ──▶ WATCH             as they happen
    log ──▶ journal               after the command or the whole EXEC
    ready keys ──▶ waiters        after that, oldest first, each with a fresh time; their outcomes likewise
    queued requests of sessions whose wait is over
    output ──▶ each session's `send`, one call each

Every public method may be called from any thread: one lock guards everything. `send` is called under it and must
neither block nor call back.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, TypeAlias

from millstream.clock import Clock, SystemClock
from millstream.engine.keys import expiry
from millstream.engine.keys.keyspace import Keyspace
from millstream.engine.outcome import Event, Reply, Wait
from millstream.engine.streams.groups import Group
from millstream.engine.streams.stream import sweep_idempotency
from millstream.engine.table import Command
from millstream.errors import CommandError
from millstream.server.access.auth import AccessControl, redacted
from millstream.server.batching.hot_commands import end_deliveries
from millstream.server.commands import TABLE, find, lookup
from millstream.server.commands.client import describe
from millstream.server.config.settings import WITHOUT_EFFECT, Config
from millstream.server.core.blocking import Place, Waiter, WaitOwner
from millstream.server.core.call import ServerCall
from millstream.server.core.interfaces import Client, Gate
from millstream.server.core.rates import Rates
from millstream.server.core.session import Session
from millstream.server.core.stats import Stats
from millstream.server.core.timer import Timer, Waker
from millstream.server.core.waiting import Blocking
from millstream.server.features import keyspace_events
from millstream.server.features.client_memory import ClientMemory
from millstream.server.features.maxmemory import Memory
from millstream.server.features.pause import Pause
from millstream.server.features.pubsub import PubSub
from millstream.server.features.slowlog import SETTINGS as SLOWLOG_SETTINGS
from millstream.server.features.slowlog import Watchman
from millstream.server.features.tracking import Tracking
from millstream.server.features.watch import Watches
from millstream.server.protocol.resp import parse_log, quoted
from millstream.server.scripting.cache import Scripts
from millstream.server.scripting.functions import Libraries
from millstream.server.scripting.runner import Runner

if TYPE_CHECKING:
    from millstream.persistence.store import Store

logger = logging.getLogger(__name__)

LogLine: TypeAlias = tuple[int, tuple[bytes, ...]]  # a database and a command that replays what happened in it
Journal: TypeAlias = Callable[[list[LogLine]], None]

NO_MEMORY: Final = "OOM the server has no memory left for this command"

_SWEEP_SIZE: Final = 1000  # keys that expire in one go; the lock is free in between
_IDEMPOTENCY_MS: Final = 1000
_TIME_LIMITS: Final = ("busy-reply-threshold", "lua-time-limit")  # two names of one setting
_CROSS_DATABASES: Final = frozenset({"copy", "move", "swapdb"})
_FLUSHING: Final = frozenset({"flushall", "flushdb"})
# What these change is a connection: without one they mean nothing.
_NEED_CONNECTION: Final = frozenset(
    {
        "auth",
        "discard",
        "exec",
        "hello",
        "monitor",
        "multi",
        "psubscribe",
        "punsubscribe",
        "quit",
        "reset",
        "select",
        "ssubscribe",
        "subscribe",
        "sunsubscribe",
        "unsubscribe",
        "unwatch",
        "watch",
    }
)


class Hub:
    """The shared state of a broker; see the module."""

    def __init__(
        self,
        keyspace: Keyspace | None = None,
        clock: Clock | None = None,
        *,
        settings: dict[str, str] | None = None,
        journal: Journal | None = None,
        users: Iterable[Sequence[bytes]] = (),
    ) -> None:
        """Create a hub. Settings are named as in CONFIG; a user is a name and rules, as in a configuration file.

        With a clock of your own nothing happens by itself: call `tick`.
        """
        self.lock = threading.RLock()
        self.clock: Clock = clock or SystemClock()
        self.now_ms: Callable[[], int] = self.clock.now_ms  # Unix time in milliseconds
        self.config = Config(settings)
        self.keyspace = keyspace or Keyspace(self.config.number("databases"))
        self.stats = Stats()
        self.pubsub: PubSub = PubSub()
        self.watches = Watches(self.keyspace, self.now_ms)
        self.tracking = Tracking(self)
        self.pause = Pause(self)
        self.watchman = Watchman(self.config)
        self.tracks_latency = self.config.is_on("latency-tracking")
        self.runner = Runner(self, lookup, lambda: Session(self, _nowhere, address=b"lua"))
        self.scripts = Scripts(self.runner)
        self.libraries = Libraries(self.runner)
        self.sessions: weakref.WeakValueDictionary[int, Session] = weakref.WeakValueDictionary()
        self.monitors: dict[Client, None] = {}
        self.gates: list[Gate] = []  # checks that may refuse a command, called in this order
        self._store: Store | None = None
        self.config_file: Path | None = None  # the file that CONFIG REWRITE writes
        self.before_replies: Callable[[], CommandError | None] | None = None  # syncs the log, or returns the error
        self.turn_end: Callable[[], bool] | None = None  # True: it will call `send_output` later
        self.setting_hooks: list[Callable[[str], None]] = []  # called with the name of each setting that has changed
        self.on_shutdown: Callable[[], None] | None = None  # ends the process; called by SHUTDOWN
        self.access = AccessControl(self, TABLE, lambda session, now_ms: describe(self, session, now_ms))
        self.memory = Memory(self)
        self.client_memory = ClientMemory(self)
        self.rates = Rates(self._counted)
        self.counts_memory = False  # there is a limit
        self.letters: frozenset[str] = frozenset()  # of notify-keyspace-events
        self.dirty = 0  # changes since the last save
        self.active_expiry = True
        self.started_ms = self.now_ms()
        self.is_unsettled = False  # `commit` has something to do
        self.is_busy = False  # a command is running; only its own thread can see this under the lock
        self.has_waiters = False
        self.is_told = False  # subscribers to events, watchers or others must be notified of every change
        self.observed = False  # a change must be logged, or somebody must be notified of it
        self._journal = journal
        self.keeps_log = journal is not None
        self.encoded_journal: Callable[[int, list[bytes]], None] | None = None  # `journal` for encoded lines
        self.encoded: list[bytes] = []  # encoded log lines of fast paths, in pieces; `encoded_db` is their database
        self.encoded_db = 0
        self.delivering: tuple[Group, bytes, bytes] | None = None  # open in `encoded`: group, key, name
        self.in_turn = False  # a loop has the lock and will call `send_output` before it releases it
        self._log: list[LogLine] = []
        self._unlogged: deque[list[LogLine]] = deque()  # what the journal could not take for lack of memory
        self._resumable: deque[Session] = deque()
        self._unsent: list[Session] = []
        self.hear_others: Callable[[], None] | None = None  # called by a long script: serves other connections
        self.loop_thread: int = 0  # the only thread that may call `hear_others`
        self.is_in_script = False  # `hear_others` is running
        self.is_ending = False  # the process was asked to end; long scripts are stopped
        self._leaving: list[Session] = []
        self._ids = count(1)
        self._swept_ms = self.started_ms
        self._timer: Waker | None = Timer(self) if isinstance(self.clock, SystemClock) else None
        self._house = Session(self, _nowhere)  # runs commands that come without a connection
        self._house.is_trusted = True
        self.blocking = Blocking(self, self._house)
        self.waiters = self.blocking.waiters
        self._call: ServerCall | None = None  # the call object of the last command, reused for the next one
        for name in settings or ():
            self.apply_setting(name)
        self.access.start(users)
        self.observe()

    # What the outside calls

    @property
    def journal(self) -> Journal | None:
        """Gets the log lines of every command that changed something; more than one line as MULTI … EXEC."""
        return self._journal

    @journal.setter
    def journal(self, journal: Journal | None) -> None:
        with self.lock:
            self._journal = journal
            self.keeps_log = journal is not None
            self.observe()

    @property
    def store(self) -> Store | None:
        """Where state is kept, if anywhere."""
        return self._store

    @store.setter
    def store(self, store: Store | None) -> None:
        with self.lock:
            self._store = store
            self.count_anew()

    def count_anew(self) -> None:
        """Measure the memory of all keys after something other than commands has filled the keyspace."""
        if self.counts_memory:
            self.memory.recount()

    def session(
        self,
        send: Callable[[bytes], None],
        closed: Callable[[], None] | None = None,
        *,
        address: bytes = b"",
        local_address: bytes = b"",
    ) -> Session:
        """Open a connection. Its output goes to `send`; `closed` is called when the server ends it."""
        with self.lock:
            number = next(self._ids)
            session = Session(self, send, closed, number=number, address=address, local_address=local_address)
            self.sessions[session.id] = session
            self.stats.connections += 1
            return session

    def run(self, argv: list[bytes], db: int = 0, *, protocol: int = 2) -> Reply:
        """Run one command that needs no connection; it does not block. Raises the error it answers with."""
        with self.lock:
            reply = self._perform_in_house(argv, db, protocol, may_block=False)[1]
            assert not isinstance(reply, Wait), "a command waits although it may not"
            reply = self._keep_promise(reply)
        if type(reply) is CommandError:
            raise reply
        return reply

    def run_together(self, steps: Callable[[], Reply]) -> Reply:
        """Run commands by `run_one` as a single unit, as a script does. Returns what `steps` returns.

        Raises the error with which `steps` ends, or the reason why what it did cannot be made certain.
        """
        with self.lock:
            self.is_busy = True
            try:
                reply = steps()
            except CommandError as error:
                reply = error
            except BaseException:
                self.finish()
                raise
            reply = self._keep_promise(reply)
        if type(reply) is CommandError:
            raise reply
        return reply

    def run_one(self, argv: list[bytes], db: int) -> Reply:
        """Run one of several commands, in `run_together`. Returns its reply; an error is a reply too."""
        try:
            reply = self._perform_in_house(argv, db, 2, may_block=False)[1]
        except CommandError as error:
            return error
        assert not isinstance(reply, Wait), "a command waits although it may not"
        return reply

    def run_blocking(self, argv: list[bytes], db: int = 0, timeout_s: float | None = None) -> Reply:
        """As `run`, but a command that blocks waits in this thread; after `timeout_s` it is given up: nil."""
        caller = _Caller()
        waiter = self.submit(argv, caller, db)
        if waiter is not None and not caller.wait(timeout_s):
            with self.lock:
                if not waiter.is_over:
                    self.blocking.give_up(waiter)
                    return waiter.timeout_reply
                self.send_output()  # it was answered just now
        if type(caller.reply) is CommandError:
            raise caller.reply
        return caller.reply

    def submit(self, argv: list[bytes], owner: WaitOwner, db: int = 0, *, protocol: int = 2) -> Waiter | None:
        """Run a command that may block. `owner.resume(reply)` is called, at once or, if it waits, later.

        The result is the waiter to `give_up`, or None if the reply was there at once. An error is a reply.
        """
        with self.lock:
            waiter = None
            try:
                row, reply = self._perform_in_house(argv, db, protocol, may_block=True)
            except CommandError as error:
                reply = error
            if isinstance(reply, Wait):
                waiter = self.blocking.begin(owner, row, reply, db, protocol)
                self.finish()
            else:
                owner.resume(self._keep_promise(reply))
            return waiter

    def recover(self) -> None:
        """Let other connections go on after one has failed in the middle of its work."""
        with self.lock:
            self.finish()

    def close(self) -> None:
        """End all connections and waits, and the timer. The keyspace stays as it is."""
        with self.lock:
            self.is_busy = True
            for session in list(self.sessions.values()):
                session.shut()
            self.blocking.end_all()
            if self._timer is not None:
                self._timer.stop()
            self.finish()

    def tick(self) -> None:
        """Do what is due now: time waiters out, look at keys with claimable entries, expire keys and records."""
        with self.lock:
            self.is_busy = True
            now_ms = self.now_ms()
            self.pause.end_if_due(now_ms)
            self.blocking.tick(now_ms)
            started = perf_counter_ns()
            self._sweep_expired(now_ms)
            self.watchman.note_event("expire-cycle", perf_counter_ns() - started, now_ms)
            self._sweep_idempotency(now_ms)
            self.finish()

    def next_due_ms(self) -> int | None:
        """When `tick` will have something to do, or None."""
        times = [self.blocking.next_ms(), self.pause.until_ms]
        if self.active_expiry and not self.keyspace.keeps_expired:
            times.append(expiry.next_due_ms(self.keyspace))
        if any(db.idempotent for db in self.keyspace):
            times.append(self._swept_ms + _IDEMPOTENCY_MS)
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def keep_swept(self) -> None:
        """Tell the timer that keys or idempotency records may now expire that it has not heard of."""
        with self.lock:
            due_ms = self.next_due_ms()
            if self._timer is not None and due_ms is not None:
                self._timer.aim(due_ms)

    def use_waker(self, waker: Waker) -> Waker | None:
        """Be woken by this one from now on; the one before it, stopped, or None if time is moved by hand."""
        with self.lock:
            before = self._timer
            if before is not None:
                before.stop()
                self._timer = waker
                self.keep_swept()
            return before

    def observe(self) -> None:
        """Bring `observed` and its parts up to date."""
        self.has_waiters = len(self.waiters) > 0
        self.is_told = bool(
            self.letters
            or len(self.watches)
            or self.counts_memory
            or self.tracking.is_on
            or self.watchman.wants_everything
        )
        self.observed = bool(self._journal is not None or self.is_told or self.has_waiters or self.monitors)

    def apply_setting(self, name: str) -> None:
        """Act on the new value of a setting."""
        settings = self.keyspace.settings
        if name == "notify-keyspace-events":
            self.letters = keyspace_events.parse(self.config[name]) or frozenset()
            self.observe()
        elif name == "requirepass":
            self.access.require(self.config[name])
        elif name == "maxmemory":
            self.memory.set_limit(self.config.number(name))
            self.client_memory.follow_setting()
        elif name == "maxmemory-clients":
            self.client_memory.follow_setting()
        elif name in SLOWLOG_SETTINGS:
            self.watchman.follow_settings()
            self.observe()
        elif name == "latency-tracking":
            self.tracks_latency = self.config.is_on(name)
        elif name == "tracking-table-max-keys":
            self.tracking.keep_limit()
        elif name in _TIME_LIMITS:
            for alias in _TIME_LIMITS:
                self.config.put(alias, self.config[name])
        elif name == "rdbcompression":
            settings.rdbcompression = self.config.is_on(name)
        elif name == "sanitize-dump-payload":
            settings.sanitize_dump_payload = self.config[name] != b"no"
        elif name.startswith("stream-"):
            setattr(settings, name.replace("-", "_"), self.config.number(name))
        elif name in ("proto-max-bulk-len", "client-query-buffer-limit"):
            for session in list(self.sessions.values()):
                session.follow_limits()
        elif name in WITHOUT_EFFECT:
            logger.info("A setting is accepted without effect: %s", name)
        for hook in self.setting_hooks:
            hook(name)

    def is_read_only_script(self, row: Command, argv: list[bytes]) -> bool:
        """Whether a call of EVAL, EVALSHA or FCALL is one of a program that declares not to write."""
        if row.name == "fcall":
            flags = self.libraries.flags_of(argv[1])
        else:
            flags = self.scripts.flags_of(argv[1], is_body=row.name == "eval")
        return "no-writes" in flags

    def show(self, session: Client, row: Command, argv: list[bytes]) -> None:
        """Show a command to those who monitor; what is secret is hidden, what is for operators is left out."""
        if row.flags & {"admin", "skip_monitor"}:
            return
        seconds, ms = divmod(self.now_ms(), 1000)
        words = b" ".join(map(quoted, redacted(row, argv)))
        line = b"+%d.%06d [%d %b] %b\r\n" % (seconds, ms * 1000, session.db, session.address, words)
        for monitor in self.monitors:
            if row.name != "reset" or monitor is not session:  # RESET ends monitoring, and the client still sees it
                monitor.push(line)

    # Running a command, under the lock

    def perform(self, session: Client, row: Command, argv: list[bytes], now_ms: int, may_block: bool) -> Reply | Wait:
        """Run one command for a session and hand out its effects, but for those that wait for `finish`."""
        # A command that runs others (EXEC, EVAL) keeps its call object; the others get a new one.
        if self.encoded and not self._hand_in_if_possible() and self.pause.writes(session, row, argv):
            return CommandError(NO_MEMORY)
        call, self._call = self._call or ServerCall(self, session), None
        call.renew(session, now_ms, may_block)
        kept = self._access_times(call, row, argv) if session.leaves_untouched else None
        started = perf_counter_ns()
        try:
            reply = row.run(call, argv)  # type: ignore[misc]  # rows without a function are never found
        except CommandError as error:
            reply = _alone(error)
        except MemoryError:
            logger.error("There is no memory left for a command: %s", row.name)
            reply = CommandError(NO_MEMORY)
        except Exception:
            logger.exception("A command failed in a way it must not: %s", row.name)
            reply = CommandError(f"ERR internal error in '{row.name}'")
        if kept:
            call.db.accessed.update(kept)
        if call.events or call.readied or call.touches or call.logged:
            self._spread(call.logged, call.touches, call.events, call.readied)
        if self.tracking.is_on:
            self._track(call, session, row, argv, is_whole=may_block)
        if call.dirty:
            self.dirty += call.dirty
            self._aim_at_expiry(row, call)
            if self.counts_memory:
                self.memory.account(row, argv, call)
        if type(reply) is not Wait:  # a command that waits is counted when its wait ends
            taken = perf_counter_ns() - started
            self._count(row, reply, taken)
            if taken >= self.watchman.from_ns:
                self.watchman.note(session, row, argv, taken, now_ms, self.stats)
            if not call.events and "readonly" in row.flags:
                self.stats.hits += 1
        self._call = call
        return reply

    def _perform_in_house(
        self, argv: list[bytes], db: int, protocol: int, *, may_block: bool
    ) -> tuple[Command, Reply | Wait]:
        row = find(argv)
        if row.name in _NEED_CONNECTION:
            raise CommandError(f"ERR '{row.name}' needs a connection")
        self._house.db = db
        self._house.protocol = protocol
        refusal = self._house.refusal(row, argv) if self.gates else None
        if refusal is not None:
            raise refusal
        self.is_busy = True
        return row, self.perform(self._house, row, argv, self.now_ms(), may_block)

    def _counted(self) -> tuple[int, int, int]:
        """Return how many commands, bytes in and bytes out there were since the start."""
        stats, sessions = self.stats, list(self.sessions.values())
        bytes_in = stats.bytes_in + sum(session.bytes_in for session in sessions)
        return stats.commands, bytes_in, stats.bytes_out + sum(session.bytes_out for session in sessions)

    def _count(self, row: Command, reply: Reply | Wait, nanoseconds: int) -> None:
        stats = self.stats
        stats.commands += 1
        counters = stats.by_command.get(row.name) or stats.of(row.name)
        counters.calls += 1
        counters.nanoseconds += nanoseconds
        if self.tracks_latency:
            bits = nanoseconds.bit_length()
            counters.spread[bits] = counters.spread.get(bits, 0) + 1
        if type(reply) is CommandError:
            counters.failed += 1
            stats.count_error(reply)

    def _access_times(self, call: ServerCall, row: Command, argv: list[bytes]) -> dict[bytes, int]:
        """When the keys of a command that only reads were last used, to be put back after it; TOUCH is a use."""
        if "readonly" not in row.flags or row.name == "touch":
            return {}
        keys = [argv[at] for at in row.key_positions(argv)]
        return {key: call.db.accessed[key] for key in keys if key in call.db.accessed}

    def _track(self, call: ServerCall, session: Client, row: Command, argv: list[bytes], *, is_whole: bool) -> None:
        """Let a command be known to those who cache what they read; what a script does counts as its caller's."""
        by = self.runner.caller or session
        if row.name in _FLUSHING:
            self.tracking.flushed()
        elif call.touches:
            self.tracking.touched(call.touches, call.events, by)
        self.tracking.after(by, row, argv)
        if is_whole:
            self.tracking.next_command(session, row)

    def _spread(self, log: list[LogLine], touched: list[Place], events: list[Event], ready: list[Place]) -> None:
        if events:
            self._tell(events)
        if touched and len(self.watches):
            for place in touched:
                self.watches.touch(place)
        if log and self._journal is not None:
            self._log += log
            self.is_unsettled = True
        if ready and self.blocking.note_ready(ready):
            self.is_unsettled = True

    def _tell(self, events: list[Event]) -> None:
        for event in events:
            if event.kind == "m":
                self.stats.misses += 1
            elif event.kind == "x":
                self.stats.expired += 1
                if self.counts_memory:
                    self.memory.weigh([(event.db, event.key)])
            if event.kind in self.letters:
                for channel, payload in keyspace_events.messages(event, self.letters):
                    self.pubsub.publish(channel, payload)

    def _aim_at_expiry(self, row: Command | None = None, call: ServerCall | None = None) -> None:
        """Let the timer know of the next key to expire, cheaply when only one database can have changed."""
        if self._timer is None:
            return
        if row is None or call is None or row.name in _CROSS_DATABASES:
            self.keep_swept()
            return
        if self.active_expiry and (due_ms := call.db.expires.next_ms()) is not None and not self.pause.until_ms:
            self._timer.aim(due_ms)
        if call.db.idempotent:
            self._timer.aim(self._swept_ms + _IDEMPOTENCY_MS)

    # After a command

    @property
    def has_logged(self) -> bool:
        """Whether the command that just ran changed something that its reply must not promise too early."""
        return bool(self._log) and self.before_replies is not None

    def commit(self) -> None:
        """After a command or a whole EXEC: log what it did, and serve those who waited for it."""
        self.is_unsettled = False
        if self._log or self._unlogged:
            self._write_log()
        if self.blocking.is_due:
            self.blocking.serve_ready()

    def hand_in(self) -> None:
        """Give the journal the log lines of fast paths. Must run before any other change and before a rewrite."""
        if self._unlogged:
            self._write_unlogged()
        if self.delivering is not None:
            end_deliveries(self)
        if not self.encoded:
            return
        pieces, self.encoded = self.encoded, []
        try:
            if self.encoded_journal is not None:
                self.encoded_journal(self.encoded_db, pieces)
            elif self._journal is not None:
                self._journal([(self.encoded_db, tuple(argv)) for argv in parse_log(b"".join(pieces))])
        except MemoryError:  # the journal took nothing: keep the lines and log them later
            self.encoded = pieces + self.encoded
            raise

    def log_in_database(self, db: int) -> None:
        """Use this database for the log lines of fast paths from now on."""
        if self.encoded:
            self.hand_in()
        self.encoded_db = db

    def look_after_others(self, gate: Gate) -> bool:
        """Serve other connections, through this gate, while a script runs. Returns whether that is possible.

        What they do must not touch what the script has begun: nothing is logged, handed out or sent but their replies.
        """
        if self.hear_others is None or get_ident() != self.loop_thread:
            return False
        callers = [session for session in self._unsent if session.is_running]
        self._unsent = [session for session in self._unsent if not session.is_running]
        self.gates.append(gate)
        self.is_in_script = True
        try:
            if self._unsent:  # replies to requests that ran before the script
                self.send_output()
            self.hear_others()
            for session in self._unsent:
                session.flush()
        except Exception:  # must not become an error of the script
            logger.exception("Others cannot be heard while a script runs")
        finally:
            self.gates.remove(gate)
            self.is_in_script = False
            self._unsent = callers
        return True

    def forget_log(self) -> None:
        """Do not log what the command that runs has done so far."""
        self._log.clear()

    def finish(self) -> None:
        """Before leaving the lock: commit, let sessions whose wait is over go on, send all output."""
        if self.is_in_script:
            return
        if self._log or self.blocking.is_due or self.is_unsettled or self._unlogged:
            self.commit()
        while self._resumable:
            self._go_on(self._resumable.popleft())
        if self.tracking.has_changes:
            self.tracking.broadcast()
        if not self.in_turn:
            if self.encoded:
                self._hand_in_if_possible()
            if self.before_replies is None or self.turn_end is None or not self.turn_end():
                self.send_output()
        self.is_busy = False
        while self._leaving:
            self._leaving.pop().forget()

    def _go_on(self, session: Session) -> None:
        try:
            session.advance()
        except Exception:  # costs its own connection and nobody else's
            session.cut()
            self.send_later(session)  # which closes it
            logger.exception("A connection failed in a way it must not: %d", session.id)

    def _hand_in_if_possible(self) -> bool:
        try:
            self.hand_in()
        except MemoryError:
            self._refuse_writes()
            return False
        return True

    def _make_certain(self) -> CommandError | None:
        """Log and write what has happened. Returns the error to answer instead of what promises it, if that fails."""
        if (self.encoded or self._unlogged) and not self._hand_in_if_possible():
            return CommandError(NO_MEMORY)
        return self.before_replies() if self.before_replies is not None else None

    def send_output(self, answer: Callable[[CommandError | None], None] | None = None) -> CommandError | None:
        """Hand all output to the peers, once what it promises is certain; else the error they get instead.

        `answer` sends replies that are kept elsewhere, and is told of that error.
        """
        with self.lock:
            refusal = self._make_certain()
            if answer is not None:
                answer(refusal)
            self.blocking.answer(refusal)
            while self._unsent:
                unsent, self._unsent = self._unsent, []
                for session in unsent:
                    if refusal is not None:
                        session.take_back(refusal)
                    session.flush()
            return refusal

    def _keep_promise(self, reply: Reply) -> Reply:
        """Finish now, also in the middle of a turn. Returns the reply of a command without a connection.

        If its log lines cannot be written, the error is the reply.
        """
        has_logged = bool(self._log)
        self.finish()
        refusal = self.send_output() if self.before_replies is not None else None
        return refusal if refusal is not None and has_logged else reply

    def drop_session(self, session: Session) -> None:
        """Remove a session from the list of all."""
        self.sessions.pop(session.id, None)

    def resume_later(self, session: Session) -> None:
        """Let a session go on after the current one."""
        self._resumable.append(session)

    def send_later(self, session: Session) -> None:
        """Note that a session has output to send."""
        self._unsent.append(session)

    def close_later(self, session: Session) -> None:
        """Forget a session after the current command."""
        self._leaving.append(session)

    def _write_log(self) -> None:
        try:
            if self._log:
                self._unlogged.append(self._log)
                self._log = []
            self._write_unlogged()
        except MemoryError:
            self._refuse_writes()

    def _write_unlogged(self) -> None:
        """Log what could not be logged for lack of memory, before later changes."""
        while self._unlogged:
            self._write_unit(self._unlogged.popleft())

    def log_later(self, lines: list[LogLine]) -> None:
        """Keep in line what has happened and the journal could not take for want of memory."""
        self._unlogged.append(lines)
        self._refuse_writes()

    def _refuse_writes(self) -> None:
        """Refuse commands that write while the log lacks something that has happened."""
        if self._gate_unlogged not in self.gates:
            logger.error("There is no memory left for the log, refusing commands that write")
            self.gates.append(self._gate_unlogged)

    def _gate_unlogged(self, session: Client, row: Command, argv: list[bytes]) -> CommandError | None:
        if not self._hand_in_if_possible():
            return CommandError(NO_MEMORY) if self.pause.writes(session, row, argv) else None
        self.gates.remove(self._gate_unlogged)
        logger.warning("The log is complete again, nothing was lost")
        return None

    def _write_unit(self, lines: list[LogLine]) -> None:
        """Log what one command or transaction did."""
        if self._journal is None or not lines:
            return
        try:
            if len(lines) > 1:
                self._journal([(lines[0][0], (b"MULTI",)), *lines, (lines[-1][0], (b"EXEC",))])
            else:
                self._journal(lines)
        except MemoryError:  # the journal took nothing
            self._unlogged.appendleft(lines)
            raise

    # For waiting commands

    def aim(self, due_ms: int) -> None:
        """Let the timer call `tick` at this time at the latest."""
        if self._timer is not None:
            self._timer.aim(due_ms)

    def count_ended(self, waiter: Waiter, reply: Reply) -> None:
        """Count the command of a wait that ended without running again."""
        self._count(waiter.row, reply, 0)
        if not self.watchman.from_ns and isinstance(waiter.owner, Session):
            self.watchman.note(waiter.owner, waiter.row, waiter.argv, 0, self.now_ms(), self.stats)

    def log_now(self) -> None:
        """Write the log lines of the last command."""
        if self._log:
            self._write_log()

    # Sweeping

    def _sweep_expired(self, now_ms: int) -> None:
        """Expire keys that are due; with a timer only some, for the next round is near."""
        while self.active_expiry and not self.keyspace.keeps_expired:
            outcome = expiry.sweep(self.keyspace, now_ms, _SWEEP_SIZE)
            self._spread([], outcome.touched, outcome.events, outcome.ready)
            self.stats.expired_actively += len(outcome.events)
            if self.tracking.is_on:
                self.tracking.touched(outcome.touched, outcome.events, None)
            self.dirty += outcome.dirty
            if outcome.log and self._journal is not None:
                self._journal(outcome.log)  # one line for each key, without MULTI
            if self._timer is not None or outcome.reply != _SWEEP_SIZE:
                return

    def _sweep_idempotency(self, now_ms: int) -> None:
        if 0 <= now_ms - self._swept_ms < _IDEMPOTENCY_MS:
            return
        self._swept_ms = now_ms
        for db in self.keyspace:
            if db.idempotent:
                sweep_idempotency(db, now_ms)


class _Caller:
    """A thread that waits for a command."""

    __slots__ = ("_answered", "reply")

    def __init__(self) -> None:
        self.reply: Reply = None
        self._answered = threading.Lock()
        self._answered.acquire()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the reply; whether it came in time."""
        return self._answered.acquire(timeout=-1 if timeout_s is None else timeout_s)

    def resume(self, reply: Reply) -> None:
        self.reply = reply
        self._answered.release()


def _alone(error: CommandError) -> CommandError:
    """Return the error without its history, whose frames refer to the error and would need the garbage collector."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _nowhere(data: bytes) -> None:
    """Where the output of the house session goes; it has none."""
