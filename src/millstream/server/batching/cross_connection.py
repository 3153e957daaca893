"""Fast path for requests of several connections that arrived at once: they run as one pipeline.

Look-ups, checks and the log then cost once what they cost for each connection otherwise. Each connection gets its own
reply and the state that its own request would have left. A request that is not one of the hot commands as a whole, or
comes on a connection with a special state, is handed to its connection.

Twin: `Session.feed`. Test: tests/server/batching/test_cross_connection.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import chain
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, Protocol

from millstream.server.batching.hot_commands import EXPRESS, EXPRESS_ALIKE
from millstream.server.batching.uniform import AlikeReader, split_alike
from millstream.server.protocol.resp import encode

if TYPE_CHECKING:
    from millstream.errors import CommandError
    from millstream.server.core.hub import Hub
    from millstream.server.core.session import Session

logger = logging.getLogger(__name__)


class RequestSource(Protocol):
    """A connection, as a turn sees it."""

    session: Session | None

    def data_received(self, data: bytes) -> None:
        """Run what arrived by itself."""

    def reply(self, data: bytes) -> None:
        """Send a reply that did not go through the session."""

    def abort(self) -> None:
        """Close at once."""


Arrived = list[tuple[RequestSource, bytes]]

_START: Final = 14  # bytes that tell how a request begins
_LONGEST: Final = 4096


def _start_of(count: int, word: bytes) -> bytes:
    return (b"*%d\r\n$%d\r\n%b\r\n" % (count, len(word), word))[:_START]


# How shared requests begin, and how many words they have.
STARTS: Final = {
    _start_of(count, word): count
    for words, counts in (
        ((b"XADD", b"xadd"), (5, 7, 9)),
        ((b"XACK", b"xack"), (4,)),
        ((b"XNACK", b"xnack"), (7,)),
        ((b"XREADGROUP", b"xreadgroup"), (9,)),
    )
    for word in words
    for count in counts
}


class Turn:
    """What arrived in one turn of a loop, under the hub's lock."""

    __slots__ = ("_arrived", "_hub", "_reader", "_replies", "_running")

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._reader = AlikeReader()
        self._arrived: dict[bytes, Arrived] = {}  # what may be shared, by how it begins
        self._running: dict[bytes, Arrived] = {}  # the same, which is being run
        self._replies: list[tuple[RequestSource, bytes]] = []  # to requests that were shared

    def take(self, connection: RequestSource, data: bytes) -> None:
        """Keep what can be run together with others; the rest is run now."""
        start = data[:_START]
        if start in STARTS and len(data) < _LONGEST:
            alike = self._arrived.get(start)
            if alike is None:
                self._arrived[start] = [(connection, data)]
            else:
                alike.append((connection, data))
        else:
            connection.data_received(data)

    def waiting(self) -> set[RequestSource]:
        """Those of whom something was kept."""
        kept = chain(self._arrived.values(), self._running.values())
        return {connection for alike in kept for connection, _ in alike}

    def run(self) -> None:
        """Run what was kept."""
        arrived, self._arrived = self._arrived, {}
        if not arrived:
            return
        self._running = arrived
        for start, alike in arrived.items():
            rest = self._share_or_drop(alike, STARTS[start]) if len(alike) > 1 else alike
            for connection, data in rest:
                connection.data_received(data)
        self._running = {}

    def _share_or_drop(self, alike: Arrived, count: int) -> Arrived:
        """As `_share`; what fails in a way it must not costs the connections that took part, and nobody else theirs."""
        try:
            return self._share(alike, count)
        except Exception:
            for connection, _ in alike:
                connection.abort()
            logger.exception("Requests of %d connections failed in a way they must not", len(alike))
            return []

    def _share(self, alike: Arrived, count: int) -> Arrived:
        """Run requests together as far as that is possible; those that it is not possible for."""
        hub = self._hub
        if hub.gates or hub.is_told or hub.monitors:
            return alike
        rest: Arrived = []
        ready: Arrived = []
        sessions: list[Session] = []
        db = protocol = -1
        for arrived in alike:
            session = arrived[0].session
            if session is None or not session.is_plain or session.has_output:
                rest.append(arrived)
                continue
            if db < 0:
                db, protocol = session.db, session.protocol
            if session.db == db and session.protocol == protocol:
                ready.append(arrived)
                sessions.append(session)
            else:
                rest.append(arrived)
        if not ready:
            return alike
        pieces = [data for _, data in ready]
        done = 0
        common = self._reader.read(pieces) if len(pieces) > 1 else None
        if common is not None:
            done = self._run(*EXPRESS_ALIKE[common.words[0]], ready, sessions, common, pieces)
        else:
            requests = split_alike(pieces, count)
            if requests is not None:
                done = self._run(*EXPRESS[requests[0][0]], ready, sessions, requests, pieces)
        return rest + ready[done:]

    def _run(
        self,
        name: str,
        run: Callable[..., int],
        ready: Arrived,
        sessions: list[Session],
        requests: object,
        pieces: list[bytes],
    ) -> int:
        """Run requests, one of each session, all of one database and protocol; how many that were."""
        hub, db, protocol = self._hub, sessions[0].db, sessions[0].protocol
        if db != hub.encoded_db:
            hub.log_in_database(db)
        replies: list[bytes] = []
        started = perf_counter_ns()
        now_ms = hub.now_ms()
        done = run(hub, db, requests, now_ms, protocol, replies, pieces)
        if done:
            hub.stats.count_calls(name, done, perf_counter_ns() - started)
        kept = self._replies
        for at in range(done):
            session = sessions[at]
            session.commands += 1
            session.bytes_in += len(pieces[at])
            session.last_ms = now_ms
            session.last_command = name
            kept.append((ready[at][0], replies[at]))
        return done

    @property
    def owes_replies(self) -> bool:
        """Whether something that was shared is not answered yet."""
        return bool(self._replies)

    def answer(self, refusal: CommandError | None) -> None:
        """Send the replies, or instead of each the error: what they promise could not be made certain."""
        replies, self._replies = self._replies, []
        for connection, reply in replies:
            session = connection.session
            try:
                if refusal is not None and session is not None:
                    reply = encode(refusal, session.protocol)
                    self._hub.stats.count_error(refusal)
                connection.reply(reply)
            except Exception:  # costs its own connection and nobody else's
                connection.abort()
                logger.exception("Output could not be handed over, closing a connection")
