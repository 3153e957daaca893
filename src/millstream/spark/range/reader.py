"""Reads a span of a stream: a fixed range of ids, in replies of thousands of entries. Knows nothing of rows.

    send XRANGE ──▶ receive, find the tokens ──▶ send the next XRANGE ──▶ hand the entries out ──▶ …

The next request goes out before the entries of this reply are used, so that the server works while we do. A
connection that breaks is opened again and the span goes on behind the last entry that was handed out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from millstream.errors import BackendError, Unavailable
from millstream.printable import safe_logger
from millstream.spark.ids import parse_id, text_of
from millstream.spark.options import ConnectionOptions
from millstream.spark.runtime.errors import EntriesLost, Patience, patiently
from millstream.spark.wire.resp_arrow import Entries
from millstream.spark.wire.socket import Address, Wire, open_for, packed

log = safe_logger(logging.getLogger(__name__))

FIRST_FETCH = 1_000  # before it is known how large entries are
REPLY_BYTES = 4 << 20  # what a reply should have


@dataclass(frozen=True, slots=True)
class Span:
    """A range of a stream, both ends fixed when it was planned."""

    stream: str
    after: int
    upto: int
    count: int | None = None  # of entries in it, if they were counted
    floor: int | None = None  # nothing is lost as long as the stream's first entry is not above this
    address: Address | None = None  # where the stream was then


def read_span(connection: ConnectionOptions, span: Span, fetch: int, *, fail_on_loss: bool) -> Iterator[Entries]:
    """Yield the span's entries in order. Each Entries is valid until the next one is requested."""
    reader = _SpanReader(connection, span, fetch)
    try:
        yield from reader.read()
    finally:
        reader.close()
    lost = reader.lost()
    if lost and fail_on_loss:
        raise EntriesLost(span.stream, lost, f"between {text_of(span.after)} and {text_of(span.upto)}")
    if lost:
        log.warning("entries were trimmed before they were read: %s of %s", lost, span.stream)


class _SpanReader:
    def __init__(self, connection: ConnectionOptions, span: Span, fetch: int) -> None:
        self._connection = connection
        self._span = span
        self._fetch = fetch
        self._asked = min(fetch, FIRST_FETCH)
        self._after = span.after
        self._read = 0
        self._is_cut = False  # the stream's first entry was above the floor
        self._wire: Wire | None = None
        self._patience = Patience(connection.retry_s)

    def read(self) -> Iterator[Entries]:
        while self._after < self._span.upto:
            try:
                entries = self._next()
            except BackendError as error:
                self.close()
                self._patience.bear(error)
                continue
            self._patience.renew()
            if not entries.count:
                return
            is_last = entries.count < self._asked
            self._after = parse_id(entries.last_id())
            self._read += entries.count
            self._adapt(entries)
            if not is_last:
                self._send_ahead()
            yield entries
            if is_last:
                return

    def _next(self) -> Entries:
        if self._wire is None:
            self._wire = open_for(self._connection, self._span.stream, self._span.address)
            self._look_at_floor(self._wire)
            self._wire.send(self._request())
        return self._wire.entries()

    def _send_ahead(self) -> None:
        if self._wire is None or self._after >= self._span.upto:
            return
        try:
            self._wire.send(self._request())
        except Unavailable:
            self.close()  # these entries are whole; the next call opens again

    def _request(self) -> bytes:
        span = self._span
        return packed(("XRANGE", span.stream, f"({text_of(self._after)}", text_of(span.upto), "COUNT", self._asked))

    def _adapt(self, entries: Entries) -> None:
        mean = max(1, entries.size // entries.count)
        self._asked = max(10, min(self._fetch, REPLY_BYTES // mean))

    def _look_at_floor(self, wire: Wire) -> None:
        """Note whether the span was trimmed, where that is not seen from the number of its entries."""
        if self._span.count is None and not self._read:
            self._is_cut = self._is_trimmed(wire)

    def _is_trimmed(self, wire: Wire) -> bool:
        if self._span.floor is None:
            return self._span.count is not None  # an offset of an older version: not known, so take it for trimmed
        first = wire.ask("XRANGE", self._span.stream, "-", "+", "COUNT", 1)
        return not first or parse_id(first[0][0]) > self._span.floor

    def lost(self) -> int | str:
        """Return how many entries were trimmed, or a word where that is not known.

        Entries that were deleted by name since the batch was planned (XDEL, XACKDEL) are not lost: whoever deleted
        them meant them. Trimming begins at the start of the stream, so if that still stands, nothing was trimmed.
        """
        if self._span.count is None:
            return "some" if self._is_cut else 0
        missing = max(0, self._span.count - self._read)
        if not missing or patiently(self._connection.retry_s, self._ask_trimmed):
            return missing
        log.warning(
            "%d entries of %r were deleted after the batch was planned: it has none of them", missing, self._span.stream
        )
        return 0

    def _ask_trimmed(self) -> bool:
        with open_for(self._connection, self._span.stream, self._span.address) as wire:
            return self._is_trimmed(wire)

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None
