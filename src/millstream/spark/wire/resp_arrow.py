"""Entries from the bytes of a reply, a column at a time. Knows nothing of sockets, streams or types.

    *2 $15 1700000000000-0 *2 $1 v $100 …      one entry: its id, then names and values
    ▲  ▲                   ▲  ▲    ▲           tokens: each follows CR LF and starts with `*` or `$`

A reply of XRANGE is taken apart without a loop over its entries: numpy finds the tokens, and the width of each one
must be the width that its own length header gives. If all do, the tokens are right by induction: the first starts
where the reply starts, and each one that is right ends where the next starts. A payload may hold any bytes, CR LF
too; only one that has `\\r\\n$` or `\\r\\n*` in it looks like a token, makes some width wrong, and sends this reply
to hiredis instead. Values are then gathered with Arrow's `take`: no Python object a value.

An `Entries` is valid until its reader is fed again: it looks into the reader's buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cached_property
from typing import Any, Protocol

import hiredis
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.errors import CommandError, ProtocolError

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

CR, LF, DOLLAR, STAR, DASH, ZERO = 13, 10, 36, 42, 45, 48
FIRST_SIZE = 1 << 18  # of a buffer; it grows with the replies
_MOST_INT32 = (1 << 31) - 1
_MOST_DIGITS = 10  # of a length: a value has at most 512 MB


class Entries(Protocol):
    """Entries of one reply, as columns."""

    count: int
    size: int  # of the reply, in bytes

    def last_id(self) -> bytes: ...
    def id_at(self, row: int) -> bytes: ...
    def sizes(self) -> Ints:
        """Bytes of each entry in the reply."""

    def ids(self) -> pa.Array:
        """As binary."""

    def times(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Return the two halves of each id: milliseconds, sequence number."""

    def field(self, name: bytes) -> pa.Array:
        """Return a field's values as binary, null where it is missing; of several with one name, the last."""

    def fields(self) -> tuple[Ints, pa.Array, pa.Array]:
        """All fields, flat: where each entry's start and end in it, names, values."""


class ParserState(Enum):
    """What became of an attempt to parse."""

    INCOMPLETE = "more bytes are needed"
    IRREGULAR = "some payload looks like a token"


