"""Reads what a batch in group mode holds, and takes what a group has new. Knows nothing of rows or plans.

Executors read a batch with XRANGE: nothing is counted as another delivery, and a batch that is run again reads what it
read before. New entries are taken by the planner with XREADGROUP, whose reply is read as an XRANGE's behind the first
words of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from millstream.errors import BackendError, ServerReplied
from millstream.printable import safe_logger
from millstream.spark.group.offsets import OffsetPart, Picked
from millstream.spark.ids import text_of
from millstream.spark.options import ConnectionOptions
from millstream.spark.range.reader import read_span
from millstream.spark.runtime.errors import Patience
from millstream.spark.wire.resp_arrow import Bytes, Entries, EntriesReader, ListedEntries
from millstream.spark.wire.socket import Address, Wire, open_for, packed

log = safe_logger(logging.getLogger(__name__))

SINGLES = 500  # picked entries that are asked for at once


@dataclass(frozen=True, slots=True)
class Chunk:
    """Entries, and what is known of their deliveries."""

    entries: Entries
    consumer: str
    picked: tuple[Picked, ...] | None = None  # None: all were delivered for the first time

    def about(self) -> dict[str, pa.Array]:
        """Return the columns about deliveries."""
        count = self.entries.count
        if self.picked is None:
            numbers, idle = pa.repeat(pa.scalar(1, pa.int32()), count), pa.repeat(pa.scalar(0, pa.int64()), count)
        else:
            numbers = pa.array([each.deliveries for each in self.picked], pa.int32())
            idle = pa.array([each.idle_ms for each in self.picked], pa.int64())
        return {"delivery_count": numbers, "idle_ms": idle, "consumer": pa.repeat(pa.scalar(self.consumer), count)}


def read_part(connection: ConnectionOptions, part: OffsetPart, fetch: int) -> Iterator[Chunk]:
    """Yield the existing entries of a part. Each chunk is valid until the next one is requested."""
    if part.picked:
        yield from _read_picked(connection, part)
    for span in part.spans:
        for entries in read_span(connection, span, fetch, fail_on_loss=False):
            yield Chunk(entries, part.consumer)


def _read_picked(connection: ConnectionOptions, part: OffsetPart) -> Iterator[Chunk]:
    patience, wire = Patience(connection.retry_s), None
    for start in range(0, len(part.picked), SINGLES):
        page = part.picked[start : start + SINGLES]
        while True:
            try:
                wire = wire or open_for(connection, part.stream, part.address)
                chunk = _chunk(wire, part, page)
                patience.renew()
                break
            except BackendError as error:
                if wire is not None:
                    wire.close()
                wire = None
                patience.bear(error)
        yield chunk
    if wire is not None:
        wire.close()


def _chunk(wire: Wire, part: OffsetPart, page: tuple[Picked, ...]) -> Chunk:
    ids = [text_of(each.id) for each in page]
    wire.send(b"".join(packed(("XRANGE", part.stream, entry_id, entry_id)) for entry_id in ids))
    rows, found = [], []
    for each, reply in zip(page, wire.replies(len(page)), strict=True):
        if isinstance(reply, Exception):
            raise ServerReplied(str(reply))
        if reply:
            rows.append(reply[0])
            found.append(each)
    if len(found) < len(page):
        log.warning("entries were removed while they were pending: %d of %s", len(page) - len(found), part.stream)
    return Chunk(ListedEntries(rows), part.consumer, tuple(found))


class DeliveredReader(EntriesReader):
    """Reads XREADGROUP's reply for one stream: the entries, behind the stream's name."""

    def _header(self, data: Bytes) -> tuple[int | None, int]:
        head = bytes(data[:64])
        if not head.startswith(b"*1\r\n*2\r\n$"):
            return (0, 5) if head.startswith((b"*-1\r\n", b"*0\r\n")) else super()._header(data)
        size, line_end, _ = head[9:].partition(b"\r\n")
        start = 9 + len(size) + 2 + int(size) + 2 if line_end else len(data)
        line = bytes(data[start : start + 32]).partition(b"\r\n")
        if not line[1]:
            return None, 0
        return int(line[0][1:]), start + len(line[0]) + 2

    def _take_listed(self) -> Entries | None:
        found = super()._take_listed()
        if isinstance(found, ListedEntries) and found.count:
            return ListedEntries(found._reply[0][1], found.size)
        return found


class DeliveryWire(Wire):
    """A connection that XREADGROUP is sent over."""

    def __init__(self, connection: ConnectionOptions, address: Address | None = None) -> None:
        super().__init__(connection, address)
        self._entries = DeliveredReader()


def open_delivery(connection: ConnectionOptions, stream: str, hint: Address | None) -> DeliveryWire:
    """Open a connection to the server that has a stream."""
    with open_for(connection, stream, hint) as found:
        address = found.address
    return DeliveryWire(connection, address)
