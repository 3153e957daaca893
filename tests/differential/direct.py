"""The broker's direct Python calls in the place of commands: their short ways must do what the long ones do.

What a worker calls for every entry (append, read, acknowledge, release) has a second, shorter implementation in
`Broker`. Here the commands that have such a call go through it, all others through the engine on the same keys, and
both are compared with a real server.
"""

from __future__ import annotations

import traceback
from collections import Counter
from typing import Any, ClassVar

from millstream.broker import Broker, Entry
from millstream.clock import ManualClock
from millstream.engine.outcome import NIL_ARRAY, Pairs, Reply
from millstream.engine.text.args import as_integer
from millstream.errors import CommandError
from millstream.server.protocol.resp import encode
from tests.differential.duel import EngineSide, Mismatch
from tests.differential.program import Settings


class DirectSide(EngineSide):
    """The engine behind a broker."""

    calls: ClassVar[Counter[bytes]] = Counter()  # commands that went the direct way, of all programs

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._clock = ManualClock(0)
        self._broker = Broker(clock=self._clock)
        mine = self._broker._hub.keyspace
        mine.settings.stream_node_max_entries = settings.node_max_entries
        mine.settings.stream_node_max_bytes = settings.node_max_bytes
        self.keyspace = mine

    def close(self) -> None:
        self._broker.close()

    def reply(self, argv: list[bytes], now_ms: int) -> bytes:
        call = getattr(self, "_" + argv[0].decode("latin-1").lower(), None)
        self._clock.advance(now_ms - self._clock.now_ms())
        try:
            made = call(argv) if call is not None else None
        except CommandError as error:
            return encode(error, self.protocol)
        except Exception:
            raise Mismatch(argv, b"", b"", traceback.format_exc(chain=False), now_ms) from None
        if made is None:
            return super().reply(argv, now_ms)
        self.calls[argv[0].upper()] += 1
        return encode(made, self.protocol)

    def _xadd(self, argv: list[bytes]) -> Reply:
        names, values = argv[3::2], argv[4::2]
        if argv[2:3] != [b"*"] or not values or len(names) != len(values) or len(set(names)) < len(names):
            return None
        return self._broker.xadd(argv[1], dict(zip(names, values, strict=True)))

    def _xack(self, argv: list[bytes]) -> Reply:
        return self._broker.xack(argv[1], argv[2], *argv[3:]) if len(argv) > 3 else None

    def _xnack(self, argv: list[bytes]) -> Reply:
        mode: Any = argv[3].decode("latin-1") if len(argv) > 6 else ""
        if mode not in ("SILENT", "FAIL", "FATAL") or argv[4:6] != [b"IDS", b"%d" % (len(argv) - 6)]:
            return None
        return self._broker.xnack(argv[1], argv[2], *argv[6:], mode=mode)

    def _xreadgroup(self, argv: list[bytes]) -> Reply:
        """XREADGROUP GROUP g c [COUNT n] [CLAIM ms] STREAMS key >, in this order."""
        if argv[1:2] != [b"GROUP"] or argv[-3:-2] != [b"STREAMS"] or argv[-1] != b">":
            return None
        options = {b"COUNT": None, b"CLAIM": None, **dict(zip(argv[4:-3:2], argv[5:-3:2], strict=False))}
        numbers = [value for value in options.values() if value is not None]
        if len(options) != 2 or len(argv) != 7 + 2 * len(numbers) or None in map(as_integer, numbers):
            return None
        count, claim = (None if value is None else int(value) for value in options.values())
        key = argv[-2]
        found = self._broker.xreadgroup(argv[2], argv[3], {key: b">"}, count, claim_ms=claim)
        if not found:
            return NIL_ARRAY
        entries: list[Reply] = [self._row(entry) for entry in found[key]]
        return Pairs([key, entries]) if self.protocol == 3 else [[key, entries]]

    @staticmethod
    def _row(entry: Entry) -> Reply:
        fields: Reply = [word for pair in entry.items for word in pair]
        return [entry.id, fields] if entry.idle_ms is None else [entry.id, fields, entry.idle_ms, entry.delivery_count]
