"""What the planner asks of the server: which streams there are, what they hold, where ids stand. No decisions.

Every question is asked again while the server is gone, for as long as the options allow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from millstream.errors import ServerReplied
from millstream.spark.ids import parse_id
from millstream.spark.options import Choice, ConnectionOptions
from millstream.spark.range.offsets import Cut
from millstream.spark.range.reader import Span, read_span
from millstream.spark.runtime.errors import patiently
from millstream.spark.wire.socket import Address

if TYPE_CHECKING:
    from millstream.client import Backend

SCAN_COUNT = 1_000


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream as it was a moment ago."""

    length: int
    first: int | None  # ids of the entries at its ends; None: it has none
    last: int | None
    generated: int  # the highest id that it ever had
    added: int | None  # entries that it ever had; None: the server does not count them
    deleted: int = 0  # the highest id that was deleted, not trimmed


@dataclass(frozen=True, slots=True)
class Walk:
    """What was found by going through a range."""

    cuts: tuple[Cut, ...]
    rows: int


class StreamMetadata:
    """The server of a query. Threads may share it."""

    def __init__(self, connection: ConnectionOptions) -> None:
        self._connection = connection
        self._backend: Backend | None = None

    @property
    def backend(self) -> Backend:
        """The connection, made when it is first needed."""
        if self._backend is None:
            from millstream.client import connect  # not needed by executors, who load this module as well

            url, timeout_s = self._connection.url, self._connection.timeout_s
            self._backend = connect(url, timeout_s=timeout_s, accept_weaker=True)
        return self._backend

    def ask(self, *words: bytes | str | int, key: str) -> Any:
        """One command about a key."""
        return patiently(self._connection.retry_s, lambda: self.backend.execute(*words, key=key))

    def find(self, choice: Choice) -> list[str]:
        """Return the chosen streams: as named, or the existing ones of a pattern, sorted."""
        if choice.pattern is None:
            return list(choice.names)
        pattern = choice.pattern
        return patiently(self._connection.retry_s, lambda: sorted(set(self._scan(pattern))))

    def _scan(self, pattern: str) -> Iterator[str]:
        for name in self.backend.scan("MATCH", pattern, "COUNT", SCAN_COUNT, "TYPE", "stream"):
            yield name.decode("utf-8", "surrogateescape")

    def state(self, stream: str) -> StreamState | None:
        """Return the content of a stream, or None if it does not exist."""
        try:
            found = self.ask("XINFO", "STREAM", stream, key=stream)
        except ServerReplied as error:
            if "no such key" in str(error):
                return None
            raise
        return read_state(found)

    def address(self, stream: str) -> Address | None:
        """Where a stream is; None where there is only one place."""
        return patiently(self._connection.retry_s, lambda: self._address(stream))

    def _address(self, stream: str) -> Address | None:
        return Address(*self.backend.node_for(stream)) if self.backend.is_cluster else None

    def placed(self, span: Span) -> Span:
        """Return the span with the location of its stream."""
        return replace(span, address=self.address(span.stream))

    def walk(self, span: Span, fetch: int, every: int, most: int | None, most_bytes: int | None) -> Walk:
        """Go through a range up to so many entries or bytes (but at least one entry); a cut after `every` entries."""
        cuts: list[Cut] = []
        rows = size = last = since = 0
        for entries in read_span(self._connection, self.placed(span), fetch, fail_on_loss=False):
            taken = entries.count if most is None else min(entries.count, most - rows)
            if most_bytes is not None:
                totals = size + np.cumsum(entries.sizes())
                taken = min(taken, max(int(np.searchsorted(totals, most_bytes, "right")), 0 if rows else 1))
                size = int(totals[-1])
            for row in range(every - since - 1, taken, every):
                cuts.append(Cut(parse_id(entries.id_at(row)), every))
            since = (since + taken) % every
            rows += taken
            last = parse_id(entries.id_at(taken - 1)) if taken else last
            if taken < entries.count or rows == most:
                break
        if since:
            cuts.append(Cut(last, since))
        return Walk(tuple(cuts), rows)

    def close(self) -> None:
        if self._backend is not None:
            self._backend.close()
            self._backend = None


def read_state(found: list[Any]) -> StreamState:
    """XINFO STREAM's reply."""
    values = dict(zip(found[::2], found[1::2], strict=True))
    first, last = values.get(b"first-entry"), values.get(b"last-entry")
    return StreamState(
        length=values[b"length"],
        first=parse_id(first[0]) if first else None,
        last=parse_id(last[0]) if last else None,
        generated=parse_id(values[b"last-generated-id"]),
        added=values.get(b"entries-added"),
        deleted=parse_id(values.get(b"max-deleted-entry-id", b"0-0")),
    )
