"""Permissions: the rules of ACL SETUSER about commands, keys and channels, and whether they allow a call.

    Selector ── commands   all or none, and the exceptions
             ├─ keys       patterns, and the access to a matching key
             └─ channels   patterns

Rules are applied one after the other and not kept. ACL LIST shows a separate list of them, shortened as Redis does.
The module `users` has the users.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag
from functools import lru_cache
from typing import Final, Protocol

from millstream.engine.table import Command
from millstream.engine.text.glob import compiled
from millstream.server.access import redis_names

CATEGORIES: Final = (
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "array",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
)


class Why(Enum):
    """The reason why a rule is refused, in Redis's words."""

    UNKNOWN = "Unknown command or category name in ACL"
    SYNTAX = "Syntax error"
    KEYS_ARE_ALL = (
        "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. "
        "Try 'resetkeys' to start with an empty list of patterns"
    )
    CHANNELS_ARE_ALL = (
        "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any effect. "
        "Try 'resetchannels' to start with an empty list of channels"
    )
    NO_SUCH_PASSWORD = "The password you are trying to remove from the user does not exist"
    BAD_HASH = "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
    FIRST_WORD_OF_SUBCOMMAND = "Allowing first-arg of a subcommand is not supported"


class BadRule(Exception):
    """A rule that cannot be applied. It may contain a password, so the text gives the reason and not the rule."""

    def __init__(self, rule: bytes, why: Why) -> None:
        super().__init__(why.value)
        self.rule = rule
        self.why = why


class Kind(IntEnum):
    """What a call is denied for. Of several kinds the highest is reported."""

    COMMAND = 1
    KEY = 2
    CHANNEL = 4


@dataclass(frozen=True, slots=True)
class Denial:
    """The reason why a call is denied."""

    kind: Kind
    at: int  # the word of the call that is denied; 0 is the command itself
    what: bytes  # the denied command, key or channel


class Access(IntFlag):
    """The access that a user has to a key."""

    NOTHING = 0
    READ = 1
    WRITE = 2
    BOTH = 3


# Commands with channels: positions of the first and last one (-1: the end), and whether they are patterns.
_CHANNELS: Final[dict[str, tuple[int, int, bool]]] = {
    "publish": (1, 1, False),
    "spublish": (1, 1, False),
    "subscribe": (1, -1, False),
    "ssubscribe": (1, -1, False),
    "psubscribe": (1, -1, True),
}
_WRITES: Final = frozenset({"insert", "delete", "update"})
_BLANK: Final = re.compile(rb"[\s\0]")
# the tilde may be missing when nothing follows it
_KEY_RULE: Final = re.compile(rb"(?:%(R|W|RW|WR)(?=~|$)|(?=~))~?(.*)", re.IGNORECASE | re.DOTALL)


def has_blank(name: bytes) -> bool:
    """Return whether a name has white space or a NUL, which user names and patterns may not have."""
    return _BLANK.search(name) is not None


@lru_cache(maxsize=64)
def needed(flags: tuple[str, ...]) -> Access:
    """Return the access that a command with these key flags needs."""
    access = Access.READ if "access" in flags else Access.NOTHING
    return access | Access.WRITE if _WRITES.intersection(flags) else access


class Catalogue:
    """The commands that rules can name, by full name, with their categories."""

    __slots__ = ("_families", "_members")

    def __init__(self, table: dict[bytes, Command]) -> None:
        self._families: dict[str, list[str]] = {}  # a name, and the name with those of its subcommands
        self._members: dict[str, dict[str, None]] = {category: {} for category in CATEGORIES}
        for row in table.values():
            self._add(row)
            for sub in row.subcommands.values():
                self._add(sub)
        for name in sorted(redis_names.NAMES):  # a container comes before its subcommands
            container, has_sub, _ = name.partition("|")
            self._families.setdefault(name, [name])
            if has_sub and name not in self._families[container]:
                self._families[container].append(name)

    def _add(self, row: Command) -> None:
        self._families[row.name] = [row.name, *(sub.name for sub in row.subcommands.values())]
        for category in row.categories:
            self._members[category.removeprefix("@")][row.name] = None

    def __contains__(self, name: str) -> bool:
        return name in self._families

    def has_subcommands(self, name: str) -> bool:
        return len(self._families[name]) > 1

    def family(self, name: str) -> list[str]:
        """Return a command and its subcommands."""
        return self._families[name]

    def members(self, category: str) -> list[str] | None:
        """Return the commands of this server in a category, or None if there is no such category."""
        members = self._members.get(category)
        return None if members is None else list(members)


class Rulebook(Protocol):
    """What rules need from the server."""

    def catalogue(self) -> Catalogue:
        """Return the commands. Only rules about single commands or categories need them."""
        ...

    @property
    def opens_channels(self) -> bool:
        """Return whether a new user may listen to all channels (`acl-pubsub-default`)."""
        ...


