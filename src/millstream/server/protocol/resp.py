"""RESP2 and RESP3: replies to bytes, and bytes to requests. Knows no sockets and runs no commands.

    Outcome.reply ── encode(reply, protocol) ──▶ bytes
    bytes ── RequestDecoder.feed() ──▶ next() ──▶ argv

The decoder has a quick and a careful way to read. Nearly every client sends whole requests in their one canonical
form: a few of them are split at line ends, many are parsed by hiredis, and the result is believed when the lengths
agree. Whatever is left (inline commands, requests cut by the end of a chunk, odd or broken ones) is read a header
at a time by code that knows each protocol error by name.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

import hiredis

from millstream.engine.outcome import ByKey, Encoded, Members, NilArray, Pairs, Push, Reply, Scored, Simple, Verbatim
from millstream.engine.text.args import as_integer
from millstream.engine.text.floats import double_text
from millstream.errors import CommandError, ProtocolError
from millstream.server.protocol.sequence import Several

# Replies

LARGE: Final = 4096  # bytes of a bulk string that is sent without being copied


def encode(reply: Reply, protocol: int) -> bytes:
    """Encode a reply in RESP2 or RESP3."""
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if type(reply) is bytes:
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    out: list[bytes] = []
    append_reply(out, reply, protocol)
    return b"".join(out)


def append_reply(out: list[bytes], reply: Any, protocol: int) -> None:
    """Append the bytes of a reply to `out`, in pieces."""
    kind = type(reply)
    if kind is Encoded:
        out.append(reply)
    elif kind is bytes:
        if len(reply) < LARGE:
            out.append(b"$%d\r\n%b\r\n" % (len(reply), reply))
        else:
            out += (b"$%d\r\n" % len(reply), reply, b"\r\n")  # no copy: the reply may wait for long
    elif kind is int:
        out.append(b":%d\r\n" % reply)
    elif kind is list:
        out.append(b"*%d\r\n" % len(reply))
        for item in reply:
            append_reply(out, item, protocol)
    else:
        _APPEND[kind](out, reply, protocol)


def _append_by_key(out: list[bytes], reply: ByKey, protocol: int) -> None:
    half = len(reply) // 2
    out.append(b"%%%d\r\n" % half if protocol == 3 else b"*%d\r\n" % half)
    for at, item in enumerate(reply):
        if protocol == 2 and at % 2 == 0:
            out.append(b"*2\r\n")
        append_reply(out, item, protocol)


def _append_scored(out: list[bytes], reply: Scored, protocol: int) -> None:
    out.append(b"*%d\r\n" % (len(reply) // 2 if protocol == 3 else len(reply)))
    for at, item in enumerate(reply):
        if protocol == 3 and at % 2 == 0:
            out.append(b"*2\r\n")
        append_reply(out, item, protocol)


def _append_pairs(out: list[bytes], reply: Pairs, protocol: int) -> None:
    out.append(b"%%%d\r\n" % (len(reply) // 2) if protocol == 3 else b"*%d\r\n" % len(reply))
    for item in reply:
        append_reply(out, item, protocol)


def _append_sized(out: list[bytes], reply: list[Reply], protocol: int, mark: bytes) -> None:
    out.append(b"%b%d\r\n" % (mark if protocol == 3 else b"*", len(reply)))
    for item in reply:
        append_reply(out, item, protocol)


def _append_members(out: list[bytes], reply: Members, protocol: int) -> None:
    _append_sized(out, reply, protocol, b"~")


def _append_push(out: list[bytes], reply: Push, protocol: int) -> None:
    _append_sized(out, reply, protocol, b">")


def _append_several(out: list[bytes], reply: Several, protocol: int) -> None:
    for item in reply:
        append_reply(out, item, protocol)


def _append_verbatim(out: list[bytes], reply: Verbatim, protocol: int) -> None:
    if protocol == 3:
        out.append(b"=%d\r\ntxt:%b\r\n" % (len(reply) + 4, reply))
    else:
        out.append(b"$%d\r\n%b\r\n" % (len(reply), reply))


def _append_double(out: list[bytes], reply: float, protocol: int) -> None:
    text = double_text(reply)
    out.append(b",%b\r\n" % text if protocol == 3 else b"$%d\r\n%b\r\n" % (len(text), text))


_APPEND: Final[dict[type, Callable[[list[bytes], Any, int], None]]] = {
    type(None): lambda out, reply, protocol: out.append(b"_\r\n" if protocol == 3 else b"$-1\r\n"),
    NilArray: lambda out, reply, protocol: out.append(b"_\r\n" if protocol == 3 else b"*-1\r\n"),
    Simple: lambda out, reply, protocol: out.append(b"+%b\r\n" % reply),
    CommandError: lambda out, reply, protocol: out.append(b"-%b\r\n" % reply.wire),
    bool: lambda out, reply, protocol: out.append(b":%d\r\n" % reply),
    float: _append_double,
    Pairs: _append_pairs,
    ByKey: _append_by_key,
    Scored: _append_scored,
    Members: _append_members,
    Push: _append_push,
    Several: _append_several,
    Verbatim: _append_verbatim,
}


def quoted(word: bytes) -> bytes:
    """Quote a word as MONITOR does, in double quotes with escapes."""
    return b'"' + _QUOTE.sub(_escape, word) + b'"'


_QUOTE: Final = re.compile(rb"[^ !#-\[\]-~]")
_ESCAPED_AS: Final = {
    b"\n": b"\\n",
    b"\r": b"\\r",
    b"\t": b"\\t",
    b"\b": b"\\b",
    b"\a": b"\\a",
    b'"': b'\\"',
    b"\\": b"\\\\",
}


def _escape(byte: re.Match[bytes]) -> bytes:
    return _ESCAPED_AS.get(byte[0]) or b"\\x%02x" % byte[0][0]


# Requests

MAX_LINE: Final = 65536  # an inline request or a header, without its line end
MAX_COUNT: Final = 2**31 - 1

_SHORT: Final = 512  # a chunk that is quicker split than handed to hiredis
_EVEN: Final = 1 << 16  # one of requests that are all of a shape may be longer
_COUNTS: Final = {b"*%d" % count: count for count in range(1, 64)}
_HEADERS: Final = [b"$%d" % size for size in range(4096)]
header_of: Final = _HEADERS.__getitem__
# Bytes a bulk string takes on the wire, by its length; tables because looking up stays inside C.
_FRAMED: Final = [len(b"$%d\r\n\r\n" % size) + size for size in range(16384)]
_HEADED: Final = [len(b"*%d\r\n" % count) for count in range(1024)]
# hiredis allocates what an aggregate's header announces. These are headers of a thousand items and more.
_LARGE: Final = {mark: re.compile(rb"[%b]\+?([0-9]{4,})" % mark) for mark in (b"*", b">", b"~", b"|", b"%")}
_LEAST_WORD: Final = len(b"$0\r\n\r\n")
_AT_ONCE: Final = 1 << 16  # bytes of a backlog that are parsed in one go
# What stands for no request at all, in a row.
_EMPTY: Final = re.compile(rb"(?:\r?\n|\*0\r\n|\*-1\r\n)++")
_WORD_SIZE: Final = 40  # bytes that a word takes in memory besides its own
_NOT_ENOUGH: Final = object()


class RequestDecoder:
    """Bytes of one connection to requests, in order.

    `next()` gives the next whole request, or None until more is fed. It raises ProtocolError when the peer broke
    the protocol, with the text to answer, empty if the connection is to be closed without one; nothing can be
    read after that.
    """

    __slots__ = (
        "_argv",
        "_bulk",
        "_count",
        "_reader",
        "_repeated",
        "_repeated_data",
        "_rest",
        "_size",
        "_wary",
        "inline",
        "max_buffer",
        "max_bulk",
        "parsed",
        "restricted",
    )

    def __init__(self, max_bulk: int = 512 << 20, max_buffer: int = 1 << 30) -> None:
        self.max_bulk = max_bulk
        self.max_buffer = max_buffer
        self.restricted = False  # not authenticated: short requests only
        self.inline = 0  # inline requests that were read
        self.parsed: deque[list[bytes]] = deque()  # what `next` will give first, without effort
        self._reader = _new_reader()
        self._rest = bytearray()  # what hiredis did not take
        self._wary = False  # `_rest` holds something that hiredis must not see
        self._repeated_data = b""  # the last chunk that was read at once, and what it held
        self._repeated: list[list[bytes]] = []
        self._forget()

    def _forget(self) -> None:
        """Nothing of the next request is known."""
        self._count = -1  # bulk strings still to come
        self._bulk = -1  # size of the bulk string being read
        self._argv: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Take in what has arrived."""
        if self._rest or self._count >= 0 or self.restricted or not self._read_quickly(data):
            self._rest += data

    def keep(self, data: bytes) -> None:
        """Take in what has arrived, and leave it unread until `next` comes to it."""
        self._rest += data

    def drop(self) -> None:
        """Forget everything that waits: the connection ends."""
        self.parsed.clear()
        self._rest.clear()
        self._forget()

    def read_at_once(self, data: bytes) -> list[list[bytes]] | None:
        """Read a chunk of whole requests that have equally many words; nothing may have come before it.

        Returns None, and takes nothing, for any other chunk. A reader of a group sends the same bytes again and again
        and gets the same list, which callers must not change. Fast path; twin: `feed` and `next`.
        Test: tests/server/protocol/test_decoder.py.
        """
        if data == self._repeated_data:
            return self._repeated
        requests = _split_evenly(data) if len(data) < _EVEN else None
        if requests is not None:
            self._repeated_data, self._repeated = data, requests
        return requests

    @property
    def is_idle(self) -> bool:
        """Whether a chunk that comes now begins with a request."""
        return not (self._rest or self._count >= 0 or self.restricted or self.parsed)

    def next(self) -> list[bytes] | None:
        """Return the next request, or None until more bytes come."""
        if self.parsed:
            return self.parsed.popleft()
        if not self._rest:
            return None
        argv = self._read_carefully()
        if not self._rest:
            self._wary = False
        elif argv is not None and self._rest[0] == 42 and not self._wary and not self.restricted:
            self._read_on_quickly()
        return argv

    def _read_on_quickly(self) -> None:
        """Try the quick way again on the front of what waits."""
        rest = self._rest
        data, self._rest = bytes(rest[:_AT_ONCE]), bytearray()
        self._wary = not self._read_quickly(data)
        left, self._rest = self._rest, rest
        del rest[: 0 if self._wary else len(data) - len(left)]

    @property
    def buffered(self) -> int:
        """How many bytes wait to become a request."""
        return len(self._rest) + self._size

    @property
    def spare(self) -> int:
        """How many bytes the buffer has room for besides."""
        return max(0, self._rest.__alloc__() - len(self._rest) - 1)

    @property
    def unfinished(self) -> int:
        """How many bytes the words of the request take that is being read."""
        return self._size

    # The quick way

    def _read_quickly(self, data: bytes) -> bool:
        """Parse a chunk of whole canonical requests; False, with nothing taken, if it may be anything else."""
        if len(data) >= _SHORT:
            return data[:1] == b"*" and len(data) <= self.max_bulk and self._feed_reader(data)
        requests = _split(data)
        if requests is None:
            return False
        self.parsed.extend(requests)
        return True

    def _feed_reader(self, data: bytes) -> bool:
        """As above, by hiredis, which reads more generously than a server may.

        `+text` and `(number` read as bytes and are shorter than the canonical form, and a set (`~`) reads as an array
        of the same length. With these excluded every deviation makes a request longer, so lengths that add up mean that
        there was none; but hiredis does not look at what ends a bulk string, so the line ends are counted too. (Words
        that hold some go the careful way.)
        """
        if b"\r\n+" in data or b"\r\n~" in data or b"\r\n(" in data or _announces_too_much(data):
            return False
        requests = self._parse(data)
        taken = _canonical_size(requests) if requests else 0
        if requests and taken == len(data) and data.count(b"\r\n") == _line_ends(requests):
            self.parsed.extend(requests)
            return True
        self._reader = _new_reader()
        if requests and 0 < taken < len(data) and _is_cut_at_end(data, requests):
            self.parsed.extend(requests)
            self._rest += data[taken:]
            return True
        return False

    def _parse(self, data: bytes) -> list[list[bytes]] | None:
        requests: list[list[bytes]] = []
        gets = self._reader.gets
        try:
            self._reader.feed(data)
            while (request := gets()) is not _NOT_ENOUGH:
                if type(request) is not list or not request:
                    return None
                requests.append(request)
        except (hiredis.HiredisError, TypeError, ValueError, LookupError):  # a map with an array as a key, for one
            return None
        return requests

    # The careful way

    def _read_carefully(self) -> list[bytes] | None:
        """One request out of `_rest`, or None; remembers how far it came."""
        while self._count < 0:
            if not self._rest:
                return None
            if (empty := _EMPTY.match(self._rest)) is not None:
                end = empty.end()
                del empty  # it holds the buffer, which cannot shrink meanwhile
                del self._rest[:end]
                continue
            if self._rest[0] != 42:
                line = self._take_inline()
                if line is None or line:
                    return line
                continue
            count = self._take_length("mbulk count", "multibulk length", MAX_COUNT, 10)
            if count is None:
                return None
            if count > 0:
                self._count = count
        while self._count > 0:
            if not self._take_bulk():
                return None
        argv = self._argv
        self._forget()
        return argv

    def _take_inline(self) -> list[bytes] | None:
        end = self._rest.find(b"\n")
        if end > MAX_LINE or (end < 0 and len(self._rest) > MAX_LINE):
            raise ProtocolError("too big inline request")
        if end < 0:
            return None
        line = bytes(self._rest[:end]).removesuffix(b"\r")
        del self._rest[: end + 1]
        self.inline += 1
        words = split_words(line)
        if words is None:
            raise ProtocolError("unbalanced quotes in request")
        return words

    def _take_length(self, line: str, what: str, most: int, most_restricted: int) -> int | None:
        """Return the number in a header line, or None until the line is complete."""
        end = self._rest.find(b"\r", 0, MAX_LINE + 1)
        if end < 0:
            if len(self._rest) > MAX_LINE:
                raise ProtocolError(f"too big {line} string")
            return None
        if len(self._rest) < end + 2:
            return None
        if what == "bulk length" and self._rest[0] != 36:
            raise ProtocolError(f"expected '$', got '{chr(self._rest[0])}'")
        length = as_integer(bytes(self._rest[1:end]))
        if length is None or length > most or (length < 0 and what == "bulk length"):
            raise ProtocolError(f"invalid {what}")
        if self.restricted and length > most_restricted:
            raise ProtocolError(f"unauthenticated {what}")
        del self._rest[: end + 2]
        return length

    def _take_bulk(self) -> bool:
        """One bulk string into the request being read; False if it is not all there yet."""
        if self._bulk < 0:
            size = self._take_length("bulk count", "bulk length", self.max_bulk, 16384)
            if size is None:
                return False
            self._bulk = size
        size = self._bulk
        if len(self._rest) < size + 2:
            if self.buffered > self.max_buffer:
                raise ProtocolError("")
            return False
        if self._rest[size : size + 2] != b"\r\n":
            raise ProtocolError("invalid CRLF in request")
        with memoryview(self._rest) as view:
            self._argv.append(bytes(view[:size]))
        del self._rest[: size + 2]
        self._size += size + _WORD_SIZE
        self._bulk = -1
        self._count -= 1
        return True


