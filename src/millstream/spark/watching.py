"""Appends rows exactly once by transactions: half as much work for the server again as plain XADD, not twice as much.

    WATCH the fence, read it ──▶ MULTI, count, XADD …, count and note, EXEC ──▶ WATCH, read: is it what it should be?
             ▲                                                                        │ somebody else wrote meanwhile
             └────────────────────────────────────────────────────────────────────────┘

Somebody else is another attempt of the same task: Spark may begin one while the last one still runs. A transaction goes
on behind a row that is refused. So what is noted down is what was counted, and for rows that bring ids with them, of
which any may be refused, there is the script of `FenceWriter`, which stops there.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import hiredis
import pyarrow as pa

from millstream.errors import ServerReplied
from millstream.spark.options import Write
from millstream.spark.packing import Packed
from millstream.spark.wire import packed
from millstream.spark.writing import Identity, PlainWriter, check_slot, data_of, fence_key

_AROUND = 6  # answers beside those of rows: MULTI, twice the count, EXEC, WATCH, HGET


class WatchWriter(PlainWriter):
    """Appends rows to one stream exactly once; the server makes their ids."""

    can_resend = True
    usual_chunk = 500  # the server does nothing else during a transaction: a millisecond and a half

    def __init__(self, options: Write, stream: str, identity: Identity) -> None:
        super().__init__(options, stream, identity)
        self._out: tuple[int, pa.Array] | None = None  # not yet known to be there: number of the first row, rows
        self._sent = 0  # how many of these went into the last transaction
        self._done: int | None = None  # rows that the fence has; None: this connection does not watch it
        self._look = packed(["WATCH", self._fence]) + packed(["HGET", self._fence, identity.partition])
        self._begin = packed(["MULTI"]) + self._count()

    def write(self, rows: Packed) -> None:
        """Send these rows; the answer to the last chunk may still be out."""
        frames = self._frames(rows)
        for start in range(0, len(rows), self._chunk):
            self.finish()
            part = frames.slice(start, self._chunk)
            self._out = (self.rows, part)
            self.rows += len(part)
            self._carefully(self._send_again)

    def finish(self) -> None:
        """Wait until the rows are there."""
        while self._out is not None:
            self._carefully(self._confirm)

    def close(self) -> None:
        super().close()
        self._done = None

    @property
    def _fence(self) -> bytes:
        return fence_key(self.stream, self._identity.query)

    def _check(self) -> None:
        check_slot(self._options, self.stream)

    def _send_again(self) -> None:
        """Send of the chunk what is not there yet."""
        assert self._out is not None
        first, part = self._out
        if self._wire is None:
            self._wire = self._open()
        if self._done is None:
            self._wire.send(self._look)
            self._done = self._noted(self._wire.replies(2))
        if self._done < first:
            raise ServerReplied(f"GAP row {first} came after {self._done} rows")
        left = part.slice(min(self._done - first, len(part)))
        if not len(left):
            self._out = None
            return
        self._sent = len(left)
        who, options = self._identity, self._options
        end = self._count(who.batch, self._done, options.fence_ttl_s) + packed(["EXEC"]) + self._look
        self._wire.send(self._begin + data_of(left) + end)

    def _confirm(self) -> None:
        if self._wire is None:
            self._send_again()
        if self._out is None:
            return
        assert self._wire is not None
        first, part = self._out
        answers = self._wire.replies(self._sent + _AROUND)
        self._done = self._noted(answers[-2:])
        if self._done >= first + len(part):
            self._out = None
            self._patience.renew()
        elif (happened := answers[-3]) is None:  # nothing: the fence has changed since we looked
            self._send_again()
        else:
            raise _first_error([*answers, *(happened if isinstance(happened, list) else ())])

    def _noted(self, answers: list[Any]) -> int:
        """How many rows of this batch the fence has, by the answers to `_look`."""
        watched, noted = answers
        if isinstance(watched, hiredis.ReplyError) or isinstance(noted, hiredis.ReplyError):
            raise _first_error(answers)
        if noted is None:
            return 0
        batch, rows = (int(word) for word in noted.split(b":"))
        if batch > self._identity.batch:
            raise ServerReplied(f"STALE batch {self._identity.batch} came after batch {batch}")
        return rows if batch == self._identity.batch else 0

    def _count(self, *words: int) -> bytes:
        return packed(["EVAL", count_script(), 2, self.stream, self._fence, self._identity.partition, *words])


def _first_error(answers: list[Any]) -> ServerReplied:
    errors = (str(answer) for answer in answers if isinstance(answer, hiredis.ReplyError))
    return ServerReplied(next(errors, "ERR the rows are not there, and the server does not say why"))


@cache
def count_script() -> bytes:
    """The script around the rows of a transaction. By its text: one that is not known would be noticed too late."""
    return (resources.files("millstream.spark") / "lua" / "count.lua").read_bytes()
