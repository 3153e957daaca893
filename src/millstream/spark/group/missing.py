"""Accounts for entries of a batch that are gone before a task has read them.

They are pending and no longer in the stream, because a producer has trimmed it. A task that finds fewer entries than
its part has takes them off the pending list and counts them as trimmed. Otherwise the end of the batch would count them
as done, although no row was handed out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from millstream.errors import ServerReplied
from millstream.printable import safe_logger
from millstream.spark.group.offsets import OffsetPart
from millstream.spark.group.options import GroupRead
from millstream.spark.group.reader import Chunk, read_part
from millstream.spark.group.terms import batches_of
from millstream.spark.ids import parse_id, text_of
from millstream.spark.runtime.errors import patiently
from millstream.spark.wire.metadata import StreamMetadata

log = safe_logger(logging.getLogger(__name__))


def read_accounted(options: GroupRead, part: OffsetPart) -> Iterator[Chunk]:
    """Read a part, and take off the pending list what is gone. Each chunk is valid until the next is asked for."""
    rows = 0
    for chunk in read_part(options.read.connection, part, options.read.fetch):
        rows += chunk.entries.count
        yield chunk
    if rows < part.rows:
        found = drop_trimmed(options, part)
        log.error("%d entries of %r were trimmed while they were pending: no row was made of them", found, part.stream)


def drop_trimmed(options: GroupRead, part: OffsetPart) -> int:
    """Take entries of a part that are gone off the pending list. Returns how many were."""
    server = StreamMetadata(options.read.connection)
    try:
        return patiently(options.read.connection.retry_s, lambda: _drop(server, options, part))
    finally:
        server.close()


def _drop(server: StreamMetadata, options: GroupRead, part: OffsetPart) -> int:
    lowest = min([span.after for span in part.spans] + [each.id - 1 for each in part.picked])
    highest = max([span.upto for span in part.spans] + [each.id for each in part.picked])
    batches = batches_of(part.stream, options.terms, server.backend.capabilities)
    after, trimmed = text_of(max(0, lowest)).encode(), 0
    try:
        while after and parse_id(after) < highest:
            page = server.backend.run(batches.renew(part.consumer.encode(), after))
            after, trimmed = page.after, trimmed + page.trimmed
    except ServerReplied as error:
        if error.code != "NOGROUP":
            raise
    return trimmed