class Selector:
    """Permissions for commands, keys and channels that apply together."""

    __slots__ = (
        "_book",
        "_exceptions",
        "_first_words",
        "_rules",
        "all_channels",
        "all_keys",
        "allows_rest",
        "channels",
        "keys",
    )

    def __init__(self, book: Rulebook) -> None:
        self._book = book
        self.all_channels = book.opens_channels
        self.all_keys = False
        self.keys: dict[bytes, Access] = {}  # pattern to the access it allows
        self.channels: dict[bytes, None] = {}
        self.allow_all(False)

    def copy(self) -> Selector:
        """Return an independent copy."""
        twin = Selector(self._book)
        twin.all_keys, twin.all_channels, twin.allows_rest = self.all_keys, self.all_channels, self.allows_rest
        twin.keys, twin.channels = self.keys.copy(), self.channels.copy()
        twin._exceptions, twin._rules = self._exceptions.copy(), self._rules.copy()
        twin._first_words = {name: words.copy() for name, words in self._first_words.items()}
        return twin

    @property
    def is_unrestricted(self) -> bool:
        """Return whether every call is allowed."""
        return self.all_keys and self.all_channels and self.allows_rest and not self._exceptions

    # Rules

    def apply(self, rule: bytes) -> None:
        """Apply a rule; the empty rule has no effect. Raises BadRule."""
        plain = _PLAIN.get(rule.lower())
        if plain is not None:
            plain(self)
            return
        match rule[:1]:
            case b"~" | b"%":
                self._allow_keys(rule)
            case b"&":
                self._allow_channels(rule)
            case b"+" if rule[1:2] != b"@":
                self._allow_command(rule)
            case b"-" if rule[1:2] != b"@":
                self._deny_command(rule)
            case b"+" | b"-":
                self._follow_category(rule)
            case b"":
                pass
            case _:
                raise BadRule(rule, Why.SYNTAX)

    def allow_all(self, allow: bool) -> None:
        """Apply `+@all` or `-@all`, which replaces all rules about commands."""
        self.allows_rest = allow
        self._exceptions: set[str] = set()  # commands for which the opposite of `allows_rest` holds
        self._first_words: dict[str, set[bytes]] = {}  # denied commands with the first arguments that are allowed
        self._rules: dict[bytes, bool] = {}  # as shown: a command or category, and whether it is allowed

    def set_keys(self, *, every: bool) -> None:
        """Apply `allkeys` or `resetkeys`."""
        self.all_keys = every
        self.keys.clear()

    def set_channels(self, *, every: bool) -> None:
        """Apply `allchannels` or `resetchannels`."""
        self.all_channels = every
        self.channels.clear()

    def _allow_keys(self, rule: bytes) -> None:
        if self.all_keys:
            raise BadRule(rule, Why.KEYS_ARE_ALL)
        found = _KEY_RULE.fullmatch(rule)
        if found is None or has_blank(found[2]):
            raise BadRule(rule, Why.SYNTAX)
        letters = (found[1] or b"RW").upper()
        access = (Access.READ if b"R" in letters else Access.NOTHING) | (
            Access.WRITE if b"W" in letters else Access.NOTHING
        )
        self.keys[found[2]] = self.keys.get(found[2], Access.NOTHING) | access

    def _allow_channels(self, rule: bytes) -> None:
        if self.all_channels:
            raise BadRule(rule, Why.CHANNELS_ARE_ALL)
        if has_blank(rule):
            raise BadRule(rule, Why.SYNTAX)
        self.channels[rule[1:]] = None

    def _allow_command(self, rule: bytes) -> None:
        name = _name(rule)
        parent, has_sub, sub = name.rpartition("|")
        if not has_sub:
            self._set_family(rule, name, allow=True)
        elif parent not in self._book.catalogue():
            raise BadRule(rule, Why.UNKNOWN)
        elif "|" in parent:
            raise BadRule(rule, Why.FIRST_WORD_OF_SUBCOMMAND)
        elif not sub:
            raise BadRule(rule, Why.SYNTAX)
        elif self._book.catalogue().has_subcommands(parent):
            self._set_family(rule, name, allow=True)
        else:
            self._allow_first_word(rule, parent)
        self._note(rule[1:].lower(), allow=True)

    def _allow_first_word(self, rule: bytes, name: str) -> None:
        """Apply a rule like `+select|0`: a first argument that makes a denied command allowed."""
        if has_blank(rule):  # Redis accepts this rule and then cannot show it
            raise BadRule(rule, Why.SYNTAX)
        self._first_words.setdefault(name, set()).add(rule.lower().partition(b"|")[2])

    def _deny_command(self, rule: bytes) -> None:
        self._set_family(rule, _name(rule), allow=False)
        self._note(rule[1:].lower(), allow=False)

    def _follow_category(self, rule: bytes) -> None:
        allow = rule[:1] == b"+"
        members = self._book.catalogue().members(_name(rule).removeprefix("@"))
        if members is None:
            raise BadRule(rule, Why.UNKNOWN)
        for name in members:
            self._set_family(rule, name, allow=allow)
        self._note(rule[1:].lower(), allow=allow)

    def _set_family(self, rule: bytes, name: str, *, allow: bool) -> None:
        """Allow or deny a command and its subcommands."""
        if name not in self._book.catalogue():
            raise BadRule(rule, Why.UNKNOWN)
        family = self._book.catalogue().family(name)
        if allow == self.allows_rest:
            self._exceptions.difference_update(family)
        else:
            self._exceptions.update(family)
        self._first_words.pop(name, None)

    def _note(self, subject: bytes, *, allow: bool) -> None:
        """Show this rule last, and no longer those about the same command or its subcommands."""
        below = subject + b"|"
        self._rules = {
            noted: allowed for noted, allowed in self._rules.items() if noted != subject and not noted.startswith(below)
        }
        self._rules[subject] = allow

    # What they allow

    def denial(self, row: Command, argv: list[bytes]) -> Denial | None:
        """Return why this selector denies a call, or None."""
        if not self._allows_command(row, argv):
            return Denial(Kind.COMMAND, 0, row.name.encode())
        if not self.all_keys and "not_key" not in row.keys.flags:
            for at in row.key_positions(argv):
                if not self.allows_key(argv[at], needed(row.key_flags(argv, at))):
                    return Denial(Kind.KEY, at, argv[at])
            if row.reads_unnamed is not None and row.reads_unnamed(argv) and not self._reads_every_key():
                return Denial(Kind.KEY, len(argv), b"*")
        channels = None if self.all_channels else _CHANNELS.get(row.name)
        if channels is not None:
            first, last, is_pattern = channels
            for at in range(first, len(argv) if last < 0 else last + 1):
                if not self.allows_channel(argv[at], is_pattern=is_pattern):
                    return Denial(Kind.CHANNEL, at, argv[at])
        return None

    def _allows_command(self, row: Command, argv: list[bytes]) -> bool:
        if (row.name in self._exceptions) != self.allows_rest or "no_auth" in row.flags:
            return True
        words = self._first_words.get(row.name)
        return words is not None and len(argv) > 1 and argv[1].lower() in words

    def allows_key(self, key: bytes, access: Access) -> bool:
        """Return whether one pattern matches the key and allows all of this access, which may be no access at all."""
        return self.all_keys or any(
            allowed & access == access and compiled(pattern)(key) for pattern, allowed in self.keys.items()
        )

    def _reads_every_key(self) -> bool:
        return self.all_keys or bool(self.keys.get(b"*", Access.NOTHING) & Access.READ)

    def allows_channel(self, channel: bytes, *, is_pattern: bool) -> bool:
        """Return whether a channel is allowed. A pattern to subscribe to must be literally among the allowed ones."""
        if self.all_channels:
            return True
        if is_pattern:
            return channel in self.channels
        return any(compiled(pattern)(channel) for pattern in self.channels)

    # What is shown of them

    def commands_text(self) -> bytes:
        """Return the rules about commands, as GETUSER shows them."""
        rules = [b"+@all" if self.allows_rest else b"-@all"]
        rules += [(b"+" if allow else b"-") + subject for subject, allow in self._rules.items()]
        return b" ".join(rules)

    def keys_text(self) -> bytes:
        if self.all_keys:
            return b"~*"
        return b" ".join(_ACCESS_TEXTS[access] + pattern for pattern, access in self.keys.items())

    def channels_text(self) -> bytes:
        return b"&*" if self.all_channels else b" ".join(b"&" + pattern for pattern in self.channels)

    def describe(self) -> bytes:
        """Return rules that build an equal selector."""
        reset = b"" if self.all_channels else b"resetchannels"
        parts = (self.keys_text(), reset, self.channels_text(), self.commands_text())
        return b" ".join(filter(None, parts))


_ACCESS_TEXTS: Final = {Access.READ: b"%R~", Access.WRITE: b"%W~", Access.BOTH: b"~"}
_PLAIN: Final[dict[bytes, Callable[[Selector], None]]] = {
    b"allkeys": lambda selector: selector.set_keys(every=True),
    b"~*": lambda selector: selector.set_keys(every=True),
    b"resetkeys": lambda selector: selector.set_keys(every=False),
    b"allchannels": lambda selector: selector.set_channels(every=True),
    b"&*": lambda selector: selector.set_channels(every=True),
    b"resetchannels": lambda selector: selector.set_channels(every=False),
    b"allcommands": lambda selector: selector.allow_all(True),
    b"+@all": lambda selector: selector.allow_all(True),
    b"nocommands": lambda selector: selector.allow_all(False),
    b"-@all": lambda selector: selector.allow_all(False),
}


def _name(rule: bytes) -> str:
    """Return the command or category that a rule names."""
    return rule[1:].lower().decode("latin-1")
