"""COMMAND: the command table as clients and people read it."""

from __future__ import annotations

from typing import Final

from millstream.engine.faults import SYNTAX, fault
from millstream.engine.outcome import Members, Pairs, Reply, Simple
from millstream.engine.table import Command
from millstream.engine.text.glob import compiled
from millstream.engine.text.syntax import Argument, arguments
from millstream.server.commands.common import add_help
from millstream.server.commands.hints import KEY_NOTES, SORT_BY_NOTE, SORT_STORE_NOTE, TIPS
from millstream.server.core.call import ServerCall, ServerRegistry

COMMANDS = ServerRegistry("server")
_FLAGS = "loading stale"

# The orders in which Redis lists flags and categories.
_FLAG_ORDER: Final = (
    "write",
    "readonly",
    "denyoom",
    "module",
    "admin",
    "pubsub",
    "noscript",
    "blocking",
    "loading",
    "stale",
    "skip_monitor",
    "skip_slowlog",
    "asking",
    "fast",
    "no_auth",
    "may_replicate",
    "sentinel",
    "only_sentinel",
    "no_mandatory_keys",
    "protected",
    "no_async_loading",
    "no_multi",
    "allow_busy",
    "movablekeys",
    "script_runner",
)
_CATEGORY_ORDER: Final = (
    "@keyspace",
    "@read",
    "@write",
    "@set",
    "@sortedset",
    "@list",
    "@hash",
    "@string",
    "@bitmap",
    "@hyperloglog",
    "@geo",
    "@stream",
    "@pubsub",
    "@admin",
    "@fast",
    "@slow",
    "@blocking",
    "@dangerous",
    "@connection",
    "@transaction",
    "@scripting",
)

_table: dict[bytes, Command] = {}


def publish(table: dict[bytes, Command]) -> None:
    """Tell this module the whole table; it is a part of it."""
    _table.update(table)


def _row(name: bytes) -> Command | None:
    """Find a row by its full name; a subcommand's is `xgroup|create`."""
    container, _, sub = name.lower().partition(b"|")
    row = _table.get(container)
    return row.subcommands.get(sub) if row is not None and sub else row


def describe(row: Command) -> Reply:
    """Describe a command as COMMAND does."""
    subcommands = [describe(sub) for sub in row.subcommands.values()]
    return [
        row.name.encode(),
        row.arity,
        Members(Simple(flag.encode()) for flag in _FLAG_ORDER if flag in row.flags),
        row.keys.first,
        row.keys.last,
        row.keys.step,
        Members(Simple(category.encode()) for category in _CATEGORY_ORDER if category in row.categories),
        Members(tip.encode() for tip in TIPS.get(row.name, ())),
        Members(_key_specs(row)),
        subcommands or Members(),
    ]


# Commands whose first word is the number of keys.
_COUNT_FIRST: Final = frozenset(
    {"lmpop", "msetex", "sdiffcard", "sintercard", "sunioncard", "zdiff", "zinter", "zintercard", "zmpop", "zunion"}
)


def _key_specs(row: Command) -> list[Reply]:
    """Where the keys of a command stand, in the form of Redis 7."""
    keys = row.keys
    if row.name in ("xread", "xreadgroup"):
        begin = _typed(b"keyword", keyword=b"STREAMS", startfrom=1 if row.name == "xread" else 4)
        return [_key_spec(row, (*keys.flags, "incomplete"), begin, _range(-1, 1, 2))]
    if row.reads_unnamed is not None:
        return _sort_specs(row)
    if row.find_keys is not None:
        counted = _typed(b"keynum", keynumidx=0, firstkey=1, keystep=2 if row.name == "msetex" else 1)
        if keys.rest_flags:
            first = _key_spec(row, keys.flags, _typed(b"index", index=1), _range(0, 1, 0))
            return [first, _key_spec(row, keys.rest_flags, _typed(b"index", index=2), counted)]
        at = 1 if row.name in _COUNT_FIRST else 2
        return [_key_spec(row, keys.flags, _typed(b"index", index=at), counted)]
    if not keys.first:
        return []
    begin = _typed(b"index", index=keys.first)
    if keys.rest_flags:
        second = _typed(b"index", index=keys.first + 1)
        rest = _range(-1 if keys.last < 0 else 0, 1, 0)
        return [_key_spec(row, keys.flags, begin, _range(0, 1, 0)), _key_spec(row, keys.rest_flags, second, rest)]
    last = keys.last - keys.first if keys.last >= 0 else keys.last
    return [_key_spec(row, keys.flags, begin, _range(last, keys.step, 0))]


def _sort_specs(row: Command) -> list[Reply]:
    """Return the key specifications of SORT, whose further keys cannot be told from its words."""
    keys, unknown = row.keys, _typed(b"unknown")
    specs: list[Reply] = [_key_spec(row, keys.flags, _typed(b"index", index=1), _range(0, 1, 0))]
    specs.append(_noted(SORT_BY_NOTE, _key_spec(row, keys.flags, unknown, unknown)))
    if keys.rest_flags:
        specs.append(_noted(SORT_STORE_NOTE, _key_spec(row, keys.rest_flags, unknown, unknown)))
    return specs


def _noted(note: str, spec: Pairs) -> Reply:
    return Pairs([b"notes", note.encode(), *spec])


def _key_spec(row: Command, flags: tuple[str, ...], begin: Reply, find: Reply) -> Pairs:
    spec = Pairs()
    if note := KEY_NOTES.get(row.name):
        spec += [b"notes", note.encode()]
    spec += [b"flags", Members(Simple(flag.encode()) for flag in flags), b"begin_search", begin, b"find_keys", find]
    return spec


def _range(last: int, step: int, limit: int) -> Reply:
    return _typed(b"range", lastkey=last, keystep=step, limit=limit)


