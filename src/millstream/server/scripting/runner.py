"""Runs scripts for a hub: who asked, what they may do, how long, and the commands that they call.

The commands of a script run as those of a transaction do: through `Hub.perform`, for a session of their own that has
the user and the database of the one who called the script. Their log lines and woken waiters are handed out when the
script has ended, by whoever ran it.

While a script runs for longer than `busy-reply-threshold`, others are answered BUSY, and may end it with SCRIPT KILL if
it has written nothing: half of what it does must not stay. Where nobody can be heard meanwhile, because the script runs
inside a program, and where nobody does anything about it, it is stopped after a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from millstream.engine.faults import fault
from millstream.engine.outcome import Pairs, Reply, Wait
from millstream.engine.table import Command
from millstream.errors import CommandError, ScriptError
from millstream.server.core.interfaces import Server
from millstream.server.scripting.lua import MEMORY_LIMIT, Interpreter

if TYPE_CHECKING:
    from millstream.server.access.auth import AccessControl
    from millstream.server.core.interfaces import Client, Gate
    from millstream.server.features.maxmemory import Memory

logger = logging.getLogger(__name__)

_UNKNOWN: Final = "ERR Unknown Redis command called from script"
_BAD_ARITY: Final = "ERR Wrong number of args calling Redis command from script"
_FORBIDDEN: Final = "ERR This Redis command is not allowed from script"
_READ_ONLY: Final = "ERR Write commands are not allowed from read-only scripts."
_ONLY_READING: Final = "ERR Can not execute a script with write flag using *_ro command."
_REACHING_OUT: Final = frozenset({"publish", "spublish"})  # no writes, and not only reads
_PATIENCE: Final = 2  # times busy-reply-threshold: how long a script may take that nobody can kill
_ENDING_S: Final = 1.0  # how long one may take when the server is to end
_LONGEST_S: Final = 60.0  # how long one may take that somebody can
_KILLED: Final = b"Script killed by user with SCRIPT KILL..."
_NOT_BUSY: Final = "NOTBUSY No scripts in execution right now."
_UNKILLABLE: Final = (
    "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait the script "
    "termination or kill the server in a hard way using the SHUTDOWN NOSAVE command."
)
_LOADING_S: Final = 0.5  # what the code of a library may take to register its functions

Register = Callable[[bytes, bytes | None, frozenset[str]], None]


class ScriptCall(Protocol):
    """The call of a command that runs a script."""

    now_ms: int
    protocol: int

    @property
    def session(self) -> Client:
        """Return the caller's connection."""


class ScriptServer(Server, Protocol):
    """The hub as scripts see it."""

    is_ending: bool
    memory: Memory

    @property
    def access(self) -> AccessControl:
        """Return the access control."""

    def look_after_others(self, gate: Gate) -> bool:
        """Serve others while a script runs. Returns whether that is possible."""

    def forget_log(self) -> None:
        """Do not log what the running command has done so far."""


