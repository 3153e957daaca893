"""The claim workload over a socket: 20,000 pending, 1,000 random ones idle for 1100 ms, the others for 50 ms.

What is timed is one XREADGROUP … CLAIM 1000 that takes the thousand over, from sending it to its last byte.
"""

from __future__ import annotations

import random
import time

from tests.support.servers import RealServer
from tests.support.wire import pack, parse

PENDING, DUE = 20_000, 1_000
MIN_IDLE_MS, IDLE_MS, REST_IDLE_MS = 1000, 1100, 50
VALUE = b"x" * 100
SLACK_S = 0.8  # when setting idle times takes longer than this, the others are nearly due as well
PAUSE_S = 1.2
ATTEMPTS = 5
KEY, GROUP = b"claims", b"g"
CLAIM = pack(
    [
        b"XREADGROUP",
        b"GROUP",
        GROUP,
        b"quick",
        b"COUNT",
        b"%d" % DUE,
        b"CLAIM",
        b"%d" % MIN_IDLE_MS,
        b"STREAMS",
        KEY,
        b">",
    ]
)


class WrongClaim(Exception):
    """The server did not hand out what it should have."""


class Claims:
    """The workload on one server."""

    def __init__(self, server: RealServer) -> None:
        self._wire = server.connect()
        self._name = server.name
        added = self._wire.exchange(pack([b"XADD", KEY, b"*", b"f", VALUE]) * PENDING)
        self._ids = added.split(b"\r\n")[1::2]
        ask = self._wire.ask
        self._expect(ask(b"XGROUP", b"CREATE", KEY, GROUP, b"0"), b"+OK\r\n")
        ask(b"XREADGROUP", b"GROUP", GROUP, b"slow", b"STREAMS", KEY, b">")
        self._expect(ask(b"XGROUP", b"CREATECONSUMER", KEY, GROUP, b"quick"), b":1\r\n")

    def round(self) -> float:
        """Seconds that the claim took. The idle times are real ones: a round that was held up is done again.

        Those that are due come first: being handed back late makes them idle for longer, which does no harm. Let
        `PAUSE_S` go by between rounds: Redis takes long to insert a time that is before those it has.
        """
        for _ in range(ATTEMPTS):
            due = random.sample(self._ids, DUE)
            taken = set(due)
            self._hand_back(due, IDLE_MS)
            set_at = time.perf_counter()
            self._hand_back([entry_id for entry_id in self._ids if entry_id not in taken], REST_IDLE_MS)
            start = time.perf_counter()
            reply = self._wire.exchange(CLAIM)
            end = time.perf_counter()
            if end - set_at < SLACK_S:
                self._check(reply, due)
                return end - start
        raise WrongClaim(f"{self._name} takes over {SLACK_S} s to set idle times: the workload cannot be had")

    def _hand_back(self, ids: list[bytes], idle_ms: int) -> None:
        options = (b"IDLE", b"%d" % idle_ms, b"RETRYCOUNT", b"1", b"JUSTID")
        reply = self._wire.ask(b"XCLAIM", KEY, GROUP, b"slow", b"0", *ids, *options)
        self._expect(reply[: reply.index(b"\r\n")], b"*%d" % len(ids))

    def _check(self, reply: bytes, due: list[bytes]) -> None:
        """Each of those that were due, once, with its value, its idle time and its deliveries so far."""
        found: dict[bytes, list[object]] = {}
        match parse(reply):
            case [[key, [*rows]]] if key == KEY:
                found = {row[0]: row[1:] for row in rows}
        if sorted(found) != sorted(due):
            raise WrongClaim(f"{self._name} handed out {len(found)} entries, or others than were due: {reply[:200]!r}")
        for fields, idle_ms, deliveries in found.values():
            if fields != [b"f", VALUE] or deliveries != 1 or not isinstance(idle_ms, int) or idle_ms < IDLE_MS:
                raise WrongClaim(f"{self._name} says {fields!r}, idle {idle_ms!r}, delivered {deliveries!r}")

    def _expect(self, reply: bytes, wanted: bytes) -> None:
        if reply != wanted:
            raise WrongClaim(f"{self._name} answered {reply[:200]!r} instead of {wanted!r}")