def _announces_too_much(data: bytes) -> bool:
    """Return whether a header announces more items than the chunk can hold."""
    most = len(data) // _LEAST_WORD
    for mark, large in _LARGE.items():
        if mark in data and any(len(digits) > 9 or int(digits) > most for digits in large.findall(data)):
            return True
    return False


def _new_reader() -> Any:
    return hiredis.Reader(notEnoughData=_NOT_ENOUGH)


def parse_log(data: bytes) -> list[list[bytes]]:
    """Parse a piece of a log that holds whole commands."""
    reader = _new_reader()
    reader.feed(data)
    return list(iter(reader.gets, _NOT_ENOUGH))


def _split(data: bytes) -> list[list[bytes]] | None:
    """Whole canonical requests whose words hold no line end; None if that is not what `data` is."""
    lines = data.split(b"\r\n")
    if lines.pop():
        return None
    requests = []
    at = 0
    while at < len(lines):
        count = _COUNTS.get(lines[at])
        if count is None:
            return None
        end = at + 1 + 2 * count
        argv = lines[at + 2 : end : 2]
        if len(argv) != count or lines[at + 1 : end : 2] != list(map(header_of, map(len, argv))):
            return None
        requests.append(argv)
        at = end
    return requests


def _split_evenly(data: bytes) -> list[list[bytes]] | None:
    """As `_split`, for requests that all have as many words: column by column, which stays inside C."""
    lines = data.split(b"\r\n")
    count = _COUNTS.get(lines[0])
    if count is None:
        return None
    stride = 2 * count + 1
    try:
        if len(lines) == stride + 1:
            argv = lines[2::2]
            return [argv] if lines[1::2] == [*map(header_of, map(len, argv)), b""] else None
        starts = lines[::stride]
        if len(lines) % stride != 1 or starts.pop() or starts.count(lines[0]) != len(starts):
            return None
        del lines[::stride]
        words = lines[1::2]
        if lines[::2] != list(map(header_of, map(len, words))):
            return None
    except IndexError:  # a word longer than the table
        return None
    return [words[at : at + count] for at in range(0, len(words), count)]


