"""Lua itself: one interpreter, its sandbox, and what goes through between it and Python. Knows no hub.

    compile, run, call, load ──▶ programs.lua ──▶ the script ── redis.call ──▶ Host.perform
         ▲                                                                       │
         └── reply, ScriptError ◀── Lua value ◀── … ◀── Lua value ◀── reply ◀────┘

The interpreter is PUC Lua 5.1, which is what Redis has and what every wheel of lupa brings (`lupa.lua51`).

Memory: what a script allocates is limited by lupa's allocator. The limit holds while Lua runs and is lifted while
Python does, for lupa allocates inside calls that must not be left by a jump (see core.lua). Time: every 100,000
instructions the script is asked whether it may go on. A single call of a C function (string.find with a pattern
made for it) is not interrupted.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from hashlib import sha1
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

from millstream.engine.outcome import Encoded, Reply, Simple
from millstream.engine.text.floats import double_text
from millstream.errors import CommandError, ScriptError
from millstream.printable import safe_logger
from millstream.server.scripting.bytecode import linked
from millstream.server.scripting.conversion import argument_text, to_lua, unpacked
from millstream.version import REDIS_VERSION

logger = safe_logger(logging.getLogger(__name__))

MEMORY_LIMIT: Final = 256 << 20  # bytes that scripts may hold at once
_FOLDER: Final = Path(__file__).parent / "lua_files"
_FILES: Final = (
    "core",
    "base",
    "numbers",
    "bit",
    "cjson",
    "cmsgpack",
    "struct",
    "compile",
    "interface",
    "replies",
    "programs",
)
_OURS: Final = b"=[millstream]"
_VALUE, _STATUS, _ERROR, _ENCODED = range(4)  # kinds of replies, as in replies.lua
_programs: dict[str, bytes] = {}  # compiled files, for the next interpreter
_LEVELS: Final = (logging.DEBUG, logging.DEBUG, logging.INFO, logging.WARNING)


class ScriptHost(Protocol):
    """What a running script needs of the server."""

    def perform(self, argv: list[bytes], version: int) -> Reply:
        """Run a command for the script; an error is a reply too."""

    def allowed(self, argv: list[bytes]) -> bool:
        """Whether the script's user may run this; raises CommandError if it is no command."""

    def tick(self) -> bool | bytes:
        """Whether the script must end, or why; called again and again while it runs."""

    def register(self, name: bytes, description: bytes | None, flags: frozenset[str]) -> None:
        """Register a function of the library that is being loaded."""


