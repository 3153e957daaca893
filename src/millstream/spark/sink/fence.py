"""Appends the rows of a partition exactly once, in whatever order its attempts have them.

    digests of a chunk ── minus what others have written ──▶ rows still to be written ── fence.lua ──▶ stream, digests

Beside the stream the script keeps, for each partition of the running batch, the digests of the rows that are written
and a token that changes with every chunk. A chunk lands only if its writer knows all that was written before; if not,
the writer reads what it does not know and leaves these rows out. So neither another order (after a shuffle), nor other
chunks, nor two attempts at once can lose a row or write one twice. What was written and is not among the rows of this
attempt is an error.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib import resources

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.client.urls import parse_url
from millstream.delivery.keys import Keys, can_share_slot
from millstream.errors import ConfigError
from millstream.spark.options import ConnectionOptions, Write
from millstream.spark.runtime.errors import patiently
from millstream.spark.sink.digests import SIZE, Digests, Unmet, digest_key, digests_of
from millstream.spark.sink.packing import Packed
from millstream.spark.sink.writer import GONE, IN_FLIGHT, STALE, Identity, PlainWriter, bulk, data_of, texts
from millstream.spark.wire.socket import Wire, open_for

_EMPTY = pa.scalar(b"", pa.binary())


def other_rows(stream: str, count: int, where: str) -> ConfigError:
    """Return the error for a replay whose rows are not those that were written."""
    return ConfigError(
        f"{count} rows that an earlier attempt of this batch wrote to {stream!r} are not in {where} when it is run "
        "again: what comes before the sink gives other rows each time. Use no functions whose result changes from call "
        "to call (uuid, rand, the time, sums of doubles after a shuffle), or write the rows to a table first and from "
        "there to the stream"
    )


@dataclass(frozen=True, slots=True)
class _Chunk:
    words: pa.Array
    counts: npt.NDArray[np.int64]
    digests: Digests

    def without(self, met: npt.NDArray[np.bool_]) -> _Chunk:
        if not met.any():
            return self
        return _Chunk(self.words.filter(pa.array(~met)), self.counts[~met], self.digests[~met])


class FenceWriter(PlainWriter):
    """Appends rows to one stream exactly once."""

    can_resend = True
    usual_chunk = 500  # the server does nothing else during a script: two milliseconds

    def __init__(self, options: Write, stream: str, identity: Identity) -> None:
        super().__init__(options, stream, identity)
        self._key = digest_key(identity.query, identity.batch, identity.partition)
        self._unmet = Unmet()
        self._chunks_: deque[_Chunk] = deque()  # sent and not yet answered
        self._written = 0  # rows that the fence has, as far as we know
        self._nonce = os.urandom(6).hex()
        self._number = 0
        self._token = ""  # of the fence after all chunks that were sent

    def _check(self) -> None:
        is_cluster = parse_url(self._options.connection.url).is_cluster
        if is_cluster and not can_share_slot(self.stream.encode()):
            raise ConfigError(
                f"no key can be kept beside stream {self.stream!r} on a cluster, as its braces form no tag: rename it, "
                "or set option 'idempotence' to none"
            )

    def write(self, rows: Packed) -> None:
        """Send these rows, but for those that an earlier attempt has written."""
        digests = digests_of(rows.words, self._key)
        self.rows += len(rows)
        for start in range(0, len(rows), self._chunk):
            part = slice(start, start + self._chunk)
            self._chunks_.append(_Chunk(rows.words.slice(start, self._chunk), rows.counts[part], digests[part]))
            self._carefully(self._send_last)
            while len(self._chunks_) > max(1, IN_FLIGHT // self._chunk):
                self._carefully(self._confirm)

    def finish(self) -> None:
        """Wait for all replies. Raises ConfigError if rows were written that this attempt does not have."""
        while self._chunks_:
            self._carefully(self._confirm)
        if self._unmet:
            raise other_rows(self.stream, len(self._unmet), f"partition {self._identity.partition}")

    def _open(self) -> Wire:
        """Connect, and learn what the fence has beyond what we know."""
        wire = super()._open()
        try:
            wire.ask("SCRIPT", "LOAD", fence_script())
            self._catch_up(wire)
        except BaseException:
            wire.close()
            raise
        return wire

    def _catch_up(self, wire: Wire) -> None:
        who = self._identity
        batch, rows, token = read_note(wire.ask("HGET", fence_key(self.stream, who.query), str(who.partition)))
        if batch > who.batch:
            raise ConfigError(f"{STALE} (batch {who.batch} came after batch {batch})")
        rows, token = (rows, token) if batch == who.batch else (0, "")
        if rows < self._written:
            raise ConfigError(GONE)
        if rows > self._written:
            key = digests_key(self.stream, who.query, who.partition)
            data = wire.ask("GETRANGE", key, self._written * SIZE, rows * SIZE - 1)
            if len(data) != (rows - self._written) * SIZE:
                raise ConfigError(GONE)
            self._unmet.add(data)
        self._written, self._token = rows, token
        self._chunks_ = deque(left for chunk in self._chunks_ if (left := self._unwritten(chunk)).digests.size)

    def _unwritten(self, chunk: _Chunk) -> _Chunk:
        return chunk.without(self._unmet.take(chunk.digests))

    def _send_last(self) -> None:
        if self._wire is None:
            return self._send_again()
        chunk = self._unwritten(self._chunks_.pop())
        if chunk.digests.size:
            self._chunks_.append(chunk)
            self._wire.send(self._call(chunk))
        return None

    def _send_again(self) -> None:
        if self._wire is None:
            self._wire = self._open()
        for chunk in self._chunks_:
            self._wire.send(self._call(chunk))

    def _confirm(self) -> None:
        if self._wire is None:
            self._send_again()
        assert self._wire is not None
        if self._chunks_:
            self._wire.confirm(1)
            self._written += len(self._chunks_.popleft().digests)
        self._patience.renew()

    def _call(self, chunk: _Chunk) -> bytes:
        """Return the script's call for a chunk, to land after those that were sent before it."""
        who, options, counts = self._identity, self._options, chunk.counts
        expected, self._number = self._token, self._number + 1
        self._token = f"{self._nonce}.{self._number}"
        # Rows of as many words each need not say so one by one: a quarter less for the script to take in.
        same = int(counts[0]) if (counts == counts[0]).all() else 0
        fixed: list[str | bytes | int] = [
            "EVALSHA",
            sha1(fence_script()).hexdigest(),
            3,
            self.stream,
            fence_key(self.stream, who.query),
            digests_key(self.stream, who.query, who.partition),
            who.partition,
            who.batch,
            expected,
            self._token,
            options.fence_ttl_s,
            chunk.digests.tobytes(),
            same,
            len(options.trim),
            *options.trim,
        ]
        words = int(counts.sum()) + (0 if same else len(counts))
        rows = data_of(chunk.words if same else _counted(chunk.words, counts))
        return b"*%d\r\n" % (len(fixed) + words) + b"".join(bulk(word) for word in fixed) + rows