class Runner:
    """The one interpreter of a hub, and the state of the script that is running. Called under the hub's lock."""

    def __init__(
        self, hub: ScriptServer, lookup: Callable[[list[bytes]], Command], open_session: Callable[[], Client]
    ) -> None:
        """Use `lookup` to find commands, and `open_session` for the session that scripts run them in."""
        self.memory_limit = MEMORY_LIMIT  # bytes that scripts may hold; taken when the first one runs
        self._hub = hub
        self._interpreter: Interpreter | None = None
        self._session: Client | None = None
        self._lookup = lookup
        self._open_session = open_session
        self._register: Register | None = None
        self._caller: Client | None = None
        self.allows_everything = False  # DEBUG: also commands that are not for scripts
        self._command: list[bytes] | None = None  # that calls the function which runs; None: it is a script
        self._begin(0, is_read_only=True)

    def _begin(self, now_ms: int, *, is_read_only: bool, allows_oom: bool = False) -> None:
        self._now_ms = now_ms
        self._is_read_only = is_read_only
        self._allows_oom = allows_oom
        self._has_written = False
        self._is_told = False  # that the script takes long
        self._end: bytes | None = None  # why it must end
        self._time: Reply = None  # what TIME has answered: time stands still
        self._started_s = monotonic()

    @property
    def interpreter(self) -> Interpreter:
        """Lua, started when it is first needed."""
        if self._interpreter is None:
            self._interpreter = Interpreter(self, self.memory_limit)
        return self._interpreter

    @property
    def caller(self) -> Client | None:
        """Whose script is running, if one is."""
        return self._caller

    @property
    def memory(self) -> int:
        """Bytes that Lua holds."""
        return 0 if self._interpreter is None else self._interpreter.memory

    def run(
        self,
        call: ScriptCall,
        name: bytes,
        program: Callable[[Interpreter], Reply],
        *,
        flags: frozenset[str] | None,
        is_read_only: bool,
        command: list[bytes] | None = None,
    ) -> Reply:
        """Run a program for the caller; its reply. Raises the error it ends with, which tells its name.

        A program without `flags` (None) may do anything, unless the caller wants it to be read-only. `command` is what
        has called it, if it is a function.
        """
        interpreter = self.interpreter
        if flags is not None:
            self._admit(call.session, flags, is_read_only=is_read_only)
            is_read_only = "no-writes" in flags
        session = self._session_for(call.session)
        self._begin(call.now_ms, is_read_only=is_read_only, allows_oom="allow-oom" in (flags or ()))
        self._command = command
        try:
            return program(interpreter)
        except ScriptError as error:
            raise self._failure(error, name) from None
        finally:
            session.user = b""
            self._caller = None

    def _admit(self, caller: Client, flags: frozenset[str], *, is_read_only: bool) -> None:
        """Raise what there is against a program with these flags: it counts as a command that does what they allow."""
        if "no-writes" in flags:
            return
        does = {"write"} if "allow-oom" in flags else {"write", "denyoom"}
        row = Command("script", 1, frozenset(does), frozenset(), "", "", "", "scripting")
        for gate in self._hub.gates:
            if gate != self._hub.access.gate and (refusal := gate(caller, row, [])) is not None:
                raise refusal
        if is_read_only:
            raise fault(_ONLY_READING)

    def load(self, register: Register, program: Callable[[Interpreter], None]) -> None:
        """Run the code of a library, which registers functions; ScriptError if it fails."""
        interpreter = self.interpreter
        self._begin(0, is_read_only=True)
        self._register = register
        try:
            program(interpreter)
        finally:
            self._register = None

    def _session_for(self, caller: Client) -> Client:
        """Return the session that the script's commands belong to."""
        session = self._session
        if session is None:
            session = self._session = self._open_session()
        self._caller = caller
        session.db, session.user, session.is_trusted = caller.db, caller.user, caller.is_trusted
        session.is_authenticated = True
        return session

    def _failure(self, error: ScriptError, name: bytes) -> CommandError:
        text = error.text
        if error.place is not None:
            text += b" script: " + name + b", on " + error.place + b"."
        failure = fault(text)
        if error.is_counted:  # and will be once more, as the error of the script
            stats = self._hub.stats
            stats.errors -= 1
            if failure.code in stats.by_error:
                stats.by_error[failure.code] -= 1
        return failure

    # What the script calls

    def perform(self, argv: list[bytes], version: int) -> Reply:
        """Run a command for the script; an error is a reply too."""
        session = self._session
        assert session is not None
        session.protocol = version
        try:
            row = self._checked(session, argv)
        except CommandError as error:
            self._hub.stats.count_error(error)
            return error
        if row.name == "time" and self._time is not None:
            return self._time
        if "write" in row.flags:
            self._has_written = True
        assert self._caller is not None
        self._caller.commands += 1
        if self._hub.monitors:
            self._hub.show(session, row, argv)
        reply = self._hub.perform(session, row, argv, self._now_ms, False)
        assert not isinstance(reply, Wait), row.name
        if row.name == "time":
            self._time = reply
        return reply

    def _checked(self, session: Client, argv: list[bytes]) -> Command:
        """Return the row of a command; raises the reason why the script may not run it, checked in Redis's order."""
        row = self._found(argv)
        refusal = None
        if not row.fits(len(argv)):
            refusal = fault(_BAD_ARITY)
        elif "noscript" in row.flags and not self.allows_everything:
            refusal = fault(_FORBIDDEN)
        elif self._is_read_only and ("write" in row.flags or row.name in _REACHING_OUT):
            refusal = fault(_READ_ONLY)
        refusal = refusal or self._refusal(session, row, argv)
        if refusal is not None:
            self._hub.stats.of(row.name).rejected += 1
            raise refusal
        return row

    def _found(self, argv: list[bytes]) -> Command:
        """Return the row of a command; a container needs a subcommand."""
        try:
            row = self._lookup(argv)
        except CommandError as error:
            is_arity = error.wire.startswith(b"ERR wrong number")
            raise fault(_BAD_ARITY if is_arity else _UNKNOWN) from None
        if row.run is None:
            raise fault(_UNKNOWN)
        return row

    def _refusal(self, session: Client, row: Command, argv: list[bytes]) -> CommandError | None:
        """Return a gate's reason to refuse a command, or None."""
        access, memory = self._hub.access, self._hub.memory
        assert self._caller is not None
        for gate in self._hub.gates:
            if gate == access.gate:
                reason = access.refusal_in_script(self._caller, row, argv)
            elif gate == memory.gate and (self._has_written or self._allows_oom):
                continue  # half a script would be worse than a little too much memory
            else:
                reason = gate(session, row, argv)
            if reason is not None:
                return reason
        return None

    def allowed(self, argv: list[bytes]) -> bool:
        """Whether the script's user may run this; raises CommandError if it is no command, or not one so long."""
        session = self._session
        assert session is not None
        row = self._found(argv)
        if not row.fits(len(argv)):
            raise fault(_BAD_ARITY)
        return self._hub.access.denial(session, row, argv) is None

    def tick(self) -> bool | bytes:
        """Whether the script must end: it has taken long, and stopping it loses nothing; or why, if it was killed."""
        taken_s = monotonic() - self._started_s
        if self._register is not None:
            return taken_s > _LOADING_S
        if self._hub.is_ending and taken_s > _ENDING_S:
            logger.warning("Ending a script after %.0f s, and the server: nothing of it is kept", taken_s)
            self.abandon()
            return _KILLED
        threshold_s = self._hub.config.number("busy-reply-threshold") / 1000
        if not threshold_s or taken_s <= threshold_s:
            return False
        is_heard = self._hub.look_after_others(self.busy)
        if self._end is not None:
            return self._end
        if taken_s <= max(_PATIENCE * threshold_s, _LONGEST_S if is_heard else 0):
            return False
        if self._has_written and not self._is_told:
            self._is_told = True
            logger.warning("A script has taken %.0f s and is not stopped, for it has written", taken_s)
        return not self._has_written

    def busy(self, session: Client, row: Command, argv: list[bytes]) -> CommandError | None:
        """Refuse commands of others while a script takes long, unless they are allowed then."""
        is_allowed = "allow_busy" in row.flags and (row.name != "shutdown" or b"NOSAVE" in map(bytes.upper, argv[1:]))
        return None if is_allowed else self._busy_error()

    def _busy_error(self) -> CommandError:
        kill = "SCRIPT KILL" if self._command is None else "FUNCTION KILL"
        return fault(f"BUSY Redis is busy running a script. You can only call {kill} or SHUTDOWN NOSAVE.")

    def running(self) -> Reply:
        """Describe the running function as FUNCTION STATS does; raises an error if it is a script."""
        if self._caller is None:
            return None
        if self._command is None:
            raise self._busy_error()
        taken_ms = round((monotonic() - self._started_s) * 1000)
        return Pairs([b"name", self._command[1], b"command", [*self._command], b"duration_ms", taken_ms])

    def kill(self, *, is_function: bool) -> None:
        """End the script that runs; CommandError with the reason if it cannot be ended so."""
        if self._caller is None:
            raise fault(_NOT_BUSY)
        if self._has_written:
            raise fault(_UNKILLABLE)
        if is_function != (self._command is not None):
            raise self._busy_error()
        self._end = _KILLED

    def abandon(self) -> None:
        """End the running script, if there is one, because the server ends; nothing of it is kept."""
        if self._caller is not None:
            self._end = _KILLED
            self._hub.forget_log()

    def register(self, name: bytes, description: bytes | None, flags: frozenset[str]) -> None:
        """Register a function of the library that is being loaded."""
        assert self._register is not None
        self._register(name, description, flags)
