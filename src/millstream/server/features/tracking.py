"""Client-side caching: who has read which key, and is told when it changes (CLIENT TRACKING).

    GET k of a session that tracks ──▶ readers of k               k changed ──▶ `invalidate [k]`, k has no readers
    BCAST PREFIX p                 ──▶ those who hear of all p…   k changed ──▶ `invalidate [k …]`, once a turn

Keys are names only: the same name in another database counts as the same key, as in Redis. A session with REDIRECT
has its messages sent to another one. Messages go to RESP3 connections as pushes, and to RESP2 connections that
subscribe to `__redis__:invalidate`; to others they do not go at all.
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
    from millstream.server.core.hub import Hub
    from millstream.server.core.session import Session
    from millstream.server.features.watch import Place

CHANNEL: Final = b"__redis__:invalidate"
# Scripts that only read: what counts are the commands they run.
_NOT_READING: Final = frozenset({"eval_ro", "evalsha_ro", "fcall_ro"})


@dataclass(slots=True)
class Subscription:
    """How one session tracks."""

    redirect: int = 0  # the id of the session that gets the messages; 0: itself
    bcast: bool = False
    optin: bool = False
    optout: bool = False
    noloop: bool = False  # not of what the session itself changes
    caching: bool | None = None  # CLIENT CACHING for the next command
    is_broken: bool = False  # the session it redirects to has gone
    prefixes: dict[bytes, None] = field(default_factory=dict)

    @property
    def remembers(self) -> bool:
        """Whether what is read now will be told of."""
        if self.optin:
            return self.caching is True
        return not self.bcast and not (self.optout and self.caching is False)


class Tracking:
    """Who is told of which changed keys. Everything is called under the hub's lock."""

    __slots__ = ("_changed", "_hub", "_prefixes", "_readers", "is_on", "sessions")

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.sessions: dict[Session, Subscription] = {}
        self._readers: dict[bytes, dict[int, None]] = {}  # key to ids; an id may be of one that tracks no more
        self._prefixes: dict[bytes, dict[Session, None]] = {}
        self._changed: dict[bytes, dict[bytes, Session | None]] = {}  # prefix to keys, and who changed each
        self.is_on = False  # somebody tracks

    # Who tracks

    def start(self, session: Session, wanted: Subscription) -> None:
        """Let a session track, or change how it does; prefixes are added to those it has."""
        known = self.sessions.get(session)
        if known is not None:
            wanted.prefixes = known.prefixes | wanted.prefixes
            wanted.caching = known.caching
        for prefix in wanted.prefixes:
            self._prefixes.setdefault(prefix, {})[session] = None
        self.sessions[session] = wanted
        self._note()

    def stop(self, session: Session) -> None:
        """Let a session track no more. What it has read is forgotten when it changes."""
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

    def of(self, session: Session) -> Subscription | None:
        """How a session tracks, None if it does not."""
        return self.sessions.get(session)

    @property
    def keys(self) -> int:
        """How many keys have readers that will be told."""
        return len(self._readers)

    @property
    def items(self) -> int:
        """How many pairs of a key and a reader there are."""
        return sum(map(len, self._readers.values()))

    @property
    def prefixes(self) -> int:
        """How many prefixes somebody hears of."""
        return len(self._prefixes)

    # Reading

    def after(self, session: Session, row: Command, argv: list[bytes]) -> None:
        """A command of a session has run: remember what it read; CLIENT CACHING was about this one only."""
        subscription = self.sessions.get(session)
        if subscription is None:
            return
        if "readonly" in row.flags and row.name not in _NOT_READING and subscription.remembers:
            for at in row.key_positions(argv):
                self._readers.setdefault(argv[at], {})[session.id] = None
            self.keep_limit()

    def next_command(self, session: Session, row: Command) -> None:
        """A request has been dealt with: CLIENT CACHING was about it, unless it was the CLIENT CACHING itself."""
        subscription = self.sessions.get(session)
        if subscription is not None and session.queue is None and not row.name.startswith("client|"):
            subscription.caching = None

    def keep_limit(self) -> None:
        """Forget keys above `tracking-table-max-keys`, the longest known first; their readers are told."""
        most = self._hub.config.number("tracking-table-max-keys")
        while most and len(self._readers) > most:
            self._invalidate(next(iter(self._readers)), None)

    # Changing

    def touched(self, places: Iterable[Place], events: list[Event], by: Session | None) -> None:
        """Keys were modified by a session, or by nobody; those that ran out were modified by nobody."""
        expired = {event.key for event in events if event.kind == "x"}
        for _, key in places:
            culprit = None if key in expired else by
            if key in self._readers:
                self._invalidate(key, culprit)
            for prefix in self._prefixes:
                if key.startswith(prefix):
                    self._changed.setdefault(prefix, {})[key] = culprit

    def flushed(self) -> None:
        """All keys are gone: everybody who tracks is told so."""
        self._readers.clear()
        for session in list(self.sessions):
            self._tell(session, None)

    def _invalidate(self, key: bytes, by: Session | None) -> None:
        """Tell a key's readers that it changed, but those who did it and do not want to hear of that."""
        for number in self._readers.pop(key):
            reader = self._hub.sessions.get(number)
            subscription = self.sessions.get(reader) if reader is not None else None
            if reader is None or subscription is None or subscription.bcast:
                continue  # has gone, or tracks otherwise now
            if not (subscription.noloop and reader is by):
                self._tell(reader, [key])

    @property
    def has_changes(self) -> bool:
        """Whether `broadcast` has something to say."""
        return bool(self._changed)

    def broadcast(self) -> None:
        """Tell those who hear of prefixes what has changed since the last time."""
        changed, self._changed = self._changed, {}
        for prefix, keys in changed.items():
            for session in list(self._prefixes.get(prefix, ())):
                noloop = self.sessions[session].noloop
                told = [
                    key for key, by in keys.items() if not (noloop and by is session) and self._may_read(session, key)
                ]
                if told:
                    self._tell(session, told)

    def _may_read(self, session: Session, key: bytes) -> bool:
        """Whether a session's user may read a key, else it is not told its name."""
        user = self._hub.access.users.get(session.user)
        if user is None or session.is_trusted or user.is_unrestricted:
            return user is not None or session.is_trusted
        return any(selector.allows_key(key, Access.READ) for selector in user.selectors)

    # Telling

    def _tell(self, session: Session, keys: list[bytes] | None) -> None:
        """Send a session, or the one it redirects to, the names of keys; None stands for all."""
        subscription = self.sessions[session]
        target: Session | None = session
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
