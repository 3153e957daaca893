"""Users, log-in, and the gate that checks every command of a connection.

    AUTH ──▶ AccessControl.log_in ──▶ session.user
    a command ──▶ gate ──▶ User.denial ──▶ NOPERM, and a line of ACL LOG

While every user may run every command, there is no gate. The module `permissions` interprets rules. Passwords are
kept as SHA-256 and compared in constant time; neither passwords nor hashes are ever logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millstream.engine.table import Command
from millstream.errors import CommandError, ConfigError
from millstream.persistence.files import Files, RealFiles, write_file
from millstream.server.access.permissions import BadRule, Catalogue, Denial, Kind, Why, has_blank
from millstream.server.access.users import Unmatched, User, merged

if TYPE_CHECKING:
    from millstream.server.core.interfaces import Client, Server

logger = logging.getLogger(__name__)

DEFAULT_USER: Final = b"default"
REDACTED: Final = b"(redacted)"
_GROUPED_MS: Final = 60_000  # equal denials within this time share an entry of the log
_COMPARED: Final = 10  # a denial is compared with this many of the newest entries
_SECRET_SETTINGS: Final = frozenset({b"masterauth", b"requirepass", b"tls-key-file-pass"})

_REASONS: Final = {Kind.COMMAND: "command", Kind.KEY: "key", Kind.CHANNEL: "channel"}
_COUNTED_AS: Final = {"auth": "auth", "command": "cmd", "key": "key", "channel": "channel"}
_RULES_CHANGED: Final = (
    "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is "
    "no longer allowed for the following reason: "
)
_REASONS_IN_EXEC: Final = {
    Kind.COMMAND: "no permission to execute the command or subcommand",
    Kind.KEY: "no permission to touch the specified keys",
    Kind.CHANNEL: "no permission to access one of the channels used as arguments",
}


def redacted(row: Command, argv: list[bytes]) -> list[bytes]:
    """Return the words of a call with secrets hidden, for MONITOR and SLOWLOG."""
    match row.name:
        case "auth":
            return [argv[0], *[REDACTED] * (len(argv) - 1)]
        case "acl|setuser" | "acl|deluser" | "acl|getuser":
            return [*argv[:2], *[REDACTED] * (len(argv) - 2)]
        case "hello" | "config|set":
            return [REDACTED if _is_secret(argv, at) else word for at, word in enumerate(argv)]
    return argv


def _is_secret(argv: list[bytes], at: int) -> bool:
    """Return whether a word of HELLO or CONFIG SET is a user name, a password, or the value of a secret setting."""
    if argv[0].upper() == b"HELLO":
        return at > 2 and b"AUTH" in (word.upper() for word in argv[max(2, at - 2) : at])
    return at > 2 and argv[at - 1].lower() in _SECRET_SETTINGS


def _refused(user: bytes, denial: Denial) -> bytes:
    """Return the text of a denial. The caller does not learn names of keys and channels."""
    match denial.kind:
        case Kind.KEY:
            return b"No permissions to access a key"
        case Kind.CHANNEL:
            return b"No permissions to access a channel"
    return b"User " + user + b" has no permissions to run the '" + denial.what + b"' command"


@dataclass(slots=True)
class Denied:
    """An entry of ACL LOG: a denial that happened once or more often."""

    number: int
    reason: str  # auth, command, key, channel
    context: str  # toplevel, multi, lua
    what: bytes
    user: bytes
    created_ms: int
    updated_ms: int
    client: bytes  # the CLIENT LIST line of the last denied connection
    count: int = 1

    def repeats(self, other: Denied) -> bool:
        """Return whether another denial repeats this one."""
        return (self.reason, self.context, self.what, self.user) == (
            other.reason,
            other.context,
            other.what,
            other.user,
        ) and other.updated_ms - self.updated_ms <= _GROUPED_MS


class AccessControl:
    """The users of a hub. Everything is called under its lock."""

    def __init__(self, hub: Server, table: dict[bytes, Command], describe: Callable[[Client, int], bytes]) -> None:
        self._hub = hub
        self._table = table
        self._describe = describe  # formats a connection as a line of CLIENT LIST
        self._catalogue: Catalogue | None = None
        self._serial = 0
        self.files: Files = RealFiles()
        self.users: dict[bytes, User] = {}
        self.log: list[Denied] = []  # newest first
        self.denied = {"auth": 0, "cmd": 0, "key": 0, "channel": 0}  # for INFO; CONFIG RESETSTAT does not clear them
        self.is_needed = False  # whether any user is restricted
        self._add_default()

    def catalogue(self) -> Catalogue:
        """Return the commands that rules can name, built on first use."""
        if self._catalogue is None:
            self._catalogue = Catalogue(self._table)
        return self._catalogue

    @property
    def opens_channels(self) -> bool:
        """Return whether `acl-pubsub-default` opens all channels to new users."""
        return self._hub.config["acl-pubsub-default"] == b"allchannels"

    def row_of(self, words: list[bytes]) -> Command | None:
        """Return the row of a call, or None if there is no such command."""
        row = self._table.get(words[0].lower())
        if row is not None and row.subcommands and len(words) > 1:
            return row.subcommands.get(words[1].lower())
        return row

    @property
    def is_open(self) -> bool:
        """Return whether a connection may run commands without logging in."""
        default = self.users[DEFAULT_USER]
        return default.is_on and default.needs_no_password

    # Logging in

    def log_in(self, session: Client, name: bytes, password: bytes, word: bytes, *, in_exec: bool = False) -> bool:
        """Log a connection in as this user. A refused connection keeps its user. `word` is the name of the command."""
        user = self.users.get(name) or User(name, self)  # an unknown user takes as long to refuse
        if not user.accepts(password):
            self._remember("auth", "multi" if in_exec else "toplevel", word, name, session)
            return False
        session.user = name
        session.is_authenticated = True
        session.follow_limits()
        return True

    def require(self, password: bytes) -> None:
        """Apply the setting `requirepass`: the password of the default user; an empty one removes it."""
        default = self.users[DEFAULT_USER]
        default.apply(b"resetpass")
        default.apply(b">" + password if password else b"nopass")

    # Checking

    def gate(self, session: Client, row: Command, argv: list[bytes]) -> CommandError | None:
        """Return the reason to refuse a command, or None."""
        denial = self.denial(session, row, argv)
        if denial is None:
            return None
        context = "toplevel" if session.queue is None else "multi"
        self._remember(_REASONS[denial.kind], context, denial.what, session.user, session)
        return CommandError(b"NOPERM " + _refused(session.user, denial))

    def refusal_in_exec(self, session: Client, row: Command, argv: list[bytes]) -> CommandError | None:
        """Check like `gate` a command that was allowed when it was queued."""
        denial = self.denial(session, row, argv)
        if denial is None:
            return None
        self._remember(_REASONS[denial.kind], "multi", denial.what, session.user, session)
        return CommandError(_RULES_CHANGED + _REASONS_IN_EXEC[denial.kind])

    def refusal_in_script(self, session: Client, row: Command, argv: list[bytes]) -> CommandError | None:
        """Check like `gate` a command that a script calls."""
        denial = self.denial(session, row, argv)
        if denial is None:
            return None
        self._remember(_REASONS[denial.kind], "lua", denial.what, session.user, session)
        return CommandError(b"ERR ACL failure in script: " + _refused(session.user, denial))

    def denial(self, session: Client, row: Command, argv: list[bytes]) -> Denial | None:
        """Return why a connection may not run a call, or None. A connection of a deleted user may run nothing."""
        if session.is_trusted:
            return None
        user = self.users.get(session.user)
        if user is None:
            return Denial(Kind.COMMAND, 0, row.name.encode())
        return None if user.is_unrestricted else user.denial(row, argv)

    # Changing users

    def set_user(self, name: bytes, rules: Iterable[bytes]) -> None:
        """Create or change a user by all rules or none. Subscribers that lose their channels are disconnected."""
        user = self._tried(self.users.get(name) or User(name, self), merged(rules))
        self.users[name] = user
        self._settle()

    def delete(self, names: Sequence[bytes]) -> int:
        """Delete users and close their connections. Returns the number of deleted users."""
        if DEFAULT_USER in names:
            raise CommandError("ERR The 'default' user cannot be removed")
        deleted = sum(self.users.pop(name, None) is not None for name in names)
        self._settle()
        return deleted

    def _tried(self, user: User, rules: Iterable[bytes]) -> User:
        """Return a copy of a user with further rules."""
        changed = user.copy()
        for rule in rules:
            changed.apply(rule)
        return changed

    def _add_default(self) -> None:
        default = User(DEFAULT_USER, self)
        default.allow_everything()
        self.users[DEFAULT_USER] = default

    def _settle(self) -> None:
        """Apply changed users: close connections that lost their user or their channels, and add or remove the gate."""
        for session in list(self._hub.sessions.values()):
            user = self.users.get(session.user)
            if user is None or not _may_go_on_listening(user, session):
                session.shut()
        self.is_needed = not all(user.is_unrestricted for user in self.users.values())
        gates = self._hub.gates
        if self.is_needed and self.gate not in gates:
            gates.insert(0, self.gate)  # first, so that a caller without permission learns nothing from other refusals
        elif not self.is_needed and self.gate in gates:
            gates.remove(self.gate)

    # Files

    def start(self, declared: Iterable[Sequence[bytes]]) -> None:
        """Take over the users of the configuration (names and rules) or of the ACL file. Raises ConfigError."""
        names: set[bytes] = set()
        for words in declared:
            if self.file is not None:
                raise ConfigError("users can be declared in the configuration or in an ACL file, not in both")
            if not words or has_blank(words[0]):
                raise ConfigError("a user needs a name without blanks")
            if words[0] in names:
                raise ConfigError(f"user {_text(words[0])!r} is declared twice")
            names.add(words[0])
            self._declare(words[0], words[1:])
        if self.file is not None:
            try:
                self.load()
            except CommandError as error:
                raise ConfigError(_text(error.wire.removeprefix(b"ERR "))) from error

    def _declare(self, name: bytes, rules: Iterable[bytes]) -> None:
        try:
            self.users[name] = self._tried(User(name, self), merged(rules))
        except Unmatched as error:
            raise ConfigError(f"user {_text(name)!r}: unmatched parenthesis at {_shown(error.rule)}") from None
        except BadRule as error:
            raise ConfigError(f"user {_text(name)!r}: rule {_shown(error.rule)}: {error}") from None
        self._settle()

    @property
    def file(self) -> Path | None:
        """Return the path in the setting `aclfile`, if there is one."""
        name = self._hub.config["aclfile"]
        return Path(name.decode("utf-8", "surrogateescape")) if name else None

    def load(self) -> None:
        """Replace all users by those of the ACL file. Raises an error that says what is wrong with the file."""
        path = self.file
        if path is None:
            raise CommandError(NO_FILE)
        try:
            text = b"".join(self.files.read(path))
        except OSError as error:
            raise CommandError(f"ERR Error loading ACLs, opening file '{path}': {error.strerror}") from error
        users, faults = self._read(text, str(path).encode("utf-8", "surrogateescape"))
        if faults:
            raise CommandError(b"ERR " + b"".join(faults) + _UNCHANGED)
        self.users = users
        if DEFAULT_USER not in users:  # Redis leaves the default user open even if a password is required
            self._add_default()
            self.require(self._hub.config["requirepass"])
        self._settle()
        logger.info("The users of the ACL file are in force: %d", len(users))

    def _read(self, text: bytes, name: bytes) -> tuple[dict[bytes, User], list[bytes]]:
        """Return the users in a text, and what is wrong with it."""
        users: dict[bytes, User] = {}
        faults: list[bytes] = []
        for number, line in enumerate(text.split(b"\n"), 1):
            words = line.strip(b" \t\r").split(b" ")
            if words == [b""] or words[0].startswith(b"#"):
                continue
            place = b"%b:%d" % (name, number)
            if words[0] != b"user" or len(words) < 2:
                faults.append(place + b" should start with user keyword followed by the username. ")
            elif words[1] in users:
                faults.append(b"WARNING: Duplicate user '%b' found on line %d. " % (words[1], number))
            else:
                users[words[1]] = user = User(words[1], self)
                try:
                    users[words[1]] = self._tried(user, merged(words[2:]))
                except Unmatched:
                    faults.append(place + b": Unmatched parenthesis in selector definition. ")
                except BadRule as error:
                    faults.append(place + b": " + _explained(error) + b". ")
        return users, faults

    def save(self) -> None:
        """Write all users to the ACL file."""
        path = self.file
        if path is None:
            raise CommandError(NO_FILE)
        lines = b"".join(user.describe() + b"\n" for _, user in sorted(self.users.items()))
        try:
            write_file(self.files, path, [lines])
        except OSError as error:
            logger.warning("The ACL file could not be written: %s: %s", path, error.strerror)
            raise CommandError(NOT_SAVED) from error

    # The log

    def _remember(self, reason: str, context: str, what: bytes, user: bytes, session: Client) -> None:
        self.denied[_COUNTED_AS[reason]] += 1
        now_ms = self._hub.now_ms()
        entry = Denied(self._serial, reason, context, what, user, now_ms, now_ms, self._describe(session, now_ms))
        known = next((old for old in self.log[:_COMPARED] if old.repeats(entry)), None)
        if known is None:
            self._serial += 1
        else:
            self.log.remove(known)
            entry.number, entry.created_ms, entry.count = known.number, known.created_ms, known.count + 1
        self.log.insert(0, entry)
        del self.log[self._hub.config.number("acllog-max-len") :]


NO_FILE: Final = (
    "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL SETUSER "
    "command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in order to store "
    "users in the Redis configuration."
)
NOT_SAVED: Final = "ERR There was an error trying to save the ACLs. Please check the server logs for more information"
_UNCHANGED: Final = b"WARNING: ACL errors detected, no change to the previously active ACL rules was performed"


def _may_go_on_listening(user: User, session: Client) -> bool:
    return (
        user.may_listen(session.channels)
        and user.may_listen(session.shards)
        and user.may_listen(session.patterns, are_patterns=True)
    )


def _explained(error: BadRule) -> bytes:
    """Return what is wrong with a rule. Only the name of a command is repeated, since other words may be passwords."""
    if error.why is Why.UNKNOWN:
        return b"Error in applying operation '" + error.rule + b"': " + str(error).encode()
    return str(error).encode()


def _shown(rule: bytes) -> str:
    """Return a rule as text, with passwords hidden."""
    return "(a password)" if rule[:1] in (b">", b"<", b"#", b"!") else repr(_text(rule))


def _text(word: bytes) -> str:
    return word.decode("utf-8", "backslashreplace")