class TokenEntries:
    """Entries found by their tokens."""

    def __init__(self, data: Bytes, end: int, tokens: _Tokens) -> None:
        self.count = len(tokens.entries)
        self.size = end
        self._data = data[:end]
        self._tokens = tokens

    def last_id(self) -> bytes:
        return self.id_at(self.count - 1)

    def id_at(self, row: int) -> bytes:
        token = int(self._tokens.entries[row]) + 1
        start = int(self._tokens.starts[token])
        return bytes(self._data[start : start + int(self._tokens.sizes[token])])

    def sizes(self) -> Ints:
        begins = self._tokens.places[self._tokens.entries]
        return np.diff(begins, append=self.size)

    def ids(self) -> pa.Array:
        return self._take(self._tokens.entries + 1)

    def times(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        tokens = self._tokens.entries + 1
        starts, sizes = self._tokens.starts[tokens], self._tokens.sizes[tokens]
        dashes = self._dashes(starts, sizes)
        return _numbers(self._data, starts, dashes), _numbers(self._data, starts + dashes + 1, sizes - dashes - 1)

    def _dashes(self, starts: Ints, sizes: Ints) -> Ints:
        """Where the dash stands in each id; 13 digits before it for any time until the year 2286."""
        if bool((sizes > 13).all()) and bool((self._data[starts + 13] == DASH).all()):
            return np.full(len(starts), 13)
        found = np.zeros(len(starts), dtype=np.int64)
        for place in range(1, int(sizes.max(initial=0))):
            here = (found == 0) & (place < sizes)
            found[here] = np.where(self._data[starts[here] + place] == DASH, place, 0)
        return found

    def field(self, name: bytes) -> pa.Array:
        if self._names is not None:
            places = [at for at, own in enumerate(self._names) if own == name]
            if not places:
                return pa.nulls(self.count, pa.binary())
            return self._take(self._tokens.entries + 4 + 2 * places[-1])
        keys, rows = self._flat
        sizes, starts = self._tokens.sizes[keys], self._tokens.starts[keys]
        alike = np.flatnonzero(sizes == len(name))
        alike = alike[_equal(self._data, starts[alike], name)]
        chosen = np.full(self.count, -1, dtype=np.int64)
        chosen[rows[alike]] = keys[alike] + 1  # of one row's several the last is kept
        return self._take(chosen)

    def fields(self) -> tuple[Ints, pa.Array, pa.Array]:
        keys, _ = self._flat
        offsets = np.zeros(self.count + 1, dtype=np.int64)
        np.cumsum(self._tokens.counts, out=offsets[1:])
        return offsets, self._take(keys), self._take(keys + 1)

    @cached_property
    def _names(self) -> list[bytes] | None:
        """The field names if all entries have the same in the same order, else None."""
        tokens = self._tokens
        if not self.count or int(tokens.counts.min()) != int(tokens.counts.max()):
            return None
        names = []
        for at in range(int(tokens.counts[0])):
            keys = tokens.entries + 3 + 2 * at
            starts, size = tokens.starts[keys], int(tokens.sizes[keys[0]])
            name = bytes(self._data[int(starts[0]) : int(starts[0]) + size])
            if not bool((tokens.sizes[keys] == size).all()) or not bool(_equal(self._data, starts, name).all()):
                return None
            names.append(name)
        return names

    @cached_property
    def _flat(self) -> tuple[Ints, Ints]:
        """The token of each field's name, and the row that it belongs to."""
        counts = self._tokens.counts
        rows = np.repeat(np.arange(self.count), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self._tokens.entries[rows] + 3 + 2 * within, rows

    @cached_property
    def _all(self) -> pa.Array:
        """Every token's payload and, between them, what is in between: no byte is copied."""
        starts, sizes = self._tokens.starts, self._tokens.sizes
        is_large = self.size > _MOST_INT32
        offsets = np.empty(2 * len(starts), dtype=np.int64 if is_large else np.int32)
        offsets[0::2] = starts
        offsets[1::2] = starts + sizes
        kind = pa.large_binary() if is_large else pa.binary()
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._data)]
        return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)

    def _take(self, tokens: Ints) -> pa.Array:
        """Copy the payloads of these tokens; null for -1."""
        absent = tokens < 0
        # Not pa.array(): it would import pandas to see whether this is a pandas object.
        present = pa.py_buffer(np.packbits(~absent, bitorder="little")) if bool(absent.any()) else None
        doubled = np.where(absent, 0, tokens * 2) if present else tokens * 2
        taken = self._all.take(pa.Array.from_buffers(pa.int64(), len(tokens), [present, pa.py_buffer(doubled)]))
        return taken.cast(pa.binary()) if taken.type == pa.large_binary() else taken


