"""Users: their passwords and the selectors with their permissions.

User ── passwords   as SHA-256
  └──── selectors   the root one, and one for each `( … )`; a call is allowed if one of them allows all of it
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from millstream.engine.table import Command
from millstream.server.access.permissions import BadRule, Denial, Rulebook, Selector, Why

_HASH: Final = re.compile(rb"[0-9a-f]{64}")


class Unmatched(Exception):
    """A selector with an opening parenthesis and no closing one."""

    def __init__(self, rule: bytes) -> None:
        super().__init__("Unmatched parenthesis")
        self.rule = rule


def hashed(password: bytes) -> bytes:
    """Return the hash that is stored for a password."""
    return sha256(password).hexdigest().encode()


class User:
    """A user who may log in, with their permissions."""

    __slots__ = ("_book", "_passwords", "is_on", "name", "needs_no_password", "sanitizes", "selectors")

    def __init__(self, name: bytes, book: Rulebook) -> None:
        """Create a user without any permission."""
        self.name = name
        self._book = book
        self.reset()

    def reset(self) -> None:
        """Remove all passwords and permissions."""
        self.is_on = False
        self.needs_no_password = False
        self.sanitizes = True  # shown without effect: RESTORE always checks its payload
        self._passwords: dict[bytes, None] = {}  # SHA-256, in hexadecimal
        self.selectors = [Selector(self._book)]

    def __repr__(self) -> str:
        return f"User({self.name!r})"  # no hashes

    def copy(self) -> User:
        """Return an independent copy on which rules can be tried."""
        twin = User(self.name, self._book)
        twin.is_on, twin.needs_no_password, twin.sanitizes = self.is_on, self.needs_no_password, self.sanitizes
        twin._passwords = self._passwords.copy()
        twin.selectors = [selector.copy() for selector in self.selectors]
        return twin

    @property
    def root(self) -> Selector:
        """Return the selector of rules outside parentheses."""
        return self.selectors[0]

    @property
    def is_unrestricted(self) -> bool:
        """Return whether every call is allowed."""
        return any(selector.is_unrestricted for selector in self.selectors)

    @property
    def passwords(self) -> list[bytes]:
        """Return the hashes, oldest first."""
        return list(self._passwords)

    def accepts(self, password: bytes) -> bool:
        """Return whether the user may log in with this password. The time it takes does not depend on the passwords."""
        digest = hashed(password)
        fits = False
        for known in self._passwords:
            fits |= compare_digest(known, digest)
        return self.is_on and (fits or self.needs_no_password)

    # Rules

    def apply(self, rule: bytes) -> None:
        """Apply a rule of SETUSER. Raises BadRule."""
        match rule.lower():
            case b"on" | b"off" as word:
                self.is_on = word == b"on"
            case b"nopass":
                self._passwords.clear()
                self.needs_no_password = True
            case b"resetpass":
                self._passwords.clear()
                self.needs_no_password = False
            case b"sanitize-payload" | b"skip-sanitize-payload" as word:
                self.sanitizes = word == b"sanitize-payload"
            case b"clearselectors":
                del self.selectors[1:]
            case b"reset":
                self.reset()
            case _ if rule[:1] in (b">", b"#", b"<", b"!"):
                self._follow_password(rule)
            case _ if rule[:1] == b"(" and rule[-1:] == b")" and len(rule) > 1:
                self._add_selector(rule)
            case _:
                self.root.apply(rule)

    def allow_everything(self) -> None:
        """Become like the initial default user: on, without a password, everything allowed."""
        for rule in (b"on", b"nopass", b"allkeys", b"allchannels", b"allcommands"):
            self.apply(rule)

    def _follow_password(self, rule: bytes) -> None:
        """Add a password for `>password` or `#hash`; remove it for `<password` or `!hash`."""
        is_hash = rule[:1] in (b"#", b"!")
        if is_hash and not _HASH.fullmatch(rule[1:]):
            raise BadRule(rule, Why.BAD_HASH)
        digest = rule[1:] if is_hash else hashed(rule[1:])
        if rule[:1] in (b">", b"#"):
            self._passwords.setdefault(digest)
            self.needs_no_password = False
        elif digest in self._passwords:
            del self._passwords[digest]
        else:
            raise BadRule(rule, Why.NO_SUCH_PASSWORD)

    def _add_selector(self, rule: bytes) -> None:
        selector = Selector(self._book)
        for part in rule[1:-1].split(b" "):
            try:
                selector.apply(part)
            except BadRule as error:
                raise BadRule(rule, error.why) from None
        self.selectors.append(selector)

    # What they allow

    def denial(self, row: Command, argv: list[bytes]) -> Denial | None:
        """Return why a call is denied, or None.

        Of several selectors that deny it, the denial that came furthest is reported: a channel before a key before the
        command, and of keys the later one.
        """
        told: Denial | None = None
        for selector in self.selectors:
            denial = selector.denial(row, argv)
            if denial is None:
                return None
            if told is None or (denial.kind, denial.at) > (told.kind, told.at):
                told = denial
        return told

    def may_listen(self, channels: Iterable[bytes], *, are_patterns: bool = False) -> bool:
        """Return whether the user may subscribe to all of these."""
        return all(
            any(selector.allows_channel(channel, is_pattern=are_patterns) for selector in self.selectors)
            for channel in channels
        )

    # What is shown of them

    @property
    def flags(self) -> list[bytes]:
        """Return the flags as GETUSER shows them."""
        sanitize = b"sanitize-payload" if self.sanitizes else b"skip-sanitize-payload"
        nopass = [b"nopass"] if self.needs_no_password else []
        return [b"on" if self.is_on else b"off", *nopass, sanitize]

    def describe(self) -> bytes:
        """Return the line of ACL LIST, which is also a line of an ACL file."""
        passwords = [b"#" + digest for digest in self._passwords]
        others = [b"(" + selector.describe() + b")" for selector in self.selectors[1:]]
        return b" ".join([b"user", self.name, *self.flags, *passwords, self.root.describe(), *others])


def merged(rules: Iterable[bytes]) -> list[bytes]:
    """Join the words of each selector into one rule. Raises Unmatched if a parenthesis is not closed."""
    found: list[bytes] = []
    opened: list[bytes] = []
    for rule in rules:
        if not opened and not (rule[:1] == b"(" and rule[-1:] != b")"):
            found.append(rule)
            continue
        opened.append(rule)
        if len(opened) > 1 and rule[-1:] == b")":
            found.append(b" ".join(opened))
            opened = []
    if opened:
        raise Unmatched(opened[0])
    return found
