"""Libraries of functions: FUNCTION LOAD and what is done with what it loaded.

    #!lua name=orders                                          the first line names the library
    redis.register_function('total', function(keys, args) … end)

The code of a library runs once, when it is loaded, and registers functions; these keep what it had in its local
variables. Libraries outlive restarts: the log holds the commands that load them, snapshots hold their code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

from millstream.engine.faults import fault
from millstream.engine.outcome import Members, Pairs, Reply, Simple
from millstream.engine.text.glob import compiled
from millstream.errors import BadFormat, CommandError, PersistenceError, ScriptError
from millstream.persistence.rdb.codec import Reader, string_bytes
from millstream.persistence.rdb.crc64 import crc64
from millstream.persistence.rdb.file import Op
from millstream.persistence.rdb.versions import FOREIGN_VERSIONS, VERSION
from millstream.server.protocol.resp import split_words
from millstream.server.scripting.cache import FLAGS
from millstream.server.scripting.runner import Runner, ScriptCall

if TYPE_CHECKING:
    from millstream.persistence.store import Store

_ENGINE: Final = b"LUA"
_BAD_NAME: Final = (
    "ERR Library names can only contain letters, numbers, or underscores(_) and must be at least one character long"
)
_BAD_PAYLOAD: Final = "ERR DUMP payload version or checksum are wrong"
_NAME: Final = re.compile(rb"[A-Za-z0-9_]+")
_TRAILER: Final = 10  # bytes behind a payload: version and checksum


@dataclass(frozen=True, slots=True)
class Function:
    """One function of a library."""

    name: bytes
    description: bytes | None
    flags: frozenset[str]

    def describe(self) -> Reply:
        """Describe it as FUNCTION LIST does."""
        flags = Members(Simple(flag.encode()) for flag in FLAGS if flag in self.flags)
        return Pairs([b"name", self.name, b"description", self.description, b"flags", flags])


@dataclass(frozen=True, slots=True)
class Library:
    """A library that is loaded."""

    name: bytes
    code: bytes
    number: int  # how Lua knows it
    functions: dict[bytes, Function] = field(default_factory=dict)

    def describe(self, *, with_code: bool) -> Reply:
        """Describe it as FUNCTION LIST does."""
        functions: list[Reply] = [function.describe() for function in self.functions.values()]
        text = Pairs([b"library_name", self.name, b"engine", _ENGINE, b"functions", functions])
        if with_code:
            text += [b"library_code", self.code]
        return text


class Libraries:
    """All libraries of a hub."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._by_name: dict[bytes, Library] = {}
        self._by_function: dict[bytes, Library] = {}  # by the name in lower case: its case does not matter
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def codes(self) -> tuple[bytes, ...]:
        """The code of all libraries, for a snapshot."""
        return tuple(library.code for library in self._by_name.values())

    @property
    def functions(self) -> int:
        """How many functions there are."""
        return len(self._by_function)

    def load(self, code: bytes, *, replace: bool = False) -> bytes:
        """Load a library; its name. If it cannot be loaded, nothing changes."""
        name, text = parted(code)
        old = self._by_name.get(name)
        if old is not None and not replace:
            raise fault(b"ERR Library '" + name + b"' already exists")
        library = self._run(name, code, text)
        try:
            self._check_free(library, {name})
        except Exception:
            self._drop([library])
            raise
        self._exchange([old] if old is not None else [], [library])
        return name

    def _run(self, name: bytes, code: bytes, text: bytes) -> Library:
        """Run the code of a library; it is not among the others yet."""
        library = Library(name, code, next(self._numbers))

        def register(function: bytes, description: bytes | None, flags: frozenset[str]) -> None:
            library.functions[function] = Function(function, description, flags)

        try:
            self._runner.load(register, lambda lua: lua.load(library.number, text))
        except ScriptError as error:
            what = b"compiling function" if error.place is not None else b"registering functions"
            raise fault(b"ERR Error " + what + b": " + error.text) from None
        if not library.functions:
            self._drop([library])
            raise fault("ERR No functions registered")
        return library

    def _check_free(self, library: Library, leaving: Iterable[bytes]) -> None:
        """No function may be called like one of a library that stays."""
        for function in library.functions:
            holder = self._by_function.get(function.lower())
            if holder is not None and holder.name not in leaving:
                raise fault(b"ERR Function " + function + b" already exists")

    def _exchange(self, leaving: Iterable[Library], coming: Iterable[Library]) -> None:
        for library in leaving:
            del self._by_name[library.name]
            for function in library.functions:
                del self._by_function[function.lower()]
        self._drop(leaving)
        for library in coming:
            self._by_name[library.name] = library
            for function in library.functions:
                self._by_function[function.lower()] = library

    def _drop(self, libraries: Iterable[Library]) -> None:
        for library in libraries:
            self._runner.interpreter.unload(library.number)

    def delete(self, name: bytes) -> None:
        """Delete a library."""
        library = self._by_name.get(name)
        if library is None:
            raise fault("ERR Library not found")
        self._exchange([library], [])

    def clear(self) -> None:
        """Delete all libraries."""
        self._exchange(list(self._by_name.values()), [])

    def describe(self, pattern: bytes | None, *, with_code: bool) -> Reply:
        """Describe the libraries whose names match."""
        fits = compiled(pattern, True) if pattern is not None else None
        return [
            library.describe(with_code=with_code)
            for library in self._by_name.values()
            if fits is None or fits(library.name)
        ]

    def call(
        self, call: ScriptCall, argv: list[bytes], keys: list[bytes], words: list[bytes], *, is_read_only: bool
    ) -> Reply:
        """Call the function that a command names; raises the error that it ends with."""
        library, name = self._found(argv[1])
        flags, protocol = library.functions[name].flags, call.protocol
        return self._runner.run(
            call,
            name,
            lambda lua: lua.call(library.number, name, keys, words, protocol),
            flags=flags,
            is_read_only=is_read_only,
            command=argv,
        )

    def flags_of(self, function: bytes) -> frozenset[str]:
        """Return the flags of a function; no flags if there is no such function."""
        if function not in self:
            return frozenset()
        library, name = self._found(function)
        return library.functions[name].flags

    def _found(self, function: bytes) -> tuple[Library, bytes]:
        """Return the library of an existing function, and the function's name as the library has it."""
        library = self._by_function[function.lower()]
        return library, next(name for name in library.functions if name.lower() == function.lower())

    def __contains__(self, function: bytes) -> bool:
        return function.lower() in self._by_function

    # Keeping them

    def keep_in(self, store: Store) -> None:
        """Let a store keep the libraries: load them when it is opened, write them into snapshots."""
        store.load_function = self._take
        store.run_other = self.replay
        store.background.functions = lambda: self.codes

    def _take(self, code: bytes) -> None:
        self.replay(0, [b"FUNCTION", b"LOAD", code])

    def replay(self, db: int, argv: list[bytes]) -> bool:
        """Run a logged command if it is one of FUNCTION; False if it is not. One that fails would be lost: an error."""
        try:
            return self._run_logged(argv)
        except CommandError as error:
            raise PersistenceError(f"a library of functions cannot be loaded: {error}") from error

    def _run_logged(self, argv: list[bytes]) -> bool:
        match [word.upper() for word in argv[:2]]:
            case [b"FUNCTION", b"LOAD"]:
                self.load(argv[-1], replace=True)
            case [b"FUNCTION", b"DELETE"]:
                self.delete(argv[2])
            case [b"FUNCTION", b"FLUSH"]:
                self.clear()
            case [b"FUNCTION", b"RESTORE"]:
                self.restore(argv[2], argv[3].upper() if len(argv) > 3 else b"APPEND")
            case _:
                return False
        return True

    def dump(self) -> bytes:
        """All libraries as FUNCTION RESTORE takes them."""
        body = b"".join(bytes((Op.FUNCTION,)) + string_bytes(code, compress=True) for code in self.codes)
        body += VERSION.to_bytes(2, "little")
        return body + crc64(body).to_bytes(8, "little")

    def restore(self, payload: bytes, policy: bytes) -> None:
        """Take over the libraries of a dump, all or none. Policies: FLUSH, APPEND, REPLACE."""
        coming: list[Library] = []
        try:
            for code in _codes_in(payload):
                name, text = parted(code)
                coming.append(self._run(name, code, text))
            leaving = self._leaving(coming, policy)
        except Exception:
            self._drop(coming)
            raise
        self._exchange(leaving, coming)

    def _leaving(self, coming: Iterable[Library], policy: bytes) -> Iterable[Library]:
        """Those that make room for others; raises if others would have to."""
        if policy == b"FLUSH":
            return list(self._by_name.values())
        leaving = [self._by_name[library.name] for library in coming if library.name in self._by_name]
        if leaving and policy != b"REPLACE":
            raise fault(b"ERR Library " + leaving[0].name + b" already exists")
        names = {library.name for library in leaving}
        for library in coming:
            self._check_free(library, names)
        return leaving


