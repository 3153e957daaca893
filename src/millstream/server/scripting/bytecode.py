"""Compiled Lua 5.1 made fit to be run: two changes in the output of string.dump, before it is loaded again.

Tail calls become calls. `return redis.call(…)` is a tail call; in Redis the function called is C and the script's
frame survives it, so that an error knows its line. Here it is Lua, and the frame would be gone. A tail call differs
from a call in nothing but its number: the RETURN behind it is always there.

A function with more than three parameters before its `...` is called with that many arguments at least. Lua 5.1
reserves too little stack for such a call with fewer (CVE-2014-5461) and writes behind it. Up to three are covered
by the spare places every stack has. The function is put into one that is `return f(pad(n, ...))`, with `pad` from
core.lua.

    header ─▶ function: source, lines, sizes, code, constants, functions inside it, debug information
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Final

PAD: Final = b"\x01pad"  # a global that no program can name

_ORDER: Final = "<" if sys.byteorder == "little" else ">"
_HEADER: Final = 12  # signature, version, format, sizes
_SAFE_PARAMETERS: Final = 3
_IS_VARARG: Final = 2

_OPERATION: Final = 0x3F  # the low bits of an instruction
_LOADK, _GETUPVAL, _GETGLOBAL, _CALL, _TAIL_CALL, _RETURN, _CLOSURE, _VARARG = 1, 4, 5, 28, 29, 30, 36, 37
_CONSTANT_SIZES: Final = {0: 0, 1: 1, 3: 8}  # nil, boolean, number
_NUMBER: Final = b"\x03"
_STRING: Final = b"\x04"


def linked(dumped: bytes) -> bytes:
    """Return the program with both changes."""
    return dumped[:_HEADER] + _Walk(dumped).function()


class _Walk:
    """A walk over a dumped program; `at` is where it stands."""

    __slots__ = ("_at", "_data", "_word")

    def __init__(self, dumped: bytes) -> None:
        self._data = dumped
        self._at = _HEADER
        self._word = struct.Struct(_ORDER + ("Q" if dumped[8] == 8 else "I"))  # size_t of this build

    def function(self) -> bytes:
        """Return the changed function that begins here."""
        begin = self._at
        self._skip_text()
        lines = self._take(8)
        upvalues, parameters, vararg, _ = self._take(4)
        head = self._data[begin : self._at]
        code = self._code()
        constants = self._skipped(self._skip_constants)
        inner = [self.function() for _ in range(self._count())]
        rest = self._skipped(self._skip_debugging)
        changed = head + code + constants + _int(len(inner)) + b"".join(inner) + rest
        if vararg & _IS_VARARG and parameters > _SAFE_PARAMETERS:
            return self._padded(changed, lines, upvalues, parameters)
        return changed

    def _padded(self, inner: bytes, lines: bytes, upvalues: int, parameters: int) -> bytes:
        """Return a function without parameters that calls the inner one with enough arguments; they share upvalues."""
        code = [
            _abx(_CLOSURE, 0, 0),
            *(_abc(_GETUPVAL, 0, number, 0) for number in range(upvalues)),
            _abx(_GETGLOBAL, 1, 0),
            _abx(_LOADK, 2, 1),
            _abc(_VARARG, 3, 0, 0),
            _abc(_CALL, 1, 0, 0),
            _abc(_CALL, 0, 0, 0),
            _abc(_RETURN, 0, 0, 0),
            _abc(_RETURN, 0, 1, 0),
        ]
        name = _STRING + self._word.pack(len(PAD) + 1) + PAD + b"\0"
        number = _NUMBER + struct.pack(_ORDER + "d", parameters)
        return b"".join(
            [
                self._word.pack(0),
                lines,
                bytes([upvalues, 0, _IS_VARARG, 5]),
                _int(len(code)),
                struct.pack(f"{_ORDER}{len(code)}I", *code),
                _int(2),
                name,
                number,
                _int(1),
                inner,
                _int(len(code)),
                lines[:4] * len(code),
                _int(0),
                _int(0),
            ]
        )

    def _code(self) -> bytes:
        size = self._count()
        code = struct.unpack(f"{_ORDER}{size}I", self._take(4 * size))
        calls = [word & ~_OPERATION | _CALL if word & _OPERATION == _TAIL_CALL else word for word in code]
        return _int(size) + struct.pack(f"{_ORDER}{size}I", *calls)

    def _skip_constants(self) -> None:
        for _ in range(self._count()):
            kind = self._take(1)
            if kind == _STRING:
                self._skip_text()
            else:
                self._at += _CONSTANT_SIZES[kind[0]]

    def _skip_debugging(self) -> None:
        lines = self._count()
        self._at += 4 * lines
        for _ in range(self._count()):
            self._skip_text()
            self._at += 8  # where a local variable begins and ends
        for _ in range(self._count()):
            self._skip_text()

    def _skipped(self, skip: Callable[[], None]) -> bytes:
        begin = self._at
        skip()
        return self._data[begin : self._at]

    def _take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def _count(self) -> int:
        return int.from_bytes(self._take(4), sys.byteorder)

    def _skip_text(self) -> None:
        (size,) = self._word.unpack(self._take(self._word.size))
        self._at += size


def _int(value: int) -> bytes:
    return struct.pack(_ORDER + "i", value)


def _abc(operation: int, a: int, b: int, c: int) -> int:
    return operation | a << 6 | c << 14 | b << 23


def _abx(operation: int, a: int, b: int) -> int:
    return operation | a << 6 | b << 14
