"""EVAL, EVALSHA, SCRIPT, and the little of FUNCTION that test harnesses call."""

from __future__ import annotations

from millstream.engine.args import as_integer, integer
from millstream.engine.faults import fault
from millstream.engine.outcome import OK, Pairs, Reply
from millstream.server.call import ServerCall, ServerRegistry
from millstream.server.commands.common import add_help

COMMANDS = ServerRegistry("scripting")
COMMANDS.contains("script", since="2.6.0", summary="A container for Lua scripts management commands.")
COMMANDS.contains("function", since="7.0.0", summary="A container for function commands.")

_RUNS = "noscript stale skip_monitor no_mandatory_keys movablekeys script_runner"


def _keys_after_count(argv: list[bytes]) -> list[int]:
    """Which words of EVAL are keys."""
    count = as_integer(argv[2]) if len(argv) > 2 else None
    return list(range(3, 3 + count)) if count is not None and 0 <= count <= len(argv) - 3 else []


def _run(call: ServerCall, sha: bytes, argv: list[bytes]) -> Reply:
    count = integer(argv[2])
    if count > len(argv) - 3:
        raise fault("ERR Number of keys can't be greater than number of args")
    if count < 0:
        raise fault("ERR Number of keys can't be negative")
    call.may_block = False
    return call.hub.scripts.run(sha, call, argv[3 : 3 + count], argv[3 + count :])


@COMMANDS.serves(
    "eval", -3, _RUNS, find_keys=_keys_after_count, access="RW access update", since="2.6.0",
    summary="Executes a server-side Lua script.",
)
def eval_(call: ServerCall, argv: list[bytes]) -> Reply:
    """EVAL script numkeys [key [key ...]] [arg [arg ...]]"""
    return _run(call, call.hub.scripts.load(argv[1]), argv)


@COMMANDS.serves(
    "evalsha", -3, _RUNS, find_keys=_keys_after_count, access="RW access update", since="2.6.0",
    summary="Executes a server-side Lua script by SHA1 digest.",
)  # fmt: skip
def evalsha(call: ServerCall, argv: list[bytes]) -> Reply:
    """EVALSHA sha1 numkeys [key [key ...]] [arg [arg ...]]"""
    if argv[1] not in call.hub.scripts:
        raise fault("NOSCRIPT No matching script. Please use EVAL.")
    return _run(call, argv[1], argv)


@COMMANDS.serves("script|load", 3, "noscript stale", since="2.6.0", summary="Loads a script.")
def load(call: ServerCall, argv: list[bytes]) -> Reply:
    """SCRIPT LOAD script"""
    return call.hub.scripts.load(argv[2])


@COMMANDS.serves("script|exists", -3, "noscript", since="2.6.0", summary="Tells which scripts are loaded.")
def exists(call: ServerCall, argv: list[bytes]) -> Reply:
    """SCRIPT EXISTS sha1 [sha1 ...]"""
    return [int(sha in call.hub.scripts) for sha in argv[2:]]


@COMMANDS.serves("script|flush", -2, "noscript", since="2.6.0", summary="Forgets all scripts.")
def flush(call: ServerCall, argv: list[bytes]) -> Reply:
    """SCRIPT FLUSH [ASYNC | SYNC]"""
    if len(argv) > 3 or (len(argv) == 3 and argv[2].upper() not in (b"SYNC", b"ASYNC")):
        raise fault("ERR SCRIPT FLUSH only support SYNC|ASYNC option")
    call.hub.scripts.clear()
    return OK


def _not_busy(call: ServerCall, argv: list[bytes]) -> Reply:
    raise fault("NOTBUSY No scripts in execution right now.")


_KILL = "noscript allow_busy"
COMMANDS.serves("script|kill", 2, _KILL, since="2.6.0", summary="Ends a running script.")(_not_busy)
COMMANDS.serves("function|kill", 2, _KILL, since="7.0.0", summary="Ends a running function.")(_not_busy)


@COMMANDS.serves("function|flush", -2, "write noscript", since="7.0.0", summary="Deletes all libraries.")
def flush_functions(call: ServerCall, argv: list[bytes]) -> Reply:
    """FUNCTION FLUSH [ASYNC | SYNC]"""
    if len(argv) > 3 or (len(argv) == 3 and argv[2].upper() not in (b"SYNC", b"ASYNC")):
        raise fault("ERR FUNCTION FLUSH only supports SYNC|ASYNC option")
    return OK


@COMMANDS.serves("function|list", -2, "noscript", since="7.0.0", summary="Lists all libraries.")
def list_functions(call: ServerCall, argv: list[bytes]) -> Reply:
    """FUNCTION LIST [LIBRARYNAME library-name-pattern] [WITHCODE]"""
    return []


@COMMANDS.serves("function|stats", 2, _KILL, since="7.0.0", summary="Describes the running function.")
def stats(call: ServerCall, argv: list[bytes]) -> Reply:
    """FUNCTION STATS"""
    return Pairs([b"running_script", None, b"engines", Pairs()])


@COMMANDS.serves(
    "fcall", -3, _RUNS, find_keys=_keys_after_count, access="RW access update", since="7.0.0",
    summary="Invokes a function.",
)
def fcall(call: ServerCall, argv: list[bytes]) -> Reply:
    """FCALL function numkeys [key [key ...]] [arg [arg ...]]"""
    raise fault("ERR Function not found")


add_help(COMMANDS, "script")
add_help(COMMANDS, "function", since="7.0.0")
