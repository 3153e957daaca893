"""ACL: users, what they may do, and what they were denied."""

from __future__ import annotations

import secrets
from typing import Final

from millstream.engine.faults import bad_subcommand_use, fault, wrong_arity
from millstream.engine.outcome import OK, Members, Pairs, Reply
from millstream.engine.text.args import integer
from millstream.server.access.permissions import CATEGORIES, BadRule, Denial, Kind, Selector, has_blank
from millstream.server.access.users import Unmatched
from millstream.server.commands.common import add_help
from millstream.server.core.call import ServerCall, ServerRegistry

COMMANDS = ServerRegistry("server")
COMMANDS.contains("acl", since="6.0.0", summary="A container for access control commands.")

_PLAIN: Final = "noscript loading stale"
_ADMIN: Final = "admin noscript loading stale"
_BAD_BITS: Final = (
    "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096"
)


@COMMANDS.serves("acl|whoami", 2, _PLAIN, since="6.0.0", summary="Returns the name of this connection's user.")
def whoami(call: ServerCall, argv: list[bytes]) -> Reply:
    """ACL WHOAMI"""
    return call.session.user


@COMMANDS.serves("acl|users", 2, _ADMIN, since="6.0.0", summary="Lists all users by name.")
def users(call: ServerCall, argv: list[bytes]) -> Reply:
    """ACL USERS"""
    return [*sorted(call.hub.access.users)]


@COMMANDS.serves("acl|list", 2, _ADMIN, since="6.0.0", summary="Lists all users with their rules.")
def list_(call: ServerCall, argv: list[bytes]) -> Reply:
    """ACL LIST"""
    return [user.describe() for _, user in sorted(call.hub.access.users.items())]


@COMMANDS.serves("acl|getuser", 3, _ADMIN, since="6.0.0", summary="Returns the rules of a user.")
def getuser(call: ServerCall, argv: list[bytes]) -> Reply:
    """ACL GETUSER username"""
    user = call.hub.access.users.get(argv[2])
    if user is None:
        return None
    return Pairs(
        [
            b"flags",
            Members(user.flags),
            b"passwords",
            [*user.passwords],
            *_shown(user.root),
            b"selectors",
            [Pairs(_shown(selector)) for selector in user.selectors[1:]],
        ]
    )


def _shown(selector: Selector) -> list[Reply]:
    return [b"commands", selector.commands_text(), b"keys", selector.keys_text(), b"channels", selector.channels_text()]


@COMMANDS.serves("acl|setuser", -3, _ADMIN, since="6.0.0", summary="Creates or changes a user, by all rules or none.")
def setuser(call: ServerCall, argv: list[bytes]) -> Reply:
    """ACL SETUSER username [rule [rule ...]]"""
    if has_blank(argv[2]):
        raise fault("ERR Usernames can't contain spaces or null characters")
    call.hub.tracking.broadcast()  # what has changed so far is told by the rules so far
    try:
        call.hub.access.set_user(argv[2], argv[3:])
    except Unmatched as error:
        raise fault(b"ERR Unmatched parenthesis in acl selector starting at '" + _cut(error.rule) + b"'.") from None
    except BadRule as error:
        what = b"ERR Error in ACL SETUSER modifier '" + _cut(error.rule) + b"': "
        raise fault(what + str(error).encode()) from None
    return OK


def _cut(word: bytes) -> bytes:
    """Return a word up to its first NUL, as error texts show it."""
    return word.partition(b"\0")[0]


@COMMANDS.serves("acl|deluser", -3, _ADMIN, since="6.0.0", summary="Deletes users and ends their connections.")
def deluser(call: ServerCall, argv: list[bytes]) -> Reply:
    """ACL DELUSER username [username ...]"""
    return call.hub.access.delete(argv[2:])


