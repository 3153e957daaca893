"""Client-side caching (CLIENT TRACKING): clients are notified when keys change that they have read.

    GET k of a session that tracks ──▶ readers of k               k changed ──▶ `invalidate [k]`, k has no readers
    BCAST PREFIX p                 ──▶ listeners to all p…        k changed ──▶ `invalidate [k …]`, once a turn

A key is a name only: the same name in another database counts as the same key, as in Redis. With REDIRECT another
session gets the messages. RESP3 connections get them as pushes, RESP2 connections only if they subscribe to
`__redis__:invalidate`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from millstream.engine.outcome import Event, Push, Reply
from millstream.server.access.permissions import Access
from millstream.server.protocol.resp import encode

if TYPE_CHECKING:
    from millstream.engine.table import Command
    from millstream.server.core.interfaces import Client, Server
    from millstream.server.features.watch import Place

CHANNEL: Final = b"__redis__:invalidate"
# Scripts that only read: the commands they run count instead.
_NOT_READING: Final = frozenset({"eval_ro", "evalsha_ro", "fcall_ro"})


@dataclass(slots=True)
class Subscription:
    """The tracking options of a session."""

    redirect: int = 0  # the id of the session that gets the messages; 0: this session
    bcast: bool = False
    optin: bool = False
    optout: bool = False
    noloop: bool = False  # the session does not get its own changes
    caching: bool | None = None  # from CLIENT CACHING, for the next command
    is_broken: bool = False  # the session it redirects to has gone
    prefixes: dict[bytes, None] = field(default_factory=dict)

    @property
    def remembers(self) -> bool:
        """Return whether changes of the keys read now will be reported."""
        if self.optin:
            return self.caching is True
        return not self.bcast and not (self.optout and self.caching is False)


class Tracking:
    """The readers of each key, and the listeners to prefixes. Every method is called under the hub's lock."""

    __slots__ = ("_changed", "_hub", "_prefixes", "_readers", "is_on", "sessions")

    def __init__(self, hub: Server) -> None:
        self._hub = hub
        self.sessions: dict[Client, Subscription] = {}
        self._readers: dict[
            bytes, dict[int, None]
        ] = {}  # key to session ids; some of these sessions may have stopped tracking
        self._prefixes: dict[bytes, dict[Client, None]] = {}
        self._changed: dict[
            bytes, dict[bytes, Client | None]
        ] = {}  # prefix to changed keys and the session that changed each
        self.is_on = False  # somebody tracks

    # Who tracks

    def start(self, session: Client, wanted: Subscription) -> None:
        """Let a session track, or change its options. Prefixes are added to those it has."""
        known = self.sessions.get(session)
        if known is not None:
            wanted.prefixes = known.prefixes | wanted.prefixes
            wanted.caching = known.caching
        for prefix in wanted.prefixes:
            self._prefixes.setdefault(prefix, {})[session] = None
        self.sessions[session] = wanted
        self._note()

    def stop(self, session: Client) -> None:
        """Stop tracking for a session. The keys it has read are forgotten when they change."""
        subscription = self.sessions.pop(session, None)
        if subscription is None:
            return
        for prefix in subscription.prefixes:
            others = self._prefixes[prefix]
            del others[session]
            if not others:
                del self._prefixes[prefix]
                self._changed.pop(prefix, None)
        self._note()

    def _note(self) -> None:
        self.is_on = bool(self.sessions)
        if not self.is_on:
            self._readers.clear()
        self._hub.observe()

    def of(self, session: Client) -> Subscription | None:
        """Return the options of a session, or None if it does not track."""
        return self.sessions.get(session)

    def notifies(self, session: Client) -> bool:
        """Return whether this session gets messages: its own, or those that another redirects to it."""
        return session in self.sessions or any(found.redirect == session.id for found in self.sessions.values())

    @property
    def keys(self) -> int:
        """Return the number of keys with readers."""
        return len(self._readers)

    @property
    def items(self) -> int:
        """Return the number of pairs of a key and a reader."""
        return sum(map(len, self._readers.values()))

    @property
    def prefixes(self) -> int:
        """Return the number of prefixes with listeners."""
        return len(self._prefixes)

    # Reading

    def after(self, session: Client, row: Command, argv: list[bytes]) -> None:
        """Remember the keys that a command has read. CLIENT CACHING applies to this command only."""
        subscription = self.sessions.get(session)
        if subscription is None:
            return
        if "readonly" in row.flags and row.name not in _NOT_READING and subscription.remembers:
            for at in row.key_positions(argv):
                self._readers.setdefault(argv[at], {})[session.id] = None
            self.keep_limit()

    def next_command(self, session: Client, row: Command) -> None:
        """End the effect of CLIENT CACHING after a request, unless the request was CLIENT CACHING itself."""
        subscription = self.sessions.get(session)
        if subscription is not None and session.queue is None and not row.name.startswith("client|"):
            subscription.caching = None

    def keep_limit(self) -> None:
        """Forget keys above `tracking-table-max-keys`, the oldest first, and notify their readers."""
        most = self._hub.config.number("tracking-table-max-keys")
        while most and len(self._readers) > most:
            self._invalidate(next(iter(self._readers)), None)

    # Changing

    def touched(self, places: Iterable[Place], events: list[Event], by: Client | None) -> None:
        """Report keys that a session has modified; None for changes without a session, such as an expiry."""
        expired = {event.key for event in events if event.kind == "x"}
        for _, key in places:
            culprit = None if key in expired else by
            if key in self._readers:
                self._invalidate(key, culprit)
            for prefix in self._prefixes:
                if key.startswith(prefix):
                    self._changed.setdefault(prefix, {})[key] = culprit

    def flushed(self) -> None:
        """Report to every tracking session that all keys are gone."""
        self._readers.clear()
        for session in list(self.sessions):
            self._tell(session, None)

    def _invalidate(self, key: bytes, by: Client | None) -> None:
        """Notify the readers of a key. A session with NOLOOP does not get its own changes."""
        for number in self._readers.pop(key):
            reader = self._hub.sessions.get(number)
            subscription = self.sessions.get(reader) if reader is not None else None
            if reader is None or subscription is None or subscription.bcast:
                continue  # the session is gone or tracks in another way now
            if not (subscription.noloop and reader is by):
                self._tell(reader, [key])

    @property
    def has_changes(self) -> bool:
        """Return whether `broadcast` has messages to send."""
        return bool(self._changed)

    def broadcast(self) -> None:
        """Send the listeners to prefixes the keys that have changed since the last call."""
        changed, self._changed = self._changed, {}
        for prefix, keys in changed.items():
            for session in list(self._prefixes.get(prefix, ())):
                noloop = self.sessions[session].noloop
                told = [
                    key for key, by in keys.items() if not (noloop and by is session) and self._may_read(session, key)
                ]
                if told:
                    self._tell(session, told)

    def _may_read(self, session: Client, key: bytes) -> bool:
        """Return whether a session's user may read a key; otherwise its name is not sent."""
        user = self._hub.access.users.get(session.user)
        if user is None or session.is_trusted or user.is_unrestricted:
            return user is not None or session.is_trusted
        return any(selector.allows_key(key, Access.READ) for selector in user.selectors)

    # Telling

    def _tell(self, session: Client, keys: list[bytes] | None) -> None:
        """Send key names to a session or its redirection target; None stands for all keys."""
        subscription = self.sessions[session]
        target: Client | None = session
        if subscription.redirect:
            target = self._hub.sessions.get(subscription.redirect)
            if target is None or target.is_closing:
                subscription.is_broken = True
                if session.protocol == 3:
                    session.push(encode(Push([b"tracking-redir-broken", subscription.redirect]), 3))
                return
        assert target is not None
        names: Reply = None if keys is None else [*keys]
        if target.protocol == 3:
            target.push(encode(Push([b"invalidate", names]), 3))
        elif subscription.redirect and CHANNEL in target.channels:
            target.push(encode(Push([b"message", CHANNEL, names]), 2))
