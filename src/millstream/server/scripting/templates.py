"""EVAL without Lua: the few scripts that lock libraries send, recognised by their shape.

A script is cut into tokens, comments and white space dropped, local names and quotes made alike; what is left is
looked up among the shapes below. This is what there is without an interpreter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from millstream.engine.commands import TABLE
from millstream.engine.faults import NOT_AN_INTEGER, fault
from millstream.engine.keys.keyspace import CommandContext
from millstream.engine.outcome import Reply, Wait
from millstream.engine.text.args import as_integer

Program: TypeAlias = Callable[[CommandContext, list[bytes], list[bytes]], Reply]  # (call, KEYS, ARGV)

_TOKEN: Final = re.compile(
    rb"""(?P<skip>\s+|;|--\[\[.*?\]\]|--[^\n]*)
       | (?P<string>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")
       | (?P<word>[A-Za-z_][A-Za-z_0-9]*|[0-9.]+)
       | (?P<sign>==|~=|<=|>=|\.\.|.)""",
    re.VERBOSE | re.DOTALL,
)


def recognise(body: bytes) -> Program | None:
    """What a script does, or None if its shape is unknown."""
    shape = _shape(body)
    program = _SHAPES.get(shape)
    if program is None and (constant := re.fullmatch(rb"return (-?) ?([0-9]+)", shape)):
        number = int(constant[1] + constant[2])
        return lambda call, keys, words: number
    return program


def _shape(body: bytes) -> bytes:
    """The tokens of a script with a blank between them; local variables are called v0, v1, ..."""
    tokens: list[bytes] = []
    names: dict[bytes, bytes] = {}
    for token in _TOKEN.finditer(body):
        text = token[0]
        if token.lastgroup == "skip":
            continue
        if token.lastgroup == "string":
            text = b"'" + text[1:-1].lower() + b"'"
        elif token.lastgroup == "word":
            if tokens and tokens[-1] == b"local":
                names.setdefault(text, b"v%d" % len(names))
            text = names.get(text, text)
        tokens.append(text)
    return b" ".join(tokens)


def _command(call: CommandContext, name: bytes, *words: bytes) -> Reply:
    """redis.call()."""
    row = TABLE[name]
    assert row.run is not None
    reply = row.run(call, [name, *words])
    assert not isinstance(reply, Wait)
    return reply


def _is_held(call: CommandContext, keys: list[bytes], words: list[bytes]) -> bool:
    """Whether the lock has the caller's token."""
    if not keys:
        raise fault("ERR Lua redis lib command arguments must be strings or integers")
    return bool(words) and _command(call, b"get", keys[0]) == words[0]


def _release(call: CommandContext, keys: list[bytes], words: list[bytes]) -> Reply:
    """Delete the key if it holds the token."""
    return _command(call, b"del", keys[0]) if _is_held(call, keys, words) else 0


def _word(words: list[bytes], at: int) -> bytes:
    if at >= len(words):
        raise fault("ERR Lua redis lib command arguments must be strings or integers")
    return words[at]


def _expire_with(command: bytes) -> Program:
    """Set the time to live if the key holds the token."""

    def expire(call: CommandContext, keys: list[bytes], words: list[bytes]) -> Reply:
        return _command(call, command, keys[0], _word(words, 1)) if _is_held(call, keys, words) else 0

    return expire


def _extend(call: CommandContext, keys: list[bytes], words: list[bytes]) -> Reply:
    """Set or lengthen the time to live of a key that has one and holds the token."""
    if not _is_held(call, keys, words):
        return 0
    left_ms = _command(call, b"pttl", keys[0])
    assert isinstance(left_ms, int)
    if left_ms < 0:
        return 0
    ttl_ms = as_integer(_word(words, 1))
    if ttl_ms is None:
        raise fault(NOT_AN_INTEGER)
    if words[2:3] == [b"0"]:
        ttl_ms += left_ms
    _command(call, b"pexpire", keys[0], b"%d" % ttl_ms)
    return 1


_GUARD: Final = """
    local token = redis.call('get', KEYS[1])
    if not token or token ~= ARGV[1] then return 0 end
"""
_EXTENDING: Final = (
    _GUARD
    + """
    local expiration = redis.call('pttl', KEYS[1])
    if not expiration then expiration = 0 end
    if expiration < 0 then return 0 end
    local newttl = ARGV[2]
    if ARGV[3] == "0" then newttl = ARGV[2] + expiration end
    redis.call('pexpire', KEYS[1], newttl)
    return 1
"""
)


def _forms(action: str) -> list[str]:
    """The ways to write "do this if the lock is ours, else 0"."""
    check = "if redis.call('get', KEYS[1]) == ARGV[1] then"
    stored = "local token = redis.call('get', KEYS[1]) if token == ARGV[1] then"
    return [
        f"{_GUARD} {action} return 1",
        f"{_GUARD} return {action}",
        f"{check} return {action} else return 0 end",
        f"{check} return {action} end return 0",
        f"{check} {action} return 1 else return 0 end",
        f"{check} {action} return 1 end return 0",
        f"{stored} return {action} else return 0 end",
        f"{stored} return {action} end return 0",
    ]


_SHAPES: Final[dict[bytes, Program]] = {
    _shape(form.encode()): program
    for forms, program in (
        (_forms("redis.call('del', KEYS[1])"), _release),
        (_forms("redis.call('unlink', KEYS[1])"), _release),
        (_forms("redis.call('pexpire', KEYS[1], ARGV[2])"), _expire_with(b"pexpire")),
        (_forms("redis.call('expire', KEYS[1], ARGV[2])"), _expire_with(b"expire")),
        ([_EXTENDING], _extend),
    )
    for form in forms
}
_SHAPES[b""] = _SHAPES[b"return"] = _SHAPES[b"return nil"] = lambda call, keys, words: None
