"""Sends packed rows to a stream and counts the replies. Knows nothing of Spark.

    rows ── chunks ──▶ some in flight ──▶ replies counted, the first error raised

Three ways to send a chunk, and what a chunk that is sent twice does then:

    PlainWriter   XADD after XADD          the rows are there twice
    FenceWriter   one script a chunk       nothing: see `fence`
    IdmpWriter    XADD IDMP                nothing, within the number of rows that the stream remembers
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import BackendError, ConfigError, MillstreamError, ServerReplied
from millstream.spark.options import Write
from millstream.spark.runtime.errors import Patience, worded
from millstream.spark.sink.digests import Occurrences, digest_key, digests_of
from millstream.spark.sink.packing import Packed
from millstream.spark.wire.socket import Wire, open_for

IN_FLIGHT = 8_000  # rows: what the server can do while we pack the next ones
_EMPTY = pa.scalar(b"", pa.binary())
GONE = "an earlier part of this batch is missing in the fence: it was deleted or expired (option 'fenceTtl')"
STALE = (
    "a later batch of this query has been written already: the checkpoint is older than the stream. Use a new "
    "checkpointLocation, or option 'idempotence' none to write it again"
)
_REFUSALS = {"STALE": STALE, "GAP": GONE}


@dataclass(frozen=True, slots=True)
class Identity:
    """Who writes: what is written again under the same identity lands once."""

    query: str
    batch: int
    partition: int


class PlainWriter:
    """Appends rows to one stream, once or, after an error, more often."""

    can_resend = False
    usual_chunk = 2_000  # the server never waits for us, and has no long work in one go: each row is a command

    def __init__(self, options: Write, stream: str, identity: Identity) -> None:
        self._options = options
        self.stream = stream
        self._identity = identity
        self._chunk = options.chunk or self.usual_chunk
        self.rows = 0
        self._wire: Wire | None = None
        self._flying: deque[tuple[bytes, int]] = deque()  # sent and not yet answered, with the lines of the answer
        self._patience = Patience(options.connection.retry_s)
        self._check()

    def write(self, rows: Packed) -> None:
        """Send these rows; the replies to the last chunks may still be out."""
        for data, lines in self._chunks(rows):
            self._flying.append((data, lines))
            self._carefully(partial(self._send, data))
            while len(self._flying) > max(1, IN_FLIGHT // self._chunk):
                self._carefully(self._confirm)

    def finish(self) -> None:
        """Wait for all replies."""
        while self._flying:
            self._carefully(self._confirm)

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _check(self) -> None:
        """Raise if this way cannot work for this stream."""

    def _chunks(self, rows: Packed) -> Iterator[tuple[bytes, int]]:
        frames = self._frames(rows)
        for start in range(0, len(rows), self._chunk):
            part = frames.slice(start, self._chunk)
            self.rows += len(part)
            yield data_of(part), 2 * len(part)

    def _frames(self, rows: Packed) -> pa.Array:
        trim = self._options.trim
        key = self.stream.encode()
        head = b"\r\n$4\r\nXADD\r\n$%d\r\n%s\r\n" % (len(key), key) + b"".join(bulk(word) for word in trim)
        counts = texts(rows.counts + 2 + len(trim))
        return pc.binary_join_element_wise(pa.scalar(b"*", pa.binary()), counts, pa.scalar(head), rows.words, _EMPTY)

    def _carefully(self, act: Any) -> None:
        """Do it; after a lost connection send all that is unanswered again, if that does no harm."""
        while True:
            try:
                act()
                return
            except BackendError as error:
                self.close()
                problem = refused(error, self.stream)
                if not self.can_resend or not isinstance(problem, BackendError):
                    raise problem from error
                self._patience.bear(problem)
                act = self._send_again

    def _send_again(self) -> None:
        for data, _ in list(self._flying):
            self._send(data)

    def _send(self, data: bytes) -> None:
        if self._wire is None:
            self._wire = self._open()
            if self._flying and self._flying[0][0] is not data:
                return self._send_again()
        self._wire.send(data)
        return None

    def _open(self) -> Wire:
        return open_for(self._options.connection, self.stream)

    def _confirm(self) -> None:
        if self._wire is None:
            self._send_again()
        assert self._wire is not None
        self._wire.confirm(self._flying[0][1])
        self._flying.popleft()
        self._patience.renew()  # only now: a server that refuses rows takes their bytes nevertheless


class IdmpWriter(PlainWriter):
    """Appends rows to one stream; the server knows those that it has had, as long as it remembers them.

    A row is known by its content and by how many equal rows its partition had before it, so their order may change.
    Rows that an earlier attempt wrote and that this one does not have are not noticed; the fence notices them.
    """

    can_resend = True
    _remembered: int | None = None

    def __init__(self, options: Write, stream: str, identity: Identity) -> None:
        super().__init__(options, stream, identity)
        self._key = digest_key(identity.query, identity.batch, identity.partition)
        self._occurrences = Occurrences()

    def _chunks(self, rows: Packed) -> Iterator[tuple[bytes, int]]:
        if self.rows + len(rows) > self._memory():
            raise ConfigError(
                f"stream {self.stream!r} remembers {self._memory()} rows a writer and a partition has more: raise that "
                f"(XCFGSET {self.stream} IDMP-MAXSIZE 10000), make batches smaller, or set 'idempotence' to fence"
            )
        return super()._chunks(rows)

    def _memory(self) -> int:
        if self._remembered is None:
            self._wire = self._wire or self._open()
            self._remembered = _remembered(self._wire, self.stream)
        return self._remembered

    def _frames(self, rows: Packed) -> pa.Array:
        who = self._identity
        head = bulk("IDMP") + bulk(f"{who.query}:{who.partition}")
        names = self._occurrences.name(digests_of(rows.words, self._key))
        numbers = pa.array([b"%d:%s" % (who.batch, name) for name in names], pa.binary())
        named = pc.binary_join_element_wise(
            pa.scalar(head + b"$", pa.binary()),
            texts(pc.binary_length(numbers)),
            pa.scalar(b"\r\n", pa.binary()),
            numbers,
            pa.scalar(b"\r\n", pa.binary()),
            rows.words,
            _EMPTY,
        )
        # XADD takes IDMP before the trimming words or after; here it comes after them.
        return super()._frames(Packed(named, rows.counts + 3))


def _remembered(wire: Wire, stream: str) -> int:
    """How many rows of one writer a stream knows again."""
    try:
        found = wire.ask("XINFO", "STREAM", stream)
    except ServerReplied as error:
        if "no such key" not in str(error):
            raise
        return 100  # what a new stream begins with, unless the server is set otherwise
    return int(dict(zip(found[::2], found[1::2], strict=True)).get(b"idmp-maxsize", 0))


def refused(error: BackendError, stream: str) -> MillstreamError:
    """Explain an error if the server's text is not enough."""
    if not isinstance(error, ServerReplied):
        return error
    if hint := _REFUSALS.get(error.code):
        return ConfigError(f"{hint} ({error})")
    if error.code == "BEHIND":
        error.is_retryable = True  # another attempt has written: its rows are left out when we connect again
    if "equal or smaller" in str(error) or "must be greater" in str(error):
        return ConfigError(f"ids in column `id` must rise and be above those of {stream!r}: sort the rows ({error})")
    if error.code == "NOSCRIPT":
        error.is_retryable = True  # the server was restarted: the script is loaded with the next connection
    return error if error.is_retryable else worded(error)


def texts(numbers: Any) -> pa.Array:
    """Numbers in decimal, as bytes."""
    array = pa.array(numbers) if isinstance(numbers, np.ndarray) else numbers
    return array.cast(pa.string()).cast(pa.binary())


def bulk(word: str | bytes | int) -> bytes:
    """Encode a word of a command with its length."""
    data = word if isinstance(word, bytes) else str(word).encode()
    return b"$%d\r\n%s\r\n" % (len(data), data)


def data_of(frames: pa.Array) -> bytes:
    """Return the bytes of all elements, joined."""
    _, offsets, data = frames.buffers()
    places = np.frombuffer(offsets, dtype=np.int32)
    return bytes(memoryview(data)[places[frames.offset] : places[frames.offset + len(frames)]])
