"""What connections take of the memory, and `maxmemory-clients`: the largest are closed while all take too much.

    output of a connection grows ──▶ look_soon ──▶ look ──▶ total > limit ──▶ close the largest, and again

Looking takes as long as there are clients, so it is done LOOK_S apart while there is a limit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sized
from typing import Final, NamedTuple, Protocol

from millstream.server.config.settings import Config
from millstream.server.core.stats import Stats
from millstream.server.protocol.resp import RequestDecoder

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.02
_SESSION: Final = 2048  # bytes that a connection takes besides its buffers
_NAME: Final = 100  # bytes that a subscription or a watched key takes besides its name


class Pacer(Protocol):
    """The socket of a session: it decides when the session goes on, and how much output may wait."""

    def run_later(self) -> None:
        """Call `go_on` when others have had their turn."""

    def check_output(self, extra: int = 0) -> None:
        """Cut the session off if its output is above the limit."""

    def evict(self) -> None:
        """Close the connection without sending what waits."""

    def backlog(self) -> tuple[int, int]:
        """Return how many bytes of output wait in the socket's buffer, and in how many pieces."""


class Client(Protocol):
    """A session, as far as its memory goes."""

    id: int
    pacer: Pacer | None
    channels: dict[bytes, None]
    patterns: dict[bytes, None]
    shards: dict[bytes, None]
    is_spared: bool
    is_trusted: bool
    is_cut: bool

    @property
    def watched(self) -> Sized:
        """The keys that it watches."""

    @property
    def decoder(self) -> RequestDecoder:
        """What has arrived and is no request yet."""

    @property
    def queued_bytes(self) -> int:
        """Bytes of the open transaction."""

    @property
    def unsent(self) -> int:
        """Bytes of output that have not been handed over."""


class Clients(Protocol):
    """A hub, as far as the memory of its clients goes."""

    config: Config
    stats: Stats

    @property
    def sessions(self) -> Mapping[int, Client]:
        """All sessions by number."""


class ClientSizes(NamedTuple):
    """What one connection takes, in bytes; `pieces` are those of the output that waits in its socket."""

    query: int
    query_free: int
    arguments: int
    transaction: int
    unsent: int
    pieces: int
    waiting: int
    total: int


def sizes_of(session: Client) -> ClientSizes:
    """Measure one connection."""
    decoder = session.decoder
    parsed = sum(sum(map(len, argv)) for argv in list(decoder.parsed))
    waiting, pieces = session.pacer.backlog() if session.pacer is not None else (0, 0)
    query = decoder.buffered - decoder.unfinished + parsed
    names = sum(map(len, session.channels)) + sum(map(len, session.patterns)) + sum(map(len, session.shards))
    names += _NAME * (len(session.channels) + len(session.patterns) + len(session.shards) + len(session.watched))
    arguments, transaction = decoder.unfinished, session.queued_bytes
    total = _SESSION + query + decoder.spare + arguments + transaction + session.unsent + waiting + names
    return ClientSizes(query, decoder.spare, arguments, transaction, session.unsent, pieces, waiting, total)


class ClientMemory:
    """The memory of all connections of a hub. Everything is called under its lock."""

    def __init__(self, hub: Clients) -> None:
        self._hub = hub
        self.is_limited = False

    def follow_setting(self) -> None:
        """Take over `maxmemory-clients`."""
        self.is_limited = self.limit > 0

    @property
    def limit(self) -> int:
        """Bytes that all clients may take together; 0: any number."""
        value = self._hub.config["maxmemory-clients"]
        if value.endswith(b"%"):
            return self._hub.config.number("maxmemory") * int(value[:-1]) // 100
        return int(value)

    @property
    def total(self) -> int:
        """Bytes that all clients take."""
        return sum(sizes_of(session).total for session in self._living())

    @property
    def largest(self) -> tuple[int, int]:
        """The most bytes of requests, and of output, that wait for one client."""
        known = list(map(sizes_of, self._living()))
        requests = max((sizes.query + sizes.arguments for sizes in known), default=0)
        return requests, max((sizes.unsent + sizes.waiting for sizes in known), default=0)

    def _living(self) -> list[Client]:
        return [session for session in list(self._hub.sessions.values()) if not session.is_cut]

    def look_soon(self) -> None:
        """Check the limit after the memory of a client has grown much."""
        if self.is_limited:
            self.look()

    def look(self) -> None:
        """Close the largest clients until all take no more than they may; some are spared (CLIENT NO-EVICT)."""
        limit = self.limit
        if not limit:
            return
        known = [(sizes_of(session).total, session) for session in self._living()]
        total = sum(size for size, _ in known)
        if total <= limit:
            return
        candidates = [(size, session) for size, session in known if not (session.is_spared or session.is_trusted)]
        for size, session in sorted(candidates, key=lambda one: one[0], reverse=True):
            if total <= limit:
                return
            if session.pacer is None:
                continue
            logger.warning("Closing a client to keep maxmemory-clients: %d, %d bytes", session.id, size)
            self._hub.stats.evicted_clients += 1
            session.pacer.evict()
            total -= size