def _codes_in(payload: bytes) -> Iterable[bytes]:
    version = int.from_bytes(payload[-_TRAILER:-8], "little")
    checksum = int.from_bytes(payload[-8:], "little")
    if len(payload) < _TRAILER or (version > VERSION and version not in FOREIGN_VERSIONS):
        raise fault(_BAD_PAYLOAD)
    if checksum and checksum != crc64(payload[:-8]):
        raise fault(_BAD_PAYLOAD)
    reader = Reader(payload[:-_TRAILER])
    while reader.at < len(payload) - _TRAILER:
        try:
            if reader.byte() != Op.FUNCTION:
                raise fault("ERR given type is not a function")
            yield reader.string()
        except BadFormat as error:
            raise fault("ERR failed loading functions from the given payload") from error


def parted(code: bytes) -> tuple[bytes, bytes]:
    """Return the library's name from a first line like `#!lua name=orders`, and the text with its line numbers kept."""
    if not code.startswith(b"#!"):
        raise fault("ERR Missing library metadata")
    line, newline, rest = code.partition(b"\n")
    words = split_words(line)
    if not newline or words is None:
        raise fault("ERR Invalid library metadata")
    name = None
    for word in words[1:]:
        if word[:5].lower() != b"name=":
            raise fault(b"ERR Invalid metadata value given: " + word)
        if name is not None:
            raise fault("ERR Invalid metadata value, name argument was given multiple times")
        name = word[5:]
    if name is None:
        raise fault("ERR Library name was not given")
    if not _NAME.fullmatch(name):
        raise fault(_BAD_NAME)
    engine = words[0].removeprefix(b"#!")
    if engine.upper() != _ENGINE:
        raise fault(b"ERR Engine '" + engine + b"' not found")
    return name, newline + rest