def _canonical_size(requests: list[list[bytes]]) -> int:
    """How many bytes these requests take in their canonical form; -1 if there is more in them than bytes."""
    if set(map(type, chain.from_iterable(requests))) != {bytes}:
        return -1
    try:
        bulks = sum(map(_FRAMED.__getitem__, map(len, chain.from_iterable(requests))))
        return bulks + sum(map(_HEADED.__getitem__, map(len, requests)))
    except IndexError:  # something longer than the tables
        return sum(map(_size_of, requests))


def _size_of(request: list[bytes]) -> int:
    framed = sum(len(b"$%d\r\n\r\n" % len(word)) + len(word) for word in request)
    return len(b"*%d\r\n" % len(request)) + framed


def _is_cut_at_end(data: bytes, requests: list[list[bytes]]) -> bool:
    """Whether each request ends where its canonical form would, so that what follows is a part of one more."""
    at = 0
    for request in requests:
        at += _size_of(request)
        if data[at - 2 : at] != b"\r\n" or data[at : at + 1] != b"*":
            return False
    return data.count(b"\r\n", 0, at) == _line_ends(requests)


def _line_ends(requests: list[list[bytes]]) -> int:
    """How many line ends requests have whose words hold none."""
    return 2 * sum(map(len, requests)) + len(requests)