def _counted(words: pa.Array, numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Return the words of each row, with their number in front."""
    counts = texts(numbers)
    line = pa.scalar(b"\r\n", pa.binary())
    dollar = pa.scalar(b"$", pa.binary())
    return pc.binary_join_element_wise(dollar, texts(pc.binary_length(counts)), line, counts, line, words, _EMPTY)


@cache
def fence_script() -> bytes:
    """Return the script of FenceWriter."""
    return (resources.files("millstream.spark") / "lua" / "fence.lua").read_bytes()


def fence_key(stream: str, query: str) -> bytes:
    """Return the key of the hash in which a query notes what it has written; in the stream's slot."""
    return Keys(stream.encode()).base + b":fence:" + query.encode()


def digests_key(stream: str, query: str, partition: int) -> bytes:
    """Return the key of the digests of the rows that a partition has written."""
    return fence_key(stream, query) + b":%d" % partition


def read_note(note: bytes | None) -> tuple[int, int, str]:
    """Return batch, rows and token of a partition's note; batch -1 if there is none."""
    if note is None:
        return -1, 0, ""
    batch, rows, *token = note.decode().split(":")
    return int(batch), int(rows), token[0] if token else ""


def check_written(
    connection: ConnectionOptions, stream: str, query: str, batch: int, expected: Mapping[int, int], *, forget: bool
) -> None:
    """Raise unless the fence has just the rows that the tasks of a batch had, partition by partition.

    This finds what no task can: a partition that an earlier run of the batch had and that this run has not. `forget`
    removes the fence.
    """
    notes: dict[int, int] = {}

    def ask() -> None:
        with open_for(connection, stream) as wire:
            found = wire.ask("HGETALL", fence_key(stream, query))
            names = [int(name) for name in found[::2]]
            for name, (number, rows, _) in zip(names, map(read_note, found[1::2]), strict=True):
                if number == batch and rows:
                    notes[name] = rows
            if forget:
                wire.ask("DEL", fence_key(stream, query), *(digests_key(stream, query, name) for name in names))

    patiently(connection.retry_s, ask)
    if forget and not notes:
        return  # asked a second time after a lost reply
    more = sum(max(0, rows - expected.get(name, 0)) for name, rows in notes.items())
    if more:
        raise other_rows(stream, more, "any of its partitions")
    if any(notes.get(name, 0) != rows for name, rows in expected.items()):
        raise ConfigError(GONE)
