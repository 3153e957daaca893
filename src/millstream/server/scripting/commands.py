"""EVAL and EVALSHA, SCRIPT, FCALL and FUNCTION."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from millstream.engine.faults import bad_subcommand_use, fault
from millstream.engine.outcome import OK, Pairs, Reply
from millstream.engine.text.args import as_integer, integer
from millstream.server.commands.common import add_help
from millstream.server.core.call import ServerCall, ServerRegistry
from millstream.server.scripting.cache import CachedScript

COMMANDS = ServerRegistry("scripting")
COMMANDS.contains("script", since="2.6.0", summary="A container for Lua scripts management commands.")
COMMANDS.contains("function", since="7.0.0", summary="A container for function commands.")

_RUNS: Final = "noscript stale skip_monitor no_mandatory_keys movablekeys script_runner"
_READS: Final = f"readonly {_RUNS}"
_KILL: Final = "noscript allow_busy"
_WRITES: Final = "write noscript"
_MODES: Final = (b"SYNC", b"ASYNC")
_POLICIES: Final = (b"FLUSH", b"APPEND", b"REPLACE")
_NO_SCRIPT: Final = "NOSCRIPT No matching script. Please use EVAL."


def _keys_after_count(argv: list[bytes]) -> list[int]:
    """Which words of EVAL are keys."""
    count = as_integer(argv[2]) if len(argv) > 2 else None
    return list(range(3, 3 + count)) if count is not None and 0 <= count <= len(argv) - 3 else []


def _check_count(argv: list[bytes], count: int) -> int:
    """How many of the words behind it are keys."""
    if count > len(argv) - 3:
        raise fault("ERR Number of keys can't be greater than number of args")
    if count < 0:
        raise fault("ERR Number of keys can't be negative")
    return count


def _show(call: ServerCall, argv: list[bytes]) -> None:
    """Show the call to those who monitor, before the commands of the script are."""
    if call.hub.monitors:
        row = COMMANDS.commands[argv[0].lower()]
        call.hub.show(call.session, replace(row, flags=row.flags - {"skip_monitor"}), argv)


# Scripts


def _run(call: ServerCall, script: CachedScript | None, argv: list[bytes], *, is_read_only: bool) -> Reply:
    """Run a script; None is the one that is the second word."""
    count = _check_count(argv, integer(argv[2]))
    scripts = call.hub.scripts
    if script is None:
        script = scripts.load(argv[1], is_loaded=False)
    return scripts.run(call, script, argv[3 : 3 + count], argv[3 + count :], is_read_only=is_read_only)


def _run_loaded(call: ServerCall, argv: list[bytes], *, is_read_only: bool) -> Reply:
    _show(call, argv)
    script = call.hub.scripts.find(argv[1])
    if script is None:
        raise fault(_NO_SCRIPT)
    return _run(call, script, argv, is_read_only=is_read_only)


@COMMANDS.serves(
    "eval",
    -3,
    _RUNS,
    find_keys=_keys_after_count,
    access="RW access update",
    since="2.6.0",
    summary="Executes a server-side Lua script.",
)
def eval_(call: ServerCall, argv: list[bytes]) -> Reply:
    """EVAL script numkeys [key [key ...]] [arg [arg ...]]"""
    _show(call, argv)
    return _run(call, None, argv, is_read_only=False)


@COMMANDS.serves(
    "eval_ro",
    -3,
    _READS,
    find_keys=_keys_after_count,
    access="RO access",
    since="7.0.0",
    summary="Executes a read-only server-side Lua script.",
)
def eval_ro(call: ServerCall, argv: list[bytes]) -> Reply:
    """EVAL_RO script numkeys [key [key ...]] [arg [arg ...]]"""
    _show(call, argv)
    return _run(call, None, argv, is_read_only=True)


@COMMANDS.serves(
    "evalsha",
    -3,
    _RUNS,
    find_keys=_keys_after_count,
    access="RW access update",
    since="2.6.0",
    summary="Executes a server-side Lua script by SHA1 digest.",
)
def evalsha(call: ServerCall, argv: list[bytes]) -> Reply:
    """EVALSHA sha1 numkeys [key [key ...]] [arg [arg ...]]"""
    return _run_loaded(call, argv, is_read_only=False)


@COMMANDS.serves(
    "evalsha_ro",
    -3,
    _READS,
    find_keys=_keys_after_count,
    access="RO access",
    since="7.0.0",
    summary="Executes a read-only server-side Lua script by SHA1 digest.",
)
def evalsha_ro(call: ServerCall, argv: list[bytes]) -> Reply:
    """EVALSHA_RO sha1 numkeys [key [key ...]] [arg [arg ...]]"""
    return _run_loaded(call, argv, is_read_only=True)


@COMMANDS.serves("script|load", 3, "noscript stale", since="2.6.0", summary="Loads a script.")
def load(call: ServerCall, argv: list[bytes]) -> Reply:
    """SCRIPT LOAD script"""
    return call.hub.scripts.load(argv[2], is_loaded=True).sha


@COMMANDS.serves("script|exists", -3, "noscript", since="2.6.0", summary="Tells which scripts are loaded.")
def exists(call: ServerCall, argv: list[bytes]) -> Reply:
    """SCRIPT EXISTS sha1 [sha1 ...]"""
    return [int(sha in call.hub.scripts) for sha in argv[2:]]


@COMMANDS.serves("script|flush", -2, "noscript", since="2.6.0", summary="Forgets all scripts.")
def flush(call: ServerCall, argv: list[bytes]) -> Reply:
    """SCRIPT FLUSH [ASYNC | SYNC]"""
    if len(argv) > 3 or (len(argv) == 3 and argv[2].upper() not in _MODES):
        raise fault("ERR SCRIPT FLUSH only support SYNC|ASYNC option")
    call.hub.scripts.clear()
    return OK


@COMMANDS.serves("script|debug", 3, "noscript", since="3.2.0", summary="Sets the debug mode: there is none.")
def debug(call: ServerCall, argv: list[bytes]) -> Reply:
    """SCRIPT DEBUG <YES | SYNC | NO>"""
    if argv[2].upper() not in (b"YES", b"SYNC", b"NO"):
        raise fault("ERR Use SCRIPT DEBUG YES/SYNC/NO")
    if argv[2].upper() != b"NO":
        raise fault("ERR scripts cannot be debugged here")
    return OK


@COMMANDS.serves("script|kill", 2, _KILL, since="2.6.0", summary="Ends a running script.")
def kill(call: ServerCall, argv: list[bytes]) -> Reply:
    """SCRIPT KILL"""
    call.hub.runner.kill(is_function=False)
    return OK


@COMMANDS.serves("function|kill", 2, _KILL, since="7.0.0", summary="Ends a running function.")
def kill_function(call: ServerCall, argv: list[bytes]) -> Reply:
    """FUNCTION KILL"""
    call.hub.runner.kill(is_function=True)
    return OK


# Functions


def _call(call: ServerCall, argv: list[bytes], *, is_read_only: bool) -> Reply:
    _show(call, argv)
    libraries = call.hub.libraries
    if argv[1] not in libraries:
        raise fault("ERR Function not found")
    count = _check_count(argv, integer(argv[2], "ERR Bad number of keys provided"))
    return libraries.call(call, argv, argv[3 : 3 + count], argv[3 + count :], is_read_only=is_read_only)


@COMMANDS.serves(
    "fcall",
    -3,
    _RUNS,
    find_keys=_keys_after_count,
    access="RW access update",
    since="7.0.0",
    summary="Invokes a function.",
)
def fcall(call: ServerCall, argv: list[bytes]) -> Reply:
    """FCALL function numkeys [key [key ...]] [arg [arg ...]]"""
    return _call(call, argv, is_read_only=False)


@COMMANDS.serves(
    "fcall_ro",
    -3,
    _READS,
    find_keys=_keys_after_count,
    access="RO access",
    since="7.0.0",
    summary="Invokes a read-only function.",
)
def fcall_ro(call: ServerCall, argv: list[bytes]) -> Reply:
    """FCALL_RO function numkeys [key [key ...]] [arg [arg ...]]"""
    return _call(call, argv, is_read_only=True)


def _changed(call: ServerCall, argv: list[bytes]) -> None:
    """Libraries are kept by the commands that made them."""
    call.log(*argv)
    call.dirty += 1


@COMMANDS.serves("function|load", -3, "write denyoom noscript", since="7.0.0", summary="Creates a library.")
def load_library(call: ServerCall, argv: list[bytes]) -> Reply:
    """FUNCTION LOAD [REPLACE] function-code"""
    for option in argv[2:-1]:
        if option.upper() != b"REPLACE":
            raise fault(b"ERR Unknown option given: " + option)
    name = call.hub.libraries.load(argv[-1], replace=len(argv) > 3)
    _changed(call, argv)
    return name


@COMMANDS.serves("function|delete", 3, _WRITES, since="7.0.0", summary="Deletes a library.")
def delete(call: ServerCall, argv: list[bytes]) -> Reply:
    """FUNCTION DELETE library-name"""
    call.hub.libraries.delete(argv[2])
    _changed(call, argv)
    return OK


@COMMANDS.serves("function|flush", -2, _WRITES, since="7.0.0", summary="Deletes all libraries.")
def flush_functions(call: ServerCall, argv: list[bytes]) -> Reply:
    """FUNCTION FLUSH [ASYNC | SYNC]"""
    if len(argv) > 3:
        raise bad_subcommand_use("function", argv[1])
    if len(argv) == 3 and argv[2].upper() not in _MODES:
        raise fault("ERR FUNCTION FLUSH only supports SYNC|ASYNC option")
    call.hub.libraries.clear()
    _changed(call, argv)
    return OK


@COMMANDS.serves("function|list", -2, "noscript", since="7.0.0", summary="Lists all libraries.")
def list_functions(call: ServerCall, argv: list[bytes]) -> Reply:
    """FUNCTION LIST [LIBRARYNAME library-name-pattern] [WITHCODE]"""
    pattern = None
    with_code = False
    rest = argv[2:]
    while rest:
        word = rest.pop(0)
        if word.upper() == b"WITHCODE" and not with_code:
            with_code = True
        elif word.upper() == b"LIBRARYNAME" and pattern is None:
            if not rest:
                raise fault("ERR library name argument was not given")
            pattern = rest.pop(0)
        else:
            raise fault(b"ERR Unknown argument " + word)
    return call.hub.libraries.describe(pattern, with_code=with_code)


@COMMANDS.serves("function|dump", 2, "noscript", since="7.0.0", summary="Dumps all libraries into a payload.")
def dump(call: ServerCall, argv: list[bytes]) -> Reply:
    """FUNCTION DUMP"""
    return call.hub.libraries.dump()


@COMMANDS.serves(
    "function|restore", -3, "write denyoom noscript", since="7.0.0", summary="Restores libraries from a payload."
)
def restore(call: ServerCall, argv: list[bytes]) -> Reply:
    """FUNCTION RESTORE serialized-value [FLUSH | APPEND | REPLACE]"""
    if len(argv) > 4:
        raise bad_subcommand_use("function", argv[1])
    policy = argv[3].upper() if len(argv) > 3 else b"APPEND"
    if policy not in _POLICIES:
        raise fault("ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.")
    call.hub.libraries.restore(argv[2], policy)
    _changed(call, argv)
    return OK


@COMMANDS.serves("function|stats", 2, _KILL, since="7.0.0", summary="Describes the running function.")
def stats(call: ServerCall, argv: list[bytes]) -> Reply:
    """FUNCTION STATS"""
    libraries = call.hub.libraries
    counts = Pairs([b"libraries_count", len(libraries), b"functions_count", libraries.functions])
    return Pairs([b"running_script", call.hub.runner.running(), b"engines", Pairs([b"LUA", counts])])


add_help(COMMANDS, "script")
add_help(COMMANDS, "function", since="7.0.0")