def _typed(kind: bytes, **fields: Reply) -> Reply:
    spec = Pairs()
    for name, value in fields.items():
        spec += [name.encode(), value]
    return Pairs([b"type", kind, b"spec", spec])


@COMMANDS.serves("command", -1, _FLAGS, group="connection", since="2.8.13", summary="Returns details of all commands.")
def all_(call: ServerCall, argv: list[bytes]) -> Reply:
    """COMMAND"""
    return [describe(row) for row in _table.values()]


@COMMANDS.serves("command|count", 2, _FLAGS, group="connection", since="2.8.13", summary="Returns a count of commands.")
def count(call: ServerCall, argv: list[bytes]) -> Reply:
    """COMMAND COUNT"""
    return len(_table)


@COMMANDS.serves(
    "command|info", -2, _FLAGS, group="connection", since="2.8.13", summary="Returns details of some commands."
)
def info(call: ServerCall, argv: list[bytes]) -> Reply:
    """COMMAND INFO [command-name [command-name ...]]"""
    if len(argv) == 2:
        return all_(call, argv)  # type: ignore[return-value]
    return [None if (row := _row(name)) is None else describe(row) for name in argv[2:]]


@COMMANDS.serves(
    "command|docs", -2, _FLAGS, group="connection", since="7.0.0", summary="Returns documentation of commands."
)
def docs(call: ServerCall, argv: list[bytes]) -> Reply:
    """COMMAND DOCS [command-name [command-name ...]]"""
    documented = Pairs()
    for row in map(_row, argv[2:] or list(_table)):
        if row is not None:
            documented += [row.name.encode(), _documentation(row)]
    return documented


def _argument(argument: Argument) -> Reply:
    """Describe an argument as redis-cli reads it for HELP."""
    told = Pairs([b"name", argument.name.lower().encode(), b"type", argument.kind.encode()])
    if not argument.parts and argument.kind != "pure-token":
        told += [b"display_text", argument.name.encode()]
    if argument.token:
        told += [b"token", argument.token.encode()]
    flags = [
        name
        for name, is_set in (
            (b"optional", argument.is_optional),
            (b"multiple", argument.is_multiple),
            (b"multiple_token", argument.repeats_token),
        )
        if is_set
    ]
    if flags:
        told += [b"flags", Members(map(Simple, flags))]
    if argument.parts:
        told += [b"arguments", [_argument(part) for part in argument.parts]]
    return told


def _documentation(row: Command) -> Reply:
    text = Pairs(
        [
            b"summary",
            row.summary.encode(),
            b"since",
            row.since.encode(),
            b"group",
            row.group.replace("_", "-").encode(),
            b"syntax",
            row.syntax.encode(),
        ]
    )
    if found := arguments(row.syntax, row.name.upper().replace("|", " ")):
        text += [b"arguments", [_argument(argument) for argument in found]]
    if row.subcommands:
        below = Pairs()
        for sub in row.subcommands.values():
            below += [sub.name.encode(), _documentation(sub)]
        text += [b"subcommands", below]
    return text


@COMMANDS.serves(
    "command|list", -2, _FLAGS, group="connection", since="7.0.0", summary="Returns a list of command names."
)
def list_(call: ServerCall, argv: list[bytes]) -> Reply:
    """COMMAND LIST [FILTERBY <MODULE module-name | ACLCAT category | PATTERN pattern>]"""
    rows = {row.name.encode(): row for top in _table.values() for row in (top, *top.subcommands.values())}
    names = list(rows)
    if len(argv) == 2:
        return list[Reply](names)
    if len(argv) != 5 or argv[2].upper() != b"FILTERBY":
        raise fault(SYNTAX)
    match argv[3].upper():
        case b"MODULE":
            return []
        case b"ACLCAT":
            category = "@" + argv[4].lower().decode("latin-1")
            return [name for name in names if category in rows[name].categories]
        case b"PATTERN":
            fits = compiled(argv[4])
            return [name for name in names if fits(name)]
    raise fault(SYNTAX)


def _keys_of(argv: list[bytes]) -> tuple[Command, list[int]]:
    """Return the command of a call and the positions of its keys."""
    row = _table.get(argv[0].lower())
    if row is not None and row.subcommands and len(argv) > 1:
        row = row.subcommands.get(argv[1].lower())
    if row is None:
        raise fault("ERR Invalid command specified")
    if row.find_keys is None and (not row.keys.first or "not_key" in row.keys.flags):
        raise fault("ERR The command has no key arguments")
    if not row.fits(len(argv)):
        raise fault("ERR Invalid number of arguments specified for command")
    places = row.key_positions(argv)
    if not places and "no_mandatory_keys" not in row.flags:
        raise fault("ERR Invalid arguments specified for command")
    return row, places


@COMMANDS.serves(
    "command|getkeys", -3, _FLAGS, group="connection", since="2.8.13", summary="Extracts the keys of a call."
)
def getkeys(call: ServerCall, argv: list[bytes]) -> Reply:
    """COMMAND GETKEYS command [arg [arg ...]]"""
    return [argv[2 + at] for at in _keys_of(argv[2:])[1]]


@COMMANDS.serves(
    "command|getkeysandflags",
    -3,
    _FLAGS,
    group="connection",
    since="7.0.0",
    summary="Extracts the keys of a call and what is done to them.",
)
def getkeysandflags(call: ServerCall, argv: list[bytes]) -> Reply:
    """COMMAND GETKEYSANDFLAGS command [arg [arg ...]]"""
    words = argv[2:]
    row, places = _keys_of(words)
    return [[words[at], Members(Simple(flag.encode()) for flag in row.key_flags(words, at))] for at in places]


add_help(COMMANDS, "command", group="connection")