@COMMANDS.serves("acl|cat", -2, _PLAIN, since="6.0.0", summary="Lists the categories, or the commands of one.")
def cat(call: ServerCall, argv: list[bytes]) -> Reply:
    """ACL CAT [category]"""
    if len(argv) > 3:
        raise bad_subcommand_use("acl", argv[1])
    if len(argv) == 2:
        return [category.encode() for category in CATEGORIES]
    members = call.hub.access.catalogue().members(argv[2].lower().decode("latin-1"))
    if members is None:
        raise fault(b"ERR Unknown category '" + _cut(argv[2]) + b"'")
    return [name.encode() for name in members]


@COMMANDS.serves("acl|genpass", -2, _PLAIN, since="6.0.0", summary="Makes up a password that nobody will guess.")
def genpass(call: ServerCall, argv: list[bytes]) -> Reply:
    """ACL GENPASS [bits]"""
    if len(argv) > 3:
        raise bad_subcommand_use("acl", argv[1])
    bits = integer(argv[2]) if len(argv) == 3 else 256
    if not 0 < bits <= 4096:
        raise fault(_BAD_BITS)
    digits = (bits + 3) // 4
    return secrets.token_hex((digits + 1) // 2)[:digits].encode()


@COMMANDS.serves("acl|dryrun", -4, _ADMIN, since="7.0.0", summary="Tells whether a user may run a call.")
def dryrun(call: ServerCall, argv: list[bytes]) -> Reply:
    """ACL DRYRUN username command [arg [arg ...]]"""
    user = call.hub.access.users.get(argv[2])
    if user is None:
        raise fault(b"ERR User '" + _cut(argv[2]) + b"' not found")
    words = argv[3:]
    row = call.hub.access.row_of(words)
    if row is None:
        raise fault(b"ERR Command '" + _cut(words[0]) + b"' not found")
    if not row.fits(len(words)):
        raise wrong_arity(row.name)
    denial = user.denial(row, words)
    return OK if denial is None else _explained(user.name, denial)


def _explained(user: bytes, denial: Denial) -> bytes:
    """Format a denial for an administrator."""
    who = b"User " + user + b" has no permissions to "
    match denial.kind:
        case Kind.COMMAND:
            return who + b"run the '" + denial.what + b"' command"
        case Kind.KEY:
            return who + b"access the '" + denial.what + b"' key"
    return who + b"access the '" + denial.what + b"' channel"


@COMMANDS.serves("acl|log", -2, _ADMIN, since="6.0.0", summary="Lists what was denied lately, or clears that list.")
def log(call: ServerCall, argv: list[bytes]) -> Reply:
    """ACL LOG [count | RESET]"""
    if len(argv) > 3:
        raise bad_subcommand_use("acl", argv[1])
    if len(argv) == 3 and argv[2].upper() == b"RESET":
        call.hub.access.log.clear()
        return OK
    count = integer(argv[2]) if len(argv) == 3 else 10
    return [
        Pairs(
            [
                b"count",
                entry.count,
                b"reason",
                entry.reason.encode(),
                b"context",
                entry.context.encode(),
                b"object",
                entry.what,
                b"username",
                entry.user,
                b"age-seconds",
                (call.now_ms - entry.updated_ms) / 1000,
                b"client-info",
                entry.client,
                b"entry-id",
                entry.number,
                b"timestamp-created",
                entry.created_ms,
                b"timestamp-last-updated",
                entry.updated_ms,
            ]
        )
        for entry in call.hub.access.log[: max(count, 0)]
    ]


@COMMANDS.serves("acl|load", 2, _ADMIN, since="6.0.0", summary="Replaces all users by those of the ACL file.")
def load(call: ServerCall, argv: list[bytes]) -> Reply:
    """ACL LOAD"""
    call.hub.access.load()
    return OK


@COMMANDS.serves("acl|save", 2, _ADMIN, since="6.0.0", summary="Writes all users to the ACL file.")
def save(call: ServerCall, argv: list[bytes]) -> Reply:
    """ACL SAVE"""
    call.hub.access.save()
    return OK


add_help(COMMANDS, "acl", since="6.0.0")