_WORD: Final = re.compile(
    rb"""(?: "(?P<double>(?:[^"\\]++|\\x[0-9a-fA-F]{2}|\\.)*+)"(?=[\s]|$)
          | '(?P<single>(?:[^'\\]++|\\'|\\)*+)'(?=[\s]|$)
          | (?P<plain>[^ \t\n\r"']++)
        )""",
    re.VERBOSE | re.DOTALL,
)
_BLANKS: Final = re.compile(rb"[ \t\n\v\f\r]*+")
_SPECIAL: Final = re.compile(rb"[\"'\v\f]")
_ESCAPE: Final = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def split_words(line: bytes) -> list[bytes] | None:
    """Split an inline request into words; None if its quotes do not match. Bytes after a NUL are ignored."""
    line = line.split(b"\0", 1)[0]
    if not _SPECIAL.search(line):
        return line.split()
    words: list[bytes] = []
    at = _skip_blanks(line, 0)
    while at < len(line):
        parts: list[bytes] = []
        while at < len(line) and line[at] not in b" \t\n\r":
            part = _WORD.match(line, at)
            if part is None:
                return None
            parts.append(_unquoted(part))
            at = part.end()
            if part.lastgroup != "plain":  # any blank may follow a quote, and ends the word
                break
        words.append(b"".join(parts))
        at = _skip_blanks(line, at)
    return words


def _skip_blanks(line: bytes, at: int) -> int:
    """Return where the next word begins. `\\v` and `\\f` are blanks between words, and not inside one."""
    found = _BLANKS.match(line, at)
    return at if found is None else found.end()


def _unquoted(part: re.Match[bytes]) -> bytes:
    """Decode a piece of a word: double quotes have many escapes, single quotes only that of a quote."""
    if part.lastgroup == "double":
        return _ESCAPE.sub(_unescape, part["double"])
    if part.lastgroup == "single":
        return part["single"].replace(b"\\'", b"'")
    return part["plain"]


def _unescape(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    if len(code) == 3:
        return bytes((int(code[1:], 16),))
    return _ESCAPED.get(code, code)
