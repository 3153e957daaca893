"""A raw connection to a server: packed commands out, reply bytes in.

Replies are kept as the bytes they came in, so that they can be compared byte for byte; `end_of` finds where
one ends, `parse` makes Python values of one for reports. A batch is ended by an ECHO of a word that nothing
else says, so reading needs no parsing at all:

    exchange(batch) ── send ──▶ server
         └── bytes up to the echo ◀──┘
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterable
from types import TracebackType
from typing import Final

CRLF: Final = b"\r\n"
NIL_ARRAY: Final = "nil array"


class Closed(Exception):
    """The server closed the connection before it had answered."""


def pack(argv: Iterable[bytes]) -> bytes:
    """One command as the array of bulk strings that clients send."""
    parts = [b"$%d\r\n%b\r\n" % (len(word), word) for word in argv]
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


def end_of(data: bytes, at: int = 0) -> int:
    """Where the reply that starts at `at` ends; ValueError if it is not all there."""
    open_items = 1
    while open_items:
        line_end = data.index(CRLF, at)
        kind = data[at]
        if kind in b"$=!":
            size = int(data[at + 1 : line_end])
            at = line_end + 2 if size < 0 else line_end + size + 4
        else:
            if kind in b"*~>":
                open_items += max(0, int(data[at + 1 : line_end]))
            elif kind in b"%|":  # an attribute stands in front of the reply it belongs to
                open_items += 2 * int(data[at + 1 : line_end]) + (kind == 0x7C)
            at = line_end + 2
        open_items -= 1
    if at > len(data):
        raise ValueError("a reply is not complete")
    return at


def split(data: bytes) -> list[bytes]:
    """Replies that follow each other, one by one."""
    found, at = [], 0
    while at < len(data):
        end = end_of(data, at)
        found.append(data[at:end])
        at = end
    return found


def parse(data: bytes) -> object:
    """One reply as a value to print or to rearrange.

    Maps come as `("map", [k, v, …])`, sets as `("set", […])`, simple strings and errors as str, doubles as
    `("double", text)`: what differs on the wire differs here too.
    """
    value, end = _parse(data, 0)
    if end != len(data):
        raise ValueError("bytes are left over after a reply")
    return value


def _parse(data: bytes, at: int) -> tuple[object, int]:
    line_end = data.index(CRLF, at)
    kind, line = data[at : at + 1], data[at + 1 : line_end]
    at = line_end + 2
    match kind:
        case b"$" | b"=" | b"!":
            if line == b"-1":
                return None, at
            body = data[at : at + int(line)]
            return (body if kind == b"$" else (kind.decode(), body)), at + int(line) + 2
        case b"*" | b"~" | b">" | b"%":
            if line == b"-1":
                return NIL_ARRAY, at
            items, at = _parse_items(data, at, int(line) * (2 if kind == b"%" else 1))
            named = {b"~": "set", b">": "push", b"%": "map"}.get(kind)
            return ((named, items) if named else items), at
        case b":":
            return int(line), at
        case b"_":
            return "nil", at
        case b",":
            return ("double", line), at
        case _:
            return (kind + line).decode("latin-1"), at


def _parse_items(data: bytes, at: int, count: int) -> tuple[list[object], int]:
    items = []
    for _ in range(count):
        item, at = _parse(data, at)
        items.append(item)
    return items, at


class Wire:
    """A connection to a server on this machine, in one protocol."""

    _numbers = itertools.count()

    def __init__(self, port: int, protocol: int = 2, *, timeout_s: float = 60) -> None:
        self.protocol = protocol
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._awaited = b""
        self._buffer = bytearray(1 << 18)  # one for all replies: benchmarks time what is received
        self._view = memoryview(self._buffer)
        self.exchange(pack([b"HELLO", b"%d" % protocol]))

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, batch: bytes) -> None:
        """Send packed commands, and the word that will end their replies."""
        word = b"end-%d-%d" % (os.getpid(), next(self._numbers))
        self._awaited = b"$%d\r\n%b\r\n" % (len(word), word)
        self._socket.sendall(batch + pack([b"ECHO", word]))

    def receive(self) -> bytes:
        """The replies to what was sent last."""
        parts = bytearray()
        while not parts.endswith(self._awaited):
            size = self._socket.recv_into(self._buffer)
            if not size:
                raise Closed(f"the server closed the connection after {bytes(parts[-200:])!r}")
            parts += self._view[:size]
        return bytes(parts[: -len(self._awaited)])

    def exchange(self, batch: bytes) -> bytes:
        """Send packed commands; their replies, one after the other."""
        self.send(batch)
        return self.receive()

    def send_only(self, argv: Iterable[bytes]) -> None:
        """Send one command whose answers are read with receive_some (SUBSCRIBE)."""
        self._socket.sendall(pack(argv))

    def receive_some(self) -> bytes:
        """Whatever has come; waits for something."""
        chunk = self._socket.recv(1 << 20)
        if not chunk:
            raise Closed("the server closed the connection")
        return chunk

    def ask(self, *argv: bytes) -> bytes:
        """One command; its raw reply."""
        return self.exchange(pack(argv))
