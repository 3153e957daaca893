"""Fast path for pipelined requests that differ only in their last word: appends, acknowledgements, releases.

    *5 $4 XADD $1 s $1 * $1 f │ $100 …        opening, the same in all of them │ the last word, as a bulk string

The bytes are split at this opening instead of being parsed word by word. The last words stay bulk strings: in this form
they are sent and logged. Each must have the length that its header states. The decoder takes everything else.

Twin: `RequestDecoder`. Test: tests/server/batching/test_hot_commands.py (runs of alike requests).
"""

from __future__ import annotations

from typing import Final

from millstream.server.protocol.resp import header_of

_LONGEST_TAIL: Final = 4096
# Expected `$<len>\r\n` prefix for each total bulk length; `!` marks impossible lengths.
_BULK_STARTS: Final = [b"!"] * _LONGEST_TAIL
for _size in range(_LONGEST_TAIL - 16):
    _start = b"$%d\r\n" % _size
    _BULK_STARTS[len(_start) + _size + 2] = _start
_STARTS: Final = tuple(
    b"*%d\r\n$%d\r\n%b\r\n" % (count, len(word), word)
    for count, name in ((5, b"XADD"), (4, b"XACK"), (7, b"XNACK"))
    for word in (name, name.lower())
)


class Alike:
    """Requests that differ in their last word only: the words before it, and each last word as a bulk string."""

    __slots__ = ("bulks", "opening", "words")

    def __init__(self, opening: bytes, words: list[bytes], bulks: list[bytes]) -> None:
        self.opening = opening  # the bytes that all begin with
        self.words = words
        self.bulks = bulks

    def requests(self, done: int) -> list[list[bytes]]:
        """Return the requests as words, without the first `done`."""
        return [[*self.words, bulk[bulk.index(b"\n") + 1 : -2]] for bulk in self.bulks[done:]]


class AlikeReader:
    """Reads requests that differ only in their last word, and remembers the opening of the last ones."""

    __slots__ = ("_opening", "_words")

    def __init__(self) -> None:
        self._opening = b"?"  # no request begins like this
        self._words: list[bytes] = []

    def read(self, pieces: list[bytes]) -> Alike | None:
        """Read pieces of one request each, or one piece of several requests. Returns None if they are not alike."""
        first = pieces[0]
        if not first.startswith(self._opening) and not self._learn(first):
            return None
        opening = self._opening
        if len(pieces) == 1:
            bulks = first.split(opening)
            if bulks.pop(0):
                return None
        else:
            size = len(opening)
            bulks = [piece[size:] for piece in pieces if piece.startswith(opening)]
            if len(bulks) != len(pieces):
                return None
        for bulk in bulks:
            size = len(bulk)
            if size >= _LONGEST_TAIL or not bulk.startswith(_BULK_STARTS[size]) or not bulk.endswith(b"\r\n"):
                return None
        return Alike(opening, self._words, bulks)

    def _learn(self, data: bytes) -> bool:
        """Remember the opening of a request, if it has a form that this module reads. Returns whether it has."""
        if not data.startswith(_STARTS):
            return False
        count = data[1] - 48
        lines = data.split(b"\r\n", 2 * count)
        words = lines[2 : 2 * count : 2]
        try:
            if lines[1 : 2 * count - 1 : 2] != list(map(header_of, map(len, words))):
                return False
        except IndexError:  # a word longer than the table
            return False
        if len(lines) <= 2 * count:
            return False
        self._opening, self._words = b"\r\n".join(lines[: 2 * count - 1]) + b"\r\n", words
        return True


def split_alike(pieces: list[bytes], count: int) -> list[list[bytes]] | None:
    """Split pieces of one whole request of `count` words each; see `_split_evenly`. Returns None if one is not.

    Each piece must have the right number of lines and end with a line end, so that requests of peers do not mix.
    """
    lines: list[bytes] = []
    size = 2 * count + 2
    for piece in pieces:
        lines += piece.split(b"\r\n")
        if len(lines) % size or lines[-1]:
            return None
    starts = lines[::size]
    if len(starts) != len(pieces) or starts.count(b"*%d" % count) != len(starts):
        return None
    del lines[::size]
    del lines[size - 2 :: size - 1]
    words = lines[1::2]
    try:
        if lines[::2] != list(map(header_of, map(len, words))):
            return None
    except IndexError:  # a word longer than the table
        return None
    return [words[at : at + count] for at in range(0, len(words), count)]