class Interpreter:
    """One Lua with one sandbox. Not for several threads at once: the hub's lock is around it."""

    def __init__(self, host: ScriptHost, memory_limit: int = MEMORY_LIMIT) -> None:
        self._lupa: Any = import_module("lupa.lua51")
        self._host = host
        self._limit = memory_limit
        self._version = 2  # of the protocol in which the script gets replies
        self._problem: bytes | None = None  # the error of the last command
        self._lua: Any = self._lupa.LuaRuntime(
            encoding=None,
            register_eval=False,
            register_builtins=False,
            unpack_returned_tuples=False,
            attribute_handlers=(_deny, _deny),
            overflow_handler=None,
            max_memory=0,
        )
        self._set_limit: Callable[[int], None] = self._lua.set_max_memory
        self._table: Callable[[Any], Any] = self._lua.table_from
        self._api: dict[str, Callable[..., Any]] = {}
        self._start()
        self._limit += self._lua.get_memory_used()  # what the sandbox takes is not the scripts'

    def _start(self) -> None:
        """Run the files that make the sandbox; the last one gives the functions that are called from here."""
        dump = self._lua.eval("function(text, name) return string.dump(assert(loadstring(text, name))) end")
        major, minor, patch = map(int, REDIS_VERSION.split(b"."))
        box = self._table(
            {
                b"functions": self._table(self._functions()),
                b"redis_version": REDIS_VERSION,
                b"redis_version_number": major << 16 | minor << 8 | patch,
            }
        )
        for name in _FILES:
            if name not in _programs:
                _programs[name] = linked(dump((_FOLDER / f"{name}.lua").read_bytes(), _OURS))
            api = self._lua.execute(_programs[name], box)
        self._api = {name: api[name.encode()] for name in ("compile", "forget", "run", "call", "load", "unload")}
        self._lift()

    def _functions(self) -> dict[bytes, Callable[..., Any]]:
        """Return the functions that Lua may call. Each lifts the memory limit first, also for its result or error."""
        return {
            b"allowed": self._allowed,
            b"double_text": self._double_text,
            b"failure": self._failure,
            b"guard": self._guard,
            b"lift": self._lift,
            b"log": self._log,
            b"number_text": self._number_text,
            b"perform": self._perform,
            b"perform_packed": self._perform_packed,
            b"register": self._register,
            b"relink": self._relink,
            b"set_version": self._set_version,
            b"sha1": self._sha1,
            b"tick": self._tick,
        }

    # What the server calls

    @property
    def memory(self) -> int:
        """Bytes in use."""
        return int(self._lua.get_memory_used(total=True))

    def compile(self, sha: bytes, text: bytes) -> bytes | None:
        """Keep a script under its hash; what is wrong with it, or None."""
        problem = self._enter("compile", sha, text)
        assert problem is None or isinstance(problem, bytes)
        return problem

    def forget(self, sha: bytes) -> None:
        """Drop a script."""
        self._api["forget"](sha)

    def run(self, sha: bytes, keys: list[bytes], words: list[bytes], protocol: int) -> Reply:
        """Run a script that is kept; what it returns, or ScriptError."""
        return self._answer(self._enter("run", sha, self._table(keys), self._table(words), protocol))

    def load(self, library: int, text: bytes) -> None:
        """Run the code of a library, which registers its functions; ScriptError with what is wrong."""
        problem = self._enter("load", library, text)
        if problem is not None:
            message, is_compilation = problem
            raise ScriptError(message, b"compiling" if is_compilation else None)

    def unload(self, library: int) -> None:
        """Drop the functions of a library."""
        self._api["unload"](library)

    def call(self, library: int, name: bytes, keys: list[bytes], words: list[bytes], protocol: int) -> Reply:
        """Run a function of a library; what it returns, or ScriptError."""
        tables = self._table(keys), self._table(words)
        return self._answer(self._enter("call", library, name, *tables, protocol))

    def _enter(self, name: str, *arguments: Any) -> Any:
        """Call a function of the sandbox; afterwards there is no limit, and not much is left to collect."""
        self._version = 2
        try:
            return self._api[name](*arguments)
        except self._lupa.LuaError as error:
            raise ScriptError(b"ERR " + str(error).encode()) from error
        finally:
            self._lift()
            if self._lua.get_memory_used() > self._limit // 4:
                self._clean_up()

    def _clean_up(self) -> None:
        """Collect what the script left; a stack that had grown is halved each time."""
        before = math.inf
        while self.memory < before:
            before = self.memory
            self._lua.gccollect()

    @staticmethod
    def _answer(result: tuple[Any, ...]) -> Reply:
        kind, value, *rest = result
        if kind == _VALUE:
            return value if type(value) is not float else _truncated(value)
        if kind == _STATUS:
            return Simple(value)
        if kind == _ENCODED:
            return Encoded(value)
        is_counted, *place = rest
        raise ScriptError(value, place[0] if place else None, is_counted=is_counted)

    # What Lua calls

    def _guard(self) -> None:
        self._set_limit(self._limit)

    def _lift(self) -> None:
        self._set_limit(0)

    def _tick(self) -> bool | bytes:
        self._set_limit(0)
        return self._host.tick()

    def _perform(self, *words: Any) -> Any:
        self._set_limit(0)
        return self._reply([word if type(word) is bytes else argument_text(word) for word in words])

    def _perform_packed(self, packed: bytes) -> Any:
        self._set_limit(0)
        return self._reply(unpacked(packed))

    def _reply(self, argv: list[bytes]) -> Any:
        try:
            reply = self._host.perform(argv, self._version)
        except Exception:  # none may pass through Lua: a script could catch it
            logger.exception("A command of a script failed in a way it must not")
            reply = CommandError("ERR internal error")
        if type(reply) is CommandError:
            self._problem = reply.wire
            return None
        self._problem = None
        kind = type(reply)
        return reply if kind is bytes or kind is int else to_lua(reply, self._version, self._table)

    def _failure(self) -> bytes | None:
        self._set_limit(0)
        return self._problem

    def _allowed(self, packed: bytes) -> int:
        """1 yes, 0 no, -1 there is no such command, -2 not with so many words."""
        self._set_limit(0)
        try:
            return int(self._host.allowed(unpacked(packed)))
        except CommandError as error:
            return -2 if b"Wrong number" in error.wire else -1

    def _set_version(self, version: int) -> None:
        self._set_limit(0)
        self._version = version

    def _register(self, name: bytes, description: bytes | bool, flags: bytes) -> None:
        self._set_limit(0)
        text = description if isinstance(description, bytes) else None
        self._host.register(name, text, frozenset(flags.decode().split()))

    def _log(self, level: float, text: bytes) -> None:
        self._set_limit(0)
        logger.log(_LEVELS[int(level)], "A script says: %s", text.decode("utf-8", "replace"))

    def _sha1(self, text: bytes) -> bytes:
        self._set_limit(0)
        return sha1(text, usedforsecurity=False).hexdigest().encode()

    def _relink(self, dumped: bytes) -> bytes:
        self._set_limit(0)
        return linked(dumped)

    def _double_text(self, number: float) -> bytes:
        self._set_limit(0)
        return double_text(float(number))

    def _number_text(self, number: float) -> bytes:
        self._set_limit(0)
        return argument_text(number)


def _truncated(number: float) -> int:
    """Convert a number to an integer as C does; all that do not fit become the same one."""
    return int(number) if math.isfinite(number) and abs(number) < 2**63 else -(2**63)


def _deny(*arguments: object) -> None:
    raise AttributeError("no attribute of a Python object is open to scripts")