class ListedEntries:
    """Entries that hiredis has read: [[id, [name, value, …]], …]."""

    def __init__(self, reply: Sequence[Any], size: int = 0) -> None:
        self._reply = reply
        self.count = len(reply)
        self.size = size

    def last_id(self) -> bytes:
        return self.id_at(self.count - 1)

    def id_at(self, row: int) -> bytes:
        found: bytes = self._reply[row][0]
        return found

    def sizes(self) -> Ints:
        return np.array([sum(map(len, flat)) + 8 * len(flat) + 32 for _, flat in self._reply], dtype=np.int64)

    def ids(self) -> pa.Array:
        return pa.array([entry[0] for entry in self._reply], pa.binary())

    def times(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        halves = [entry[0].split(b"-") for entry in self._reply]
        return tuple(np.array([int(half[at]) for half in halves], dtype=np.uint64) for at in (0, 1))  # type: ignore[return-value]

    def field(self, name: bytes) -> pa.Array:
        found = (dict(zip(flat[::2], flat[1::2], strict=True)).get(name) for _, flat in self._reply)
        return pa.array(list(found), pa.binary())

    def fields(self) -> tuple[Ints, pa.Array, pa.Array]:
        offsets = np.zeros(self.count + 1, dtype=np.int64)
        np.cumsum([len(flat) // 2 for _, flat in self._reply], out=offsets[1:])
        names = [name for _, flat in self._reply for name in flat[::2]]
        values = [value for _, flat in self._reply for value in flat[1::2]]
        return offsets, pa.array(names, pa.binary()), pa.array(values, pa.binary())


class _Tokens:
    """Tokens of a whole reply: where their payloads are, which of them begin an entry."""

    __slots__ = ("counts", "entries", "places", "sizes", "starts")

    def __init__(self, places: Ints, starts: Ints, sizes: Ints, entries: Ints, counts: Ints) -> None:
        self.places = places  # of the tokens themselves
        self.starts = starts
        self.sizes = sizes
        self.entries = entries  # the tokens `*2`; an entry's id is the next, then its `*n`, then names and values
        self.counts = counts  # fields of each entry


def find_tokens(data: Bytes, start: int, expected: int) -> _Tokens | ParserState:
    """Return the tokens of the entries at `start`, if they are `expected` whole entries up to the end of the data."""
    end = len(data)
    if end < start + 2 or data[end - 2] != CR or data[end - 1] != LF:
        return ParserState.INCOMPLETE
    places, headers = _candidates(data, start)
    if not len(places) or places[0] != start:
        return ParserState.IRREGULAR
    said = _numbers_before(data, headers, headers - places - 1)
    sizes = np.append(places[1:], end) - headers - 4
    is_list = data[places] == STAR
    wrong = np.flatnonzero(np.where(is_list, sizes != -2, sizes != said))
    if len(wrong):  # all before it are right, so that its header can be believed
        first = int(wrong[0])
        is_cut = not is_list[first] and int(headers[first] + said[first]) + 4 > end
        return ParserState.INCOMPLETE if is_cut else ParserState.IRREGULAR
    tokens = _Tokens(places, headers + 2, sizes, *_entries(np.flatnonzero(is_list), len(places)))
    return _structured(tokens, said, expected)


def _entries(lists: Ints, total: int) -> tuple[Ints, Ints]:
    """Which tokens begin an entry, and how many names and values follow its list header."""
    entries = lists[0::2]
    return entries, np.diff(entries, append=total) - 3


def _structured(tokens: _Tokens, said: Ints, expected: int) -> _Tokens | ParserState:
    """Return the tokens, if their entries have the expected number and sizes."""
    entries, words = tokens.entries, tokens.counts
    if len(entries) < expected or (len(words) and int(entries[-1]) + 2 >= len(said)):
        return ParserState.INCOMPLETE
    wanted = said[entries + 2]
    if words[-1] < wanted[-1]:
        return ParserState.INCOMPLETE
    is_sound = len(entries) == expected and bool((words == wanted).all()) and bool((said[entries] == 2).all())
    if not is_sound or bool((words % 2 == 1).any()):
        return ParserState.IRREGULAR
    tokens.sizes[entries] = tokens.sizes[entries + 2] = 0
    tokens.counts = words // 2
    return tokens


def _candidates(data: Bytes, start: int) -> tuple[Ints, Ints]:
    """Where `*` or `$` follow CR LF; and where the line that begins there ends."""
    body = data[start - 2 :]
    breaks = np.flatnonzero(body[:-2] == CR)
    marks = body[breaks + 2]
    breaks += start - 2
    chosen = np.flatnonzero(((marks == STAR) | (marks == DOLLAR)) & (data[breaks + 1] == LF))
    places = breaks[chosen] + 2
    ends = np.append(breaks, len(data) - 2)[chosen + 1]
    # A length header that is followed by a token at once has a payload that looks like one.
    bare = np.flatnonzero((ends[:-1] + 2 == places[1:]) & (data[places[:-1]] == DOLLAR))
    if not len(bare):
        return places, ends
    false = _every_other(bare) + 1  # what is no header itself says nothing of the one behind it
    return np.delete(places, false), np.delete(ends, false)


def _every_other(rising: Ints) -> Ints:
    """Of each run of successive numbers the first, the third, and so on."""
    begins = np.diff(rising, prepend=-2) > 1
    firsts = rising[begins][np.cumsum(begins) - 1]
    chosen: Ints = rising[(rising - firsts) % 2 == 0]
    return chosen


def _numbers_before(data: Bytes, ends: Ints, digits: Ints) -> Ints:
    """Return the decimal numbers of `digits` digits that end at these positions. Other text gives any number."""
    found = np.zeros(len(ends), dtype=np.int64)
    least, most = int(digits.min(initial=1)), min(int(digits.max(initial=1)), _MOST_DIGITS)
    for place in range(most):
        digit = data[ends - 1 - place].astype(np.int64)
        digit -= ZERO
        digit *= 10**place
        if place >= least:
            digit[digits <= place] = 0
        found += digit
    return found


def _equal(data: Bytes, starts: Ints, text: bytes) -> npt.NDArray[np.bool_]:
    """Where this text stands."""
    if not text:
        return np.ones(len(starts), dtype=bool)
    wanted = np.frombuffer(text, dtype=np.uint8)
    same: npt.NDArray[np.bool_] = (data[starts[:, None] + np.arange(len(text))] == wanted).all(axis=1)
    return same


def _numbers(data: Bytes, starts: Ints, sizes: Ints) -> npt.NDArray[np.uint64]:
    """Decimal numbers of so many digits, digit by digit."""
    found = np.zeros(len(starts), dtype=np.uint64)
    shortest, longest = int(sizes.min(initial=0)), int(sizes.max(initial=0))
    for place in range(longest):
        if place < shortest:
            found *= np.uint64(10)
            found += data[starts + place] - np.uint8(ZERO)
        else:
            rows = np.flatnonzero(sizes > place)
            found[rows] = found[rows] * np.uint64(10) + (data[starts[rows] + place] - np.uint8(ZERO))
    return found


class EntriesReader:
    """Bytes in, in any pieces; the entries of one reply out, when it is whole.

        view = reader.space(); received = sock.recv_into(view); reader.fill(received)
        entries = reader.take()        None: more bytes are needed

    One reply at a time: the next request may be sent before, but not be read before, its entries are used up.
    """

    def __init__(self) -> None:
        self._buffer = np.empty(FIRST_SIZE, dtype=np.uint8)
        self._filled = 0
        self._listing: hiredis.Reader | None = None  # the reply is irregular: hiredis has had `_fed` bytes of it
        self._fed = 0

    def space(self) -> memoryview:
        """Where received bytes go."""
        if self._filled == len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.empty_like(self._buffer)])
        return self._buffer.data[self._filled :]

    def fill(self, received: int) -> None:
        """So many bytes have been put there."""
        self._filled += received

    def feed(self, data: bytes) -> None:
        """Take these bytes."""
        for start in range(0, len(data), FIRST_SIZE):
            piece = data[start : start + FIRST_SIZE]
            while len(space := self.space()) < len(piece):
                self._buffer = np.concatenate([self._buffer, np.empty_like(self._buffer)])
            space[: len(piece)] = piece
            self.fill(len(piece))

    @property
    def could_be_whole(self) -> bool:
        """Whether the bytes end like a reply: if not, `take` has nothing yet."""
        filled = self._filled
        return filled > 3 and bool(self._buffer[filled - 1] == LF) and bool(self._buffer[filled - 2] == CR)

    def take(self) -> Entries | None:
        """Return the entries, if the reply is whole. Raises an error reply as a CommandError."""
        if not self.could_be_whole:
            return None
        if self._listing is not None:
            return self._take_listed()
        data = self._buffer[: self._filled]
        count, start = self._header(data)
        if count is None:
            return None
        if count == 0:
            return self._done(ListedEntries([], start))
        found = find_tokens(data, start, count)
        if isinstance(found, _Tokens):
            return self._done(TokenEntries(data, self._filled, found))
        if found is ParserState.IRREGULAR:
            self._listing, self._fed = hiredis.Reader(), 0
            return self._take_listed()
        return None

    def _header(self, data: Bytes) -> tuple[int | None, int]:
        """Return the number of entries and the offset of the first."""
        line = bytes(data[:32]).partition(b"\r\n")
        if data[0] != STAR or not line[1]:
            self._refuse(bytes(data))
            return None, 0
        return int(line[0][1:]), len(line[0]) + 2

    def _refuse(self, data: bytes) -> None:
        """Raise what came instead of entries, if it is whole."""
        if data[:1] != b"-":
            raise ProtocolError(f"a list of entries was expected, but the server sent {data[:40]!r}")
        if data.endswith(b"\r\n"):
            self._filled = 0
            raise CommandError(data[1:-2])

    def _take_listed(self) -> Entries | None:
        assert self._listing is not None
        self._listing.feed(bytes(self._buffer[self._fed : self._filled]))
        self._fed = self._filled
        reply = self._listing.gets()
        if reply is False:
            return None
        self._listing = None
        return self._done(ListedEntries(reply, self._filled))

    def _done(self, entries: Entries) -> Entries:
        self._filled = 0
        return entries
